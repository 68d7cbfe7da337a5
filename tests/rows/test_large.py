"""More than 2^31 scores: views of little memory, in which every index of 32 bits would run over."""

import math
from pathlib import Path

import numpy as np
import pytest

import softcarry as sc
from row_cases import DTYPES, INF, NAN, pattern
from row_oracle import assert_lse, row_of, sum_error, unit_roundoff

ROWS, LENGTH = 70000, 32768
BEYOND = 2**31 + 5
FLOAT32 = np.dtype(np.float32)


def windows(memory, shape, steps):
    """A read-only view of a vector in overlapping windows, with steps counted in elements."""
    strides = tuple(step * memory.itemsize for step in steps)
    return np.lib.stride_tricks.as_strided(memory, shape, strides, writeable=False)


@pytest.fixture(scope="module", autouse=True)
def _two_threads():
    before = sc.get_num_threads()
    sc.set_num_threads(2)
    yield
    sc.set_num_threads(before)


def test_more_than_2_31_scores_in_many_rows():
    """Row i is memory[i : i + n]: the only infinity and the only NaN are the last scores of the last rows."""
    assert ROWS * LENGTH > 2**31
    memory = np.zeros(ROWS + LENGTH - 1, np.float32)
    memory[-1], memory[-2] = NAN, INF
    got = sc.logsumexp(windows(memory, (ROWS, LENGTH), (1, 1)))
    assert np.isnan(got[-1])
    assert got[-2] == INF
    u = unit_roundoff(np.float32)
    bound = 2 * (u * (1 + 3 * math.log(LENGTH)) + sum_error(LENGTH, np.float32))
    assert np.abs(got[:-2] - math.log(LENGTH)).max() <= bound


def test_more_than_2_31_scores_along_the_first_axis():
    row = pattern("normal", 32768, np.float32)
    got = sc.logsumexp(np.broadcast_to(row, (70000, 32768)), axis=0)
    assert got.shape == (32768,)
    n = 70000
    true = row.astype(np.float64) + math.log(n)
    bound = 2 * (unit_roundoff(np.float32) * (np.abs(row) + 1 + 3 * math.log(n)) + sum_error(n, np.float32))
    assert (np.abs(got - true) <= bound).all()


def test_one_row_of_more_than_2_31_scores():
    """lse = s + ln n, within a bound that has n in its logarithm alone; a sum lost at 2^24 errs by 4.9."""
    got = float(sc.logsumexp(np.broadcast_to(np.float32(1.25), (BEYOND,))))
    true = 1.25 + math.log(BEYOND)
    u = unit_roundoff(np.float32)
    bound = 2 * (u * (1.25 + 1 + 3 * math.log(BEYOND)) + sum_error(BEYOND, np.float32))
    assert abs(got - true) <= bound
    assert bound < 2e-5


def test_indices_beyond_2_31_in_one_row():
    """Zeroed memory that is only read takes none; the row's three live scores are far apart."""
    try:
        row = np.zeros(BEYOND, np.float16)
    except MemoryError:
        pytest.skip("this system grants no 4 GiB of address space")
    places = {2**31 + 3: 12.0, 2**31 - 1: 11.0, 7: 11.0, BEYOND - 1: 10.5}
    for place, score in places.items():
        row[place] = score
    top = sc.softmax_topk(row, 6, dtype="float32")
    np.testing.assert_array_equal(top.indices, [2**31 + 3, 7, 2**31 - 1, BEYOND - 1, 0, 1])
    np.testing.assert_array_equal(top.scores, [12, 11, 11, 10.5, 0, 0])
    total = math.fsum([math.exp(s - 12) for s in places.values()]) + (BEYOND - 4) * math.exp(-12)
    assert abs(float(top.carry.l) - total) <= sum_error(BEYOND, np.float32) * total
    got = sc.logprobs(row, np.array([2**31 + 3, 0, BEYOND - 1]), dtype="float32")
    for value, score in zip(got, (12.0, 0.0, 10.5), strict=True):
        true = score - 12 - math.log(total)
        bound = unit_roundoff(np.float32) * (12 - score + 2 * math.log(total) - true)
        assert abs(float(value) - true) <= 1.01 * bound - math.log1p(-sum_error(BEYOND, np.float32))


def test_top_of_more_than_2_31_scores_in_many_rows():
    memory = (np.arange(ROWS + LENGTH - 1) * 31 % 1009).astype(np.float32)
    x = windows(memory, (ROWS, LENGTH), (1, 1))
    top = sc.softmax_topk(x, 3)
    np.testing.assert_array_equal(top.scores, np.full((ROWS, 3), 1008.0))
    # Multiples of 31 modulo the prime 1009 come round every 1009 places.
    first = (1008 * pow(31, -1, 1009) - np.arange(ROWS)) % 1009
    np.testing.assert_array_equal(top.indices, first[:, None] + np.array([0, 1009, 2018]))
    for i in (0, ROWS - 1):
        assert_lse(top.lse[i], row_of(x[i]), FLOAT32)


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone tells the peak")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_of_memory_is_the_input_and_the_result(dtype):
    """What compiled code allocates is not seen by tracemalloc; the system sees it."""
    x = np.tile(pattern("normal", 128256, DTYPES[dtype]), (64, 1))
    calls = (lambda a: sc.logsumexp(a), lambda a: sc.softmax_topk(a, 50), lambda a: sc.logprobs(a, top_k=5))
    for call in calls:
        call(x)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS:")
        call(x)
        assert resident("VmHWM:") - before < 2**20
