"""Running sums of many rows, compiled: a tile of rows is transposed so that every addition is one of vectors.

Every order is the same loop: nodes of some terms in sequence, pushed on a stack of partial sums, whose top
two merge when the order says so. A row never depends on the tile it lies in, and a random draw is numbered by
its row and by the place of the addition in the row, so the bits do not depend on the number of threads.

The helpers are few and called from few places: each call is one more copy for the compiler to optimise.
"""

import numpy as np
from numba import njit, prange

from softcarry.numerics._rounding import (
    NEAREST_EVEN,
    STOCHASTIC,
    round_any,
    round_nearest_even,
    rounded_sum,
    scramble,
    uniform,
)

BLOCKED = 0
HALVING = 1
STACK = 2
KAHAN = 3

# Numbers in a tile, which lies in the first-level cache.
_TILE = 2048

# Draws belong to a term, or to the node that an addition has on its right.
_DRAWS = 6
_TERM = 0
_NODE = 1
_INNER = 2


@njit
def _draw(rounding, key, number):
    return uniform(key, number) if rounding.mode == STOCHASTIC else 0.0


@njit
def _add(left, i, right, j, width, rounding, keys, draw):
    """Add ``width`` lanes of ``right`` from j into those of ``left`` from i."""
    if rounding.innocuous:
        for r in range(width):
            left[i + r] = round_nearest_even(left[i + r] + right[j + r], rounding)
    else:
        for r in range(width):
            u = _draw(rounding, keys[r], draw)
            left[i + r] = rounded_sum(left[i + r], right[j + r], rounding, u)


@njit
def _load(terms, row, start, count, tile, width, rounding, round_terms, keys):
    """Transpose ``count`` terms of ``width`` rows, rounded: term k of lane r goes to k · width + r."""
    for r in range(width):
        for k in range(count):
            tile[k * width + r] = terms[row + r, start + k]
    if not round_terms:
        return
    if rounding.mode == NEAREST_EVEN:
        for i in range(count * width):
            tile[i] = round_nearest_even(tile[i], rounding)
    else:
        for k in range(count):
            for r in range(width):
                u = _draw(rounding, keys[r], (start + k) * _DRAWS + _TERM)
                tile[k * width + r] = round_any(tile[k * width + r], rounding, u)


@njit
def _run(total, i, tile, first, stop, start, width, rounding, keys):
    """Add terms first to stop of a tile that begins at term ``start`` into lanes i of ``total``, in order."""
    if width > 1 or not rounding.innocuous:
        for k in range(first, stop):
            _add(total, i, tile, k * width, width, rounding, keys, (start + k) * _DRAWS + _INNER)
        return
    # A single row is a chain of additions that wait for each other: its sum stays in a register, and what
    # is not an ordinary number is left to a branch, which the processor predicts.
    running = total[i]
    for k in range(first, stop):
        exact = running + tile[k]
        bits = np.float64(exact).view(np.uint64)
        tie_breaker = (bits >> rounding.dropped_bits) & rounding.odd
        running = np.uint64((bits + rounding.below_half + tie_breaker) & rounding.kept).view(np.float64)
        if not (abs(exact) >= rounding.smallest_normal and abs(running) <= rounding.largest):
            running = round_nearest_even(exact, rounding)
    total[i] = running


@njit
def _compensated_run(total, correction, tile, first, stop, start, width, rounding, keys):
    """As `_run`, by Kahan's four operations."""
    for k in range(first, stop):
        if rounding.innocuous:
            for r in range(width):
                y = round_nearest_even(tile[k * width + r] - correction[r], rounding)
                updated = round_nearest_even(total[r] + y, rounding)
                moved = round_nearest_even(updated - total[r], rounding)
                correction[r] = round_nearest_even(moved - y, rounding)
                total[r] = updated
        else:
            draw = (start + k) * _DRAWS + _INNER
            for r in range(width):
                y = rounded_sum(tile[k * width + r], -correction[r], rounding, _draw(rounding, keys[r], draw))
                updated = rounded_sum(total[r], y, rounding, _draw(rounding, keys[r], draw + 1))
                moved = rounded_sum(updated, -total[r], rounding, _draw(rounding, keys[r], draw + 2))
                correction[r] = rounded_sum(moved, -y, rounding, _draw(rounding, keys[r], draw + 3))
                total[r] = updated


@njit
def _reduce(nodes, count, first, width, rounding, keys, scratch):
    """Sum a power of two of neighbouring nodes by a tree of adjacent pairs, into the lanes of node 0."""
    if width > 1 or not rounding.innocuous:
        step = 1
        while step < count:
            for i in range(0, count, 2 * step):
                draw = (first + i + step) * _DRAWS + _NODE
                _add(nodes, i * width, nodes, (i + step) * width, width, rounding, keys, draw)
            step *= 2
        return
    # A single row makes vectors of its pairs, which must not be written where they are read.
    source, target = nodes, scratch
    while count > 1:
        count //= 2
        for i in range(count):
            target[i] = round_nearest_even(source[2 * i] + source[2 * i + 1], rounding)
        source, target = target, source
    nodes[0] = source[0]


