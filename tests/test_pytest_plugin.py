"""The pytest plug-in: what a failing test says, and what the options of pytest do."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mutants import TwoPass
from softcarry.auditing import Subject
from softcarry.errors import OptionError, SubjectError
from softcarry.pytest_plugin import assert_attention_sane

SUITE = """
from mutants import TwoPass
from softcarry.pytest_plugin import assert_attention_sane as asserted

def test_sound(assert_attention_sane):
    assert assert_attention_sane(TwoPass(), only="EMPTY,LSE").ok

def test_wrong(assert_attention_sane):
    assert_attention_sane(TwoPass(empty_output=float("nan")), only="EMPTY,LSE")

def test_with_a_contract_of_its_own(assert_attention_sane):
    assert_attention_sane(TwoPass(empty_output=float("nan")), {"empty_rows": "nan"}, only="EMPTY,LSE")

def test_imported():
    asserted(TwoPass(), only="LSE")
"""


def numpy_kernel(**faults):
    return Subject(TwoPass(**faults), name="two_passes", arrays="numpy", dtypes=("float32", "float16"))


def run(folder, *options):
    (folder / "test_kernels.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_failure_names_the_kind_of_fault():
    with pytest.raises(AssertionError) as caught:
        assert_attention_sane(numpy_kernel(empty_lse=0.0), only="EMPTY,LSE")
    text = str(caught.value)
    assert text.startswith("the attention kernel 'two_passes' is wrong in 2 ways")
    assert "EMPTY (float32, float16): the lse of rows without keys is 0, not −inf" in text
    assert "remedy: return −inf where l = 0" in text
    assert "kind of fault: " in text
    assert "pytorch#103963" in text
    assert max(map(len, text.splitlines())) < 400


def test_a_sound_kernel_gives_its_report():
    report = assert_attention_sane(numpy_kernel(), only="EMPTY")
    assert report.ok
    assert [verdict.outcome for verdict in report.verdicts] == ["pass", "pass"]


def test_warnings_fail_when_asked():
    def inexact(q, k, v):
        """Off by one unit in the last place, as output · (1 / l) may be: within every bound."""
        return TwoPass(lse_dtype=None)(q, k, v) * np.float32(1.0 + 2.0**-23)

    subject = Subject(inexact, arrays="numpy")
    assert [f.severity for f in assert_attention_sane(subject, only="TAIL").findings] == ["warning"]
    with pytest.raises(AssertionError, match="a single key does not come back bit for bit"):
        assert_attention_sane(subject, only="TAIL", fail_on="warning")
    with pytest.raises(OptionError, match="'error' or 'warning'; got 'hint'"):
        assert_attention_sane(subject, fail_on="hint")


def test_what_is_no_kernel_is_no_failed_assertion():
    with pytest.raises(SubjectError, match="gave no attention output"):
        assert_attention_sane(lambda q, k, v: None)


def test_in_a_suite(tmp_path):
    status, out = run(tmp_path)
    assert status == 1
    assert "1 failed, 3 passed" in out
    assert "the attention kernel 'TwoPass' is wrong" in out
    assert "EMPTY (float32): " in out


def test_a_contract_for_the_whole_suite(tmp_path):
    (tmp_path / "promises.toml").write_text('empty_rows = "nan"\n')
    status, out = run(tmp_path, "--attention-contract", "promises.toml", "-k", "sound or wrong")
    assert status == 1
    # What is promised now is the other way round.
    assert "1 failed, 1 passed" in out
    assert "test_kernels.py::test_sound" in out
    status, out = run(tmp_path, "--attention-contract", "none.toml", "-k", "sound")
    assert status == 1
    assert "none.toml can't be read" in out


def test_loading_the_plug_in_imports_nothing_heavy():
    code = (
        "import sys, softcarry.pytest_plugin;"
        "print(sorted({'numpy', 'numba', 'torch', 'jax', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
