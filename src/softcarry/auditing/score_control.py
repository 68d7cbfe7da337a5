"""Inputs q and k whose scores are exactly the ones wanted."""

import math

import numpy as np

from softcarry.errors import OptionError, ShapeError


def score_control(scores, depth):
    """Make queries and keys whose scaled products are the given scores, in any format that holds them.

    Row i of q is √d in coordinate i and zero elsewhere, coordinate i of key j is the score (i, j). With d a
    power of four √d and the scale 1/√d are powers of two, so every product and every sum is exact, in any
    order of summation, and the score that a kernel sees is the score that was asked for.

    Parameters
    ----------
    scores : ndarray
        (..., tq, tk), tq at most ``depth``; every value exact in the dtype of the kernel.
    depth : int
        d, a power of four.

    Returns
    -------
    q : ndarray
        (..., tq, d) float64.
    k : ndarray
        (..., tk, d) float64.

    Raises
    ------
    OptionError
        If d is no power of four: then the default scale 1/√d is not exact.
    ShapeError
        If there are more rows than coordinates.

    References
    ----------
    The idea of probing a sum through inputs that make all else exact: Xie et al., FPRev: revealing the order
    of floating-point summation, arXiv:2411.00442, section 3.

    Examples
    --------
    >>> q, k = score_control(np.array([[1.0, -2.5, 3.0]]), depth=4)
    >>> (q @ k.T / 2.0).tolist()
    [[1.0, -2.5, 3.0]]
    """
    scores = np.asarray(scores, np.float64)
    if depth < 1 or 4 ** round(math.log(depth, 4)) != depth:
        msg = f"exact scores need a depth that is a power of four; got {depth}; take 4, 16, 64 or 256"
        raise OptionError(msg)
    *batch, rows, keys = scores.shape
    if rows > depth:
        msg = f"exact scores need at most depth = {depth} rows, one a coordinate; got {rows}"
        raise ShapeError(msg)
    q = np.zeros((*batch, rows, depth))
    q[..., np.arange(rows), np.arange(rows)] = math.sqrt(depth)
    k = np.zeros((*batch, keys, depth))
    k[..., :rows] = np.swapaxes(scores, -1, -2)
    return q, k


def constant_score(target, depth, rounding, largest):
    """Make a query and a key whose score is as near to ``target`` as their dtype allows.

    The size is split between the two, and between as many coordinates as it takes, so that scores far beyond
    the largest number of the dtype can be reached. All the products are equal: no order of summation changes
    their sum, unless it overflows.

    Parameters
    ----------
    target : float
        The score wanted.
    depth : int
        d, a power of four.
    rounding : callable
        Rounds a float64 array to the dtype, such as ``examination.round``.
    largest : float
        The largest finite number of the dtype.

    Returns
    -------
    q, k : ndarray
        (d,) float64, exact in the dtype; None, None if no split reaches the target.

    Examples
    --------
    >>> q, k = constant_score(1e6, 4, np.float16, 65504.0)
    >>> float(np.abs(q).max()) <= 65504.0, float(q @ k / 2.0)
    (True, 999936.0)
    """
    product = abs(target) * math.sqrt(depth)
    coordinates = 1
    while coordinates <= depth:
        part = product / coordinates
        power = 2.0 ** min(round(math.log2(part) / 2.0), math.frexp(largest)[1] - 1) if part > 0.0 else 1.0
        if max(part / power, power) <= largest:
            q, k = np.zeros(depth), np.zeros(depth)
            q[:coordinates] = math.copysign(float(rounding(np.asarray(part / power))), target)
            k[:coordinates] = power
            return q, k
        coordinates *= 2
    return None, None
