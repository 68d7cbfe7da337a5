"""2^x and e^x: float32 in full, float64 where rounding is hardest, and the values that are exact or flushed.

An error is counted in units of the last place of the true value, 2^(k − t) for one in [2^k, 2^(k + 1)).
"""

from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from numba import njit

from softcarry.cpu.exponential import exp, exp2, exp_in_sum
from softcarry.cpu.memory import load_strip, store
from vector_calls import address, exponentials, powers

INF = np.inf
RUN = 512
"""Consecutive float32 numbers whose true powers follow from that of the first."""
SHARE = 2**20
"""Numbers of float32 that one call compares."""
MINUS_ZERO = 0x80000000
STORED = {np.float32: 23, np.float64: 52}

# The last numbers whose powers are not below 2^-126 or 2^-1022: for e^x, -126·ln 2 and -1022·ln 2 rounded
# towards 0.
LOWEST = {
    (np.float32, True): np.float32(-126),
    (np.float32, False): np.float32(-87.33654),
    (np.float64, True): np.float64(-1022),
    (np.float64, False): np.float64(-708.3964185322641),
}
CASES = pytest.mark.parametrize(("dtype", "base_2"), LOWEST)

# 2^x is promised within one unit. e^x goes on from f, the fraction of x·log2 e, which two operations round by
# at most 2^-26 each in float32, where |f| <= 1/2 (2^-55 in float64): that moves the power by ln 2·2^-25 of
# itself, and a unit is at least 2^-24 of it. log2 e itself is off by far less (2^-49, 2^-107).
ALLOWED = {True: 1.0, False: 1.0 + np.log(2) / 2 + 1e-4}


def powers_in_high_precision(x, base_2):
    """2^x or e^x as sums of two float64 numbers, which are off by 2^-106."""
    with mpmath.workdps(50):
        true = [mpmath.power(2, float(v)) if base_2 else mpmath.exp(float(v)) for v in x]
        high = [float(y) for y in true]
        return np.array(high), np.array([float(y - h) for y, h in zip(true, high, strict=True)])


def errors_in_units(got, high, low):
    exponent = np.frexp(high)[1] - 1
    exponent -= (high == np.ldexp(1.0, exponent)) & (low < 0)
    return np.abs(np.ldexp((got.astype(np.float64) - high) - low, STORED[got.dtype.type] - exponent))


@njit(nogil=True)
def series(t):
    """e^t for |t| < 2^-8: the next term is below 2^-40/120 < 2^-46."""
    return 1 + t * (1 + t / 2 * (1 + t / 3 * (1 + t / 4)))


@njit(nogil=True)
def largest_error(first, starts, truths, base_2):
    """The largest error, in units, of runs of float32 numbers whose bits count up from ``first``.

    Within a run x − start is below 2^-8: less than 512 steps, which are 2^-17 for x from -64 to -126.
    """
    bits, got = np.empty(RUN, np.int32), np.empty(RUN, np.float32)
    true, worst, per_unit = np.empty(RUN), np.zeros(RUN), np.empty(RUN, np.int64)
    x, true_bits, units = bits.view(np.float32), true.view(np.int64), per_unit.view(np.float64)
    log = np.log(2.0) if base_2 else 1.0
    for run in range(starts.size):
        for i in range(RUN):
            bits[i] = np.int32(first + run * RUN + i)
        exponentials(np.float32(0), x.ctypes.data, got.ctypes.data, RUN, base_2)
        for i in range(RUN):
            true[i] = truths[run] * series((np.float64(x[i]) - starts[run]) * log)
        for i in range(RUN):
            # 2^(23 − k) by its bits, from those of a number in [2^k, 2^(k + 1)).
            per_unit[i] = ((2 * 1023 + 23) << 52) - (true_bits[i] & (0x7FF << 52))
        for i in range(RUN):
            error = abs(np.float64(got[i]) - true[i]) * units[i]
            # A NaN is not below anything, and stays.
            worst[i] = worst[i] if error <= worst[i] or worst[i] != worst[i] else error
    return worst.max()


def runs_from(first, count, base_2):
    """The numbers that start runs, and their true powers by the C library's float64 functions."""
    starts = np.arange(first, first + count, RUN, np.uint32).view(np.float32).astype(np.float64)
    return starts, np.exp2(starts) if base_2 else np.exp(starts)


