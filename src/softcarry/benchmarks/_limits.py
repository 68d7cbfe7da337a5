"""What the machine can do at best, measured in the same run as the calls that are held against it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from softcarry.benchmarks._arithmetic import Multiplier
from softcarry.benchmarks._bandwidth import Reader
from softcarry.benchmarks._timing import Timings, interleave

_READ = 2**28
"""Bytes of the plain read."""


class Limits(NamedTuple):
    """Rates of the median round.

    Attributes
    ----------
    fma32, fma64 : float
        Floating-point operations a second in float32 and float64, a multiply-add counted as two.
    read : float
        Bytes a second of a plain read.
    read_bytes : int
        Bytes of what was read: where they fit into the caches, the rate is theirs.
    """

    fma32: float
    fma64: float
    read: float
    read_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "float32_operations_a_second": self.fma32,
            "float64_operations_a_second": self.fma64,
            "read_bytes_a_second": self.read,
            "read_bytes": self.read_bytes,
        }


def measure_limits(
    read: Reader,
    multiply: Multiplier,
    *,
    size: int = _READ,
    timing: Callable[..., Timings] = interleave,
    **options: Any,
) -> Limits:
    """Measure the FMA limit and the one-pass read bandwidth in turns.

    Parameters
    ----------
    read, multiply : Reader, Multiplier
        By the number of threads that the calls will use.
    size : int
        Bytes to read.
    timing : callable
        `interleave`, or what a test puts in its place.
    **options
        Passed on to ``timing``.

    Returns
    -------
    Limits
        The rates.
    """
    buffer = np.ones(size // 8)
    calls = {
        "float32": partial(multiply, np.float32),
        "float64": partial(multiply, np.float64),
        "read": partial(read, buffer),
    }
    timings = timing(calls, **options)
    fma32, fma64 = (
        multiply.operations(dtype) / timings.spread(np.dtype(dtype).name).median
        for dtype in (np.float32, np.float64)
    )
    return Limits(fma32, fma64, buffer.nbytes / timings.spread("read").median, buffer.nbytes)
