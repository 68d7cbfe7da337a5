"""A panel of scores: the keys of a block by as many queries as a vector block has lanes.

Scores lie transposed, one key below the other, so that a row's maximum and sum need no reduction across
lanes. What is masked becomes −inf, by selection.
"""

import numpy as np
from numba import njit

from softcarry.cpu.attention_layout import (
    bias_address,
    load_bias,
    mask_address,
    position,
)
from softcarry.cpu.exponential import exp_in_sum
from softcarry.cpu.hyperbolic import tanh
from softcarry.cpu.memory import (
    block_lanes,
    element_size,
    filled_block,
    load_block,
    load_byte,
    load_element,
    store,
    store_element,
)
from softcarry.cpu.simd import fma, lane_numbers, larger, splat, where_equal, where_less

_FAR = 2**16
"""Keys: more than a block and the lanes of a vector."""


@njit
def cap_scores(like, scores, begin, end, softcap):
    """Replace scores s by softcap·tanh(s/softcap)."""
    stride = block_lanes(like) * element_size(like)
    cap = filled_block(like, softcap)
    for j in range(begin, end):
        place = scores + j * stride
        store(like, place, cap * tanh(load_block(like, place) / cap))


@njit
def add_bias(like, problem, sequence, head, query, rows, key, scores, begin, end):
    """Add the bias of each pair; ``key`` is the key of row 0 of the panel."""
    stride = block_lanes(like) * element_size(like)
    none = filled_block(like, -np.inf)
    for j in range(begin, end):
        source = bias_address(problem, sequence, head, query, key + j)
        place = scores + j * stride
        if problem.bias.query == 0:
            bias = filled_block(like, load_bias(problem.bias.element, source))
            store(like, place, where_equal(bias, none, none, load_block(like, place) + bias))
            continue
        for row in range(rows):
            bias = load_bias(problem.bias.element, source + row * problem.bias.query)
            number = load_element(like, place + row * element_size(like))
            # A masked key stays masked, whatever its score is, NaN and +inf among them.
            number = type(number)(number + bias) if bias > -np.inf or bias != bias else type(number)(-np.inf)
            store_element(like, place + row * element_size(like), number)


@njit
def subtract_distances(like, problem, sequence, head, query, key, scores, begin, end):
    """Subtract ALiBi's slope times the distance from a query's position to each key."""
    size = element_size(like)
    stride = block_lanes(like) * size
    places = problem.slopes + sequence.number * problem.sequence_slopes
    slope = filled_block(like, load_element(like, places + head * size))
    zero = filled_block(like, -0.0)
    here = lane_numbers(zero) + splat(zero, float(position(problem, sequence, query) - key))
    for j in range(begin, end):
        gap = splat(zero, float(j)) - here
        place = scores + j * stride
        store(like, place, load_block(like, place) - slope * larger(gap, zero - gap))


@njit
def hide_by_mask(like, problem, sequence, head, query, rows, key, scores, begin, end):
    """Select away the scores whose pair the mask forbids."""
    size = element_size(like)
    stride = block_lanes(like) * size
    hidden = filled_block(like, -np.inf)
    for j in range(begin, end):
        source = mask_address(problem, sequence, head, query, key + j)
        place = scores + j * stride
        if problem.mask.query == 0:
            if load_byte(source) == 0:
                store(like, place, hidden)
            continue
        for row in range(rows):
            if load_byte(source + row * problem.mask.query) == 0:
                store_element(like, place + row * size, type(like)(-np.inf))


@njit
def hide_by_position(like, problem, sequence, query, key, scores, begin, end):
    """Select away the scores of keys that a query does not see from where it stands."""
    lanes = block_lanes(like)
    stride = lanes * element_size(like)
    none = filled_block(like, -np.inf)
    # Positions count from this block's keys, and are cut to what lies beyond it on either side: they are exact
    # however long the sequence is.
    here = position(problem, sequence, query) - key
    numbers = lane_numbers(none)
    last = numbers + splat(none, float(min(max(here + problem.right, -_FAR), _FAR)))
    first = numbers + splat(none, float(min(max(here - problem.left, -_FAR), _FAR)))
    for j in range(begin, end):
        place = scores + j * stride
        at = splat(none, float(j))
        block = load_block(like, place)
        block = where_less(last, at, none, block)
        store(like, place, where_less(at, first, none, block))


@njit
def absorb_scores(like, scores, begin, end, m, l, factors, threshold):
    """Absorb scores into m and l, leave their terms e^(s − m), and write the factors of the running output.

    m, l and the factors are the addresses of a number a row of the panel. With a threshold, m moves only
    where it would grow by more.
    """
    stride = block_lanes(like) * element_size(like)
    before = load_block(like, m)
    top = before
    for j in range(begin, end):
        top = larger(load_block(like, scores + j * stride), top)
    top = where_less(before + filled_block(like, threshold), top, top, before)
    none = filled_block(like, -np.inf)
    shift = where_equal(top, none, filled_block(like, 0.0), top)
    factor = exp_in_sum(before - shift)
    total = filled_block(like, -0.0)
    for j in range(begin, end):
        place = scores + j * stride
        term = exp_in_sum(load_block(like, place) - shift)
        store(like, place, term)
        total = total + term
    store(like, m, top)
    store(like, factors, factor)
    store(like, l, fma(load_block(like, l), factor, total))
