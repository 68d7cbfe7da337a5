"""Moments: the merge laws, the bounds of the docstring against exact rational arithmetic, and bad input."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _namespaces import NAMES, library, same_bits
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.moments import Moments

DTYPES = [np.float32, np.float64]


@st.composite
def numbers(draw, dtype=np.float64, *, special: bool = False) -> np.ndarray:
    offset = draw(st.sampled_from([0.0, 1e8, -3e4]))
    element = st.floats(-8, 8, width=32) | st.sampled_from([1e-40, -1e-40, 1e15])
    if special:
        element = element | st.sampled_from([math.nan, math.inf, -math.inf])
    return np.array([x + offset for x in draw(st.lists(element, min_size=1, max_size=10))], dtype=dtype)


def _exact(x: np.ndarray) -> tuple[Fraction, Fraction]:
    exact = [Fraction(float(v)) for v in x]
    mean = sum(exact) / len(exact)
    return mean, sum((v - mean) ** 2 for v in exact)


def _assert_within(moments: Moments, x: np.ndarray, *, merges: int) -> None:
    """The first-order bound of the docstring; 1.01 and the square of the means' errors stand for the rest."""
    n, u = x.size, float(np.finfo(x.dtype).eps) / 2
    m2 = float(_exact(x)[1])
    largest = float(np.abs(x.astype(float)).max())
    tiny = float(np.finfo(x.dtype).tiny)
    of_mean = (n + 4 * merges) * u * largest
    assert moments.count == n
    assert abs(Fraction(float(moments.mean)) - _exact(x)[0]) <= 1.01 * of_mean + n * tiny
    of_m2 = (n + 8 + 6 * merges) * u * m2 + 2 * merges * of_mean * math.sqrt(n * m2)
    # Second order: a merge squares a step that errs by both means, with weight n/4 at most; a single block
    # subtracts n·(mean error)² up to the rounding of that.
    second = (merges + 1) * n * of_mean**2 + 2 * n * of_mean * n * u * math.sqrt(m2 / n)
    assert abs(Fraction(float(moments.m2)) - _exact(x)[1]) <= 1.01 * of_m2 + second + n * tiny


def _same(a: Moments, b: Moments) -> bool:
    return a.count == b.count and same_bits(a.mean, b.mean) and same_bits(a.m2, b.m2)


def test_a_set_known_by_hand():
    both = Moments.of(np.array([1.0, 2.0])) | Moments.of(np.array([3.0, 6.0]))
    assert (both.count, both.mean, both.m2) == (4, 3.0, 14.0)
    assert both.variance() == 3.5
    assert both.variance(ddof=1) == 14 / 3
    assert both.std() == math.sqrt(3.5)
    assert both.std(ddof=1) == math.sqrt(14 / 3)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_one_block_and_any_grouping_are_exact_within_the_bound(dtype, data):
    x = data.draw(numbers(dtype))
    _assert_within(Moments.of(x), x, merges=0)
    random = data.draw(st.randoms(use_true_random=False))
    rest = list(x)
    random.shuffle(rest)
    parts = [Moments.empty(like=x)]
    while rest:
        parts.append(Moments.of(np.array([rest.pop() for _ in range(random.randint(1, len(rest)))])))
    merges = len(parts) - 1
    while len(parts) > 1:
        random.shuffle(parts)
        taken = random.randint(2, len(parts))
        parts = [Moments.merge(*parts[:taken]), *parts[taken:]]
    _assert_within(parts[0], x, merges=merges)


@given(x=numbers(special=True), cut=st.integers(0, 10))
def test_identity_in_every_position_and_commutativity_to_the_bit(x, cut):
    parts = [Moments.of(x[:cut]), Moments.of(x[cut:])]
    whole = Moments.merge(*parts)
    for empty in (Moments.empty(), Moments(0, math.nan, math.inf)):
        for place in range(3):
            merged = Moments.merge(*parts[:place], empty, *parts[place:])
            assert _same(merged, whole) or whole.count == 0 == merged.count
    assert _same(parts[0] | parts[1], parts[1] | parts[0])


def test_sets_of_one_size_commute_to_the_bit():
    generator = np.random.default_rng(3)  # of several magnitudes, or the step between the means is exact
    pairs = generator.standard_normal((200, 2, 3)) * 10.0 ** generator.integers(-3, 3, (200, 2, 1))
    for a, b in ((Moments.of(x[0]), Moments.of(x[1])) for x in pairs):
        assert _same(a | b, b | a)


@pytest.mark.parametrize("n", [7, 1001, 4099])
def test_equal_numbers_have_no_deviation(n):
    """Their float32 mean is rounded, and the second pass takes that rounding out again."""
    x = np.full(n, 12345679.0, dtype=np.float32)
    moments = Moments.of(x)
    assert moments.m2 <= n * 2.0**-24
    assert moments.mean == x[0]


@given(x=numbers(special=True))
def test_one_number_at_a_time_is_a_merge_with_plain_floats(x):
    streamed, merged = Moments.empty(), Moments.empty()
    for v in x:
        streamed = streamed | Moments.of(float(v))
        merged = merged | Moments.of(np.array([v]))
    assert streamed.count == x.size
    if np.isfinite(x).all():
        assert _same(streamed, merged)
        _assert_within(streamed, x, merges=x.size)
    else:
        assert not np.isfinite(streamed.mean)
        assert np.isnan(streamed.m2)
        assert np.isnan(Moments.of(x).m2)


