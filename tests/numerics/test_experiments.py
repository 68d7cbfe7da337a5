"""The measurements against plain loops, and against the figures that softcarry started from."""

import math

import numpy as np
import pytest

from softcarry.errors import OptionError
from softcarry.numerics import experiments, get_format
from softcarry.numerics.experiments import envelope, softmax_terms, sum_curve


def rounded(x, precision):
    """Round to a number of significant bits, ties to even, by Python's own integer rounding."""
    if x == 0.0:
        return x
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, precision)), exponent - precision)


def sequential(terms, precision):
    total = 0.0
    for term in terms:
        total = rounded(total + term, precision)
    return total


def pairwise(terms, precision):
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return rounded(pairwise(terms[:half], precision) + pairwise(terms[half:], precision), precision)


def stalled_at(level, n, rows=64):
    """The mean error of sums of n uniform terms that all stop at a level.

    The exact sum has mean n/2 and standard deviation √(n/12), a relative spread σ; the error 1 − level/sum
    then scatters by σ·level/mean a row, and its mean is off by σ²·level/mean. Six standard errors.
    """
    mean = n / 2
    spread = math.sqrt(n / 12) / mean
    return pytest.approx(1 - level / mean, abs=level / mean * (6 * spread / math.sqrt(rows) + 2 * spread**2))


def test_uniform_terms_stall_in_bfloat16_and_a_tree_does_not():
    curve = sum_curve("bfloat16")
    error = dict(zip(curve.n, curve.error, strict=True))
    assert list(error) == [16, 64, 256, 1024, 4096, 16384, 65536]
    assert curve.drop_index == 256
    # The sum stops at 256, where half the last place is 1 and no term is above 1: 50 % and 97 % are lost.
    assert error[1024] == stalled_at(256, 1024)
    assert error[16384] == stalled_at(256, 16384)
    tree = sum_curve("bfloat16", order="pairwise")
    assert max(tree.error) < 0.005
    # γ of the depth, log2 n for a tree and n for a chain, bounds every row.
    assert max(sum_curve("float32", order="pairwise").largest) <= 17 * 2.0**-24
    assert max(sum_curve("float32").largest) <= 1.01 * 65536 * 2.0**-24


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
def test_a_curve_is_the_error_of_the_sums_it_names(order):
    curve = sum_curve("bfloat16", distribution="lognormal", order=order, max_n=500, rows=3, seed=5)
    assert curve.n == (16, 64, 256, 500)
    total = {"sequential": sequential, "pairwise": pairwise}[order]
    for n, mean, largest in zip(curve.n, curve.error, curve.largest, strict=True):
        errors = []
        for row in softmax_terms("lognormal", n, rows=3, seed=5):
            terms = [rounded(term, 8) for term in row.tolist()]
            exact = math.fsum(terms)
            errors.append(abs(total(terms, 8) - exact) / exact)
        # The reference sum of the curve errs by n·2^-53 of itself.
        assert mean == pytest.approx(sum(errors) / 3, abs=n * 2.0**-52)
        assert largest == pytest.approx(max(errors), abs=n * 2.0**-52)


def test_equal_terms_are_exact_up_to_the_drop_index_and_lost_after():
    for name in ("bfloat16", "E4M3", "e6m9"):
        drop = get_format(name).drop_index
        curve = sum_curve(name, distribution="equal", max_n=4 * drop, rows=1)
        for n, error in zip(curve.n, curve.error, strict=True):
            assert error == max(0.0, 1.0 - drop / n)


def test_overflow_is_an_infinite_error():
    # A tree of equal terms reaches 256, above the 240 that E4M3 ends at; without infinity it becomes NaN.
    for name in ("E4M3", "E4M3FN"):
        n = {"E4M3": 256, "E4M3FN": 512}[name]
        curve = sum_curve(name, distribution="equal", order="pairwise", max_n=n, rows=1)
        assert curve.error[0] == 0.0
        assert curve.error[-1] == curve.largest[-1] == math.inf


def test_the_envelope_of_a_bfloat16_carry():
    carry = envelope("bfloat16", n=8192)
    error = dict(zip(carry.updates, carry.error, strict=True))
    assert carry.key_block == tuple(2**k for k in range(13, -1, -1))
    assert list(error) == [2**k for k in range(14)]
    assert error[1] <= 2.0**-8
    # 38 % and 73 % were measured on rows that are not known; a row scatters by about 0.02.
    assert error[1024] == pytest.approx(0.38, abs=0.03)
    assert error[8192] == pytest.approx(0.73, abs=0.03)
    # The prediction is a root mean square, the measurement a mean of 64 magnitudes: √(2/π) = 0.80 of it where
    # the errors are normal, with a standard error of 0.75/√64 = 9 %.
    for measured, predicted in zip(carry.error, carry.predicted, strict=True):
        assert 0.8 * (1 - 0.28) * predicted <= measured <= (1 + 0.28) * predicted


