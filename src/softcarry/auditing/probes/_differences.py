"""Two outcomes that should be the same: whether their bits are, and else by how much they differ."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from softcarry.auditing._calling import Outcome


class Difference(NamedTuple):
    """How far two outcomes are apart.

    Attributes
    ----------
    bitwise : bool
        They are the same, NaN for NaN; 0 and −0 count as the same.
    part : str
        "output" or "lse", whichever differs more for what is allowed; "" if nothing does.
    largest : float
        The largest difference in that part; infinite if only one of two numbers is finite.
    excess : float
        The largest quotient of a difference and what is allowed for it.
    bound : float or None
        What is allowed at that place; None if nothing differs.
    place : tuple of int
        Where that is.
    """

    bitwise: bool
    part: str = ""
    largest: float = 0.0
    excess: float = 0.0
    bound: float | None = None
    place: tuple[int, ...] = ()


def difference(one: Outcome, other: Outcome, allowed: Callable[[], Outcome]) -> Difference:
    """Compare two outcomes element by element.

    Parameters
    ----------
    one, other : Outcome
        Of the same shapes.
    allowed : callable
        Returns the largest difference of the outputs and of the lse that rounding may make; called only if
        something differs.

    Returns
    -------
    Difference

    Examples
    --------
    >>> one, other = Outcome(np.zeros((1, 1, 1, 1)), None), Outcome(np.full((1, 1, 1, 1), 0.5), None)
    >>> difference(one, other, lambda: Outcome(np.full((1, 1, 1, 1), 0.25), None)).excess
    2.0
    """
    if same_outcome(one, other):
        return Difference(True)
    limits = allowed()
    parts = [_part("output", one.output, other.output, limits.output)]
    if one.lse is not None:
        parts.append(_part("lse", one.lse, other.lse, limits.lse))
    return max(parts, key=lambda part: (part.excess, part.largest))


def same_outcome(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are the same, NaN for NaN.

    Examples
    --------
    >>> same_outcome(Outcome(np.array([np.nan]), None), Outcome(np.array([np.nan]), None))
    True
    """
    return _same(one.output, other.output) and _same(one.lse, other.lse)


def _same(one, other):
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=True)


def _part(name, one, other, limit):
    with np.errstate(invalid="ignore", divide="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        gap = np.where(same, 0.0, np.abs(one - other))
        gap = np.where(np.isnan(gap), np.inf, gap)
        excess = np.where(gap == 0.0, 0.0, np.where(np.isinf(gap), np.inf, gap / limit))
    place = tuple(int(i) for i in np.unravel_index(np.argmax(excess), excess.shape))
    return Difference(False, name, float(gap.max()), float(excess[place]), float(limit[place]), place)
