"""Helpers do each unit once, end with the caller, and let the interpreter end."""

import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import njit

from softcarry.cpu import row_team
from softcarry.cpu.memory import claim, load_integer, store_integer
from softcarry.cpu.row_signals import await_helpers
from softcarry.cpu.row_team import share

UNITS = 4096


@njit(nogil=True)
def count_units(units, counter, helpers, done):
    """Add 1 to the place of every unit claimed."""
    unit = claim(counter)
    while unit < units:
        store_integer(done + 8 * unit, load_integer(done + 8 * unit) + 1)
        unit = claim(counter)
    await_helpers(counter, helpers)


def counted(threads):
    done = np.zeros(UNITS, np.int64)
    share(count_units, (UNITS,), (done.ctypes.data,), threads)
    return done


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_unit_is_done_once(threads):
    for pause in [0.0] * 200 + [1e-3] * 20:
        np.testing.assert_array_equal(counted(threads), 1)
        # Long enough for helpers to fall asleep.
        time.sleep(pause)


def test_callers_at_once_do_not_disturb_each_other():
    with ThreadPoolExecutor(4) as callers:
        for done in callers.map(counted, [3] * 400):
            np.testing.assert_array_equal(done, 1)


class ThreadFaultError(Exception):
    pass


def test_what_a_helper_raises_reaches_the_caller_and_the_next_call_is_served():
    caller = threading.get_ident()
    came = threading.Event()

    def kernel(counter, helpers):
        row_team.row_signals.exchange(counter, 1)
        if threading.get_ident() != caller:
            came.set()
            raise ThreadFaultError
        assert came.wait(20)

    with pytest.raises(ThreadFaultError):
        share(kernel, (), (), 2)
    np.testing.assert_array_equal(counted(2), 1)


def test_what_the_caller_raises_does_not_leave_a_helper_behind():
    caller = threading.get_ident()
    began, ended = threading.Event(), threading.Event()

    def kernel(counter, helpers):
        row_team.row_signals.exchange(counter, 1)
        if threading.get_ident() == caller:
            assert began.wait(20)
            raise ThreadFaultError
        began.set()
        time.sleep(0.05)
        ended.set()

    with pytest.raises(ThreadFaultError):
        share(kernel, (), (), 2)
    assert ended.is_set()
    np.testing.assert_array_equal(counted(2), 1)


def test_work_is_let_go_when_the_call_returns():
    class Held:
        pass

    held = Held()
    gone = threading.Event()
    weakref.finalize(held, gone.set)

    def kernel(counter, helpers, held):
        row_team.row_signals.exchange(counter, 1)
        time.sleep(0.01)

    share(kernel, (), (held,), 2)
    del held
    assert gone.wait(20)


def test_the_interpreter_ends_while_helpers_look_out():
    code = """
        import numpy as np, softcarry as sc
        sc.set_num_threads(4)
        x = np.zeros((4096, 128), np.float32)
        assert (sc.logsumexp(x) == np.float32(np.log(128))).all()
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
