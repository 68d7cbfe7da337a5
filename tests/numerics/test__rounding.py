"""The compiled leaves: against each other, against exact rational arithmetic, and without the compiler."""

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from numba import njit

from exact_rounding import MODES, round_exactly
from softcarry.numerics import FloatFormat, formats, get_format
from softcarry.numerics._rounding import (
    binade,
    round_any,
    round_nearest_even,
    rounded_sum,
    scramble,
    sum_to_odd,
    uniform,
)

FORMATS = (
    *formats,
    "e2m1",
    "e2m1fn",
    "e10m4fn",
    "e11m3",
    "e11m40",
    "e11m51",
    "e8m24",
    "e8m25",
    "e6m50",
    "e5m51",
    "e9m52",
)


@njit
def both_ways(x, rounding, branch_free, general):
    for i in range(x.size):
        branch_free[i] = round_nearest_even(x[i], rounding)
        general[i] = round_any(x[i], rounding, 0.0)


def awkward_numbers(fmt):
    """Random bits of float64, random numbers around the range of the format, ties, and their neighbours."""
    rng = np.random.default_rng(0)
    anywhere = rng.integers(2**64, size=100_000, dtype=np.uint64)
    inside = np.ldexp(
        rng.uniform(1, 2, 100_000), rng.integers(max(-fmt.bias, -1000) - 60, fmt.bias + 1, 100_000)
    )
    half = np.uint64(2 ** max(51 - fmt.mantissa_bits, 0))
    tied = (inside.view(np.uint64) & ~(half * np.uint64(2) - np.uint64(1))) | half
    ends = [0.0, 5e-324, fmt.smallest_subnormal, fmt.smallest_normal, fmt.largest, np.finfo(np.float64).max]
    x = np.concatenate([anywhere.view(np.float64), inside, tied.view(np.float64), ends])
    x = np.concatenate(
        [x, np.nextafter(x, 0.0), np.nextafter(x, math.copysign(math.inf, 1)), [math.inf, math.nan]]
    )
    # The NaN whose bits run over when they are rounded.
    x = np.concatenate([x, np.array([2**63 - 1], np.uint64).view(np.float64)])
    return np.concatenate([x, -x])


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_the_branch_free_rounding_agrees_with_the_general_one(name, saturate):
    fmt = get_format(name)
    with np.errstate(all="ignore"):
        x = awkward_numbers(fmt)
    branch_free, general = np.empty_like(x), np.empty_like(x)
    both_ways(x, fmt.rounding("nearest-even", saturate), branch_free, general)
    np.testing.assert_array_equal(np.isnan(branch_free), np.isnan(general))
    number = ~np.isnan(general)
    np.testing.assert_array_equal(branch_free[number].view(np.int64), general[number].view(np.int64))


@pytest.mark.parametrize("name", ["E4M3FN", "E5M2", "float16", "float32", "e8m25", "e11m40"])
def test_every_mode_agrees_with_rational_arithmetic(name):
    fmt = get_format(name)
    with np.errstate(all="ignore"):
        x = awkward_numbers(fmt)
    x = np.random.default_rng(1).permutation(x[np.isfinite(x)])[:400]
    for mode in MODES:
        rounding = fmt.rounding(mode)
        for value in x.tolist():
            expected = round_exactly(value, fmt, mode)
            np.testing.assert_equal(abs(round_any(value, rounding, 0.0)), abs(expected))


def pairs(fmt, count, seed):
    """Pairs of numbers of a format whose exponents are near, far, and beyond 53 bits apart."""
    rng = np.random.default_rng(seed)
    lowest, highest = 1 - fmt.bias - fmt.mantissa_bits, fmt.bias
    for spread in (0, 2, fmt.mantissa_bits + 2, 54, 120):
        first = rng.integers(lowest, highest + 1, count)
        second = np.clip(first + rng.integers(-spread, spread + 1, count), lowest, highest)
        a = np.ldexp(rng.uniform(-2, 2, count), first)
        b = np.ldexp(rng.uniform(-2, 2, count), second)
        # Powers of two and odd multiples of the last place are where ties and carries are.
        a[::3] = np.copysign(np.ldexp(1.0, first[::3]), a[::3])
        yield from zip(
            fmt.round(a, "toward-zero").tolist(), fmt.round(b, "toward-zero").tolist(), strict=True
        )


