"""Chunks of rows: their maxima, their sums within a bound that is derived here, and the merge of pieces.

The truth is in 50 digits (mpmath) for float64 and in float64, summed exactly, for the others.
"""

import math

import mpmath
import numpy as np
import pytest

from row_cases import INF, NAN
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.row_sums import (
    CHUNK,
    absorb,
    absorb_chunk,
    chunk_maximum,
    chunk_sum,
    log_sum_exp,
    merge_pieces,
)
from vector_calls import DTYPES, address

LENGTHS = (*range(71), 127, 128, 129, 255, 257, 511, 512, 513)
NAMES = pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
SMALLEST = {np.float32: 2.0**-126, np.float64: 2.0**-1022}


def working(name):
    return np.float64 if name == "float64" else np.float32


def unit_roundoff(name):
    return 2.0**-53 if name == "float64" else 2.0**-24


def scores(name, n, seed=0):
    """Scores between NaN, which would show if they were read."""
    memory = np.full(n + 40, NAN, DTYPES[name])
    row = memory[20 : 20 + n]
    row[:] = (np.random.default_rng([seed, n]).normal(size=n) * 5).astype(DTYPES[name])
    return row


def exact_sum(x, shift):
    if x.dtype == np.float64:
        with mpmath.workdps(50):
            return float(mpmath.fsum(mpmath.exp(mpmath.mpf(float(v)) - float(shift)) for v in x))
    return math.fsum(np.exp(x.astype(np.float64) - np.float64(shift)).tolist())


def sum_bound(x, shift, name, most=CHUNK):
    """Bound the error of the sum of e^(x − shift) in the working format.

    Each term: the rounding of x − shift moves it by u·|x − shift|, and the exponential errs by at most 1.35
    units of the last place, which are 2u. A lane adds most / lanes terms to 0; folding to 8 lanes takes
    log2(lanes / 8) additions, then come at most lanes / 8 - 1 strips and a part of one, and a tree of 3.
    Every addition rounds by u, and all terms are positive. What is below the least normal number is flushed.
    """
    u, lanes = unit_roundoff(name), 16 if name == "float64" else 32
    additions = most // lanes + int(math.log2(lanes / 8)) + lanes // 8 + 3
    gaps = np.abs(x.astype(np.float64) - np.float64(shift))
    terms = np.exp(-gaps)
    relative = 1.01 * u * (gaps + 2.7 + additions)
    return math.fsum((relative * terms).tolist()) + x.size * SMALLEST[working(name)]


@NAMES
def test_sums_of_chunks_of_every_length(name):
    element = ELEMENTS[name]
    for n in LENGTHS:
        x = scores(name, n)
        shift = working(name)(x.max() if n else 0)
        got = chunk_sum(element, address(x), n, shift)
        assert abs(got - exact_sum(x, shift)) <= sum_bound(x, shift, name, min(n, CHUNK)), n


@NAMES
def test_a_chunk_keeps_what_a_running_sum_would_lose(name):
    """A term of 1 and then 511 below half of its last place: added one by one, none would count."""
    x = np.full(CHUNK, -36.75 if name == "float64" else -16.75, DTYPES[name])
    x[0] = 0
    term = working(name)(math.exp(x[1]))
    assert working(name)(1) + term == 1
    got, true = chunk_sum(ELEMENTS[name], address(x), CHUNK, working(name)(0)), exact_sum(x, 0.0)
    bound = sum_bound(x, 0.0, name)
    assert abs(got - true) <= bound
    assert true - 1 > 5 * bound


