import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from softcarry.errors import OptionError
from softcarry.numerics.summation_bounds import (
    gamma,
    lse_bound,
    merge_bound,
    probabilistic_gamma,
    summation_bound,
    summation_depth,
)

T = 7  # bfloat16
U = 2.0**-8


def rounded(x, t=T, mode="nearest-even"):
    """Oracle: x to t stored bits, exponents unbounded."""
    fraction, exponent = np.frexp(x)
    scaled = np.ldexp(fraction, t + 1)
    return np.ldexp(np.rint(scaled) if mode == "nearest-even" else np.trunc(scaled), exponent - t - 1)


def sequential(x, mode="nearest-even"):
    total = x[0]
    for term in x[1:]:
        total = rounded(total + term, mode=mode)
    return total


def pairwise(x, mode="nearest-even"):
    if len(x) == 1:
        return x[0]
    half = len(x) // 2
    return rounded(pairwise(x[:half], mode) + pairwise(x[half:], mode), mode=mode)


def blocks_of(x, size):
    return [x[start : start + size] for start in range(0, len(x), size)]


def blocked(x, size, mode="nearest-even"):
    return sequential([sequential(block, mode) for block in blocks_of(x, size)], mode)


def carry_stack(x, size, add, leaf):
    """A binary counter of partial sums, merged smallest first at the end."""
    stack = []
    for block in blocks_of(x, size):
        level, value = 0, leaf(block)
        while stack and stack[-1][0] == level:
            value = add(stack.pop()[1], value)
            level += 1
        stack.append((level, value))
    value = stack.pop()[1]
    while stack:
        value = add(stack.pop()[1], value)
    return value


def kahan(x):
    total = lost = 0.0 * x[0]
    for term in x:
        y = rounded(term - lost)
        moved = rounded(total + y)
        lost = rounded(rounded(moved - total) - y)
        total = moved
    return total


def two_level(x, size):
    wide = 0.0
    for block in blocks_of(x, size):
        wide = rounded(wide + sequential(block), 23)
    return rounded(wide)


def families(n, rng):
    """Rows of n terms of the format: random ones, and those that hurt a running sum."""
    rows = [rng.random(n) for _ in range(20)] + [rng.standard_normal(n) for _ in range(20)]
    rows += [np.ones(n), 1.0 / np.arange(1, n + 1), np.arange(1.0, n + 1), np.exp(3 * rng.standard_normal(n))]
    rows += [np.full(n, 1.0 + U), np.concatenate([[2.0**7], np.full(n - 1, 0.49)])]
    return rounded(np.array(rows)).T


def worst_ratio(total, x, bound):
    return float(np.max(np.abs(total - x.sum(axis=0)) / np.abs(x).sum(axis=0)) / bound)


@pytest.mark.parametrize("n", [0, 1, 5, 255])
def test_gamma_is_the_fraction(n):
    exact = Fraction(n) * Fraction(U) / (1 - Fraction(n) * Fraction(U))
    # n·u is exact; a subtraction and a division round.
    assert abs(Fraction(gamma(n, U)) - exact) <= 2 * Fraction(2) ** -53 * exact


def test_gamma_says_nothing_once_nu_is_one():
    assert gamma(256, U) == gamma(1000, U) == math.inf
    assert gamma(np.array([[1, 300]]), U).shape == (1, 2)
    with pytest.raises(OptionError, match="0 or more; got -1"):
        gamma(-1, U)
    with pytest.raises(OptionError, match="0 or more; got nan"):
        gamma(math.nan, U)


def test_probabilistic_gamma_grows_as_the_square_root():
    u = 2.0**-24
    # To first order in λ√n·u = 6e-5, which is also the relative size of what the ratio leaves out.
    assert probabilistic_gamma(10**6, u) / probabilistic_gamma(10**4, u) == pytest.approx(10.0, rel=2e-4)
    assert probabilistic_gamma(10**6, u, 2.0) / probabilistic_gamma(10**6, u) == pytest.approx(2.0, rel=2e-4)
    assert probabilistic_gamma(10**30, u) == math.inf
    assert probabilistic_gamma(np.arange(3), u).shape == (3,)


