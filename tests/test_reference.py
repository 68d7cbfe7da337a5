"""The reference kernel against loops in high precision, in every library, and what it refuses."""

import math

import array_api_strict
import ml_dtypes
import numpy as np
import pytest

import oracle
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.reference import blocked_attention


def problem(tq=5, tk=11, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    arrays = (rng.integers(-16, 17, (2, 3, t, d)) / 8.0 for t, d in ((tq, 4), (tk, 4), (tk, 3)))
    return *(x.astype(dtype) for x in arrays), rng.random((tq, tk)) < 0.5


@pytest.mark.parametrize("key_block", [1, 4, 128])
@pytest.mark.parametrize("causal", [False, True, "top-left"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("tq", "tk"), [(5, 11), (11, 5), (1, 1), (0, 4), (4, 0)])
def test_agrees_with_loops(tq, tk, masked, causal, key_block):
    q, k, v, mask = problem(tq, tk)
    mask = mask if masked else None
    output, lse = blocked_attention(q, k, v, mask=mask, causal=causal, key_block=key_block)
    exact_output, exact_lse = oracle.attention(q, k, v, mask=mask, causal=causal)
    # float64 on both sides, eleven terms of size below 10: errors below 1e-13.
    np.testing.assert_allclose(output, exact_output, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, exact_lse, rtol=0, atol=1e-13)


def test_additive_masks_scale_and_float32():
    q, k, v, mask = problem(dtype=np.float32)
    additive = np.where(mask, np.float32(0), np.float32(-np.inf))
    output, lse = blocked_attention(q, k, v, mask=additive, scale=0.25, key_block=3)
    assert (output.dtype, lse.dtype) == (np.float32, np.float32)
    exact_output, exact_lse = oracle.attention(q, k, v, mask=mask, scale=0.25)
    # Eleven terms of size below 4: 11 · 2^-24 · 4 < 3e-6 for the sum, less for the rest.
    np.testing.assert_allclose(output, exact_output, rtol=0, atol=3e-6)
    np.testing.assert_allclose(lse, exact_lse, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_16_bit_outputs_are_rounded_once(dtype):
    q, k, v, mask = problem(dtype=dtype)
    output, lse = blocked_attention(q, k, v, mask=mask)
    assert output.dtype == dtype
    assert lse.dtype == np.float32
    wide, wide_lse = blocked_attention(*(x.astype(np.float32) for x in (q, k, v)), mask=mask)
    np.testing.assert_array_equal(output, wide.astype(dtype))
    np.testing.assert_array_equal(lse, wide_lse)


def test_empty_rows_are_zero_and_minus_infinity():
    q, k, v, mask = problem()
    mask[2] = False
    output, lse = blocked_attention(q, k, v, mask=mask, key_block=2)
    assert not output[:, :, 2].any()
    assert (lse[:, :, 2] == -math.inf).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_lies_behind_a_boolean_mask_never_shows(poison):
    q, k, v, mask = problem()
    mask[:, 3] = False
    clean = blocked_attention(q, k, v, mask=mask, key_block=2)
    k[:, :, 3], v[:, :, 3] = poison, poison
    for poisoned, expected in zip(blocked_attention(q, k, v, mask=mask, key_block=2), clean, strict=True):
        np.testing.assert_array_equal(poisoned, expected)


def test_a_live_nan_reaches_its_own_rows_only():
    q, k, v, mask = problem()
    mask[:, 3] = [True, False, False, True, False]
    k[:, :, 3, 0] = math.nan
    output, lse = blocked_attention(q, k, v, mask=mask, key_block=2)
    assert np.isnan(output).all(axis=(0, 1, 3)).tolist() == [True, False, False, True, False]
    assert np.isnan(lse).all(axis=(0, 1)).tolist() == [True, False, False, True, False]
    assert np.isfinite(output[:, :, [1, 2, 4]]).all()


def test_query_heads_share_key_heads_in_order():
    q, k, v, _ = problem()
    q = np.concatenate([q, q + 1], axis=1)
    output, lse = blocked_attention(q, k, v)
    for head in range(6):
        alone, alone_lse = blocked_attention(q[:, [head]], k[:, [head // 2]], v[:, [head // 2]])
        np.testing.assert_array_equal(output[:, [head]], alone)
        np.testing.assert_array_equal(lse[:, [head]], alone_lse)


def test_other_libraries_give_the_same():
    import jax.numpy as jnp
    import torch

    q, k, v, mask = problem(dtype=np.float32)
    expected, expected_lse = blocked_attention(q, k, v, mask=mask, causal=True, key_block=4)
    for convert in (torch.from_numpy, jnp.asarray, array_api_strict.asarray):
        arrays = [convert(x) for x in (q, k, v)]
        output, lse = blocked_attention(*arrays, mask=convert(mask), causal=True, key_block=4)
        assert type(output) is type(arrays[0])
        # The same sums in another order: bounded as above.
        np.testing.assert_allclose(np.asarray(output), expected, rtol=0, atol=3e-6)
        np.testing.assert_allclose(np.asarray(lse), expected_lse, rtol=0, atol=3e-6)


def test_torch_can_differentiate_through_it():
    import torch

    q, k, v, mask = problem()
    mask[2] = False
    arrays = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    output, lse = blocked_attention(*arrays, mask=torch.from_numpy(mask), key_block=4)
    (output.sum() + torch.where(torch.isfinite(lse), lse, 0.0).sum()).backward()
    assert all(bool(torch.isfinite(x.grad).all()) for x in arrays)


BAD = {
    "three axes": (lambda q, k, v: ((q[0], k, v), {}), ShapeError, "batch, heads, tokens, dim"),
    "another d": (lambda q, k, v: ((q[..., :2], k, v), {}), ShapeError, "must fit"),
    "fewer values": (lambda q, k, v: ((q, k, v[:, :, :5]), {}), ShapeError, "must fit"),
    "heads": (lambda q, k, v: ((q[:, :2], k, v), {}), ShapeError, "multiple"),
    "no dimension": (lambda q, k, v: ((q[..., :0], k[..., :0], v), {}), ShapeError, "at least 1"),
    "integers": (lambda q, k, v: ((q.astype(int), k, v), {}), DTypeError, "q must be real floating"),
    "mask shape": (
        lambda q, k, v: ((q, k, v), {"mask": np.ones((3, 3), bool)}),
        ShapeError,
        "mask must broadcast",
    ),
    "mask dtype": (
        lambda q, k, v: ((q, k, v), {"mask": np.ones((5, 11), int)}),
        DTypeError,
        "mask must be boolean",
    ),
    "causal": (lambda q, k, v: ((q, k, v), {"causal": "left"}), OptionError, "causal must be"),
    "no array": (lambda q, k, v: ((q, k, None), {}), DTypeError, "v must be an array"),
    "scale of NaN": (lambda q, k, v: ((q, k, v), {"scale": math.nan}), OptionError, "scale must be"),
    "scale in words": (lambda q, k, v: ((q, k, v), {"scale": "1/8"}), OptionError, "scale must be"),
    "key block": (lambda q, k, v: ((q, k, v), {"key_block": 0}), OptionError, "key_block must be"),
}


@pytest.mark.parametrize(("change", "error", "words"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused_in_one_line(change, error, words):
    arrays, options = change(*problem()[:3])
    with pytest.raises(error, match=words) as caught:
        blocked_attention(*arrays, **options)
    assert "\n" not in str(caught.value)
