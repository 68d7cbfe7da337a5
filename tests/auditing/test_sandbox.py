"""An audit in a process of its own: the same report, and crashes, hangs and hunger as findings."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import softcarry as sc
from mutants import Trap, TwoPass, plain
from softcarry.auditing.sandbox import MOST_PROCESSES, audit_in_process
from softcarry.auditing.subject import Subject
from softcarry.errors import MissingDependencyError, OptionError, SubjectError

CHECKS = ["EMPTY", "LSE"]


def content(report):
    plain_content = report.to_dict()
    plain_content["environment"].pop("time")
    # What other tests have imported into this process is none of the other's.
    plain_content["environment"].pop("torch_threads", None)
    plain_content["environment"].pop("libraries")
    return plain_content


def outcomes(report):
    return [(verdict.check, verdict.dtype, verdict.outcome) for verdict in report.verdicts]


def test_the_report_is_that_of_this_process():
    kernel = TwoPass(empty_lse=0.0)
    arguments = {"only": CHECKS, "dtypes": "float32,float16", "seed": 3, "contract": {"empty_rows": "nan"}}
    subject = Subject(kernel, arrays="numpy")
    steps = []
    there = audit_in_process(subject, progress=lambda *step: steps.append(step), **arguments)
    assert content(there) == content(sc.audit(subject, **arguments))
    assert not there.ok
    assert [step[:2] for step in steps] == [(i, 4) for i in range(5)]


def test_a_known_name_is_loaded_over_there():
    report = audit_in_process("softcarry", only="LSE", dtypes="float64")
    assert report.ok
    assert outcomes(report) == [("LSE", "float64", "pass")]


def test_a_crash_is_a_finding_and_the_other_checks_are_made():
    kernel = Trap(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    report = audit_in_process(
        Subject(kernel, arrays="numpy"), only=["EMPTY", "LSE"], dtypes="float32,bfloat16"
    )
    assert [(f.check, f.message, f.dtype) for f in report.findings] == [
        ("RUN", "the process dies, killed by SIGSEGV, during EMPTY", "float32"),
        ("RUN", "the process dies, killed by SIGSEGV, during EMPTY", "bfloat16"),
    ]
    assert outcomes(report) == [
        ("RUN", "float32", "fail"),
        ("RUN", "bfloat16", "fail"),
        ("EMPTY", "float32", "skip"),
        ("LSE", "float32", "pass"),
        ("EMPTY", "bfloat16", "skip"),
        ("LSE", "bfloat16", "pass"),
    ]
    assert {skip.reason for skip in report.skipped if skip.check == "EMPTY"} == {
        "the process dies, killed by SIGSEGV, during EMPTY"
    }


def test_leaving_with_status_0_is_no_success():
    kernel = Trap(lambda: os._exit(0))
    report = audit_in_process(Subject(kernel, arrays="numpy"), only="EMPTY")
    assert [f.message for f in report.findings] == [
        "the process dies, ended with exit status 0, during EMPTY"
    ]


def test_a_kernel_that_hangs_is_ended():
    kernel = Trap(lambda: time.sleep(3600))
    report = audit_in_process(Subject(kernel, arrays="numpy"), only="EMPTY", time_limit=30.0)
    assert [f.message for f in report.findings] == ["the process gives no answer within 30 s during EMPTY"]


def test_a_kernel_that_takes_the_memory_is_ended():
    kept = []

    def hoard():
        while True:
            kept.append(np.ones(2**24))
            time.sleep(0.02)

    report = audit_in_process(Subject(Trap(hoard), arrays="numpy"), only="EMPTY", memory_limit=1.0)
    assert [f.message for f in report.findings] == [
        "the process takes more than 1 GiB of memory during EMPTY"
    ]


def test_a_kernel_that_always_dies_is_given_up():
    def dies(q, k, v):
        os._exit(3)

    dtypes = "float64,float32,bfloat16,float16"
    report = audit_in_process(Subject(dies, arrays="numpy"), only="LSE", dtypes=dtypes)
    assert [f.message for f in report.findings] == [
        "the process dies, ended with exit status 3, in the first plain call"
    ] * 4
    assert report.subject["dtypes"] == []
    kernel = Trap(lambda: os._exit(3), keys=64)  # as many as the first plain call has
    checks = ["EMPTY", "TAIL", "RANGE", "GROWTH", "REF"]
    report = audit_in_process(Subject(kernel, arrays="numpy"), only=checks, dtypes="float32,float64")
    assert len(report.findings) == MOST_PROCESSES
    given_up = [skip for skip in report.skipped if "had ended" in skip.reason]
    assert len(given_up) + MOST_PROCESSES == sum(v.outcome == "skip" for v in report.verdicts)


def test_what_is_wrong_with_the_request_is_an_error():
    with pytest.raises(SubjectError, match="did you mean 'softcarry'"):
        audit_in_process("softcary")
    with pytest.raises(SubjectError, match="gave no attention output"):
        audit_in_process(Subject(lambda q, k, v: None, arrays="numpy"), only="LSE")
    with pytest.raises(OptionError, match="did you mean 'EMPTY'"):
        audit_in_process(plain, only="EMTPY")
    with pytest.raises(OptionError, match="time_limit is a number above 0, in seconds; got 0"):
        audit_in_process(plain, time_limit=0)
    with pytest.raises(OptionError, match="memory_limit is a number above 0, in GiB; got -1"):
        audit_in_process(plain, memory_limit=-1)


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    (tmp_path / "adapter_of_nothing.py").write_text(
        "from softcarry.errors import MissingDependencyError\n"
        "raise MissingDependencyError('needs nothing, which is not installed')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((SubjectError, MissingDependencyError), match="which is not installed"):
        audit_in_process("adapter_of_nothing:kernel", only="LSE")


def test_a_fault_of_the_audit_does_not_pass_for_one_of_the_kernel(monkeypatch, tmp_path):
    (tmp_path / "broken_probe.py").write_text(
        "import softcarry.auditing._events as events\n"
        "def broken(check):\n"
        "    raise ZeroDivisionError('in the probe')\n"
        "events.load_probe = broken\n"
        "from mutants import plain\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="in the probe"):
        audit_in_process("broken_probe:plain", only="LSE")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_process_of_a_subject_ends_with_the_one_that_watches_it(tmp_path):
    (tmp_path / "sleeper.py").write_text(
        "import os, pathlib, time\n"
        "def kernel(q, k, v):\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(3600)\n"
    )
    code = "from softcarry.auditing import audit_in_process; audit_in_process('sleeper:kernel')"
    watcher = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    deadline = time.monotonic() + 120.0
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)
    subject = int((tmp_path / "pid").read_text())
    watcher.terminate()
    watcher.wait()
    while psutil.pid_exists(subject) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(subject)
