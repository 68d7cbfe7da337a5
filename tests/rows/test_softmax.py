"""softmax and log_softmax against exact rows: hard data, layouts, shapes, rules, and sums that are 1."""

import math
import tracemalloc

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
from row_oracle import (
    LAYOUT,
    assert_log_softmax,
    assert_softmax,
    exact_sum,
    narrowed,
    row_of,
    unit_roundoff,
    working_format,
)

FUNCTIONS = ("softmax", "log_softmax")
CHECKS = {"softmax": assert_softmax, "log_softmax": assert_log_softmax}


def assert_function(name, x, got, axis=-1, **options):
    """Fail unless every row of a result in the working format is within its bound; x is of NumPy."""
    got = as_numpy(got)
    assert got.shape == x.shape
    working = working_format(x.dtype)
    assert got.dtype == working
    results = np.moveaxis(got, axis, -1)
    for index, scores in rows_along(x, axis):
        CHECKS[name](results[index], row_of(scores), working, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_hard_rows_of_every_length(function, name, dtype):
    call = getattr(sc, function)
    for n in LENGTHS if dtype == "float32" else SHORT[::3]:
        scores = pattern(name, n, DTYPES[dtype])
        assert_function(function, scores, call(scores, dtype=working_format(dtype)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_probabilities_sum_to_one(dtype):
    """Within n·u, as promised: n = 1 and 2 leave room for one rounding of each probability and no more."""
    u = unit_roundoff(dtype)
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 4, 5, 8, 9, 16, 33):
        scores = (rng.normal(size=(3000, n)) * rng.choice([0.1, 1.0, 8.0], (3000, 1))).astype(dtype)
        sums = sc.softmax(scores).astype(np.longdouble).sum(1)
        assert np.abs(sums - 1).max() <= n * u, n
    for name in PATTERNS:
        if name != "all masked":
            for n in (100, 1000, 40000):
                total = exact_sum(sc.softmax(pattern(name, n, DTYPES[dtype])).astype(np.longdouble))
                assert abs(total - 1) <= n * u, (name, n)


def test_a_lone_live_score_has_all_the_weight_wherever_it_stands():
    for n in (1, 2, 31, 64, 129, 513, 1100):
        scores = np.full((n, n), -INF, np.float32)
        np.fill_diagonal(scores, np.arange(n) * 37 % 101 - 50.0)
        for axis in (0, 1):
            np.testing.assert_array_equal(sc.softmax(scores, axis=axis), np.eye(n))
            with np.errstate(divide="ignore"):
                np.testing.assert_array_equal(sc.log_softmax(scores, axis=axis), np.log(np.eye(n)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("found", [NAN, -NAN, INF])
def test_nan_and_inf_take_their_whole_row_and_no_other(function, found, dtype):
    call = getattr(sc, function)
    for n in (1, 2, 17, 65, 513, 1025):
        scores = np.tile(pattern("normal", n, DTYPES[dtype]), (2 * n, 1))
        scores[np.arange(0, 2 * n, 2), np.arange(n)] = found
        for axis, x in ((1, scores), (0, np.ascontiguousarray(scores.T))):
            got = np.moveaxis(call(x, axis=axis, dtype=working_format(dtype)), axis, 1)
            assert np.isnan(got[::2]).all()
            assert np.isfinite(got[1::2]).all()
            assert_function(function, scores[1:8:2], got[1:8:2])
            assert_function(function, scores[-1:], got[-1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_live_scores_is_zero_or_nan_by_choice(kind, dtype):
    for n in (1, 8, 700):
        scores = np.stack([pattern("normal", n, DTYPES[dtype]), np.full(n, -INF, DTYPES[dtype])])
        x = as_kind(kind, scores)
        for call, nothing in ((sc.softmax, 0.0), (sc.log_softmax, -INF)):
            plain, nan = as_numpy(call(x)), as_numpy(call(x, empty="nan"))
            assert_same(call(x, empty="zero"), as_kind(kind, plain))
            assert (plain[1].astype(float) == nothing).all()
            assert np.isnan(nan[1].astype(float)).all()
            assert_same(nan[0], plain[0])
            assert np.isfinite(plain[0].astype(float)).all()


def test_scores_of_minus_inf_have_no_weight_in_a_live_row():
    scores = np.array([-INF, 0.0, -INF, 0.0, -INF], np.float32)
    np.testing.assert_array_equal(sc.softmax(scores), [0, 0.5, 0, 0.5, 0])
    assert np.isneginf(sc.log_softmax(scores)[::2]).all()
    for name in ("scattered", "leading", "trailing"):
        scores = pattern(name, 3000, np.float32)
        assert (sc.softmax(scores, empty="nan")[np.isneginf(scores)] == 0).all()


@pytest.mark.parametrize(("dtype", "least"), [("float32", -126), ("float64", -1022)])
def test_terms_below_the_least_normal_number_are_flushed(dtype, least):
    """2^-125.5 stays, as does a subnormal 2^-126.4; 2^-126.6 and what is below goes."""
    ln2 = math.log(2)
    scores = np.array([0.0, (least + 0.5) * ln2, (least - 0.6) * ln2, (least - 20) * ln2, -1e30], dtype)
    got = sc.softmax(scores)
    assert got[0] == 1
    assert got[1] > 0
    np.testing.assert_array_equal(got[2:], 0)
    assert_function("softmax", scores, got)
    assert_function("log_softmax", scores, sc.log_softmax(scores))
    subnormal = np.array([0.0, (least - 0.4) * ln2], dtype)
    got = float(sc.softmax(subnormal)[1])
    # e^x is off by 2 units of a normal number, and then rounded to a subnormal one, by half of 2^-23 of it
    assert abs(got / math.exp(float(subnormal[1])) - 1) <= 2.0**-21


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (5, 37), (2, 1300), (70, 9)])
def test_every_layout(function, kind, dtype, shape):
    values = np.stack([pattern("normal", shape[1], DTYPES[dtype], seed) for seed in range(shape[0])])
    call = getattr(sc, function)
    for axis in (-1, 0) if shape[1] < 100 else (-1,):
        for name, view in layouts(values).items():
            if kind == "numpy" or name in TORCH_LAYOUTS:
                got = call(as_kind(kind, view), axis=axis, dtype=working_format(dtype).name)
                assert_function(function, values, got, axis)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_strides_of_zero(function, kind):
    row, column = pattern("normal", 1300, np.float32), pattern("normal", 7, np.float32)
    rows, columns = np.tile(row, (7, 1)), np.tile(column[:, None], (1, 1300))
    if kind == "numpy":
        views = np.broadcast_to(row, (7, 1300)), np.broadcast_to(column[:, None], (7, 1300))
    else:
        views = torch.from_numpy(row).expand(7, 1300), torch.from_numpy(column)[:, None].expand(7, 1300)
    call = getattr(sc, function)
    for values, view in zip((rows, columns), views, strict=True):
        for axis in (0, 1):
            got = as_numpy(call(view, axis=axis))
            assert got.flags.writeable
            assert_function(function, values, got, axis)
            got[0, 0] = 7
            assert (got == 7).sum() == 1


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_axis_may_be_any_of_four_and_is_counted_from_either_end(function, kind):
    values = pattern("normal", 3 * 40 * 5 * 6, np.float32).reshape(3, 40, 5, 6)
    views = [values, np.ascontiguousarray(values.transpose(2, 0, 3, 1)).transpose(1, 3, 0, 2)]
    views.append(np.asfortranarray(values)[:, ::2, 1:, ::3])
    call = getattr(sc, function)
    for view in views:
        for axis in (0, 1, 2, 3):
            got = call(as_kind(kind, view), axis=axis)
            assert_function(function, view, got, axis)
            assert_same(call(as_kind(kind, view), axis=axis - 4), got)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", BOXES)
def test_axes_in_every_order_and_direction_of_memory(shape, function):
    values, call = pattern("wide", math.prod(shape), np.float32).reshape(shape), getattr(sc, function)
    for axis in range(values.ndim):
        for view in memory_orders(values) + reversals(values):
            assert_function(function, values, call(view, axis=axis), axis)
        for out in memory_orders(np.zeros_like(values)) + reversals(np.zeros_like(values)):
            assert_function(function, values, call(values, axis=axis, out=out), axis)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (0, 0), (3, 0, 4)])
def test_empty_shapes(function, kind, shape):
    for dtype in DTYPES.values():
        for axis in range(len(shape)):
            x = as_kind(kind, np.zeros(shape, dtype))
            for empty in ("zero", "nan"):
                got = as_numpy(getattr(sc, function)(x, axis=axis, empty=empty))
                assert (got.shape, got.dtype) == (shape, dtype)
            out = as_kind(kind, np.zeros(shape, dtype))
            assert getattr(sc, function)(x, axis=axis, out=out) is out


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers_are_computed_in_float64(function, kind, dtype):
    values = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype)
    if dtype != "bool":
        values *= 40
    got = getattr(sc, function)(as_kind(kind, values))
    assert_function(function, values, got)
    assert_same(getattr(sc, function)(as_kind(kind, values.astype(np.float64))), got)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrower_result_is_rounded_once_from_the_working_format(function, kind, dtype):
    names = [name for name in PATTERNS if name != "subnormal"]
    values = np.stack([pattern(name, 200, DTYPES[dtype], seed) for name in names for seed in range(3)])
    x, call = as_kind(kind, values), getattr(sc, function)
    full = as_numpy(call(x, dtype=working_format(dtype).name)).astype(np.float64)
    for target in result_dtypes(dtype):
        want = as_kind(kind, narrowed(full, DTYPES[target]).astype(DTYPES[target]))
        for name in [target, DTYPES[target] if kind == "numpy" else getattr(torch, target)]:
            assert_same(call(x, dtype=name), want)
        out = as_kind(kind, np.full(values.shape, 7, DTYPES[target]))
        assert call(x, out=out) is out
        assert_same(out, want)
        if target == dtype:
            assert_same(call(x), want)


def test_narrow_results_have_the_subnormals_of_their_format():
    """float16 has numbers down to 2^-24; the working format holds them as normal ones."""
    scores = np.linspace(-25, 0, 3000).astype(np.float16)
    got = sc.softmax(scores)
    below = got[(got > 0) & (got.astype(float) < 2.0 ** LAYOUT["float16"][1])]
    assert len(set(below.tolist())) > 50
    assert_same(got, sc.softmax(scores, dtype=np.float32).astype(np.float16))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_may_have_any_strides_and_only_it_is_written(function, kind, dtype):
    values = np.stack([pattern("normal", 70, DTYPES[dtype], seed) for seed in range(6)])
    x, call = as_kind(kind, values), getattr(sc, function)
    want = as_numpy(call(x))
    for name, view in layouts(np.full((6, 70), 7, DTYPES[dtype])).items():
        if kind == "torch" and name not in TORCH_LAYOUTS:
            continue
        whole = view if view.base is None else view.base
        before = whole.tobytes()
        out = as_kind(kind, view)
        assert call(x, out=out) is out
        assert_same(np.ascontiguousarray(view), want)
        view[...] = 7
        assert whole.tobytes() == before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_the_result_is_allocated(function, dtype):
    scores = np.zeros((32, 2**17), DTYPES[dtype])
    out = np.empty_like(scores)
    for axis, x, place in ((1, scores, out), (0, scores.T, out.T), (1, scores[:, ::-1], out)):
        getattr(sc, function)(x[:64, :64], axis=axis, out=place[:64, :64])
        tracemalloc.start()
        getattr(sc, function)(x, axis=axis, out=place)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**20


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_new_result_is_contiguous_in_the_callers_kind(function):
    values = pattern("normal", 40, np.float32).reshape(4, 10)
    for x in (values, values.T, values[:, ::-2]):
        got = getattr(sc, function)(x)
        assert type(got) is np.ndarray
        assert got.shape == x.shape
    assert isinstance(getattr(sc, function)(torch.from_numpy(values)), torch.Tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_says_the_same(dtype):
    values = np.stack([pattern("normal", 1500, DTYPES[dtype], seed) for seed in range(8)])
    wide = as_kind("torch", values).to(getattr(torch, working_format(dtype).name))
    for function in FUNCTIONS:
        for axis in (0, 1):
            assert_function(function, values, getattr(torch, function)(wide, axis), axis)
            got = getattr(sc, function)(as_kind("torch", values), axis=axis, dtype=wide.dtype)
            assert_function(function, values, got, axis)
    for special in ([-INF, -INF], [INF, 1.0], [NAN, 1.0], [INF, -INF], [-INF, 2.0], [NAN, INF], [-INF, NAN]):
        row = torch.tensor(special, dtype=getattr(torch, dtype))
        for function in FUNCTIONS:
            got = getattr(sc, function)(row, empty="nan")
            np.testing.assert_array_equal(got.tolist(), getattr(torch, function)(row, -1).tolist())
