"""One call in a process of its own: results, errors, deaths, time."""

import os
import threading
import time

import pytest

from mutants import kill_process
from softcarry.auditing.isolation import (
    CrashedError,
    NotPortableError,
    OutOfTimeError,
    call_in_fresh_process,
)


def test_a_result_comes_back_from_another_process():
    assert call_in_fresh_process(os.getpid) != os.getpid()
    assert call_in_fresh_process(sorted, [2, 1], reverse=True) == [2, 1]


def test_a_closure_travels():
    offset = 3
    assert call_in_fresh_process(lambda x: x + offset, 4) == 7


def test_an_exception_comes_back():
    with pytest.raises(ZeroDivisionError):
        call_in_fresh_process(lambda: 1 // 0)


def test_an_exception_that_does_not_pickle_is_told():
    def raises():
        class OwnError(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")

        raise OwnError(1, 2)

    with pytest.raises(Exception, match="1 and 2"):
        call_in_fresh_process(raises)


def test_a_death_is_named_by_its_signal():
    with pytest.raises(CrashedError, match="killed by SIGFPE"):
        call_in_fresh_process(kill_process)


def test_an_exit_is_a_death():
    with pytest.raises(CrashedError, match="exit status 3"):
        call_in_fresh_process(os._exit, 3)


def test_time_is_limited():
    with pytest.raises(OutOfTimeError, match=r"within 0\.3 s"):
        call_in_fresh_process(time.sleep, 60, time_limit=0.3)


def test_what_does_not_pickle_is_refused():
    with pytest.raises(NotPortableError, match="does not pickle"):
        call_in_fresh_process(print, threading.Lock())
