"""Rows of scores in extended precision, the bounds on what rounding makes of them, and exact narrowing.

Nothing here calls softcarry, but for `lse_bound`, whose constants the issue of the row functions names. All
is in NumPy's long double (64 bits of mantissa on x86, 113 on AArch64); `tests/rows/test_logsumexp.py` holds
it to mpmath.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from softcarry.numerics import lse_bound

WIDE = np.longdouble
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# How many additions of the working format a term of l passes at most. Rows of up to 128 scores lie across
# vectors, summed in 4 lanes (2 in float64) and then over these: 32 + 2 (64 + 1). Longer ones are summed in
# chunks of 2048, in 32 lanes (16) by 4 runs (8) of 16 additions, then over the lanes, 4 more for the end:
# 16 + 4 + 5 + 4 (16 + 8 + 4 + 4). Chunks are added in float64.
DEPTH = {"float32": 34, "float64": 65}

# Stored mantissa bits and least exponent of a normal number.
LAYOUT = {"float64": (52, -1022), "float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


@dataclass(frozen=True)
class Row:
    """m, l and lse of one row of scores, and for every score its gap m − s and its term e^(s − m)."""

    scores: np.ndarray
    m: WIDE
    l: WIDE
    lse: WIDE
    gaps: np.ndarray
    terms: np.ndarray

    @property
    def kind(self) -> str:
        if np.isnan(self.m):
            return "nan"
        if self.m == math.inf:
            return "inf"
        return "empty" if self.m == -math.inf else "live"


def exact_sum(terms: np.ndarray) -> WIDE:
    """Σ of long doubles, rounded once: halves that are float64, summed without error by fsum."""
    high = terms.astype(np.float64)
    parts = [*high.tolist(), *(terms - high).astype(np.float64).tolist()]
    total = math.fsum(parts)
    return WIDE(total) + WIDE(math.fsum([*parts, -total]))


def row_of(scores) -> Row:
    """Return the row of scores (n,), n ≥ 0, of any of the dtypes; integers are taken as float64."""
    scores = np.asarray(scores)
    # The same rows come back in many layouts.
    return _remembered(scores.tobytes(), scores.dtype) if scores.size <= 1500 else _row_of(scores)


@lru_cache(2048)
def _remembered(data: bytes, dtype: np.dtype) -> Row:
    return _row_of(np.frombuffer(data, dtype))


def _row_of(scores: np.ndarray) -> Row:
    wide = (scores.astype(np.float64) if scores.dtype.kind in "iub" else scores).astype(WIDE)
    nothing = np.full(wide.shape, np.nan, WIDE)
    if np.isnan(wide).any():
        return Row(wide, WIDE(np.nan), WIDE(np.nan), WIDE(np.nan), nothing, nothing)
    m = wide.max() if wide.size else WIDE(-math.inf)
    if m == math.inf:
        return Row(wide, m, WIDE(np.nan), m, nothing, nothing)
    if m == -math.inf:
        return Row(wide, m, WIDE(0), m, np.full(wide.shape, math.inf, WIDE), np.zeros(wide.shape, WIDE))
    gaps = m - wide
    terms = np.exp(-gaps)
    l = exact_sum(terms)
    return Row(wide, m, l, m + np.log(l), gaps, terms)


def softmax_of(row: Row, empty: str = "zero") -> np.ndarray:
    if row.kind == "live":
        return row.terms / row.l
    nothing = 0.0 if row.kind == "empty" and empty == "zero" else np.nan
    return np.full(row.scores.shape, nothing, WIDE)


def log_softmax_of(row: Row, empty: str = "zero") -> np.ndarray:
    if row.kind == "live":
        return -row.gaps - np.log(row.l)
    nothing = -math.inf if row.kind == "empty" and empty == "zero" else np.nan
    return np.full(row.scores.shape, nothing, WIDE)


def top_of(scores, k: int) -> list[int]:
    """The k indices of the greatest scores: NaN, then descending; of equals the lower index first."""
    values = [float(s) for s in np.asarray(scores)]
    return sorted(range(len(values)), key=lambda j: (values[j] == values[j], -values[j], j))[:k]


def narrowed(values, dtype) -> np.ndarray:
    """Round float64 or narrower values to a dtype, to nearest and ties to even, once; as float64.

    The quantum of each value is a power of two, so dividing by it is exact and one rint does all rounding.
    """
    bits, least = LAYOUT[np.dtype(dtype).name]
    values = np.asarray(values, np.float64)
    finite = np.where(np.isfinite(values), values, 0.0)
    quantum = np.maximum(np.frexp(finite)[1] - 1, least) - bits
    with np.errstate(over="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(finite, -quantum)), quantum)
    largest = float(ml_dtypes.finfo(dtype).max)
    rounded = np.where(np.abs(rounded) > largest, np.copysign(math.inf, rounded), rounded)
    return np.where(np.isfinite(values), rounded, values)


def working_format(dtype) -> np.dtype:
    """float64 for float64 and integers, float32 for what is narrower."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float64 if dtype == np.float64 or dtype.kind in "iub" else np.float32)


