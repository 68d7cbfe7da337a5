"""The carries (m, l) of all rows of an array, and what follows from them: log-sum-exp, log-probabilities."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from softcarry.cpu.memory import claim, element_size, load_element, store, store_element
from softcarry.cpu.row_layout import gather, row_address, row_addresses
from softcarry.cpu.row_short import SCRATCH, SHORT, gather_eight, in_place, summarise_eight
from softcarry.cpu.row_signals import await_helpers
from softcarry.cpu.row_sums import CHUNK, absorb, absorb_chunk, log_sum_exp, merge_pieces
from softcarry.cpu.row_tiles import log_of_sums, shift_of, store_carries, store_strip
from softcarry.cpu.simd import STRIP, narrowed, splat, where_equal, widened

GATHERED = 32 * CHUNK
"""Bytes of a buffer that gathers rows which are not contiguous."""


class CarryResults(NamedTuple):
    """Where the results go; an address of 0 and targets of no column are passed over."""

    m: NDArray[np.floating]
    """(rows · pieces,) of the working format; the first of each row is its own in the end."""
    l: NDArray[np.float64]
    """(rows · pieces,), likewise."""
    lse: int
    """Address of (rows,) of the output's element type."""
    targets: NDArray[np.int64]
    """(rows, targets of a row)."""
    logprobs: int
    """Address of (rows, targets of a row) of the output's element type."""


@njit
def clear_pieces(grid, first_row, last_row, first, last, m, l):
    """Make the carries empty of the pieces of rows between the elements ``first`` and ``last``."""
    for row in range(first_row, last_row):
        for piece in range(first // grid.piece, -(-last // grid.piece)):
            m[row * grid.pieces + piece] = -np.inf
            l[row * grid.pieces + piece] = 0.0


@njit
def summarise_group(element, rows, grid, first_row, last_row, first, last, m, l, buffer):
    """Summarise the pieces of rows between the elements ``first`` and ``last`` into m, l (rows · pieces)."""
    size = element_size(element)
    clear_pieces(grid, first_row, last_row, first, last, m, l)
    if rows.step == size:
        for row in range(first_row, last_row):
            start = row_address(rows, row)
            for begin in range(first, last, grid.piece):
                at = row * grid.pieces + begin // grid.piece
                count = min(grid.piece, last - begin)
                m[at], l[at] = absorb(element, start + begin * size, count, m[at], l[at])
        return
    addresses = row_addresses(rows, first_row, last_row)
    for begin in range(first, last, CHUNK):
        count = min(CHUNK, last - begin)
        gather(element, rows, addresses, begin, count, buffer)
        for row in range(first_row, last_row):
            at = row * grid.pieces + begin // grid.piece
            place = buffer + (row - first_row) * count * size
            _, m[at], l[at] = absorb_chunk(element, place, count, m[at], l[at])


@njit(forceinline=True)
def merge_row(m, l, row, pieces):
    """Merge the pieces of a row into its first, and return them."""
    at = row * pieces
    if pieces > 1:
        m[at], l[at] = merge_pieces(m, l, at, pieces)
    return m[at], l[at]


@njit(forceinline=True)
def _write_logprobs(element, out_element, rows, row, m, logarithm, targets, out):
    """Write (x − m) − ln l of the targets of a row, rounded once from float64."""
    # A row without live scores has no maximum to subtract from −inf.
    shift = np.float64(m) if m != -np.inf else 0.0
    columns = targets.shape[1]
    for t in range(columns):
        x = load_element(element, row_address(rows, row) + targets[row, t] * rows.step)
        place = out + (row * columns + t) * element_size(out_element)
        store_element(out_element, place, type(m)((np.float64(x) - shift) - logarithm))


@njit(nogil=True, cache=True)
def finish_rows(element, out_element, rows, grid, results, first_row, last_row):
    """Merge the pieces of some rows and write what is asked for."""
    # An array taken from a tuple is counted, atomically: once, not once a row.
    all_m, all_l, targets = results.m, results.l, results.targets
    for row in range(first_row, last_row):
        m, l = merge_row(all_m, all_l, row, grid.pieces)
        if results.lse:
            place = results.lse + row * element_size(out_element)
            store_element(out_element, place, type(m)(log_sum_exp(m, l)))
        if targets.shape[1]:
            logarithm = math.log(l) if m != -np.inf else 0.0
            _write_logprobs(element, out_element, rows, row, m, logarithm, targets, results.logprobs)


@njit
def _do_short_rows(element, out_element, rows, length, results, first_row, last_row, working, scratch):
    """Summarise rows of at most SHORT elements and write what is asked for."""
    m, l, targets, lse_place = results.m.ctypes.data, results.l.ctypes.data, results.targets, results.lse
    columns, out = targets.shape[1], results.logprobs
    size, width = element_size(element), element_size(working)
    gathered, wide = scratch + SCRATCH * width, np.float64(0.0)
    keeping = results.l.size > 0
    shifts, logarithms = scratch, scratch + STRIP * 8
    for row in range(first_row, last_row, STRIP):
        held = min(STRIP, last_row - row)
        if in_place(element, rows, row, held):
            source, stride = row_address(rows, row), rows.stride
        else:
            gather_eight(element, rows, row, held, length, gathered)
            source, stride = gathered, SHORT * size
        top, total = summarise_eight(element, working, source, stride, length, False, scratch, 0, 0, 0)
        if keeping:
            store_carries(working, m, l, row, held, top, total)
        logarithm = log_of_sums(total)
        if lse_place:
            lse = narrowed(widened(top) + logarithm, top)
            infinite = splat(top, np.inf)
            place = lse_place + row * element_size(out_element)
            store_strip(out_element, place, where_equal(top, infinite, infinite, lse), held)
        if columns:
            store(wide, shifts, widened(shift_of(top)))
            store(wide, logarithms, logarithm)
            for r in range(held):
                shift, of_l = load_element(wide, shifts + r * 8), load_element(wide, logarithms + r * 8)
                for t in range(columns):
                    x = np.float64(load_element(element, source + r * stride + targets[row + r, t] * size))
                    place = out + ((row + r) * columns + t) * element_size(out_element)
                    store_element(out_element, place, type(working)((x - shift) - of_l))


@njit(nogil=True, cache=True)
def carry_rows(element, out_element, rows, grid, segments, units, counter, helpers, results):
    """Claim units of work until none is left; rows in one segment are finished with it."""
    m, l = results.m, results.l
    gathering = grid.length > SHORT and rows.step != element_size(element)
    # Memory that a thread takes and gives back interrupts the others: none is taken in vain.
    buffer = np.empty(GATHERED if gathering else 0, np.uint8)
    working = np.zeros(1, m.dtype)[0]
    scratch = np.empty(2 * SCRATCH if grid.length <= SHORT else 0, m.dtype)
    unit = claim(counter)
    while unit < units:
        first_row = unit // segments * grid.group
        last_row = min(grid.rows, first_row + grid.group)
        first = unit % segments * grid.segment * grid.piece
        last = min(grid.length, first + grid.segment * grid.piece)
        if grid.length <= SHORT:
            place = scratch.ctypes.data
            _do_short_rows(element, out_element, rows, last, results, first_row, last_row, working, place)
        else:
            place = buffer.ctypes.data
            summarise_group(element, rows, grid, first_row, last_row, first, last, m, l, place)
            if segments == 1:
                finish_rows(element, out_element, rows, grid, results, first_row, last_row)
        unit = claim(counter)
    await_helpers(counter, helpers)
