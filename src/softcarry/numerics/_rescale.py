"""Sums that are rounded at every step, compiled: inside a key block, and from one state of a carry to the next.

The rounding is chosen outside the loop over columns, so that each loop is branch-free and vectorises.
"""

import math

import numpy as np
from numba import njit

from softcarry.numerics._rounding import NEAREST_EVEN, round_any, round_nearest_even, uniform


@njit(inline="always")
def _is_float32(rounding):
    return (
        rounding.mode == NEAREST_EVEN
        and rounding.steps == 8388608.0
        and rounding.smallest_normal == 2.0**-126
        and rounding.overflow == math.inf
    )


@njit(inline="always")
def _as_float32(x):
    # The hardware's conversion is this rounding in one instruction.
    return np.float64(np.float32(x))


@njit
def round_scalar(x, rounding, seed, counter):
    """Round one number by any mode."""
    if rounding.exact:
        return x
    if rounding.mode == NEAREST_EVEN:
        return round_nearest_even(x, rounding)
    return round_any(x, rounding, uniform(seed, counter))


@njit
def begin_block(sums, weight, values, rounding):
    """``sums`` = round(weight · values): the first key of a block."""
    if rounding.exact:
        for c in range(len(sums)):
            sums[c] = weight * values[c]
    elif _is_float32(rounding):
        for c in range(len(sums)):
            sums[c] = _as_float32(weight * values[c])
    else:
        for c in range(len(sums)):
            sums[c] = round_nearest_even(weight * values[c], rounding)


@njit
def add_to_block(sums, weight, values, rounding):
    """``sums`` = round(sums + weight · values): a further key of the block, one rounding as in an FMA."""
    if rounding.exact:
        for c in range(len(sums)):
            sums[c] += weight * values[c]
    elif _is_float32(rounding):
        for c in range(len(sums)):
            sums[c] = _as_float32(sums[c] + weight * values[c])
    else:
        for c in range(len(sums)):
            sums[c] = round_nearest_even(sums[c] + weight * values[c], rounding)


@njit
def update(o, factor, other, other_factor, rounding, seed, counter):
    """``o`` = round(o · factor + other · other_factor): one update of the running output, or a merge.

    ``counter`` numbers the draw of the first column for stochastic rounding.
    """
    if rounding.exact:
        for c in range(len(o)):
            o[c] = o[c] * factor + other[c] * other_factor
    elif _is_float32(rounding):
        for c in range(len(o)):
            o[c] = _as_float32(o[c] * factor + other[c] * other_factor)
    elif rounding.mode == NEAREST_EVEN:
        for c in range(len(o)):
            o[c] = round_nearest_even(o[c] * factor + other[c] * other_factor, rounding)
    else:
        for c in range(len(o)):
            draw = uniform(seed, counter + c)
            o[c] = round_any(o[c] * factor + other[c] * other_factor, rounding, draw)
