"""logsumexp against exact rows: hard data, every layout, every shape, and an error that does not grow."""

import math
import tracemalloc

import mpmath
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
    assert_lse,
    exact_sum,
    log_softmax_of,
    narrowed,
    row_of,
    softmax_of,
    sum_error,
    unit_roundoff,
    working_format,
)

BLOCK = 513


def lse_in_working_format(x, **options):
    """Logsumexp of a NumPy array before its last rounding."""
    return sc.logsumexp(x, dtype=working_format(x.dtype), **options)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_oracle_agrees_with_fifty_digits(name):
    """2^-60 leaves the oracle a hundredth of the float64 roundings it judges."""
    scores = pattern(name, 300, np.float64)
    row = row_of(scores)
    live = [mpmath.mpf(float(s)) for s in scores if s > -INF]
    if not live:
        assert (row.kind, row.lse, row.l) == ("empty", -INF, 0)
        return
    # Terms below e^-11000 are 0 in either arithmetic.
    with mpmath.workdps(60):
        l = mpmath.fsum(mpmath.exp(s - max(live)) for s in live if max(live) - s < 11000)

        def close(wide, true, scale):
            high = float(wide)
            low = float(wide - type(wide)(high)) if math.isfinite(high) else 0.0
            return abs(mpmath.mpf(high) + mpmath.mpf(low) - true) <= 2.0**-60 * scale

        assert close(row.l, l, l)
        assert close(row.lse, max(live) + mpmath.log(l), abs(max(live)) + 1 + mpmath.log(l))
        j = int(np.flatnonzero(scores > -INF)[-1])
        gap = max(live) - mpmath.mpf(float(scores[j]))
        if gap < 11000:
            assert close(softmax_of(row)[j], mpmath.exp(-gap) / l, (1 + gap) * mpmath.exp(-gap) / l)
        if gap < 1e300:
            assert close(log_softmax_of(row)[j], -gap - mpmath.log(l), 1 + gap + mpmath.log(l))


def test_the_exact_sum_is_exact():
    assert exact_sum(np.array([1.0, 2.0**-62, -1.0], np.longdouble)) == 2.0**-62
    assert exact_sum(np.array([], np.longdouble)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PATTERNS)
