"""How many emulated additions a second a call makes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softcarry.benchmarks._timing import Spread, interleave


@dataclass(frozen=True)
class RateCase:
    """A call that makes a known number of emulated additions.

    Attributes
    ----------
    labels : tuple of str
        What tells it from the others: the format, the order, the shape.
    additions : int
        How many additions the call makes.
    small : callable
        A call that compiles the same code and takes no time once that is done.
    call : callable
        The call.
    """

    labels: tuple[str, ...]
    additions: int
    small: Callable[[], Any]
    call: Callable[[], Any]


@dataclass(frozen=True)
class Rate:
    """What came of a case.

    Attributes
    ----------
    case : RateCase
        The case.
    first_call : float
        Seconds of the first small call: compiling, or reading the compiled code from the cache.
    seconds : Spread
        One call.
    processor : float
        Seconds of all processors together in one call.
    """

    case: RateCase
    first_call: float
    seconds: Spread
    processor: float

    @property
    def additions_a_second(self) -> float:
        """The rate of the median call."""
        return self.case.additions / self.seconds.median

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "name": "/".join(self.case.labels),
            "first_call_seconds": self.first_call,
            "seconds": self.seconds.median,
            "seconds_quartiles": [self.seconds.low, self.seconds.high],
            "processor_seconds": self.processor,
            "additions": self.case.additions,
            "additions_a_second": self.additions_a_second,
        }


def measure_rate(case: RateCase, **options: Any) -> Rate:
    """Time one case; the options are those of `interleave`."""
    begin = time.perf_counter()
    case.small()
    first = time.perf_counter() - begin
    timings = interleave({"call": case.call}, **options)
    before = time.process_time()
    case.call()
    return Rate(case, first, timings.spread("call"), time.process_time() - before)
