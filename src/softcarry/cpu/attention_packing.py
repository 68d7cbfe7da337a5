"""Blocks of queries, keys and values as the products read them: in the working type, contiguous, in cache.

Queries are transposed in panels of as many rows as a vector block has lanes, and multiplied by the scale;
keys lie one below the other; values lie in panels of as many columns. Beyond the last row or column are
zeros.
"""

from numba import njit

from softcarry.cpu.attention_layout import in_one_piece, key_address, value_address
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
    transpose,
)
from softcarry.cpu.simd import STRIP, fma, lane_sum


@njit
def pack_queries(element, like, source, token, step, rows, d, scale, target):
    """Write up to a panel of query rows, transposed and multiplied by the scale, (d, lanes)."""
    size, lanes = element_size(like), block_lanes(element)
    stride = lanes * size
    whole = rows // STRIP * STRIP if step == element_size(element) else 0
    across = d // STRIP * STRIP
    nothing = filled_block(element, 0.0)
    if rows < lanes:
        for c in range(d):
            store(like, target + c * stride, nothing)
    for row in range(0, whole, STRIP):
        for c in range(0, across, STRIP):
            place = source + row * token + c * step
            transpose(element, place, token, like, target + c * stride + row * size, stride)
    for row in range(rows):
        for c in range(across if row < whole else 0, d):
            number = load_element(element, source + row * token + c * step)
            store_element(like, target + c * stride + row * size, number)
    factor = filled_block(element, scale)
    for c in range(d):
        place = target + c * stride
        store(like, place, load_block(like, place) * factor)


@njit(forceinline=True)
def _pack_vector(element, like, source, step, count, target):
    """Copy a vector, converted."""
    size, out_size = element_size(element), element_size(like)
    c = 0
    if step == size:
        lanes = block_lanes(element)
        while c + lanes <= count:
            store(like, target + c * out_size, load_block(element, source + c * size))
            c += lanes
        while c + STRIP <= count:
            store(like, target + c * out_size, load_strip(element, source + c * size))
            c += STRIP
    while c < count:
        store_element(like, target + c * out_size, load_element(element, source + c * step))
        c += 1


@njit
def pack_keys(element, like, problem, sequence, head, first, last, target):
    """Write keys one below the other, (last − first, d)."""
    d = problem.d
    if in_one_piece(problem, first, last):
        source = key_address(problem, sequence, head, first)
        for j in range(last - first):
            place = source + j * problem.k.token
            _pack_vector(element, like, place, problem.k.step, d, target + j * d * element_size(like))
        return
    for j in range(first, last):
        place = key_address(problem, sequence, head, j)
        _pack_vector(element, like, place, problem.k.step, d, target + (j - first) * d * element_size(like))


@njit
def pack_value_rows(element, like, problem, sequence, head, first, last, row, target):
    """Write values one below the other, ``row`` bytes apart, with zeros to the end of their last block."""
    size, lanes, dv = element_size(like), block_lanes(element), problem.dv
    for j in range(last - first):
        place = target + j * row
        store(like, place + (dv - 1) // lanes * lanes * size, filled_block(element, 0.0))
        source = value_address(problem, sequence, head, first + j)
        _pack_vector(element, like, source, problem.v.step, dv, place)


@njit
def pack_values(element, like, problem, sequence, head, first, last, panel, target):
    """Write values in panels of columns, each (panel, lanes), and return whether all are finite."""
    size, lanes, dv = element_size(like), block_lanes(element), problem.dv
    step, stride = problem.v.step, lanes * size
    direct = step == element_size(element)
    one_piece = in_one_piece(problem, first, last)
    start = value_address(problem, sequence, head, first)
    # 0·v summed is 0, or NaN if any v is infinite or NaN.
    nothing = filled_block(element, 0.0)
    zero_strip = filled_strip(element, 0.0)
    zeros, strip_zeros, last_zeros = nothing, zero_strip, 0.0
    for column in range(0, dv, lanes):
        width = min(lanes, dv - column)
        place = target + column * panel * size
        for j in range(last - first):
            source = start + j * problem.v.token
            if not one_piece:
                source = value_address(problem, sequence, head, first + j)
            source += column * step
            row = place + j * stride
            if width == lanes and direct:
                block = load_block(element, source)
                zeros = fma(block, nothing, zeros)
                store(like, row, block)
                continue
            store(like, row, nothing)
            c = 0
            if direct:
                while c + STRIP <= width:
                    strip = load_strip(element, source + c * step)
                    strip_zeros = fma(strip, zero_strip, strip_zeros)
                    store(like, row + c * size, strip)
                    c += STRIP
            while c < width:
                number = load_element(element, source + c * step)
                last_zeros += number * 0.0
                store_element(like, row + c * size, number)
                c += 1
    return lane_sum(zeros) + lane_sum(strip_zeros) + last_zeros == 0
