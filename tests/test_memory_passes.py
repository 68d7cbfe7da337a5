"""The counted row sees every way of reading, and each softmax makes the accesses that theory says."""

import json
import math
import tracemalloc
from dataclasses import asdict

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softcarry._counted_row import CountedRow
from softcarry._softmax_algorithms import (
    online_softmax,
    online_softmax_topk,
    safe_softmax,
    safe_softmax_then_topk,
    unsafe_softmax,
)
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.memory_passes import count_accesses, count_softmax

U = 2.0**-53
NAN, INF = math.nan, math.inf

SAFE = {"safe": safe_softmax, "online": online_softmax}

ROWS = {
    "book": [2.0, 5.0, 1.0, 7.0],
    "rising": [0.5 * j for j in range(97)],
    "falling": [-0.5 * j for j in range(97)],
    "equal": [3.0] * 31,
    "one": [-4.25],
    "masked": [-INF, 1.5, -INF, 0.25, -INF],
    "waves": [20.0 * math.sin(j) for j in range(203)],
    "underflowing": [0.0, -700.0, -800.0, 0.125, -745.0],
}


def walks(row):
    return [(one.loads, one.stores) for one in row.ledger.passes]


def exact(row):
    """The probabilities with 60 digits, from the definition."""
    with mpmath.workdps(60):
        terms = [mpmath.exp(mpmath.mpf(s)) for s in row]
        return [term / mpmath.fsum(terms) for term in terms]


def bound(row):
    """Relative error of a probability, in any of the algorithms.

    A term e^(s − m) errs by the rounding of s − m, u times the spread of the row, and 2u of exp. A term in l
    goes through at most n rescales (3u each, of exp and product, and the roundings of m_old − m, whose
    sizes add up to at most the spread) and n additions; the division rounds once. Two per cent for the
    higher orders.
    """
    live = [s for s in row if s > -INF]
    spread = max(live) - min(live)
    return 1.02 * U * ((spread + 2) + (2 * spread + 2 + 4 * len(row)) + 1)


def assert_probabilities(got, row):
    for p, truth in zip(got, exact(row), strict=True):
        # 2^-1074 · n: terms that round into or below the subnormal numbers
        assert abs(mpmath.mpf(p) - truth) <= bound(row) * truth + len(row) * 2.0**-1074


# The instrument


@pytest.mark.parametrize(
    ("read", "loads"),
    [
        (list, [1, 1, 1, 1]),
        (max, [1, 1, 1, 1]),
        (lambda row: sum(row) / len(row), [1, 1, 1, 1]),
        (lambda row: [max(row), min(row)], [2, 2, 2, 2]),
        (lambda row: row[1:3], [0, 1, 1, 0]),
        (lambda row: row[::-2], [0, 1, 0, 1]),
        (lambda row: row[:], [1, 1, 1, 1]),
        (lambda row: (row[0], row[-1], row[-1]), [1, 0, 0, 2]),
        (lambda row: next(iter(row)), [1, 0, 0, 0]),
        (lambda row: 5.0 in row, [1, 1, 0, 0]),
        (lambda row: [*row], [1, 1, 1, 1]),
        (sorted, [1, 1, 1, 1]),
        (lambda row: np.fromiter(row, float), [1, 1, 1, 1]),
        (len, [0, 0, 0, 0]),
        (CountedRow.peek, [0, 0, 0, 0]),
    ],
)
def test_every_way_of_reading_is_counted(read, loads):
    row = CountedRow(ROWS["book"])
    read(row)
    assert row.loads == loads
    assert sum(one.loads for one in row.ledger.passes) == sum(loads)
    assert row.stores == [0, 0, 0, 0]


def test_numpy_finds_no_way_around_the_count():
    row = CountedRow(ROWS["book"])
    np.testing.assert_array_equal(np.asarray(row), ROWS["book"])
    assert min(row.loads) >= 1


def test_stores_are_counted_where_they_go():
    row = CountedRow([0.0, 0.0, 0.0])
    row[1] = 2.5
    row[-1] = 3.5
    row[1] = 4.5
    assert row.peek() == (0.0, 4.5, 3.5)
    assert row.stores == [0, 2, 1]
    assert row.loads == [0, 0, 0]
    assert walks(row) == [(0, 2), (0, 1)]


def test_what_is_refused_is_not_counted():
    row = CountedRow([1.0])
    for bad in (1, -2):
        with pytest.raises(IndexError):
            row[bad]
        with pytest.raises(IndexError):
            row[bad] = 0.0
    with pytest.raises(TypeError):
        row[0] = "2"
    with pytest.raises(TypeError):
        row[0:1] = [2.0]
    with pytest.raises(TypeError):
        reversed(row)
    assert (row.loads, row.stores, row.peek(), row.ledger.passes) == ([0], [0], (1.0,), ())


