"""Rows too short for vectors along them: eight rows side by side, one in each lane of a strip.

A tile is a transposed copy in the working format, score j of row r at place 8·j + r, so that a reduction is a
loop of operations between vectors without any across lanes, and neither the strides of the rows nor their
length matter.
"""

import numpy as np
from numba import njit

from softcarry.cpu.exponential import exp
from softcarry.cpu.logarithm import log
from softcarry.cpu.memory import (
    block_lanes,
    element_size,
    filled_block,
    filled_strip,
    load_block,
    load_element,
    load_strip,
    store,
    store_element,
    store_partial,
    transpose,
)
from softcarry.cpu.row_layout import row_address
from softcarry.cpu.simd import (
    STRIP,
    count_above,
    count_not_below,
    folded_maximum,
    folded_sum,
    lanes_above,
    larger,
    repeated,
    splat,
    where_equal,
    widened,
)

SHORT = 128
"""Longest row that is taken in a tile."""

TILE = SHORT * STRIP
"""Elements of a tile."""


@njit(forceinline=True)
def _evenly_spaced(rows, first_row):
    """Return whether 8 rows are ``rows.stride`` apart: those of the innermost axis are."""
    return first_row % rows.length + STRIP <= rows.length


@njit
def load_tile(element, rows, first_row, held, length, tile):
    """Fill a tile with ``held`` rows, at most 8; the last fills what is left."""
    element_bytes, size = element_size(element), tile.itemsize
    place = tile.ctypes.data
    address = row_address(rows, first_row)
    done = 0
    if held == STRIP and _evenly_spaced(rows, first_row):
        if rows.stride == element_bytes:
            for j in range(length):
                store(tile[0], place + j * STRIP * size, load_strip(element, address + j * rows.step))
            return
        if rows.step == element_bytes:
            for j in range(0, length - STRIP + 1, STRIP):
                target = place + j * STRIP * size
                transpose(element, address + j * element_bytes, rows.stride, tile[0], target, STRIP * size)
            done = length - length % STRIP
    for r in range(STRIP):
        address = row_address(rows, first_row + min(r, held - 1))
        for j in range(done, length):
            x = load_element(element, address + j * rows.step)
            store_element(tile[0], place + (j * STRIP + r) * size, x)


@njit
def store_tile(element, rows, first_row, held, length, tile):
    """Write a tile to ``held`` rows."""
    element_bytes, size = element_size(element), tile.itemsize
    place = tile.ctypes.data
    address = row_address(rows, first_row)
    done = 0
    if held == STRIP and _evenly_spaced(rows, first_row):
        if rows.stride == element_bytes:
            for j in range(length):
                store(element, address + j * rows.step, load_strip(tile[0], place + j * STRIP * size))
            return
        if rows.step == element_bytes:
            for j in range(0, length - STRIP + 1, STRIP):
                source = place + j * STRIP * size
                transpose(tile[0], source, STRIP * size, element, address + j * element_bytes, rows.stride)
            done = length - length % STRIP
    for r in range(held):
        address = row_address(rows, first_row + r)
        for j in range(done, length):
            x = load_element(tile[0], place + (j * STRIP + r) * size)
            store_element(element, address + j * rows.step, x)


@njit(forceinline=True)
def summarise_tile(tile, length, terms):
    """Return the strips m and l of a tile's rows, and write e^(x − m) to a second tile."""
    size = STRIP * tile.itemsize
    place = tile.ctypes.data
    step = block_lanes(tile[0]) // STRIP
    whole = length - length % step
    tops = filled_block(tile[0], -np.inf)
    for j in range(0, whole, step):
        tops = larger(load_block(tile[0], place + j * size), tops)
    top = folded_maximum(tops)
    for j in range(whole, length):
        top = larger(load_strip(tile[0], place + j * size), top)
    shift = shift_of(top)
    shifts, sums = repeated(shift), filled_block(tile[0], 0.0)
    for j in range(0, whole, step):
        term = exp(load_block(tile[0], place + j * size) - shifts)
        store(tile[0], terms.ctypes.data + j * size, term)
        sums = sums + term
    total = folded_sum(sums)
    for j in range(whole, length):
        strip = exp(load_strip(tile[0], place + j * size) - shift)
        store(tile[0], terms.ctypes.data + j * size, strip)
        total = total + strip
    # The maximum has passed over a NaN; only a NaN is above infinity.
    if lanes_above(total, filled_strip(tile[0], np.inf)):
        top = _maximum_with_nan(tile, length, top, total)
    return top, total


@njit
def _maximum_with_nan(tile, length, top, total):
    """Return m with NaN in the rows that hold one: l is NaN too where m = +inf, which a NaN outranks."""
    found = np.empty(STRIP, tile.dtype)
    store(tile[0], found.ctypes.data, top)
    for r in range(STRIP):
        for j in range(length):
            x = tile[j * STRIP + r]
            if x != x:
                found[r] = x
    return load_strip(tile[0], found.ctypes.data)


@njit(forceinline=True)
def log_of_sums(l):
    """Return ln l of a strip in float64; 0 for empty rows, whose l is 0."""
    wide = widened(l)
    return log(where_equal(wide, splat(wide, 0.0), splat(wide, 1.0), wide))


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


@njit
def rank_tile(tile, length, ranks):
    """Write to the tile ``ranks`` how many scores of its row come before each; there must be no NaN.

    A higher score comes before, and among equals the lower index. All pairs are compared, without a branch,
    those of a block of scores with one other at a time.
    """
    size = STRIP * tile.itemsize
    place, out = tile.ctypes.data, ranks.ctypes.data
    step = block_lanes(tile[0]) // STRIP
    for i in range(0, length, step):
        # Beyond the last score the block reads, and ranks, what is left in the tile: nobody looks.
        x = load_block(tile[0], place + i * size)
        count = filled_block(tile[0], 0.0)
        for j in range(i):
            count = count_not_below(count, repeated(load_strip(tile[0], place + j * size)), x)
        for j in range(i + step, length):
            count = count_above(count, repeated(load_strip(tile[0], place + j * size)), x)
        store(tile[0], out + i * size, count)
        stop = min(i + step, length)
        for a in range(i, stop):
            strip, x_a = load_strip(tile[0], out + a * size), load_strip(tile[0], place + a * size)
            for b in range(i, a):
                strip = count_not_below(strip, load_strip(tile[0], place + b * size), x_a)
            for b in range(a + 1, stop):
                strip = count_above(strip, load_strip(tile[0], place + b * size), x_a)
            store(tile[0], out + a * size, strip)
