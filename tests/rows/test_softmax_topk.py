"""softmax_topk against a sort."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import softcarry as sc
from row_cases import (
    BOXES,
    DTYPES,
    INF,
    KINDS,
    NAN,
    PATTERNS,
    TORCH_LAYOUTS,
    as_kind,
    as_numpy,
    assert_same,
    layouts,
    memory_orders,
    pattern,
    result_dtypes,
    reversals,
    rows_along,
)
from row_oracle import (
    assert_lse,
    assert_softmax,
    assert_sum,
    narrowed,
    row_of,
    top_of,
    working_format,
)


def assert_top(top, x, k, axis=-1, *, offset=0, empty="zero"):
    """Fail unless a TopK in the working format is the sorted head of every row of x, of NumPy."""
    working = working_format(x.dtype)
    probabilities, indices, lse = map(as_numpy, top)
    scores, m, l = as_numpy(top.scores), as_numpy(top.carry.m), as_numpy(top.carry.l)
    assert (scores.dtype, probabilities.dtype, indices.dtype, lse.dtype) == (
        working,
        working,
        np.int64,
        working,
    )
    assert (top.k, top.n) == (k, x.shape[axis])
    shape = tuple(k if a == axis % x.ndim else n for a, n in enumerate(x.shape))
    assert probabilities.shape == indices.shape == scores.shape == shape
    scores, probabilities, indices = (np.moveaxis(a, axis, -1) for a in (scores, probabilities, indices))
    for index, values in rows_along(x, axis):
        row, want = row_of(values), top_of(values, k)
        np.testing.assert_array_equal(indices[index] - offset, want)
        assert_same(scores[index], values[want].astype(working))
        assert_softmax(probabilities[index], row, working, empty=empty, indices=want)
        assert_lse(lse[index], row, working)
        np.testing.assert_equal(float(m[index]), float(row.m))
        assert_sum(l[index], row, working)


def top_in_working_format(x, k, **options):
    return sc.softmax_topk(x, k, dtype=working_format(as_numpy(x).dtype).name, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PATTERNS)
def test_hard_rows(name, dtype):
    for n in (1, 2, 9, 33, 64, 257, 1025):
        scores = pattern(name, n, DTYPES[dtype])
        for k in sorted({1, min(n, 2), min(n, 5), min(n, 50), n // 2 or 1, n}):
            assert_top(top_in_working_format(scores, k), scores, k)


@pytest.mark.parametrize("name", PATTERNS)
def test_hard_rows_that_are_long(name):
    for n, k in ((16385, 5), (40000, 300), (100003, 50), (16384, 16384)):
        scores = pattern(name, n, np.float32)
        assert_top(sc.softmax_topk(scores, k), scores, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_go_to_the_lower_index(dtype):
    """Few values and long rows: nearly every place in the order is decided by the index."""
    rng = np.random.default_rng(11)
    for n in (40, 600, 3000):
        scores = rng.choice([-INF, -1.0, -0.0, 0.0, 1.0, 2.0], (6, n)).astype(DTYPES[dtype])
        for k in (1, 7, n // 2, n):
            for axis, x in ((1, scores), (0, np.ascontiguousarray(scores.T))):
                assert_top(top_in_working_format(x, k, axis=axis), x, k, axis)


def test_zeros_of_both_signs_tie_and_keep_their_sign():
    scores = np.array([-0.0, 0.0, -0.0, 0.0, -1.0], np.float32)
    top = sc.softmax_topk(scores, 4)
    np.testing.assert_array_equal(top.indices, [0, 1, 2, 3])
    np.testing.assert_array_equal(np.signbit(top.scores), [True, False, True, False])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_greatest_and_makes_its_row_nan(dtype):
    n = 520
    scores = np.tile(pattern("normal", n, DTYPES[dtype]), (n, 1))
    np.fill_diagonal(scores, NAN)
    scores[3, 77], scores[4, 90], scores[5, 200:] = -NAN, INF, -INF
    top = sc.softmax_topk(scores, 6)
    assert np.isnan(top.probabilities.astype(float)).all()
    assert np.isnan(top.lse).all()
    for row, indices in zip(scores, top.indices, strict=True):
        np.testing.assert_array_equal(indices, top_of(row, 6))
    infinite = scores[1:2].copy()
    infinite[0, 1] = INF
    top = sc.softmax_topk(infinite, 3)
    assert np.isnan(top.probabilities.astype(float)).all()
    assert (top.lse[0], top.scores[0, 0], top.indices[0, 0]) == (INF, INF, 1)
    assert np.isnan(top.carry.l).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_live_scores(kind):
    x = as_kind(kind, np.full((2, 700), -INF, np.float32))
    choices: list[Any] = [("zero", 0.0), ("nan", NAN)]
    for empty, expected in choices:
        probabilities, indices, lse = map(as_numpy, sc.softmax_topk(x, 3, empty=empty))
        np.testing.assert_array_equal(probabilities, np.full((2, 3), expected))
        np.testing.assert_array_equal(indices, [[0, 1, 2]] * 2)
        np.testing.assert_array_equal(lse, [-INF, -INF])


def test_scores_of_minus_inf_come_last_in_the_order_of_their_index():
    scores = np.full(900, -INF, np.float32)
    scores[[850, 3]] = 1.0, 2.0
    probabilities, indices, _ = sc.softmax_topk(scores, 6, empty="nan")
    np.testing.assert_array_equal(indices, [3, 850, 0, 1, 2, 4])
    np.testing.assert_array_equal(probabilities[2:], 0)


def test_subnormal_scores_are_told_apart():
    for dtype in (np.float64, np.float32, np.float16):
        scores = np.array([3, 1, 2, -1, 0, 4]).astype(dtype) * np.finfo(dtype).smallest_subnormal
        top = sc.softmax_topk(scores, 6)
        np.testing.assert_array_equal(top.indices, [5, 0, 2, 1, 4, 3])
        np.testing.assert_array_equal(top.scores, np.sort(scores)[::-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 6), (5, 37), (2, 1300), (70, 9)])
def test_every_layout(kind, dtype, shape):
    values = np.stack([pattern("normal", shape[1], DTYPES[dtype], seed) for seed in range(shape[0])])
    for name, view in layouts(values).items():
        if kind == "numpy" or name in TORCH_LAYOUTS:
            for axis, k in ((-1, 5), (0, 2)) if shape[1] < 100 else ((-1, 50),):
                assert_top(top_in_working_format(as_kind(kind, view), k, axis=axis), values, k, axis)


@pytest.mark.parametrize("kind", KINDS)
def test_the_axis_may_be_any_of_four(kind):
    values = pattern("normal", 3 * 40 * 5 * 6, np.float32).reshape(3, 40, 5, 6)
    for view in (values, np.asfortranarray(values)[:, ::2, 1:, ::3]):
        for axis in range(4):
            top = sc.softmax_topk(as_kind(kind, view), 2, axis=axis)
            assert_top(top, view, 2, axis)
            for got, want in zip(sc.softmax_topk(as_kind(kind, view), 2, axis=axis - 4), top, strict=True):
                assert_same(got, want)


@pytest.mark.parametrize("shape", BOXES)
def test_axes_in_every_order_and_direction_of_memory(shape):
    values = pattern("wide", math.prod(shape), np.float32).reshape(shape)
    for view in memory_orders(values) + reversals(values):
        for axis in range(values.ndim):
            assert_top(sc.softmax_topk(view, 2, axis=axis), values, 2, axis)


@pytest.mark.parametrize("kind", KINDS)
def test_strides_of_zero(kind):
    column = np.array([[1.5], [-2.0]], np.float32)
    numpy = kind == "numpy"
    x = np.broadcast_to(column, (2, 1300)) if numpy else torch.from_numpy(column).expand(2, 1300)
    assert_top(sc.softmax_topk(x, 600), np.tile(column, (1, 1300)), 600)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows(kind):
    for shape, axis in (((0, 5), 1), ((3, 4, 0), 1)):
        top = sc.softmax_topk(as_kind(kind, np.zeros(shape, np.float32)), 2, axis=axis)
        assert_top(top, np.zeros(shape, np.float32), 2, axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
def test_integers_are_computed_in_float64(kind, dtype):
    values = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0]], dtype)
    assert_top(sc.softmax_topk(as_kind(kind, values), 4), values, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_are_rounded_once_from_the_working_format(kind, dtype):
    values = np.stack([pattern("normal", 200, DTYPES[dtype], seed) for seed in range(10)])
    x = as_kind(kind, values)
    full = top_in_working_format(x, 40)
    for target in result_dtypes(dtype):
        want = narrowed(as_numpy(full.probabilities), DTYPES[target]).astype(DTYPES[target])
        for top in [sc.softmax_topk(x, 40, dtype=target)] + [sc.softmax_topk(x, 40)] * (target == dtype):
            assert_same(top.probabilities, as_kind(kind, want))
            for name in ("scores", "indices", "lse"):
                assert_same(getattr(top, name), getattr(full, name))


def test_it_unpacks_and_is_frozen():
    top = sc.softmax_topk(np.array([2.0, 5.0, 1.0, 7.0]), 2)
    probabilities, indices, lse = top
    assert_same(probabilities, top.probabilities)
    assert_same(indices, top.indices)
    assert lse == top.lse
    np.testing.assert_array_equal(indices, [3, 1])
    np.testing.assert_array_equal(top.scores, [7.0, 5.0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        top.scores = top.indices  # pyright: ignore[reportAttributeAccessIssue]


def test_the_offset_is_added_to_the_indices():
    scores = pattern("normal", 300, np.float32)
    for offset in (0, 1, 2**31, 2**40):
        assert_top(sc.softmax_topk(scores, 7, offset=offset), scores, 7, offset=offset)
