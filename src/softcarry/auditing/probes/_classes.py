"""What a kernel wrote for a row that has no keys: the class of its output and of its lse."""

import math

import numpy as np

_FILL = "fill masked scores with −inf, or select them away: with a finite fill, exp(fill − fill) = 1"

REMEDIES = {
    "NAN": "where the running maximum is −inf, shift by 0 instead of by it, and divide by l only where l > 0",
    "MEAN_ALL": _FILL,
    "MEAN_SUBSET": _FILL,
    "UNMASKED": "apply the mask in rows that it empties, too, and write 0 where l = 0",
    "GARBAGE": "write 0 where l = 0; do not leave the output unwritten or divide by a clamped l",
    "ZERO": "write what the contract promises where l = 0",
}

LSE_REMEDIES = {
    "0": "return −inf where l = 0: the guard l = 1 that makes the division safe must not reach the logarithm",
    "+inf": "return −inf where l = 0: ln 0 is −inf, and +inf gives the empty part all the weight of a merge",
    "nan": "return −inf where l = 0, and shift by 0 where the maximum is −inf",
    "finite": "mask with −inf instead of a finite fill: the fill has leaked into the lse",
    "-inf": "return what the contract promises where l = 0",
}


def lse_class(lse):
    """Name the class of the lse of rows without keys: "-inf", "+inf", "0", "nan", "finite" or "mixed".

    Parameters
    ----------
    lse : ndarray
        Any shape.

    Returns
    -------
    str

    Examples
    --------
    >>> lse_class(np.array([-np.inf])), lse_class(np.zeros(2)), lse_class(np.array([0.0, np.nan]))
    ('-inf', '0', 'mixed')
    """
    kinds = {_lse_class(float(value)) for value in np.ravel(lse)}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _lse_class(value):
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    return "0" if value == 0.0 else "finite"


def weights_class(weights, unmasked, unit_roundoff):
    """Name the class of the weights that rows without keys gave to the keys, read off one-hot values.

    Parameters
    ----------
    weights : ndarray
        (..., n), the outputs for V = identity.
    unmasked : ndarray
        (..., n), the weights of the same rows without a mask.
    unit_roundoff : float
        u of the coarsest format between the weights and the output.

    Returns
    -------
    str
        "ZERO", "NAN" (any), "MEAN_ALL" (1/n each), "MEAN_SUBSET" (1/m each on m < n keys, 0 on the others),
        "UNMASKED" (as if there were no mask), "GARBAGE" (anything else), or "mixed" if rows differ. Between
        1/m and the output lie at most four roundings: the reciprocal, the product, P and the output; for
        unmasked weights the score's error comes in, and a relative 64u is far from any other class.

    Examples
    --------
    >>> weights_class(np.array([[0.25, 0.25, 0.25, 0.25]]), np.array([[0.7, 0.1, 0.1, 0.1]]), 2.0**-24)
    'MEAN_ALL'
    """
    keys = weights.shape[-1]
    rows = zip(np.reshape(weights, (-1, keys)), np.reshape(unmasked, (-1, keys)), strict=True)
    kinds = {_weights_class(row, exact, unit_roundoff) for row, exact in rows}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _weights_class(row, unmasked, u):
    if np.isnan(row).any():
        return "NAN"
    held = np.flatnonzero(row)
    if held.size == 0:
        return "ZERO"
    if np.allclose(row[held], 1.0 / held.size, rtol=4.0 * u, atol=0.0):
        return "MEAN_ALL" if held.size == row.size else "MEAN_SUBSET"
    if np.allclose(row, unmasked, rtol=64.0 * u, atol=0.0):
        return "UNMASKED"
    return "GARBAGE"
