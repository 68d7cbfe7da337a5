"""Merges in compiled code: which arrays they are for, and that the rules of `Carry` hold there."""

import itertools

import numpy as np
import pytest
import torch

import softcarry.carry._merge as merging
from _carry_oracle import assert_within, distinct_values, exact
from _namespaces import library, same_bits
from softcarry.carry import Carry, merge_ragged

FIELDS = ("m", "l", "o")


@pytest.fixture
def compiled(monkeypatch):
    """Compiled code whatever the size; returns a list that grows by one a call."""
    calls = []
    right = merging._merged

    def counted(*args, **options):
        calls.append(args)
        return right(*args, **options)

    monkeypatch.setattr(merging, "_LEAST", 0)
    monkeypatch.setattr(merging, "_merged", counted)
    return calls


def same(a: Carry, b: Carry) -> bool:
    return a.base == b.base and all(
        same_bits(np.asarray(getattr(a, key)), np.asarray(getattr(b, key))) for key in FIELDS
    )


def blocks(dtype=np.float32, rows=5):
    """Scores of three blocks of keys (rows, n), with masks and a row that is empty, and their values."""
    rng = np.random.default_rng(0)
    scores = [(rng.standard_normal((rows, n)) * 5).astype(dtype) for n in (4, 1, 6)]
    for block in scores:
        block[1] = -np.inf
    scores[1][2], scores[2][3, ::2] = -np.inf, -np.inf
    values = distinct_values(11, 3, dtype)
    return scores, [values[:4], values[4:5], values[5:]]


def parts_of(lib="numpy", dtype=np.float32, base="e"):
    kind = library(lib)
    return [Carry.of(kind.array(s), kind.array(v), base=base) for s, v in zip(*blocks(dtype), strict=True)]


