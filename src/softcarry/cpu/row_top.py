"""The k largest scores of all rows of an array, with the rows' carries, read from memory once.

Scores above a bar are appended to a list; whenever it is full, the best k stay, and the bar rises to the
worst of them. A block of scores none of which is above the bar is passed over by one comparison of vectors.
"""

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
)
from softcarry.cpu.row_carries import GATHERED, clear_pieces, merge_row
from softcarry.cpu.row_layout import gather, row_addresses
from softcarry.cpu.row_order import select_best, sort_best
from softcarry.cpu.row_softmax import normaliser, write_exponentials
from softcarry.cpu.row_sums import CHUNK, absorb_chunk, chunk_maximum, log_sum_exp
from softcarry.cpu.row_tiles import SHORT, TILE, load_tile, rank_tile, store_carries, summarise_tile
from softcarry.cpu.simd import STRIP, lanes_above, lowest_bit


@njit
def _select(element, address, count, offset, scores, indices, base, size, capacity, k, bar):
    """Append those of ``count`` contiguous scores that are above the bar; a bar of NaN lets everything pass.

    Return the size of the list and the bar, which rises to the k-th best whenever the list is full.
    """
    width, lanes = element_size(element), block_lanes(element)
    for begin in range(0, count, lanes):
        held = min(lanes, count - begin)
        above = ~np.uint64(0) >> np.uint64(64 - held)
        if held == lanes:
            above = lanes_above(load_block(element, address + begin * width), filled_block(element, bar))
        while above:
            i = begin + lowest_bit(above)
            above &= above - np.uint64(1)
            x = load_element(element, address + i * width)
            if x <= bar:
                continue
            scores[base + size], indices[base + size] = x, offset + i
            size += 1
            if size == capacity and size > k:
                select_best(scores, indices, base, size, k)
                size, bar = k, scores[base + k - 1]
    return size, bar


@njit
def _absorb_chunk(element, address, count, offset, m, l, scores, indices, base, size, capacity, k, bar):
    m, l = absorb_chunk(element, address, count, m, l)
    # Most chunks hold no score above the bar; a NaN, which ranks first, shows in l.
    if not chunk_maximum(element, address, count) <= bar or l != l:
        size, bar = _select(element, address, count, offset, scores, indices, base, size, capacity, k, bar)
    return m, l, size, bar


class TopResults(NamedTuple):
    """Where the results go. A list is the best k of a segment; the first of a row is its own in the end."""

    m: NDArray[np.floating]
    """(rows · pieces,) of the working format, of each row the first in the end."""
    l: NDArray[np.float64]
    """(rows · pieces,), likewise."""
    scores: NDArray[np.floating]
    """(rows · segments · capacity,) of the working format."""
    indices: NDArray[np.int64]
    """(rows · segments · capacity,)."""
    sizes: NDArray[np.int64]
    """(rows · segments,): how full the lists are."""
    bars: NDArray[np.floating]
    """(rows · segments,) of the working format: what a score must be above to be kept, NaN for nothing."""
    lse: NDArray[np.floating]
    """(rows,) of the working format."""
    probabilities: int
    """Address of (rows, k) of the output's element type."""


@njit(forceinline=True)
def _finish_row(out_element, m, l, k, scores, base, empty, lse, probabilities, row):
    """Write the lse of a row and the probabilities of its best k: those of `softmax`, to the bit."""
    lse[row] = log_sum_exp(m, l)
    shift, factor = normaliser(m, l, False, empty)
    source = scores.ctypes.data + base * scores.itemsize
    target = probabilities + row * k * element_size(out_element)
    write_exponentials(scores[0], out_element, source, target, k, shift, factor, False)


