"""The k largest scores of all rows of an array, with the rows' carries, read from memory once.

The k best are kept in a heap whose root is the worst of them. A block of scores none of which is above the
root is passed over by one comparison of vectors.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from softcarry.cpu.memory import (
    block_lanes,
    claim,
    element_size,
    filled_block,
    load_block,
    load_element,
    store_element,
)
from softcarry.cpu.row_carries import GATHERED, clear_pieces, merge_row
from softcarry.cpu.row_layout import gather, row_addresses
from softcarry.cpu.row_sums import CHUNK, absorb_chunk, chunk_maximum, log_sum_exp
from softcarry.cpu.simd import any_above


@njit
def ranks_before(x, i, y, j):
    """Whether score x at index i ranks before y at j: NaN first, then by value, then by index."""
    if x != x or y != y:
        return x != x and (y == y or i < j)
    return x > y or (x == y and i < j)


@njit
def _sift_down(scores, indices, base, size, x, i):
    """Put (x, i) in place of the root of the heap at ``base``."""
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        at = base + child
        if child + 1 < size and ranks_before(scores[at], indices[at], scores[at + 1], indices[at + 1]):
            child, at = child + 1, at + 1
        if not ranks_before(x, i, scores[at], indices[at]):
            break
        scores[base + parent], indices[base + parent] = scores[at], indices[at]
        parent = child
    scores[base + parent], indices[base + parent] = x, i


@njit
def _sift_up(scores, indices, base, size, x, i):
    """Add (x, i) to the heap of ``size`` at ``base``."""
    child = size
    while child > 0:
        parent = (child - 1) // 2
        at = base + parent
        if not ranks_before(scores[at], indices[at], x, i):
            break
        scores[base + child], indices[base + child] = scores[at], indices[at]
        child = parent
    scores[base + child], indices[base + child] = x, i


@njit
def _offer(scores, indices, base, size, k, x, i):
    """Keep (x, i) if it is among the best so far, and return the size of the heap."""
    if size < k:
        _sift_up(scores, indices, base, size, x, i)
        return size + 1
    if ranks_before(x, i, scores[base], indices[base]):
        _sift_down(scores, indices, base, k, x, i)
    return size


@njit
def _sort(scores, indices, base, size):
    """Turn a heap into a list, best first."""
    for last in range(size - 1, 0, -1):
        x, i = scores[base + last], indices[base + last]
        scores[base + last], indices[base + last] = scores[base], indices[base]
        _sift_down(scores, indices, base, last, x, i)


@njit
def _select(element, address, count, offset, scores, indices, base, size, k):
    """Offer ``count`` contiguous scores, the first of which has index ``offset``."""
    width, lanes = element_size(element), block_lanes(element)
    for begin in range(0, count, lanes):
        block = min(lanes, count - begin)
        if size == k and block == lanes:
            worst = filled_block(element, scores[base])
            if not any_above(load_block(element, address + begin * width), worst):
                continue
        for j in range(begin, begin + block):
            x = load_element(element, address + j * width)
            size = _offer(scores, indices, base, size, k, x, offset + j)
    return size


@njit
def _absorb_chunk(element, address, count, offset, m, l, scores, indices, base, size, k):
    m, l = absorb_chunk(element, address, count, m, l)
    # Most chunks hold no score above the worst that is kept; a NaN, which ranks first, shows in l.
    if size < k or l != l or chunk_maximum(element, address, count) > scores[base]:
        size = _select(element, address, count, offset, scores, indices, base, size, k)
    return m, l, size


class TopResults(NamedTuple):
    """Where the results go. A list is the best k of a segment; the first of a row is its own in the end."""

    m: NDArray[np.floating]
    """(rows · pieces,) of the working format, of each row the first in the end."""
    l: NDArray[np.float64]
    """(rows · pieces,), likewise."""
    scores: NDArray[np.floating]
    """(rows · segments · k,) of the working format."""
    indices: NDArray[np.int64]
    """(rows · segments · k,)."""
    sizes: NDArray[np.int64]
    """(rows · segments,): how full the lists are."""
    lse: NDArray[np.floating]
    """(rows,) of the working format."""
    probabilities: int
    """Address of (rows, k) of the output's element type."""


@njit(nogil=True, cache=True)
def finish_top(out_element, grid, segments, k, empty, results, first_row, last_row):
    """Merge pieces and segments of some rows, sort the best, and write their probabilities."""
    scores, indices, sizes = results.scores, results.indices, results.sizes
    for row in range(first_row, last_row):
        base = row * segments * k
        size = sizes[row * segments]
        for segment in range(1, segments):
            other = base + segment * k
            for j in range(sizes[row * segments + segment]):
                size = _offer(scores, indices, base, size, k, scores[other + j], indices[other + j])
        _sort(scores, indices, base, size)
        m, l = merge_row(results.m, results.l, row, grid.pieces)
        results.lse[row] = log_sum_exp(m, l)
        for j in range(k):
            p = empty
            if m != -np.inf:
                p = math.exp(np.float64(scores[base + j]) - np.float64(m)) / l
            place = results.probabilities + (row * k + j) * element_size(out_element)
            store_element(out_element, place, type(m)(p))


@njit(nogil=True, cache=True)
def top_rows(element, out_element, rows, grid, segments, units, counter, k, empty, results):
    """Claim units of work until none is left; rows in one segment are finished with it."""
    width = element_size(element)
    m, l = results.m, results.l
    buffer = np.empty(GATHERED, np.uint8)
    unit = claim(counter)
    while unit < units:
        segment = unit % segments
        first_row = unit // segments * grid.group
        last_row = min(grid.rows, first_row + grid.group)
        first = segment * grid.segment * grid.piece
        last = min(grid.length, first + grid.segment * grid.piece)
        clear_pieces(grid, first_row, last_row, first, last, m, l)
        addresses = row_addresses(rows, first_row, last_row)
        for row in range(first_row, last_row):
            results.sizes[row * segments + segment] = 0
        for begin in range(first, last, CHUNK):
            count = min(CHUNK, last - begin)
            if rows.step != width:
                gather(element, rows, addresses, begin, count, buffer.ctypes.data)
            for row in range(first_row, last_row):
                at, held = row * grid.pieces + begin // grid.piece, row * segments + segment
                place = addresses[row - first_row] + begin * width
                if rows.step != width:
                    place = buffer.ctypes.data + (row - first_row) * count * width
                m[at], l[at], results.sizes[held] = _absorb_chunk(
                    element,
                    place,
                    count,
                    begin,
                    m[at],
                    l[at],
                    results.scores,
                    results.indices,
                    held * k,
                    results.sizes[held],
                    k,
                )
        if segments == 1:
            finish_top(out_element, grid, segments, k, empty, results, first_row, last_row)
        unit = claim(counter)
