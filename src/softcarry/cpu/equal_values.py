"""Rows whose live keys all have the same value: their output is that value, to the bit.

Σ e^(s − m)·v / Σ e^(s − m) is v, but for rounding, in float32 and float64; in narrower outputs rounding hides
it. Such a row is found by an output that is nearly the value of its first live key; only then are the other
values compared with it, and, of rows that stand one after the other, those that have been are not compared
again.
"""

import numpy as np
from numba import njit

from softcarry.cpu.attention_layout import (
    bias_address,
    first_key,
    last_key,
    mask_address,
    value_address,
)
from softcarry.cpu.memory import (
    element_size,
    filled_strip,
    load_byte,
    load_element,
    load_integer,
    load_strip,
    store_element,
    store_integer,
)
from softcarry.cpu.simd import STRIP, lane_sum, larger

_NEAR = 2.0**-10
"""What rounding may make of a relative difference of 0 in a row of some 10⁸ keys."""


@njit(forceinline=True)
def _is_live(bias_element, problem, sequence, head, query, key):
    if problem.mask.address != 0 and load_byte(mask_address(problem, sequence, head, query, key)) == 0:
        return False
    if problem.bias.address == 0:
        return True
    return load_element(bias_element, bias_address(problem, sequence, head, query, key)) != -np.inf


@njit
def _same_value(element, problem, sequence, kv_head, key, other):
    a = value_address(problem, sequence, kv_head, key)
    b = value_address(problem, sequence, kv_head, other)
    step, c = problem.v.step, 0
    if step == element_size(element):
        gaps = filled_strip(element, 0.0)
        while c + STRIP <= problem.dv:
            gap = load_strip(element, a + c * step) - load_strip(element, b + c * step)
            gaps = gaps + larger(gap, filled_strip(element, -0.0) - gap)
            c += STRIP
        # NaN too is no equality.
        if lane_sum(gaps) != 0:
            return False
    while c < problem.dv:
        if load_element(element, a + c * step) != load_element(element, b + c * step):
            return False
        c += 1
    return True


@njit
def write_common_value(element, problem, sequence, head, query, output, output_step, run):
    """Replace an output by the value that all live keys of its row have, if they have one.

    ``run`` is the address of two integers, of which the caller knows that they are 0 at first: a range of
    keys that are known to have equal values, of the head of keys and the sequence of the last call.
    """
    kind = problem.bias.element
    # Chosen before any loop, for the reason that score_panel.add_bias gives.
    if kind == 0:
        _write(element, np.float32(0), problem, sequence, head, query, output, output_step, run)
    elif kind == 1:
        _write(element, np.float64(0), problem, sequence, head, query, output, output_step, run)
    elif kind == 2:
        _write(element, np.uint16(0), problem, sequence, head, query, output, output_step, run)
    else:
        _write(element, np.int16(0), problem, sequence, head, query, output, output_step, run)


@njit
def _write(element, bias_element, problem, sequence, head, query, output, output_step, run):
    kv_head = head // problem.group
    first, last = first_key(problem, sequence, query), last_key(problem, sequence, query)
    while first < last and not _is_live(bias_element, problem, sequence, head, query, first):
        first += 1
    if first >= last:
        return
    value = value_address(problem, sequence, kv_head, first)
    for c in range(problem.dv):
        number = load_element(element, value + c * problem.v.step)
        if not abs(load_element(element, output + c * output_step) - number) <= abs(number) * _NEAR:
            return
    start, stop = load_integer(run), load_integer(run + 8)
    if not start <= first < stop:
        start, stop = first, first + 1
    while stop < last and _same_value(element, problem, sequence, kv_head, start, stop):
        stop += 1
    store_integer(run, start)
    store_integer(run + 8, stop)
    for key in range(stop, last):
        live = _is_live(bias_element, problem, sequence, head, query, key)
        if live and not _same_value(element, problem, sequence, kv_head, first, key):
            return
    for c in range(problem.dv):
        store_element(element, output + c * output_step, load_element(element, value + c * problem.v.step))