@pytest.mark.parametrize(
    "name", ["E4M3FN", "E5M2", "bfloat16", "float16", "TF32", "float32", "e8m24", "e8m25", "e11m40", "e8m50"]
)
def test_a_rounded_sum_is_the_exact_sum_rounded_once(name):
    fmt = get_format(name)
    inexact = 0
    for a, b in pairs(fmt, 60, seed=2):
        exact = Fraction(a) + Fraction(b)
        for mode in MODES:
            found = rounded_sum(a, b, fmt.rounding(mode), 0.0)
            expected = round_exactly(exact, fmt, mode)
            assert found == expected or (math.isnan(found) and math.isnan(expected)), (a, b, mode)
            inexact += found != exact
    assert inexact > 100


@pytest.mark.parametrize("name", ["E4M3FN", "bfloat16", "float16", "float32", "e8m24"])
def test_rounding_the_float64_sum_is_innocuous_to_nearest_even(name):
    fmt = get_format(name)
    rounding = fmt.rounding()
    assert rounding.innocuous
    for a, b in pairs(fmt, 200, seed=3):
        found = round_nearest_even(a + b, rounding)
        np.testing.assert_equal(found, rounded_sum(a, b, rounding, 0.0))


def test_rounding_the_float64_sum_is_not_innocuous_otherwise():
    """The reason for rounding to odd: a term below the last place of float64 decides."""
    bfloat16 = formats["bfloat16"]
    tiny = 2.0**-100
    assert 1.0 + tiny == 1.0
    assert rounded_sum(1.0, tiny, bfloat16.rounding("up"), 0.0) == 1.0 + 2.0**-7
    assert rounded_sum(1.0, -tiny, bfloat16.rounding("toward-zero"), 0.0) == 1.0 - 2.0**-8
    wide = FloatFormat("wide", 8, 30)
    assert not wide.rounding().innocuous
    half = 2.0**-31
    assert round_nearest_even(1.0 + half + 2.0**-100, wide.rounding()) == 1.0
    assert rounded_sum(1.0 + 2 * half, half + 2.0**-61, wide.rounding(), 0.0) == 1.0 + 4 * half


def test_a_sum_to_odd_is_exact_or_the_odd_neighbour():
    values = [
        1.0,
        -1.0,
        2.0**-60,
        -(2.0**-60),
        2.0**-1074,
        3.0,
        1.0 + 2.0**-52,
        2.0**53,
        1e308,
        -1e308,
        0.1,
        0.0,
    ]
    for a, b in itertools.product(values, values):
        exact = Fraction(a) + Fraction(b)
        found = sum_to_odd(a, b)
        if abs(exact) > Fraction(np.finfo(np.float64).max):
            assert abs(found) == np.finfo(np.float64).max
            assert (found > 0) == (exact > 0)
            continue
        if Fraction(found) == exact:
            continue
        assert np.float64(found).view(np.int64) & 1 == 1
        beyond = math.nextafter(found, math.inf if exact > Fraction(found) else -math.inf)
        assert min(Fraction(found), Fraction(beyond)) < exact < max(Fraction(found), Fraction(beyond))


