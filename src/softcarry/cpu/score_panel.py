"""A panel of scores: the keys of a block by as many queries as a vector has lanes.

Scores lie transposed, one key below the other, so that a row's maximum and sum need no reduction across
lanes. What is masked becomes −inf, by selection.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types

from softcarry.cpu.exponential import exp_in_sum
from softcarry.cpu.hyperbolic import tanh
from softcarry.cpu.memory import element_size, load_byte, load_element, store, store_element, transpose
from softcarry.cpu.simd import (
    BLOCK,
    STRIP,
    Vector,
    broadcast,
    fma,
    intrinsic,
    lane_numbers,
    larger,
    splat,
    where_equal,
    where_less,
)


class Block(NamedTuple):
    """Panels as wide as a vector block, of a working type that a scalar stands for."""

    working: np.floating


class Strip(NamedTuple):
    """Panels as wide as a strip, of a working type that a scalar stands for."""

    working: np.floating


def _vector(panel):
    scalar = panel.types[0]
    return Vector(scalar, BLOCK[scalar] if panel.instance_class is Block else STRIP)


@intrinsic
def panel_lanes(typingctx, panel):
    """Return the queries of a panel, as a constant."""
    lanes = _vector(panel).lanes
    return types.intp(panel), lambda context, builder, sig, args: ir.Constant(ir.IntType(64), lanes)


@intrinsic
def load_panel(typingctx, panel, address):
    """Load the scores of one key."""
    vector = _vector(panel)

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[1], vector.llvm.as_pointer())
        return builder.load(pointer, align=1)

    return vector(panel, types.intp), generate


@intrinsic
def filled_panel(typingctx, panel, number):
    """Return a vector with a number in the lane of each query."""
    vector = _vector(panel)

    def generate(context, builder, signature, arguments):
        return broadcast(builder, vector, context.cast(builder, arguments[1], number, vector.scalar))

    return vector(panel, number), generate


@njit(forceinline=True)
def panel_numbers(panel):
    """Return 0, 1, 2, … in the lanes of a panel."""
    return lane_numbers(filled_panel(panel, 0.0))


_FAR = 2**16
"""Keys: more than a block and the lanes of a vector."""


@njit
def cap_scores(panel, scores, begin, end, softcap):
    """Replace scores s by softcap·tanh(s/softcap)."""
    stride = panel_lanes(panel) * element_size(panel.working)
    cap = filled_panel(panel, softcap)
    for j in range(begin, end):
        place = scores + j * stride
        store(panel.working, place, cap * tanh(load_panel(panel, place) / cap))


@njit(forceinline=True)
def _in_lanes(panel, lane, rows, new, old):
    """Return what is new in so many lanes from one on, and what was in the others."""
    numbers = panel_numbers(panel)
    from_lane = where_less(numbers, splat(numbers, float(lane)), old, new)
    return where_less(numbers, splat(numbers, float(lane + rows)), from_lane, old)


_LARGEST = float(np.finfo(np.float32).max)
_ABREAST = 8
"""Keys whose pairs with the rows of a panel are transposed together."""


@njit(forceinline=True)
def _transpose_pairs(panel, element, source, row_step, target):
    """Write what stands for eight keys and each row of a panel, keys contiguous in memory, as a panel."""
    size = element_size(panel.working)
    for row in range(0, panel_lanes(panel), STRIP):
        place, stride = target + row * size, panel_lanes(panel) * size
        transpose(element, source + row * row_step, row_step, panel.working, place, stride)


@njit
def _add_transposed(panel, element, source, row_step, scores, begin, end, scratch):
    """Add the bias of all rows for whole groups of keys, contiguous in memory, and return the next key."""
    stride = panel_lanes(panel) * element_size(panel.working)
    none = filled_panel(panel, -np.inf)
    while begin + _ABREAST <= end:
        _transpose_pairs(panel, element, source + begin * element_size(element), row_step, scratch)
        for j in range(_ABREAST):
            bias, place = load_panel(panel, scratch + j * stride), scores + (begin + j) * stride
            # A masked key stays masked, whatever its score is, NaN and +inf among them.
            store(panel.working, place, where_equal(bias, none, none, load_panel(panel, place) + bias))
        begin += _ABREAST
    return begin


@njit(forceinline=True)
def _bias(panel, element, address):
    """Load a bias. One that is finite stays so in the working type: −inf masks."""
    bias = np.float64(load_element(element, address))
    if element_size(panel.working) == 4 and -np.inf < bias < np.inf:
        return min(max(bias, -_LARGEST), _LARGEST)
    return bias


@njit
def add_bias(panel, element, source, key_step, row_step, lane, rows, scores, begin, end, scratch):
    """Add a bias, of one of four element types, to the scores of so many rows from a lane on.

    ``source`` is the address of the bias of the first of them and of the panel's key 0. ``scratch`` is the
    address of room for eight keys of a panel, or 0.

    One loop for each type: LLVM 22 takes a choice between several numbers that a loop does not change out of
    it, and, where the loop goes round once, loses one of them. A bfloat16 was read as a float16.
    """
    if element == 0:
        _add(panel, np.float32(0), source, key_step, row_step, lane, rows, scores, begin, end, scratch)
    elif element == 1:
        _add(panel, np.float64(0), source, key_step, row_step, lane, rows, scores, begin, end, scratch)
    elif element == 2:
        _add(panel, np.uint16(0), source, key_step, row_step, lane, rows, scores, begin, end, scratch)
    else:
        _add(panel, np.int16(0), source, key_step, row_step, lane, rows, scores, begin, end, scratch)


@njit
def _add(panel, element, source, key_step, row_step, lane, rows, scores, begin, end, scratch):
    stride = panel_lanes(panel) * element_size(panel.working)
    none = filled_panel(panel, -np.inf)
    whole = scratch != 0 and rows == panel_lanes(panel) and key_step == element_size(element)
    if element_size(panel.working) == 4 and element_size(element) <= 4 and whole:
        begin = _add_transposed(panel, element, source, row_step, scores, begin, end, scratch)
    for j in range(begin, end):
        first, place = source + j * key_step, scores + j * stride
        if row_step == 0:
            bias, before = filled_panel(panel, _bias(panel, element, first)), load_panel(panel, place)
            after = where_equal(bias, none, none, before + bias)
            store(panel.working, place, _in_lanes(panel, lane, rows, after, before))
            continue
        for row in range(rows):
            bias = _bias(panel, element, first + row * row_step)
            at = place + (lane + row) * element_size(panel.working)
            number = load_element(panel.working, at)
            number = type(number)(number + bias) if bias > -np.inf or bias != bias else type(number)(-np.inf)
            store_element(panel.working, at, number)


@njit
def subtract_distances(panel, queries, here, slopes, scores, begin, end):
    """Subtract ALiBi's slopes times the distance from the position of each row to each key.

    A row stands at ``here`` plus its number in ``queries``, counted from the panel's key 0.
    """
    stride = panel_lanes(panel) * element_size(panel.working)
    zero = filled_panel(panel, -0.0)
    places = queries + splat(zero, float(here))
    for j in range(begin, end):
        gap = splat(zero, float(j)) - places
        place = scores + j * stride
        store(panel.working, place, load_panel(panel, place) - slopes * larger(gap, zero - gap))


@njit
def hide_by_mask(panel, source, key_step, row_step, lane, rows, scores, begin, end, scratch):
    """Select away the scores that a mask forbids, of so many rows from a lane on.

    ``source`` is the address of the mask of the first of them and of the panel's key 0. ``scratch`` is the
    address of room for eight keys of a panel, or 0.
    """
    size = element_size(panel.working)
    stride = panel_lanes(panel) * size
    hidden, zero = filled_panel(panel, -np.inf), filled_panel(panel, 0.0)
    if scratch != 0 and rows == panel_lanes(panel) and size == 4 and key_step == 1 and row_step != 0:
        while begin + _ABREAST <= end:
            _transpose_pairs(panel, np.int8(0), source + begin, row_step, scratch)
            for j in range(_ABREAST):
                allowed, place = load_panel(panel, scratch + j * stride), scores + (begin + j) * stride
                score = load_panel(panel, place)
                store(panel.working, place, where_equal(allowed, zero, hidden, score))
            begin += _ABREAST
    for j in range(begin, end):
        first, place = source + j * key_step, scores + j * stride
        if row_step == 0:
            if load_byte(first) == 0:
                before = load_panel(panel, place)
                store(panel.working, place, _in_lanes(panel, lane, rows, hidden, before))
            continue
        for row in range(rows):
            if load_byte(first + row * row_step) == 0:
                store_element(panel.working, place + (lane + row) * size, type(panel.working)(-np.inf))


@njit
def hide_by_position(panel, queries, here, left, right, scores, begin, end):
    """Select away the scores of keys that a row does not see from where it stands.

    A row stands at ``here`` plus its number in ``queries``, counted from the panel's key 0.
    """
    stride = panel_lanes(panel) * element_size(panel.working)
    none = filled_panel(panel, -np.inf)
    # Positions are cut to what lies beyond the block on either side: they are exact in any sequence.
    last = queries + splat(none, float(min(max(here + right, -_FAR), _FAR)))
    first = queries + splat(none, float(min(max(here - left, -_FAR), _FAR)))
    for j in range(begin, end):
        place = scores + j * stride
        at = splat(none, float(j))
        block = load_panel(panel, place)
        block = where_less(last, at, none, block)
        store(panel.working, place, where_less(at, first, none, block))


@njit(forceinline=True)
def _maximum(panel, scores, begin, end, top):
    """Return the maximum of scores and ``top``, in four parts that do not wait for each other."""
    stride = panel_lanes(panel) * element_size(panel.working)
    second, third, fourth = top, top, top
    whole = begin + (end - begin) // 4 * 4
    for j in range(begin, whole, 4):
        place = scores + j * stride
        top = larger(load_panel(panel, place), top)
        second = larger(load_panel(panel, place + stride), second)
        third = larger(load_panel(panel, place + 2 * stride), third)
        fourth = larger(load_panel(panel, place + 3 * stride), fourth)
    for j in range(whole, end):
        top = larger(load_panel(panel, scores + j * stride), top)
    return larger(larger(top, second), larger(third, fourth))


@njit
def absorb_scores(panel, scores, terms, begin, end, m, l, factors, threshold):
    """Absorb scores into m and l, store their terms e^(s − m), and write the factors of the running output.

    The terms may take the place of the scores. m, l and the factors are the addresses of a number a row of
    the panel. With a threshold, m moves only where it would grow by more.
    """
    stride = panel_lanes(panel) * element_size(panel.working)
    before = load_panel(panel, m)
    top = _maximum(panel, scores, begin, end, before)
    top = where_less(before + filled_panel(panel, threshold), top, top, before)
    none = filled_panel(panel, -np.inf)
    shift = where_equal(top, none, filled_panel(panel, 0.0), top)
    factor = exp_in_sum(before - shift)
    total = filled_panel(panel, -0.0)
    for j in range(begin, end):
        term = exp_in_sum(load_panel(panel, scores + j * stride) - shift)
        store(panel.working, terms + j * stride, term)
        total = total + term
    store(panel.working, m, top)
    store(panel.working, factors, factor)
    store(panel.working, l, fma(load_panel(panel, l), factor, total))
