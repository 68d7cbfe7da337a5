"""The readings of an error curve, on curves whose answer is known by construction."""

import math

import numpy as np
import pytest

from softcarry.auditing.growth_fit import find_knee, fit_power, loglog_slope

LENGTHS = np.array([64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048])


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.5, 1.0])
def test_slope_of_a_power_is_its_exponent(slope):
    assert math.isclose(loglog_slope(LENGTHS, 1e-4 * LENGTHS**slope), slope, abs_tol=1e-12)


def test_slope_ignores_points_without_a_logarithm():
    errors = 1e-4 * LENGTHS**0.5
    errors[[0, 3, 5]] = 0.0, np.inf, np.nan
    assert math.isclose(loglog_slope(LENGTHS, errors), 0.5, abs_tol=1e-12)
    assert math.isnan(loglog_slope(LENGTHS[:2], errors[:2]))


@pytest.mark.parametrize(
    ("floor", "factor", "exponent"), [(1e-3, 1e-6, 1.0), (0.0, 2e-5, 0.5), (1e-7, 1e-9, 1.5)]
)
def test_power_law_with_a_floor_is_found_again(floor, factor, exponent):
    fit = fit_power(LENGTHS, floor + factor * LENGTHS**exponent)
    # The parameters are on the grid, so the least-squares problem has them as its exact solution.
    assert math.isclose(fit.exponent, exponent)
    assert math.isclose(fit.factor, factor, rel_tol=1e-6)
    assert math.isclose(fit.floor, floor, rel_tol=1e-6, abs_tol=1e-9 * factor * 64**exponent)
    assert fit.misfit < 1e-9


def test_a_flat_curve_has_a_floor_and_no_growth():
    fit = fit_power(LENGTHS, np.full(LENGTHS.size, 3e-3))
    assert math.isclose(fit.floor + fit.factor * 64**fit.exponent, 3e-3, rel_tol=1e-6)
    assert fit.floor >= 0.0
    assert fit.factor >= 0.0


def test_a_falling_curve_does_not_get_a_negative_factor():
    fit = fit_power(LENGTHS, 1.0 / LENGTHS)
    assert fit.factor == 0.0
    assert fit.misfit > 0.1


def test_power_needs_four_points():
    assert math.isnan(fit_power(LENGTHS[:3], [1.0, 1.0, 1.0]).exponent)


def test_knee_of_a_stalled_sum_is_its_drop_index():
    """1 − 256/n leaves 0 between 256 and 384."""
    knee = find_knee(LENGTHS, np.maximum(0.0, 1.0 - 256.0 / LENGTHS), floor=1e-7)
    assert knee is not None
    assert (knee.below, knee.above, knee.returns) == (256.0, 384.0, ())
    assert math.isclose(knee.position, math.sqrt(256 * 384))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_growth_by_a_power_has_no_knee(exponent):
    """Neighbouring lengths are at most 1.5 apart: even n² only grows by 2.25 from one to the next."""
    assert find_knee(LENGTHS, 1e-5 * LENGTHS**exponent, floor=1e-9) is None


def test_what_lies_below_the_floor_is_no_knee():
    errors = np.array([1e-9] * 6 + [3e-7] * 5)
    assert find_knee(LENGTHS, errors, floor=3e-7) is None
    assert find_knee(LENGTHS, errors, floor=1e-7) is not None
    rising = 5e-10 * LENGTHS
    assert find_knee(LENGTHS, errors, floor=rising) is not None
    assert find_knee(LENGTHS, errors, floor=4.0 * rising) is None


def test_a_curve_that_comes_back_says_where():
    errors = np.full(LENGTHS.size, 1e-4)
    errors[5:8] = 0.2
    knee = find_knee(LENGTHS, errors, floor=1e-5)
    assert knee is not None
    assert (knee.below, knee.above) == (256.0, 384.0)
    assert knee.returns == (1024.0, 1536.0, 2048.0)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_an_error_that_is_no_number_is_off_the_floor(broken):
    errors = np.full(LENGTHS.size, 1e-4)
    errors[-1] = broken
    knee = find_knee(LENGTHS, errors, floor=1e-5)
    assert knee is not None
    assert knee.above == 2048.0