def end_of_runs(base_2):
    return int(LOWEST[np.float32, base_2].view(np.uint32)) // RUN * RUN


@pytest.mark.parametrize("base_2", [True, False])
def test_every_float32_number(base_2):
    """From −0 down to the first that is flushed, subnormal numbers too: 1.12e9 of them.

    Measured: 0.779 units for 2^x, 1.043 for e^x.
    """
    end = end_of_runs(base_2)

    def compare(first):
        starts, truths = runs_from(first, min(SHARE, end - first), base_2)
        # Numba's int32() wants a number that fits.
        return largest_error(first - 2**32, starts, truths, base_2)

    with ThreadPoolExecutor(2) as threads:
        errors = np.array(list(threads.map(compare, range(MINUS_ZERO, end, SHARE))))
    worst = MINUS_ZERO + SHARE * int(errors.argmax())
    assert errors.max() <= ALLOWED[base_2], (errors.max(), f"in the 2^20 numbers from bits {worst:#x}")
    rest = np.arange(end, int(LOWEST[np.float32, base_2].view(np.uint32)) + 1, dtype=np.uint32)
    x = rest.view(np.float32)
    assert x[-1] == LOWEST[np.float32, base_2]
    errors = errors_in_units(powers(x, base_2), *powers_in_high_precision(x, base_2))
    assert errors.max() <= ALLOWED[base_2]


@pytest.mark.parametrize("base_2", [True, False])
def test_the_truth_about_float32_numbers(base_2):
    """At the far end of the runs, against 50 digits: 1e-13 of a power is 2e-6 of a unit."""
    rng = np.random.default_rng(0)
    first = rng.integers(MINUS_ZERO, end_of_runs(base_2), 2000) // RUN * RUN
    last = (first + RUN - 1).astype(np.uint32).view(np.float32).astype(np.float64)
    starts = first.astype(np.uint32).view(np.float32).astype(np.float64)
    steps = (last - starts) * (np.log(2.0) if base_2 else 1.0)
    assert np.abs(steps).max() < 2.0**-8
    got = (np.exp2(starts) if base_2 else np.exp(starts)) * np.array([series(t) for t in steps])
    true, _ = powers_in_high_precision(last, base_2)
    assert np.abs(got / true - 1).max() < 1e-13


@pytest.mark.parametrize("first", [MINUS_ZERO, 0xBF800000, 0xC2AE0000])
def test_a_wrong_power_would_be_found(first):
    """The comparison itself: a truth moved by 2^-20 of itself, 8 to 16 units, and one that is NaN."""
    starts, truths = runs_from(first, 4 * RUN, True)
    truths[2] *= 1 + 2.0**-20
    assert 6 < largest_error(first - 2**32, starts, truths, True) < 18
    truths[1] = np.nan
    assert np.isnan(largest_error(first - 2**32, starts, truths, True))


@pytest.mark.parametrize("base_2", [True, False])
def test_float64_where_rounding_is_hardest(base_2):
    """About half integers, integers, 0 and the lowest. Measured, on 1.2e8 numbers: 0.83 and 1.04 units."""
    rng = np.random.default_rng(1)
    unit = 1.0 if base_2 else float(np.log(2))
    lowest = LOWEST[np.float64, base_2]
    halves = np.concatenate([np.arange(0, 1022, 0.5), np.arange(0, 8, 1 / 64)]) * -unit
    # Here the polynomial's argument is largest, and 2^f is just above 1/√2, where a unit is widest.
    wide = -unit * (rng.integers(0, 1021, 2000) + 0.5 + rng.uniform(-0.03, 0.03, 2000))
    tiny = -np.ldexp(rng.uniform(1, 2, 500), rng.integers(-1074, 0, 500))
    low = lowest + np.arange(64) * np.spacing(-lowest)
    x = np.concatenate([halves, wide, tiny, low, rng.uniform(lowest, 0, 2000), [-5e-324, -0.0]])
    x = np.concatenate([x, np.nextafter(x, -INF), np.nextafter(x, 0)])
    x = x[(x <= 0) & (x >= lowest)]
    errors = errors_in_units(powers(x, base_2), *powers_in_high_precision(x, base_2))
    assert errors.max() <= ALLOWED[base_2], (errors.max(), x[errors.argmax()])