@pytest.mark.parametrize("n", [1, 2, 7])
def test_passes_are_seen_in_iterations_and_in_indices(n):
    row = CountedRow(range(n))
    out = row.blank()
    for i, s in enumerate(row):
        out[i] = s
    for _ in out:
        pass
    assert walks(row) == [(n, n), (n, 0)]
    # Of a single score nothing tells a walk in step from two walks, nor a second look from a second walk.
    if n > 1:
        for _ in zip(row, out, strict=True):
            pass
        assert walks(row) == [(n, n), (n, 0), (2 * n, 0)]
        by_index = CountedRow(range(n))
        for _ in range(3):
            for i in range(len(by_index)):
                by_index[i]
        assert walks(by_index) == [(n, 0)] * 3


def test_an_iteration_that_stops_early_is_a_pass_of_its_own():
    row = CountedRow([3.0, 1.0, 2.0])
    assert [next(s for s in row if s < 3), max(row)] == [1.0, 3.0]
    assert walks(row) == [(2, 0), (3, 0)]


def test_a_blank_row_shares_the_ledger_and_not_the_counts():
    row = CountedRow([1.0, 2.0])
    out = row.blank()
    out[0] = row[0]
    assert out.peek() == (1.0, 0.0)
    assert out.ledger is row.ledger
    assert (row.loads, row.stores, out.loads, out.stores) == ([1, 0], [0, 0], [0, 0], [1, 0])
    assert len(CountedRow([]).blank()) == 0


def test_held_is_how_many_loaded_numbers_are_alive_at_once():
    row = CountedRow(range(100))
    assert sum(s * s for s in row) == 328350
    assert row.ledger.held <= 3
    kept = row[10:40]
    assert 30 <= row.ledger.held <= 33
    del kept
    assert max(row) == 99
    assert row.ledger.held <= 33


def test_rows_of_every_real_type_are_taken():
    for values in ([2, 5], (2.0, True), np.array([2, 5]).astype(ml_dtypes.bfloat16), iter([2]), range(3)):
        assert CountedRow(values).peek()[0] in (0.0, 2.0)
    assert CountedRow([-INF, INF]).peek() == (-INF, INF)
    assert math.isnan(CountedRow([NAN]).peek()[0])


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ("25", DTypeError, "takes real numbers; got str; pass floats"),
        (b"12345678", DTypeError, "got bytes"),
        (3.0, DTypeError, "got float"),
        (["2"], DTypeError, "got list .must be real number, not str"),
        ([[1.0]], DTypeError, "got list"),
        ([1j], DTypeError, "not complex"),
        (np.array([1j]), DTypeError, "not complex"),
        ([10**400], DTypeError, "too large"),
        (np.zeros((2, 1)), ShapeError, r"shape \(n,\); got shape \(2, 1\)"),
        (np.array(1.0), ShapeError, r"got shape \(\)"),
    ],
)
def test_what_is_no_row_is_refused_in_one_line(values, error, words):
    with pytest.raises(error, match=words) as caught:
        CountedRow(values)
    assert "\n" not in str(caught.value)


# The accesses


@pytest.mark.parametrize("name", [name for name in ROWS if name != "one"])
@pytest.mark.parametrize("k", [1, 3])
def test_accesses_of_each_algorithm(name, k):
    n = len(ROWS[name])
    unsafe, safe, online, apart, fused = count_accesses(ROWS[name], k=k)
    assert [run.per_element for run in (unsafe, safe, online)] == [3, 4, 3]
    assert [run.per_element for run in (apart, fused)] == [5, 1]
    assert [run.stores for run in (unsafe, safe, online, apart, fused)] == [n, n, n, n, 0]
    assert [len(run.passes) for run in (unsafe, safe, online, apart, fused)] == [2, 3, 2, 4, 1]
    # Whole passes: each of them reads every score once.
    for run in (unsafe, safe, online, apart, fused):
        assert [one.loads for one in run.passes] == [n] * len(run.passes)
        assert run.accesses == run.loads + run.stores == run.per_element * n


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_every_score_is_read_equally_often(n):
    scores = [math.cos(7 * j) for j in range(n)]
    expected = [
        (unsafe_softmax, 2, 0, 1),
        (safe_softmax, 3, 0, 1),
        (online_softmax, 2, 0, 1),
        (lambda row, out: safe_softmax_then_topk(row, out, 1), 3, 1, 1),
        (lambda row, _out: online_softmax_topk(row, 1), 1, 0, 0),
    ]
    for algorithm, read, reread, written in expected:
        row = CountedRow(scores)
        out = row.blank()
        algorithm(row, out)
        assert (set(row.loads), set(row.stores)) == ({read}, {0})
        assert (set(out.loads), set(out.stores)) == ({reread}, {written})


