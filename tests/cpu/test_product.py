"""Products in registers: every count of rows, sums in their order to the bit, and nothing written beside.

The numbers of a panel beyond the columns of a tile, and all that lies around what is read, are NaN here: none
may reach a result.
"""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit

from exact_rounding import round_exactly
from softcarry.cpu.product import PANEL, add_product, padded_columns, panel_columns, store_product
from vector_calls import DTYPES, address

SCALARS = pytest.mark.parametrize("dtype", [DTYPES["float32"], DTYPES["float64"]], ids=str)
INNER = (*range(10), 64, 129)
SINGLE = SimpleNamespace(exponent_bits=8, mantissa_bits=23, has_infinity=True)
UNTOUCHED = 77.0


@njit
def _columns(like):
    return panel_columns(like)


@njit
def _store(like, a, a_row, b, c, rows, inner):
    store_product(like, a, a_row, b, c, rows, inner)


@njit
def _add(like, a, b, c, c_row, rows, inner, factors):
    add_product(like, a, b, c, c_row, rows, inner, factors)


def columns_of(dtype):
    return _columns(dtype.type(0))


def lanes_of(dtype):
    return PANEL // dtype.itemsize


def in_panel(x, rows):
    """The rows of a panel, (rows, lanes), of which x fills the first columns; one row of NaN behind."""
    panel = np.full((rows + 1, PANEL // x.itemsize), np.nan, x.dtype)
    panel[:rows, : x.shape[1]] = x
    return panel


def stored(a, b, gap=3):
    """The product of a (rows, inner) and b (inner, columns)."""
    (rows, inner), dtype = a.shape, b.dtype
    around = np.full((rows + 1, inner + gap), np.nan, dtype)
    around[:rows, :inner] = a
    c = np.full((rows + 2, lanes_of(dtype)), UNTOUCHED, dtype)
    place, panel = address(c[1:]), in_panel(b, inner)
    _store(dtype.type(0), address(around), around.strides[0], address(panel), place, rows, inner)
    return taken(c, rows, columns_of(dtype))


def added(a, b, c, factors):
    """The sum of c (rows, columns) times factors (rows), and of the product."""
    (rows, inner), dtype = a.shape, b.dtype
    panel, transposed = in_panel(b, inner), in_panel(np.ascontiguousarray(a.T), inner)
    held = np.full((rows + 2, lanes_of(dtype) + 5), UNTOUCHED, dtype)
    held[1 : rows + 1, : columns_of(dtype)] = c
    _add(
        dtype.type(0),
        address(transposed),
        address(panel),
        address(held[1:]),
        held.strides[0],
        rows,
        inner,
        address(np.append(factors, np.nan).astype(dtype)),
    )
    return taken(held, rows, columns_of(dtype))


def taken(c, rows, columns):
    """What was written; nothing else was."""
    got = c[1 : rows + 1, :columns].copy()
    c[1 : rows + 1, :columns] = UNTOUCHED
    assert (c == UNTOUCHED).all()
    return got


def drawn(rng, dtype, *shape):
    return rng.normal(size=shape).astype(dtype)


def short(rng, dtype, *shape):
    """Numbers of 24 bits: their products are exact in float64, and math.fsum of those is rounded once."""
    return drawn(rng, np.float32, *shape).astype(dtype)


def fused(x, y, z):
    """x·y + z rounded once, in the type of x."""
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    return x.dtype.type(float(exact) if x.dtype == np.float64 else round_exactly(exact, SINGLE))


def summed_in_order(a, b):
    """One fused term after the other, (rows, columns)."""
    totals = np.full((len(a), b.shape[1]), -0.0, b.dtype)
    for (row, column), total in np.ndenumerate(totals):
        for x, y in zip(a[row], b[:, column], strict=True):
            total = fused(x, y, total)
        totals[row, column] = total
    return totals


def exact_sums(x, y, start=None):
    """Sums of exact products (rows, columns), and those of their magnitudes."""
    terms = x.astype(np.float64)[:, None] * y.astype(np.float64).T[None]
    if start is not None:
        terms = np.concatenate([terms, start[..., None]], axis=2)
    sums = [[[math.fsum(cell) for cell in row] for row in t] for t in (terms, np.abs(terms))]
    return np.array(sums).reshape(2, len(x), y.shape[1])


def relative_bound(roundings, dtype):
    """γ_n = n·u/(1 − n·u), and a rounding of the exact sum to float64."""
    u = np.finfo(dtype).eps / 2
    return roundings * u / (1 - roundings * u) + 2.0**-53 * (dtype == np.float64)


@SCALARS
@pytest.mark.parametrize("inner", INNER)
def test_stored_products_of_every_count_of_rows(dtype, inner):
    """Each term is rounded once: γ of the inner count. Rows alone have the bits that they have together."""
    rng = np.random.default_rng(inner)
    a, b = short(rng, dtype, 40, inner), short(rng, dtype, inner, columns_of(dtype))
    want, sizes = exact_sums(a, b)
    together = stored(a, b)
    assert (np.abs(together - want) <= relative_bound(inner, dtype) * sizes).all()
    for rows in range(40):
        np.testing.assert_array_equal(stored(a[:rows], b), together[:rows])


@SCALARS
@pytest.mark.parametrize("inner", INNER)
def test_added_products_of_every_count_of_rows(dtype, inner):
    """One rounding a term, and one where what was there is multiplied and added."""
    rng, lanes = np.random.default_rng(inner), lanes_of(dtype)
    a, b = short(rng, dtype, lanes, inner), short(rng, dtype, inner, columns_of(dtype))
    c, factors = short(rng, dtype, lanes, columns_of(dtype)), short(rng, dtype, lanes)
    factors[:lanes:3], factors[1:lanes:3] = 0, 1
    want, sizes = exact_sums(a, b, c.astype(np.float64) * factors[:, None])
    together = added(a, b, c, factors)
    assert (np.abs(together - want) <= relative_bound(inner + 1, dtype) * sizes).all()
    for rows in range(lanes):
        np.testing.assert_array_equal(added(a[:rows], b, c[:rows], factors[:rows]), together[:rows])


@SCALARS
@pytest.mark.parametrize("inner", [1, 3, 4, 9, 33])
def test_a_sum_has_one_order_to_the_bit(dtype, inner):
    """Fused terms in the order of the inner index, from −0, and the factor fused with their sum."""
    rng = np.random.default_rng([inner, 1])
    a, b = drawn(rng, dtype, 15, inner), drawn(rng, dtype, inner, columns_of(dtype))
    c, factors = drawn(rng, dtype, 15, columns_of(dtype)), rng.random(15).astype(dtype)
    factors[:2] = 0, 1
    sums = summed_in_order(a, b)
    np.testing.assert_array_equal(stored(a, b), sums)
    want = [fused(x, f, total) for x, f, total in np.nditer([c, factors[:, None], sums])]
    np.testing.assert_array_equal(added(a, b, c, factors).ravel(), want)
    if inner > 2:
        assert (summed_in_order(a[:, ::-1], b[::-1]) != sums).any()


@SCALARS
def test_a_sum_keeps_the_sign_of_zero(dtype):
    """That of no terms is −0, which adds nothing: −0 stays −0, whatever the factor's size."""
    columns = columns_of(dtype)
    for rows in (1, 4, 7, 15):
        minus = np.full((rows, columns), -0.0, dtype)
        factors = np.resize(np.array([1, 0, 0.5], dtype), rows)
        for terms in (0, 1, 5):
            a, b = np.full((rows, terms), -1, dtype), np.zeros((terms, columns), dtype)
            assert np.signbit(stored(a, b)).all()
            assert np.signbit(added(a, b, minus, factors)).all()
            assert terms == 0 or not np.signbit(stored(-a, b)).any()
            assert not np.signbit(added(a, b, -minus, factors)).any()


@SCALARS
def test_what_is_not_finite_stays_in_its_row(dtype):
    rng, columns = np.random.default_rng(8), columns_of(dtype)
    a, b = drawn(rng, dtype, 16, 6), drawn(rng, dtype, 6, columns)
    c, factors = drawn(rng, dtype, 16, columns), np.ones(16, dtype)
    before = stored(a, b), added(a, b, c, factors)
    for row in range(16):
        other = np.arange(16) != row
        for value in (np.nan, np.inf):
            spoilt = a.copy()
            spoilt[row, row % 6] = value
            for got, want in zip((stored(spoilt, b), added(spoilt, b, c, factors)), before, strict=True):
                np.testing.assert_array_equal(got[other], want[other])
                assert not np.isfinite(got[row]).any()


@pytest.mark.parametrize("bits", [32, 64])
def test_columns_are_padded_to_whole_tiles_and_blocks(bits):
    dtype = DTYPES[f"float{bits}"]
    unit = math.lcm(columns_of(dtype), lanes_of(dtype))
    for columns in range(1, 200):
        padded = padded_columns(bits, columns)
        assert padded % unit == 0
        assert columns <= padded < columns + unit
