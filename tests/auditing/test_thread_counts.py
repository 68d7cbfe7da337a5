"""Threads are set for a while, in every library that is loaded, and put back."""

import numba
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from softcarry.auditing.thread_counts import thread_count
from softcarry.cpu import threads


def blas():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("n", [1, 2])
def test_threads_are_set_and_put_back(n):
    torch = pytest.importorskip("torch")
    before = threads.get_num_threads(), torch.get_num_threads(), blas()
    with thread_count(n):
        assert threads.get_num_threads() == torch.get_num_threads() == n
        assert set(blas()) == {n}
    assert (threads.get_num_threads(), torch.get_num_threads(), blas()) == before


def test_a_limit_that_holds_outside_is_lifted_and_holds_again():
    with threadpool_limits(1, user_api="blas"):
        with thread_count(2):
            assert set(blas()) == {2}
        assert set(blas()) == {1}


def test_threads_are_put_back_after_an_error():
    before = threads.get_num_threads()
    with pytest.raises(ZeroDivisionError), thread_count(before + 1):
        _ = 1 / 0
    assert threads.get_num_threads() == before


def test_numbas_threads_are_not_started(monkeypatch):
    def not_started():
        msg = "Threading layer is not initialized."
        raise ValueError(msg)

    monkeypatch.setattr(numba, "threading_layer", not_started)
    monkeypatch.setattr(numba, "set_num_threads", lambda n: pytest.fail("started"))
    with thread_count(1):
        pass


def test_numbas_threads_are_set_where_they_run(monkeypatch):
    asked = []
    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    monkeypatch.setattr(numba, "get_num_threads", lambda: 7)
    monkeypatch.setattr(numba, "set_num_threads", asked.append)
    with thread_count(1):
        pass
    assert asked == [1, 7]
