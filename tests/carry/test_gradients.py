"""Derivatives through the carry: right where they exist, finite where parts are empty or masked."""

import numpy as np
import pytest

from _carry_oracle import distinct_values
from _namespaces import library
from softcarry.carry import Carry
from softcarry.carry.ragged import merge_ragged

SCORES = np.array(
    [[0.5, -1.0, 2.0, 1.0, 0.25, -0.5], [-np.inf, 0.5, -np.inf, -np.inf, 1.5, 2.0], [-np.inf] * 6, [3.0] * 6]
)
VALUES = distinct_values(6, 2, np.float64)
WEIGHTS = np.array([0.75, -1.25])  # of the output in the loss; lse counts 0.5


def _expected() -> tuple[np.ndarray, np.ndarray]:
    """Return d/ds = p·(w·(v − output) + 1/2), d/dv = p·w of the sum over rows of w·output + lse/2."""
    d_scores, d_values = np.zeros_like(SCORES), np.zeros_like(VALUES)
    for i, s in enumerate(SCORES):
        if np.isfinite(s).any():
            p = np.exp(s - s.max())
            p /= p.sum()
            output = p @ VALUES
            d_scores[i] = p * ((VALUES - output) @ WEIGHTS + 0.5)
            d_values += np.outer(p, WEIGHTS)
    return d_scores, d_values


def _loss(xp, scores, values, weights, *, garbage: Carry, how: str):
    parts = [Carry.of(scores[:, a:b], values[a:b]) for a, b in ((0, 2), (2, 2), (2, 3), (3, 6))]
    if how == "merge":
        c = Carry.merge(garbage, *parts, garbage)
    elif how == "tree":
        c = (garbage | parts[0]) | ((parts[1] | garbage) | (parts[3] | parts[2]))
    else:
        stacked = Carry(*(xp.stack([getattr(p, f) for p in [garbage, *parts]]) for f in ("m", "l", "o")))
        c = merge_ragged(stacked, np.array([0, 1, 5]))
        c = Carry(c.m[1], c.l[1], c.o[1])
    live = c.l > 0
    # lse is −inf in the empty row; a loss has to select it away, and its gradient must then be 0, not NaN.
    lse = xp.where(live, c.lse, xp.zeros_like(c.lse))
    return xp.sum(c.output * weights) + 0.5 * xp.sum(lse)


def _garbage(lib) -> Carry:
    like = np.zeros(4)
    return Carry(
        lib.array(like - np.inf), lib.array(like + np.nan), lib.array(np.array([[np.nan, np.inf]] * 4))
    )


@pytest.mark.parametrize("how", ["merge", "tree", "ragged"])
def test_torch_gradients_match_the_softmax(how):
    lib = library("torch")
    scores, values = lib.array(SCORES).requires_grad_(), lib.array(VALUES).requires_grad_()
    garbage = _garbage(lib)
    garbage.o.requires_grad_()
    _loss(lib.xp, scores, values, lib.array(WEIGHTS), garbage=garbage, how=how).backward()
    d_scores, d_values = _expected()
    # A hundred operations on numbers below 16, in float64.
    assert abs(lib.numpy(scores.grad) - d_scores).max() <= 1600 * 2.0**-53
    assert abs(lib.numpy(values.grad) - d_values).max() <= 1600 * 2.0**-53
    assert not lib.numpy(garbage.o.grad).any()


def test_torch_gradients_stay_finite_behind_masked_nan_values():
    lib = library("torch")
    poisoned = VALUES.copy()
    poisoned[0], poisoned[3] = np.nan, np.inf
    scores, values = lib.array(SCORES[1:2]).requires_grad_(), lib.array(poisoned).requires_grad_()
    c = Carry.of(scores, values)
    lib.xp.sum(c.output * lib.array(WEIGHTS)).backward()
    assert np.isfinite(lib.numpy(scores.grad)).all()
    assert np.isfinite(lib.numpy(values.grad)).all()
    assert lib.numpy(scores.grad)[0, 1] != 0


def test_torch_gradients_of_the_weights_and_the_logprob():
    torch = pytest.importorskip("torch")

    scores = torch.tensor(SCORES, requires_grad=True)

    def run(s):
        c = Carry.of(s)
        picked = torch.where(c.l > 0, c.logprob(s[:, 4]), torch.zeros_like(c.l))
        return torch.sum(c.weights(s) * torch.arange(6.0, dtype=s.dtype)) + torch.sum(picked)

    run(scores).backward()
    assert torch.isfinite(scores.grad).all()
    expected = np.zeros_like(SCORES)
    for i, s in enumerate(SCORES):
        if np.isfinite(s).any():
            p = np.exp(s - s.max())
            p /= p.sum()
            expected[i] = p * (np.arange(6.0) - p @ np.arange(6.0)) + (np.arange(6) == 4) - p
    assert abs(scores.grad.numpy() - expected).max() <= 1600 * 2.0**-53


def test_torch_vmap_sees_no_python_control_flow():
    torch = pytest.importorskip("torch")

    scores, values = torch.tensor(SCORES), torch.tensor(VALUES)
    out = torch.vmap(lambda s: (Carry.of(s[:3], values[:3]) | Carry.of(s[3:], values[3:])).output)(scores)
    assert abs(out - Carry.of(scores, values).output).max() <= 100 * 2.0**-53


@pytest.mark.parametrize("how", ["merge", "ragged"])
def test_jax_traces_and_differentiates(how):
    lib = library("jax")
    import jax

    garbage = _garbage(lib)
    weights = lib.array(WEIGHTS)

    def loss(scores, values):
        return _loss(lib.xp, scores, values, weights, garbage=garbage, how=how)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))(lib.array(SCORES), lib.array(VALUES))
    for got, want in zip(gradient, _expected(), strict=True):
        assert abs(np.asarray(got) - want).max() <= 1600 * 2.0**-24  # float32 on numbers below 16


def test_jax_traced_values_behind_a_mask_are_selected_away():
    lib = library("jax")
    import jax

    poisoned = VALUES.astype(np.float32)
    poisoned[0], poisoned[3] = np.nan, np.inf

    def output(scores, values):
        return (Carry.of(scores[:, :3], values[:3]) | Carry.of(scores[:, 3:], values[3:])).output

    scores, values = lib.array(SCORES[:3].astype(np.float32)), lib.array(poisoned)
    traced = np.asarray(jax.jit(output)(scores, values))
    np.testing.assert_allclose(traced, np.asarray(output(scores, values)), rtol=2.0**-20)
    assert np.isnan(traced[0]).all()
    assert np.isfinite(traced[1:]).all()
    gradient = jax.grad(lambda s: lib.xp.sum(output(s, values)))(scores[1:])
    assert np.isfinite(np.asarray(gradient)).all()


def test_jax_scans_and_vmaps_over_carries():
    lib = library("jax")
    import jax

    scores, values = lib.array(SCORES.astype(np.float32)), lib.array(VALUES.astype(np.float32))

    def row(s):
        def step(state, sv):
            c = Carry(*state).absorb(sv[0][None], sv[1][None])
            return (c.m, c.l, c.o), None

        start = Carry.empty((), value_dim=2, like=s)
        state, _ = jax.lax.scan(step, (start.m, start.l, start.o), (s, values))
        return Carry(*state).output

    out = np.asarray(jax.jit(jax.vmap(row))(scores))
    want = np.asarray(Carry.of(scores, values).output)
    assert abs(out - want).max() <= 400 * 2.0**-24