@njit(nogil=True, cache=True)
def finish_top(out_element, grid, segments, k, empty, results, first_row, last_row):
    """Merge pieces and segments of some rows, sort the best, and write their probabilities."""
    all_m, all_l, scores, indices, sizes, _, lse, probabilities = results
    capacity = scores.size // sizes.size
    for row in range(first_row, last_row):
        base, size = row * segments * capacity, sizes[row * segments]
        for segment in range(1, segments):
            other = base + segment * capacity
            for j in range(sizes[row * segments + segment]):
                scores[base + size], indices[base + size] = scores[other + j], indices[other + j]
                size += 1
        select_best(scores, indices, base, size, k)
        sort_best(scores, indices, base, k)
        m, l = merge_row(all_m, all_l, row, grid.pieces)
        _finish_row(out_element, m, l, k, scores, base, empty, lse, probabilities, row)


@njit
def _top_of_group(
    element, rows, grid, segments, segment, first_row, last_row, first, last, k, results, buffer
):
    """Summarise a segment of some rows and keep its best."""
    width = element_size(element)
    m, l, scores, indices, sizes, bars, _, _ = results
    capacity = scores.size // sizes.size
    clear_pieces(grid, first_row, last_row, first, last, m, l)
    addresses = row_addresses(rows, first_row, last_row)
    for row in range(first_row, last_row):
        sizes[row * segments + segment], bars[row * segments + segment] = 0, np.nan
    for begin in range(first, last, CHUNK):
        count = min(CHUNK, last - begin)
        if rows.step != width:
            gather(element, rows, addresses, begin, count, buffer)
        for row in range(first_row, last_row):
            at, held = row * grid.pieces + begin // grid.piece, row * segments + segment
            place = addresses[row - first_row] + begin * width
            if rows.step != width:
                place = buffer + (row - first_row) * count * width
            m[at], l[at], sizes[held], bars[held] = _absorb_chunk(
                element,
                place,
                count,
                begin,
                m[at],
                l[at],
                scores,
                indices,
                held * capacity,
                sizes[held],
                capacity,
                k,
                bars[held],
            )


@njit
def _top_of_short_rows(element, out_element, rows, grid, k, empty, results, first_row, last_row, scratch):
    """Do all of rows of at most SHORT elements, by the ranks of all their scores."""
    all_m, all_l, scores, indices, _, _, lse, probabilities = results
    tile, ranks, listed = scratch[:TILE], scratch[TILE : 2 * TILE], scratch[2 * TILE :]
    order = np.empty(SHORT, np.int64)
    for first in range(first_row, last_row, STRIP):
        held = min(STRIP, last_row - first)
        load_tile(element, rows, first, held, grid.length, tile)
        top, total = summarise_tile(tile, grid.length, ranks)
        store_carries(all_m, all_l, first, held, top, total)
        rank_tile(tile, grid.length, ranks)
        for r in range(held):
            row = first + r
            m, l, base = all_m[row], all_l[row], row * k
            for j in range(grid.length):
                rank = int(ranks[j * STRIP + r]) if m == m else j
                listed[rank], order[rank] = tile[j * STRIP + r], j
            if m != m:
                # Ranks know no NaN.
                sort_best(listed, order, 0, grid.length)
            for j in range(k):
                scores[base + j], indices[base + j] = listed[j], order[j]
            _finish_row(out_element, m, l, k, scores, base, empty, lse, probabilities, row)


@njit(nogil=True, cache=True)
def top_rows(element, out_element, rows, grid, segments, units, counter, k, empty, results):
    """Claim units of work until none is left; rows in one segment are finished with it."""
    buffer = np.empty(GATHERED, np.uint8)
    scratch = np.empty(2 * TILE + SHORT, results.m.dtype)
    unit = claim(counter.ctypes.data)
    while unit < units:
        segment = unit % segments
        first_row = unit // segments * grid.group
        last_row = min(grid.rows, first_row + grid.group)
        first = segment * grid.segment * grid.piece
        last = min(grid.length, first + grid.segment * grid.piece)
        if grid.length <= SHORT:
            _top_of_short_rows(
                element, out_element, rows, grid, k, empty, results, first_row, last_row, scratch
            )
        else:
            place = buffer.ctypes.data
            _top_of_group(
                element, rows, grid, segments, segment, first_row, last_row, first, last, k, results, place
            )
            if segments == 1:
                finish_top(out_element, grid, segments, k, empty, results, first_row, last_row)
        unit = claim(counter.ctypes.data)
