"""The recurrence with the output normalised at every step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _carry_oracle import bounds, distinct_values, exact
from _namespaces import NAMES, library
from softcarry.carry import Carry
from softcarry.carry.normalised import NormalisedCarry
from softcarry.errors import OptionError, ShapeError


def _run(scores, values, block, **options):
    """Walk the keys in blocks in both forms."""
    start = Carry.empty((), value_dim=values.shape[-1], like=scores, **options)
    plain, normalised = start, NormalisedCarry.from_carry(start)
    for j in range(0, scores.shape[0], block):
        plain = plain.absorb(scores[j : j + block], values[j : j + block])
        normalised = normalised.absorb(scores[j : j + block], values[j : j + block])
    return plain, normalised


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    scores=st.lists(st.floats(-30, 30, width=32) | st.just(-np.inf), min_size=1, max_size=9),
    block=st.integers(1, 4),
)
def test_both_forms_give_the_exact_output_within_their_bounds(dtype, scores, block):
    scores = np.array(scores, dtype=dtype)
    values = distinct_values(scores.size, 3, dtype)
    plain, normalised = _run(scores, values, block)
    if not (scores > -np.inf).any():
        assert not plain.output.any()
        assert not normalised.output.any()
        return
    row, steps = exact(scores, values), -(-scores.size // block)
    # The product with l and the quotient by it cost 2u a step; the plain form has the last quotient only. l
    # has the same bits in both, and its error counts once, weighted by |output| ≤ Σ p|v|.
    bound_l, bound_o = bounds(row, dtype, merges=steps)
    weight = np.array([float(t) for t in row.terms]) @ np.abs(row.values)
    total, u = float(row.l), float(np.finfo(dtype).eps) / 2
    for c, extra in ((plain, 1), (normalised, 2 * steps)):
        assert c.l == plain.l
        bound = (bound_o + weight * bound_l / total + 1.01 * extra * u * weight) / total
        assert (np.abs(c.output.astype(float) - [float(x) for x in row.output]) <= bound).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", ["e", "2"])
def test_rules_bases_and_namespaces(name, base):
    lib = library(name)
    rows = [[0.5, -1, 2, 1], [-np.inf] * 4, [np.nan, 0, 1, 2], [0, np.inf, 1, 2], [1, -np.inf, 0, 1]]
    scores, values = np.float32(rows), distinct_values(4, 2)
    parts = [
        Carry.of(lib.array(scores[:, a:b]), lib.array(values[a:b]), base=base) for a, b in ((0, 1), (1, 4))
    ]
    plain = Carry.merge(*parts)
    first, second = (NormalisedCarry.from_carry(c) for c in parts)
    for c in (first | second, first.merge(second), second | first):
        assert c.base == base
        # float32, a dozen operations on values below 8
        np.testing.assert_allclose(lib.numpy(c.output), lib.numpy(plain.output), rtol=0, atol=200 * 2.0**-24)
        np.testing.assert_allclose(lib.numpy(c.lse), lib.numpy(plain.lse), rtol=2.0**-20)
        np.testing.assert_allclose(lib.numpy(c.unnormalised().o), lib.numpy(plain.o), rtol=0, atol=2.0**-14)


def test_garbage_in_an_empty_part_never_shows():
    garbage = NormalisedCarry(np.array(-np.inf), np.array(np.nan), np.array([np.nan, np.inf]))
    c = NormalisedCarry.from_carry(Carry.of(np.array([1.0, 2.0]), distinct_values(2, 2, np.float64)))
    for merged in (garbage | c, c | garbage, garbage.merge(garbage, c)):
        assert np.array_equal(merged.output, c.output)
        assert merged.lse == c.lse
    assert not (garbage | garbage).output.any()
    assert not garbage.unnormalised().o.any()


def test_a_bound_goes_through():
    scores, values = np.array([1.0, 2.0]), distinct_values(2, 2, np.float64)
    c = NormalisedCarry.from_carry(Carry.empty((), value_dim=2, like=scores))
    c = c.absorb(scores, values, bound=9.0)
    assert c.m == 9
    assert abs(c.output - Carry.of(scores, values).output).max() <= 30 * 2.0**-53


def test_forms_do_not_mix():
    c = Carry.of(np.array([1.0]), np.array([[1.0]]))
    n = NormalisedCarry.from_carry(c)
    with pytest.raises(OptionError, match=r"got Carry: convert it by NormalisedCarry\.from_carry"):
        n.merge(c)
    with pytest.raises(OptionError, match="takes carries, got NormalisedCarry"):
        c.merge(n)
    with pytest.raises(OptionError, match="no values"):
        NormalisedCarry.from_carry(Carry.of(np.array([1.0])))
    with pytest.raises(ShapeError, match="output"):
        NormalisedCarry(np.zeros(2), np.zeros(2), np.zeros((3, 1)))
    with pytest.raises(OptionError, match="from_carry takes a Carry, got NoneType: make one"):
        NormalisedCarry.from_carry(None)
    assert n.__or__(c) is NotImplemented
