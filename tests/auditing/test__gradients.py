"""Gradients go through a kernel in its own arrays and layout, and come back as float64 (b, h, t, d)."""

import numpy as np
import pytest

from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing._gradients import NoGradientError, pull_back
from softcarry.auditing.subject import Subject
from torch_mutants import eager, online

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
Q, K, V = (RNG.integers(-8, 9, (1, 2, t, 4)) / 8.0 for t in (3, 5, 5))
SEED = RNG.integers(-8, 9, Q.shape) / 8.0


def calling_of(kernel, dtype="float64", **declared):
    declared = {"arrays": "torch"} | declared
    return prepare(Subject(kernel, **declared), dtype)


def test_tokens_first_give_the_same_gradients():
    def tokens_first(q, k, v):
        return online(q.mT.mT.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    first = pull_back(calling_of(online), Q, K, V, cotangent=SEED)
    second = pull_back(calling_of(tokens_first, layout="bthd"), Q, K, V, cotangent=SEED)
    for one, other in zip(first, second, strict=True):
        assert one.dtype == np.float64
        assert one.any()
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-14)
    assert [x.shape for x in first] == [Q.shape, K.shape, V.shape]


def test_jax_and_torch_agree():
    jax = pytest.importorskip("jax")

    def kernel(q, k, v):
        weights = jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5, axis=-1)
        return weights @ v

    by_jax = pull_back(calling_of(kernel, "float32", arrays="jax"), Q, K, V, cotangent=SEED)
    by_torch = pull_back(calling_of(online, "float32"), Q, K, V, cotangent=SEED)
    for one, other in zip(by_jax, by_torch, strict=True):
        # Sums of a few dozen float32 numbers of size 1.
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-5)


def test_an_input_that_is_not_used_has_gradient_zero():
    found = pull_back(calling_of(lambda q, k, v: q * 2.0), Q, Q, Q, cotangent=SEED)
    np.testing.assert_array_equal(found.q, 2.0 * SEED)
    assert not found.k.any()
    assert not found.v.any()


def test_the_second_differentiation_is_that_of_the_first():
    found = pull_back(calling_of(lambda q, k, v: q**3), Q, Q, Q, cotangent=SEED, second=True)
    np.testing.assert_allclose(found.q, 6.0 * Q * SEED, rtol=1e-14)


def test_the_lse_counts_in_natural_units():
    def base_2(q, k, v):
        output, lse = eager(q, k, v)
        return output, lse / np.log(2.0)

    natural = pull_back(calling_of(eager, lse="e"), Q, K, V, cotangent=SEED[..., 0], of="lse")
    other = pull_back(calling_of(base_2, lse="2"), Q, K, V, cotangent=SEED[..., 0], of="lse")
    for one, two in zip(natural, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=1e-14)


def test_what_has_no_gradient_says_so():
    with pytest.raises(NoGradientError, match="returns arrays without gradients"):
        pull_back(calling_of(lambda q, k, v: online(q, k, v).detach()), Q, K, V, cotangent=SEED)
    with pytest.raises(NoGradientError, match="of NumPy have none"):
        pull_back(calling_of(lambda q, k, v: q, arrays="numpy"), Q, K, V, cotangent=SEED)
    with pytest.raises(NoGradientError, match="gradients are arrays without gradients"):
        pull_back(calling_of(lambda q, k, v: q * 2.0), Q, Q, Q, cotangent=SEED, second=True)


def test_a_backward_pass_that_raises_is_the_kernels_error():
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q):
            return q * 1.0

        @staticmethod
        def backward(ctx, grad):
            msg = "no derivative here"
            raise NotImplementedError(msg)

    with pytest.raises(KernelRaisedError, match="NotImplementedError: no derivative here"):
        pull_back(calling_of(lambda q, k, v: Refusing.apply(q)), Q, Q, Q, cotangent=SEED)