def test_hard_rows_of_every_length(name, dtype):
    for n in LENGTHS if dtype == "float32" else SHORT[::2]:
        scores = pattern(name, n, DTYPES[dtype])
        assert_lse(lse_in_working_format(scores), row_of(scores), working_format(scores.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_live_score_is_returned_as_it_is_wherever_it_stands(dtype):
    """m + ln 1 is m: a score that is skipped gives −inf, one that counts twice m + ln 2."""
    for n in (1, 5, 31, 33, 64, 129, BLOCK, 1100):
        scores = np.full((n, n), -INF, DTYPES[dtype])
        values = (np.arange(n) * 37 % 101 - 50.0).astype(DTYPES[dtype])
        np.fill_diagonal(scores, values)
        assert_same(sc.logsumexp(scores), values)
        assert_same(sc.logsumexp(scores, axis=0), values)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_score_has_its_weight_wherever_it_stands(dtype):
    """A score of ln 3 among n − 1 zeros: l = n + 2 exactly at every position."""
    n = 1100
    scores = np.zeros((n, n), dtype)
    np.fill_diagonal(scores, math.log(3))
    got = sc.logsumexp(scores)
    want = row_of(scores[0])
    for value in set(got.tolist()):
        assert_lse(value, want, np.dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("found", "expected"), [(NAN, NAN), (-NAN, NAN), (INF, INF)])
def test_nan_and_inf_are_found_wherever_they_stand(dtype, found, expected):
    for n in (1, 2, 17, 65, BLOCK, 1100):
        scores = np.tile(pattern("normal", n, DTYPES[dtype]), (n, 1))
        np.fill_diagonal(scores, found)
        for axis in (0, 1):
            np.testing.assert_array_equal(sc.logsumexp(scores, axis=axis).astype(float), expected)
        scores = np.full((n, n), -INF, DTYPES[dtype])
        np.fill_diagonal(scores, found)
        np.testing.assert_array_equal(sc.logsumexp(scores).astype(float), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], -INF),
        ([-INF], -INF),
        ([-INF] * 600, -INF),
        ([INF], INF),
        ([NAN], NAN),
        ([NAN, INF], NAN),
        ([INF, NAN], NAN),
        ([NAN, -INF], NAN),
        ([-INF] * 600 + [NAN], NAN),
        ([INF, -INF], INF),
        ([INF, INF], INF),
        ([INF] + [0.0] * 600 + [NAN], NAN),
        ([NAN] + [0.0] * 600 + [INF], NAN),
        ([-INF, 3.0, -INF], 3.0),
        ([0.0], 0.0),
    ],
)
def test_rules(scores, expected, dtype):
    row = np.array(scores, DTYPES[dtype])
    for kind in KINDS:
        got = sc.logsumexp(as_kind(kind, row))
        assert float(got) == expected or (math.isnan(expected) and math.isnan(float(got)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_row_touches_another(dtype):
    rows = [pattern(name, 700, DTYPES[dtype]) for name in PATTERNS]
    rows += [np.full(700, value, DTYPES[dtype]) for value in (NAN, INF)]
    rows += rows[::-1]
    for x, axis in ((np.stack(rows), 1), (np.stack(rows, 1), 0)):
        for got, row in zip(lse_in_working_format(x, axis=axis), rows, strict=True):
            assert_lse(got, row_of(row), working_format(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (5, 37), (2, 1300), (70, 9)])
def test_every_layout(kind, dtype, shape):
    values = np.stack([pattern("normal", shape[1], DTYPES[dtype], seed) for seed in range(shape[0])])
    for name, view in layouts(values).items():
        if kind == "torch" and name not in TORCH_LAYOUTS:
            continue
        for axis in (-1, 0) if shape[1] < 100 else (-1,):
            got = as_numpy(sc.logsumexp(as_kind(kind, view), axis=axis, dtype=working_format(dtype).name))
            for index, scores in rows_along(values, axis):
                assert_lse(got[index], row_of(scores), working_format(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_strides_of_zero(kind):
    row, column = pattern("normal", 1300, np.float32), pattern("normal", 7, np.float32)
    if kind == "numpy":
        rows, columns = np.broadcast_to(row, (7, 1300)), np.broadcast_to(column[:, None], (7, 1300))
        point = np.broadcast_to(np.float32(2.5), (4, 600))
    else:
        rows = torch.from_numpy(row).expand(7, 1300)
        columns = torch.from_numpy(column)[:, None].expand(7, 1300)
        point = torch.tensor(2.5).expand(4, 600)
    for got in as_numpy(sc.logsumexp(rows)):
        assert_lse(got, row_of(row), np.dtype(np.float32))
    for got, score in zip(as_numpy(sc.logsumexp(columns)), column, strict=True):
        assert_lse(got, row_of(np.full(1300, score)), np.dtype(np.float32))
    for got in as_numpy(sc.logsumexp(point, axis=0)):
        assert_lse(got, row_of(np.full(4, np.float32(2.5))), np.dtype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_the_axis_may_be_any_of_four_and_is_counted_from_either_end(kind):
    values = pattern("normal", 3 * 40 * 5 * 6, np.float32).reshape(3, 40, 5, 6)
    views = [values, np.ascontiguousarray(values.transpose(2, 0, 3, 1)).transpose(1, 3, 0, 2)]
    views.append(np.asfortranarray(values)[:, ::2, 1:, ::3])
    for view in views:
        for axis in (0, -3, 2, -1):
            x = as_kind(kind, view)
            got, kept = sc.logsumexp(x, axis=axis), sc.logsumexp(x, axis=axis, keepdims=True)
            assert tuple(kept.shape) == tuple(1 if a == axis % 4 else n for a, n in enumerate(view.shape))
            assert_same(kept.squeeze(axis), got)
            for index, scores in rows_along(view, axis):
                assert_lse(as_numpy(got)[index], row_of(scores), np.dtype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", BOXES)
def test_axes_in_every_order_and_direction_of_memory(shape, kind):
    values = pattern("wide", math.prod(shape), np.float32).reshape(shape)
    for view in memory_orders(values) + (reversals(values) if kind == "numpy" else []):
        for axis in range(values.ndim):
            got = as_numpy(sc.logsumexp(as_kind(kind, view), axis=axis))
            out = np.zeros(got.shape[::-1], np.float32).T
            sc.logsumexp(view, axis=axis, out=out)
            for index, scores in rows_along(values, axis):
                assert_lse(got[index], row_of(scores), np.dtype(np.float32))
                assert_lse(out[index], row_of(scores), np.dtype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((0,), -1, ()),
        ((0, 5), -1, (0,)),
        ((0, 5), 0, (5,)),
        ((5, 0), -1, (5,)),
        ((5, 0), 0, (0,)),
        ((0, 0), 0, (0,)),
        ((3, 0, 4), 1, (3, 4)),
        ((3, 0, 4), 0, (0, 4)),
        ((3, 0, 4), 2, (3, 0)),
    ],
)
def test_empty_shapes(kind, dtype, shape, axis, expected):
    x = as_kind(kind, np.zeros(shape, DTYPES[dtype]))
    got = as_numpy(sc.logsumexp(x, axis=axis))
    assert got.shape == expected
    assert got.dtype == DTYPES[dtype]
    assert (got.astype(float) == -INF).all()
    kept = sc.logsumexp(x, axis=axis, keepdims=True)
    assert tuple(kept.shape) == tuple(1 if a == axis % len(shape) else n for a, n in enumerate(shape))


def test_the_kind_of_the_result_is_the_callers():
    row = pattern("normal", 40, np.float32)
    assert type(sc.logsumexp(row)) is np.float32
    assert type(sc.logsumexp(row.astype(DTYPES["bfloat16"]))) is DTYPES["bfloat16"].type
    assert isinstance(sc.logsumexp(row, keepdims=True), np.ndarray)
    assert isinstance(sc.logsumexp(row[None]), np.ndarray)
    tensor = sc.logsumexp(torch.from_numpy(row).bfloat16())
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.bfloat16, ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "bool"])
def test_integers_are_computed_in_float64(kind, dtype):
    values = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype)
    if dtype != "bool":
        values *= 40
    got = sc.logsumexp(as_kind(kind, values))
    assert as_numpy(got).dtype == np.float64
    for index, scores in rows_along(values):
        assert_lse(as_numpy(got)[index], row_of(scores.astype(np.float64)), np.dtype(np.float64))
    assert_same(sc.logsumexp(as_kind(kind, values.astype(np.float64))), got)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_keep_their_upper_half(dtype):
    top = np.iinfo(dtype).max
    scores = np.array([0, top, 5], dtype)
    assert sc.logsumexp(scores) == float(top)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrower_result_is_rounded_once_from_the_working_format(kind, dtype):
    names = [name for name in PATTERNS if name != "subnormal"]
    values = np.stack([pattern(name, 90, DTYPES[dtype], seed) for name in names for seed in range(20)])
    x = as_kind(kind, values)
    full = as_numpy(sc.logsumexp(x, dtype=working_format(dtype).name)).astype(np.float64)
    for target in result_dtypes(dtype):
        want = narrowed(full, DTYPES[target]).astype(DTYPES[target])
        asked = [target, DTYPES[target]] if kind == "numpy" else [target, getattr(torch, target)]
        for name in asked:
            assert_same(sc.logsumexp(x, dtype=name), as_kind(kind, want))
        out = as_kind(kind, np.full(len(values), 7, DTYPES[target]))
        assert sc.logsumexp(x, out=out) is out
        assert_same(out, as_kind(kind, want))
        if target == dtype:
            assert_same(sc.logsumexp(x), as_kind(kind, want))


@pytest.mark.parametrize("kind", KINDS)
def test_out_may_have_any_strides(kind):
    values = np.stack([pattern("normal", 50, np.float32, seed) for seed in range(12)]).reshape(3, 4, 50)
    want = as_numpy(sc.logsumexp(as_kind(kind, values)))
    for base in (np.zeros((6, 8), np.float32), np.zeros((8, 6), np.float32).T):
        out = as_kind(kind, base)[::2, 1::2]
        assert sc.logsumexp(as_kind(kind, values), out=out) is out
        np.testing.assert_array_equal(as_numpy(out), want)
        assert (base[1::2] == 0).all()
        assert (base[:, ::2] == 0).all()
    kept = as_kind(kind, np.zeros((3, 4, 1), np.float32))
    assert sc.logsumexp(as_kind(kind, values), keepdims=True, out=kept) is kept
    np.testing.assert_array_equal(as_numpy(kept)[..., 0], want)
    if kind == "numpy":
        backwards = np.zeros((3, 4), np.float32)
        sc.logsumexp(values, out=backwards[::-1, ::-1])
        np.testing.assert_array_equal(backwards[::-1, ::-1], want)
    point = as_kind(kind, np.zeros((), np.float32))
    assert sc.logsumexp(as_kind(kind, values[0, 0]), out=point) is point
    assert float(point) == want[0, 0]


def test_the_error_in_float32_does_not_grow_with_the_row():
    """A sequential float32 sum of equal terms stops at 2^24, of swamped ones at once; E_l has ln n alone."""
    u = unit_roundoff(np.float32)
    rng = np.random.default_rng(5)
    for n in (10**3, 10**4, 10**5, 10**6, 10**7, 2**24 + 2**20):
        got = sc.logsumexp(np.zeros(n, np.float32))
        assert abs(float(got) - math.log(n)) <= u * 3 * math.log(n) + sum_error(n, np.float32)
        swamped = np.full(n, -20.0, np.float32)
        swamped[0] = 0.0
        true = math.log1p((n - 1) * math.exp(-20.0))
        assert abs(float(sc.logsumexp(swamped)) - true) <= u * (1 + 3 * true) + sum_error(n, np.float32)
    for n in (10**3, 10**5, 10**6):
        scores = rng.normal(size=n).astype(np.float32)
        assert_lse(sc.logsumexp(scores), row_of(scores), np.dtype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_nothing_of_the_size_of_the_input_is_allocated(dtype, axis):
    shape = (32, 2**17) if axis == 1 else (2**17, 32)
    scores = np.zeros(shape, DTYPES[dtype])
    for view in (scores, scores[::-1, ::-1], scores[:, ::2]):
        sc.logsumexp(view[:64, :64], axis=axis)
        tracemalloc.start()
        sc.logsumexp(view, axis=axis)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**20


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_says_the_same(dtype):
    """Both lie within their bounds; torch sums float32 pairwise, whose depth of 17 is below the 21 here."""
    values = np.stack([pattern("normal", 1500, DTYPES[dtype], seed) for seed in range(8)])
    x = as_kind("torch", values)
    wide = x.to(getattr(torch, working_format(dtype).name))
    got = sc.logsumexp(x, dtype=wide.dtype)
    peer = torch.logsumexp(wide, -1)
    for a, b, scores in zip(got.tolist(), peer.tolist(), values, strict=True):
        assert_lse(a, row_of(scores), working_format(dtype))
        assert_lse(b, row_of(scores), working_format(dtype))
    for special in ([-INF, -INF], [INF, 1.0], [NAN, 1.0], [INF, -INF]):
        row = torch.tensor(special, dtype=x.dtype)
        np.testing.assert_equal(float(sc.logsumexp(row)), float(torch.logsumexp(row, -1)))
