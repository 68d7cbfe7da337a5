"""The notice of a slow first call: once, only where it is slow, and where a person sees it."""

import logging
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from softcarry.cpu import compiling
from softcarry.cpu.compiling import ready

QUICK, SLOW = 0.02, 0.3
"""Patience of these tests, and how long something takes that passes it."""


class Kernel:
    """What stands for a compiled function: its compilation takes a while, and may fail."""

    def __init__(self, seconds=0.0, failures=0):
        self.seconds, self.failures, self.compiled = seconds, failures, []

    def compile(self, types):
        time.sleep(self.seconds)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("does not compile")
        self.compiled.append(types)


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch):
    monkeypatch.setattr(compiling, "_ready", set())
    monkeypatch.setattr(compiling, "_told", threading.Event())
    monkeypatch.setattr(compiling, "PATIENCE", QUICK)


def notices(caplog):
    return [record for record in caplog.records if record.name == "softcarry"]


def test_a_slow_compilation_is_told_once(caplog):
    for kernel in (Kernel(SLOW), Kernel(SLOW), Kernel(0.0)):
        ready(kernel, ("float32",), (1.0,))
    (notice,) = notices(caplog)
    assert notice.levelno == logging.WARNING
    assert "compiling" in notice.getMessage()
    assert "\n" not in notice.getMessage()


def test_it_is_told_while_it_compiles(caplog):
    """Not when it is over: a person waits now."""
    seen = []

    class Watching(Kernel):
        def compile(self, types):
            until = time.monotonic() + 30
            while not notices(caplog) and time.monotonic() < until:
                time.sleep(0.01)
            seen.extend(notices(caplog))

    ready(Watching(), ("float32",), (1.0,))
    assert len(seen) == 1


def test_a_quick_one_is_not_told(caplog, monkeypatch):
    """Nor later, when patience would have ended."""
    monkeypatch.setattr(compiling, "PATIENCE", SLOW)
    ready(Kernel(), ("float32",), (1.0,))
    time.sleep(2 * SLOW)
    assert not notices(caplog)
    assert compiling.PATIENCE == SLOW


def test_a_kernel_is_compiled_once_for_the_types_of_its_arguments():
    kernel = Kernel()
    arguments = (np.float32(0), np.zeros(3), 7, True)
    for _ in range(3):
        ready(kernel, ("float32", "float32"), arguments)
    ready(kernel, ("float32", "bfloat16"), (np.float32(0), np.zeros(3), 7, True))
    assert [[str(kind) for kind in types] for types in kernel.compiled] == [
        ["float32", "array(float64, 1d, C)", "int64", "bool"]
    ] * 2
    other = Kernel()
    ready(other, ("float32", "float32"), arguments)
    assert len(other.compiled) == 1


def test_a_failure_can_be_tried_again(caplog):
    kernel = Kernel(failures=1)
    with pytest.raises(RuntimeError, match="does not compile"):
        ready(kernel, ("float32",), (1.0,))
    time.sleep(SLOW)
    assert not notices(caplog)
    ready(kernel, ("float32",), (1.0,))
    ready(kernel, ("float32",), (1.0,))
    assert len(kernel.compiled) == 1


def test_threads_that_come_at_once_find_it_ready():
    """It may be compiled twice, but nobody goes on before it is."""
    kernel = Kernel(0.05)
    missing = []

    def call():
        ready(kernel, ("float32",), (1.0,))
        if not kernel.compiled:
            missing.append(1)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not missing


SLOW_CALL = """
    import logging, sys, time
    from softcarry.cpu import compiling

    class Kernel:
        def compile(self, types):
            time.sleep(0.5)

    compiling.PATIENCE = 0.02
    if sys.argv[1] == "silenced":
        logging.getLogger("softcarry").setLevel(logging.ERROR)
    elif sys.argv[1] == "quick":
        compiling.PATIENCE = 30
    for kernel in (Kernel(), Kernel()):
        compiling.ready(kernel, ("float32",), (1.0,))
    print("done")
"""


@pytest.mark.parametrize(("how", "lines"), [("default", 1), ("silenced", 0), ("quick", 0)])
def test_what_a_person_sees(how, lines):
    """Without any logging set up the notice goes to stderr; and no timer keeps the process from ending."""
    command = [sys.executable, "-c", textwrap.dedent(SLOW_CALL), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert len(done.stderr.splitlines()) == lines, done.stderr
    assert all(line.startswith("softcarry: compiling") for line in done.stderr.splitlines())