@CASES
def test_subnormal_results_are_right_for_half_an_exponent_and_then_flushed(dtype, base_2):
    """Down to 2^-126.5 (2^-1022.5 in float64) in steps; below, 0."""
    unit = 1.0 if base_2 else float(np.log(2))
    lowest = LOWEST[dtype, base_2]
    least = {np.float32: 2.0**-126, np.float64: 2.0**-1022}[dtype]
    x = np.linspace(np.nextafter(lowest, dtype(-INF)), lowest - 0.4999 * unit, 200).astype(dtype)
    got = powers(x, base_2)
    with mpmath.workdps(50):
        true = [mpmath.power(2, float(v)) if base_2 else mpmath.exp(float(v)) for v in x]
        # Half a unit of subnormal numbers, besides what the power is off by before it is rounded to them.
        unit_of_subnormals = mpmath.mpf(float(np.finfo(dtype).smallest_subnormal))
        for g, t in zip(got, true, strict=True):
            assert t < least
            assert abs(mpmath.mpf(float(g)) - t) <= unit_of_subnormals * (0.5 + ALLOWED[base_2])
    beyond = lowest - dtype(0.5001 * unit)
    far = [
        beyond,
        lowest - 1,
        lowest - 23,
        1.5 * lowest,
        -1e4,
        -(2.0**23),
        -(2.0**24),
        -(2.0**31),
        -1e30,
        -INF,
    ]
    far = np.array([*far, np.finfo(dtype).min], dtype)
    np.testing.assert_array_equal(powers(far, base_2), np.zeros(far.size, dtype))
    assert not np.signbit(powers(far, base_2)).any()
    assert powers(np.array([lowest]), base_2)[0] >= least


@CASES
def test_zero_and_the_smallest_numbers_give_one(dtype, base_2):
    x = np.array([0.0, -0.0, -np.finfo(dtype).smallest_subnormal, -np.finfo(dtype).tiny, -1e-30], dtype)
    np.testing.assert_array_equal(powers(x, base_2), np.ones(5, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_powers_of_two_are_exact(dtype):
    n = np.arange(int(LOWEST[dtype, True]), 1)
    np.testing.assert_array_equal(powers(n.astype(dtype), True), np.ldexp(dtype(1), n))


@CASES
def test_nan_stays_nan(dtype, base_2):
    """Whatever its sign and payload, and in one lane alone."""
    bits, quiet, sign = (np.uint32, 2**22, 2**31) if dtype == np.float32 else (np.uint64, 2**51, 2**63)
    infinity = int(np.array(INF, dtype).view(bits))
    payloads = [quiet, quiet + 1, 2 * quiet - 1, 1, quiet - 1, 12345]
    nans = np.array([infinity + s + p for s in (0, sign) for p in payloads], bits).view(dtype)
    assert np.isnan(nans).all()
    assert np.isnan(powers(nans, base_2)).all()
    x = np.full(64, -1.0, dtype)
    x[::5] = nans[0]
    np.testing.assert_array_equal(np.isnan(powers(x, base_2)), np.isnan(x))


@pytest.mark.parametrize("function", [exp, exp2, exp_in_sum])
def test_outside_compiled_code_it_says_where_to_call_it(function):
    with pytest.raises(TypeError, match=r"compiled code only: call this from a function under numba\.njit"):
        function(-1.0)


@njit
def _in_sum(element, source, target, count, size):
    for i in range(0, count, 8):
        store(element, target + size * i, exp_in_sum(load_strip(element, source + size * i)))


def test_in_a_sum_log2_e_is_one_number_and_costs_what_is_promised():
    """In float32: x·2^-26.2 of a term more than `exp` is off by, a unit of which is at most 2^-23 of it."""
    x = -np.linspace(0, 87, 80000).astype(np.float32)
    got = np.empty_like(x)
    _in_sum(np.float32(0), address(x), address(got), x.size, 4)
    true = np.exp(x.astype(np.float64))
    errors = np.abs(got / true - 1)
    assert (errors <= ALLOWED[False] * 2.0**-23 - x * 2.0**-26.1).all()
    # Nor is it `exp`: far from 0 the one number shows.
    assert (errors[x < -60] > 2 * 2.0**-23).any()
