"""The golden gradients are those of a complex step through a formula of their own."""

import numpy as np
import pytest

from softcarry.auditing.examination import Examination
from softcarry.auditing.golden import causal_mask
from softcarry.auditing.golden_gradients import backward, gradient_bounds
from softcarry.auditing.subject import Subject

STEP = 1e-30


def any_kernel(q, k, v, *, mask=None, causal=False, scale=None):
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


@pytest.fixture(scope="module")
def examination():
    subject = Subject(any_kernel, arrays="numpy", causal="bottom-right")
    return Examination(subject, "float64", check="GRAD")


def complex_attention(q, k, v, rule, scale):
    """Output and lse of complex numbers, row by row; analytic, unlike a maximum."""
    b, h, tq, _ = q.shape
    group = h // k.shape[1]
    output, lse = np.zeros((b, h, tq, v.shape[3]), complex), np.zeros((b, h, tq), complex)
    for at in np.ndindex(b, h, tq):
        kv = (at[0], at[1] // group)
        seen = np.flatnonzero(rule[at[2]])
        if not seen.size:
            continue
        terms = np.exp(scale * (k[kv][seen] @ q[at]))
        output[at] = terms @ v[kv][seen] / terms.sum()
        lse[at] = np.log(terms.sum())
    return output, lse


def complex_step(inputs, which, cotangent, of, rule, scale):
    gradient = np.zeros(inputs[which].shape)
    for at in np.ndindex(gradient.shape):
        moved = [x.astype(complex) for x in inputs]
        moved[which][at] += 1j * STEP
        output, lse = complex_attention(*moved, rule, scale)
        gradient[at] = ((output if of == "output" else lse) * cotangent).sum().imag / STEP
    return gradient


@pytest.mark.parametrize("of", ["output", "lse"])
@pytest.mark.parametrize("name", ["plain", "scale", "mask", "causal", "shared heads"])
def test_gradients_are_those_of_a_complex_step(examination, name, of):
    rng = np.random.default_rng(3)
    kv_heads = 1 if name == "shared heads" else 2
    q, k, v = (rng.standard_normal((1, h, t, 3)) for h, t in ((2, 4), (kv_heads, 6), (kv_heads, 6)))
    rule, options = np.ones((4, 6), bool), {}
    if name == "mask":
        rule = rng.random((4, 6)) < 0.6
        rule[2] = False
        options["mask"] = rule
    if name == "causal":
        rule, options = causal_mask(4, 6), {"causal": True}
    if name == "scale":
        options["scale"] = 0.7
    scale = options.get("scale", 1.0 / np.sqrt(3.0))
    cotangent = rng.standard_normal((1, 2, 4, 3) if of == "output" else (1, 2, 4))
    exact = backward(examination, q, k, v, cotangent, of=of, **options).gradients()
    for which, found in enumerate(exact):
        wanted = complex_step((q, k, v), which, cotangent, of, rule, scale)
        # A few dozen operations on numbers of size 1, each with an error of 1e-16.
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-13)
    if name == "mask":
        assert not exact.q[:, :, 2].any()


def test_rows_of_ds_sum_to_zero(examination):
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, 1, 5, 4)) for _ in range(3))
    ds = backward(examination, q, k, v, rng.standard_normal((1, 1, 5, 4))).score_gradients
    assert np.abs(ds.sum(axis=-1)).max() < 1e-14


def test_without_keys_every_gradient_is_zero(examination):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, 2, 4)) for _ in range(3))
    exact = backward(examination, q, k, v, np.ones((1, 1, 2, 4)), mask=np.zeros((2, 2), bool))
    assert not any(x.any() for x in exact.gradients())
    assert not gradient_bounds(examination, exact, mask=np.zeros((2, 2), bool)).q.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bounds_hold_for_rounded_weights_and_are_of_their_size(dtype):
    """P, dP, dS and the results rounded to the dtype: within the bound, and not far within."""
    from softcarry.auditing.probes.grad import plain_gradients

    subject = Subject(any_kernel, arrays="numpy", causal="bottom-right")
    narrow = Examination(subject, dtype, check="GRAD")
    rng = np.random.default_rng(6)
    q, k, v, cotangent = (narrow.round(rng.standard_normal((1, 2, 40, 16))) for _ in range(4))
    exact = backward(narrow, q, k, v, cotangent)
    plain = plain_gradients(exact, narrow.output_format.round)
    for found, right, bound in zip(plain, exact.gradients(), gradient_bounds(narrow, exact), strict=True):
        ratio = np.abs(found - right) / bound
        # 20 units in the last place for an exponential, and worst cases: hundreds of times what happens.
        assert 1e-3 < ratio.max() < 1.0
