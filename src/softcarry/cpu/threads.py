"""The threads that share out compiled work: Python's, with the interpreter lock released inside the kernels.

Numba's parallel loops are not used: a process that has used their OpenMP layer can't fork safely, and their
workqueue layer ends the process when two threads call at once.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from numbers import Integral

from softcarry.errors import OptionError

_LARGEST = 1024

_lock = threading.Lock()
_threads: int | None = None
_pool: ThreadPoolExecutor | None = None


def get_num_threads() -> int:
    """Return how many threads a compiled kernel uses at most, the caller's included.

    Returns
    -------
    int
        What `set_num_threads` was given; else the environment variable SOFTCARRY_NUM_THREADS, else
        OMP_NUM_THREADS, else the number of processors that this process may use; looked up once.

    Examples
    --------
    >>> import softcarry as sc
    >>> sc.get_num_threads() >= 1
    True
    """
    global _threads
    if _threads is None:
        _threads = _default()
    return _threads


def set_num_threads(n: int) -> None:
    """Set how many threads a compiled kernel uses at most, in the whole process.

    No result depends on it. Work that is too small for its threads is done by fewer.

    Parameters
    ----------
    n : int
        At least 1. With 1 the caller's thread does everything.

    Raises
    ------
    OptionError
        If n is no integer, or not between 1 and 1024.

    Examples
    --------
    >>> import softcarry as sc
    >>> before = sc.get_num_threads()
    >>> sc.set_num_threads(1)
    >>> sc.get_num_threads()
    1
    >>> sc.set_num_threads(before)
    """
    global _threads, _pool
    if not isinstance(n, Integral) or isinstance(n, bool) or not 1 <= n <= _LARGEST:
        msg = f"the number of threads must be an integer from 1 to {_LARGEST}, got {n!r}"
        raise OptionError(msg)
    with _lock:
        _threads = int(n)
        pool, _pool = _pool, None
    if pool is not None:
        pool.shutdown(wait=False)


def run(work: Callable[[], object], threads: int) -> None:
    """Call the same function from so many threads at once, and return when all have returned.

    Every call claims units of work until none is left, so a thread that comes late, or not at all, costs no
    time: the caller's own call has done its units by then.
    """
    if threads <= 1:
        work()
        return
    helpers: list[Future] = []
    closing, closed = threading.Condition(), False
    working = 0

    def help_out() -> None:
        nonlocal working
        with closing:
            if closed:
                return
            working += 1
        try:
            work()
        finally:
            with closing:
                working -= 1
                closing.notify_all()

    # The pool may be replaced by another thread between taking it and using it, or get no more threads.
    with contextlib.suppress(RuntimeError):
        helpers.extend(_executor().submit(help_out) for _ in range(threads - 1))
    try:
        work()
    finally:
        with closing:
            closed = True
            closing.wait_for(lambda: not working)
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def _default() -> int:
    for name in ("SOFTCARRY_NUM_THREADS", "OMP_NUM_THREADS"):
        # OMP_NUM_THREADS may be a list, one number a level of nesting.
        text = os.environ.get(name, "").split(",")[0].strip()
        if text.isdecimal() and 1 <= int(text) <= _LARGEST:
            return int(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, get_num_threads() - 1), thread_name_prefix="softcarry")
        return _pool


def _forget() -> None:
    """Leave the parent's threads behind in a forked child, which has none of them."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
