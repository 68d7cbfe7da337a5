"""Running sums of many rows, compiled: a tile of rows is transposed so that every addition is one of vectors.

A row never depends on the tile it lies in, and a random draw is numbered by its row and by the place of the
addition in the row; results are the same bits for any number of threads.
"""

import numpy as np
from numba import njit, prange

from softcarry.numerics._rounding import NEAREST_EVEN, STOCHASTIC, round_any, round_nearest_even
from softcarry.numerics._rounding import rounded_sum, scramble, uniform

BLOCKED = 0
HALVING = 1
STACK = 2
KAHAN = 3

# A tile of terms and a tile of tree nodes lie in the first-level cache together.
_TILE = 2048

# Draws of one place in a row: that of its term, and those of the additions made there.
_DRAWS = 5
_TERM = 0
_INNER = 1
_OUTER = 2


@njit
def _add(left, i, right, j, width, rounding, keys, draw):
    """Add ``width`` lanes of ``right`` from j into those of ``left`` from i."""
    if rounding.innocuous:
        for r in range(width):
            left[i + r] = round_nearest_even(left[i + r] + right[j + r], rounding)
    elif rounding.mode == STOCHASTIC:
        for r in range(width):
            left[i + r] = rounded_sum(left[i + r], right[j + r], rounding, uniform(keys[r], draw))
    else:
        for r in range(width):
            left[i + r] = rounded_sum(left[i + r], right[j + r], rounding, 0.0)


@njit
def _round_lanes(lanes, i, width, rounding, keys, draw):
    if rounding.mode == NEAREST_EVEN:
        for r in range(width):
            lanes[i + r] = round_nearest_even(lanes[i + r], rounding)
    elif rounding.mode == STOCHASTIC:
        for r in range(width):
            lanes[i + r] = round_any(lanes[i + r], rounding, uniform(keys[r], draw))
    else:
        for r in range(width):
            lanes[i + r] = round_any(lanes[i + r], rounding, 0.0)


@njit
def _load(terms, row, start, count, tile, width, rounding, round_terms, keys):
    """Transpose ``count`` terms of ``width`` rows into the tile: term k of lane r lies at k · width + r."""
    for r in range(width):
        for k in range(count):
            tile[k * width + r] = terms[row + r, start + k]
    if round_terms and rounding.mode == NEAREST_EVEN:
        for i in range(count * width):
            tile[i] = round_nearest_even(tile[i], rounding)
    elif round_terms:
        for k in range(count):
            _round_lanes(tile, k * width, width, rounding, keys, (start + k) * _DRAWS + _TERM)


@njit
def _run(total, i, tile, first, stop, start, width, rounding, keys):
    """Add the terms first to stop of a tile that starts at term ``start`` into lanes i of ``total``, in order."""
    if width == 1 and rounding.innocuous:
        # One row is a chain of dependent additions: its sum has to stay in a register.
        running = total[i]
        for k in range(first, stop):
            running = round_nearest_even(running + tile[k], rounding)
        total[i] = running
    else:
        for k in range(first, stop):
            _add(total, i, tile, k * width, width, rounding, keys, (start + k) * _DRAWS + _INNER)


@njit
def _begin(total, i, tile, k, start, width, rounding, round_terms, keys):
    """Lanes i of ``total`` become term k of the tile: adding it to 0 would turn −0 into 0."""
    for r in range(width):
        total[i + r] = tile[k * width + r]
    if not round_terms:
        _round_lanes(total, i, width, rounding, keys, (start + k) * _DRAWS + _TERM)