@pytest.mark.parametrize("lib", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("base", ["e", "2"])
def test_a_merge_is_within_the_bound_in_any_order(lib, dtype, base, compiled):
    parts, kind = parts_of(lib, dtype, base), library(lib)
    scores, values = (np.concatenate(x, axis=-1 - (x[0].shape[-1] == 3)) for x in blocks(dtype))
    for order in itertools.permutations(range(3)):
        whole = Carry.merge(*(parts[i] for i in order))
        assert whole.base == base
        m, l, o = (kind.numpy(getattr(whole, key)) for key in FIELDS)
        assert (m[1], l[1], list(o[1])) == (-np.inf, 0, [0, 0, 0])
        for row in (0, 2, 3, 4):
            want = exact(scores[row], values, base=base)
            wide = 2 * max(float(gap) for gap in want.gaps) if base == "2" else 0.0
            assert m[row] == scores[row].max()
            assert_within(l[row], o[row], want, dtype, merges=1, extra=wide)
    assert len(compiled) == 6


@pytest.mark.parametrize("lib", ["numpy", "torch"])
def test_the_identity_and_the_exchange_of_two_hold_to_the_bit(lib, compiled):
    kind = library(lib)
    parts = parts_of(lib)
    rubbish = Carry(
        kind.array(np.full(5, -np.inf, np.float32)),
        kind.array(np.full(5, np.nan, np.float32)),
        kind.array(np.full((5, 3), np.inf, np.float32)),
    )
    whole = Carry.merge(*parts)
    for place in range(4):
        assert same(Carry.merge(*parts[:place], rubbish, *parts[place:]), whole)
    assert same(parts[0] | parts[2], parts[2] | parts[0])
    assert compiled


def test_rows_that_are_not_finite_are_as_the_formulas_have_them(compiled, monkeypatch):
    special = np.array([-np.inf, np.inf, np.nan, 0.0, -2000.0], np.float32)
    pairs = np.array(list(itertools.product(special, repeat=3)), np.float32).T
    rng = np.random.default_rng(0)
    for o in (
        rng.standard_normal((3, 125, 4)),
        rng.choice([np.nan, np.inf, -np.inf, 1.0, -0.0], (3, 125, 4)),
    ):
        for l in (np.ones((3, 125)), rng.choice([np.nan, np.inf, 0.0, 2.0], (3, 125))):
            parts = [Carry(pairs[i], l[i].astype("f4"), o[i].astype("f4")) for i in range(3)]
            monkeypatch.setattr(merging, "_LEAST", 0)
            got = Carry.merge(*parts)
            monkeypatch.setattr(merging, "_LEAST", 2**60)
            want = Carry.merge(*parts)
            assert same_bits(got.m, want.m)
            for a, b in ((got.l, want.l), (got.o, want.o)):
                plain = np.isfinite(b)
                np.testing.assert_array_equal(a[~plain], b[~plain])
                # Three terms of at most 2 in size, the exponentials of NumPy within 4 places.
                assert (
                    np.abs(a[plain] - b[plain]) <= 6 * 12 * 2.0**-24 * np.maximum(1, np.abs(b[plain]))
                ).all()
    assert len(compiled) == 4


@pytest.mark.parametrize("lib", ["numpy", "torch"])
def test_ragged_groups_are_merges_of_each_to_the_bit(lib, compiled):
    kind = library(lib)
    rng = np.random.default_rng(1)
    m, l, o = (rng.standard_normal(s).astype("f4") for s in ((12, 2), (12, 2), (12, 2, 9)))
    m[3], m[5, 1] = -np.inf, np.nan
    indptr = [0, 4, 4, 5, 12]
    merged = merge_ragged(Carry(*map(kind.array, (m, l, o)), base="2"), indptr)
    for g, (a, b) in enumerate(itertools.pairwise(indptr)):
        parts = [Carry(*(kind.array(x[i]) for x in (m, l, o)), base="2") for i in range(a, b)]
        want = (
            Carry.merge(*parts)
            if len(parts) > 1
            else parts[0]
            if parts
            else Carry.empty(2, value_dim=9, like=kind.array(m))
        )
        for key in FIELDS:
            assert same_bits(kind.numpy(getattr(merged, key))[g], kind.numpy(getattr(want, key)))
    assert compiled


def test_bases_are_brought_together_first(compiled):
    a, b = parts_of(base="2")[0], parts_of()[1]
    assert same(a | b, a.to_base("e") | b)
    assert (a | b).base == "e"


def test_small_carries_are_left_to_the_formulas(monkeypatch):
    monkeypatch.setattr(merging, "_merged", None)
    parts = [Carry.of(np.zeros((63, 2)), np.zeros((2, 64))) for _ in range(4)]
    Carry.merge(*parts)
    large = [Carry.of(np.zeros((64, 2)), np.zeros((2, 64))) for _ in range(4)]
    with pytest.raises(TypeError):
        Carry.merge(*large)


# torch's own forward derivatives still call torch.jit.script.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_tensors_that_torch_watches_are_left_to_the_formulas(compiled):
    m, l, o = torch.randn(3, 4), torch.rand(3, 4) + 1, torch.randn(3, 4, 5)

    def merged(m, l, o):
        return (Carry(m, l, o) | Carry(m + 1, l, o)).o.sum()

    merged(m, l, o)
    assert len(compiled) == 1
    leaf = m.clone().requires_grad_()
    merged(leaf, l, o).backward()
    assert leaf.grad is not None
    torch.func.vmap(merged)(m, l, o)
    torch.func.grad(merged)(m, l, o)
    torch.func.jvp(merged, (m, l, o), (m, l, o))
    torch.func.functionalize(merged)(m, l, o)
    with torch.autograd.forward_ad.dual_level():
        merged(torch.autograd.forward_ad.make_dual(m, m), l, o)
    assert merged(torch._neg_view(m), l, o).isfinite()
    merged(m.to("meta"), l.to("meta"), o.to("meta"))
    assert len(compiled) == 1
    with torch.no_grad():
        merged(leaf, l, o)
    with torch.inference_mode():
        merged(m, l, o)
    assert len(compiled) == 3


@pytest.mark.parametrize("lib", ["jax", "array_api_strict"])
def test_other_libraries_are_left_to_the_formulas(lib, compiled):
    Carry.merge(*parts_of(lib))
    assert compiled == []
