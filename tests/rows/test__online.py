"""The one-pass normaliser: its figures, its rules, and that it reads once and keeps two numbers."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _carry_oracle import exact
from one_pass import Once, assert_reads_once_and_keeps_two_numbers
from softcarry.errors import DTypeError, OptionError
from softcarry.rows._online import online_normalizer

NAN, INF = math.nan, math.inf


def two_pass_normalizer(scores):
    """The first wrong implementation of the seeds: it keeps the row and reads it twice."""
    scores = list(scores)
    m = max(scores)
    return m, float(np.sum(np.exp(np.array(scores) - m)))


def rereading_normalizer(scores):
    m = max(scores)
    return m, math.fsum(math.exp(s - m) for s in scores)


def packing_normalizer(scores):
    """Keep a copy without holding on to the objects."""
    row = np.fromiter(scores, float)
    return row.max(), np.exp(row - row.max()).sum()


def test_it_reads_once_and_keeps_two_numbers():
    assert_reads_once_and_keeps_two_numbers(online_normalizer)


@pytest.mark.parametrize("wrong", [two_pass_normalizer, rereading_normalizer, packing_normalizer])
def test_that_test_catches_normalizers_that_keep_or_reread(wrong):
    with pytest.raises(AssertionError):
        assert_reads_once_and_keeps_two_numbers(wrong)


def test_the_seed_row():
    m, total = online_normalizer(iter([2, 5, 1, 7]))
    assert (m, round(total, 4)) == (7.0, 1.1446)
    assert isinstance(m, float)
    assert isinstance(total, float)


@pytest.mark.parametrize("base", ["e", "2", 2])
@given(
    scores=st.lists(
        st.floats(-800, 800) | st.sampled_from([-INF, 1e30, -1e30, 5e-324, 1e8, 1e8 + 1]),
        min_size=1,
        max_size=12,
    )
)
def test_it_equals_the_exact_sum(base, scores):
    m, total = online_normalizer(scores, base=base)
    assert m == max(scores)
    if m == -INF:
        assert total == 0
        return
    row = exact(np.array(scores), np.ones((len(scores), 1)), base=str(base))
    # c of the notes of Carry with a merge a score, exponentials of 1 ulp = 2u and a product each
    n = len(scores)
    c = [n + float(gap) + 2 + 3 * n for gap in row.gaps]
    bound = 1.01 * 2.0**-53 * math.fsum(float(t) * x for t, x in zip(row.terms, c, strict=True)) + n * 1e-300
    assert abs(mpmath.mpf(total) - row.l) <= bound


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], (-INF, 0.0)),
        ([-INF, -INF], (-INF, 0.0)),
        ([-INF, 3.0, -INF], (3.0, 1.0)),
        ([1.0, NAN, 2.0], (NAN, NAN)),
        ([NAN, INF], (NAN, NAN)),
        ([INF, NAN], (NAN, NAN)),
        ([NAN, -INF], (NAN, NAN)),
        ([1.0, INF, 2.0], (INF, NAN)),
        ([INF, -INF], (INF, NAN)),
        ([INF, INF], (INF, NAN)),
        ([1e308, -1e308], (1e308, 1.0)),
    ],
)
def test_rules(scores, expected):
    for base in ("e", "2"):
        np.testing.assert_equal(online_normalizer(iter(scores), base=base), expected)


def test_it_takes_arrays_and_numpy_scalars():
    for row in (np.float16([2, 5, 1, 7]), np.array([2, 5, 1, 7]), range(3), (True, 2.5)):
        m, total = online_normalizer(row)
        assert m == max(row)
        assert abs(total - sum(math.exp(float(s) - m) for s in row)) < 1e-15


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2517", "takes an iterable of real numbers, got str"),
        (3.0, "got float"),
        (np.array(3.0), "got ndarray"),
        (["2", "5"], "yielded str"),
        ([1j], "yielded complex"),
        ([None], "yielded NoneType"),
        ([10**400], "yielded a number beyond its largest: scale it"),
        (bytearray(b"25"), "got bytearray"),
        ([bytearray(b"2")], "yielded bytearray"),
        (np.zeros((2, 1)), "yielded ndarray: flatten"),
    ],
)
def test_bad_input_is_refused_in_one_line(row, words):
    with pytest.raises(DTypeError, match=words) as caught:
        online_normalizer(row)
    assert "\n" not in str(caught.value)


def test_an_unknown_base_is_refused_before_anything_is_read():
    row = Once(3)
    with pytest.raises(OptionError, match="got 10"):
        online_normalizer(row, base=10)
    assert row.read == 0
