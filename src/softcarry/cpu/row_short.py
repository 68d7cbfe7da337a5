"""Rows too short for what a row costs by itself: eight are reduced together.

Vectors lie along the rows, sheets of four rows at a time. What is left of eight rows when their vectors have
been combined is transposed while it is combined further, so that eight rows cost as many operations across
lanes as one. Their maxima and sums then stand in the lanes of one strip, and so the logarithms and quotients
of eight rows are those of one.
"""

import numpy as np
from numba import njit

from softcarry.cpu.exponential import exp
from softcarry.cpu.memory import (
    element_size,
    filled_strip,
    keep,
    load_element,
    load_strip,
    prefetch,
    store,
    store_element,
    transpose,
)
from softcarry.cpu.row_layout import row_address
from softcarry.cpu.row_tiles import shift_of
from softcarry.cpu.row_vectors import (
    LINES,
    filled_sheet,
    line_lanes,
    line_maxima,
    line_sums,
    load_sheet,
    load_sheet_part,
    prefetch_to_write,
    spread_high,
    spread_low,
    store_sheet,
    store_sheet_part,
)
from softcarry.cpu.simd import STRIP, lanes_above, larger

SHORT = 128
"""Longest row that is taken with seven others."""

SCRATCH = STRIP * SHORT
"""Numbers of the working format that eight rows need."""


@njit(forceinline=True)
def _maxima(element, place, stride, length):
    """Return a sheet of the maxima of four rows, lane by lane."""
    size, lanes = element_size(element), line_lanes(element)
    whole = length - length % lanes
    tops = filled_sheet(element, -np.inf)
    for j in range(0, whole, lanes):
        tops = larger(load_sheet(element, place + j * size, stride), tops)
    if whole < length:
        tops = larger(load_sheet_part(element, place + whole * size, stride, length - whole), tops)
    return tops


@njit(forceinline=True)
def _sums(element, working, place, stride, length, shifts, keeping, terms, target, out_stride, out_size):
    """Return a sheet of the sums of e^(x − shift) of four rows, lane by lane, and keep the terms."""
    size, lanes, width = element_size(element), line_lanes(element), element_size(working)
    whole = length - length % lanes
    sums = filled_sheet(element, 0.0)
    for j in range(0, whole, lanes):
        # The next eight rows are fetched while these are computed.
        for r in range(LINES):
            prefetch(place + (STRIP + r) * stride + j * size)
            if target:
                prefetch_to_write(target + r * out_stride + j * out_size)
        term = exp(load_sheet(element, place + j * size, stride) - shifts)
        if keeping:
            store_sheet(working, terms + j * width, SHORT * width, term)
        sums = sums + term
    if whole < length:
        x = load_sheet_part(element, place + whole * size, stride, length - whole)
        term = exp(x - shifts)
        if keeping:
            store_sheet(working, terms + whole * width, SHORT * width, term)
        sums = sums + term
    return sums


@njit(forceinline=True)
def summarise_eight(element, working, source, stride, length, keeping, terms, target, out_stride, out_size):
    """Return the strips m and l of eight rows so many bytes apart, and keep e^(x − m), SHORT numbers a row.

    The places that the results will be written to are fetched meanwhile, unless ``target`` is 0.
    """
    other, other_terms = source + LINES * stride, terms + LINES * SHORT * element_size(working)
    low = _maxima(element, source, stride, length)
    high = _maxima(element, other, stride, length)
    top = line_maxima(low, high)
    shift = shift_of(top)
    low = _sums(
        element,
        working,
        source,
        stride,
        length,
        spread_low(shift),
        keeping,
        terms,
        target,
        out_stride,
        out_size,
    )
    high = _sums(
        element,
        working,
        other,
        stride,
        length,
        spread_high(shift),
        keeping,
        other_terms,
        target + LINES * out_stride if target else 0,
        out_stride,
        out_size,
    )
    total = line_sums(low, high)
    # The maximum has passed over a NaN; only a NaN is above infinity.
    if lanes_above(total, filled_strip(working, np.inf)):
        top = _maximum_with_nan(element, working, source, stride, length, top)
    return top, total


