"""The oracle of attention against three nested loops in fifty digits, and against torch in float64.

The loops take each row by itself from the arguments as a caller writes them: no array is cut, repeated,
gathered or broadcast by NumPy, so that the index arithmetic of the oracle is held to another one's.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

from attention_cases import Case, random_cases
from attention_oracle import attention_of

INF, NAN = math.inf, math.nan


def at(array, *index):
    """Element of an array that is broadcast to more axes than it has, by hand."""
    index = index[len(index) - array.ndim :]
    return float(array[tuple(i if n > 1 else 0 for i, n in zip(index, array.shape, strict=True))])


def by_loops(q, k, v, b, h, i, options):
    """m, l, o and output of one row in mpmath, straight from the documented meaning of every option."""
    lengths, table = options.get("kv_lengths"), options.get("block_table")
    cuts, causal = options.get("cu_seqlens"), options.get("causal", False)
    query_cuts, key_cuts = cuts if isinstance(cuts, tuple) else (cuts, cuts)
    sequence, first_query, first_key, queries, keys = b, 0, 0, q.shape[2], k.shape[2]
    if cuts is not None:
        sequence = max(s for s in range(len(query_cuts) - 1) if query_cuts[s] <= i)
        first_query, queries = int(query_cuts[sequence]), int(query_cuts[sequence + 1] - query_cuts[sequence])
        if table is None:
            first_key, keys = int(key_cuts[sequence]), int(key_cuts[sequence + 1] - key_cuts[sequence])
    if lengths is not None:
        keys = int(lengths[sequence])
    offset = 0 if causal == "top-left" else keys - queries
    place, depth, kv_head = i - first_query + offset, q.shape[3], h // (q.shape[1] // k.shape[1])
    scale = options.get("scale")
    scale = 1 / mpmath.sqrt(depth) if scale is None else mpmath.mpf(float(scale))
    left, right = options.get("window") or (None, None)
    m, l, o = -INF, mpmath.mpf(0), [mpmath.mpf(0)] * v.shape[3]
    scores, values = [], []
    for j in range(keys):
        if causal and j > place:
            continue
        if (left is not None and place - j > left) or (right is not None and j - place > right):
            continue
        row = (b, first_key + j)
        if options.get("mask") is not None and not at(options["mask"], b, h, i, row[1]):
            continue
        if table is not None:
            page, token = table[sequence, j // k.shape[2]], j % k.shape[2]
            key, value = k[page, kv_head, token], v[page, kv_head, token]
        else:
            key, value = k[b, kv_head, row[1]], v[b, kv_head, row[1]]
        score = scale * mpmath.fsum(
            mpmath.mpf(float(x)) * mpmath.mpf(float(y)) for x, y in zip(q[b, h, i], key, strict=True)
        )
        if options.get("softcap") is not None:
            cap = mpmath.mpf(float(options["softcap"]))
            score = cap * mpmath.tanh(score / cap)
        if options.get("bias") is not None:
            bias = at(options["bias"], b, h, i, row[1])
            if bias == -INF:
                continue
            score += mpmath.mpf(bias)
        if options.get("alibi") is not None:
            slopes = options["alibi"]
            slope = slopes[h] if slopes.ndim == 1 else slopes[sequence, h]
            score -= mpmath.mpf(float(slope)) * abs(place - j)
        scores.append(score)
        values.append([mpmath.mpf(float(x)) for x in value])
    if options.get("sinks") is not None and float(options["sinks"][h]) > -INF:
        scores.append(mpmath.mpf(float(options["sinks"][h])))
        values.append([mpmath.mpf(0)] * v.shape[3])
    if not scores:
        return m, l, o, o
    m = max(scores)
    terms = [mpmath.exp(s - m) for s in scores]
    l = mpmath.fsum(terms)
    o = [
        mpmath.fsum(t * x for t, x in zip(terms, column, strict=True)) for column in zip(*values, strict=True)
    ]
    return m, l, o, [x / l for x in o]


def largest(x):
    x = x.astype(np.float64)
    return np.abs(x[np.isfinite(x)]).max(initial=0.0)


def close(got, want, scale, bits):
    high = float(got)
    low = float(got - type(got)(high))
    return abs(mpmath.mpf(high) + mpmath.mpf(low) - want) <= 2.0**-bits * (abs(want) + scale)


def assert_agree(case: Case):
    q, k, v, options = case.build()
    truth = attention_of(q, k, v, **options)
    # Sums of 20 numbers, in 8 bits less than the oracle has; of the size of scores, since e^x magnifies.
    bits = np.finfo(truth.m.dtype).nmant - 8
    size = 1 + sum(float(largest(part.sequence.magnitudes())) for part in truth.parts)
    with mpmath.workdps(50):
        for b, h, i in itertools.product(*(range(n) for n in q.shape[:3])):
            m, l, o, output = by_loops(q, k, v, b, h, i, options)
            if m == -INF:
                assert (truth.m[b, h, i], truth.l[b, h, i], truth.lse[b, h, i]) == (-INF, 0, -INF)
                assert not truth.o[b, h, i].any()
                assert not truth.output[b, h, i].any()
                continue
            weight = float(largest(v)) * size * float(l)
            assert close(truth.m[b, h, i], m, size, bits)
            assert close(truth.l[b, h, i], l, size * float(l), bits)
            assert close(truth.lse[b, h, i], m + mpmath.log(l), size, bits)
            for c in range(v.shape[3]):
                assert close(truth.o[b, h, i, c], o[c], weight, bits)
                assert close(truth.output[b, h, i, c], output[c], weight, bits)


@pytest.mark.parametrize("case", random_cases(80, tiny=True), ids=str)
def test_the_oracle_agrees_with_loops_in_fifty_digits(case):
    assert_agree(case)


def test_the_cases_of_the_loops_use_everything():
    """Otherwise an option of the oracle would be held to nothing."""
    cases = random_cases(80, tiny=True)
    used = {name for case in cases for name in case.build()[3]}
    assert used >= {
        *("scale", "causal", "window", "mask", "bias", "softcap", "alibi", "sinks"),
        *("kv_lengths", "cu_seqlens", "block_table"),
    }
    assert {case.structure for case in cases} >= {"plain", "lengths", "packed", "packed pair", "paged"}


@pytest.mark.parametrize("name", ["plain", "scale", "causal", "mask", "bias", "groups"])
def test_the_oracle_agrees_with_torch_in_float64(name):
    rng = np.random.default_rng(5)
    heads, kv_heads, tq, tk, d, dv = 6, 2 if name == "groups" else 6, 17, 29, 12, 7
    q = rng.normal(size=(2, heads, tq, d))
    k, v = rng.normal(size=(2, kv_heads, tk, d)), rng.normal(size=(2, kv_heads, tk, dv))
    mask = rng.random((2, 1, tq, tk)) < 0.6
    bias = rng.normal(size=(heads, tq, tk))
    ours, theirs = {
        "plain": ({}, {}),
        "scale": ({"scale": 0.3}, {"scale": 0.3}),
        "causal": ({"causal": "top-left"}, {"is_causal": True}),
        "mask": ({"mask": mask}, {"attn_mask": torch.from_numpy(mask)}),
        "bias": ({"bias": bias}, {"attn_mask": torch.from_numpy(bias)}),
        "groups": ({}, {"enable_gqa": True}),
    }[name]
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k, v)), **theirs
    ).numpy()
    got = attention_of(q, k, v, **ours).output.astype(np.float64)
    # Means of 29 values of size 4 at most by either: (d + n + 4)·u of each, of a sum of weights that is 1.
    np.testing.assert_allclose(got, want, rtol=0, atol=2 * (12 + 29 + 4) * 2.0**-53 * 4 * 4)


def test_causality_aligned_bottom_right_as_a_mask_of_torch():
    q, k, v = (np.random.default_rng(n).normal(size=(1, 2, n, 8)) for n in (5, 9, 9))
    mask = torch.ones(5, 9, dtype=torch.bool).tril(9 - 5)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k, v)), attn_mask=mask
    )
    for causal in (True, "bottom-right"):
        got = attention_of(q, k, v, causal=causal).output.astype(np.float64)
        np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-14)


def test_live_infinities_and_nan_of_the_oracle():
    """0·inf is not formed, yet an infinity of weight 0 counts; a NaN and opposite infinities are NaN."""
    q, k = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 3, 1))
    v = np.array([[INF, INF, NAN, 1.0], [0.0, -INF, 0.0, 2.0], [1.0, 1.0, 1.0, 3.0]])[None, None]
    bias = np.array([-2000.0, 0.0, 0.0])
    np.testing.assert_array_equal(attention_of(q, k, v, bias=bias).output[0, 0, 0], [INF, NAN, NAN, 2.5])
    bias[0] = -INF
    np.testing.assert_array_equal(attention_of(q, k, v, bias=bias).output[0, 0, 0], [0.5, -INF, 0.5, 2.5])
