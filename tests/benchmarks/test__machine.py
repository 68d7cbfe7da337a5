"""Threads are given and given back; the machine is described; the work of others is told from our own."""

import subprocess
import sys
import time

import numba
import pytest
import torch

import softcarry as sc
from softcarry.benchmarks import _machine
from softcarry.benchmarks._machine import OthersAtWork, describe_machine, missing, numba_threads, row_threads
from softcarry.errors import OptionError


def test_rows_and_torch_get_the_same_threads_and_their_own_back():
    before = sc.get_num_threads(), torch.get_num_threads()
    with row_threads(3) as number:
        assert (number, sc.get_num_threads(), torch.get_num_threads()) == (3, 3, 3)
    assert (sc.get_num_threads(), torch.get_num_threads()) == before
    with pytest.raises(ZeroDivisionError), row_threads(5):
        divmod(1, 0)
    assert (sc.get_num_threads(), torch.get_num_threads()) == before


def test_without_a_number_it_is_softcarry_s_own():
    sc_before = sc.get_num_threads()
    torch.set_num_threads(sc_before + 1)
    with row_threads(None) as number:
        assert number == torch.get_num_threads() == sc_before
    assert torch.get_num_threads() == sc_before + 1
    torch.set_num_threads(sc_before)


def test_rows_need_no_torch(monkeypatch):
    monkeypatch.setattr(_machine, "missing", lambda libraries: "torch is not installed")
    before = torch.get_num_threads()
    with row_threads(before + 2):
        assert torch.get_num_threads() == before


def test_numba_gets_its_threads_and_its_own_back():
    before = numba.get_num_threads()
    with numba_threads(1) as number:
        assert number == numba.get_num_threads() == 1
    assert numba.get_num_threads() == before
    with pytest.raises(OptionError, match=r"within Numba's limit; got 4096: set NUMBA_NUM_THREADS"):
        numba_threads(4096).__enter__()
    assert numba.get_num_threads() == before


@pytest.mark.parametrize("context", [row_threads, numba_threads])
def test_no_threads_are_refused(context):
    with pytest.raises(OptionError, match="threads is a whole number of at least 1; got 0"):
        context(0).__enter__()


def test_the_description_has_threads_processors_and_versions():
    found = describe_machine(7)
    assert found["threads"] == 7
    assert found["processors"] >= 1
    assert found["libraries"]["torch"] == torch.__version__
    assert found["libraries"].keys() >= {"numpy", "numba", "scipy"}
    assert "torch_threads" not in found


def test_what_is_missing_is_named_with_its_command():
    assert missing(["numpy", "torch"]) == ""
    assert (
        missing(["numpy", "no_such_library"])
        == "no_such_library is not installed: pip install no_such_library"
    )


def test_others_at_work_are_counted_and_our_own_work_is_not(monkeypatch):
    readings = iter([(10.0, 100.0, 50.0), (14.0, 107.0, 55.0), (10.0, 100.0, 50.0), (14.0, 104.9, 55.0)])
    monkeypatch.setattr(_machine, "_work", lambda: next(readings))
    # 7 processor seconds in 4 seconds, 5 of them ours
    assert OthersAtWork().processors() == pytest.approx(0.5)
    # Ticks are coarse: a little less than our own is nobody else's.
    assert OthersAtWork().processors() == 0.0


def test_where_the_system_does_not_tell_there_is_no_number(monkeypatch, tmp_path):
    monkeypatch.setattr(_machine, "_STATISTICS", tmp_path / "stat")
    assert OthersAtWork().processors() is None


@pytest.mark.skipif(_machine._work() is None, reason="no /proc/stat")
def test_work_of_this_process_and_of_its_children_is_our_own():
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    now, total, own = _machine._work()
    exec(busy, {})
    subprocess.run([sys.executable, "-c", busy], check=True)
    time.sleep(0.02)  # two ticks, so that the statistics have the end of it
    later, total_later, own_later = _machine._work()
    assert own_later - own >= 0.6 - 0.02
    assert total_later - total >= 0.6 - 0.1
    assert later > now