@njit
def _next_reversed(bits, count):
    """Count: the next number below a power of two, in the order of the numbers with their bits reversed."""
    bit = count // 2
    while bits & bit:
        bits ^= bit
        bit //= 2
    return bits | bit


@njit
def _pair(tile, size, count, start, width, rounding, keys):
    """Make a tile of ``size`` terms one of ``count`` nodes of one or two terms, as halving does.

    Halving n into ⌊n/2⌋ and ⌈n/2⌉ gives ⌊(n + j) / 2^d⌋ terms at depth d, j being the number of the node
    with its d bits reversed.
    """
    reversed_bits = 0
    k = 0
    for i in range(count):
        for r in range(width):
            tile[i * width + r] = tile[k * width + r]
        k += 1
        if size + reversed_bits >= 2 * count:
            draw = (start + k) * _DRAWS + _INNER
            _add(tile, i * width, tile, k * width, width, rounding, keys, draw)
            k += 1
        reversed_bits = _next_reversed(reversed_bits, count)


@njit
def _next_run(target, i, size, terms, row, tile, cursor, width, kahan, rounding, round_terms, keys):
    """Sum the next ``size`` terms in order into lanes i of ``target``.

    ``cursor`` holds the first term of the tile, the number of terms in it, and how many of them are used.
    """
    correction = np.zeros(width)
    begun = False
    while size > 0:
        if cursor[2] == cursor[1]:
            cursor[0] += cursor[1]
            cursor[1] = min(len(tile) // width, terms.shape[1] - cursor[0])
            cursor[2] = 0
            _load(terms, row, cursor[0], cursor[1], tile, width, rounding, round_terms, keys)
        first, stop = cursor[2], min(cursor[2] + size, cursor[1])
        size -= stop - first
        cursor[2] = stop
        if not begun:
            # A sum begins as its first term, rounded: adding that to 0 would turn −0 into 0.
            for r in range(width):
                u = _draw(rounding, keys[r], (cursor[0] + first) * _DRAWS + _TERM)
                target[i + r] = round_any(tile[first * width + r], rounding, u)
            first += 1
            begun = True
        if kahan:
            _compensated_run(target, correction, tile, first, stop, cursor[0], width, rounding, keys)
        else:
            _run(target, i, tile, first, stop, cursor[0], width, rounding, keys)


@njit
def _sum_tile(terms, row, width, order, block, rounding, flush, round_terms, keys, total):
    """Sum ``width`` rows into ``total``."""
    n = terms.shape[1]
    nodes = -(-n // block)
    if order == HALVING:
        nodes = 1
        while 2 * nodes <= n:
            nodes *= 2
    tree_of_terms = order == HALVING or (order == STACK and block == 1)
    chunk = 1
    if tree_of_terms:
        # A chunk of nodes is loaded and summed at once; a node has two terms at most.
        while 2 * chunk <= nodes and 4 * chunk * width <= _TILE:
            chunk *= 2
    chunks = nodes // chunk
    tile = np.empty(_TILE)
    scratch = np.empty(chunk)
    cursor = np.zeros(3, np.int64)
    partials = np.empty(66 * width)
    height = 0
    reversed_bits = 0
    start = 0
    first = 0
    while first < nodes:
        while chunk > nodes - first:
            chunk //= 2
        top = height * width
        if tree_of_terms:
            size = chunk
            if order == HALVING:
                size = (n + reversed_bits) // chunks
                reversed_bits = _next_reversed(reversed_bits, chunks)
            _load(terms, row, start, size, tile, width, rounding, True, keys)
            if size > chunk:
                _pair(tile, size, chunk, start, width, rounding, keys)
            _reduce(tile, chunk, first, width, rounding, keys, scratch)
            start += size
            for r in range(width):
                partials[top + r] = tile[r]
        else:
            size = min(block, n - first * block)
            kahan = order == KAHAN
            _next_run(
                partials, top, size, terms, row, tile, cursor, width, kahan, rounding, round_terms, keys
            )
        height += 1
        # A counter of nodes: equal neighbours merge as a carry runs through its bits. In the end all do, the
        # youngest first; blocks in sequence always do.
        begin = first
        bit = chunk
        first += chunk
        while height > 1 and (order == BLOCKED or begin & bit or first == nodes):
            top = (height - 2) * width
            _add(partials, top, partials, top + width, width, flush, keys, begin * _DRAWS + _NODE)
            begin &= begin - 1
            bit *= 2
            height -= 1
    for r in range(width):
        total[r] = partials[r]


@njit(parallel=True, cache=True)
def sum_rows(terms, order, block, rounding, flush, round_terms, seed, width):
    """Sum the rows of ``terms`` (rows, n >= 1), ``width`` rows at a time, in blocks of at most n terms."""
    rows = terms.shape[0]
    sums = np.empty(rows)
    for tile in prange(-(-rows // width)):
        row = tile * width
        lanes = min(width, rows - row)
        keys = np.empty(lanes, np.uint64)
        for r in range(lanes):
            keys[r] = scramble(seed, row + r)
        total = sums[row : row + lanes]
        _sum_tile(terms, row, lanes, order, block, rounding, flush, round_terms, keys, total)
    return sums
