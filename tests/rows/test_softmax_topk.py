"""softmax_topk against a sort; and pieces of a row, however cut and merged: the same scores and indices."""

import dataclasses
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


# --- pieces of a row --------------------------------------------------------------------------------------


def pieces_of(x, cuts, k, **options):
    """The pieces of a row x (..., n), NumPy or torch, between the cuts, none of them of no scores."""
    ends = sorted({0, *cuts, x.shape[-1]})
    return [
        sc.softmax_topk(x[..., a:b], min(k, b - a), offset=a, **options) for a, b in itertools.pairwise(ends)
    ]


def assert_merged(got, whole, x, merges=1):
    """Fail unless pieces merged have the scores and indices of the whole to the bit, and hold the bounds."""
    assert (got.k, got.n) == (whole.k, whole.n)
    assert_same(got.scores, whole.scores)
    assert_same(got.indices, whole.indices)
    working = working_format(x.dtype)
    lse, probabilities = as_numpy(got.lse), as_numpy(got.probabilities)
    for index, scores in rows_along(x):
        row = row_of(scores)
        assert_lse(lse[index], row, working, merges=merges)
        assert_softmax(probabilities[index], row, working, indices=top_of(scores, whole.k), merges=merges)


SCORES = st.sampled_from(
    [-INF, -INF, -200.0, -1.0, -0.0, 0.0, 0.0, 1.0, 1.0 + 2.0**-10, 3.0, 3.0, 88.0, 1e30]
)
ODD_SCORES = SCORES | st.sampled_from([NAN, INF, -1e30])


@st.composite
def cut_rows(draw, elements):
    n = draw(st.integers(1, 40))
    scores = np.array(draw(st.lists(elements, min_size=n, max_size=n)), np.float32)
    cuts = draw(st.lists(st.integers(1, n), max_size=11))
    return scores, cuts, draw(st.integers(1, n))


@given(row=cut_rows(SCORES) | cut_rows(ODD_SCORES), data=st.data())
def test_any_cuts_in_any_order_and_grouping_give_the_whole_row(row, data):
    scores, cuts, k = row
    whole = sc.softmax_topk(scores, k)
    pieces = data.draw(st.permutations(pieces_of(scores, cuts, k)))
    while len(pieces) > 1:
        count = data.draw(st.integers(2, len(pieces)))
        start = data.draw(st.integers(0, len(pieces) - count))
        group = pieces[start : start + count]
        size = min(k, sum(part.n for part in group))
        pieces[start : start + count] = [group[0].merge(*group[1:], k=size)]
    assert_merged(pieces[0], whole, scores, merges=11)