def test_the_passes_have_names():
    runs = count_accesses(ROWS["book"], k=2)
    assert [[one.name for one in run.passes] for run in runs] == [
        ["sum", "scale"],
        ["max", "sum", "scale"],
        ["max, sum", "scale"],
        ["max", "sum", "scale", "k best"],
        ["max, sum, k best"],
    ]
    assert len({run.algorithm for run in runs}) == 5
    assert json.loads(json.dumps([asdict(run) for run in runs]))[3]["passes"][2] == {
        "name": "scale",
        "loads": 4,
        "stores": 4,
    }


def test_counts_follow_the_run_and_not_the_name():
    def forgetful(scores, out):
        """Read every score again where the number at hand would do."""
        l = safe_softmax(scores, out)
        for i in range(len(scores)):
            out[i] = out[i] * (scores[i] == scores[i])
        return l

    run = count_softmax(forgetful, ROWS["waves"], name="safe softmax")
    assert run.per_element == 4 + 4
    assert [one.name for one in run.passes] == [""] * 4
    with pytest.raises(OptionError, match="got 3 names for 4 passes"):
        count_softmax(forgetful, ROWS["waves"], name="safe softmax", passes=("max", "sum", "scale"))


# What is kept beside the row


def peak_memory(work):
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def assert_keeps_few_numbers(algorithm, *, k=0):
    """Fail unless what is kept beside the rows is a few numbers, and a few for each of the k best."""
    n = 8000
    # A row in no order, with new maxima until the end; multiples of 0.618 are equidistributed modulo 1.
    row = CountedRow(30 * (j * 0.6180339887498949 % 1.0) + j / n for j in range(n))
    out = row.blank()
    algorithm(CountedRow([2.0] * 50), CountedRow([0.0] * 50))
    peak = peak_memory(lambda: algorithm(row, out))
    # The loop variable, the number read before it, m, and one that is being ranked.
    assert row.ledger.held <= k + 5
    # An entry of the k best is a float, an index and a pair (under 200 bytes) and is once doubled; the rest
    # is calls. The least that a copy takes is 8 bytes a score, 64000.
    assert peak < 8000 + 400 * k


@pytest.mark.parametrize("algorithm", [unsafe_softmax, safe_softmax, online_softmax])
def test_softmax_keeps_a_few_numbers(algorithm):
    assert_keeps_few_numbers(algorithm)


@pytest.mark.parametrize("k", [1, 50])
def test_top_k_keeps_k_numbers_more(k):
    assert_keeps_few_numbers(lambda row, out: safe_softmax_then_topk(row, out, k), k=k)
    assert_keeps_few_numbers(lambda row, _out: online_softmax_topk(row, k), k=k)


def copying_normalizer(scores, _out):
    """Take two passes, over a copy of its own: to the eyes of the row, one."""
    scores = list(scores)
    m = max(scores)
    return math.fsum(math.exp(s - m) for s in scores)


def slicing_normalizer(scores, _out):
    return copying_normalizer(scores[:], None)


def reckoning_normalizer(scores, _out):
    """Keep a copy that holds on to no loaded number: the memory of the process is where it shows."""
    return copying_normalizer((s + 0.0 for s in scores), None)


def packing_normalizer(scores, _out):
    row = np.fromiter(scores, float)
    return float(np.exp(row - row.max()).sum())


def sorting_topk(scores, _out):
    return online_softmax_topk(sorted(scores, reverse=True), 5)


@pytest.mark.parametrize(
    "wrong",
    [copying_normalizer, slicing_normalizer, reckoning_normalizer, packing_normalizer, sorting_topk],
)
def test_an_algorithm_that_keeps_a_copy_is_caught(wrong):
    assert count_softmax(wrong, ROWS["waves"], name="wrong").loads == len(ROWS["waves"])
    with pytest.raises(AssertionError):
        assert_keeps_few_numbers(wrong, k=5)


def test_the_ledger_alone_sees_a_copy_of_loaded_numbers():
    n = len(ROWS["waves"])
    for wrong in (copying_normalizer, slicing_normalizer, sorting_topk):
        assert count_softmax(wrong, ROWS["waves"], name="wrong").held >= n
    assert max(run.held for run in count_accesses(ROWS["waves"], k=3)) <= 8


# The results


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("algorithm", [unsafe_softmax, safe_softmax, online_softmax])
def test_softmax_is_the_exact_one(name, algorithm):
    run = count_softmax(algorithm, ROWS[name], name=name)
    assert_probabilities(run.probabilities, ROWS[name])


