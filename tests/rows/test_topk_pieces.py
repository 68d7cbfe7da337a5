"""Pieces of rows, however cut and merged: the same scores and indices as of the whole, to the bit."""

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
    DTYPES,
    INF,
    KINDS,
    NAN,
    PATTERNS,
    as_kind,
    as_numpy,
    assert_same,
    pattern,
    rows_along,
)
from row_oracle import (
    assert_lse,
    assert_softmax,
    row_of,
    top_of,
    working_format,
)


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
