"""tanh of vectors: within the sum of what its operations may be off by, odd, at its seam and at its ends."""

import mpmath
import numpy as np
import pytest
from numba import njit

from softcarry.cpu.hyperbolic import tanh
from softcarry.cpu.memory import element_size, load_strip, store
from vector_calls import DTYPES, address

INF, NAN = np.inf, np.nan
SCALARS = pytest.mark.parametrize("dtype", [DTYPES["float32"], DTYPES["float64"]], ids=str)
SEAM = 0.3
# Units that e^x may be off by: derived in tests of the exponential.
EXPONENTIAL = 1.0 + np.log(2) / 2 + 1e-4
# Of the first omitted term of the series, relative to x, and the geometric rest.
OMITTED = {np.float32: 2.0**-28, np.float64: 2.0**-60}


@njit
def _tanh(element, source, target, count):
    size = element_size(element)
    for i in range(0, count, 8):
        store(element, target + i * size, tanh(load_strip(element, source + i * size)))


def tanh_of(x):
    """tanh of any number of numbers, in their type."""
    padded = np.zeros(-(-x.size // 8) * 8, x.dtype)
    padded[: x.size] = x
    got = np.empty_like(padded)
    _tanh(x.dtype.type(0), address(padded), address(got), padded.size)
    return got[: x.size]


def true_values(x):
    """tanh x as sums of two float64 numbers."""
    with mpmath.workdps(50):
        true = [mpmath.tanh(float(v)) for v in x]
        high = [float(y) for y in true]
        return np.array(high), np.array([float(y - h) for y, h in zip(true, high, strict=True)])


def unit_of(y, dtype):
    """The unit in the last place of a number that may be rounded up to the next power of two."""
    eps = float(np.finfo(dtype).eps)
    return np.ldexp(eps, np.frexp(y * (1 + 4 * eps))[1] - 1)


def bound(x, dtype):
    """What the operations' roundings add up to at most, to first order; 1/64 covers the rest.

    Beyond the seam, with e = e^(−2x): that of e, times 2/(1 + e)²; half a unit of 1 − e and of 1 + e; and of
    the quotient. Below it the sum's half a unit, and the second term, at most x³/3 of two roundings in x·x²,
    one in the polynomial and what its later terms, which are 0.4·x² of it, leave of theirs.
    """
    u = float(np.finfo(dtype).eps) / 2
    x = np.abs(x.astype(np.float64))
    e, y = np.exp(-2 * x), np.tanh(x)
    quotient = (
        EXPONENTIAL * unit_of(e, dtype) * 2 / (1 + e) ** 2
        + unit_of(1 - e, dtype) / 2 / (1 + e)
        + y * unit_of(1 + e, dtype) / 2 / (1 + e)
        + unit_of(y, dtype) / 2
    )
    series = unit_of(y, dtype) / 2 + x**3 / 3 * (2 + 1 + 1 + 1) * u + x * OMITTED[dtype.type]
    return np.where(x < dtype.type(SEAM), series, quotient) * (1 + 2.0**-6)


def about_the_seam(dtype):
    """Consecutive numbers on both sides of it."""
    integers = np.dtype(f"i{dtype.itemsize}")
    return (np.array([SEAM], dtype).view(integers) + np.arange(-500, 500, dtype=integers)).view(dtype)


def test_float32_numbers_of_every_size():
    """Every 61st from 2^−14 to where tanh is 1. Measured on all: 2.60 units, below the seam 0.56."""
    dtype = DTYPES["float32"]
    first, last = np.array([2.0**-14, 9.5], np.float32).view(np.int32)
    x = np.arange(first, last, 61, np.int32).view(np.float32)
    got, true = tanh_of(x).astype(np.float64), np.tanh(x.astype(np.float64))
    error = np.abs(got - true)
    # The C library's float64 tanh is off by some 2^−52 of it.
    assert (error <= bound(x, dtype) + 2.0**-50 * true).all(), x[(error / bound(x, dtype)).argmax()]
    # No wider than it must be, on either side of the seam.
    below = x < dtype.type(SEAM)
    assert (error > 0.9 * bound(x, dtype))[below].any()
    assert (error > 0.7 * bound(x, dtype))[~below].any()


@SCALARS
def test_numbers_of_both_types_against_fifty_digits(dtype):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(np.log(2.0**-30), np.log(20), 3000)), rng.uniform(0.2, 2, 2000)])
    x = np.concatenate([x.astype(dtype), about_the_seam(dtype), np.array([2, 4, 8], dtype) ** -1])
    high, low = true_values(x)
    error = np.abs((tanh_of(x).astype(np.float64) - high) - low)
    assert (error <= bound(x, dtype)).all(), x[(error / bound(x, dtype)).argmax()]


@SCALARS
def test_the_seam_is_where_the_bound_says(dtype):
    """The series' half a unit below it, which the quotient's several units would break."""
    x = about_the_seam(dtype)
    high, low = true_values(x)
    units = np.abs((tanh_of(x).astype(np.float64) - high) - low) / unit_of(high, dtype)
    below = x < dtype.type(SEAM)
    assert below.sum() == 500
    assert units[below].max() < 0.75 < units[~below].max()


@SCALARS
def test_tanh_is_odd_to_the_bit(dtype):
    x = np.random.default_rng(1).normal(size=4096).astype(dtype) * np.resize([1e-3, 0.3, 1, 5], 4096)
    x = np.concatenate([x.astype(dtype), about_the_seam(dtype)])
    np.testing.assert_array_equal(tanh_of(-x), -tanh_of(x))
    assert (np.sign(tanh_of(x)) == np.sign(x)).all()


@SCALARS
def test_tiny_numbers_are_returned(dtype):
    """Where x³/3 is below half of the narrowest unit, a quarter of the precision of x."""
    least, largest = np.log2(np.finfo(dtype).smallest_subnormal), np.log2(0.75 * np.finfo(dtype).eps) / 2
    x = np.exp2(np.random.default_rng(2).uniform(least, largest, 5000)).astype(dtype)
    x = np.concatenate([x, [0, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny]]).astype(dtype)
    np.testing.assert_array_equal(tanh_of(x), x)
    np.testing.assert_array_equal(tanh_of(-x), -x)


@SCALARS
def test_the_ends(dtype):
    """±1 from where 1 − tanh x is below half a unit, and never beyond; NaN stays NaN in its lane alone."""
    far = np.array([20, 89, 1e3, 1e30, np.finfo(dtype).max, INF], dtype)
    np.testing.assert_array_equal(tanh_of(far), np.ones(far.size))
    np.testing.assert_array_equal(tanh_of(-far), -np.ones(far.size))
    near = np.linspace(3, 20, 20000).astype(dtype)
    assert tanh_of(near).max() == 1
    x = np.linspace(-2, 2, 64).astype(dtype)
    spoilt = np.where(np.arange(64) % 5 == 0, NAN, x).astype(dtype)
    np.testing.assert_array_equal(tanh_of(spoilt), np.where(np.isnan(spoilt), NAN, tanh_of(x)))


def test_outside_compiled_code_it_says_where_to_call_it():
    with pytest.raises(TypeError, match=r"compiled code only: call this from a function under numba\.njit"):
        tanh(1.0)
