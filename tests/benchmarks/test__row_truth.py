"""The truth of a benchmark is right, its bounds admit sound results and catch wrong ones."""

import ml_dtypes
import mpmath
import numpy as np
import pytest

from softcarry.benchmarks._row_truth import RowTruth, Truth, disagreement

DTYPES = ("float32", "float16", ml_dtypes.bfloat16)


def scores(dtype, shape=(5, 777)):
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape) * 3
    x[1, -1] += 20.0  # the weight of this row stands in its last place
    x[2] = 1.0
    x[3, ::2] = -80.0  # whose terms underflow in float16
    return x.astype(dtype)


def exactly(row):
    """lse, and the log-probability of every score, of one row, in 50 digits."""
    with mpmath.workdps(50):
        exact = [mpmath.mpf(float(score)) for score in row]
        lse = mpmath.log(mpmath.fsum(mpmath.exp(score) for score in exact))
        return float(lse), np.array([float(score - lse) for score in exact])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_truth_is_that_of_50_digits(dtype):
    x = scores(dtype, (5, 61))
    truth = RowTruth(x)
    for row in range(5):
        lse, logarithms = exactly(x[row])
        # A few float64 operations on numbers below 128: 2^-53 of that, and some to spare.
        error = 16 * 128 * 2.0**-53
        assert abs(truth.logsumexp().expected[row] - lse) <= error
        assert np.all(np.abs(truth.log_softmax().expected[row] - logarithms) <= error)
        probabilities = np.exp(logarithms)
        assert np.all(np.abs(truth.softmax().expected[row] - probabilities) <= error * probabilities)


def in_working_format(x):
    """lse, softmax and log-softmax by the textbook in float32 and NumPy's sum, rounded to the dtype of x."""
    wide = x.astype(np.float32)
    m = wide.max(-1, keepdims=True)
    terms = np.exp(wide - m)
    total = terms.sum(-1, keepdims=True)
    results = ((m + np.log(total))[:, 0], terms / total, (wide - m) - np.log(total))
    return [result.astype(x.dtype) for result in results]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sound_results_are_within_the_bounds(dtype):
    x = scores(dtype)
    truth = RowTruth(x)
    expected = (truth.logsumexp(), truth.softmax(), truth.log_softmax())
    assert [
        disagreement("it", got, one) for got, one in zip(in_working_format(x), expected, strict=True)
    ] == [""] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", range(3))
def test_wrong_results_are_not(dtype, which):
    x = scores(dtype)
    truth = RowTruth(x)
    expected = (truth.logsumexp(), truth.softmax(), truth.log_softmax())[which]
    got = in_working_format(x)[which]
    wrong = {
        "zeros": np.zeros_like(got),
        "NaN": np.where(
            np.arange(len(got.reshape(-1))).reshape(got.shape) == 3, np.nan, got.astype(np.float64)
        ),
        "other rows": got[::-1],
        "without the last column": in_working_format(x[:, :-1])[which],
        "relative to base 2": (got.astype(np.float64) * np.log2(np.e)).astype(got.dtype),
    }
    for name, result in wrong.items():
        assert disagreement("it", result, expected).startswith("it"), name


def test_four_places_lost_of_float32_are_seen():
    x = scores("float32")
    got = in_working_format(x)[0]
    # lse is about 10: an error of 2^-16 of it is 1.5e-4, where u(|m| + 3 ln l + 2√n) is 5e-6.
    assert disagreement("lse", got * np.float32(1 + 2.0**-16), RowTruth(x).logsumexp())


@pytest.mark.parametrize("k", [1, 3, 50])
def test_top_indices_are_those_of_a_sort_that_keeps_ties_in_order(k):
    x = np.random.default_rng(4).integers(-3, 4, (6, 50)).astype(np.float32)
    expected = [sorted(range(50), key=lambda j, row=row: (-row[j], j))[:k] for row in x.tolist()]
    assert RowTruth(x).top_indices(k).tolist() == expected


def test_places_are_one_a_row_or_several():
    truth = Truth(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]))
    one = truth.at(np.array([2, 0]))
    assert one.expected.tolist() == [3.0, 4.0]
    assert one.bound.tolist() == [0.3, 0.4]
    several = truth.at(np.array([[2, 1], [0, 0]]))
    assert several.expected.tolist() == [[3.0, 2.0], [4.0, 4.0]]


def test_a_disagreement_names_the_worst_place_and_the_bound():
    truth = Truth(np.zeros((2, 3)), np.full((2, 3), 0.5))
    got = np.array([[0.0, 0.6, 0.0], [0.0, 0.0, 0.5]])
    assert disagreement("p", got, truth) == "p[0, 1] is 0.6, expected 0 within 0.5"
    assert disagreement("p", got[:1], truth) == "p has shape (1, 3), expected (2, 3)"
    got[1, 2] = np.nan
    assert disagreement("p", got, truth).startswith("p[1, 2] is nan")
