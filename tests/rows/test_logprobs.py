"""logprobs against exact rows: targets, top-k and both at once, under any common offset."""

import math

import numpy as np
import pytest
import torch

import softcarry as sc
from row_cases import (
    BOXES,
    DTYPES,
    INF,
    KINDS,
    LENGTHS,
    NAN,
    PATTERNS,
    SHORT,
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
from row_oracle import assert_log_softmax, narrowed, row_of, top_of, unit_roundoff, working_format


def assert_targets(got, x, targets, axis=-1):
    """Fail unless log-probabilities (NumPy, working format) of targets with x.ndim axes are in bounds."""
    got = as_numpy(got)
    working = working_format(x.dtype)
    assert (got.shape, got.dtype) == (targets.shape, working)
    got, targets = np.moveaxis(got, axis, -1), np.moveaxis(targets, axis, -1)
    for index, scores in rows_along(x, axis):
        assert_log_softmax(got[index], row_of(scores), working, indices=targets[index])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_target_of_hard_rows(name, dtype):
    for n in LENGTHS[::4] if dtype == "float32" else SHORT[::4]:
        scores = pattern(name, n, DTYPES[dtype])
        targets = np.random.default_rng(n).permutation(n)
        assert_targets(sc.logprobs(scores, targets, dtype=working_format(dtype)), scores, targets)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_common_offset_of_1e8_costs_nothing(dtype):
    """(s − m) − ln l is the same to the bit where s and m are moved without error; s − lse loses 6 digits."""
    spread = (np.random.default_rng(2).integers(-8, 8, (4, 3000)) * 8).astype(dtype)
    targets = np.array([0, 17, 1500, 2999])
    moved = sc.logprobs(spread + np.array(1e8, dtype), targets)
    still = sc.logprobs(spread, targets)
    assert_same(moved, still)
    assert_targets(moved[:, None], spread, targets[:, None])
    top = sc.logprobs(spread + np.array(1e8, dtype), targets, top_k=3)
    assert_same(top.targets, still)
    assert_same(top.top, sc.logprobs(spread, top_k=3).top)
    naive = (spread + np.array(1e8, dtype))[np.arange(4), targets] - sc.logsumexp(
        spread + np.array(1e8, dtype)
    )
    assert np.abs(naive - still).max() > 1e6 * unit_roundoff(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index_dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_one_target_a_row_or_several(kind, index_dtype):
    values = pattern("normal", 3 * 40 * 5, np.float32).reshape(3, 40, 5)
    rng = np.random.default_rng(0)
    for axis in (-1, 0, 1, -2):
        n = values.shape[axis]
        one_shape = tuple(np.delete(values.shape, axis))
        one = rng.integers(0, n, one_shape).astype(index_dtype)
        got = sc.logprobs(as_kind(kind, values), as_kind(kind, one), axis=axis)
        assert as_numpy(got).shape == one_shape
        widened = np.expand_dims(one, axis % 3)
        assert_targets(np.expand_dims(as_numpy(got), axis % 3), values, widened.astype(np.int64), axis)
        for count in (0, 1, 4):
            shape = tuple(count if a == axis % 3 else size for a, size in enumerate(values.shape))
            several = rng.integers(0, n, shape).astype(index_dtype)
            got = sc.logprobs(as_kind(kind, values), as_kind(kind, several), axis=axis)
            assert_targets(got, values, several.astype(np.int64), axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_of_scores_and_targets(kind, dtype):
    values = np.stack([pattern("normal", 130, DTYPES[dtype], seed) for seed in range(6)])
    targets = np.random.default_rng(1).integers(0, 130, (6, 3))
    for name, view in layouts(values).items():
        if kind == "numpy" or name in TORCH_LAYOUTS:
            for chosen in (targets, np.asfortranarray(targets), np.repeat(targets, 2, 1)[:, ::2]):
                got = sc.logprobs(
                    as_kind(kind, view), as_kind(kind, chosen), dtype=working_format(dtype).name
                )
                assert_targets(got, values, targets)
    if kind == "numpy":
        backwards = np.ascontiguousarray(targets[::-1, ::-1])[::-1, ::-1]
        assert_targets(sc.logprobs(values, backwards, dtype=working_format(dtype)), values, targets)


@pytest.mark.parametrize("shape", BOXES)
def test_axes_in_every_order_and_direction_of_memory(shape):
    values = pattern("wide", math.prod(shape), np.float32).reshape(shape)
    for axis in range(values.ndim):
        count = tuple(2 if a == axis else n for a, n in enumerate(shape))
        targets = np.random.default_rng(axis).integers(0, shape[axis], count)
        for view, chosen in zip(
            memory_orders(values) + reversals(values),
            reversals(targets) + memory_orders(targets),
            strict=True,
        ):
            assert_targets(sc.logprobs(view, chosen, axis=axis), values, targets, axis)


@pytest.mark.parametrize("kind", KINDS)
def test_one_row(kind):
    values = np.array([2.0, 5.0, 1.0, 7.0])
    x = as_kind(kind, values)
    got = sc.logprobs(x, as_kind(kind, np.array(1)))
    assert as_numpy(got).shape == ()
    assert abs(float(got) - (-2 - math.log(sum(math.exp(s - 7) for s in values)))) < 1e-15
    assert_targets(sc.logprobs(x, as_kind(kind, np.array([3, 0]))), values, np.array([3, 0]))


@pytest.mark.parametrize("kind", KINDS)
def test_rules(kind):
    rows = np.array([[-INF, -INF], [INF, 0], [0, INF], [NAN, 0], [0, NAN], [-INF, 0], [NAN, INF]], np.float32)
    x = as_kind(kind, rows)
    for column, expected in (
        (0, [-INF, NAN, NAN, NAN, NAN, -INF, NAN]),
        (1, [-INF, NAN, NAN, NAN, NAN, 0, NAN]),
    ):
        got = sc.logprobs(x, as_kind(kind, np.full(7, column)))
        np.testing.assert_array_equal(as_numpy(got), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_targets_and_top_in_one_call(kind, dtype):
    names = list(PATTERNS)
    values = np.stack([pattern(name, 700, DTYPES[dtype]) for name in names])
    x = as_kind(kind, values)
    targets = np.random.default_rng(4).integers(0, 700, (len(names), 2))
    working = working_format(dtype)
    chosen, top, indices = sc.logprobs(x, as_kind(kind, targets), top_k=20, dtype=working.name)
    assert_targets(chosen, values, targets)
    want = np.array([top_of(row, 20) for row in values])
    np.testing.assert_array_equal(as_numpy(indices), want)
    assert as_numpy(indices).dtype == np.int64
    assert_targets(top, values, want)
    named = sc.logprobs(x, top_k=20, dtype=working.name)
    assert named.targets is None
    assert_same(named.top, top)
    assert_same(named.indices, indices)
    one = sc.logprobs(x, as_kind(kind, targets[:, 0]), top_k=20, dtype=working.name)
    assert_same(one.targets, chosen[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_top_along_any_axis(kind):
    values = pattern("normal", 3 * 40 * 5, np.float32).reshape(3, 40, 5)
    for axis in (0, 1, 2):
        moved = np.moveaxis(values, axis, -1)
        targets = np.zeros(moved.shape[:-1], np.int64)
        got = sc.logprobs(as_kind(kind, values), as_kind(kind, targets), axis=axis, top_k=2)
        want = np.moveaxis(np.apply_along_axis(lambda row: top_of(row, 2), -1, moved), -1, axis)
        np.testing.assert_array_equal(as_numpy(got.indices), want)
        assert_targets(got.top, values, want, axis)
        assert as_numpy(got.targets).shape == targets.shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrower_result_is_rounded_once_from_the_working_format(kind, dtype):
    values = np.stack([pattern("wide", 200, DTYPES[dtype], seed) for seed in range(30)])
    x, targets = as_kind(kind, values), as_kind(kind, np.tile(np.arange(0, 200, 7), (30, 1)))
    full = sc.logprobs(x, targets, top_k=9, dtype=working_format(dtype).name)
    for target in result_dtypes(dtype):
        want = [
            as_kind(kind, narrowed(as_numpy(a), DTYPES[target]).astype(DTYPES[target]))
            for a in (full.targets, full.top)
        ]
        assert_same(sc.logprobs(x, targets, dtype=target), want[0])
        got = sc.logprobs(x, targets, top_k=9, dtype=target)
        assert_same(got.targets, want[0])
        assert_same(got.top, want[1])
        assert_same(got.indices, full.indices)
        out = as_kind(kind, np.full(as_numpy(targets).shape, 7, DTYPES[target]))
        assert sc.logprobs(x, targets, out=out) is out
        assert_same(out, want[0])
        if target == dtype:
            assert_same(sc.logprobs(x, targets), want[0])


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_and_no_targets(kind):
    x = as_kind(kind, np.zeros((0, 5), np.float32))
    got = sc.logprobs(x, as_kind(kind, np.zeros(0, np.int64)))
    assert as_numpy(got).shape == (0,)
    got = sc.logprobs(x, as_kind(kind, np.zeros((0, 2), np.int64)), top_k=3)
    assert [as_numpy(a).shape for a in got] == [(0, 2), (0, 3), (0, 3)]
    nothing = as_kind(kind, np.zeros((4, 0), np.float32))
    assert as_numpy(sc.logprobs(nothing, as_kind(kind, np.zeros((4, 0), np.int64)))).shape == (4, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_computed_in_float64(kind):
    values = np.array([[0, 3, 1], [5, 5, 5]], np.int32)
    targets = np.array([[0, 1], [2, 0]])
    assert_targets(sc.logprobs(as_kind(kind, values), as_kind(kind, targets)), values, targets)


def test_torch_says_the_same():
    values = np.stack([pattern("normal", 1500, np.float32, seed) for seed in range(8)])
    targets = np.random.default_rng(6).integers(0, 1500, 8)
    x = torch.from_numpy(values)
    peer = -torch.nn.functional.cross_entropy(x, torch.from_numpy(targets), reduction="none")
    assert_targets(peer[:, None], values, targets[:, None])
    got = sc.logprobs(x, torch.from_numpy(targets))
    assert_targets(got[:, None], values, targets[:, None])
