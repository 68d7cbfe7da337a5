"""The fault named for each pattern of sizes of score that fail."""

import pytest

from softcarry.auditing.range_diagnosis import SENTINELS, Equal, diagnose

SIZES = (1.0, 12.0, 88.0, 104.0, 1e3, 9.8e3, 1.04e4, 4.9e4, 5.12e4, 6.42e4, 6.7e4, 9.8e5, 1.02e6)
SIZES += (2.0**24, 9.8e8, 1.02e9, 9.8e29, 1.02e30, 4e30)


def cause(right, total=1.0):
    cases = [
        Equal(sign * size, True, right(sign * size), 0.0, total) for size in SIZES for sign in (1.0, -1.0)
    ]
    return diagnose(cases, 64, 50)[0]


def test_failures_of_both_signs_from_the_overflow_of_exp_miss_the_maximum():
    # e^88 is finite in float32 and 64 of them are not; e^-104 is 0.
    assert cause(lambda s: -89.0 < s < 88.0) == "the maximum is not subtracted before the exponential"


@pytest.mark.parametrize("sentinel", SENTINELS)
def test_failures_below_a_known_number_are_its_sentinel(sentinel):
    assert cause(lambda s: s >= -sentinel - 90.0) == f"a finite sentinel of −{sentinel:.5g} stands for −∞"


def test_an_unknown_sentinel_is_a_sentinel_still():
    assert "below about −1e+03" in cause(lambda s: s > -500.0)


def test_failures_beyond_65504_are_those_of_float16():
    assert cause(lambda s: abs(s) * 8.0 <= 65504.0).startswith("q·k before scaling overflow float16")
    assert cause(lambda s: abs(s) <= 65504.0).startswith("the scores overflow float16")


def test_failures_of_large_scores_only_are_none_of_these():
    assert cause(lambda s: abs(s) < 1.01e30) == "scores beyond 9.8e+29 are not handled"


def test_weights_that_are_all_one_have_lost_ln_l():
    assert cause(lambda s: abs(s) < 1e6, total=50.0).startswith("ln l is lost beside m")
    assert not cause(lambda s: abs(s) < 1e6, total=40.0).startswith("ln l")
