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
    store_element,
    store_integer,
)
from softcarry.cpu.row_carries import GATHERED, clear_pieces, merge_row
from softcarry.cpu.row_layout import gather, row_addresses
from softcarry.cpu.row_order import keep_best, sort_best
from softcarry.cpu.row_softmax import normaliser, write_exponentials
from softcarry.cpu.row_sums import CHUNK, absorb_chunk, log_sum_exp
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
            above &= lanes_above(load_block(element, address + begin * width), filled_block(element, bar))
        while above:
            i = begin + lowest_bit(above)
            above &= above - np.uint64(1)
            x = load_element(element, address + i * width)
            if x <= bar:
                continue
            scores[base + size], indices[base + size] = x, offset + i
            size += 1
            if size == capacity and size > k:
                bar = keep_best(scores, indices, base, size, k)
                size = k
    return size, bar


class TopResults(NamedTuple):
    """Where the results go."""

    m: NDArray[np.floating]
    """(rows · pieces,) of the working format, of each row the first in the end."""
    l: NDArray[np.float64]
    """(rows · pieces,), likewise."""
    scores: NDArray[np.floating]
    """(rows · k,) of the working format."""
    indices: NDArray[np.int64]
    """(rows · k,)."""
    lse: NDArray[np.floating]
    """(rows,) of the working format."""
    probabilities: int
    """Address of (rows, k) of the output's element type."""


class TopLists(NamedTuple):
    """Lists of the best so far, of rows or of segments of rows."""

    scores: NDArray[np.floating]
    """(lists · capacity + a block,) of the working format."""
    indices: NDArray[np.int64]
    """(lists · capacity + a block,)."""
    sizes: NDArray[np.int64]
    """(lists,): how full they are."""
    bars: NDArray[np.floating]
    """(lists,) of the working format: what a score must be above to be kept, NaN for nothing."""


class _Places(NamedTuple):
    """Addresses of results, which no thread counts as it would arrays."""

    scores: int
    indices: int
    lse: int
    probabilities: int


@njit(forceinline=True)
def _places(results):
    return _Places(
        results.scores.ctypes.data,
        results.indices.ctypes.data,
        results.lse.ctypes.data,
        results.probabilities,
    )


@njit(forceinline=True)
def _finish_row(out_element, m, l, k, empty, scores, indices, base, places, row):
    """Write the best k of a row, listed from ``base`` on, its lse, and probabilities as `softmax` has."""
    working = scores[0]
    size = element_size(working)
    source = places.scores + row * k * size
    for j in range(k):
        store_element(working, source + j * size, scores[base + j])
        store_integer(places.indices + (row * k + j) * 8, indices[base + j])
    store_element(working, places.lse + row * size, type(m)(log_sum_exp(m, l)))
    shift, factor = normaliser(m, l, False, empty)
    target = places.probabilities + row * k * element_size(out_element)
    write_exponentials(working, out_element, source, target, k, shift, factor, False)


@njit
def _finish_lists(out_element, grid, segments, capacity, k, empty, lists, held, m, l, places, row):
    """Merge the pieces of a row and its lists, from list ``held`` on, and write what is asked for."""
    scores, indices, sizes, _ = lists
    base, size = held * capacity, sizes[held]
    for segment in range(1, segments):
        other = base + segment * capacity
        for j in range(sizes[held + segment]):
            scores[base + size], indices[base + size] = scores[other + j], indices[other + j]
            size += 1
    if size > k:
        keep_best(scores, indices, base, size, k)
    sort_best(scores, indices, base, k)
    top, total = merge_row(m, l, row, grid.pieces)
    _finish_row(out_element, top, total, k, empty, scores, indices, base, places, row)


@njit(nogil=True, cache=True)
def finish_top(out_element, grid, segments, capacity, k, empty, lists, results):
    """Merge pieces and segments of all rows, and write what is asked for."""
    m, l, places = results.m, results.l, _places(results)
    for row in range(grid.rows):
        held = row * segments
        _finish_lists(out_element, grid, segments, capacity, k, empty, lists, held, m, l, places, row)


