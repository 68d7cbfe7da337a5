"""Sheets: four rows at once, whole or in part, and what eight lines are reduced to."""

import numpy as np
import pytest
from numba import njit

from row_cases import INF
from softcarry.cpu.memory import ELEMENTS, load_strip, store
from softcarry.cpu.row_vectors import (
    LINES,
    line_maxima,
    line_sums,
    load_sheet,
    load_sheet_part,
    spread_high,
    spread_low,
    store_sheet,
    store_sheet_part,
)
from vector_calls import DTYPES, address

NAMES = pytest.mark.parametrize("name", DTYPES)
MARK = 7.0


@njit
def _copy(element, source, stride, out_element, target, out_stride, count, lanes):
    if count == lanes:
        store_sheet(out_element, target, out_stride, load_sheet(element, source, stride))
    else:
        sheet = load_sheet_part(element, source, stride, count)
        store_sheet_part(out_element, target, out_stride, sheet, count)


@njit
def _all_of_part(element, source, stride, working, target, out_stride, count):
    store_sheet(working, target, out_stride, load_sheet_part(element, source, stride, count))


@njit
def _reduced(working, source, stride, target, size):
    low, high = load_sheet(working, source, stride), load_sheet(working, source + LINES * stride, stride)
    store(working, target, line_maxima(low, high))
    store(working, target + 8 * size, line_sums(low, high))


@njit
def _spread(working, source, target, stride):
    strip = load_strip(working, source)
    store_sheet(working, target, stride, spread_low(strip))
    store_sheet(working, target + LINES * stride, stride, spread_high(strip))


def lanes_of(name):
    return 8 if name == "float64" else 16


def working(name):
    return "float64" if name == "float64" else "float32"


def numbers(name, shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(DTYPES[name])


@NAMES
def test_parts_of_lines_are_copied_and_nothing_beyond(name):
    lanes = lanes_of(name)
    for count in range(1, lanes + 1):
        x = numbers(name, (LINES, 2 * lanes + 3), count)
        out = np.full((LINES, 3 * lanes + 1), MARK, DTYPES[name])
        element = ELEMENTS[name]
        source, target = x[:, 3:], out[:, 5:]
        _copy(element, address(source), x.strides[0], element, address(target), out.strides[0], count, lanes)
        np.testing.assert_array_equal(target[:, :count], source[:, :count])
        assert (target[:, count:] == MARK).all()
        assert (out[:, :5] == MARK).all()


@NAMES
def test_what_is_not_in_a_part_is_minus_infinity(name):
    lanes, wide = lanes_of(name), working(name)
    for count in range(1, lanes):
        x, out = numbers(name, (LINES, lanes), count), np.zeros((LINES, lanes), wide)
        _all_of_part(
            ELEMENTS[name], address(x), x.strides[0], ELEMENTS[wide], address(out), out.strides[0], count
        )
        np.testing.assert_array_equal(out[:, :count], x[:, :count].astype(wide))
        assert (out[:, count:] == -INF).all()


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_eight_lines_are_reduced_each_to_its_lane(name):
    """Sums of small integers are exact in any order; every place holds the maximum once."""
    lanes = lanes_of(name)
    for seed in range(lanes):
        x = np.random.default_rng(seed).integers(-1000, 1000, (2 * LINES, lanes)).astype(name)
        x[np.arange(8), (np.arange(8) + seed) % lanes] = 2000 + np.arange(8)
        out = np.zeros((2, 8), name)
        _reduced(ELEMENTS[name], address(x), x.strides[0], address(out), x.itemsize)
        np.testing.assert_array_equal(out[0], 2000 + np.arange(8))
        np.testing.assert_array_equal(out[1], x.sum(axis=1))


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_a_strip_is_spread_over_eight_lines(name):
    x, out = np.arange(8).astype(name), np.zeros((8, lanes_of(name)), name)
    _spread(ELEMENTS[name], address(x), address(out), out.strides[0])
    np.testing.assert_array_equal(out, np.repeat(x[:, None], lanes_of(name), axis=1))
