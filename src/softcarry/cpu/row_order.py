"""The order of scores in a list of the best, and how a list is cut down to the best k and brought into it.

NaN ranks first, then a score by its value, then the one with the lower index. Lists hold scores in the order
of their indices until they are sorted, so that no index is ever compared.
"""

import numpy as np
from numba import njit

from softcarry.cpu.memory import block_lanes, filled_block, load_block
from softcarry.cpu.simd import from_key, lanes_above, ones, to_key

_RUN = 16
"""Length of the runs that a list is sorted into before they are merged."""


@njit
def _count_above(scores, base, size, bar):
    """Return how many of ``size`` scores are above a bar, or NaN."""
    lanes = block_lanes(scores[0])
    bars = filled_block(scores[0], bar)
    count = 0
    for begin in range(0, size, lanes):
        place = scores.ctypes.data + (base + begin) * scores.itemsize
        above = lanes_above(load_block(scores[0], place), bars)
        count += ones(above & (~np.uint64(0) >> np.uint64(64 - min(lanes, size - begin))))
    return count


@njit
def keep_best(scores, indices, base, size, k):
    """Keep the best k of ``size`` scores from ``base`` on, in the order of indices, and return their least.

    The list must have room for a block beyond its end. The least is found by bisection between the numbers
    that the bits of floating point count, in which a pass over the list is a few comparisons of vectors.
    """
    most = scores[base]
    least = scores[base]
    for j in range(base, base + size):
        least, most = min(least, scores[j]), max(most, scores[j])
    low, high = to_key(type(least)(-np.inf)) - 1, to_key(type(least)(np.inf))
    if least == least and most == most:
        low, high = to_key(least) - 1, to_key(most)
    # Above ``low`` are at least k scores, above ``high`` fewer, unless k are NaN.
    bar, ties = type(least)(np.inf), np.int64(0)
    nans = _count_above(scores, base, size, bar)
    if nans < k:
        while True:
            # The mean, without a sum that might overflow.
            middle = (low & high) + ((low ^ high) >> 1)
            if middle == low:
                bar = from_key(scores[0], high)
                ties = k - _count_above(scores, base, size, bar)
                break
            count = _count_above(scores, base, size, from_key(scores[0], middle))
            if count == k:
                bar = from_key(scores[0], middle)
                break
            low, high = (middle, high) if count > k else (low, middle)
    kept = base
    smallest = type(least)(np.nan)
    for j in range(base, base + size):
        x = scores[j]
        tie = x == bar and ties > 0
        keep = (x > bar or x != x or tie) and kept - base < k
        ties -= tie
        scores[kept], indices[kept] = x, indices[j]
        kept += keep
        if keep and (x < smallest or smallest != smallest):
            smallest = x
    return smallest


@njit(forceinline=True)
def _before(x, y):
    return x > y or (x != x and y == y)


@njit
def sort_best(scores, indices, base, size):
    """Sort ``size`` scores from ``base`` on, in the order of their indices so far, best first.

    Stably: runs by insertion, then pairs of runs by merging.
    """
    stop = base + size
    for start in range(base, stop, _RUN):
        for end in range(start + 1, min(start + _RUN, stop)):
            x, i = scores[end], indices[end]
            at = end
            while at > start and _before(x, scores[at - 1]):
                scores[at], indices[at] = scores[at - 1], indices[at - 1]
                at -= 1
            scores[at], indices[at] = x, i
    if size <= _RUN:
        return
    left, order = np.empty(size, scores.dtype), np.empty(size, np.int64)
    run = _RUN
    while run < size:
        for start in range(base, stop - run, 2 * run):
            for i in range(run):
                left[i], order[i] = scores[start + i], indices[start + i]
            i, j, end = 0, start + run, min(start + 2 * run, stop)
            for at in range(start, end):
                if i < run and not (j < end and _before(scores[j], left[i])):
                    scores[at], indices[at] = left[i], order[i]
                    i += 1
                else:
                    scores[at], indices[at] = scores[j], indices[j]
                    j += 1
        run *= 2
