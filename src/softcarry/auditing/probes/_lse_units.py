"""Which quantity a returned lse is: told from how it depends on the scores and on the number of keys."""

from math import isfinite, log, sqrt
from typing import NamedTuple

LOG2E = 1.0 / log(2.0)


class LseUnit(NamedTuple):
    """What a kernel returns as its lse.

    Attributes
    ----------
    description : str
        To be read after "the lse is".
    factor : float or None
        What makes the natural lse of it; None if nothing does.
    unit : str or None
        "e" or "2", where it is a log-sum-exp.
    """

    description: str
    factor: float | None
    unit: str | None


NATURAL = LseUnit("the natural log", 1.0, "e")

_KNOWN = {
    (1.0, 1.0): NATURAL,
    (LOG2E, LOG2E): LseUnit("in base 2 (log2 of Σ e^s), where natural log was expected", log(2.0), "2"),
    (log(2.0), log(2.0)): LseUnit("in base e already, though it is declared base 2", LOG2E, "e"),
    (1.0, LOG2E): LseUnit("a mixture of units, m + log2 l", None, None),
    (LOG2E, 1.0): LseUnit("a mixture of units, m·log2 e + ln l", None, None),
    (-1.0, -1.0): LseUnit("−lse, its sign changed", -1.0, "e"),
    (1.0, 0.0): LseUnit("only the maximum m, without ln l", None, None),
    (0.0, 1.0): LseUnit("only ln l, without the maximum m", None, None),
    (0.0, LOG2E): LseUnit("only log2 l, without the maximum m", None, None),
}


def recognise(alpha: float, beta: float, offset: float, *, depth: int) -> LseUnit:
    """Name the quantity α·c + β·ln n + offset, seen for equal scores c on n keys.

    Parameters
    ----------
    alpha, beta, offset : float
        As fitted; 1, 1 and 0 are the natural lse. Coefficients within 1 % of a known one are that one: the
        nearest two differ by 31 %.
    depth : int
        d of the calls, whose scale is 1/√d.

    Returns
    -------
    LseUnit

    Examples
    --------
    >>> recognise(1.4427, 1.4427, 0.0, depth=16).unit
    '2'
    >>> recognise(4.0, 1.0, 0.0, depth=16).description
    'of unscaled scores in its maximum: √d·m + ln l'
    >>> recognise(1.0, 1.0, 0.6931, depth=16).description
    'off by the constant 0.6931'
    """
    unscaled = {
        (sqrt(depth), 1.0): LseUnit("of unscaled scores in its maximum: √d·m + ln l", None, None),
        (1.0 / sqrt(depth), 1.0): LseUnit("scaled twice in its maximum: m/√d + ln l", None, None),
        (1.0 / sqrt(depth), 1.0 / sqrt(depth)): LseUnit("multiplied by the scale", sqrt(depth), None),
    }
    for (a, b), unit in (_KNOWN | unscaled).items():
        if _near(alpha, a) and _near(beta, b):
            if abs(offset) <= 0.01:
                return unit
            rest = "" if unit is NATURAL else f", and {unit.description}"
            return LseUnit(f"off by the constant {offset:.4f}{rest}", None, None)
    fitted = f"{alpha:.4g}·c + {beta:.4g}·ln n + {offset:.4g}"
    return LseUnit(f"{fitted} for equal scores c on n keys, where c + ln n was expected", None, None)


def _near(measured, known):
    return isfinite(measured) and abs(measured - known) <= 0.01 * max(1.0, abs(known))
