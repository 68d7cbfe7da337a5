"""Slow, plain oracles that share no code with any implementation: loops, mpmath, exact sums."""

import math

import mpmath
import numpy as np


def lse_of(scores):
    """ln Σ exp(s) to 50 digits; −inf for no live score."""
    live = [float(s) for s in scores if s != -math.inf]
    if not live:
        return -math.inf
    with mpmath.workdps(50):
        return float(mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(s)) for s in live)))


def softmax_of(scores):
    """The weights of one row to 50 digits; all 0 for a row without live scores."""
    lse = lse_of(scores)
    if lse == -math.inf:
        return [0.0 for _ in scores]
    with mpmath.workdps(50):
        terms = [mpmath.exp(mpmath.mpf(float(s))) if s != -math.inf else mpmath.mpf(0) for s in scores]
        total = mpmath.fsum(terms)
        return [float(term / total) for term in terms]


def attends(i, j, tq, tk, mask, causal):
    """Whether query i sees key j under a boolean mask (tq, tk) and a causal rule."""
    if mask is not None and not mask[i][j]:
        return False
    if causal in (True, "bottom-right"):
        return j <= i + tk - tq
    return j <= i if causal == "top-left" else True


def attention(q, k, v, *, mask=None, causal=False, scale=None):
    """Output (b, h, tq, dv) and lse (b, h, tq) by loops over one row at a time.

    The mask is boolean (tq, tk) or None. Masked keys are left out of the sums altogether.
    """
    b, h, tq, d = np.shape(q)
    tk, dv = np.shape(v)[2:]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    output, lse = np.zeros((b, h, tq, dv)), np.zeros((b, h, tq))
    for row in np.ndindex(b, h, tq):
        group, i = row[:2], row[2]
        keys = [j for j in range(tk) if attends(i, j, tq, tk, mask, causal)]
        scores = [scale * math.fsum(q[row][x] * k[group][j][x] for x in range(d)) for j in keys]
        lse[row] = lse_of(scores)
        for j, weight in zip(keys, softmax_of(scores), strict=True):
            output[row] += weight * np.asarray(v[group][j], np.float64)
    return output, lse
