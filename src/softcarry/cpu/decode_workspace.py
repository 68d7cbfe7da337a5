"""What a thread holds while it attends for few rows: where each part of it lies."""

from typing import NamedTuple

from numba import njit

from softcarry.cpu.attention_layout import KEY_BLOCK
from softcarry.cpu.dots import dot_lanes
from softcarry.cpu.memory import element_size
from softcarry.cpu.simd import STRIP

MOST_ROWS = 32
"""Rows of a unit of work at most: query heads of a group by queries."""

SCORE_KEYS = KEY_BLOCK + 3
"""Keys that a panel of scores has room for: `score_keys` writes beyond the last."""


class Workspace(NamedTuple):
    """Addresses of what a thread holds of one unit of work, each a multiple of 64.

    Of q, m, l, slopes and o there is one for each of the heads of keys that are taken together.
    """

    q: int
    """(MOST_ROWS, q_row bytes), multiplied by the scale, zeros beyond d and the last row."""
    k: int
    """(KEY_BLOCK, d), where keys are copied."""
    v: int
    """(KEY_BLOCK, width), where values are copied."""
    scores: int
    """Panels, (MOST_ROWS // STRIP, SCORE_KEYS, STRIP). Lanes without a row hold what is finite or −inf."""
    terms: int
    """Of one panel, (KEY_BLOCK, STRIP)."""
    factors: int
    """Of the running output."""
    queries: int
    """The number of the query of each row, in the working type."""
    m: int
    l: int
    slopes: int
    o: int
    """(MOST_ROWS, width)"""
    totals: int
    """What a block adds to o, of one panel, (STRIP, width)."""
    q_row: int
    width: int
    """Columns of the running output: dv, in whole blocks."""


@njit(forceinline=True)
def _aligned(address):
    return (address + 63) // 64 * 64


@njit(forceinline=True)
def _q_row(like, d):
    lanes = dot_lanes(like)
    return -(-d // lanes) * lanes * element_size(like)


@njit
def room(like, d, width, heads):
    """Return the bytes of a workspace."""
    numbers = (
        KEY_BLOCK * (d + width + STRIP) + MOST_ROWS * (SCORE_KEYS + 2 + heads * (3 + width)) + STRIP * width
    )
    return heads * MOST_ROWS * _q_row(like, d) + numbers * element_size(like) + 64 * 13


@njit(forceinline=True)
def workspace(like, address, d, width, heads):
    """Return a workspace that begins at an address."""
    size, q_row = element_size(like), _q_row(like, d)
    q = _aligned(address)
    k = _aligned(q + heads * MOST_ROWS * q_row)
    v = _aligned(k + KEY_BLOCK * d * size)
    scores = _aligned(v + KEY_BLOCK * width * size)
    terms = _aligned(scores + MOST_ROWS * SCORE_KEYS * size)
    factors = _aligned(terms + KEY_BLOCK * STRIP * size)
    queries = _aligned(factors + MOST_ROWS * size)
    m = _aligned(queries + MOST_ROWS * size)
    l = _aligned(m + heads * MOST_ROWS * size)
    slopes = _aligned(l + heads * MOST_ROWS * size)
    o = _aligned(slopes + heads * MOST_ROWS * size)
    totals = _aligned(o + heads * MOST_ROWS * width * size)
    return Workspace(q, k, v, scores, terms, factors, queries, m, l, slopes, o, totals, q_row, width)


@njit(forceinline=True)
def of_head(like, work, number):
    """Return the part of a workspace that belongs to one of the heads of keys."""
    rows = number * MOST_ROWS
    skip = rows * element_size(like)
    return Workspace(
        work.q + rows * work.q_row,
        work.k,
        work.v,
        work.scores,
        work.terms,
        work.factors,
        work.queries,
        work.m + skip,
        work.l + skip,
        work.slopes + skip,
        work.o + skip * work.width,
        work.totals,
        work.q_row,
        work.width,
    )