def test_uniform_terms_are_flat_to_the_drop_index_and_fall_off_after():
    carry = envelope("bfloat16", n=8192, distribution="uniform")
    error = dict(zip(carry.updates, carry.error, strict=True))
    # √256·u, the random walk of 256 roundings, is 6 %: the rows stay well inside it, since l grows meanwhile.
    assert max(error[k] for k in error if k <= 256) < 0.01
    assert error[8192] == stalled_at(256, 8192)
    # With 8 terms a block the sums of blocks straddle half the last place at 1024: some still move l.
    assert 1 - 2048 / 4096 - 0.01 <= error[1024] <= 1 - 1024 / 4096


@pytest.mark.parametrize("distribution", ["equal", "uniform", "exponential", "lognormal"])
def test_a_carry_rounds_once_a_block(distribution):
    n, rows = 300, 2
    carry = envelope("bfloat16", n=n, distribution=distribution, rows=rows, seed=3)
    assert carry.key_block == (300, 256, 128, 64, 32, 16, 8, 4, 2, 1)
    assert carry.updates == (1, 2, 3, 5, 10, 19, 38, 75, 150, 300)
    assert (carry.predicted is None) == (distribution == "exponential")
    terms = softmax_terms(distribution, n, rows=rows, seed=3)
    for block, mean, largest in zip(carry.key_block, carry.error, carry.largest, strict=True):
        errors = []
        for row in terms:
            total = 0.0
            for start in range(0, n, block):
                total = rounded(total + math.fsum(row[start : start + block]), 8)
            errors.append(abs(total - math.fsum(row)) / math.fsum(row))
        # A block sum that differs in its last bits can only matter at a tie, which random terms do not hit.
        assert mean == pytest.approx(sum(errors) / rows, abs=n * 2.0**-52)
        assert largest == pytest.approx(max(errors), abs=n * 2.0**-52)


@pytest.mark.parametrize("distribution", ["equal", "uniform", "exponential", "lognormal"])
def test_terms_are_those_of_a_softmax(distribution):
    terms = softmax_terms(distribution, 2000, rows=3, seed=1)
    assert terms.shape == (3, 2000)
    assert np.all((terms >= 0.0) & (terms <= 1.0))
    if distribution != "uniform":
        assert np.all(terms.max(axis=-1) == 1.0)
    if distribution == "lognormal":
        # The logarithms of the terms are normal scores, of standard deviation 1 ± 1/√12000.
        assert np.log(terms).std() == pytest.approx(1.0, abs=6 / math.sqrt(12000))


def test_a_row_depends_on_its_number_and_the_seed_and_on_nothing_else(monkeypatch):
    whole = softmax_terms("uniform", 64, rows=5, seed=7)
    assert np.array_equal(softmax_terms("uniform", 64, rows=2, seed=7), whole[:2])
    assert not np.array_equal(whole[0], whole[1])
    assert not np.array_equal(softmax_terms("uniform", 64, seed=8)[0], whole[0])
    together = sum_curve("bfloat16", max_n=64, rows=5, seed=7)
    monkeypatch.setattr(experiments, "_ELEMENTS_AT_ONCE", 100)
    assert sum_curve("bfloat16", max_n=64, rows=5, seed=7) == together


def test_one_term_is_exact():
    assert sum_curve("bfloat16", max_n=1, rows=4).error == (0.0,)
    carry = envelope("bfloat16", n=1, distribution="equal")
    assert (carry.key_block, carry.updates, carry.error) == ((1,), (1,), (0.0,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sum_curve("bf16"), "unknown format 'bf16'"),
        (
            lambda: sum_curve("bfloat16", distribution="cauchy"),
            "distribution is one of 'equal', .*; got 'cauchy'",
        ),
        (
            lambda: sum_curve("bfloat16", order="kahan"),
            "order is one of 'sequential', 'pairwise'; got 'kahan'",
        ),
        (lambda: sum_curve("bfloat16", max_n=0), "max_n is a whole number of at least 1; got 0"),
        (lambda: sum_curve("bfloat16", rows=0), "rows is a whole number of at least 1; got 0"),
        (lambda: envelope(n=-5), "n is a whole number of at least 1; got -5"),
        (lambda: envelope(n=2**28), r"n is at most 2\*\*27.*got 268435456"),
        (lambda: envelope(seed=-1), "seed is a whole number of at least 0; got -1"),
        (lambda: envelope(distribution="normal"), "distribution is one of"),
        (lambda: softmax_terms("normal", 4), "distribution is one of"),
        (lambda: softmax_terms("equal", 0), "n is a whole number of at least 1; got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(OptionError, match=message):
        call()


@pytest.mark.parametrize(
    "measure", [lambda: envelope(n=10**7, rows=10**7), lambda: sum_curve("bfloat16", max_n=10**7, rows=10**7)]
)
def test_more_work_than_anyone_waits_for_is_refused_before_it_starts(measure):
    with pytest.raises(OptionError, match=r"rows times n is at most 2\*\*34.*take fewer rows"):
        measure()
