"""How the time of a decode grows with the keys: twice the keys should take twice the time."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import softcarry as sc
from softcarry.benchmarks._attention_inputs import Shape, inputs
from softcarry.benchmarks._attention_truth import attention_truth
from softcarry.benchmarks._row_truth import disagreement
from softcarry.benchmarks._timing import Spread, Timings, interleave

GROUPED = Shape(1, 32, 8, 1, 65536, 128)
DOUBLINGS = 3
TARGET = 2.2
"""What a doubling may cost: two, and the caches that hold less of twice as much."""


class GrowthCase(NamedTuple):
    """Decodes of a cache whose length is doubled again and again.

    Attributes
    ----------
    shape : Shape
        Of the longest.
    doublings : int
        How many times it was doubled to get there.
    """

    shape: Shape
    doublings: int = DOUBLINGS

    @property
    def labels(self) -> tuple[str, ...]:
        """The group and the name."""
        return "doubling", "keys"

    @property
    def keys(self) -> tuple[int, ...]:
        """The lengths, shortest first."""
        return tuple(self.shape.tk >> step for step in range(self.doublings, -1, -1))


class MeasuredGrowth(NamedTuple):
    """What came of it.

    Attributes
    ----------
    case : GrowthCase
        The case.
    status : {"timed", "wrong"}
        Wrong if an answer is, and then not timed.
    reason : str
        Why it was not timed.
    seconds : tuple of Spread
        One call, for each length.
    ratios : tuple of Spread
        Time over that of half as many keys, formed round by round, for each length but the first.
    judged : bool
        Whether the target counts.
    """

    case: GrowthCase
    status: Literal["timed", "wrong"]
    reason: str = ""
    seconds: tuple[Spread, ...] = ()
    ratios: tuple[Spread, ...] = ()
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """Whether no doubling costs more than it may; None if that does not count."""
        if self.status == "wrong":
            return False
        return all(ratio.median <= TARGET for ratio in self.ratios) if self.judged else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; seconds and ratios are medians."""
        return {
            "keys": list(self.case.keys),
            "status": self.status,
            "reason": self.reason,
            "seconds": [each.median for each in self.seconds],
            "ratios": [each.median for each in self.ratios],
            "target": TARGET,
            "met": self.met,
        }


def growth_case(*, quick: bool = False) -> GrowthCase:
    """Return the case; with ``quick`` there are an eighth of the keys.

    Examples
    --------
    >>> growth_case().keys
    (8192, 16384, 32768, 65536)
    """
    return GrowthCase(GROUPED._replace(tk=GROUPED.tk // 8) if quick else GROUPED)


def measure_growth(
    case: GrowthCase, *, judged: bool = True, timing: Callable[..., Timings] = interleave, **options: Any
) -> MeasuredGrowth:
    """Check and time the decode of every length, in turns.

    Parameters
    ----------
    case : GrowthCase
        The case.
    judged : bool
        Whether the target counts.
    timing : callable
        `interleave`, or what a test puts in its place.
    **options
        Passed on to ``timing``.

    Returns
    -------
    MeasuredGrowth
        Figures, or why there are none.
    """
    q, kv = inputs(case.shape, "float32")
    calls = {}
    for keys in case.keys:
        # The last keys, of which the very last decides.
        k, v = kv[..., case.shape.tk - keys :, :]
        calls[str(keys)] = call = partial(sc.attention, q, k, v)
        wrong = disagreement(f"output of {keys} keys", call(), attention_truth(q, k, v))
        if wrong:
            return MeasuredGrowth(case, "wrong", wrong, judged=judged)
    timings = timing(calls, **options)
    names = list(calls)
    return MeasuredGrowth(
        case,
        "timed",
        seconds=tuple(timings.spread(name) for name in names),
        ratios=tuple(timings.ratio(more, less) for less, more in pairwise(names)),
        judged=judged,
    )
