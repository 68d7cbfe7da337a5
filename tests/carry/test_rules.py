"""The table of rules in the docstring of Carry: −inf, +inf, NaN and garbage, in every namespace."""

import itertools

import numpy as np
import pytest

from _namespaces import NAMES, library, same_bits
from softcarry.carry import Carry

NAN, INF = np.nan, np.inf
# scores (5,) -> m, l is NaN, lse; the values are finite
SCORES = {
    "empty": ([-INF] * 5, -INF),
    "finite": ([0.5, -1.0, 2.0, 1.0, 0.0], 2.0),
    "half masked": ([0.5, -INF, -INF, 1.0, -INF], 1.0),
    "NaN": ([0.5, NAN, 2.0, 1.0, 0.0], NAN),
    "NaN and masks": ([-INF, NAN, -INF, -INF, -INF], NAN),
    "+inf": ([0.5, INF, 2.0, 1.0, -INF], INF),
    "two +inf": ([0.5, INF, INF, -1.0, 0.0], INF),
    "+inf alone": ([-INF, INF, -INF, -INF, -INF], INF),
    "+inf and NaN": ([INF, NAN, 2.0, 1.0, 0.0], NAN),
}
VALUES = np.array([[1.0, -2.0], [0.25, 3.0], [-1.5, 0.5], [4.0, -0.75], [2.5, 1.25]], dtype=np.float32)
SPLITS = [[5], [1, 1, 1, 1, 1], [2, 3], [0, 5, 0]]


