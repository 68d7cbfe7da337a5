"""The carry (m, l) of contiguous elements: chunk by chunk, each read from memory once; and its merge.

l is a float64: a chunk is summed in the working format, in 32 (16 in float64) lanes and then a tree, so that
no sum in float32 has more than 16 terms in a row, and the error does not grow with the length.
"""

import math

import numpy as np
from numba import njit

from softcarry.cpu.exponential import exp_in_live_sum
from softcarry.cpu.memory import (
    block_lanes,
    element_size,
    filled_block,
    filled_strip,
    load_block,
    load_element,
    load_partial,
    load_strip,
    prefetch,
)
from softcarry.cpu.row_keys import (
    KEYS,
    highest_keys,
    larger_keys,
    largest_key,
    lowest_keys,
    smaller_keys,
    smallest_key,
)
from softcarry.cpu.simd import STRIP, folded_maximum, folded_sum, lane_maximum, lane_sum, larger

CHUNK = 2048
"""Elements that are read twice, the second time from the first-level cache."""

_RUN = 16
"""Blocks that are summed one after the other, before their sum is added to that of the chunk."""


@njit(forceinline=True)
def chunk_maximum(element, address, count):
    """Return the largest of ``count`` elements, −inf for none; a NaN is passed over."""
    size, lanes = element_size(element), block_lanes(element)
    end = address + count * size
    if size == 2 and count >= KEYS:
        start = address
        keys = lowest_keys(element)
        while address + KEYS * size <= end:
            keys = larger_keys(element, address, keys)
            address += KEYS * size
        top = largest_key(element, keys)
        if top < 0.0:
            keys = highest_keys(element)
            for at in range(start, address, KEYS * size):
                keys = smaller_keys(element, at, keys)
            top = smallest_key(element, keys)
        if address == end and top == top:
            return top
        # Of a NaN nothing more is known than that there is one, and what is left is less than a block or two.
        address = address if top == top else start
        strip = filled_strip(element, top if top == top else -np.inf)
    else:
        strip = filled_strip(element, -np.inf)
    if address + lanes * size <= end:
        block = filled_block(element, lane_maximum(strip))
        while address + lanes * size <= end:
            block = larger(load_block(element, address), block)
            address += lanes * size
        strip = folded_maximum(block)
    while address + STRIP * size <= end:
        strip = larger(load_strip(element, address), strip)
        address += STRIP * size
    if address < end:
        strip = larger(load_partial(element, address, (end - address) // size), strip)
    return lane_maximum(strip)


@njit(forceinline=True)
def chunk_sum(element, address, count, shift):
    """Return the sum of e^(x − shift) over ``count`` elements, none above the shift."""
    size, lanes = element_size(element), block_lanes(element)
    end = address + count * size
    strip = filled_strip(element, 0.0)
    if address + lanes * size <= end:
        sums = filled_block(element, 0.0)
        shifts = filled_block(element, shift)
        while address + lanes * size <= end:
            run = filled_block(element, 0.0)
            stop = min(end, address + _RUN * lanes * size)
            while address + lanes * size <= stop:
                # The next chunk comes from memory while this one is computed.
                for line in range(0, lanes * size, 64):
                    prefetch(address + CHUNK * size + line)
                run = run + exp_in_live_sum(load_block(element, address) - shifts)
                address += lanes * size
            sums = sums + run
        strip = folded_sum(sums)
    strip_shifts = filled_strip(element, shift)
    while address + STRIP * size <= end:
        strip = strip + exp_in_live_sum(load_strip(element, address) - strip_shifts)
        address += STRIP * size
    if address < end:
        strip = strip + exp_in_live_sum(
            load_partial(element, address, (end - address) // size) - strip_shifts
        )
    return lane_sum(strip)


@njit
def _has_nan(element, address, count):
    for i in range(count):
        x = load_element(element, address + i * element_size(element))
        if x != x:
            return True
    return False


@njit
def absorb_chunk(element, address, count, m, l):
    """Absorb at most CHUNK elements into (m, l), and return the largest number among them too, first."""
    top = chunk_maximum(element, address, count)
    if top > m:
        l *= math.exp(np.float64(m) - np.float64(top))
        m = top
    total = chunk_sum(element, address, count, m if m != -np.inf else type(m)(0.0))
    # Without a live score there is no term of 1, in which what −inf has come to would vanish.
    if m != -np.inf or total != total:
        l += total
    # The maximum passes over a NaN, but l does not. l is NaN too where m = +inf, which a NaN outranks.
    if l != l and m == m and (m != np.inf or _has_nan(element, address, count)):
        m = type(m)(np.nan)
    return top, m, l


@njit
def absorb(element, address, count, m, l):
    """Absorb any number of elements into (m, l)."""
    for start in range(0, count, CHUNK):
        place = address + start * element_size(element)
        _, m, l = absorb_chunk(element, place, min(CHUNK, count - start), m, l)
    return m, l


@njit
def merge_pieces(m, l, first, count):
    """Merge ``count`` carries from index ``first`` on, left to right."""
    top, total = m[first], l[first]
    for i in range(first + 1, first + count):
        if m[i] > top:
            total = total * math.exp(np.float64(top) - np.float64(m[i])) + l[i]
            top = m[i]
        elif m[i] != m[i]:
            top, total = m[i], l[i]
        elif m[i] > -np.inf:
            total += l[i] * math.exp(np.float64(m[i]) - np.float64(top))
    return top, total


@njit(forceinline=True)
def log_sum_exp(m, l):
    """Return m + ln l in float64; ±inf and NaN as the carry has them."""
    return np.float64(m) if m == np.inf or m == -np.inf else m + math.log(l)
