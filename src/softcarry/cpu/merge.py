"""Merging partials of rows: every partial is read once, every result written once.

A *run* is a stretch of neighbouring rows. Its maxima and weights are found eight rows abreast; then each row
is written, a block of values at a time, as the sum of weight times value over the partials that are not
empty. The values of an empty partial are not read at all, so nothing that they may hold reaches a result, and
the sum of a row is the same wherever its empty partials stand.

Weights are float64. float32 values are summed in float64 and rounded once, which costs nothing in a kernel
that waits for memory; the two 16-bit types are summed in float32. Products and sums are rounded each by
itself: a fused product would make the sum of two partials depend on their order.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from softcarry.cpu.exponential import exp, exp2
from softcarry.cpu.memory import (
    claim,
    element_size,
    fence,
    keep,
    load_byte,
    load_element,
    load_integer,
    load_strip,
    store,
    store_element,
    store_integer,
)
from softcarry.cpu.merge_sums import write_row
from softcarry.cpu.row_tiles import log_of_sums, shift_of
from softcarry.cpu.simd import STRIP, larger, splat, where_equal

# Integers of a field in the table, before the strides of the outer axes.
ADDRESS, STEP, VALUES, INNER, OUTER = 0, 1, 2, 3, 4

# Fields of an entry of the table.
O, M, L, MASK = 0, 1, 2, 3

_EMPTY = -1.0
"""Stands for the weight of an empty partial: a weight of 0 is that of a live one which underflowed."""

_LOG2E = 1.4426950408889634


class Merge(NamedTuple):
    """What is merged, and how the work is cut up: numbers and addresses only.

    Rows are those of the innermost axis, ``inner`` of them, at ``places`` places of the outer axes. A table
    has an entry for each array of partials, or one for all that are stacked, and a last one for the result;
    an entry has a field for each of o, m (or lse), l and the mask of rows: address, stride between partials
    (or groups, for the result), between values, between rows, and along the outer axes, all in bytes. Address
    0 is for a field that is not there.
    """

    table: int
    arrays: int
    """Entries beside that of the result."""
    lengths: int
    """Address of the lengths of the outer axes."""
    outer: int
    """How many outer axes."""
    places: int
    inner: int
    indptr: int
    """Address of the partial at which each group begins, (groups + 1,) int64."""
    groups: int
    longest: int
    """Partials of the longest group."""
    dv: int
    run: int
    """Rows of a run, a multiple of 8."""
    unit: int
    """Runs of a unit of work."""
    normalised: bool
    """Whether o is the output and m the lse; else o is relative to m, and there is l."""
    binary: bool
    """Whether m and lse are in base 2."""
    streaming: bool
    """Whether the result is written past the caches."""


class _Scratch(NamedTuple):
    """Addresses of what a thread keeps for a run, and for a row of it."""

    weights: int
    """Of partial p and row r at 8·(p·run + r)."""
    sums: int
    """Of the weights of each row."""
    lse: int
    """m, or the log-sum-exp, of each row."""
    l: int
    other_l: int
    o: int
    """For each partial: address of its values in the first row of the run, strides of rows and of values."""
    live: int
    """For each partial of a row that is not empty: address of its values, strides of rows and of values."""
    live_weights: int
    buffer: int
    """Room for eight values."""


@njit(forceinline=True)
def _field(merge, entry, field):
    """Address of a field of an entry of the table."""
    return merge.table + 8 * (4 * entry + field) * (OUTER + merge.outer)


@njit
def _row_place(merge, field, index, place, row):
    """Address of a row, of a partial or group of an index, in the memory that a field describes."""
    address = (
        load_integer(field) + index * load_integer(field + 8 * STEP) + row * load_integer(field + 8 * INNER)
    )
    for axis in range(merge.outer - 1, -1, -1):
        length = load_integer(merge.lengths + 8 * axis)
        address += place % length * load_integer(field + 8 * (OUTER + axis))
        place //= length
    return address


@njit(forceinline=True)
def _partial_place(merge, field, partial, place, row):
    entry = partial if merge.arrays > 1 else 0
    return _row_place(merge, _field(merge, entry, field), partial, place, row)


@njit(forceinline=True)
def _gather(state, source, stride, count, target):
    """Copy ``count`` numbers of m or l to float64, and fill up the last strip with −inf."""
    double = np.float64(0.0)
    for r in range(count):
        store_element(double, target + 8 * r, np.float64(load_element(state, source + r * stride)))
    for r in range(count, -(-count // STRIP) * STRIP):
        store_element(double, target + 8 * r, -np.inf)


@njit(forceinline=True)
def _power(x, binary):
    return exp2(x) if binary else exp(x)


@njit
def _weigh_strip(merge, scratch, partials, row):
    """Put weights in place of m in the strip of eight rows, and find their sums and log-sum-exps."""
    double = np.float64(0.0)
    step = 8 * merge.run
    first = scratch.weights + 8 * row
    top = load_strip(double, first)
    for p in range(1, partials):
        top = larger(load_strip(double, first + p * step), top)
    shift, nothing = shift_of(top), splat(top, -np.inf)
    empty, total = splat(top, _EMPTY), splat(top, 0.0)
    for p in range(partials):
        m = load_strip(double, first + p * step)
        weight = _power(m - shift, merge.binary)
        total = total + weight
        store(double, first + p * step, where_equal(m, nothing, empty, weight))
    store(double, scratch.sums + 8 * row, total)
    if merge.normalised:
        gain = log_of_sums(total)
        if merge.binary:
            gain = gain * splat(gain, _LOG2E)
        # Not −0.0 + ln 1, which is 0.0; nor inf + NaN.
        lse = where_equal(total, splat(top, 1.0), top, top + gain)
        top = where_equal(top, splat(top, np.inf), top, lse)
    store(double, scratch.lse + 8 * row, top)


@njit
def _sum_l(merge, scratch, state, first, last, place, row, count):
    """Write Σ weight·l of the rows of a run."""
    double = np.float64(0.0)
    for r in range(0, count, STRIP):
        store(double, scratch.l + 8 * r, splat(load_strip(double, scratch.lse), -0.0))
    for p in range(first, last):
        source = _partial_place(merge, L, p, place, row)
        stride = load_integer(_field(merge, p if merge.arrays > 1 else 0, L) + 8 * INNER)
        _gather(state, source, stride, count, scratch.other_l)
        for r in range(0, count, STRIP):
            l, weight = load_strip(double, scratch.other_l + 8 * r), _weights_of(merge, scratch, p - first, r)
            total = load_strip(double, scratch.l + 8 * r)
            live = total + l * weight
            store(double, scratch.l + 8 * r, where_equal(weight, splat(weight, _EMPTY), total, live))


@njit(forceinline=True)
def _weights_of(merge, scratch, partial, row):
    return load_strip(np.float64(0.0), scratch.weights + 8 * (partial * merge.run + row))


@njit(forceinline=True)
def _live_partials(merge, scratch, partials, row, total, size):
    """List the partials of a row that are not empty; return how many there are, and if all are contiguous."""
    double = np.float64(0.0)
    factor = 1.0 / total if merge.normalised and total > 0.0 else 1.0
    live, contiguous = 0, True
    for p in range(partials):
        weight = load_element(double, scratch.weights + 8 * (p * merge.run + row))
        if weight != _EMPTY:
            o = scratch.o + 24 * p
            values = load_integer(o + 16)
            stride, listed = load_integer(o + 8), scratch.live + 24 * live
            store_integer(listed, load_integer(o) + row * stride)
            store_integer(listed + 8, stride)
            store_integer(listed + 16, values)
            store_element(double, scratch.live_weights + 8 * live, weight * factor)
            contiguous = contiguous and values == size
            live += 1
    return live, contiguous


@njit
def _has_nan(merge, state, first, last, place, row):
    for p in range(first, last):
        m = load_element(state, _partial_place(merge, M, p, place, row))
        if m != m:
            return True
    return False


@njit
def _fill(element, target, step, count, number):
    for j in range(count):
        store_element(element, target + j * step, number)


@njit
def _weigh(state, merge, scratch, first, last, place, row, count):
    """Find weights, their sums, log-sum-exps and l of the rows of a run, and where the values lie."""
    double = np.float64(0.0)
    for p in range(first, last):
        entry, at = p if merge.arrays > 1 else 0, p - first
        m, o = _field(merge, entry, M), _field(merge, entry, O)
        target = scratch.weights + 8 * at * merge.run
        _gather(state, _row_place(merge, m, p, place, row), load_integer(m + 8 * INNER), count, target)
        store_integer(scratch.o + 24 * at, _row_place(merge, o, p, place, row))
        store_integer(scratch.o + 24 * at + 8, load_integer(o + 8 * INNER))
        store_integer(scratch.o + 24 * at + 16, load_integer(o + 8 * VALUES))
    if last == first:
        _fill(double, scratch.sums, 8, count, 0.0)
        _fill(double, scratch.lse, 8, count, -np.inf)
        return
    for r in range(0, count, STRIP):
        _weigh_strip(merge, scratch, last - first, r)
    if not merge.normalised:
        _sum_l(merge, scratch, state, first, last, place, row, count)


@njit
def _merge_run(element, state, merge, run, scratch):
    double, size = np.float64(0.0), element_size(element)
    chunks = -(-merge.inner // merge.run)
    row = run % chunks * merge.run
    count = min(merge.run, merge.inner - row)
    place = run // chunks % merge.places
    group = run // chunks // merge.places
    first, last = load_integer(merge.indptr + 8 * group), load_integer(merge.indptr + 8 * group + 8)
    _weigh(state, merge, scratch, first, last, place, row, count)
    o, m = _field(merge, merge.arrays, O), _field(merge, merge.arrays, M)
    l, mask = _field(merge, merge.arrays, L), _field(merge, merge.arrays, MASK)
    o_place, m_place = _row_place(merge, o, group, place, row), _row_place(merge, m, group, place, row)
    l_place, mask_place = _row_place(merge, l, group, place, row), _row_place(merge, mask, group, place, row)
    o_stride, m_stride = load_integer(o + 8 * INNER), load_integer(m + 8 * INNER)
    l_stride, mask_stride = load_integer(l + 8 * INNER), load_integer(mask + 8 * INNER)
    step = load_integer(o + 8 * VALUES)
    for r in range(count):
        if mask_place and not load_byte(mask_place + r * mask_stride):
            continue
        target = o_place + r * o_stride
        total = load_element(double, scratch.sums + 8 * r)
        live, contiguous = _live_partials(merge, scratch, last - first, r, total, size)
        row_m, row_l = load_element(double, scratch.lse + 8 * r), load_element(double, scratch.l + 8 * r)
        if total != total:
            if row_m != np.inf or _has_nan(merge, state, first, last, place, row + r):
                row_m = np.nan
            row_l = np.nan
            _fill(element, target, step, merge.dv, np.nan)
        elif live == 0:
            row_l = 0.0
            _fill(element, target, step, merge.dv, 0.0)
        else:
            write_row(
                element,
                scratch.live,
                scratch.live_weights,
                live,
                contiguous and step == size,
                target,
                step,
                merge.dv,
                merge.streaming,
                scratch.buffer,
            )
        store_element(state, m_place + r * m_stride, type(state)(row_m))
        if not merge.normalised:
            store_element(state, l_place + r * l_stride, type(state)(row_l))


@njit(nogil=True, cache=True)
def merge_rows(element, state, merge, runs, units, counter):
    """Claim units of work until none is left."""
    rows = merge.run
    numbers = np.empty(merge.longest * (rows + 1) + 4 * rows + STRIP)
    integers = np.empty(6 * merge.longest, np.int64)
    place, integer_place = numbers.ctypes.data, integers.ctypes.data
    scratch = _Scratch(
        place + 32 * rows,
        place,
        place + 8 * rows,
        place + 16 * rows,
        place + 24 * rows,
        integer_place,
        integer_place + 24 * merge.longest,
        place + 8 * (4 + merge.longest) * rows,
        place + 8 * ((4 + merge.longest) * rows + merge.longest),
    )
    unit = claim(counter.ctypes.data)
    while unit < units:
        for run in range(unit * merge.unit, min(runs, (unit + 1) * merge.unit)):
            _merge_run(element, state, merge, run, scratch)
        unit = claim(counter.ctypes.data)
    if merge.streaming:
        fence()
    keep(numbers)
    keep(integers)
