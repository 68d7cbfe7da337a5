"""Axis layouts: words, canonical order, and views there and back."""

import numpy as np
import pytest

from softcarry._conventions import layouts


@pytest.mark.parametrize(
    ("layout", "words", "canonical"),
    [
        ("t h", "(tokens, heads)", "h t"),
        ("b h t", "(batch, heads, queries)", "b h t"),
        ("t n h d", "(tokens, splits, heads, value dim)", "n h t d"),
        ("b t g h d", "(batch, queries, groups, heads, value dim)", "b g h t d"),
        ("... 1", "(..., 1)", "..."),
        ("...", "(...,)", "..."),
    ],
)
def test_words_and_canonical_order(layout, words, canonical):
    assert layouts.words(layout) == words
    assert layouts.canonical(layout) == canonical


@pytest.mark.parametrize("layout", ["t h", "b t h d", "t n h d", "b t g h d", "b h t 1", "... 1", "... d"])
def test_there_and_back_without_a_copy(layout):
    lengths = {"n": 2, "b": 3, "g": 4, "h": 5, "t": 6, "d": 7, "-1": 2}
    array = np.arange(np.prod(layouts.shape(layout, lengths))).reshape(layouts.shape(layout, lengths))
    there = layouts.to_canonical(np, array, layout)
    back = layouts.from_canonical(np, there, layout)
    assert there.shape == layouts.shape(layouts.canonical(layout), lengths)
    np.testing.assert_array_equal(back, array)
    assert np.shares_memory(there, array)
    assert np.shares_memory(back, array)


def test_each_axis_goes_where_its_letter_says():
    array = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    there = layouts.to_canonical(np, array, "t n h")
    assert [there[1, 4, 0], there[2, 0, 1]] == [array[0, 1, 4], array[1, 2, 0]]


def test_sizes_and_shape_are_inverse():
    assert layouts.shape("b h t", layouts.sizes("b t h d", (2, 5, 3, 8))) == (2, 3, 5)
    assert layouts.shape("... 1", layouts.sizes("... d", (2, 5, 3, 8))) == (2, 5, 3, 1)
    assert not layouts.fits("t h d", (3, 4))
    assert layouts.fits("... d", (4,))