def test_a_common_offset_does_not_cancel_as_in_the_textbook_formula():
    x = 1e9 + np.array([4.0, 7.0, 13.0, 16.0])
    merged = Moments.of(x[:1]) | Moments.of(x[1:])
    assert merged.variance(ddof=1) == 30
    assert (x**2).sum() / 4 - x.mean() ** 2 != 22.5


def test_a_shift_that_is_exact_changes_the_mean_only():
    x = np.array([0.5, -1.25, 3.0, 2.25])
    a, b = (Moments.of(y[:2]) | Moments.of(y[2:]) for y in (x, x + 2.0**20))
    assert b.mean == a.mean + 2.0**20
    assert b.m2 == a.m2


@pytest.mark.parametrize("name", NAMES)
def test_rows_axes_and_namespaces(name):
    lib = library(name)
    x = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32) + np.float32(100)
    x[1, 2, 3] = np.nan
    for axis, axes in ((-1, (2,)), ((0, 2), (0, 2)), (None, (0, 1, 2))):
        a, b = Moments.of(lib.array(x[:, :2]), axis), Moments.of(lib.array(x), axis)
        assert b.count == math.prod(x.shape[i] for i in axes)
        rows = np.moveaxis(x, axes, range(-len(axes), 0)).reshape(*lib.numpy(b.mean).shape, -1)
        assert lib.numpy(b.mean).dtype == np.float32
        for i in np.ndindex(lib.numpy(b.mean).shape):
            row = Moments(b.count, lib.numpy(b.mean)[i], lib.numpy(b.m2)[i])
            if np.isnan(rows[i]).any():
                assert np.isnan(row.mean)
                assert np.isnan(row.m2)
            else:
                _assert_within(row, rows[i], merges=0)
        if 1 in axes:
            other = Moments.of(lib.array(x[:, 2:]), axis)
            assert np.array_equal(lib.numpy((a | other).m2), lib.numpy((other | a).m2), equal_nan=True)


def test_dtypes():
    narrow = np.array([1.0, 2.0, 4.0], dtype=ml_dtypes.bfloat16)
    assert Moments.of(narrow).mean.dtype == np.float32
    mixed = Moments.of(np.float32([1, 2])) | Moments.of(np.array([3.0, 6.0]))
    assert mixed.mean.dtype == mixed.m2.dtype == np.float64
    assert (Moments.of(np.float32([1])) | Moments.empty()).mean.dtype == np.float64
    assert Moments.of([1.0, 2.0]).mean == 1.5


def test_empty_and_too_few_numbers():
    none = Moments.of(np.zeros((3, 0)))
    assert (none.count, none.mean.shape) == (0, (3,))
    assert np.isnan(none.variance()).all()
    assert np.isnan(Moments.of(2.0).variance(ddof=1))
    assert Moments.of(2.0).variance() == 0
    assert Moments.empty().merge().count == 0
    with np.errstate(all="raise"):
        assert np.isnan(Moments.of(np.array([np.inf, 1.0])).merge(Moments.of(np.array([-np.inf]))).m2)


def test_the_count_never_stagnates():
    big = Moments(2**60, np.float32(1.0), np.float32(0.0))
    assert (big | Moments(1, np.float32(1.0), np.float32(0.0))).count == 2**60 + 1


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: Moments.of(np.arange(3)), DTypeError, "x must be .*got int64"),
        (lambda: Moments.of([1, 2]), DTypeError, "got int64"),
        (lambda: Moments.of("12"), DTypeError, "got str"),
        (lambda: Moments.of(np.zeros((2, 3)), axis=2), ShapeError, r"axis 2 does not exist .*\(2, 3\)"),
        (lambda: Moments.of(np.array(3.0)), ShapeError, "axis -1 does not exist"),
        (lambda: Moments.of([[1.0, 2.0], [3.0]]), ShapeError, "got a ragged sequence"),
        (lambda: Moments.of(np.zeros((2, 3)), axis=(0, -2)), ShapeError, "names an axis twice"),
        (lambda: Moments.of(np.zeros((2, 3)), axis=[0, 1]), ShapeError, r"axis must be .*got \[0, 1\]"),
        (lambda: Moments.of(np.zeros(2), axis=0.0), ShapeError, "got 0.0"),
        (lambda: Moments.of([1.0, 2.0]).variance("1"), OptionError, "ddof must be a number.*got '1'"),
        (lambda: Moments.of([1.0, 2.0]).std(None), OptionError, "got None"),
        (lambda: Moments(-1, 0.0, 0.0), OptionError, "count must be .*got -1"),
        (lambda: Moments(1.5, 0.0, 0.0), OptionError, "got 1.5"),
        (lambda: Moments(1, np.zeros(2), np.zeros(3)), ShapeError, r"mean \(2,\) and m2 \(3,\)"),
        (lambda: Moments(1, np.zeros(2, int), np.zeros(2)), DTypeError, "mean must be"),
        (lambda: Moments.empty(-1), ShapeError, "got -1"),
        (lambda: Moments.empty().merge(3.0), OptionError, "takes Moments, got float"),
        (lambda: Moments.empty() | Moments.empty(2), ShapeError, r"got mean \(\) and \(2,\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, kind, words):
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
