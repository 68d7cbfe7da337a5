"""The number of threads, and the calls that they share: none is lost, none outlives the caller's."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from softcarry.cpu import threads
from softcarry.cpu.threads import get_num_threads, run, set_num_threads
from softcarry.errors import OptionError

LONG = 30
"""Seconds that something is waited for which is to happen at once."""


@pytest.fixture(autouse=True)
def _number_of_threads():
    before = threads._threads
    yield
    set_num_threads(get_num_threads())  # replaces the pool
    threads._threads = before


@pytest.mark.parametrize("n", [1, 7, 1024, np.int64(3)])
def test_the_number_that_was_set(n):
    set_num_threads(n)
    assert get_num_threads() == n
    assert type(get_num_threads()) is int


@pytest.mark.parametrize("n", [0, -1, 1025, 2**70, 2.0, np.float32(2), True, np.True_, "2", None, [2]])
def test_numbers_that_are_refused(n):
    set_num_threads(2)
    with pytest.raises(OptionError, match="integer from 1 to 1024, got ") as caught:
        set_num_threads(n)
    assert "\n" not in str(caught.value)
    assert get_num_threads() == 2


@pytest.mark.parametrize(
    ("own", "openmp", "expected"),
    [
        ("3", "2", 3),
        (None, "2", 2),
        (" 4 ", None, 4),
        (None, "5,2,1", 5),
        (None, " 6 , 2", 6),
        ("0", "2", 2),
        ("-3", "2", 2),
        ("many", "2", 2),
        ("2.5", "2", 2),
        ("", "2", 2),
        ("1025", "2", 2),
        ("\u00b3", "2", 2),  # a superscript: a digit, but no number
        (None, None, None),
        ("0", "-1", None),
    ],
)
def test_the_environment(monkeypatch, own, openmp, expected):
    """What is no number from 1 to 1024 is passed over; without any it is the cores of this process."""
    for name, value in (("SOFTCARRY_NUM_THREADS", own), ("OMP_NUM_THREADS", openmp)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(threads, "_threads", None)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert get_num_threads() == (cores if expected is None else expected)


def test_calls_at_once():
    """Each of three waits for the others: they are in threads of their own, one of them the caller's."""
    set_num_threads(3)
    together = threading.Barrier(3)
    callers = []

    def work():
        callers.append(threading.current_thread())
        together.wait(LONG)

    run(work, 3)
    assert len(set(callers)) == 3
    assert threading.current_thread() in callers


def test_one_thread_is_the_callers():
    set_num_threads(1)
    callers = []
    run(lambda: callers.append(threading.current_thread()), 1)
    assert callers == [threading.current_thread()]
    assert threads._pool is None


@pytest.mark.parametrize("count", [2, 5, 50])
def test_no_call_outlives_the_callers(count):
    """However many are asked for, and though the pool has fewer threads."""
    set_num_threads(3)
    for _ in range(20):
        state = {"begun": 0, "ended": 0}
        lock = threading.Lock()

        def work(state=state, lock=lock):
            with lock:
                state["begun"] += 1
            time.sleep(0.0005)
            with lock:
                state["ended"] += 1

        run(work, count)
        begun = state["begun"]
        assert 1 <= begun == state["ended"] <= count
    time.sleep(0.01)
    assert state["begun"] == begun


def test_a_busy_pool_is_not_waited_for():
    """The only helper is held by another caller: the units are done by the caller alone."""
    set_num_threads(2)
    held, release = threading.Semaphore(0), threading.Event()

    def hold():
        held.release()
        assert release.wait(LONG)

    other = threading.Thread(target=run, args=(hold, 2))
    other.start()
    try:
        assert held.acquire(timeout=LONG)
        assert held.acquire(timeout=LONG)
        calls = []
        run(lambda: calls.append(threading.current_thread()), 2)
        assert calls == [threading.current_thread()]
    finally:
        release.set()
        other.join()
    assert len(calls) == 1


def in_turn(first, second):
    """Work for two threads: the caller's, which calls one function, and a helper's, which calls the other."""
    caller, helping = threading.current_thread(), threading.Event()

    def work():
        if threading.current_thread() is caller:
            assert helping.wait(LONG)
            first()
        else:
            helping.set()
            second()

    return work


def fail():
    raise ArithmeticError("as it was told to")