@njit
def _fill_lists(
    element,
    rows,
    grid,
    segments,
    first_row,
    last_row,
    first,
    last,
    capacity,
    k,
    lists,
    first_list,
    m,
    l,
    buffer,
):
    """Summarise a segment of some rows and keep its best, each ``segments`` lists after the one before."""
    width = element_size(element)
    scores, indices, sizes, bars = lists
    clear_pieces(grid, first_row, last_row, first, last, m, l)
    addresses = row_addresses(rows, first_row, last_row)
    for r in range(last_row - first_row):
        sizes[first_list + r * segments], bars[first_list + r * segments] = 0, np.nan
    for begin in range(first, last, CHUNK):
        count = min(CHUNK, last - begin)
        if rows.step != width:
            gather(element, rows, addresses, begin, count, buffer)
        for r in range(last_row - first_row):
            at, held = (first_row + r) * grid.pieces + begin // grid.piece, first_list + r * segments
            place = addresses[r] + begin * width if rows.step == width else buffer + r * count * width
            top, m[at], l[at] = absorb_chunk(element, place, count, m[at], l[at])
            # Most chunks hold no score above the bar; a NaN, which ranks first, shows in l.
            if not top <= bars[held] or l[at] != l[at]:
                sizes[held], bars[held] = _select(
                    element,
                    place,
                    count,
                    begin,
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
    all_m, all_l, places = results.m, results.l, _places(results)
    m_place, l_place = all_m.ctypes.data, all_l.ctypes.data
    tile, ranks, listed = scratch[:TILE], scratch[TILE : 2 * TILE], scratch[2 * TILE :]
    order = np.empty(SHORT, np.int64)
    for first in range(first_row, last_row, STRIP):
        held = min(STRIP, last_row - first)
        load_tile(element, rows, first, held, grid.length, tile)
        top, total = summarise_tile(tile, grid.length, ranks)
        store_carries(tile[0], m_place, l_place, first, held, top, total)
        rank_tile(tile, grid.length, ranks)
        for r in range(held):
            m, l = all_m[first + r], all_l[first + r]
            for j in range(grid.length):
                rank = int(ranks[j * STRIP + r]) if m == m else j
                listed[rank], order[rank] = tile[j * STRIP + r], j
            if m != m:
                # Ranks know no NaN.
                sort_best(listed, order, 0, grid.length)
            _finish_row(out_element, m, l, k, empty, listed, order, 0, places, first + r)


@njit(nogil=True, cache=True)
def top_rows(element, out_element, rows, grid, segments, units, counter, capacity, k, empty, lists, results):
    """Claim units of work until none is left; rows in one segment are finished with it.

    Rows of several segments have their lists in ``lists``, and are finished by `finish_top`.
    """
    m, l, places = results.m, results.l, _places(results)
    gathering = grid.length > SHORT and rows.step != element_size(element)
    buffer = np.empty(GATHERED if gathering else 0, np.uint8)
    scratch = np.empty(2 * TILE + SHORT, m.dtype)
    # Rows that are gathered are done side by side, others one after the other.
    room = 1 if rows.step == element_size(element) else grid.group
    if segments > 1 or grid.length <= SHORT:
        room = 0
    listed = room * capacity + block_lanes(element)
    own = TopLists(
        np.empty(listed, m.dtype),
        np.empty(listed, np.int64),
        np.empty(room, np.int64),
        np.empty(room, m.dtype),
    )
    unit = claim(counter.ctypes.data)
    while unit < units:
        segment = unit % segments
        first_row = unit // segments * grid.group
        last_row = min(grid.rows, first_row + grid.group)
        first = segment * grid.segment * grid.piece
        last = min(grid.length, first + grid.segment * grid.piece)
        place = buffer.ctypes.data
        if grid.length <= SHORT:
            _top_of_short_rows(
                element, out_element, rows, grid, k, empty, results, first_row, last_row, scratch
            )
        elif segments > 1:
            held = first_row * segments + segment
            _fill_lists(
                element,
                rows,
                grid,
                segments,
                first_row,
                last_row,
                first,
                last,
                capacity,
                k,
                lists,
                held,
                m,
                l,
                place,
            )
        else:
            for row in range(first_row, last_row, room):
                stop = min(row + room, last_row)
                _fill_lists(element, rows, grid, 1, row, stop, first, last, capacity, k, own, 0, m, l, place)
                for r in range(stop - row):
                    _finish_lists(out_element, grid, 1, capacity, k, empty, own, r, m, l, places, row + r)
        unit = claim(counter.ctypes.data)
