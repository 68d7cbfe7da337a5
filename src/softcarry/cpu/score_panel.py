"""A panel of scores: the keys of a block by as many queries as a vector has lanes.

Scores lie transposed, one key below the other, so that a row's maximum and sum need no reduction across
lanes. What is masked becomes −inf, by selection.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types

from softcarry.cpu.attention_layout import (
    bias_address,
    load_bias,
    mask_address,
    position,
)
from softcarry.cpu.exponential import exp_in_sum
from softcarry.cpu.hyperbolic import tanh
from softcarry.cpu.memory import element_size, load_byte, load_element, store, store_element
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
    """Queries of a panel, as a constant."""
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


@njit
def add_bias(panel, problem, sequence, head, query, rows, key, scores, begin, end):
    """Add the bias of each pair; ``key`` is the key of row 0 of the panel."""
    stride = panel_lanes(panel) * element_size(panel.working)
    none = filled_panel(panel, -np.inf)
    for j in range(begin, end):
        source = bias_address(problem, sequence, head, query, key + j)
        place = scores + j * stride
        if problem.bias.query == 0:
            bias = filled_panel(panel, load_bias(problem.bias.element, source))
            store(panel.working, place, where_equal(bias, none, none, load_panel(panel, place) + bias))
            continue
        for row in range(rows):
            bias = load_bias(problem.bias.element, source + row * problem.bias.query)
            number = load_element(panel.working, place + row * element_size(panel.working))
            # A masked key stays masked, whatever its score is, NaN and +inf among them.
            number = type(number)(number + bias) if bias > -np.inf or bias != bias else type(number)(-np.inf)
            store_element(panel.working, place + row * element_size(panel.working), number)


@njit
def subtract_distances(panel, problem, sequence, head, query, key, scores, begin, end):
    """Subtract ALiBi's slope times the distance from a query's position to each key."""
    size = element_size(panel.working)
    stride = panel_lanes(panel) * size
    places = problem.slopes + sequence.number * problem.sequence_slopes
    slope = filled_panel(panel, load_element(panel.working, places + head * size))
    zero = filled_panel(panel, -0.0)
    here = lane_numbers(zero) + splat(zero, float(position(problem, sequence, query) - key))
    for j in range(begin, end):
        gap = splat(zero, float(j)) - here
        place = scores + j * stride
        store(panel.working, place, load_panel(panel, place) - slope * larger(gap, zero - gap))


@njit
def hide_by_mask(panel, problem, sequence, head, query, rows, key, scores, begin, end):
    """Select away the scores whose pair the mask forbids."""
    size = element_size(panel.working)
    stride = panel_lanes(panel) * size
    hidden = filled_panel(panel, -np.inf)
    for j in range(begin, end):
        source = mask_address(problem, sequence, head, query, key + j)
        place = scores + j * stride
        if problem.mask.query == 0:
            if load_byte(source) == 0:
                store(panel.working, place, hidden)
            continue
        for row in range(rows):
            if load_byte(source + row * problem.mask.query) == 0:
                store_element(panel.working, place + row * size, type(panel.working)(-np.inf))


@njit
def hide_by_position(panel, problem, sequence, query, key, scores, begin, end):
    """Select away the scores of keys that a query does not see from where it stands."""
    lanes = panel_lanes(panel)
    stride = lanes * element_size(panel.working)
    none = filled_panel(panel, -np.inf)
    # Positions count from this block's keys, and are cut to what lies beyond it on either side: they are exact
    # however long the sequence is.
    here = position(problem, sequence, query) - key
    numbers = lane_numbers(none)
    last = numbers + splat(none, float(min(max(here + problem.right, -_FAR), _FAR)))
    first = numbers + splat(none, float(min(max(here - problem.left, -_FAR), _FAR)))
    for j in range(begin, end):
        place = scores + j * stride
        at = splat(none, float(j))
        block = load_panel(panel, place)
        block = where_less(last, at, none, block)
        store(panel.working, place, where_less(at, first, none, block))


@njit
def absorb_scores(panel, scores, begin, end, m, l, factors, threshold):
    """Absorb scores into m and l, leave their terms e^(s − m), and write the factors of the running output.

    m, l and the factors are the addresses of a number a row of the panel. With a threshold, m moves only
    where it would grow by more.
    """
    stride = panel_lanes(panel) * element_size(panel.working)
    before = load_panel(panel, m)
    top = before
    for j in range(begin, end):
        top = larger(load_panel(panel, scores + j * stride), top)
    top = where_less(before + filled_panel(panel, threshold), top, top, before)
    none = filled_panel(panel, -np.inf)
    shift = where_equal(top, none, filled_panel(panel, 0.0), top)
    factor = exp_in_sum(before - shift)
    total = filled_panel(panel, -0.0)
    for j in range(begin, end):
        place = scores + j * stride
        term = exp_in_sum(load_panel(panel, place) - shift)
        store(panel.working, place, term)
        total = total + term
    store(panel.working, m, top)
    store(panel.working, factors, factor)
    store(panel.working, l, fma(load_panel(panel, l), factor, total))
