"""How numbers are read and written."""

import math

import numpy as np
import pytest

from softcarry.auditing._calling import MalformedResultError
from softcarry.auditing.blocks._values import agree, numbers, parts, row_text, text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([], "[]"),
        ([0.0, -math.inf, math.nan, 0.5], "[0, -inf, nan, 0.5]"),
        ([16777217.0, 1e10, -1e300], "[16777217, 1e+10, -1e+300]"),
        ([0.0] * 4096, "[0] * 4096"),
        ([0.0] * 32 + [3.0], "[0] * 32 + [3]"),
        ([3.0] + [0.0] * 32, "[3] + [0] * 32"),
        ([1.0] + [0.0] * 32 + [1.0], "[1] + [0] * 32 + [1]"),
        (list(range(9)), "9 scores [0, 1, 2, 3, 4, 5, …]"),
    ],
)
def test_rows_can_be_typed(row, words):
    assert row_text(row) == words
    if "…" not in words:
        typed = eval(words, {"inf": math.inf, "nan": math.nan})
        assert typed == pytest.approx(row, nan_ok=True, rel=1e-7)


def test_numbers_in_brief():
    assert text((0.0, [1 / 3, -math.inf], np.arange(8.0))) == "(0, [0.333333, -inf], [0, 1, 2, 3, 4, 5, …])"


def test_numbers_are_read_from_anything():
    for value in (1.5, np.float32(1.5), np.array(1.5), [1.5], (np.float64(1.5),)):
        assert numbers(value, "m").reshape(-1).tolist() == [1.5]
    for value in (None, "1.5", object(), [[1.0], [1.0, 2.0]]):
        with pytest.raises(MalformedResultError, match="no real numbers"):
            numbers(value, "m")


def test_parts_are_counted():
    assert parts([1, 2], 2, "(m, l)") == (1, 2)
    for value in (1.0, (1, 2, 3), "ml", {"m": 1, "l": 2}):
        with pytest.raises(MalformedResultError, match=r"where \(m, l\) was expected"):
            parts(value, 2, "(m, l)")


def test_agreement_looks_at_classes_first():
    assert agree([math.nan, math.inf, 1.0], [math.nan, math.inf, 1.0 + 1e-9], 1e-8)
    assert not agree([math.inf], [-math.inf], 1.0)
    assert not agree([math.nan], [1.0], math.inf)
    assert not agree([1.0], [1.0, 1.0], 1.0)
    assert not agree([1.0], [1.1], 1e-3)
