"""Scores by construction: exact in every dtype, by every order of summation."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from softcarry.auditing.score_control import constant_score, score_control
from softcarry.errors import OptionError, ShapeError


@pytest.mark.parametrize("depth", [1, 4, 16, 64, 256])
def test_scores_are_what_was_asked_for_to_the_bit(depth):
    rng = np.random.default_rng(depth)
    rows = min(depth, 3)
    scores = rng.standard_normal((2, rows, 50)).astype(ml_dtypes.bfloat16).astype(np.float64)
    q, k = score_control(scores, depth)
    assert q.shape == (2, rows, depth)
    assert k.shape == (2, 50, depth)
    for kind in (ml_dtypes.bfloat16, np.float32):
        # einsum in float32 adds the zeros in an order of its own.
        products = np.einsum(
            "bqd,bkd->bqk", q.astype(kind).astype(np.float32), k.astype(kind).astype(np.float32)
        )
        assert (products / np.float32(math.sqrt(depth)) == scores).all()


@pytest.mark.parametrize("depth", [0, 2, 8, 60, 80])
def test_other_depths_are_refused(depth):
    with pytest.raises(OptionError, match=f"power of four; got {depth}"):
        score_control(np.zeros((1, 2)), depth)


def test_more_rows_than_coordinates_are_refused():
    with pytest.raises(ShapeError, match="at most depth = 4 rows"):
        score_control(np.zeros((5, 2)), 4)


@pytest.mark.parametrize("target", [1.0, -88.0, 65504.0, -1e6, 2.0**24 + 2.0, 1e9, -1.6e10])
@pytest.mark.parametrize(("kind", "bits", "largest"), [(np.float16, 11, 65504.0), (np.float32, 24, 3.4e38)])
def test_a_constant_score_is_within_half_an_ulp(target, kind, bits, largest):
    q, k = constant_score(target, 64, lambda x: x.astype(kind).astype(np.float64), largest)
    assert q is not None
    assert (q.astype(kind) == q).all()
    assert (k.astype(kind) == k).all()
    score = sum(Fraction(a) * Fraction(b) for a, b in zip(q, k, strict=True)) / 8
    # One factor is a power of two, the other is rounded once.
    assert abs(score - Fraction(target)) <= abs(Fraction(target)) / 2**bits


def test_what_no_split_reaches_is_none():
    """64 products of 2^15 · 65504 are 1.4e11, and √64 = 8 divides them."""
    q, k = constant_score(1e12, 64, lambda x: x.astype(np.float16).astype(np.float64), 65504.0)
    assert q is None
    assert k is None
