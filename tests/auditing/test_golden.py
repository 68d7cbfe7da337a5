"""The golden reference against loops in high precision."""

import math

import numpy as np
import pytest

import attention_oracle
import oracle
from softcarry.auditing.golden import causal_mask, golden_attention


def problem(tq=5, tk=7, seed=0):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, 3, tq, 4)), rng.standard_normal((2, 3, tk, 4))
    return q, k, rng.standard_normal((2, 3, tk, 3)), rng.random((tq, tk)) < 0.5


@pytest.mark.parametrize("causal", [False, True, "bottom-right", "top-left"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("tq", "tk"), [(5, 7), (7, 5), (1, 1), (3, 0)])
def test_agrees_with_loops(tq, tk, masked, causal):
    q, k, v, mask = problem(tq, tk)
    mask = mask if masked else None
    golden = golden_attention(q, k, v, mask=mask, causal=causal)
    output, lse = oracle.attention(q, k, v, mask=mask, causal=causal)
    # float64 sums of at most 7 terms of size below 10 on both sides: well within 1e-13.
    np.testing.assert_allclose(golden.output, output, rtol=0, atol=1e-13)
    np.testing.assert_allclose(golden.lse, lse, rtol=0, atol=1e-13)
    assert (np.isneginf(golden.scores) == (golden.weights == 0)).all()


def test_additive_and_boolean_masks_agree_to_the_bit():
    q, k, v, mask = problem()
    boolean = golden_attention(q, k, v, mask=mask, scale=0.3)
    additive = golden_attention(q, k, v, mask=np.where(mask, 0.0, -np.inf), scale=0.3)
    for a, b in zip(boolean, additive, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_empty_row_is_zero_and_minus_infinity():
    q, k, v, mask = problem()
    mask[2] = False
    golden = golden_attention(q, k, v, mask=mask)
    assert not golden.output[:, :, 2].any()
    assert (golden.lse[:, :, 2] == -math.inf).all()
    assert not golden.weights[:, :, 2].any()


@pytest.mark.parametrize("keys", [3072, 49152])
def test_long_sums_err_by_less_than_those_of_any_key_block(keys):
    """Equal scores and values: all sums of equal terms, whose roundings go one way."""
    golden = golden_attention(np.zeros((1, 1, 2, 4)), np.zeros((1, 1, keys, 4)), np.ones((1, 1, keys, 3)))
    # One rounding of a weight, 63 within a chunk of 64 keys, and one for each doubling of the keys after.
    bound = (64 + math.ceil(math.log2(keys / 32))) * 2.0**-53
    assert np.abs(golden.output - 1.0).max() <= bound
    # A kernel with key block Bc is allowed Bc + n/Bc − 2, which is at least 2·√n − 2.
    assert bound < (2.0 * math.sqrt(keys) - 2.0) * 2.0**-53


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_what_lies_behind_a_boolean_mask_never_shows(where, poison):
    q, k, v, mask = problem()
    mask[:, 3] = False
    clean = golden_attention(q, k, v, mask=mask)
    {"k": k, "v": v}[where][:, :, 3, 0] = poison
    poisoned = golden_attention(q, k, v, mask=mask)
    np.testing.assert_array_equal(poisoned.output, clean.output)
    np.testing.assert_array_equal(poisoned.lse, clean.lse)


def test_a_live_nan_value_reaches_the_rows_that_see_it_and_no_other():
    q, k, v, mask = problem()
    mask[:, 3] = [True, False, True, False, False]
    v[0, 1, 3, 2] = math.nan
    golden = golden_attention(q, k, v, mask=mask)
    expected = np.zeros(golden.output.shape, bool)
    expected[0, 1, [0, 2], 2] = True
    np.testing.assert_array_equal(np.isnan(golden.output), expected)


def test_a_score_of_infinity_makes_its_row_nan():
    golden = golden_attention(
        np.full((1, 1, 2, 1), [[1.0], [0.5]]), np.full((1, 1, 2, 1), np.inf), np.ones((1, 1, 2, 1))
    )
    assert np.isnan(golden.output).all()


def test_causal_masks():
    assert causal_mask(3, 2).astype(int).tolist() == [[0, 0], [1, 0], [1, 1]]
    assert causal_mask(3, 2, "top-left").astype(int).tolist() == [[1, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize(("tq", "tk"), [(5, 7), (7, 5), (4, 4)])
@pytest.mark.parametrize("causal", [False, True, "top-left"])
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 0.7},
        {"window": (2, 1)},
        {"window": (None, 0)},
        {"window": (0, None)},
        {"sinks": [0.3, -1.0, 2.0]},
        {"softcap": 1.5, "window": (3, 2), "sinks": [-math.inf, 0.0, 1.0], "scale": -0.4},
    ],
    ids=str,
)
def test_options_agree_with_the_dense_formula(tq, tk, causal, options):
    q, k, v, mask = problem(tq, tk)
    options = options | ({"sinks": np.array(options["sinks"])} if "sinks" in options else {})
    alignment = "top-left" if causal == "top-left" else "bottom-right"
    golden = golden_attention(q, k, v, mask=mask, causal=causal, alignment=alignment, **options)
    truth = attention_oracle.attention_of(q, k, v, mask=mask, causal=causal, **options)
    # At most 7 terms of size below 10 in float64, against long double.
    np.testing.assert_allclose(golden.output, truth.output.astype(float), rtol=0, atol=1e-13)
    np.testing.assert_allclose(golden.lse, truth.lse.astype(float), rtol=0, atol=1e-13)


def test_keys_at_or_beyond_a_length_are_not_seen():
    q, k, v, _ = problem()
    golden = golden_attention(q, k, v, kv_lengths=np.array([4, 0]))
    output, lse = oracle.attention(q[:1], k[:1, :, :4], v[:1, :, :4])
    np.testing.assert_allclose(golden.output[:1], output, rtol=0, atol=1e-13)
    np.testing.assert_allclose(golden.lse[:1], lse, rtol=0, atol=1e-13)
    assert not golden.output[1].any()
    assert (golden.lse[1] == -math.inf).all()
