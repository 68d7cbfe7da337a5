"""The k largest scores of all rows of an array, with the rows' carries, read from memory once.

Scores above a bar are appended to a list; whenever it is full, the best k stay, and the bar rises to the
worst of them. A block of scores none of which is above the bar is passed over by one comparison of vectors.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from softcarry.cpu.exponential import exp
from softcarry.cpu.memory import (
    block_lanes,
    claim,
    element_size,
    filled_block,
    filled_strip,
    load_block,
    load_element,
    load_strip,
    store,
    store_element,
    store_integer,
    transpose,
)
from softcarry.cpu.row_carries import GATHERED, clear_pieces, merge_row
from softcarry.cpu.row_layout import gather, row_address, row_addresses
from softcarry.cpu.row_order import keep_best, sort_best
from softcarry.cpu.row_short import SCRATCH, SHORT, gather_eight, in_place, summarise_eight
from softcarry.cpu.row_signals import await_helpers
from softcarry.cpu.row_softmax import normaliser, write_exponentials
from softcarry.cpu.row_sums import CHUNK, absorb_chunk, log_sum_exp
from softcarry.cpu.row_tiles import lse_of, shift_of, store_carries, store_strip
from softcarry.cpu.row_vectors import where_above
from softcarry.cpu.simd import (
    STRIP,
    folded_maximum,
    lanes_above,
    larger,
    lowest_bit,
    repeated,
    splat,
    where_equal,
)


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


@njit(forceinline=True)
def _pick(working, tile, length, steps, scores, places):
    """Take the best scores of the rows of a tile, write them and their negative places, and put NaN there.

    Of equals the first is taken. There must be no NaN but where a score has been taken, and beyond the last.
    """
    width, lanes = element_size(working), block_lanes(working)
    step, size = lanes // STRIP, STRIP * width
    best, at = filled_block(working, -np.inf), filled_block(working, -np.inf)
    for j in range(0, length, step):
        x = load_block(working, tile + j * size)
        at = where_above(x, best, load_block(working, steps) - filled_block(working, j), at)
        best = larger(x, best)
    top = folded_maximum(best)
    first = folded_maximum(where_equal(best, repeated(top), at, filled_block(working, -np.inf)))
    store(working, places, first)
    for r in range(STRIP):
        place = -load_element(working, places + r * width)
        if place == np.inf:
            # What is left of the row is −inf, which is above nothing.
            place = _first_infinity(working, tile + r * width, length)
            store_element(working, places + r * width, type(working)(-place))
        # The score itself: the maximum of 0 and −0 is either.
        taken = tile + np.int64(place) * size + r * width
        store_element(working, scores + r * width, load_element(working, taken))
        store_element(working, taken, type(working)(np.nan))


@njit
def _first_infinity(working, column, length):
    for j in range(length):
        if load_element(working, column + j * STRIP * element_size(working)) == -np.inf:
            return type(working)(j)
    return type(working)(0)


@njit
def _sort_row(element, working, source, length, k, scores, places):
    """Write the best k of a row that holds NaN, and their negative places."""
    size, width = element_size(element), STRIP * element_size(working)
    listed, order = np.empty(length, type(working)), np.arange(length)
    for j in range(length):
        listed[j] = load_element(element, source + j * size)
    sort_best(listed, order, 0, length)
    for j in range(k):
        store_element(working, scores + j * width, listed[j])
        store_element(working, places + j * width, type(working)(-order[j]))


@njit(forceinline=True)
def _fill_tile(element, working, source, stride, length, tile):
    """Transpose eight rows into a tile, and put NaN behind them, to the end of a block."""
    size, width, step = element_size(element), element_size(working), block_lanes(working) // STRIP
    whole = length - length % STRIP
    for j in range(0, whole, STRIP):
        transpose(element, source + j * size, stride, working, tile + j * STRIP * width, STRIP * width)
    for j in range(whole, length):
        for r in range(STRIP):
            x = load_element(element, source + r * stride + j * size)
            store_element(working, tile + (j * STRIP + r) * width, x)
    for j in range(length, -(-length // step) * step):
        store(working, tile + j * STRIP * width, filled_strip(working, np.nan))


@njit
def _top_of_short_rows(
    element, out_element, rows, length, k, empty, m, l, places, first_row, last_row, working, scratch
):
    """Do all of rows of at most SHORT elements, eight at a time: their best, then their next, k times."""
    size, width, out_size = element_size(element), element_size(working), element_size(out_element)
    gathered, tile = scratch, scratch + SCRATCH * width
    scores = tile + (SCRATCH + block_lanes(working)) * width
    taken, steps = scores + SCRATCH * width, scores + 2 * SCRATCH * width
    for i in range(block_lanes(working)):
        store_element(working, steps + i * width, type(working)(-(i // STRIP)))
    for row in range(first_row, last_row, STRIP):
        held = min(STRIP, last_row - row)
        if in_place(element, rows, row, held):
            source, stride = row_address(rows, row), rows.stride
        else:
            gather_eight(element, rows, row, held, length, gathered)
            source, stride = gathered, SHORT * size
        top, total = summarise_eight(element, working, source, stride, length, False, 0, 0, 0, 0)
        store_carries(working, m, l, row, held, top, total)
        store_strip(working, places.lse + row * width, lse_of(top, total), held)
        if lanes_above(top, filled_strip(working, np.inf)):
            for r in range(STRIP):
                at = r * width
                _sort_row(element, working, source + r * stride, length, k, scores + at, taken + at)
        else:
            _fill_tile(element, working, source, stride, length, tile)
            for j in range(k):
                at = j * STRIP * width
                _pick(working, tile, length, steps, scores + at, taken + at)
        shift = shift_of(top)
        factor = where_equal(top, splat(top, -np.inf), splat(top, empty), splat(top, 1.0) / total)
        for j in range(k):
            probability = exp(load_strip(working, scores + j * STRIP * width) - shift) * factor
            store(working, tile + j * STRIP * width, probability)
        for r in range(held):
            for j in range(k):
                at, to = (j * STRIP + r) * width, (row + r) * k + j
                store_element(working, places.scores + to * width, load_element(working, scores + at))
                store_integer(places.indices + to * 8, -np.int64(load_element(working, taken + at)))
                probability = load_element(working, tile + at)
                store_element(out_element, places.probabilities + to * out_size, probability)


@njit(nogil=True, cache=True)
def top_rows(
    element, out_element, rows, grid, segments, units, counter, helpers, capacity, k, empty, lists, results
):
    """Claim units of work until none is left; rows in one segment are finished with it.

    Rows of several segments have their lists in ``lists``, and are finished by `finish_top`.
    """
    m, l, places = results.m, results.l, _places(results)
    gathering = grid.length > SHORT and rows.step != element_size(element)
    buffer = np.empty(GATHERED if gathering else 0, np.uint8)
    working = np.zeros(1, m.dtype)[0]
    scratch = np.empty(5 * SCRATCH if grid.length <= SHORT else 0, m.dtype)
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
    unit = claim(counter)
    while unit < units:
        segment = unit % segments
        first_row = unit // segments * grid.group
        last_row = min(grid.rows, first_row + grid.group)
        first = segment * grid.segment * grid.piece
        last = min(grid.length, first + grid.segment * grid.piece)
        place = buffer.ctypes.data
        if grid.length <= SHORT:
            _top_of_short_rows(
                element,
                out_element,
                rows,
                grid.length,
                k,
                empty,
                m.ctypes.data,
                l.ctypes.data,
                places,
                first_row,
                last_row,
                working,
                scratch.ctypes.data,
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
        unit = claim(counter)
    await_helpers(counter, helpers)
