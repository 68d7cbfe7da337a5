"""Softmax and log-softmax of all rows of an array: a carry, then one more reading, and the output."""

import math

import numpy as np
from numba import njit

from softcarry.cpu.exponential import exp
from softcarry.cpu.memory import (
    block_lanes,
    claim,
    element_size,
    fence,
    filled_block,
    filled_strip,
    load_block,
    load_partial,
    load_strip,
    store,
    store_partial,
    stream,
)
from softcarry.cpu.row_carries import GATHERED, merge_row, summarise_group
from softcarry.cpu.row_layout import gather, row_address, row_addresses, scatter
from softcarry.cpu.row_short import (
    SCRATCH,
    SHORT,
    gather_eight,
    in_place,
    scatter_eight,
    summarise_eight,
    write_differences,
    write_products,
)
from softcarry.cpu.row_signals import await_helpers
from softcarry.cpu.row_sums import CHUNK
from softcarry.cpu.row_tiles import log_of_sums, shift_of
from softcarry.cpu.simd import STRIP, narrowed, splat, where_equal


@njit(forceinline=True)
def _value(x, shift, factor, logarithms):
    return (x - shift) - factor if logarithms else exp(x - shift) * factor


@njit(forceinline=True)
def _write(element, out_element, source, target, count, shift, factor, logarithms, streaming):
    """Write e^(x − shift)·factor, or (x − shift) − factor, of contiguous elements."""
    size, out_size, lanes = element_size(element), element_size(out_element), block_lanes(element)
    shifts, factors = filled_strip(element, shift), filled_strip(element, factor)
    block_shifts, block_factors = filled_block(element, shift), filled_block(element, factor)
    end = source + count * size
    if streaming:
        # Streaming stores begin at a multiple of 64 bytes.
        while target % 64 and source < end:
            head = min(STRIP - 1, (end - source) // size, (64 - target % 64) // out_size)
            x = load_partial(element, source, head)
            store_partial(out_element, target, _value(x, shifts, factors, logarithms), head)
            source, target = source + head * size, target + head * out_size
        while source + lanes * size <= end:
            x = load_block(element, source)
            stream(out_element, target, _value(x, block_shifts, block_factors, logarithms))
            source, target = source + lanes * size, target + lanes * out_size
    while source + lanes * size <= end:
        x = load_block(element, source)
        store(out_element, target, _value(x, block_shifts, block_factors, logarithms))
        source, target = source + lanes * size, target + lanes * out_size
    while source + STRIP * size <= end:
        x = load_strip(element, source)
        store(out_element, target, _value(x, shifts, factors, logarithms))
        source, target = source + STRIP * size, target + STRIP * out_size
    if source < end:
        x = load_partial(element, source, (end - source) // size)
        store_partial(out_element, target, _value(x, shifts, factors, logarithms), (end - source) // size)


@njit
def write_exponentials(element, out_element, source, target, count, shift, factor, streaming):
    """Write e^(x − shift)·factor of ``count`` contiguous elements."""
    _write(element, out_element, source, target, count, shift, factor, False, streaming)


@njit
def _write_logarithms(element, out_element, source, target, count, shift, factor, streaming):
    _write(element, out_element, source, target, count, shift, factor, True, streaming)


@njit(forceinline=True)
def normaliser(m, l, logarithms, empty):
    """Return the shift, and 1/l or ln l, of a row; what an empty row has in place of either."""
    if m == -np.inf:
        return type(m)(0.0), type(m)(empty)
    return m, type(m)(math.log(l) if logarithms else 1.0 / l)


@njit(nogil=True, cache=True)
def write_group(
    element,
    out_element,
    rows,
    out,
    grid,
    m,
    l,
    logarithms,
    empty,
    streaming,
    first_row,
    last_row,
    first,
    last,
    buffer,
):
    """Write the elements ``first`` to ``last`` of rows whose carries are m, l (rows · pieces)."""
    size, out_size = element_size(element), element_size(out_element)
    if rows.step == size and out.step == out_size:
        for row in range(first_row, last_row):
            shift, factor = normaliser(m[row * grid.pieces], l[row * grid.pieces], logarithms, empty)
            source = row_address(rows, row) + first * size
            target = row_address(out, row) + first * out_size
            if logarithms:
                _write_logarithms(
                    element, out_element, source, target, last - first, shift, factor, streaming
                )
            else:
                write_exponentials(
                    element, out_element, source, target, last - first, shift, factor, streaming
                )
        return
    sources, targets = row_addresses(rows, first_row, last_row), row_addresses(out, first_row, last_row)
    results = buffer + GATHERED
    for begin in range(first, last, CHUNK):
        count = min(CHUNK, last - begin)
        gather(element, rows, sources, begin, count, buffer)
        for row in range(first_row, last_row):
            shift, factor = normaliser(m[row * grid.pieces], l[row * grid.pieces], logarithms, empty)
            source = buffer + (row - first_row) * count * size
            target = results + (row - first_row) * count * out_size
            if logarithms:
                _write_logarithms(element, out_element, source, target, count, shift, factor, False)
            else:
                write_exponentials(element, out_element, source, target, count, shift, factor, False)
        scatter(out_element, out, targets, begin, count, results)


@njit
def _write_short_rows(
    element, out_element, rows, out, length, logarithms, empty, first_row, last_row, working, scratch
):
    """Summarise and write rows of at most SHORT elements."""
    size, out_size = element_size(element), element_size(out_element)
    gathered = scratch + SCRATCH * element_size(working)
    scattered = gathered + SCRATCH * size
    for row in range(first_row, last_row, STRIP):
        held = min(STRIP, last_row - row)
        if in_place(element, rows, row, held):
            source, stride = row_address(rows, row), rows.stride
        else:
            gather_eight(element, rows, row, held, length, gathered)
            source, stride = gathered, SHORT * size
        direct = in_place(out_element, out, row, held)
        if direct:
            target, out_stride = row_address(out, row), out.stride
        else:
            target, out_stride = scattered, SHORT * out_size
        top, total = summarise_eight(
            element, working, source, stride, length, not logarithms, scratch, target, out_stride, out_size
        )
        without, of_empty = splat(top, -np.inf), splat(top, empty)
        if logarithms:
            logarithm = where_equal(top, without, of_empty, narrowed(log_of_sums(total), top))
            shift = shift_of(top)
            write_differences(
                element, out_element, source, stride, target, out_stride, length, shift, logarithm
            )
        else:
            factor = where_equal(top, without, of_empty, splat(top, 1.0) / total)
            write_products(working, out_element, target, out_stride, length, factor, scratch)
        if not direct:
            scatter_eight(out_element, out, row, held, length, scattered)


@njit(nogil=True, cache=True)
def softmax_rows(
    element,
    out_element,
    rows,
    out,
    grid,
    segments,
    units,
    counter,
    helpers,
    m,
    l,
    summarising,
    logarithms,
    empty,
    streaming,
):
    """Claim units of work until none is left: summarise and write whole rows, or one of the two for segments.

    Rows of several segments take two calls: all are summarised before any is written.
    """
    direct = rows.step == element_size(element) and out.step == element_size(out_element)
    buffer = np.empty(0 if direct or grid.length <= SHORT else 3 * GATHERED, np.uint8)
    working = np.zeros(1, m.dtype)[0]
    # The last part is for rows that are gathered, and scattered.
    scratch = np.empty(3 * SCRATCH if grid.length <= SHORT else 0, m.dtype)
    unit = claim(counter)
    while unit < units:
        first_row = unit // segments * grid.group
        last_row = min(grid.rows, first_row + grid.group)
        first = unit % segments * grid.segment * grid.piece
        last = min(grid.length, first + grid.segment * grid.piece)
        if grid.length <= SHORT:
            _write_short_rows(
                element,
                out_element,
                rows,
                out,
                grid.length,
                logarithms,
                empty,
                first_row,
                last_row,
                working,
                scratch.ctypes.data,
            )
            unit = claim(counter)
            continue
        if summarising:
            place = buffer.ctypes.data
            summarise_group(element, rows, grid, first_row, last_row, first, last, m, l, place)
            if segments == 1:
                for row in range(first_row, last_row):
                    merge_row(m, l, row, grid.pieces)
        if not summarising or segments == 1:
            write_group(
                element,
                out_element,
                rows,
                out,
                grid,
                m,
                l,
                logarithms,
                empty,
                streaming,
                first_row,
                last_row,
                first,
                last,
                buffer.ctypes.data,
            )
        unit = claim(counter)
    if streaming:
        fence()
    await_helpers(counter, helpers)
