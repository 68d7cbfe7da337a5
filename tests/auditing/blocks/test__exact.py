"""The right values against mpmath, and by their rules."""

import math

import mpmath
import pytest

from softcarry.auditing.blocks import _exact
from softcarry.auditing.blocks._exact import Part, Result

INF, NAN = math.inf, math.nan
ROW = [0.5, -3.25, 700.0, 699.0, -INF, 2.0]


def test_a_normaliser_and_its_probabilities():
    m, total = _exact.normalizer(ROW)
    exact = mpmath.fsum(mpmath.exp(mpmath.mpf(s) - 700) for s in ROW)
    assert m == 700.0
    assert total == pytest.approx(float(exact), rel=4 * 2.0**-53)
    weights = [float(mpmath.exp(mpmath.mpf(s) - 700) / exact) for s in ROW]
    assert _exact.softmax(ROW) == pytest.approx(weights, rel=8 * 2.0**-53)
    assert _exact.softmax_topk(ROW, 2)[1] == [2, 3]


def test_rows_that_are_not_finite():
    assert _exact.normalizer([]) == (-INF, 0.0)
    assert _exact.normalizer([-INF]) == (-INF, 0.0)
    assert [str(x) for x in _exact.normalizer([1.0, INF])] == ["inf", "nan"]
    assert [str(x) for x in _exact.normalizer([NAN, INF])] == ["nan", "nan"]
    assert _exact.softmax([-INF, -INF]) == [0.0, 0.0]


def test_merges_are_those_of_one_row():
    left, right = [0.0, 2.0], [1.0]
    values = [(1.0, 2.0), (-1.0, 4.0), (3.0, 5.0)]

    def part(scores, values):
        m, total = _exact.normalizer(scores)
        o = [math.fsum(math.exp(s - m) * v[c] for s, v in zip(scores, values, strict=True)) for c in (0, 1)]
        return Part(m, total, tuple(o))

    whole = part(left + right, values)
    merged = _exact.merge(part(left, values[:2]), part(right, values[2:]))
    assert merged.m == whole.m
    assert [merged.l, *merged.o] == pytest.approx([whole.l, *whole.o], rel=1e-15)
    results = [
        Result(tuple(x / p.l for x in p.o), p.m + math.log(p.l))
        for p in (part(left, values[:2]), part(right, values[2:]), whole)
    ]
    both = _exact.merge_results(*results[:2])
    assert [both.lse, *both.output] == pytest.approx([results[2].lse, *results[2].output], rel=1e-14)


def test_empties_are_neutral():
    empty, one = Part(-INF, 0.0, (NAN, 0.0)), Part(2.0, 1.0, (3.0, 4.0))
    assert _exact.merge(empty, one) == one
    assert _exact.merge(empty, empty) == Part(-INF, 0.0, (0.0, 0.0))
    nothing = Result((NAN, NAN), -INF)
    assert _exact.merge_results(nothing, Result((1.0, 2.0), 5.0)) == Result((1.0, 2.0), 5.0)
    assert _exact.merge_results(nothing, nothing) == Result((0.0, 0.0), -INF)


def test_attention_of_two_keys():
    weight = 1.0 / (1.0 + math.exp(-1.0))
    output = _exact.attention([[2.0, 0.0, 0.0, 0.0]], [[1.0, 0, 0, 0], [0.0] * 4], [[1.0], [0.0]])
    assert output == [[pytest.approx(weight)]]
    assert _exact.attention([[1.0]], [[1.0], [9.0]], [[5.0], [NAN]], [[1, 0]]) == [[5.0]]
    assert _exact.attention([[1.0]], [[1.0]], [[5.0]], [[0]]) == [[0.0]]
