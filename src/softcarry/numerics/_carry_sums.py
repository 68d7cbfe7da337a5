"""What a plan reckons with: the error of a carry after so many updates, its stall and error points."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from softcarry.numerics._formats import FloatFormat, formats
from softcarry.numerics.summation_bounds import merge_bound, summation_bound
from softcarry.numerics.swamping import drop_index

# No row is longer than this; a bound that still holds here holds for every row.
_MOST_UPDATES = 2**62


@dataclass(frozen=True)
class Question:
    """What a plan is asked about: a row of n keys in so many splits, and the stall point of its carry."""

    n: int
    splits: int
    tolerance: float
    stall: int | float


@dataclass(frozen=True)
class CarrySums:
    """The error of a carry after a number of updates, every one of which rounds, the first included."""

    fmt: FloatFormat
    order: str
    rounding: str
    flush_every: int | None
    lambda_: float

    def worst_case(self, updates: int) -> float:
        """Bound the relative error of l, whatever its terms."""
        return self._bound(updates, probabilistic=False)

    def probabilistic_model(self, updates: int) -> float:
        """Evaluate the model whether or not it is valid: a stalled sum is told apart by the caller."""
        if self.rounding not in ("nearest-even", "nearest-away", "stochastic"):
            return math.inf
        if self.order == "sequential":
            return self.lambda_ * math.sqrt(updates) * self.fmt.unit_roundoff
        return self._bound(updates, probabilistic=True)

    def _bound(self, updates: int, *, probabilistic: bool) -> float:
        return summation_bound(
            updates + 1,
            self.fmt,
            self.order,
            block=self.flush_every if self.order == "two-level" else None,
            rounding=self.rounding,
            probabilistic=probabilistic,
            lambda_=self.lambda_,
        )

    def around(self, key_block: int, question: Question) -> float:
        """Bound the error of the sums inside a block and of the merges; inf if l may overflow."""
        if question.n > self.fmt.largest:
            return math.inf
        single = formats["float32"]
        block_format = self.fmt if self.fmt.mantissa_bits > single.mantissa_bits else single
        inside = summation_bound(key_block, block_format)
        return inside + merge_bound(
            question.splits, self.fmt, exp_format=block_format, rounding=self.rounding
        )


def stall_updates(fmt: FloatFormat, rounding: str) -> int | float:
    """Count the updates after which a sequential sum of equal terms stops moving."""
    if rounding in ("stochastic", "up"):
        return math.inf
    # To nearest away the sum runs ahead from 2^(t+1) on, by two terms an update, and stalls at 2^(t+2).
    return drop_index(fmt) + (drop_index(fmt) // 2 if rounding == "nearest-away" else 0)


def error_point(error: Callable[[int], float], tolerance: float) -> int | float:
    """Find the most updates within the tolerance by bisection: errors grow with updates."""
    if not error(1) <= tolerance:
        return 0
    if error(_MOST_UPDATES) <= tolerance:
        return math.inf
    below, above = 1, _MOST_UPDATES
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if error(middle) <= tolerance else (below, middle)
    return below