@njit
def _maximum_with_nan(element, working, source, stride, length, top):
    """Return m with NaN in the rows that hold one: l is NaN too where m = +inf, which a NaN outranks."""
    found = np.empty(STRIP, type(working))
    place = found.ctypes.data
    store(working, place, top)
    for r in range(STRIP):
        for j in range(length):
            x = load_element(element, source + r * stride + j * element_size(element))
            if x != x:
                store_element(working, place + r * element_size(working), x)
    top = load_strip(working, place)
    keep(found)
    return top


@njit(forceinline=True)
def _write_products(working, out_element, target, stride, length, factors, terms):
    lanes, width, out_size = line_lanes(working), element_size(working), element_size(out_element)
    whole = length - length % lanes
    for j in range(0, whole, lanes):
        product = load_sheet(working, terms + j * width, SHORT * width) * factors
        store_sheet(out_element, target + j * out_size, stride, product)
    if whole < length:
        product = load_sheet(working, terms + whole * width, SHORT * width) * factors
        store_sheet_part(out_element, target + whole * out_size, stride, product, length - whole)


@njit(forceinline=True)
def write_products(working, out_element, target, stride, length, factor, terms):
    """Write what `summarise_eight` has kept, times the factor of each row."""
    other = terms + LINES * SHORT * element_size(working)
    _write_products(working, out_element, target, stride, length, spread_low(factor), terms)
    target += LINES * stride
    _write_products(working, out_element, target, stride, length, spread_high(factor), other)


@njit(forceinline=True)
def _write_differences(element, out_element, source, stride, target, out_stride, length, shifts, logarithms):
    lanes, size, out_size = line_lanes(element), element_size(element), element_size(out_element)
    whole = length - length % lanes
    for j in range(0, whole, lanes):
        x = load_sheet(element, source + j * size, stride)
        store_sheet(out_element, target + j * out_size, out_stride, (x - shifts) - logarithms)
    if whole < length:
        x = load_sheet_part(element, source + whole * size, stride, length - whole)
        place = target + whole * out_size
        store_sheet_part(out_element, place, out_stride, (x - shifts) - logarithms, length - whole)


@njit(forceinline=True)
def write_differences(element, out_element, source, stride, target, out_stride, length, shift, logarithm):
    """Write (x − shift) − logarithm of eight rows."""
    first, second = spread_low(shift), spread_low(logarithm)
    _write_differences(element, out_element, source, stride, target, out_stride, length, first, second)
    source, target = source + LINES * stride, target + LINES * out_stride
    first, second = spread_high(shift), spread_high(logarithm)
    _write_differences(element, out_element, source, stride, target, out_stride, length, first, second)


@njit(forceinline=True)
def _evenly_spaced(rows, first_row):
    """Return whether 8 rows are ``rows.stride`` apart: those of the innermost axis are."""
    return first_row % rows.length + STRIP <= rows.length


@njit(forceinline=True)
def in_place(element, rows, first_row, held):
    """Whether there are eight rows from one on, contiguous and evenly spaced."""
    if rows.step != element_size(element) or held < STRIP:
        return False
    return rows.axes == 0 or _evenly_spaced(rows, first_row)


@njit
def gather_eight(element, rows, first_row, held, length, buffer):
    """Copy ``held`` rows, at most eight, to SHORT elements apart; the last fills what is left."""
    size = element_size(element)
    done = 0
    if held == STRIP and rows.stride == size and _evenly_spaced(rows, first_row):
        address = row_address(rows, first_row)
        done = length - length % STRIP
        for j in range(0, done, STRIP):
            transpose(element, address + j * rows.step, rows.step, element, buffer + j * size, SHORT * size)
    for r in range(STRIP):
        address = row_address(rows, first_row + min(r, held - 1))
        for j in range(done, length):
            x = load_element(element, address + j * rows.step)
            store_element(element, buffer + (r * SHORT + j) * size, x)


@njit
def scatter_eight(element, rows, first_row, held, length, buffer):
    """Copy ``held`` rows back: the reverse of `gather_eight`."""
    size = element_size(element)
    done = 0
    if held == STRIP and rows.stride == size and _evenly_spaced(rows, first_row):
        address = row_address(rows, first_row)
        done = length - length % STRIP
        for j in range(0, done, STRIP):
            transpose(element, buffer + j * size, SHORT * size, element, address + j * rows.step, rows.step)
    for r in range(held):
        address = row_address(rows, first_row + r)
        for j in range(done, length):
            x = load_element(element, buffer + (r * SHORT + j) * size)
            store_element(element, address + j * rows.step, x)