def test_probabilistic_bound_holds_for_random_terms_with_its_probability():
    n, rows = 64, 4000
    x = rounded(np.random.default_rng(0).standard_normal((n, rows)))
    errors = np.abs(sequential(x) - x.sum(axis=0)) / np.abs(x).sum(axis=0)
    # λ = 5 fails with a probability of at most 2·64·exp(−12.5) a row: under two of 4000 are to be expected.
    assert np.count_nonzero(errors > summation_bound(n, "bfloat16", probabilistic=True, lambda_=5.0)) <= 10
    assert np.all(errors <= summation_bound(n, "bfloat16"))


def test_probabilistic_formula_is_wrong_for_a_sum_that_stagnates_and_is_refused_there():
    x = np.ones(1024)
    error = 1.0 - sequential(x) / 1024
    assert error == 0.75
    assert error > 4 * probabilistic_gamma(1023, U)
    assert summation_bound(1024, "bfloat16", probabilistic=True) == math.inf
    assert summation_bound(1024, "bfloat16", rounding="stochastic", probabilistic=True) < math.inf


@pytest.mark.parametrize("size", [1, 2, 7])
def test_depth_is_that_of_the_sums(size):
    def deepest(n, order):
        ones = [0] * n
        add = lambda a, b: max(a, b) + 1  # noqa: E731
        row = lambda block: max(len(block) - 1, 0)  # noqa: E731
        if order == "blocked":
            return len(blocks_of(ones, size)) - 1 + max(row(block) for block in blocks_of(ones, size))
        return carry_stack(ones, size, add, row)

    for n in range(1, 300):
        assert deepest(n, "blocked") == summation_depth(n, "blocked", size)
        assert deepest(n, "carry-stack") <= summation_depth(n, "carry-stack", size)
        assert summation_depth(n) == n - 1
        assert summation_depth(n, "pairwise") == math.ceil(math.log2(n))
    assert summation_depth(0) == summation_depth(0, "pairwise") == 0


def test_depth_of_the_carry_stack_is_reached_at_powers_of_two_and_one_more():
    for n in (64, 65, 1024, 1025):
        depth = carry_stack([0] * n, 1, lambda a, b: max(a, b) + 1, lambda block: 0)
        assert depth == summation_depth(n, "carry-stack") == math.ceil(math.log2(n))


@pytest.mark.parametrize("n", [2, 3, 17, 100, 200])
@pytest.mark.parametrize("mode", ["nearest-even", "toward-zero"])
def test_bounds_of_trees_cover_the_errors(n, mode):
    x = families(n, np.random.default_rng(n))
    pairs = {
        ("sequential", None): sequential(x, mode),
        ("pairwise", None): pairwise(x, mode),
        ("blocked", 8): blocked(x, 8, mode),
        ("carry-stack", 4): carry_stack(
            x, 4, lambda a, b: rounded(a + b, mode=mode), lambda block: sequential(block, mode)
        ),
    }
    for (order, block), total in pairs.items():
        bound = summation_bound(n, "bfloat16", order, block=block, rounding=mode)
        assert worst_ratio(total, x, bound) <= 1.0, order


def test_sequential_bound_is_no_more_than_a_few_times_the_worst_error():
    # 2^7 and terms just under half its last place, which are all lost: 0.49·99 of 128 + 0.49·99.
    x = np.concatenate([[2.0**7], np.full(99, rounded(0.49))])
    error = (x.sum() - sequential(x)) / x.sum()
    assert 0.4 < error / summation_bound(100, "bfloat16") <= 1.0


@pytest.mark.parametrize("n", [3, 100, 1000, 4000])
def test_kahan_bound_covers_the_errors(n):
    x = families(n, np.random.default_rng(n))
    assert worst_ratio(kahan(x), x, summation_bound(n, "bfloat16", "kahan")) <= 1.0


@pytest.mark.parametrize(("n", "size"), [(100, 2), (1000, 4), (8000, 16)])
def test_two_level_bound_covers_the_errors_and_does_not_see_n(n, size):
    x = families(n, np.random.default_rng(n))
    bound = summation_bound(n, "bfloat16", "two-level", block=size)
    assert worst_ratio(two_level(x, size), x, bound) <= 1.0
    # (B + 1)·u of the low format, and a float32 term that is at most n·2^−24 in size.
    assert bound <= gamma(size + 1, U) + gamma(n, 2.0**-24)


