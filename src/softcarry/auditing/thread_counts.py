"""The number of threads of the libraries that compute in this process, set for a while and put back."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from threadpoolctl import threadpool_limits

from softcarry.cpu import threads as own


@contextmanager
def thread_count(n: int) -> Iterator[None]:
    """Let BLAS, OpenMP, torch, Numba and softcarry use n threads, where they are loaded.

    JAX fixes its threads when it starts, and is left alone.

    Parameters
    ----------
    n : int
        At least 1. More than there are processors is allowed; Numba takes no more than it started with.

    Examples
    --------
    >>> before = own.get_num_threads()
    >>> with thread_count(1):
    ...     own.get_num_threads()
    1
    >>> own.get_num_threads() == before
    True
    """
    with ExitStack() as undo:
        undo.enter_context(threadpool_limits(n))
        _set(undo, own.get_num_threads, own.set_num_threads, n)
        torch = sys.modules.get("torch")
        if torch is not None:
            _set(undo, torch.get_num_threads, torch.set_num_threads, n)
        numba = sys.modules.get("numba")
        if numba is not None and _has_started(numba):
            _set(undo, numba.get_num_threads, numba.set_num_threads, min(n, numba.config.NUMBA_NUM_THREADS))
        yield


def _set(undo, get, put, n):
    undo.callback(put, get())
    put(n)


def _has_started(numba):
    """Whether Numba has threads: to ask for their number starts them, which no audit should do."""
    try:
        numba.threading_layer()
    except ValueError:
        return False
    return True
