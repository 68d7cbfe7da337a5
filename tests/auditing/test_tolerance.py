"""Outputs beside their golden ones: classes first, then values, then the bound."""

import numpy as np
import pytest

from softcarry.auditing import Examination, Subject
from softcarry.auditing.golden import golden_attention
from softcarry.auditing.tolerance import compare


def exact(q, k, v):
    return golden_attention(q, k, v).output.astype(q.dtype)


def comparison(output, dtype="float32", **options):
    rng = np.random.default_rng(0)
    examination = Examination(Subject(exact, arrays="numpy"), dtype, check="REF")
    q, k, v = (examination.round(rng.standard_normal((1, 1, n, 16))) for n in (3, 40, 40))
    golden = golden_attention(q, k, v).output
    return compare(examination, q, k, v, output(golden), **options)


def test_the_golden_output_has_no_error():
    result = comparison(lambda golden: golden)
    assert not result.error.any()
    assert not result.exceeded.any()
    assert result.worst() == 0.0


def test_errors_are_measured_against_w_and_the_bound():
    result = comparison(lambda golden: golden + 1e-3)
    weights = result.golden.weights
    assert weights.shape == (1, 1, 3, 40)
    assert (result.relative * result.weight == np.abs(result.error)).all() or np.allclose(
        result.relative * result.weight, np.abs(result.error), rtol=1e-15
    )
    assert np.isclose(result.worst(), (1e-3 / result.bound).max(), rtol=1e-12)
    assert result.exceeded.all()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_an_output_that_should_be_finite_is_beyond_every_bound(broken):
    def output(golden):
        golden = golden.copy()
        golden[0, 0, 1, 2] = broken
        return golden

    result = comparison(output)
    assert np.argwhere(result.exceeded).tolist() == [[0, 0, 1, 2]]
    assert result.worst() == np.inf
    assert np.isinf(result.relative[0, 0, 1, 2])


def test_a_float64_kernel_is_held_to_twice_the_bound():
    """The golden output errs as it does; nothing else changes between float64 with and without the factor."""
    from softcarry.numerics import CarryModel, attention_error_bound

    result = comparison(lambda golden: golden, dtype="float64")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 16)) for n in (3, 40, 40))
    model = CarryModel(l_format="float64", o_format="float64", score_format="float64")
    magnitudes = np.abs(q) @ np.swapaxes(np.abs(k), -1, -2) / 4.0
    bound = attention_error_bound(
        golden_attention(q, k, v).scores, magnitudes, v, depth=16, model=model, output_format="float64"
    )
    assert np.allclose(result.bound, 2.0 * bound.output, rtol=1e-12)


def test_the_likely_error_is_below_the_bound_and_asked_for():
    assert comparison(lambda golden: golden).likely is None
    result = comparison(lambda golden: golden + 1e-4, statistical=True)
    assert (result.likely < 1e-4).all()
    assert (result.worst_likely() > 1.0).all()
