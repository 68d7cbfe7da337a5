"""The kernel of merges: both forms, every way of cutting up the work, and nothing that depends on it."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from merge_oracle import ROUNDING, WIDE, assert_merged, partials, same_bits
from softcarry.cpu import merge_work
from softcarry.cpu.merge_work import Part, merge_parts, result_like, strided
from softcarry.cpu.threads import get_num_threads, set_num_threads

NAN, INF = math.nan, math.inf
every_dtype = pytest.mark.parametrize("dtype", ROUNDING)


@pytest.fixture(autouse=True)
def _number_of_threads():
    before = get_num_threads()
    yield
    set_num_threads(before)


def merge(o, m, l=None, *, indptr=None, base="e"):
    """Merge arrays o (n, ..., dv) or None, m and l (n, ...), in groups if there is an indptr."""
    groups = None if indptr is None else len(indptr) - 1
    stacked = {"stacked": True, "groups": groups}
    made = [
        None if o is None else result_like(o, values=True, **stacked),
        result_like(m, **stacked),
        None if l is None else result_like(l, **stacked),
    ]

    def part(arrays, *, stacked):
        first, *others = arrays
        return Part(
            None if first is None else strided(first, stacked=stacked, values=True),
            *(None if array is None else strided(array, stacked=stacked) for array in others),
        )

    merge_parts(
        [part((o, m, l), stacked=True)],
        part(made, stacked=groups is not None),
        element=(m if o is None else o).dtype.name,
        shape=m.shape[1:],
        dv=0 if o is None else o.shape[-1],
        base=base,
        indptr=np.array([0, len(m)] if indptr is None else indptr),
    )
    return made


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        assert a is None or same_bits(a, b)


def carries(n, shape, dtype, seed=0):
    """Carries o (n, *shape), m and l (n, *shape[:-1])."""
    o, m = partials(n, shape, dtype, seed)
    l = 1 + 100 * np.random.default_rng(seed).random(m.shape)
    l[m == -INF] = 0
    return o, m, l.astype(m.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("base", ["e", "2"])
def test_carries_are_within_the_bound(dtype, base):
    """Terms e^(m' − m) are off by gap and 2 places, then a product and n − 1 sums in float64, and rounded."""
    u, tiny, w = ROUNDING[dtype]
    unit = np.log(WIDE(2)) if base == "2" else WIDE(1)
    for n, dv in itertools.product((1, 2, 9), (1, 8, 37, 64)):
        o, m, l = carries(n, (60, dv), dtype)
        got_o, got_m, got_l = merge(o, m, l, base=base)
        top = m.max(axis=0)
        assert same_bits(got_m, top)
        gap = np.where(m == -INF, WIDE(0), (np.where(top == -INF, 0, top) - m.astype(WIDE)) * unit)
        t = np.where(m == -INF, WIDE(0), np.exp(-gap))
        for got, values, terms in ((got_l, l, t), (got_o, o, t[..., None])):
            factor = (gap + n + 4).reshape(terms.shape)
            exact = np.where(terms > 0, terms * values.astype(WIDE), 0)
            want = exact.sum(axis=0)
            bound = 1.01 * (u * np.abs(want) + w * (np.abs(exact) * factor).sum(axis=0)) + tiny
            assert (np.abs(got.astype(WIDE) - want) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_carries_commute_and_have_an_identity_to_the_bit(dtype):
    o, m, l = carries(2, (300, 37), dtype)
    m[:, 0], m[0, 1], m[1, 2], m[:, 3:5] = -INF, NAN, INF, 0
    l[0, 3], o[1, 4, 5] = NAN, INF
    want = merge(o, m, l)
    assert_same(merge(o[::-1], m[::-1], l[::-1]), want)
    rubbish = (
        np.full((1, 300, 37), NAN, o.dtype),
        np.full((1, 300), -INF, m.dtype),
        np.full((1, 300), NAN, m.dtype),
    )
    for place in range(3):
        assert_same(
            merge(*(np.insert(a, place, b, axis=0) for a, b in zip((o, m, l), rubbish, strict=True))), want
        )
    got_o, got_m, got_l = want
    np.testing.assert_equal(got_m[:3], np.array([-INF, NAN, INF], m.dtype))
    np.testing.assert_equal(got_l[:4], np.array([0, NAN, NAN, NAN], m.dtype))
    assert not got_o[0].any()
    assert np.isnan(got_o[1:3]).all()
    assert np.isfinite(got_o[3]).all()
    assert got_o[4, 5] == INF
    alone = merge(o[:1], m[:1], l[:1])
    live = np.isfinite(m[0]) & np.isfinite(l[0])
    assert_same([a[live] for a in alone], [a[0, live] for a in (o, m, l)])


def test_without_values():
    o, m, l = carries(5, (40, 3), "float32")
    with_values = merge(o, m, l)
    assert_same(merge(None, m, l), [None, *with_values[1:]])


@every_dtype
def test_the_number_of_threads_changes_no_bit(dtype, monkeypatch):
    monkeypatch.setattr(merge_work, "_SHARE", 1)
    indptr = [0, 3, 3, 8, 9]
    o, m = partials(9, (7, 50, 40), dtype)
    set_num_threads(1)
    want, groups = merge(o, m), merge(o, m, indptr=indptr)
    assert_merged(want[0], want[1], o, m)
    for threads in (2, 3, 8):
        set_num_threads(threads)
        for _ in range(5):
            assert_same(merge(o, m), want)
            assert_same(merge(o, m, indptr=indptr), groups)


@every_dtype
def test_how_the_work_is_cut_changes_no_bit(dtype, monkeypatch):
    o, m = partials(9, (7, 50, 40), dtype)
    views = o.transpose(0, 2, 1, 3), m.transpose(0, 2, 1)
    want = merge(o, m)
    for run, weights, unit in itertools.product((8, 64, 1024), (1, 2**16), (1, 2**20)):
        for name, value in (("_RUN", run), ("_WEIGHTS", weights), ("_UNIT", unit)):
            monkeypatch.setattr(merge_work, name, value)
        assert_same(merge(o, m), want)
        assert_same([a.swapaxes(0, 1) for a in merge(*views)[:2]], want[:2])
        # The log-sum-exps in another order of memory than the outputs: many short runs.
        assert_same(merge(o, np.asfortranarray(m)), want)


@every_dtype
def test_a_row_does_not_depend_on_its_neighbours(dtype):
    o, m = partials(4, (70, 40), dtype)
    want = merge(o, m)
    rng = np.random.default_rng(0)
    for row in (0, 7, 8, 63, 64, 69):
        others = np.arange(70) != row
        dirty, dirty_m = o.copy(), m.copy()
        dirty[:, others], dirty_m[:, others] = NAN, rng.choice([NAN, INF, -INF, 1e30], (4, 69))
        got = merge(dirty, dirty_m)
        assert_same([a[row] for a in got[:2]], [a[row] for a in want[:2]])
        assert_same(
            [a[0] for a in merge(o[:, row : row + 1], m[:, row : row + 1])[:2]], [a[row] for a in want[:2]]
        )


def test_a_group_longer_than_the_weights_that_are_kept(monkeypatch):
    o, m = partials(5000, (3, 5), "float32")
    got = merge(o, m)
    assert_merged(got[0], got[1], o, m)
    monkeypatch.setattr(merge_work, "_WEIGHTS", 64)
    assert_same(merge(o, m), got)
    assert_same(
        merge(o, m, indptr=[0, 0, 5000])[:2],
        [np.stack([np.zeros_like(got[0]), got[0]]), np.stack([np.full_like(got[1], -INF), got[1]])],
    )


@pytest.mark.parametrize("stacked", [False, True])
def test_results_are_made_in_the_order_of_memory_and_aligned(stacked, monkeypatch):
    monkeypatch.setattr(merge_work, "_STREAMED", 0)
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        base = np.empty((2, 4, 3, 5, 6), dtype)
        for order in itertools.permutations((1, 2, 3)):
            view = base.transpose(0, *order, 4)
            array = view if stacked else view[0]
            made = result_like(array, stacked=stacked, values=True)
            assert (made.shape, made.dtype) == (view.shape[1:], base.dtype)
            assert made.transpose(*np.argsort(order), 3).flags.c_contiguous
            assert made.__array_interface__["data"][0] % 64 == 0
            made = result_like(array, stacked=stacked, values=True, groups=7)
            assert made.shape == (7, *view.shape[1:])
            assert made[0].transpose(*np.argsort(order), 3).flags.c_contiguous


def test_values_lie_where_they_were():
    """Neither partials nor what lies between rows is touched."""
    room = np.full((3, 9, 60), NAN, np.float32)
    o, m = partials(3, (9, 40), "float32")
    room[:, :, 7:47] = o
    before = room.copy(), m.copy()
    want = merge(o, m)
    assert_same(merge(room[:, :, 7:47], m), want)
    assert same_bits(room, before[0])
    assert same_bits(m, before[1])
