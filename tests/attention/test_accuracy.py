"""How much of an output's error is left beside its last rounding, from 64 to 131072 keys.

With float32 inside, an output in bfloat16 or float16 errs by its own rounding and nothing that counts: at
most 1.05 times as much, in the relative Frobenius norm, as the exact output rounded once. float32 outputs lie
within the master bound in its statistical form, λ√n·u in place of n·u with λ = 6, which a sum that drops a
key, stops moving or is rounded toward zero does not meet.
"""

import numpy as np
import pytest

import softcarry as sc
from attention_agreement import assert_carry, assert_output, bounds_of
from attention_cases import DTYPES, data
from attention_oracle import attention_of
from row_oracle import narrowed

COUNTS = (64, 512, 4096, 32768, 131072)


def problem(name: str, dtype: str, tq: int, heads: int, tk: int, d: int = 64):
    rng = np.random.default_rng([tk, tq, 13])
    return data(name, rng, (1, heads, tq, d), (1, 1, tk, d), (1, 1, tk, d), DTYPES[dtype])


def frobenius(x) -> float:
    return float(np.sqrt((x.astype(np.float64) ** 2).sum()))


# Few rows where there are many keys: two of 64 numbers are enough for the norms.
SIZES = [
    (tk, tq, heads)
    for tk in COUNTS
    for tq, heads in ((1, 8 if tk < 32768 else 2), (min(256, max(12, 2**18 // tk)), 1))
]


@pytest.mark.parametrize("name", ["normal", "positive"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("tk", "tq", "heads"), SIZES)
def test_narrow_outputs_err_by_their_rounding_alone(name, dtype, tk, tq, heads):
    q, k, v = problem(name, dtype, tq, heads, tk)
    exact = attention_of(q, k, v).output
    floor = frobenius(narrowed(exact, DTYPES[dtype]) - exact) / frobenius(exact)
    error = frobenius(sc.attention(q, k, v).astype(np.float64) - exact) / frobenius(exact)
    assert floor > 0
    assert error <= 1.05 * floor, f"{error / floor:.4f} times the rounding of the output"


@pytest.mark.parametrize("name", ["normal", "positive"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("tk", "tq", "heads"), [size for size in SIZES if size[0] <= 32768])
def test_wide_outputs_lie_within_the_statistical_bound(name, dtype, tk, tq, heads):
    if dtype == "float64":
        # Long doubles are multiplied one at a time.
        tq, tk = min(tq, 4), min(tk, 4096)
    q, k, v = problem(name, dtype, tq, heads, tk)
    truth = attention_of(q, k, v)
    bounds = bounds_of(truth, statistical=True)
    assert_output(sc.attention(q, k, v), truth, bounds)
    assert_carry(sc.attention_carry(q, k, v), truth, bounds)


@pytest.mark.parametrize("tq", [1, 4, 32])
def test_errors_of_flat_scores_do_not_grow_with_the_keys(tq):
    """Zero queries, values of one sign. The bound is twice λ√4096·u for all n, with λ = 6.

    It allows for 4096 additions after one another, and their errors mean zero. A sum that loses half a place
    with each of 131072 additions is off by 85 times as much. l counts keys, so that it is exact.
    """
    for tk in COUNTS:
        rng = np.random.default_rng(tk)
        q, k = np.zeros((1, 2, tq, 8), np.float32), rng.normal(size=(1, 1, tk, 8)).astype(np.float32)
        v = rng.random((1, 1, tk, 24)).astype(np.float32)
        exact = v.astype(np.float64).mean(axis=2, keepdims=True)
        error = np.abs(sc.attention(q, k, v).astype(np.float64) - exact) / exact
        assert error.max() <= 2 * 6 * 64 * 2.0**-24
        np.testing.assert_array_equal(sc.attention_carry(q, k, v).l, tk)


def test_a_dropped_key_would_be_seen_at_4096_keys():
    """The statistical bound is tight enough to tell: the same check refuses one key less."""
    q, k, v = problem("normal", "float32", 64, 1, 4096)
    truth = attention_of(q, k, v)
    less = attention_of(q, k[:, :, :-1], v[:, :, :-1]).output.astype(np.float32)
    with pytest.raises(AssertionError, match="output"):
        assert_output(less, truth, bounds_of(truth, statistical=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_rounded_to_the_dtype_would_be_seen(dtype):
    """P in the dtype of the inputs, as kernels on matrix units have it, errs by more than 1.05 roundings."""
    q, k, v = problem("normal", dtype, 32, 1, 4096)
    truth = attention_of(q, k, v)
    rows = truth.parts[0]
    p = narrowed(np.exp(rows.scores - rows.m[..., None]), DTYPES[dtype])
    output = narrowed(np.matmul(p, v[0].astype(np.float64)) / rows.l[..., None], DTYPES[dtype])
    floor = frobenius(narrowed(truth.output, DTYPES[dtype]) - truth.output)
    assert frobenius(output - truth.output[0]) > 1.05 * floor
