"""Peak extra memory of a call, from the resident-set high-water mark of a fresh process.

Linux keeps the mark as VmHWM and sets it back to the present size when "5" is written to
/proc/self/clear_refs (proc(5)). No other system has both the mark and the reset: there the answer is a
reason and not a number.
"""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcarry.auditing.isolation import call_in_fresh_process

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class ExtraMemory:
    """What a call needed at its peak beyond what was there before it.

    Attributes
    ----------
    peak : int or None
        Bytes, the result of the call among them; None if they can't be measured here. The kernel counts
        pages in batches, a thread at a time: some hundred KiB are within the error.
    result : int
        Bytes of the result that the call allocated.
    reason : str
        Why there is no number; empty if there is one.
    """

    peak: int | None
    result: int = 0
    reason: str = ""

    @property
    def beyond_result(self) -> int | None:
        """Bytes that are neither input nor result, None where not measured."""
        return None if self.peak is None else max(0, self.peak - self.result)


def peak_extra_memory(
    prepare: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]],
    *,
    size: Callable[[Any], int] = lambda result: 0,
    time_limit: float = 300.0,
) -> ExtraMemory:
    """Measure the peak extra memory of a call in a process of its own.

    Parameters
    ----------
    prepare : callable
        Run in the fresh process; it returns a warm-up and the call to measure. The warm-up should load the
        same compiled code on a smaller input, so that scratch space which grows with the input is seen.
    size : callable
        The bytes of the result, from the result.
    time_limit : float
        Seconds for all of it.

    Returns
    -------
    ExtraMemory
        Bytes, or why they can't be measured.

    Raises
    ------
    SoftcarryError
        If the process dies or takes too long; and whatever ``prepare`` or the calls raise.

    Examples
    --------
    >>> import numpy as np
    >>> def prepare():
    ...     return (lambda: None), (lambda: np.ones(2**20).sum())
    >>> found = peak_extra_memory(prepare)
    >>> found.peak is None or found.peak > 7 * 2**20
    True
    """
    reason = _obstacle()
    if reason:
        return ExtraMemory(None, reason=reason)
    peak, result = call_in_fresh_process(_measure, prepare, size, time_limit=time_limit)
    return ExtraMemory(peak, result)


def _obstacle() -> str:
    try:
        _STATUS.read_bytes().index(b"VmHWM:")
        _RESET.write_text("5")
    except (OSError, ValueError):
        return "no resident-set high-water mark that can be set back: measured on Linux with /proc only"
    return ""


def _measure(prepare, size):
    warm, call = prepare()
    warm()
    gc.collect()
    # What the allocator has kept from earlier work would be handed out again without being seen.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    _RESET.write_text("5")
    result = call()
    return max(0, _status("VmHWM") - before), size(result)


def _status(key):
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