@given(
    st.lists(st.floats(-300, 300) | st.sampled_from([-INF, 0.0, -0.0, 5e-324]), min_size=1, max_size=20),
    st.integers(1, 20),
)
def test_all_five_agree_with_the_definition(row, k):
    if max(row) == -INF:
        return
    k = min(k, len(row))
    *whole, apart, fused = count_accesses(row, k=k)
    for run in whole:
        assert_probabilities(run.probabilities, row)
    truth = exact(row)
    for run in (apart, fused):
        for p, index in zip(run.probabilities, run.indices, strict=True):
            assert abs(mpmath.mpf(p) - truth[index]) <= bound(row) * truth[index] + len(row) * 2.0**-1074
    # Exact comparison of the scores is what the fused one promises.
    assert list(fused.indices) == sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    assert list(apart.probabilities) == sorted(whole[1].probabilities, reverse=True)[:k]


@pytest.mark.parametrize("name", SAFE)
def test_a_common_offset_changes_nothing_but_in_the_unsafe_one(name):
    row = [0.0, 3.0, -2.0, 1.5]
    for offset in (1e6, -1e6, 2.0**40):
        shifted = [s + offset for s in row]
        out = [0.0] * 4
        assert 1.0 <= SAFE[name](shifted, out) <= 4.0
        assert_probabilities(out, row)
        assert online_softmax_topk(shifted, 2)[0].indices == (1, 3)


def test_the_unsafe_one_leaves_float64_where_it_should():
    # ln of the largest float64 is 709.7827, ln of half the smallest is −745.1332.
    for row, l, first in (
        ([709.78, 0.0], None, 1.0),
        ([709.79, 0.0], INF, NAN),
        ([709.5, 709.5], INF, 0.0),
        ([-745.13, -800.0], 2.0**-1074, 1.0),
        ([-745.14, -800.0], 0.0, NAN),
    ):
        out = [0.5, 0.5]
        got = unsafe_softmax(row, out)
        assert got == l or (l is None and math.isfinite(got))
        np.testing.assert_equal(out[0], first)
        safe_softmax(row, out)
        assert_probabilities(out, row)


@pytest.mark.parametrize("n", [1, 3])
def test_a_row_without_live_scores_has_probability_0(n):
    _, *safe = count_accesses([-INF] * n, k=n)
    for run in safe:
        assert (run.l, run.probabilities) == (0.0, (0.0,) * n)
    assert safe[-1].indices == safe[-2].indices == tuple(range(n))


def test_an_empty_row_is_left_alone():
    for algorithm in (unsafe_softmax, safe_softmax, online_softmax):
        assert algorithm([], []) == 0.0
    assert online_softmax_topk([], 3) == (((), ()), 0.0)
    assert safe_softmax_then_topk([], [], 3) == (((), ()), 0.0)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_nan_and_infinity_spoil_the_row_wherever_they_stand(bad, place):
    row = [1.0, -INF, 2.0]
    row.insert(place, bad)
    runs = count_accesses(row, k=4)
    for run in runs[1:]:
        assert math.isnan(run.l)
        assert all(map(math.isnan, run.probabilities))
    live = [i for i in range(4) if i != place and row[i] != -INF]
    assert runs[4].indices == (place, *reversed(live), row.index(-INF))
    if bad == INF:
        np.testing.assert_equal(runs[0].probabilities, [NAN if i == place else 0.0 for i in range(4)])


def test_ties_go_to_the_lower_index_and_zeros_are_equal():
    best, _ = online_softmax_topk([1.0, 2.0, -0.0, 2.0, 0.0, 2.0], 6)
    assert best.indices == (1, 3, 5, 0, 2, 4)
    best, _ = safe_softmax_then_topk([1.0, 2.0, 1.0, 2.0], [0.0] * 4, 3)
    assert best.indices == (1, 3, 0)
    assert {type(p) for p in best.probabilities} == {float}


@pytest.mark.parametrize(
    ("scores", "options", "error", "words"),
    [
        ([], {}, ShapeError, "got a row without any; pass at least one score"),
        ([1.0, 2.0], {"k": 3}, OptionError, "k is at most the number of scores, 2; got 3; ask for fewer"),
        ([1.0, 2.0], {"k": 0}, OptionError, "k is a whole number of at least 1; got 0"),
        ([1.0, 2.0], {"k": 1.5}, OptionError, "got 1.5"),
        (["1"], {"k": 1}, DTypeError, "takes real numbers"),
        (np.zeros((2, 2)), {"k": 1}, ShapeError, "pass one row"),
    ],
)
def test_bad_input_is_refused_in_one_line(scores, options, error, words):
    with pytest.raises(error, match=words) as caught:
        count_accesses(scores, **options)
    assert "\n" not in str(caught.value)


def test_progress_is_told_after_each_algorithm():
    told = []
    count_accesses([1.0], k=1, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
