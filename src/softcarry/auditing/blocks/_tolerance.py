"""How far a sound function may be from the right value, by error analysis.

A building block may work in float32 whatever it is given, so that is the unit roundoff of every question but
those about precision itself.
"""

from softcarry.numerics import gamma

SINGLE = 2.0**-24
"""Unit roundoff of float32."""
DOUBLE = 2.0**-53
"""Unit roundoff of float64."""
TINY = 2.0**-126
"""The smallest normal float32: below it, weights may be flushed to zero."""


def sum_tolerance(n: int, size: float, u: float = SINGLE) -> float:
    """Relative error of Σ e^(s − m) over n scores of magnitude ``size``, in any order, rescaled at each step.

    A term meets at most n additions and n rescales; a rescale is an exponential of two units and a product.
    The rounded differences of scores, which add up to at most twice their magnitude, count as they stand.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1 and 4.2.
    """
    return float(gamma(int(4 * n + 4 * size + 8), u))


def weight_tolerance(n: int, size: float, u: float = SINGLE) -> float:
    """Relative error of e^(s − m)/l, or of e^(s − lse): a sum, an exponential, a division."""
    return float(gamma(int(4 * n + 8 * size + 16), u))


def lse_tolerance(n: int, size: float, u: float = SINGLE) -> float:
    """Absolute error of m + ln l, |m| at most ``size``: that of ln l, and of the sum."""
    return float(gamma(int(4 * n + 6 * size + 16), u))
