"""Whether two calls gave the same bits, and whether a kernel gives the same bits twice."""

import numpy as np

from softcarry.auditing._calling import Outcome
from softcarry.auditing.examination import Examination

_REPEATS = 3  # of the same call, before a difference counts as the changed input's doing


def same_bits(a, b) -> np.ndarray:
    """Return where two arrays hold the same number (bool): NaN is the same as NaN, 0 as −0.

    Examples
    --------
    >>> same_bits(np.array([np.nan, 1.0]), np.array([np.nan, 2.0])).tolist()
    [True, False]
    """
    return (a == b) | (np.isnan(a) & np.isnan(b))


def differing_rows(one: Outcome, other: Outcome) -> np.ndarray:
    """Return which rows (b, h, tq) differ in their output or lse (bool)."""
    differs = np.any(~same_bits(one.output, other.output), axis=-1)
    if one.lse is None or other.lse is None:
        return differs
    return np.logical_or(differs, ~same_bits(one.lse, other.lse))


def repeats(examination: Examination, outcome: Outcome, q, k, v, **options) -> bool:
    """Call a kernel again, a few times, and say whether it gives the bits of ``outcome`` each time.

    A kernel need not, as with atomic additions; then a difference of bits is no evidence.

    Parameters
    ----------
    examination : Examination
    outcome : Outcome
        Of ``call(q, k, v, **options)``.
    q, k, v, **options

    Returns
    -------
    bool
    """
    return not any(
        differing_rows(outcome, examination.call(q, k, v, **options)).any() for _ in range(_REPEATS)
    )