def _merged(lib, scores, values, split, order=None):
    edges = np.cumsum([0, *split])
    parts = [
        Carry.of(lib.array(scores[..., a:b]), lib.array(values[a:b])) for a, b in itertools.pairwise(edges)
    ]
    return Carry.merge(*(parts if order is None else [parts[i] for i in order]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_rules_of_scores(name, split):
    lib = library(name)
    scores = np.array([row for row, _ in SCORES.values()], dtype=np.float32)
    c = _merged(lib, scores, VALUES, split)
    fields = {key: lib.numpy(getattr(c, key)) for key in ("m", "l", "o", "lse", "lse2", "output")}
    weights = lib.numpy(c.weights(lib.array(scores)))
    logprob = lib.numpy(c.logprob(lib.array(scores[:, 1])))
    for i, (case, (row, m)) in enumerate(SCORES.items()):
        np.testing.assert_equal(fields["m"][i], np.float32(m), case)
        row = np.array(row)
        if case == "empty":
            assert fields["l"][i] == 0
            assert not fields["o"][i].any()
            assert not fields["output"][i].any()
            assert not weights[i].any()
            assert fields["lse"][i] == fields["lse2"][i] == logprob[i] == -INF
        elif np.isfinite(m):
            assert fields["l"][i] >= 1
            assert np.isfinite(fields["o"][i]).all()
            assert (weights[i][row == -INF] == 0).all()
            assert abs(weights[i].sum() - 1) < 1e-5
        else:
            for key in ("l", "o", "output"):
                assert np.isnan(fields[key][i]).all(), (case, key)
            assert np.isnan(weights[i]).all()
            assert np.isnan(logprob[i])
            np.testing.assert_equal(fields["lse"][i], np.float32(m), case)
            np.testing.assert_equal(fields["lse2"][i], np.float32(m), case)


@pytest.mark.parametrize("name", NAMES)
def test_no_row_touches_another(name):
    lib = library(name)
    scores = np.array([row for row, _ in SCORES.values()], dtype=np.float32)
    calm = np.where(np.isfinite(scores), scores, np.float32(0.25))
    for base in ("e", "2"):
        mixed = Carry.of(lib.array(scores), lib.array(VALUES), base=base)
        plain = Carry.of(lib.array(calm), lib.array(VALUES), base=base)
        for key in ("m", "l", "o", "output", "lse"):
            a, b = lib.numpy(getattr(mixed, key)), lib.numpy(getattr(plain, key))
            assert same_bits(a[1], b[1]), key


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e38])
def test_a_masked_score_selects_its_value_away(name, garbage):
    lib = library(name)
    scores = np.array([[0.5, -INF, 2.0], [-INF, -INF, -INF], [1.0, -INF, -3.0]], dtype=np.float32)
    poisoned = np.array([[1.0, 2.0], [garbage, garbage], [3.0, 4.0]], dtype=np.float32)
    clean = np.where(np.arange(3)[:, None] == 1, np.float32(0), poisoned)
    a, b = (Carry.of(lib.array(scores), lib.array(v)) for v in (poisoned, clean))
    assert same_bits(lib.numpy(a.o), lib.numpy(b.o))
    per_row = np.broadcast_to(poisoned, (3, 3, 2))
    assert np.isfinite(lib.numpy(Carry.of(lib.array(scores), lib.array(per_row)).o)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_live_nan_and_infinity_reach_exactly_the_rows_that_depend_on_them(name, split):
    """Whatever the term underflows to, and however the keys are split and ordered."""
    lib = library(name)
    values = np.broadcast_to(VALUES[:, :1], (5, 5)).copy()
    values[1] = [INF, -INF, NAN, INF, 0.5]
    values[3, 3] = -INF
    scores = np.array(
        [
            [0.0, 1.0, 2.0, 3.0, 4.0],  # all live
            [0.0, -INF, 2.0, 3.0, 4.0],  # key 1 masked
            [0.0, -200.0, 2.0, -200.0, 4.0],  # keys 1 and 3 live, their terms underflow
            [0.0, 1.0, 2.0, -INF, 4.0],  # key 3 masked
            [-INF, -INF, 0.0, -INF, -INF],
        ],
        dtype=np.float32,
    )
    both = [INF, -INF, NAN, NAN, None]
    first = [INF, -INF, NAN, INF, None]
    neither = [None] * 3 + [-INF, None]
    expected = [both, neither, both, first, [None] * 5]
    for order in itertools.islice(itertools.permutations(range(len(split))), 6):
        c = _merged(lib, scores, values, split, order)
        for array in (lib.numpy(c.o), lib.numpy(c.output)):
            for i, row in enumerate(expected):
                for j, want in enumerate(row):
                    if want is None:
                        assert np.isfinite(array[i, j])
                    else:
                        np.testing.assert_equal(array[i, j], np.float32(want))
        assert np.isfinite(lib.numpy(c.l)).all()


@pytest.mark.parametrize("name", NAMES)
def test_garbage_in_an_empty_part_never_shows(name):
    lib = library(name)
    m = np.full(3, -INF, np.float32)
    total, o = np.array([NAN, INF, 7.0], np.float32), np.array([[NAN, INF]] * 3, np.float32)
    garbage = Carry(lib.array(m), lib.array(total), lib.array(o))
    empty = Carry.empty(3, value_dim=2, like=garbage.m)
    for c in (garbage, garbage | garbage, garbage | empty, Carry.merge(empty, garbage, empty)):
        assert not lib.numpy(c.output).any()
        assert (lib.numpy(c.lse) == -INF).all()
        assert not lib.numpy(c.weights(lib.array(np.float32([1.0, NAN, INF])))).any()
        assert (lib.numpy(c.logprob(lib.array(np.float32([1.0, NAN, INF])))) == -INF).all()
    merged = garbage | empty
    assert not lib.numpy(merged.l).any()
    assert same_bits(lib.numpy(merged.o), np.zeros((3, 2), np.float32))


def test_negative_zero_survives_the_identity():
    c = Carry(np.array(1.0), np.array(1.0), np.array([-0.0, 0.0]))
    e = Carry.empty((), value_dim=2, like=c.m)
    for merged in (c | e, e | c, Carry.merge(e, c, e)):
        assert np.signbit(merged.o).tolist() == [True, False]


def test_no_finite_sentinel_hides_in_the_algebra():
    """Scores below every popular sentinel stay exact, and equal scores share the weight exactly."""
    for s in (-1e4, -5e4, -1e9, -1e30, -3e38, 1e30, 3e38):
        scores = np.full((1, 2), s, dtype=np.float32)
        c = Carry.of(scores[:, :1]) | Carry.of(scores[:, 1:])
        assert c.m == np.float32(s)
        assert c.l == 2
        assert c.weights(scores).tolist() == [[0.5, 0.5]]
