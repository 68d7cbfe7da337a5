"""Ragged merges: groups of partials against the exact row and against the n-way merge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _carry_oracle import assert_within, distinct_values, exact
from _namespaces import NAMES, library, same_bits
from softcarry.carry import Carry
from softcarry.carry.ragged import merge_ragged

FIELDS = ("m", "l", "o")


def _partials(count: int, *, seed: int = 0, dtype=np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Scores (count, 3) of partials, among them empty ones and extreme ones, and values (count, 3, 2)."""
    generator = np.random.default_rng(seed)
    scores = (generator.standard_normal((count, 3)) * 6).astype(dtype)
    scores[::5] = -np.inf
    scores[3::7] += np.asarray(1e8, dtype)
    scores[1::4, 1] = -np.inf
    return scores, distinct_values(3 * count, 2, dtype).reshape(count, 3, 2)


@pytest.mark.parametrize("base", ["e", "2"])
@given(lengths=st.lists(st.integers(0, 9), max_size=6), seed=st.integers(0, 50))
def test_every_group_is_its_exact_row(base, lengths, seed):
    indptr = np.cumsum([0, *lengths])
    scores, values = _partials(int(indptr[-1]), seed=seed, dtype=np.float64)
    merged = merge_ragged(Carry.of(scores, values, base=base), indptr)
    assert merged.base == base
    assert merged.m.shape == (len(lengths),)
    for g in range(len(lengths)):
        part = slice(indptr[g], indptr[g + 1])
        s, v = scores[part].reshape(-1), values[part].reshape(-1, 2)
        if not (s > -np.inf).any():
            assert (merged.m[g], merged.l[g], list(merged.o[g])) == (-np.inf, 0, [0, 0])
            continue
        row = exact(s, v, base=base)
        assert merged.m[g] == s.max()
        wide = 2 * max(float(gap) for gap in row.gaps if gap < 750) if base == "2" else 0.0
        assert_within(merged.l[g], merged.o[g], row, np.float64, merges=1, extra=wide)


@pytest.mark.parametrize("name", NAMES)
def test_every_namespace_and_index_array(name):
    lib = library(name)
    scores, values = _partials(12)
    c = Carry.of(lib.array(scores), lib.array(values))
    indptr = [0, 0, 5, 5, 7, 12, 12]
    expected = merge_ragged(Carry.of(scores, values), indptr)
    arrays = np.array(indptr, np.int32), np.array(indptr, np.uint8), lib.array(np.array(indptr))
    for index in (indptr, *arrays):
        merged = merge_ragged(c, index)
        for field in FIELDS:
            got = lib.numpy(getattr(merged, field))
            assert got.dtype == np.float32
            # Exponentials of different libraries differ by a few u; the exact rows are checked above.
            np.testing.assert_allclose(got, getattr(expected, field), rtol=64 * 2.0**-24, atol=1e-6)


def test_pairs_agree_with_merge_to_the_bit_and_all_axes_follow():
    scores, values = np.random.default_rng(2).standard_normal((2, 4, 5, 3)), distinct_values(3, 6, np.float64)
    c = Carry.of(scores, values)
    merged = merge_ragged(c, [0, 2])
    a, b = (Carry(c.m[i], c.l[i], c.o[i]) for i in (0, 1))
    for field in FIELDS:
        assert same_bits(getattr(merged, field)[0], getattr(a | b, field))
    assert merged.o.shape == (1, 4, 5, 6)


def test_singles_and_empties_keep_every_bit():
    scores, values = _partials(9)
    scores[2] = np.nan
    scores[4, 0] = np.inf
    c = Carry.of(scores, values)
    same = merge_ragged(c, np.arange(10))
    for field in FIELDS:
        assert same_bits(getattr(same, field), getattr(c, field))
    spread = merge_ragged(c, np.repeat(np.arange(10), 3)[1:-1])
    for field in FIELDS:
        assert same_bits(getattr(spread, field)[1::3], getattr(c, field))
        rest = np.delete(getattr(spread, field), np.s_[1::3], axis=0)
        assert same_bits(rest, np.full_like(rest, -np.inf if field == "m" else 0))


def test_nan_and_infinity_stay_in_their_group():
    scores = np.zeros((6, 1))
    scores[1], scores[4] = np.nan, np.inf
    merged = merge_ragged(Carry.of(scores, np.arange(6.0)[:, None, None]), [0, 2, 4, 6])
    np.testing.assert_equal(merged.m, [np.nan, 0, np.inf])
    np.testing.assert_equal(merged.l, [np.nan, 2, np.nan])
    np.testing.assert_equal(merged.o[:, 0], [np.nan, 5, np.nan])


def test_index_arrays_of_the_other_byte_order_are_read():
    scores = np.array([[2.0, 5.0], [1.0, 7.0], [0.0, 0.0]])
    other = np.array([0, 2, 3]).astype(np.dtype(np.int32).newbyteorder())
    assert merge_ragged(Carry.of(scores), other).m.tolist() == [7.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_no_groups_and_no_partials(name):
    lib = library(name)
    nothing = Carry.empty(0, value_dim=2, like=lib.array(np.zeros(1, np.float32)))
    assert lib.numpy(merge_ragged(nothing, [0]).o).shape == (0, 2)
    merged = merge_ragged(nothing, [0, 0, 0])
    assert (lib.numpy(merged.m) == -np.inf).all()
    assert same_bits(lib.numpy(merged.o), np.zeros((2, 2), np.float32))
    assert merge_ragged(Carry.of(lib.array(np.zeros((2, 3), np.float32))), [0, 2]).o is None


def test_one_long_group_among_short_ones_takes_no_padding():
    lengths = np.ones(3000, dtype=int)
    lengths[1234] = 5000
    indptr = np.cumsum([0, *lengths])
    scores = np.zeros((int(indptr[-1]), 1), dtype=np.float32)
    import tracemalloc

    carries = Carry.of(scores)
    tracemalloc.start()
    merged = merge_ragged(carries, indptr)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert merged.l[1234] == 5000
    assert peak < 60 * 8 * indptr[-1]  # padding to 3000 × 5000 would be forty times as much