@given(row=cut_rows(SCORES | st.floats(-50, 50, width=16)), data=st.data())
def test_all_pieces_at_once(row, data):
    scores, cuts, k = row
    for dtype in DTYPES.values():
        with np.errstate(over="ignore"):
            typed = scores.astype(dtype)
        first, *others = data.draw(st.permutations(pieces_of(typed, cuts, k, dtype=working_format(dtype))))
        whole = sc.softmax_topk(typed, k, dtype=working_format(dtype))
        if others:
            assert_merged(first.merge(*others, k=k), whole, typed, merges=11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_of_many_rows_along_any_axis(kind, axis):
    names = [name for name in PATTERNS if "least" not in name and name != "extremes"]
    values = np.stack([pattern(name, 1200, np.float32) for name in names * 2])
    values = np.round(values * 4) / 4
    values = values.reshape(4, -1, 1200)
    x = as_kind(kind, np.ascontiguousarray(np.moveaxis(values, -1, axis)))
    whole = sc.softmax_topk(x, 60, axis=axis)
    pieces = []
    for a, b in itertools.pairwise((0, 100, 611, 612, 1130, 1200)):
        index = (slice(None),) * axis + (slice(a, b),)
        pieces.append(sc.softmax_topk(x[index], min(60, b - a), axis=axis, offset=a))
    for merged in (pieces[0].merge(*pieces[1:]), pieces[3].merge(pieces[1], pieces[4], pieces[0], pieces[2])):
        assert_same(merged.scores, whole.scores)
        assert_same(merged.indices, whole.indices)
        assert merged.probabilities.shape == whole.probabilities.shape
        assert merged.probabilities.dtype == whole.probabilities.dtype


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_other_processes_come_pickled(kind):
    x = as_kind(kind, np.stack([pattern("normal", 30, np.float32, seed) for seed in range(2)]))
    pieces = [pickle.loads(pickle.dumps(part)) for part in pieces_of(x, [7, 20], 6)]
    whole = sc.softmax_topk(x, 6)
    assert_merged(pieces[2].merge(*pieces[:2]), whole, as_numpy(x))


def test_pieces_apart_may_be_filled_in_later():
    scores = pattern("normal", 30, np.float32)
    a, b, c = pieces_of(scores, [10, 20], 10)
    outer = a.merge(c)
    assert outer.n == 20
    whole = sc.softmax_topk(scores, 10)
    assert_merged(outer.merge(b), whole, scores)
    assert_merged(b.merge(outer), whole, scores)


def test_k_is_the_largest_of_the_pieces_unless_given():
    scores = pattern("normal", 30, np.float32)
    a, b = sc.softmax_topk(scores[:20], 10), sc.softmax_topk(scores[20:], 10, offset=20)
    assert a.merge(b).k == 10
    assert_merged(a.merge(b, k=4), sc.softmax_topk(scores, 4), scores)
    short = sc.softmax_topk(scores[20:24], 4, offset=20)
    assert short.merge(a).k == a.merge(short).k == 10


@pytest.mark.parametrize("empty", ["zero", "nan"])
def test_pieces_without_live_scores(empty):
    nothing, some = np.full(5, -INF, np.float32), np.array([1.0, -INF, 2.0], np.float32)
    a, b = sc.softmax_topk(nothing, 3, empty=empty), sc.softmax_topk(some, 3, offset=5, empty=empty)
    for merged in (a.merge(b), b.merge(a)):
        np.testing.assert_array_equal(merged.indices, [7, 5, 0])
        assert abs(merged.lse - (2 + math.log1p(math.exp(-1)))) < 1e-6
        assert merged.probabilities[2] == 0
    other = sc.softmax_topk(nothing, 3, offset=5, empty=empty)
    np.testing.assert_array_equal(a.merge(other).probabilities, [0.0 if empty == "zero" else NAN] * 3)
    assert a.merge(other).lse == -INF


def test_a_merge_leaves_its_pieces_alone():
    scores = pattern("normal", 30, np.float32)
    a, b = pieces_of(scores, [15], 5)
    before = [array.copy() for top in (a, b) for array in (*top, top.scores, top.carry.l)]
    a.merge(b)
    after = [array for top in (a, b) for array in (*top, top.scores, top.carry.l)]
    for old, new in zip(before, after, strict=True):
        assert_same(new, old)


ROW = pattern("normal", 30, np.float32)


def piece(a, b, *, x: Any = ROW):
    return sc.softmax_topk(x[..., a:b], min(5, b - a), offset=a)


REFUSED = {
    "no offset": lambda: (piece(0, 15), [sc.softmax_topk(ROW[15:], 5)]),
    "one index in common": lambda: (piece(0, 15), [piece(14, 30)]),
    "the second of two": lambda: (piece(0, 15), [piece(15, 29), piece(28, 30)]),
    "two others with each other": lambda: (piece(0, 10), [piece(10, 20), piece(15, 30)]),
    "inside the second part": lambda: (piece(0, 5).merge(piece(10, 15)), [piece(12, 14)]),
    "across a gap": lambda: (piece(0, 5).merge(piece(10, 15)), [piece(5, 11)]),
    "one inside the other": lambda: (piece(6, 9), [piece(0, 30)]),
    "other rows": lambda: (piece(0, 15), [piece(15, 30, x=np.stack([ROW, ROW]))]),
    "another kind": lambda: (piece(0, 15), [piece(15, 30, x=torch.from_numpy(ROW))]),
    "no piece at all": lambda: (piece(0, 15), [ROW[15:]]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_other_piece_of_the_same_rows_is_refused(case):
    first, others = REFUSED[case]()
    with pytest.raises(sc.SoftcarryError) as caught:
        first.merge(*others)
    assert "\n" not in str(caught.value)


def test_a_piece_is_not_merged_with_itself():
    whole = piece(0, 30)
    with pytest.raises(sc.SoftcarryError, match="offset"):
        whole.merge(whole)


def test_a_gap_may_be_filled_by_exactly_its_size():
    scores = pattern("normal", 15, np.float32)
    outer = sc.softmax_topk(scores[:5], 5).merge(sc.softmax_topk(scores[10:], 5, offset=10))
    whole = outer.merge(sc.softmax_topk(scores[5:10], 5, offset=5))
    assert_merged(whole, sc.softmax_topk(scores, 5), scores)


def test_pieces_too_short_for_k_are_refused():
    scores = pattern("normal", 30, np.float32)
    a, b = sc.softmax_topk(scores[:15], 3), sc.softmax_topk(scores[15:], 5, offset=15)
    wrong: list[Any] = [None, 4, 5, 0, -1, 31, 2.0]
    for k in wrong:
        with pytest.raises(sc.SoftcarryError) as caught:
            a.merge(b, k=k)
        assert "\n" not in str(caught.value)
    assert a.merge(b, k=3).k == 3
    # All three of its scores are there: what it lacks is nothing.
    short = sc.softmax_topk(scores[:3], 3, offset=40)
    assert b.merge(short).k == 5
    # Nor do these two lack anything, but there are five scores in all.
    few = sc.softmax_topk(scores[:3], 3).merge(sc.softmax_topk(scores[3:5], 2, offset=3), k=6)
    assert_merged(few, sc.softmax_topk(scores[:5], 5), scores[:5])