def test_orders_rank_as_the_analysis_says():
    def bound(order, block=None):
        return summation_bound(200, "bfloat16", order, block=block)

    assert bound("two-level", 2) < bound("pairwise") < bound("blocked", 14) < bound("sequential")
    assert bound("kahan") < bound("pairwise")
    for order, block in itertools.product(("sequential", "pairwise", "kahan"), (None,)):
        assert summation_bound(0, "bfloat16", order, block=block) == 0.0
        assert summation_bound(1, "bfloat16", order, block=block) == 0.0


@pytest.mark.parametrize(("fmt", "t"), [("bfloat16", 7), ("float32", 23)])
@pytest.mark.parametrize("splits", [2, 5, 16])
def test_merge_bound_covers_a_chain_of_merges(fmt, t, splits):
    rng = np.random.default_rng(splits)
    m = rounded(4 * rng.standard_normal((splits, 500)), t)
    l = rounded(1 + rng.random((splits, 500)), t)
    top, total = m[0], l[0]
    for other, weight in zip(m[1:], l[1:], strict=True):
        new = np.maximum(top, other)
        scale = [rounded(np.exp(rounded(old - new, t)), t) for old in (top, other)]
        total = rounded(rounded(total * scale[0], t) + rounded(weight * scale[1], t), t)
        top = new
    exact = (l * np.exp(m - m.max(axis=0))).sum(axis=0)
    assert np.max(np.abs(total / exact - 1)) <= merge_bound(splits, fmt, exp_ulps=0.5)
    assert merge_bound(splits, fmt, order="pairwise") <= merge_bound(splits, fmt)


def test_merging_nothing_costs_nothing():
    assert merge_bound(1) == 0.0
    assert merge_bound(4, "bfloat16", exp_format="float32") < merge_bound(4, "bfloat16")
    assert merge_bound(4, "bfloat16") < merge_bound(4, "bfloat16", rounding="toward-zero")


def test_lse_bound_covers_float32_and_is_of_its_size():
    rng = np.random.default_rng(0)
    m = (rng.standard_normal(10**5) * 10.0 ** rng.integers(-3, 7, 10**5)).astype(np.float32)
    l = (1 + rng.random(10**5) * 10.0 ** rng.integers(0, 6, 10**5)).astype(np.float32)
    lse = (m + np.log(l)).astype(np.float64)
    exact = m.astype(np.float64) + np.log(l.astype(np.float64))
    ratio = np.abs(lse - exact) / lse_bound(m, l)
    assert 0.2 < ratio.max() <= 1.0


def test_lse_bound_at_the_edges():
    assert lse_bound(-math.inf, 0.0) == 0.0
    assert lse_bound(0.0, 2.0, 1.0) == math.inf
    assert lse_bound(0.0, 0.0) == math.inf
    assert math.isnan(lse_bound(math.nan, 1.0))
    # A known relative error of l shifts its logarithm by at most −ln(1 − E).
    assert lse_bound(0.0, 1.0, 0.5) == pytest.approx(math.log(2) + 2.0**-24, rel=2.0**-50)
    assert lse_bound(np.zeros(3), np.ones((2, 1))).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summation_bound(8, "bf16"), "unknown format 'bf16'"),
        (lambda: summation_bound(-1, "bfloat16"), "n is a whole number of at least 0; got -1"),
        (lambda: summation_bound(True, "bfloat16"), "n is a whole number of at least 0; got True"),
        (lambda: summation_bound(8, "bfloat16", "tree"), "order is one of .* got 'tree'"),
        (lambda: summation_bound(8, "bfloat16", "blocked"), "'blocked' needs block="),
        (lambda: summation_bound(8, "bfloat16", "two-level"), "'two-level' needs block="),
        (
            lambda: summation_bound(8, "bfloat16", rounding="up", probabilistic=True),
            "only the worst case holds",
        ),
        (lambda: probabilistic_gamma(8, U, 0.0), "lambda_ is a finite number above 0; got 0.0"),
        (lambda: probabilistic_gamma(-8, U), "0 or more; got -8"),
        (lambda: summation_depth(8, "kahan"), "order is one of .* got 'kahan'"),
        (lambda: merge_bound(0), "splits is a whole number of at least 1; got 0"),
        (lambda: merge_bound("2"), "splits is a whole number of at least 1; got '2'"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(OptionError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
