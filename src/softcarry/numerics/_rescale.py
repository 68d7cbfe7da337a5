"""Sums that are rounded at every step, compiled: over the keys of a block, and from one carry to the next."""

import math

import numpy as np
from numba import njit

from softcarry.numerics._rounding import NEAREST_EVEN, round_any, round_nearest_even, uniform


@njit
def round_scalar(x, rounding, seed, counter):
    """Round one number by any mode."""
    if rounding.exact:
        return x
    if rounding.mode == NEAREST_EVEN:
        return round_nearest_even(x, rounding)
    return round_any(x, rounding, uniform(seed, counter))


@njit
def rounded_combination(o, factor, other, other_factor, rounding, seed, counter):
    """``o`` = round(o · factor + other · other_factor), elementwise.

    This is a further key of a block (factor 1), an update of the running output (other factor 1), and a
    merge. ``counter`` numbers the draw of the first element for stochastic rounding.
    """
    # The rounding is chosen outside the loop, so that each loop is branch-free and vectorises.
    if rounding.exact:
        for c in range(len(o)):
            o[c] = o[c] * factor + other[c] * other_factor
    elif rounding.mode != NEAREST_EVEN:
        for c in range(len(o)):
            draw = uniform(seed, counter + c)
            o[c] = round_any(o[c] * factor + other[c] * other_factor, rounding, draw)
    elif (
        rounding.steps == 2.0**23 and rounding.smallest_normal == 2.0**-126 and math.isinf(rounding.overflow)
    ):
        # float32: the hardware's conversion is this rounding.
        for c in range(len(o)):
            o[c] = np.float32(o[c] * factor + other[c] * other_factor)
    else:
        for c in range(len(o)):
            o[c] = round_nearest_even(o[c] * factor + other[c] * other_factor, rounding)
