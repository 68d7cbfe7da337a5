"""What becomes of a row's carry: the sink is merged, pieces of the keys are, and the output is written."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from softcarry.cpu.attention_layout import Heads
from softcarry.cpu.equal_values import write_common_value
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
)
from softcarry.cpu.simd import STRIP, fma


class Results(NamedTuple):
    """Where results go. An address of 0 is passed over."""

    output: Heads
    """o/l, rounded once to the element type."""
    o: int
    """(rows, dv), contiguous, in the working type; rows are those of m."""
    m: int
    """(heads, queries) of all sequences, contiguous, in the working type."""
    l: int
    head_rows: int
    """Rows from one head to the next in m, l and o."""
    sinks: int
    """A score a query head, contiguous, in the working type; no keys and no values belong to it."""


class Parts(NamedTuple):
    """Addresses of the carries of pieces of rows, those of one row side by side."""

    m: int
    l: int
    o: int
    """(pieces, width)"""
    width: int
    """A multiple of a vector block."""


@njit(forceinline=True)
def _write_quotients(like, element, source, divisor, count, target, step):
    """Divide ``count`` numbers of the working type by one, and round them to the element type."""
    size, out_size, lanes = element_size(like), element_size(element), block_lanes(like)
    c = 0
    if step == out_size:
        divisors, strip_divisors = filled_block(like, divisor), filled_strip(like, divisor)
        while c + lanes <= count:
            store(element, target + c * out_size, load_block(like, source + c * size) / divisors)
            c += lanes
        while c + STRIP <= count:
            store(element, target + c * out_size, load_strip(like, source + c * size) / strip_divisors)
            c += STRIP
    while c < count:
        store_element(element, target + c * step, load_element(like, source + c * size) / divisor)
        c += 1


@njit
def write_row(element, like, problem, sequence, head, query, m, l, o, results, run):
    """Merge a query row's sink into its carry, and write the carry and its output.

    o is the address of so many whole blocks as dv needs, which are overwritten; ``run`` is for
    `write_common_value`.
    """
    size, lanes, dv = element_size(like), block_lanes(like), problem.dv
    no_keys = m == -np.inf and l == l
    weight = type(like)(1.0)
    if no_keys:
        # What nothing was added to is −0.
        l = type(like)(0.0)
    if l != l:
        # The maximum passes over a NaN score, the sum does not; a score of +inf makes the sum NaN, too.
        m = m if m == np.inf else type(like)(np.nan)
    elif results.sinks != 0:
        sink = load_element(like, results.sinks + head * size)
        if sink > m or sink != sink:
            weight = type(like)(math.exp(np.float64(m) - np.float64(sink)))
            l = type(like)(l * weight + type(like)(1.0))
            m = sink
        elif sink > -np.inf:
            l = type(like)(l + math.exp(np.float64(sink) - np.float64(m)))
    if no_keys or weight != 1:
        nothing, weights = filled_block(like, 0.0), filled_block(like, weight)
        for column in range(0, dv, lanes):
            place = o + column * size
            store(like, place, nothing if no_keys else load_block(like, place) * weights)
    one = type(like)(1.0)
    row = sequence.first_row + head * results.head_rows + query
    if results.m != 0:
        store_element(like, results.m + row * size, m)
        store_element(like, results.l + row * size, l)
    if results.o != 0:
        _write_quotients(like, like, o, one, dv, results.o + row * dv * size, size)
    if results.output.address != 0:
        places = results.output
        target = places.address + sequence.output + head * places.head + query * places.token
        _write_quotients(like, element, o, one if no_keys else l, dv, target, places.step)
        if element_size(element) == size and results.sinks == 0:
            write_common_value(element, problem, sequence, head, query, target, places.step, run)


@njit
def store_part(like, parts, place, m, l, o):
    """Keep the carry of a piece of a row; o is the address of ``parts.width`` numbers."""
    size = element_size(like)
    store_element(like, parts.m + place * size, m)
    store_element(like, parts.l + place * size, l)
    for column in range(0, parts.width, block_lanes(like)):
        numbers = load_block(like, o + column * size)
        store(like, parts.o + (place * parts.width + column) * size, numbers)


@njit
def merge_parts(like, parts, first, pieces, o):
    """Return m and l of consecutive pieces of a row, merged in order, and write o, in whole blocks."""
    size, lanes, width = element_size(like), block_lanes(like), parts.width
    m = type(like)(-np.inf)
    for piece in range(first, first + pieces):
        m = max(m, load_element(like, parts.m + piece * size))
    l = type(like)(0.0)
    nothing = filled_block(like, -0.0)
    for column in range(0, width, lanes):
        store(like, o + column * size, nothing)
    for piece in range(first, first + pieces):
        piece_m = load_element(like, parts.m + piece * size)
        piece_l = load_element(like, parts.l + piece * size)
        if piece_m == -np.inf and piece_l == 0:
            continue
        weight = type(like)(math.exp(np.float64(piece_m) - np.float64(m)) if m > -np.inf else 1.0)
        l = type(like)(l + weight * piece_l)
        weights = filled_block(like, weight)
        for column in range(0, width, lanes):
            part = load_block(like, parts.o + (piece * width + column) * size)
            place = o + column * size
            store(like, place, fma(part, weights, load_block(like, place)))
    return m, l