@NAMES
def test_maxima_of_chunks_of_every_length(name):
    element = ELEMENTS[name]
    for n in LENGTHS:
        x = scores(name, n, 1)
        assert chunk_maximum(element, address(x), n) == (x.max() if n else -INF)
        for place in {0, n // 3, n // 2, n - 8, n - 1} & set(range(n)):
            x[place] = 99
            assert chunk_maximum(element, address(x), n) == 99
            x[place] = NAN
            rest = np.delete(x, place)
            assert chunk_maximum(element, address(x), n) == (rest.max() if n > 1 else -INF)
            x[place] = -INF


def absorbed(name, x, m=-INF, l=0.0):
    return absorb(ELEMENTS[name], address(x), x.size, working(name)(m), l)


def absorbed_chunk(name, x, m=-INF, l=0.0):
    """As `absorbed`, for one chunk; its own maximum is what it is."""
    top, *carry = absorb_chunk(ELEMENTS[name], address(x), x.size, working(name)(m), l)
    assert top == x.astype(working(name)).max()
    return tuple(carry)


@NAMES
@pytest.mark.parametrize("n", [1, 7, 8, 33, 511, 512, 513, 5000])
def test_what_absorb_makes_of_special_scores(name, n):
    """NaN before +inf before any other; nothing live leaves the carry empty."""
    for place in {0, n // 2, n - 1}:
        for value, others, want in (
            (NAN, -1.0, NAN),
            (NAN, -INF, NAN),
            (NAN, INF, NAN),
            (INF, -1.0, INF),
            (INF, -INF, INF),
            (INF, INF, INF),
            (2.0, -INF, 2.0),
            (-INF, -INF, -INF),
        ):
            x = np.full(n, others, DTYPES[name])
            x[place] = value
            m, l = absorbed(name, x)
            np.testing.assert_equal(float(m), want)
            if want == 2.0:
                assert l == 1.0
            elif want == -INF:
                assert l == 0.0
            else:
                assert math.isnan(l)


@NAMES
def test_absorb_goes_on_from_a_carry(name):
    """With a maximum before or after; an empty carry and an empty chunk change nothing."""
    x = scores(name, 300)
    top = float(x.max())
    own = exact_sum(x, top)
    for m in (top - 30, top, top + 3):
        m = float(working(name)(m))
        new = max(m, top)
        got = absorbed_chunk(name, x, m, 2.5)
        assert got[0] == new
        true = 2.5 * math.exp(m - new) + own * math.exp(top - new)
        # The chunk's own bound, and float64's few roundings of the rest.
        assert abs(got[1] - true) <= sum_bound(x, new, name) + 2.0**-50 * true
    assert absorbed(name, x[:0], 1.5, 2.5) == (1.5, 2.5)
    assert absorbed(name, x[:0]) == (-INF, 0.0)
    assert absorbed(name, np.full(40, -INF, DTYPES[name]), 1.5, 2.5) == (1.5, 2.5)
    for m in (NAN, INF):
        got = absorbed(name, x, m, NAN)
        np.testing.assert_equal((float(got[0]), got[1]), (m, NAN))
    got = absorbed(name, np.full(600, NAN, DTYPES[name]), INF, NAN)
    np.testing.assert_equal((float(got[0]), got[1]), (NAN, NAN))


@NAMES
def test_absorb_takes_chunk_by_chunk(name):
    """To the bit what a chunk at a time gives, and in a different order of chunks within the bound."""
    x = scores(name, 3 * CHUNK + 77)
    m, l = working(name)(-INF), 0.0
    for start in range(0, x.size, CHUNK):
        m, l = absorbed_chunk(name, x[start : start + CHUNK], m, l)
    assert absorbed(name, x) == (m, l)
    back = np.ascontiguousarray(x[::-1])
    assert absorbed(name, back)[0] == m
    bound = sum_bound(x, m, name) + 2.0**-48 * l
    assert abs(absorbed(name, back)[1] - exact_sum(x, m)) <= bound
    assert abs(l - exact_sum(x, m)) <= bound


def merged(dtype, *carries):
    m, l = (np.array(part) for part in zip(*carries, strict=True))
    top, total = merge_pieces(np.append([7.0], m).astype(dtype), np.append([7.0], l), 1, len(carries))
    return float(top), float(total)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_merging_pieces(dtype):
    empty, one, two, infinite, nan = (-INF, 0.0), (1.0, 3.0), (2.0, 5.0), (INF, NAN), (NAN, NAN)
    assert merged(dtype, one) == one
    assert merged(dtype, empty) == empty
    assert merged(dtype, empty, empty) == empty
    for around in ([], [empty], [empty, empty]):
        assert merged(dtype, *around, one, *around) == one
        both = (2.0, 5.0 + 3.0 * math.exp(-1))
        assert merged(dtype, *around, one, *around, two, *around) == both
        assert merged(dtype, *around, two, *around, one, *around) == both
        for other in (empty, one, infinite):
            for order in ((infinite, other), (other, infinite)):
                np.testing.assert_equal(merged(dtype, *order, *around), infinite)
        for other in (empty, one, infinite, nan):
            for order in ((nan, other), (other, nan), (other, nan, two), (nan, other, infinite)):
                np.testing.assert_equal(merged(dtype, *around, *order), nan)
    far = merged(dtype, (-1e30, 4.0), (0.0, 1.0), (1e30, 2.0), (-1e30, 1.0))
    assert far == (float(dtype(1e30)), 2.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_logarithm_of_a_carry(dtype):
    assert log_sum_exp(dtype(2), 1.0) == 2.0
    assert log_sum_exp(dtype(-INF), 0.0) == -INF
    assert log_sum_exp(dtype(INF), NAN) == INF
    assert math.isnan(log_sum_exp(dtype(NAN), NAN))
    assert log_sum_exp(dtype(1e8), 3.0) == 1e8 + math.log(3)
