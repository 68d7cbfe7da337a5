"""The exact gradients of attention, in float64 by formula, and how far a sound kernel may be from them.

With P the weights, dO the cotangent of the output and dP = dO·Vᵀ,

    dV = Pᵀ·dO,   dS = P ∘ (dP − D),   D = rowsum(dO ∘ O),   dQ = scale · dS·K,   dK = scale · dSᵀ·Q

(Dao, Fu, Ermon, Rudra and Ré, FlashAttention, NeurIPS 2022, appendix B.2). Rows of dS sum to 0. The gradient
of the lse with respect to the scores is P, so that a cotangent c of the lse gives dS = c ∘ P and dV = 0.
"""

import math
from dataclasses import dataclass

import numpy as np

from softcarry.auditing._gradients import Gradients
from softcarry.auditing.golden import Golden


@dataclass(frozen=True)
class Backward:
    """The exact backward pass of one call: its parts, from which gradients and wrong gradients are made.

    Attributes
    ----------
    golden : Golden
        The forward pass, with as many heads as q has.
    q, k, v : ndarray
        float64 (b, h, t, d), k and v with as many heads as q has.
    cotangent : ndarray
        (b, h, tq, dv), or (b, h, tq) for the lse.
    scale : float
    groups : int
        How many query heads share a head of k and v.
    of : {"output", "lse"}
    """

    golden: Golden
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cotangent: np.ndarray
    scale: float
    groups: int = 1
    of: str = "output"

    @property
    def weight_gradients(self):
        """DP, (b, h, tq, tk)."""
        return np.matmul(self.cotangent, np.swapaxes(self.v, -1, -2))

    @property
    def row_sums(self):
        """D, (b, h, tq, 1)."""
        return (self.cotangent * self.golden.output).sum(axis=-1, keepdims=True)

    @property
    def score_gradients(self):
        """DS, (b, h, tq, tk)."""
        if self.of == "lse":
            return self.golden.weights * self.cotangent[..., None]
        return self.golden.weights * (self.weight_gradients - self.row_sums)

    def gradients(self, *, weights=None, score_gradients=None) -> Gradients:
        """Return the gradients, exact or with other weights or another dS put in.

        Parameters
        ----------
        weights : ndarray, optional
            (b, h, tq, tk) in place of P in dV.
        score_gradients : ndarray, optional
            (b, h, tq, tk) in place of dS.

        Returns
        -------
        Gradients
            Those of k and v are summed over the query heads that share them.
        """
        weights = self.golden.weights if weights is None else weights
        ds = self.score_gradients if score_gradients is None else score_gradients
        dk = self.scale * np.matmul(np.swapaxes(ds, -1, -2), self.q)
        if self.of == "lse":
            dv = np.zeros_like(self.v)
        else:
            dv = np.matmul(np.swapaxes(weights, -1, -2), self.cotangent)
        return Gradients(self.scale * np.matmul(ds, self.k), self.shared(dk), self.shared(dv))

    def shared(self, x):
        """Sum (b, h, tk, d) over the query heads that share a head of k and v."""
        b, h, t, d = x.shape
        return x.reshape(b, h // self.groups, self.groups, t, d).sum(axis=2)


def backward(examination, q, k, v, cotangent, *, of="output", scale=None, **options) -> Backward:
    """Make the exact backward pass of a call.

    Parameters
    ----------
    examination : Examination
        For the alignment of its causal mask.
    q, k, v : ndarray
        float64 (b, h, tq, d), (b, h or a divisor, tk, d), (b, h or a divisor, tk, dv).
    cotangent : ndarray
        (b, h, tq, dv), or (b, h, tq) if ``of`` is "lse".
    of : {"output", "lse"}
    scale : float, optional
        Default 1/√d.
    **options
        mask and causal, as of a call.

    Returns
    -------
    Backward

    Examples
    --------
    With two equal keys the weights are 1/2 each, whatever the query.

    >>> from softcarry.auditing import Examination, Subject
    >>> def mean_of_values(q, k, v):
    ...     return np.broadcast_to(v.mean(axis=2, keepdims=True), q.shape[:3] + v.shape[-1:])
    >>> examination = Examination(Subject(mean_of_values, arrays="numpy"), "float32", check="GRAD")
    >>> q, k, v = np.ones((1, 1, 1, 1)), np.ones((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])
    >>> exact = backward(examination, q, k, v, np.ones((1, 1, 1, 1))).gradients()
    >>> exact.q.item(), exact.k.ravel().tolist(), exact.v.ravel().tolist()
    (0.0, [-0.5, 0.5], [0.5, 0.5])
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, axis=1) for x in (k, v))
    golden = examination.golden(q, k, v, scale=scale, **options)
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return Backward(golden, q, k, v, cotangent, factor, groups, of)


def gradient_bounds(examination, exact: Backward, **options) -> Gradients:
    r"""Bound the error of the three gradients a priori, element by element, to first order.

    Parameters
    ----------
    examination : Examination
        Whose ``model``, dtype and output format the bound is for.
    exact : Backward
    **options
        scale, mask and causal of the call.

    Returns
    -------
    Gradients
        Bounds on \|dQ̂ − dQ\|, \|dK̂ − dK\| and \|dV̂ − dV\|.

    Notes
    -----
    E_P, the error of a weight, is the master bound of an output with V = identity, which allows for a P that
    is rounded, plus P·E_lse for kernels that compute P again from the lse. u is the roundoff of the dtype, in
    which dP, dS, the scaled q and k and the gradients may be rounded, γ_n that of the carry's formats. Then

        |dV̂ − dV| ≤ Σ_i E_P·|dO| + γ_tq·Σ_i P·|dO| + 2u·Σ_i P·|dO|
        E_dP = (γ_dv + u)·|dO|·|V|ᵀ
        E_D  = the larger of (γ_dv + u_out)·Σ|dO||O| + Σ|dO|·E_O and Σ_j E_P·|dP| + P·E_dP + γ_n·P·|dP|
        E_dS = E_P·|dP − D| + (P + E_P)·(E_dP + E_D) + 2u·|dS|
        |dQ̂ − dQ| ≤ scale·(Σ_j E_dS·|K| + (γ_n + 4u)·Σ_j |dS|·|K|)

    and dK like dQ with γ_tq and |Q|: D is read off the output, which is rounded, by fused kernels, and is
    Σ P·dP elsewhere. Gradients of k and v that are shared by g query heads are rounded up to g times more.
    A number too small for its format errs by up to that format's smallest number. In float64 the golden
    gradients err as much as the kernel's, hence twice the bound.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, sections 3.1 and 3.5 (inner
    products and matrix products); ``softcarry.numerics.attention_error_bound`` for E_P, E_O and E_lse.
    """
    from softcarry.numerics import gamma, get_format

    golden, k, v = exact.golden, exact.k, exact.v
    tq, tk = golden.weights.shape[-2:]
    weights = golden.weights
    model = examination.model
    u = max(examination.format.unit_roundoff, examination.output_format.unit_roundoff)
    tiny = max(examination.format.smallest_subnormal, examination.output_format.smallest_subnormal)
    u_sum = max(get_format(model.o_format).unit_roundoff, get_format(model.l_format).unit_roundoff)
    identity = np.broadcast_to(np.eye(tk), (*k.shape[:2], tk, tk))
    of_weights = examination.bound(exact.q, k, identity, **options)
    # A weight is at most 1, whatever the bound says where scores are large.
    w_error = np.minimum(
        of_weights.output + weights * np.expm1(np.minimum(of_weights.lse, 1.0))[..., None], 1.0
    )
    w_error = np.where(np.isneginf(golden.scores), 0.0, w_error)
    size = np.abs(exact.cotangent)
    if exact.of == "lse":
        ds = np.abs(exact.score_gradients)
        ds_error = w_error * size[..., None] + 2.0 * u * ds
        dv_bound = np.zeros_like(v)
    else:
        reach = np.matmul(size, np.swapaxes(np.abs(v), -1, -2))
        dp, row_sums = exact.weight_gradients, exact.row_sums
        dp_error = (gamma(v.shape[-1], u_sum) + u) * reach + tiny
        o_error = examination.bound(exact.q, k, v, **options).output
        o_size = (size * np.abs(golden.output)).sum(axis=-1, keepdims=True)
        fused = (gamma(v.shape[-1], u_sum) + u) * o_size + (size * o_error).sum(axis=-1, keepdims=True)
        plain = w_error * np.abs(dp) + weights * (dp_error + gamma(tk, u_sum) * np.abs(dp))
        d_error = np.maximum(fused, plain.sum(axis=-1, keepdims=True))
        ds = np.abs(exact.score_gradients)
        ds_error = w_error * np.abs(dp - row_sums) + (weights + w_error) * (dp_error + d_error)
        ds_error += 2.0 * u * ds + np.where(np.isneginf(golden.scores), 0.0, tiny)
        by_key = np.swapaxes(weights, -1, -2)
        dv_bound = np.matmul(np.swapaxes(w_error, -1, -2), size)
        dv_bound += (gamma(tq, u_sum) + 2.0 * u * exact.groups) * np.matmul(by_key, size) + tiny
    scale, more = abs(exact.scale), 4.0 * u
    dq_bound = scale * np.matmul(ds_error + (gamma(tk, u_sum) + more) * ds, np.abs(k))
    of_keys = ds_error + (gamma(tq, u_sum) + more * exact.groups) * ds
    dk_bound = scale * np.matmul(np.swapaxes(of_keys, -1, -2), np.abs(exact.q))
    empty = np.isneginf(golden.lse)[..., None]
    both = 2.0 if examination.dtype == "float64" else 1.0
    return Gradients(
        both * np.where(empty, 0.0, dq_bound + tiny),
        both * exact.shared(dk_bound + tiny),
        both * exact.shared(dv_bound),
    )
