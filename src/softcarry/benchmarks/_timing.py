"""Interleaved timing: every call once a round, so that whatever slows the machine down slows all alike."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from softcarry.errors import OptionError

_SAMPLE = 2e-3
_SETTLE = 5e-3


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it.

    Attributes
    ----------
    low, median, high : float
        First quartile, median, third quartile; all the same if there is one number only.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, numbers: "tuple[float, ...] | list[float]") -> "Spread":
        """Summarise numbers, at least one.

        Examples
        --------
        >>> Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])
        Spread(low=2.0, median=3.0, high=4.0)
        """
        if len(numbers) == 1:
            return cls(numbers[0], numbers[0], numbers[0])
        low, _, high = quantiles(numbers, n=4, method="inclusive")
        return cls(low, median(numbers), high)


@dataclass(frozen=True)
class Timings:
    """What interleaved calls took.

    Attributes
    ----------
    seconds : dict of str to tuple of float
        Seconds a call, one number a round, by the name of the call.
    """

    seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """How many rounds were made."""
        return min(map(len, self.seconds.values()), default=0)

    def spread(self, name: str) -> Spread:
        """Seconds of one call."""
        return Spread.of(self.seconds[name])

    def ratio(self, name: str, other: str) -> Spread:
        """How many times as long as ``other`` the call ``name`` took, formed within each round."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    *,
    budget: float = 1.5,
    least: int = 7,
    most: int = 51,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Any] = time.sleep,
    progress: Callable[[int], None] | None = None,
) -> Timings:
    """Time calls in rounds, each call once a round, every second round in the reverse order.

    First every call is made twice untimed: the first may compile, the second says how long one takes. A
    sample is then preceded by a pause of 5 ms, in which the threads that another library keeps spinning fall
    asleep, and by one untimed call, so that each finds its own threads awake and its own data in the caches.
    Calls shorter than 2 ms are repeated within a sample.

    Parameters
    ----------
    calls : mapping of str to callable
        What to time, by name.
    budget : float
        Seconds after which no round is begun, once there are ``least`` of them.
    least, most : int
        Rounds.
    clock, sleep : callable
        Seconds now, and a pause; tests put their own in.
    progress : callable, optional
        Called with the number of rounds made, after each.

    Returns
    -------
    Timings
        Seconds of every call in every round.

    Raises
    ------
    OptionError
        Fewer than one round, or fewer at most than at least.

    Examples
    --------
    >>> timings = interleave({"list": lambda: [0] * 1000, "tuple": lambda: (0,) * 1000}, least=1, most=1)
    >>> timings.rounds, sorted(timings.seconds)
    (1, ['list', 'tuple'])
    """
    if not 1 <= least <= most:
        msg = f"interleave takes 1 <= least <= most rounds; got least={least}, most={most}"
        raise OptionError(msg)
    names, repeats = list(calls), {}
    for name, call in calls.items():
        call()
        once = _seconds(call, 1, clock)
        repeats[name] = max(1, math.ceil(_SAMPLE / once)) if once > 0.0 else 1
    found: dict[str, list[float]] = {name: [] for name in calls}
    begin = clock()
    for done in range(most):
        if done >= least and clock() - begin >= budget:
            break
        for name in names[::-1] if done % 2 else names:
            sleep(_SETTLE)
            calls[name]()
            found[name].append(_seconds(calls[name], repeats[name], clock))
        if progress is not None:
            progress(done + 1)
    return Timings({name: tuple(seconds) for name, seconds in found.items()})


def _seconds(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats
