"""The laws of the monoid, over scores that break naive implementations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _carry_oracle import assert_within, bounds, distinct_values, exact
from _namespaces import NAMES, library, same_bits
from softcarry.carry import Carry

DTYPES = [np.float32, np.float64]
SUBNORMAL = 1e-40


def _score(offset: float) -> st.SearchStrategy[float]:
    ordinary = st.floats(-8, 8, width=32)
    extreme = st.sampled_from([1e30, -1e30, SUBNORMAL, -SUBNORMAL, 0.0, -0.0, 90.0, -90.0, -150.0])
    return st.one_of(ordinary, ordinary, extreme, st.just(-math.inf)).map(lambda s: s + offset)


@st.composite
def rows(draw, dtype=np.float32, *, special: bool = False, min_size: int = 1) -> np.ndarray:
    offset = draw(st.sampled_from([0.0, 0.0, 1e8, -1e8]))
    element = _score(offset)
    if special:
        element = st.one_of(element, element, element, st.sampled_from([math.nan, math.inf]))
    return np.array(draw(st.lists(element, min_size=min_size, max_size=9)), dtype=dtype)


def _garbage(like: Carry) -> Carry:
    """An empty carry whose l and o hold what an uninitialised buffer might."""
    o = np.resize(np.array([np.nan, np.inf, -np.inf, 3.0], dtype=like.o.dtype), like.o.shape)
    return Carry(np.full_like(like.m, -np.inf), np.full_like(like.l, np.nan), o, like.base)


def _same(a: Carry, b: Carry) -> bool:
    return all(same_bits(x, y) for x, y in ((a.m, b.m), (a.l, b.l), (a.o, b.o)))


def _parts(scores: np.ndarray, cuts: list[int], **options) -> list[Carry]:
    values = distinct_values(scores.size, 3, scores.dtype)
    values[::4, 1] = -0.0
    edges = [0, *sorted(min(cut, scores.size) for cut in cuts), scores.size]
    return [Carry.of(scores[a:b], values[a:b], **options) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("base", ["e", "2"])
@given(scores=rows(special=True), cuts=st.lists(st.integers(0, 9), max_size=3))
def test_identity_in_every_position(base, scores, cuts):
    parts = _parts(scores, cuts, base=base)
    whole = Carry.merge(*parts)
    for empty in (Carry.empty((), value_dim=3, like=scores, base=base), _garbage(whole)):
        for place in range(len(parts) + 1):
            assert _same(Carry.merge(*parts[:place], empty, *parts[place:]), whole)
        assert _same(whole | empty, whole)
        assert _same(empty | whole, whole)


@given(scores=rows(special=True), cut=st.integers(0, 9))
def test_two_carries_commute_to_the_bit(scores, cut):
    a, b = _parts(scores, [cut])
    assert _same(a | b, b | a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base", ["e", "2"])
@given(data=st.data())
def test_any_grouping_and_order_equals_one_pass(dtype, base, data):
    """Associativity, permutation, splitting: a random tree over a random partition, one part empty."""
    scores = data.draw(rows(dtype))
    random = data.draw(st.randoms(use_true_random=False))
    n = scores.size
    values = distinct_values(n, 3, dtype)
    order = list(range(n))
    random.shuffle(order)
    parts = []
    while order:
        block = [order.pop() for _ in range(random.randint(1, len(order)))]
        parts.append(Carry.of(scores[block], values[block], base=base))
    parts.insert(random.randint(0, len(parts)), _garbage(parts[0]))
    merges = 0
    while len(parts) > 1:
        random.shuffle(parts)
        taken = random.randint(2, len(parts))
        parts = [Carry.merge(*parts[:taken]), *parts[taken:]]
        merges += 1
    (c,) = parts
    if not (scores > -np.inf).any():
        assert (c.m, c.l, list(c.o)) == (-np.inf, 0, [0, 0, 0])
        return
    assert c.m == scores.max()
    row = exact(scores, values, base=base)
    # A library may compute 2^x as e^(x·ln 2), whose argument errs by its size times u twice more.
    live = [float(gap) for gap in row.gaps if gap < 750]
    assert_within(c.l, c.o, row, dtype, merges=merges, extra=2 * max(live) if base == "2" else 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_two_bracketings_agree_within_twice_the_bound(dtype, data):
    scores = data.draw(rows(dtype, min_size=3))
    a, b, c = _parts(scores, [scores.size // 3, 2 * scores.size // 3])
    left, right = (a | b) | c, a | (b | c)
    assert same_bits(left.m, right.m)
    if left.m == -np.inf:
        return
    values = distinct_values(scores.size, 3, dtype)
    values[::4, 1] = 0.0
    bound_l, bound_o = bounds(exact(scores, values), dtype, merges=2)
    assert abs(float(left.l) - float(right.l)) <= 2 * bound_l
    assert (np.abs(left.o.astype(float) - right.o.astype(float)) <= 2 * bound_o).all()


@given(
    eighths=st.lists(st.integers(-64, 64), min_size=1, max_size=9),
    offset=st.sampled_from([1024.0, -4096.0, 2.0**18]),
)
def test_a_shift_that_is_exact_changes_m_only(eighths, offset):
    scores = np.array(eighths, dtype=np.float32) / 8
    values = distinct_values(scores.size, 2)
    shifted = scores + np.float32(offset)
    assert ((shifted - np.float32(offset)) == scores).all()  # 2^18 + 8 in steps of 1/8 takes 22 bits
    a, b = Carry.of(scores, values), Carry.of(shifted, values)
    assert b.m == a.m + np.float32(offset)
    assert same_bits(a.l, b.l)
    assert same_bits(a.o, b.o)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_the_one_step_recurrence_is_a_merge_with_a_single_score(dtype, data):
    scores = data.draw(rows(dtype, special=True))
    values = distinct_values(scores.size, 2, dtype)
    absorbed = merged = Carry.empty((), value_dim=2, like=scores)
    for s, v in zip(scores, values, strict=True):
        absorbed = absorbed.absorb(s[None], v[None])
        if not np.isfinite(s):
            merged = merged | Carry.of(s[None], v[None])
        else:
            merged = merged | Carry(np.asarray(s), np.ones_like(s), v)
    assert _same(absorbed, merged)


@given(scores=rows())
def test_the_recurrence_equals_one_pass(scores):
    values = distinct_values(scores.size, 3)
    c = Carry.empty((), value_dim=3)
    for s, v in zip(scores, values, strict=True):
        c = c.absorb(s[None], v[None])
    if (scores > -np.inf).any():
        assert_within(c.l, c.o, exact(scores, values), np.float32, merges=scores.size)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_every_namespace_keeps_the_laws(name, seed):
    lib = library(name)
    generator = np.random.default_rng(seed)
    scores = (generator.standard_normal((6, 11)) * 5).astype(np.float32)
    scores[1] += np.float32(1e8)
    scores[2, :4] = -np.inf
    scores[3, ::3] = 1e30
    scores[4, 5:] = SUBNORMAL
    scores[5] = -np.inf
    values = distinct_values(11, 3)
    edges = [0, 4, 4, 9, 11]
    parts = [
        Carry.of(lib.array(scores[:, a:b]), lib.array(values[a:b])) for a, b in itertools.pairwise(edges)
    ]
    garbage = Carry(
        lib.array(np.full(6, -np.inf, np.float32)),
        lib.array(np.full(6, np.nan, np.float32)),
        lib.array(np.full((6, 3), np.inf, np.float32)),
    )
    whole = Carry.merge(*parts)
    tree = (parts[3] | parts[0]) | (parts[2] | parts[1])

    def bits(a: Carry, b: Carry) -> bool:
        return all(same_bits(lib.numpy(x), lib.numpy(y)) for x, y in ((a.m, b.m), (a.l, b.l), (a.o, b.o)))

    for place in range(5):
        assert bits(Carry.merge(*parts[:place], garbage, *parts[place:]), whole)
    assert bits(parts[0] | parts[2], parts[2] | parts[0])
    for c, merges in ((whole, 1), (tree, 2)):
        m, total, o = lib.numpy(c.m), lib.numpy(c.l), lib.numpy(c.o)
        for i in range(5):
            assert m[i] == scores[i].max()
            assert_within(total[i], o[i], exact(scores[i], values), np.float32, merges=merges)
        assert (m[5], total[5], list(o[5])) == (-np.inf, 0, [0, 0, 0])
