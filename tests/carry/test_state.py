"""What a carry is made of and what is read off it, in every namespace and input dtype."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _carry_oracle import EXP_ERROR, assert_within, distinct_values, exact
from _namespaces import NAMES, library, same_bits
from softcarry.carry import Carry, _algebra

ROW = np.array([2.0, 5.0, 1.0, 7.0])
U32 = 2.0**-24


def test_the_seed_row_in_one_pass_and_from_halves():
    whole = Carry.of(ROW)
    halves = Carry.of(ROW[:2]), Carry.of(ROW[2:])
    # The seeds give four decimals.
    assert (whole.m, round(float(whole.l), 4)) == (7.0, 1.1446)
    assert [(c.m, round(float(c.l), 4)) for c in halves] == [(5.0, 1.0498), (7.0, 1.0025)]
    merged = halves[0] | halves[1]
    assert (merged.m, round(float(merged.l), 4)) == (7.0, 1.1446)


def test_float16_scores_beyond_12_are_right_to_float16_precision():
    scores = np.array([12.5, 13.0, 11.25, 12.75, -3.0], dtype=np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        naive = np.exp(scores) / np.exp(scores).sum()
    assert not np.isfinite(naive).all()
    row = exact(scores, np.ones((5, 1)))
    weights = Carry.of(scores).weights(scores)
    for got, term in zip(weights, row.terms, strict=True):
        want = float(term / row.l)
        # float32 is so much finer that rounding the weight to float16 is all the error, up to a tie.
        assert abs(float(np.float16(got)) - want) <= float(np.spacing(np.float16(want))) * 0.501


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", ["e", "2", 2])
def test_readouts_match_the_definition(name, base):
    lib = library(name)
    values = distinct_values(4, 3)
    c = Carry.of(lib.array(ROW.astype(np.float32)), lib.array(values), base=base)
    assert c.base == str(base)
    row = exact(ROW, values, base=str(base))
    assert float(c.m) == 7.0
    assert_within(float(c.l), lib.numpy(c.o), row, np.float32, merges=0, extra=2 * float(max(row.gaps)))
    # Reading off adds one logarithm or division, one product and one sum to the error of l, which is at most
    # n + max gap + ε in units of u; all magnitudes here are below 16.
    slack = (4 + 3 * 7 + 2 * EXP_ERROR + 8) * U32
    assert abs(float(c.lse) - float(row.lse)) <= 16 * slack
    assert abs(float(c.lse2) - float(row.lse) / math.log(2)) <= 16 * slack
    for got, want in zip(lib.numpy(c.output), row.output, strict=True):
        assert abs(float(got) - float(want)) <= slack * np.abs(values).max()
    weights = lib.numpy(c.weights(lib.array(ROW.astype(np.float32))))
    for j in range(4):
        want = float(row.terms[j] / row.l)
        assert abs(float(weights[j]) - want) <= slack * want
        assert abs(float(c.logprob(float(ROW[j]))) - math.log(want)) <= 16 * slack


@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("name", NAMES)
def test_logprob_under_a_large_common_offset(name, base):
    """The pair gives each log-probability to full precision where s − lse is off by whole units."""
    lib = library(name)
    scores = np.float32(1e8) + 8 * np.array([-3, 0, -1, 0, -2], dtype=np.float32)
    c = Carry.of(lib.array(scores), base=base)
    unit = math.log(2) if base == "2" else 1.0
    gaps = (float(scores.max()) - scores.astype(np.float64)) * unit
    total = math.fsum(math.exp(-g) for g in gaps)
    worst = 0.0
    for s, gap in zip(scores, gaps, strict=True):
        want = -gap - math.log(total)
        # gap exact; product with ln 2, logarithm, subtraction: 3u each of the result, and the error of l.
        bound = U32 * (3 * abs(want) + 5 + 3 * 24 + EXP_ERROR)
        assert abs(float(c.logprob(float(s))) - want) <= bound
        assert abs(float(c.logprob(lib.array(s))) - want) <= bound
        worst = max(worst, abs(float(np.float32(s * unit) - np.float32(lib.numpy(c.lse))) - want))
    assert worst > 0.3  # so that a logprob made of s − lse would fail here


def test_logprob_has_the_shape_of_m_and_weights_add_an_axis():
    scores = np.arange(24.0).reshape(2, 3, 4) ** 0.5
    c = Carry.of(scores)
    assert c.logprob(scores[:, :, 1]).shape == (2, 3)
    assert c.logprob(0.0).shape == (2, 3)
    assert c.weights(scores).shape == (2, 3, 4)
    assert abs(c.weights(scores).sum(-1) - 1).max() <= 10 * 2.0**-53
    log_weights = np.log(c.weights(scores)[:, :, 1])
    assert abs(c.logprob(scores[:, :, 1]) - log_weights).max() <= 30 * 2.0**-53


@pytest.mark.parametrize(
    "dtype",
    [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.dtype(">f4")],
)
def test_narrow_and_swapped_dtypes_are_converted_exactly(dtype):
    scores = np.array([[0.5, -1.75, 3.0], [1.0, -2.0, 0.25]]).astype(dtype)
    values = np.array([[1.5, -2.0], [0.75, 4.0], [-3.5, 0.5]]).astype(dtype)
    c = Carry.of(scores, values)
    reference = Carry.of(scores.astype(np.float32), values.astype(np.float32))
    for name in ("m", "l", "o"):
        array = getattr(c, name)
        assert array.dtype == np.float32
        assert same_bits(array, getattr(reference, name))
    assert Carry.of(scores, values.astype(np.float64)).l.dtype == np.float64


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_bfloat16_of_torch_and_jax(name):
    lib = library(name)
    scores = lib.xp.astype(lib.array(np.array([1.0, 3.0], np.float32)), lib.xp.bfloat16)
    c = Carry.of(scores)
    assert c.l.dtype == lib.xp.float32
    assert abs(float(c.l) - 1 - math.exp(-2)) <= 10 * U32


@pytest.mark.parametrize("name", NAMES)
def test_a_wider_carry_widens_the_merge(name):
    lib = library(name)
    if not lib.has_float64:
        pytest.skip("no float64 by default")
    narrow = Carry.of(lib.array(np.float32([2, 5])), base="2")
    wide = Carry.of(lib.array(np.array([1.0, 7.0])))
    merged = narrow | wide
    assert merged.l.dtype == lib.xp.float64
    assert merged.base == "e"
    row = exact(np.array([2 * math.log(2), 5 * math.log(2), 1.0, 7.0]), np.ones((4, 1)))
    # l of the narrow part is float32; converting its m in float64 leaves no more than that.
    assert abs(float(merged.l) - float(row.l)) <= (2 + 3 + EXP_ERROR) * U32


def test_a_base_2_carry_is_widened_before_its_m_is_converted():
    m = 2.0**17  # converted in float32, it would shift the terms by 0.4 %
    narrow = Carry.of(np.float32([m]), base="2")
    wide = Carry.of(np.array([m * math.log(2)]))
    for c in (narrow | wide, wide | narrow):
        assert abs(c.l - 2) <= 3 * m * 2.0**-53


@pytest.mark.parametrize("name", NAMES)
def test_empty_takes_the_library_and_dtype_of_its_example(name):
    lib = library(name)
    for like in (lib.array(np.zeros(3, np.float32)), lib.xp.float32):
        c = Carry.empty((2, 3), value_dim=4, like=like, base="2")
        assert c.o.dtype == lib.xp.float32
        assert isinstance(c.m, type(lib.array(np.zeros(1, np.float32))))
        assert (lib.numpy(c.m) == -np.inf).all()
        assert (lib.numpy(c.output) == 0).all()
        assert lib.numpy(c.output).shape == (2, 3, 4)
    assert Carry.empty(5).m.shape == (5,)
    assert Carry.empty((), like=np.float64).m.dtype == np.float64
    assert Carry.empty((), like=ml_dtypes.bfloat16).m.dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_no_keys_give_the_empty_carry(name):
    lib = library(name)
    scores, values = np.zeros((2, 3, 0), np.float32), np.zeros((2, 1, 0, 4), np.float32)
    c = Carry.of(lib.array(scores), lib.array(values))
    assert (lib.numpy(c.m) == -np.inf).all()
    assert lib.numpy(c.o).shape == (2, 3, 4)
    assert not lib.numpy(c.o).any()


@pytest.mark.parametrize("name", NAMES)
def test_values_broadcast_and_shared_ones_take_one_product_a_head(name, monkeypatch):
    lib = library(name)
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((2, 3, 5, 7)).astype(np.float32)
    values = generator.standard_normal((2, 3, 1, 7, 4)).astype(np.float32)
    shapes = []
    product = _algebra.matmul
    monkeypatch.setattr(
        _algebra,
        "matmul",
        lambda xp, a, b: (shapes.append((tuple(a.shape), tuple(b.shape))), product(xp, a, b))[1],
    )
    shared = Carry.of(lib.array(scores), lib.array(values))
    own = Carry.of(lib.array(scores), lib.array(np.repeat(values, 5, axis=2)))
    assert shapes[0] == ((2, 3, 5, 7), (2, 3, 7, 4))
    for c in (shared, own):
        o, total = lib.numpy(c.o), lib.numpy(c.l)
        for i in ((0, 0, 0), (1, 2, 4)):
            row = exact(scores[i], values[i[0], i[1], 0])
            assert_within(total[i], o[i], row, np.float32, merges=0)
    for lead, value_lead in [((), (4,)), ((4,), ()), ((2, 1), (3,)), ((3, 1), (2, 1, 5)), ((2, 3), (3,))]:
        s, v = generator.standard_normal((*lead, 6)), generator.standard_normal((*value_lead, 6, 2))
        c = Carry.of(s, v)
        shape = np.broadcast_shapes(lead, value_lead)
        assert c.m.shape == c.l.shape == shape
        wide_s, wide_v = np.broadcast_to(s, (*shape, 6)), np.broadcast_to(v, (*shape, 6, 2))
        for i in np.ndindex(shape):
            assert_within(c.l[i], c.o[i], exact(wide_s[i], wide_v[i]), np.float64, merges=0)


@given(m=st.floats(-(2.0**99), 2.0**99, width=32), start=st.sampled_from(["e", "2"]))
def test_changing_the_base_errs_by_the_documented_bound(m, start):
    other = "2" if start == "e" else "e"
    c = Carry(np.float32([m]), np.float32([1.5]), np.float32([[3.0]]), start)
    changed = c.to_base(other)
    assert (changed.l, changed.o, changed.base) == (c.l, c.o, other)
    # 1.5·|m|·u in natural units, beside the smallest subnormal number where the product underflows.
    natural = {"e": 1.0, "2": math.log(2)}
    error = abs(float(changed.m[0]) * natural[other] - float(c.m[0]) * natural[start])
    assert error <= 1.5 * U32 * abs(float(c.m[0]) * natural[start]) + 2.0**-149


def test_mixed_bases_merge_to_the_right_answer():
    values = distinct_values(6, 2, np.float64)
    scores = np.array([0.5, -1.0, 3.0, 2.5, -0.25, 1.0])
    a = Carry.of(scores[:3] / math.log(2), values[:3], base="2")
    b = Carry.of(scores[3:], values[3:])
    row = exact(scores, values)
    for c in (a | b, b | a, Carry.merge(b, a, Carry.empty((), value_dim=2, like=a.m, base="2"))):
        assert c.base == "e"
        # Beside the merge: scores/ln 2 and m·ln 2 err by 1.5·3u each, as a change of the gaps.
        assert_within(c.l, c.o, row, np.float64, merges=1, extra=9.0 + 2 * 7)
    assert (a | Carry.of(scores[3:] / math.log(2), values[3:], base="2")).base == "2"


@pytest.mark.parametrize("base", ["e", "2"])
def test_from_lse_and_back(base):
    output = np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0], [6.0, 7.0]])
    lse = np.array([0.75, -np.inf, np.nan, np.inf])
    c = Carry.from_lse(output, lse, base=base)
    assert (c.lse if base == "e" else c.lse2)[:2].tolist() == [0.75, -np.inf]
    assert c.output[:2].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert c.l[:2].tolist() == [1.0, 0.0]
    assert np.isnan(c.l[2:]).all()
    assert np.isnan(c.o[2:]).all()
    assert c.lse[3] == np.inf
    assert Carry.from_lse(None, lse[:1]).o is None


def test_the_lse_form_merges_as_the_scores_do():
    scores, values = np.array([0.5, 3.0, 2.5, -0.25]), distinct_values(4, 2, np.float64)
    parts = [Carry.of(scores[i : i + 2], values[i : i + 2]) for i in (0, 2)]
    merged = Carry.merge(*(Carry.from_lse(c.output, c.lse) for c in parts))
    row = exact(scores, values)
    for got, want in zip(merged.output, row.output, strict=True):
        assert abs(float(got - want)) <= 60 * 2.0**-53 * abs(values).max()


def test_a_carry_is_frozen_and_does_not_alias_into_its_inputs():
    scores = np.array([1.0, 2.0])
    c = Carry.of(scores)
    with pytest.raises(AttributeError):
        c.m = 3.0
    total = float(c.l)
    scores[:] = 0
    assert float(c.l) == total
    assert c.merge() is c
    assert c.__or__(3) is NotImplemented


def test_numpy_warns_of_nothing_even_if_asked_to_raise():
    scores = np.array([[np.inf, 1.0], [np.nan, 0.0], [-np.inf, -np.inf], [1e30, -1e30], [-3e38, 3e38]])
    values = np.array([[np.inf, 1.0], [-np.inf, np.nan]])
    with np.errstate(all="raise"):
        for dtype in (np.float32, np.float64):
            for base in ("e", "2"):
                c = Carry.of(scores.astype(dtype), values.astype(dtype), base=base)
                d = Carry.merge(c, c, Carry.empty(5, value_dim=2, like=c.m, base=base))
                for x in (d.lse, d.lse2, d.output, d.weights(scores), d.logprob(scores[:, 0]), d.underflowed):
                    assert x.shape[0] == 5
                d.to_base("e").to_base("2").absorb(scores.astype(dtype), values.astype(dtype))
