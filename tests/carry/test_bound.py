"""A known upper bound in place of the running maximum."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _carry_oracle import assert_within, distinct_values, exact
from _namespaces import NAMES, library, same_bits
from softcarry.carry import Carry
from softcarry.errors import DTypeError, OptionError, ShapeError, UnderflowWarning

INF = np.inf


@pytest.mark.parametrize("name", NAMES)
def test_equal_bounds_merge_by_plain_sums(name):
    """To the bit: nothing is rescaled, though the largest scores of the parts differ."""
    lib = library(name)
    scores = np.float32([[0.3, -1.1, 2.7], [1.9, 0.2, -4.0]])
    values = distinct_values(6, 2).reshape(2, 3, 2)
    a, b = (Carry.of(lib.array(scores[i]), lib.array(values[i]), bound=5.5) for i in (0, 1))
    assert float(a.m) == float(b.m) == 5.5
    merged = a | b
    assert same_bits(lib.numpy(merged.l), lib.numpy(a.l) + lib.numpy(b.l))
    assert same_bits(lib.numpy(merged.o), lib.numpy(a.o) + lib.numpy(b.o))
    row = exact(scores.reshape(-1), values.reshape(-1, 2), m=5.5)
    assert_within(merged.l, lib.numpy(merged.o), row, np.float32, merges=0)
    absorbed = a.absorb(lib.array(scores[1]), lib.array(values[1]), bound=5.5)
    assert same_bits(lib.numpy(absorbed.o), lib.numpy(merged.o))


@pytest.mark.parametrize("base", ["e", "2"])
@given(
    scores=st.lists(st.floats(-20, 8, width=32) | st.just(-INF), min_size=1, max_size=8),
    room=st.floats(0, 30, width=32),
)
def test_any_bound_gives_the_same_row(base, scores, room):
    scores = np.array(scores, dtype=np.float32)
    values = distinct_values(scores.size, 2)
    bound = np.float32(8) + np.float32(room)
    c = Carry.of(scores, values, bound=bound, base=base)
    if (scores > -INF).any():
        assert c.m == bound
        row = exact(scores, values, m=float(bound), base=base)
        wide = 2 * float(max(row.gaps)) if base == "2" else 0.0
        assert_within(c.l, c.o, row, np.float32, merges=0, extra=wide)
        assert_within(
            *((c | Carry.empty((), value_dim=2, base=base)).l, c.o), row, np.float32, merges=1, extra=wide
        )
    else:
        assert (c.m, c.l) == (-INF, 0)


@pytest.mark.parametrize("name", NAMES)
def test_one_bound_a_row_and_rows_without_live_scores(name):
    lib = library(name)
    scores = np.float32([[1, 2], [-INF, -INF], [np.nan, 1], [3, -INF]])
    bound = np.float32([2, -INF, 9, 4])
    c = Carry.of(lib.array(scores), bound=lib.array(bound))
    np.testing.assert_equal(lib.numpy(c.m), np.float32([2, -INF, np.nan, 4]))
    np.testing.assert_allclose(lib.numpy(c.l), [1 + math.exp(-1), 0, np.nan, math.exp(-1)], rtol=2.0**-20)
    assert not lib.numpy(c.underflowed).any()


def test_a_bound_against_the_maximum_merges_exactly():
    scores, values = np.array([1.0, 2.0, 3.0, 4.5]), distinct_values(4, 2, np.float64)
    c = Carry.of(scores[:2], values[:2], bound=20.0) | Carry.of(scores[2:], values[2:])
    row = exact(scores, values, m=20.0)
    assert_within(c.l, c.o, row, np.float64, merges=1)
    np.testing.assert_allclose(c.output, [float(x) for x in row.output], rtol=64 * 2.0**-53)


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_that_underflows_every_term_says_so(name):
    lib = library(name)
    scores, values = lib.array(np.float32([[1.0, 2.0], [150.0, 160.0], [-INF, -INF]])), np.float32([[1], [2]])
    with pytest.warns(UnderflowWarning, match=r"every term of 1 row"):
        c = Carry.of(scores, lib.array(values), bound=200.0)
    assert lib.numpy(c.underflowed).tolist() == [True, False, False]
    assert lib.numpy(c.output)[0] == 0
    assert float(c.lse[0]) == -INF
    assert not lib.numpy(c.weights(scores))[0].any()
    assert float(c.logprob(1.0)[0]) == -INF
    with pytest.warns(UnderflowWarning) as caught:
        Carry.empty(3, value_dim=1, like=scores).absorb(scores, lib.array(values), bound=200.0)
    assert caught[0].filename == __file__  # it points at the caller's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not lib.numpy(Carry.of(scores, bound=lib.array(np.float32([3, 200, 0]))).underflowed).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_score_above_its_bound_is_refused(name):
    lib = library(name)
    scores = np.float32([[1.0, 2.0], [3.0, 7.5]])
    for bound in (7.0, lib.array(np.float32([2, 7])), lib.array(np.float32(7))):
        with pytest.raises(OptionError, match=r"exceeds it by 0\.5: raise the bound"):
            Carry.of(lib.array(scores), bound=bound)
    with pytest.raises(OptionError, match="exceeds"):
        Carry.of(lib.array(np.float32([INF, 0.0])), bound=3e38)
    with pytest.raises(OptionError, match="exceeds"):
        Carry.empty(2, like=lib.array(scores)).absorb(lib.array(scores), bound=1.0)
    for bound in (INF, np.nan):
        with pytest.raises(OptionError, match="got NaN or"):
            Carry.of(lib.array(scores), bound=bound)


def test_a_bound_in_a_wider_format_never_rounds_below_the_score():
    score = np.float32([0.1])
    assert Carry.of(score, bound=0.1 + 2.0**-30).m >= score
    assert Carry.of(score, bound=np.float64(score[0])).m == score[0]
    assert Carry.of(score, bound=np.array([1.0])[0]).l.dtype == np.float32


def test_what_is_no_bound_is_refused():
    scores = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"bound must be a number or broadcast to the shape \(2,\)"):
        Carry.of(scores, bound=np.zeros(3, np.float32))
    with pytest.raises(ShapeError, match="bound"):
        Carry.of(scores, bound=np.zeros((4, 2), np.float32))
    with pytest.raises(DTypeError, match="bound must be real floating point"):
        Carry.of(scores, bound=np.zeros(2, np.int64))
    with pytest.raises(DTypeError, match="expected an array"):
        Carry.of(scores, bound="7")


def test_jax_traces_a_bound_without_looking_at_values():
    lib = library("jax")
    import jax

    def run(scores, bound):
        c = Carry.of(scores, bound=bound)
        return c.m, c.l, c.underflowed

    scores = lib.array(np.float32([[1.0, 2.0], [-INF, -INF]]))
    m, total, underflowed = jax.jit(run)(scores, 300.0)
    assert np.asarray(m).tolist() == [300.0, -INF]
    assert np.asarray(total).tolist() == [0, 0]
    assert np.asarray(underflowed).tolist() == [True, False]
    jax.jit(run)(scores, 1.0)  # a broken bound cannot be seen here, and does not raise
