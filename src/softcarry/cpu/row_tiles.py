"""The carries of eight rows in the lanes of strips, and what follows from them."""

import numpy as np
from numba import njit

from softcarry.cpu.logarithm import log
from softcarry.cpu.memory import element_size, store, store_partial
from softcarry.cpu.simd import STRIP, narrowed, splat, where_equal, widened


@njit(forceinline=True)
def log_of_sums(l):
    """Return ln l of a strip in float64; 0 for empty rows, whose l is 0."""
    wide = widened(l)
    return log(where_equal(wide, splat(wide, 0.0), splat(wide, 1.0), wide))


@njit(forceinline=True)
def lse_of(m, l):
    """Return the strip of m + ln l, rounded once; ±inf and NaN as the carry has them."""
    infinite = splat(m, np.inf)
    return where_equal(m, infinite, infinite, narrowed(widened(m) + log_of_sums(l), m))


@njit(forceinline=True)
def shift_of(m):
    """Return what is subtracted from scores: m, or 0 for empty rows."""
    return where_equal(m, splat(m, -np.inf), splat(m, 0.0), m)


@njit(forceinline=True)
def store_carries(working, m, l, row, held, top, total):
    """Store strips of carries from a row on, to the addresses of m (working format) and l (float64)."""
    store_strip(working, m + row * element_size(working), top, held)
    store_strip(np.float64(0.0), l + row * 8, widened(total), held)


@njit(forceinline=True)
def store_strip(element, address, strip, held):
    """Store ``held`` lanes of a strip, at most 8."""
    if held == STRIP:
        store(element, address, strip)
    else:
        store_partial(element, address, strip, held)