def test_an_exception_of_the_caller_after_the_helpers_have_ended():
    set_num_threads(2)
    ended = threading.Event()

    def slow():
        time.sleep(0.05)
        ended.set()

    with pytest.raises(ArithmeticError):
        run(in_turn(fail, slow), 2)
    assert ended.is_set()


def test_an_exception_of_a_helper():
    set_num_threads(2)
    ended = []
    with pytest.raises(ArithmeticError):
        run(in_turn(lambda: ended.append(1), fail), 2)
    assert ended == [1]
    run(in_turn(lambda: ended.append(2), lambda: ended.append(3)), 2)
    assert sorted(ended) == [1, 2, 3]


def test_an_exception_of_one_helper_does_not_leave_another_at_work():
    """What the others work on may be freed as soon as the call has ended."""
    set_num_threads(3)
    caller, order = threading.current_thread(), iter(range(2))
    begun, ended = threading.Semaphore(0), threading.Event()

    def work():
        if threading.current_thread() is caller:
            assert begun.acquire(timeout=LONG)
            assert begun.acquire(timeout=LONG)
            return
        mine = next(order)
        begun.release()
        if mine == 0:
            fail()
        time.sleep(0.2)
        ended.set()

    with pytest.raises(ArithmeticError):
        run(work, 3)
    assert ended.is_set()


class Units:
    """Work that is claimed unit by unit, as kernels do; each takes a while, and a helper longer."""

    def __init__(self, count):
        self.caller = threading.current_thread()
        self.left, self.lock, self.done = list(range(count)), threading.Lock(), []

    def __call__(self):
        while True:
            with self.lock:
                if not self.left:
                    return
                unit = self.left.pop()
            time.sleep(0.02 if threading.current_thread() is self.caller else 0.1)
            self.done.append(unit)


@pytest.fixture
def _one_thread_to_start(monkeypatch):
    """A system that starts one more thread for the pool and no other."""
    start, started = threading.Thread.start, []

    def start_one(thread):
        if not thread.name.startswith("softcarry"):
            return start(thread)
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)


@pytest.mark.usefixtures("_one_thread_to_start")
def test_a_system_that_starts_no_more_threads():
    set_num_threads(3)
    for _ in range(5):
        units = Units(5)
        run(units, 3)
        assert sorted(units.done) == list(range(5))


@pytest.mark.usefixtures("_one_thread_to_start")
def test_a_call_that_was_queued_though_no_thread_could_be_started():
    """The only helper is another caller's until the work is under way: then it finds the call, and units."""
    set_num_threads(3)
    held, release = threading.Semaphore(0), threading.Event()

    def hold():
        held.release()
        assert release.wait(LONG)

    other = threading.Thread(target=run, args=(hold, 2))
    other.start()
    try:
        assert held.acquire(timeout=LONG)
        assert held.acquire(timeout=LONG)
        units = Units(4)

        def work():
            release.set()
            units()

        run(work, 2)
        assert sorted(units.done) == list(range(4))
    finally:
        release.set()
        other.join()


def test_many_callers_while_the_number_changes():
    """No call is lost: in each, the caller's own has run, and all that began have ended."""
    stop = threading.Event()

    def change():
        n = 0
        while not stop.is_set():
            set_num_threads(1 + n % 4)
            n += 1

    def call(_):
        begun, ended = [], []

        def work():
            begun.append(threading.current_thread())
            ended.append(1)

        run(work, 3)
        assert len(begun) == len(ended)
        return threading.current_thread() in begun

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with ThreadPoolExecutor(6) as callers:
            assert all(callers.map(call, range(600)))
    finally:
        stop.set()
        changing.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_while_the_lock_was_held():
    """Neither the parent's lock nor its pool, whose threads are not there, holds up the child."""
    code = """
        import os, signal, threading
        from softcarry.cpu import threads

        signal.alarm(50)
        threads.set_num_threads(3)
        together = threading.Barrier(3)
        threads.run(lambda: together.wait(30), 3)
        with threads._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                together = threading.Barrier(3)
                threads.run(lambda: together.wait(30), 3)
                threads.set_num_threads(2)
                os._exit(7 if threads.get_num_threads() == 2 else 8)
        _, status = os.waitpid(child, 0)
        threads.run(lambda: together.wait(30), 3)
        print(os.waitstatus_to_exitcode(status))
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
