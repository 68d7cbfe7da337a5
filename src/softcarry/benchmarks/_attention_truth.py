"""What attention should return, by its plain formula in float64, and how far a sound kernel may be off.

The bound is the master bound of `softcarry.numerics.attention_bounds` to first order, with the largest error
of a row's scores in place of each, which costs one more matrix product in place of a dozen passes:

    |ô − o| ≤ w·(e^(2δ + 2ε) − 1 + E_l + E_o + 2Ru + 2u) + u_out·|o|,    w = Σ p|v|

A score's products, by Cauchy and Schwarz, are at most μ = scale·‖q‖·max‖k‖ together, and so are |s| and |m|:
δ = (γ_(d+4) + (6 + 2·log2 e)u)·μ. An exponential errs by 2 units in the last place, 4u, and so does each of R
rescales, ε = 4u(1 + R). The sums may be in any order, E = γ_n; the maximum may grow once in 32 keys.

Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, sections 3.1 and 4.2.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from softcarry.benchmarks._row_truth import Truth
from softcarry.numerics import gamma

_LOG2_E = 1.0 / math.log(2.0)
_KEYS_A_RESCALE = 32
_CHUNK = 2**19
"""Scores at a time, 4 MiB."""


class _Rows(NamedTuple):
    """Some query rows that share their keys, in float64, and where each stands among the keys."""

    queries: "np.ndarray[Any, Any]"
    keys: "np.ndarray[Any, Any]"
    values: "np.ndarray[Any, Any]"
    position: "np.ndarray[Any, Any]"


def attention_truth(q: Any, k: Any, v: Any, *, causal: bool = False) -> Truth:
    """Return exact attention and its bound, float64 and of the shape of the output.

    Parameters
    ----------
    q, k, v : ndarray (b, h, tq, d), (b, kv_heads, tk, d), (b, kv_heads, tk, dv)
        Finite numbers of one dtype; the scale is 1/√d.
    causal : bool
        Aligned bottom-right. Every query must see a key.

    Returns
    -------
    Truth
        Expected output and bound. For float64 inputs the expected output errs as well: the bound is twice as
        wide.

    Examples
    --------
    >>> ones = np.ones((1, 1, 2, 4), np.float32)
    >>> attention_truth(ones, ones, ones).expected[0, 0].tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    batch, heads, tq, _ = q.shape
    kv_heads, dv = k.shape[1], v.shape[3]
    shape = (batch, kv_heads, heads // kv_heads * tq, dv)
    expected, bound = np.empty(shape), np.empty(shape)
    for at, rows in _rows(q, k, v):
        expected[at], bound[at] = _attend(rows, causal=causal, dtype=q.dtype)
    return Truth(expected.reshape(batch, heads, tq, dv), bound.reshape(batch, heads, tq, dv))


def _rows(q: Any, k: Any, v: Any) -> Iterator[tuple[tuple[int, int, slice], _Rows]]:
    """Yield the queries of all heads that share keys, some at a time, with their place."""
    batch, heads, tq, d = q.shape
    kv_heads, tk = k.shape[1:3]
    position = np.tile(np.arange(tq) + tk - tq, heads // kv_heads)
    step = max(1, _CHUNK // tk)
    for entry, head in np.ndindex(batch, kv_heads):
        keys, values = k[entry, head].astype(np.float64), v[entry, head].astype(np.float64)
        queries = q.reshape(batch, kv_heads, -1, d)[entry, head].astype(np.float64)
        for start in range(0, len(queries), step):
            some = slice(start, start + step)
            yield (entry, head, some), _Rows(queries[some], keys, values, position[some])


def _attend(rows: _Rows, *, causal: bool, dtype: Any) -> tuple[Any, Any]:
    queries, keys, values, position = rows
    n, d = keys.shape
    scale = 1.0 / math.sqrt(d)
    weights = queries @ keys.T
    weights *= scale
    if causal:
        weights[np.arange(n) > position[:, None]] = -np.inf
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    expected, w = weights @ values, weights @ np.abs(values)
    magnitude = scale * np.linalg.norm(queries, axis=-1, keepdims=True) * np.linalg.norm(keys, axis=-1).max()
    return expected, _bound(expected, w, magnitude, n, d, np.dtype(dtype))


def _bound(expected: Any, w: Any, magnitude: Any, n: int, d: int, dtype: Any) -> Any:
    wide = dtype == np.float64
    working = "float64" if wide else "float32"
    u = 2.0**-53 if wide else 2.0**-24
    rescales = n // _KEYS_A_RESCALE
    score = (gamma(d + 4, u) + (6.0 + 2.0 * _LOG2_E) * u) * magnitude
    terms = np.expm1(2.0 * score + 8.0 * u * (1.0 + rescales))
    error = w * (terms + 2.0 * gamma(n, u) + 2.0 * (rescales + 1.0) * u)
    information = ml_dtypes.finfo(dtype)
    rounding = float(information.eps) / 2.0 * (np.abs(expected) + error)
    # What lies below the normal numbers of the working format may be flushed.
    smallest = ml_dtypes.finfo(np.dtype(working)).smallest_normal
    floor = max(float(smallest), float(information.smallest_subnormal))
    return (error + rounding + floor) * (2.0 if wide else 1.0)
