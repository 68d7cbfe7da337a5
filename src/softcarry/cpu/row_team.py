"""Helpers that wait a moment for the next call: the threads of kernels that take no longer than waking one.

A thread that sleeps takes some 50 µs to wake, and the caller as long that sleeps until it has ended: more
than the rows of a small array. A helper therefore looks out for the next call for a fifth of a millisecond
before it sleeps, outside the interpreter lock, and the caller likewise for the end of its helpers. The words
that they watch are changed atomically.
"""

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from softcarry.cpu import row_signals
from softcarry.cpu.threads import run

_PATIENCE = 200e-6
"""Seconds that a helper looks out for work, and a caller for the end of it, before they sleep."""
_TRIAL = 500
"""Looks that are timed to find out how long one takes."""
_NAP = 50e-6
"""Seconds between two looks of a caller whose patience has ended."""


class _Helper:
    """A thread that does what it is offered."""

    def __init__(self, words: Any, counter: int, number: int, patience: int) -> None:
        # The memory that the addresses are of.
        self._words = words
        self._counter = counter
        self._offer = counter + (2 + 2 * number) * row_signals.LINE
        self._busy = self._offer + row_signals.LINE
        self._patience = patience
        self._bell = threading.Lock()
        self._bell.acquire()
        self._stopping = False
        self._work: Callable[[int], object] | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="softcarry", daemon=True)
        self._thread.start()

    def offer(self, work: Callable[[int], object] | None) -> None:
        """Offer work, to be taken once the first unit is claimed."""
        self._work = work
        if row_signals.exchange(self._offer, row_signals.OFFERED) == row_signals.ASLEEP:
            self._bell.release()

    def finish(self) -> BaseException | None:
        """Withdraw the offer, or wait until it has been done, and return what it has raised."""
        if not row_signals.withdraw(self._offer) and not row_signals.await_end(self._busy, self._patience):
            while row_signals.look(self._busy):
                time.sleep(_NAP)
        fault, self._fault, self._work = self._fault, None, None
        return fault

    def stop(self) -> None:
        """Have the thread end when it has nothing to do."""
        self._stopping = True
        self.offer(None)

    def join(self) -> None:
        """Wait for the end of a thread that has been stopped, for a limited time."""
        self._thread.join(1.0)

    def _serve(self) -> None:
        while not self._stopping:
            if not row_signals.await_offer(self._offer, self._busy, self._counter, self._patience):
                self._bell.acquire()
                continue
            work = self._work
            try:
                if work is not None:
                    work(0)
            except BaseException as fault:
                self._fault = fault
            # What the work refers to is let go before the caller goes on.
            work = None


class _Team:
    """The helpers of the process, at the service of one caller at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._counter = 0
        self._helpers: list[_Helper] = []

    def run(self, kernel: Any, fixed: tuple, rest: tuple, threads: int) -> None:
        """Run a kernel in the caller's thread and in helpers."""
        if len(self._helpers) < threads - 1:
            self._grow(threads - 1)
        counter = self._counter
        row_signals.exchange(counter, 0)

        def work(awaited: int) -> None:
            kernel(*fixed, counter, awaited, *rest)

        helpers = self._helpers[: threads - 1]
        try:
            for helper in helpers:
                helper.offer(work)
            work(len(helpers))
        finally:
            faults = [helper.finish() for helper in helpers]
        for fault in faults:
            if fault is not None:
                raise fault

    def _grow(self, count: int) -> None:
        """Have so many helpers. Their words lie together, so those that there are give way to others."""
        self.stop()
        words = np.zeros((3 + 2 * count) * row_signals.LINE // 8, np.int64)
        self._counter = -(-words.ctypes.data // row_signals.LINE) * row_signals.LINE
        patience = _looks(_PATIENCE)
        row_signals.exchange(self._counter + row_signals.LINE, patience)
        self._helpers = [_Helper(words, self._counter, i, patience) for i in range(count)]

    def stop(self) -> list[_Helper]:
        """Have all helpers end, and return them."""
        helpers, self._helpers = self._helpers, []
        if helpers:
            # Offers are taken once a unit is claimed.
            row_signals.exchange(self._counter, 1)
        for helper in helpers:
            helper.stop()
        return helpers


def _looks(seconds: float) -> int:
    """Return how many looks at a word take so long, by the fastest of a few trials."""
    word = np.ones(1, np.int64)
    row_signals.await_end(word.ctypes.data, 1)
    fastest = seconds
    for _ in range(5):
        start = time.perf_counter()
        row_signals.await_end(word.ctypes.data, _TRIAL)
        fastest = min(fastest, time.perf_counter() - start)
    return max(1, int(_TRIAL * seconds / fastest))


_team: _Team | None = _Team()


def share(kernel: Any, fixed: tuple, rest: tuple, threads: int) -> None:
    """Run a kernel in threads that claim units.

    Between its arguments the kernel takes the address of a counter, and how many helpers it is to await.
    """
    team = _team
    if threads > 1 and team is not None and team.lock.acquire(blocking=False):
        try:
            team.run(kernel, fixed, rest, threads)
        except BaseException:
            # A caller that was interrupted may not have seen the end of every helper: they serve no other.
            _replace(team)
            raise
        finally:
            team.lock.release()
        return
    # An integer of ctypes costs a fifth of a microsecond, an array and its address a whole one.
    counter = ctypes.c_int64()
    arguments = (*fixed, ctypes.addressof(counter), 0, *rest)
    run(lambda _=counter: kernel(*arguments), threads)


def _replace(team: _Team) -> None:
    global _team
    if _team is team:
        _team = _Team()
    team.stop()


def _end() -> None:
    """End the helpers before the interpreter: compiled code goes away under whoever still runs it."""
    global _team
    team, _team = _team, None
    if team is not None and team.lock.acquire(timeout=1.0):
        for helper in team.stop():
            helper.join()


def _forget() -> None:
    """Leave the parent's threads behind in a forked child, which has none of them."""
    global _team
    _team = _Team()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