@pytest.mark.parametrize("mode", MODES)
def test_sums_of_what_is_not_finite(mode):
    rounding = formats["float16"].rounding(mode)
    assert rounded_sum(math.inf, 1.0, rounding, 0.0) == math.inf
    assert rounded_sum(-math.inf, 1.0, rounding, 0.0) == -math.inf
    assert math.isnan(rounded_sum(math.inf, -math.inf, rounding, 0.0))
    assert math.isnan(rounded_sum(math.nan, 1.0, rounding, 0.0))
    # IEEE 754-2019, 6.3: x - x is +0, except when rounding down.
    assert math.copysign(1.0, rounded_sum(1.5, -1.5, rounding, 0.0)) == (-1.0 if mode == "down" else 1.0)
    assert math.copysign(1.0, rounded_sum(-0.0, -0.0, rounding, 0.0)) == -1.0
    assert math.copysign(1.0, rounded_sum(0.0, 0.0, rounding, 0.0)) == 1.0


def test_a_stochastic_sum_sees_a_term_that_float64_drops():
    rounding = formats["bfloat16"].rounding("stochastic")
    # To odd, 1 + 2^-100 has a part of 2^-45 of a quantum: away for a draw below it, and only then.
    assert rounded_sum(1.0, 2.0**-100, rounding, 2.0**-46) == 1.0 + 2.0**-7
    assert rounded_sum(1.0, 2.0**-100, rounding, 2.0**-45) == 1.0
    assert rounded_sum(1.0, 2.0**-8, rounding, 0.4999) == 1.0 + 2.0**-7
    assert rounded_sum(1.0, 2.0**-8, rounding, 0.5) == 1.0


def test_binades_next_to_powers_of_two():
    for exponent in (-1022, -126, -1, 0, 1, 127, 1023):
        power = 2.0**exponent
        assert binade(power, 5e-324) == power
        assert binade(-math.nextafter(power, 0.0), 2.0**-1022) == max(power / 2, 2.0**-1022)
    assert binade(0.0, 2.0**-14) == 2.0**-14


def test_splitmix64_and_its_uniform_numbers():
    # The reference outputs of SplitMix64 for the seed 1234567; the k-th output is that of counter k.
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(scramble(np.uint64(1234567), k)) for k in range(1, 6)] == known
    draws = np.array([uniform(np.uint64(9), k) for k in range(20_000)])
    assert 0.0 <= draws.min() < draws.max() < 1.0
    # Five standard deviations of the mean of uniform numbers.
    assert abs(draws.mean() - 0.5) < 5 / math.sqrt(12 * 20_000)


LEAVES = """
import math, warnings
import numpy as np
from numba import config
assert config.DISABLE_JIT
from softcarry.numerics import formats, running_sum
from softcarry.numerics._rounding import round_any, round_nearest_even, rounded_sum, uniform
assert not hasattr(round_any, "py_func")
bfloat16 = formats["bfloat16"]
assert round_nearest_even(257.0, bfloat16.rounding()) == 256.0
assert round_nearest_even(-math.inf, bfloat16.rounding()) == -math.inf
assert math.isnan(round_nearest_even(math.nan, bfloat16.rounding()))
assert round_any(257.0, bfloat16.rounding("nearest-away"), 0.0) == 258.0
assert round_any(1e39, bfloat16.rounding("down"), 0.0) == bfloat16.largest
assert round_any(2.0**-134, bfloat16.rounding("up"), 0.0) == 2.0**-133
assert rounded_sum(1.0, 2.0**-100, bfloat16.rounding("up"), 0.0) == 1.0 + 2.0**-7
with np.errstate(over="ignore"):  # unsigned integers wrap on purpose
    assert 0.0 <= uniform(np.uint64(5), 7) < 1.0
    for order in ("sequential", "pairwise", "carry-stack", "kahan"):
        print(repr(float(running_sum(np.linspace(0.0, 1.0, 37), "bfloat16", order))))
"""


def test_the_leaves_run_without_the_compiler():
    from softcarry.numerics import running_sum

    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVES],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    terms = np.linspace(0.0, 1.0, 37)
    orders = ("sequential", "pairwise", "carry-stack", "kahan")
    assert [float(line) for line in run.stdout.split()] == [running_sum(terms, "bfloat16", o) for o in orders]
