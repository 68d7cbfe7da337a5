"""Rates are additions over the seconds of the median call; the emulated cases count what they say."""

import numpy as np
import pytest

from softcarry.benchmarks._rates import Rate, RateCase, measure_rate
from softcarry.benchmarks._timing import Spread
from softcarry.benchmarks.emulated_kernel import kernel_cases
from softcarry.benchmarks.emulated_sums import sum_cases


def test_the_rate_is_that_of_the_median_call():
    rate = Rate(RateCase(("a", "b"), 3000, int, int), 0.5, Spread(1.0, 2.0, 4.0), 3.5)
    assert rate.additions_a_second == 1500.0
    data = rate.to_dict()
    assert data["name"] == "a/b"
    assert (data["seconds"], data["seconds_quartiles"]) == (2.0, [1.0, 4.0])
    assert (data["first_call_seconds"], data["processor_seconds"]) == (0.5, 3.5)


def test_the_small_call_comes_first_and_once():
    record = []
    case = RateCase(("a",), 1, lambda: record.append("small"), lambda: record.append("call"))
    rate = measure_rate(case, least=1, most=1)
    assert record[0] == "small"
    assert record.count("small") == 1
    assert rate.seconds.median > 0.0


@pytest.mark.parametrize("list_cases", [sum_cases, kernel_cases])
def test_labels_tell_cases_apart_and_quick_is_smaller(list_cases):
    cases, quick = list_cases(), list_cases(quick=True)
    for some in (cases, quick):
        assert len({case.labels for case in some}) == len(some)
    assert len(cases) == len(quick) > 1
    assert sum(case.additions for case in quick) * 8 < sum(case.additions for case in cases)


def test_sums_add_as_many_terms_as_they_say():
    for case in sum_cases(quick=True)[:3]:
        rows, n = map(int, case.labels[-1].split("x"))
        assert case.additions == rows * n
        assert np.shape(case.call()) == (rows,)
        assert np.shape(case.small()) == (rows,)


def test_kernels_add_once_a_key_for_l_and_every_column_of_o():
    case = kernel_cases(quick=True)[0]
    rows, keys, width = map(int, case.labels[-1].split("x"))
    assert case.additions == rows * keys * (width + 1)
    output, lse = case.small()
    assert (output.shape, lse.shape) == ((1, 1, 1, width), (1, 1, 1))