def unit_roundoff(dtype) -> float:
    return 2.0 ** -(LAYOUT[np.dtype(dtype).name][0] + 1)


def sum_error(n: int, dtype, merges: int = 0) -> float:
    """E_l, the bound on the relative error of l in a working format, whatever the scores.

    A term passes DEPTH additions and 1 rounding of the total; its exponential errs by 2 ulp = 4u; s − m is
    rounded, u·(m − s), and multiplied by a log2 e that is off by at most 0.23 u: both weigh
    Σ t·(m − s)/l ≤ ln n at most. Blocks are added in float64: for float32
    that adds nothing worth counting, so that n appears in the logarithm alone. In float64 a block costs an
    exponential, a product and a sum more, and so does in either format each merge of carries that a caller
    asks for.
    """
    u = unit_roundoff(dtype)
    blocks = 0 if np.dtype(dtype) == np.float32 else 6 * math.ceil(n / 512)
    return 1.01 * u * (DEPTH[np.dtype(dtype).name] + 1 + 4 + 1.23 * math.log(max(n, 1)) + blocks + 6 * merges)


def assert_sum(got, row: Row, dtype) -> None:
    """Fail unless l lies within E_l; got is one number of a working format."""
    if row.kind != "live":
        np.testing.assert_equal(float(got), float(row.l))
        return
    assert abs(WIDE(got) - row.l) <= sum_error(row.scores.size, dtype) * row.l


def assert_lse(got, row: Row, dtype, *, merges: int = 0) -> None:
    """Fail unless one lse of a working format lies within twice the bound of `softcarry.numerics`."""
    if row.kind != "live":
        np.testing.assert_equal(float(got), float(row.lse))
        return
    error = sum_error(row.scores.size, dtype, merges)
    bound = 2 * lse_bound(float(row.m), float(row.l), error, np.dtype(dtype).name)
    assert abs(WIDE(got) - row.lse) <= bound, (got, row.lse, bound)


def assert_softmax(
    got, row: Row, dtype, *, empty: str = "zero", indices: Any = slice(None), merges: int = 0
) -> None:
    """Fail unless probabilities (of the scores at the indices) in a working format are within their bound.

    Relative to each: the rounded s − m moves e^(s − m) by u·(m − s), its exponential errs by 2 ulp = 4u, l by
    E_l, and a reciprocal and a product (or a quotient) round twice. A term below the least normal number may
    be flushed, and so may a quotient.
    """
    got, want = np.asarray(got).astype(WIDE), softmax_of(row, empty)[indices]
    assert got.shape == want.shape
    if row.kind != "live":
        np.testing.assert_array_equal(got, want)
        return
    gaps, terms = row.gaps[indices], row.terms[indices]
    tiny = WIDE(2.0) ** LAYOUT[np.dtype(dtype).name][1]
    # A gap of infinity has a want of 0, which only 0 equals, and any bound.
    bound = 1.01 * unit_roundoff(dtype) * (np.minimum(gaps, 1e5) + 4 + 2)
    bound = bound + sum_error(row.scores.size, dtype, merges)
    near = np.abs(got - want) <= bound * want
    subnormal = (want < tiny) & (np.abs(got - want) <= bound * want + tiny * 2 * unit_roundoff(dtype))
    flushed = (got == 0) & (np.minimum(terms, want) < tiny * (1 + np.minimum(bound, 1)))
    wrong = np.flatnonzero(~(near | subnormal | flushed))
    assert not wrong.size, (wrong[:5], got[wrong[:5]], want[wrong[:5]], bound[wrong[:5]])


def assert_log_softmax(got, row: Row, dtype, *, empty: str = "zero", indices: Any = slice(None)) -> None:
    """Fail unless log-probabilities (of the scores at the indices) in a working format are within bounds.

    Absolute: s − m rounds by u·(m − s), a logarithm of one ulp errs by 2u·ln l, l's own error moves it by
    −ln(1 − E_l), and the last subtraction rounds by u times the result. There is no term in m: a common
    offset costs nothing. What lies beyond the largest number is −inf.
    """
    got, want = np.asarray(got).astype(WIDE), log_softmax_of(row, empty)[indices]
    assert got.shape == want.shape
    if row.kind != "live":
        np.testing.assert_array_equal(got, want)
        return
    u, error = unit_roundoff(dtype), sum_error(row.scores.size, dtype)
    bound = 1.01 * u * (row.gaps[indices] + 2 * np.log(row.l) + np.abs(want)) - math.log1p(-error)
    beyond = want < -float(np.finfo(dtype).max)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= bound
    wrong = np.flatnonzero(~np.where(beyond, got == -math.inf, near))
    assert not wrong.size, (wrong[:5], got[wrong[:5]], want[wrong[:5]])