@njit
def _next_run(target, i, size, terms, row, tile, cursor, width, rounding, round_terms, keys):
    """Sum the next ``size`` terms in order into lanes i of ``target``.

    ``cursor`` holds the first term of the tile, the number of terms in it, and how many of them are used.
    """
    begun = False
    while size > 0:
        if cursor[2] == cursor[1]:
            cursor[0] += cursor[1]
            cursor[1] = min(_TILE // width, terms.shape[1] - cursor[0])
            cursor[2] = 0
            _load(terms, row, cursor[0], cursor[1], tile, width, rounding, round_terms, keys)
        if not begun:
            _begin(target, i, tile, cursor[2], cursor[0], width, rounding, round_terms, keys)
            begun = True
            cursor[2] += 1
            size -= 1
        stop = min(cursor[2] + size, cursor[1])
        _run(target, i, tile, cursor[2], stop, cursor[0], width, rounding, keys)
        size -= stop - cursor[2]
        cursor[2] = stop


@njit
def _blocked(terms, row, width, block, rounding, flush, round_terms, keys, total):
    """Blocks in order, and their sums in order in the format of ``flush``; one block is the sequential sum."""
    n = terms.shape[1]
    tile = np.empty(_TILE)
    cursor = np.zeros(3, np.int64)
    partial = np.empty(width)
    for first in range(0, n, block):
        into = total if first == 0 else partial
        size = min(block, n - first)
        _next_run(into, 0, size, terms, row, tile, cursor, width, rounding, round_terms, keys)
        if first == 0:
            _round_lanes(total, 0, width, flush, keys, _OUTER)
        else:
            _add(total, 0, partial, 0, width, flush, keys, first * _DRAWS + _OUTER)


@njit
def _reduce(nodes, count, first, width, rounding, keys, scratch):
    """Sum a power of two of neighbouring nodes by a tree of adjacent pairs, into the lanes of node 0."""
    if width == 1 and rounding.innocuous:
        # One row makes its vectors of pairs, which must not be written where they are read.
        source, target = nodes, scratch
        while count > 1:
            count //= 2
            for i in range(count):
                target[i] = round_nearest_even(source[2 * i] + source[2 * i + 1], rounding)
            source, target = target, source
        nodes[0] = source[0]
        return
    step = 1
    while step < count:
        for i in range(0, count, 2 * step):
            draw = (first + i + step) * _DRAWS + _OUTER
            _add(nodes, i * width, nodes, (i + step) * width, width, rounding, keys, draw)
        step *= 2


@njit
def _tree(terms, row, width, halving, block, rounding, round_terms, keys, total):
    """A binary counter of partial sums over nodes of ``block`` terms, or over those of recursive halving.

    Halving n into ⌊n/2⌋ and ⌈n/2⌉ terms until one is left gives, at depth d = ⌊log2 n⌋, 2^d nodes of one or
    two terms: node j has ⌊(n + the d bits of j reversed) / 2^d⌋. Above them it is the tree of a full counter.
    """
    n = terms.shape[1]
    count = -(-n // block)
    if halving:
        count = 1
        while 2 * count <= n:
            count *= 2
    singles = count == n
    chunk = 1
    while 2 * chunk * width <= _TILE and 2 * chunk <= count:
        chunk *= 2
    tile = np.empty(_TILE)
    nodes = np.empty(chunk * width)
    scratch = np.empty(chunk if width == 1 else 0)
    cursor = np.zeros(3, np.int64)
    partials = np.empty(64 * width)
    height = 0
    reversed_bits = 0
    first = 0
    while first < count:
        while chunk > count - first:
            chunk //= 2
        if singles:
            _load(terms, row, first, chunk, nodes, width, rounding, True, keys)
        else:
            for j in range(chunk):
                size = min(block, n - (first + j) * block)
                if halving:
                    size = (n + reversed_bits) // count
                    bit = count // 2
                    while reversed_bits & bit:
                        reversed_bits ^= bit
                        bit //= 2
                    reversed_bits |= bit
                _next_run(nodes, j * width, size, terms, row, tile, cursor, width, rounding, round_terms, keys)
        _reduce(nodes, chunk, first, width, rounding, keys, scratch)
        top = height * width
        for r in range(width):
            partials[top + r] = nodes[r]
        # Equal neighbours merge at once: a carry runs through the bits of the counter.
        size = chunk
        begin = first
        while begin & size:
            top -= width
            _add(partials, top, partials, top + width, width, rounding, keys, begin * _DRAWS + _OUTER)
            begin -= size
            size *= 2
        height = top // width + 1
        first += chunk
    begin = count & (count - 1)
    for top in range((height - 2) * width, -1, -width):
        _add(partials, top, partials, top + width, width, rounding, keys, begin * _DRAWS + _OUTER)
        begin &= begin - 1
    for r in range(width):
        total[r] = partials[r]


@njit
def _kahan(terms, row, width, rounding, round_terms, keys, total):
    """Compensated summation, each of its four operations rounded."""
    tile = np.empty(_TILE)
    cursor = np.zeros(3, np.int64)
    correction = np.zeros(width)
    stochastic = rounding.mode == STOCHASTIC
    _next_run(total, 0, 1, terms, row, tile, cursor, width, rounding, round_terms, keys)
    for place in range(1, terms.shape[1]):
        k = cursor[2]
        if k == cursor[1]:
            k = 0
            cursor[0] += cursor[1]
            cursor[1] = min(_TILE // width, terms.shape[1] - cursor[0])
            _load(terms, row, cursor[0], cursor[1], tile, width, rounding, round_terms, keys)
        cursor[2] = k + 1
        if rounding.innocuous:
            for r in range(width):
                y = round_nearest_even(tile[k * width + r] - correction[r], rounding)
                updated = round_nearest_even(total[r] + y, rounding)
                moved = round_nearest_even(updated - total[r], rounding)
                correction[r] = round_nearest_even(moved - y, rounding)
                total[r] = updated
        else:
            draw = place * _DRAWS
            for r in range(width):
                a = uniform(keys[r], draw + 1) if stochastic else 0.0
                b = uniform(keys[r], draw + 2) if stochastic else 0.0
                c = uniform(keys[r], draw + 3) if stochastic else 0.0
                d = uniform(keys[r], draw + 4) if stochastic else 0.0
                y = rounded_sum(tile[k * width + r], -correction[r], rounding, a)
                updated = rounded_sum(total[r], y, rounding, b)
                moved = rounded_sum(updated, -total[r], rounding, c)
                correction[r] = rounded_sum(moved, -y, rounding, d)
                total[r] = updated


@njit(parallel=True, cache=True)
def sum_rows(terms, order, block, rounding, flush, round_terms, seed, width):
    """Sums of the rows of ``terms`` (rows, n >= 1), ``width`` rows at a time."""
    rows = terms.shape[0]
    sums = np.empty(rows)
    for tile in prange(-(-rows // width)):
        row = tile * width
        lanes = min(width, rows - row)
        keys = np.empty(lanes, np.uint64)
        for r in range(lanes):
            keys[r] = scramble(seed, row + r)
        total = sums[row : row + lanes]
        if order == BLOCKED:
            _blocked(terms, row, lanes, block, rounding, flush, round_terms, keys, total)
        elif order == KAHAN:
            _kahan(terms, row, lanes, rounding, round_terms, keys, total)
        else:
            _tree(terms, row, lanes, order == HALVING, block, rounding, round_terms, keys, total)
    return sums
