"""The truth is that of loops in fifty digits; sound results are within its bound, others not."""

import ml_dtypes
import mpmath
import numpy as np
import pytest

from softcarry.benchmarks import _attention_truth
from softcarry.benchmarks._attention_inputs import Shape, inputs
from softcarry.benchmarks._attention_truth import attention_truth
from softcarry.benchmarks._row_truth import disagreement

SHAPES = (Shape(2, 4, 2, 3, 7, 5), Shape(1, 2, 2, 6, 6, 4), Shape(1, 3, 1, 1, 40, 8))
DTYPES = ("float32", "float64", "float16", "bfloat16")


def by_loops(q, k, v, causal):
    """Attention one query, key and number at a time, in fifty digits."""
    batch, heads, tq, d = q.shape
    tk, group = k.shape[2], heads // k.shape[1]
    output = np.empty((batch, heads, tq, v.shape[3]))
    with mpmath.workdps(50):
        for b, h, i in np.ndindex(batch, heads, tq):
            keys = range(i + tk - tq + 1) if causal else range(tk)
            scores = [
                mpmath.fdot(map(float, q[b, h, i]), map(float, k[b, h // group, j])) / mpmath.sqrt(d)
                for j in keys
            ]
            terms = [mpmath.exp(score) for score in scores]
            for c in range(v.shape[3]):
                column = [float(v[b, h // group, j, c]) for j in keys]
                output[b, h, i, c] = float(mpmath.fdot(terms, column) / mpmath.fsum(terms))
    return output


def in_one_pass(q, k, v, causal):
    """Plain attention in the working format, rounded once to the dtype of q."""
    working = np.float64 if q.dtype == np.float64 else np.float32
    group = q.shape[1] // k.shape[1]
    q_, k_, v_ = (x.astype(working) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    scores = q_ @ k_.swapaxes(2, 3) / np.sqrt(working(q.shape[3]))
    if causal:
        tq, tk = scores.shape[2:]
        scores[:, :, np.arange(tk) > np.arange(tq)[:, None] + tk - tq] = -np.inf
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    return (terms @ v_ / terms.sum(-1, keepdims=True)).astype(q.dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [1, 20, 2**19])
def test_expected_is_what_loops_in_fifty_digits_give(shape, causal, chunk, monkeypatch):
    monkeypatch.setattr(_attention_truth, "_CHUNK", chunk)
    q, kv = inputs(shape, "float32")
    expected = attention_truth(q, *kv, causal=causal).expected
    # d + tk + 4 roundings of float64 of numbers below 8, on a score and on a sum.
    assert np.abs(expected - by_loops(q, *kv, causal)).max() <= 64 * (shape.d + shape.tk + 4) * 2.0**-53


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sound_results_agree(dtype, causal):
    for shape in (*SHAPES, Shape.square(1, 2, 200, 64)):
        q, kv = inputs(shape, dtype)
        truth = attention_truth(q, *kv, causal=causal)
        assert disagreement("output", in_one_pass(q, *kv, causal), truth) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_results_do_not(dtype):
    q, (k, v) = inputs(Shape.square(1, 2, 200, 64), dtype)
    truth = attention_truth(q, k, v)
    causal = attention_truth(q, k, v, causal=True)
    right = in_one_pass(q, k, v, False)
    wrong = {
        "zeros": np.zeros_like(right),
        "NaN": np.where(np.arange(64) == 3, np.nan, right.astype(np.float64)),
        "other heads": right[:, ::-1],
        "other queries": right[:, :, ::-1],
        "causal": in_one_pass(q, k, v, True),
        "without the last key": in_one_pass(q, k[:, :, :-1], v[:, :, :-1], False),
        "without the first key": in_one_pass(q, k[:, :, 1:], v[:, :, 1:], False),
    }
    for name, result in wrong.items():
        assert disagreement("output", result, truth).startswith("output"), name
    assert disagreement("output", right, causal)
    # Top-left causality of one key fewer, where the last query does not see the last key.
    late = in_one_pass(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], True)
    early = np.concatenate([right[:, :, :1], late], axis=2)
    assert disagreement("output", early, causal)


def test_eight_places_lost_of_float32_are_seen():
    q, kv = inputs(Shape.square(1, 1, 256, 64), "float32")
    truth = attention_truth(q, *kv)
    rounded = truth.expected.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert disagreement("output", rounded, truth)
    assert (truth.bound < 2.0**-11).all()
