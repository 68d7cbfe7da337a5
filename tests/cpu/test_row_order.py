"""Lists of the best: cut down to k and sorted, against Python's own sort with the rule written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softcarry.cpu.row_order import keep_best, sort_best

DTYPES = [np.float32, np.float64]
OFFSET = 5
"""Where the list begins in its array."""


def ranking(x):
    """Positions best first: NaN, then by value, then by position; −0 equals 0."""
    return sorted(range(x.size), key=lambda j: (not math.isnan(x[j]), 0.0 if math.isnan(x[j]) else -x[j], j))


def listed(x):
    """Arrays that hold x from OFFSET on, with junk around it, and room for a block beyond."""
    scores = np.full(OFFSET + x.size + 40, np.inf, x.dtype)
    scores[OFFSET : OFFSET + x.size] = x
    return scores, np.arange(scores.size) * 3 - 3 * OFFSET


def check(x, k):
    scores, indices = listed(x)
    want = ranking(x)[:k]
    least = keep_best(scores, indices, OFFSET, x.size, k)
    kept = slice(OFFSET, OFFSET + k)
    assert (indices[kept] // 3).tolist() == sorted(want)
    np.testing.assert_array_equal(scores[kept], x[sorted(want)])
    np.testing.assert_array_equal(least, x[want[-1]])
    sort_best(scores, indices, OFFSET, k)
    assert (indices[kept] // 3).tolist() == want
    np.testing.assert_array_equal(scores[kept], x[want])
    np.testing.assert_array_equal(scores[:OFFSET], np.inf)


NUMBERS = st.floats(width=32) | st.sampled_from(
    [0.0, -0.0, 1.0, -math.inf, math.inf, math.nan, 1e-45, 3e38, -3e38]
)


@pytest.mark.parametrize("dtype", DTYPES)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=90), data=st.data())
def test_any_numbers(dtype, numbers, data):
    x = np.array(numbers, dtype)
    check(x, data.draw(st.integers(1, x.size)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1000, 5000])
def test_long_lists(dtype, size):
    """Sorted by counting and by merging: ascending, descending, equal, few values, wide and close ones."""
    rng = np.random.default_rng(size)
    rows = [
        rng.standard_normal(size),
        np.arange(size, dtype=np.float64),
        -np.arange(size, dtype=np.float64),
        np.zeros(size),
        rng.integers(0, 3, size) * 1.0,
        np.ldexp(rng.choice([-1.0, 1.0], size), rng.integers(-149, 127, size)),
        1 + rng.integers(0, 4, size) * float(np.finfo(dtype).eps),
        np.where(rng.random(size) < 0.2, np.nan, rng.standard_normal(size)),
    ]
    for x in rows:
        for k in {1, (size + 1) // 2, size}:
            check(x.astype(dtype), k)
