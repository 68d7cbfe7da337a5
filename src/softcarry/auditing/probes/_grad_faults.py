"""What is wrong with gradients: the exact ones with one step done otherwise, beside the kernel's."""

import math
from typing import NamedTuple

import numpy as np

from softcarry.auditing._gradients import Gradients
from softcarry.auditing.golden_gradients import Backward

NOT_FINITE = "gradients are not finite where the exact ones are"
EMPTY = "rows without keys make gradients that are not finite"
LEAK = "rows without keys give gradients that are not 0"
UNKNOWN = "gradients are beyond the bound"

REMEDIES = {
    NOT_FINITE: "subtract the row's maximum, or its lse, before the exponential of the backward pass, too",
    EMPTY: "select the weights of the backward pass where there are keys: exp(−inf − (−inf)) is NaN",
    LEAK: "set P to 0 in rows without keys, in the backward pass, too",
    UNKNOWN: "compare dS = P ∘ (dP − rowsum(dO ∘ O)) of one row with the formula in float64",
    "the backward pass forgets the row sums D": "dS is P ∘ (dP − D) with D = rowsum(dO ∘ O)",
    "the backward pass ignores the mask": "mask the scores that the backward pass computes again",
    "the backward pass ignores the causal mask": "mask the scores that the backward pass computes again",
    "dS is transposed": "dQ is scale · dS·K, and dK is scale · dSᵀ·Q",
}


class Deviation(NamedTuple):
    """Gradients of one case that are wrong: the kind of fault, and which of dQ, dK and dV by how much."""

    kind: str
    excess: dict[str, float]
    example: str


def judge(case, exact: Backward, found: Gradients, bounds: Gradients) -> Deviation | None:
    """Compare the gradients of one case with the exact ones, and name what is wrong.

    Parameters
    ----------
    case : GradientCase
    exact : Backward
    found, bounds : Gradients
        The kernel's, and the bounds on their error.

    Returns
    -------
    Deviation or None
        None within the bounds. "excess" holds, for what is beyond them, the largest error over its bound.
    """
    right = exact.gradients()
    excess, example = {}, ""
    for name, got, wanted, bound in zip(("dQ", "dK", "dV"), found, right, bounds, strict=True):
        error = np.where(np.isfinite(got), np.abs(got - wanted), np.inf)
        ratio = np.divide(error, bound, out=np.where(error > 0.0, np.inf, 0.0), where=bound > 0.0)
        if (ratio > 1.0).any():
            at = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
            excess[name] = float(ratio[at])
            example = (
                example or f"{name}{list(at)} is {got[at]:.6g}, exact {wanted[at]:.6g} ± {bound[at]:.2g}"
            )
    if not excess:
        return None
    if not all(np.isfinite(x).all() for x in found):
        return Deviation(NOT_FINITE, excess, example)
    for kind, wrong in _hypotheses(case, exact, right, found):
        if _explains(wrong, right, found, bounds):
            return Deviation(kind, excess, example)
    if np.isneginf(exact.golden.lse).any() and "dQ" in excess:
        empty = np.isneginf(exact.golden.lse)
        if found.q[empty].any():
            return Deviation(LEAK, excess, example)
    return Deviation(UNKNOWN, excess, example)


def _explains(wrong, right, found, bounds):
    """Whether wrong gradients are what was found, up to errors that are small beside the fault and the bound.

    Bounds are worst cases: what rounding does is less than a tenth of them.
    """
    norm = np.linalg.norm
    explained = False
    for got, bad, good, bound in zip(found, wrong, right, bounds, strict=True):
        left = norm(got - bad)
        if left > 0.1 * norm(bad - good) + 0.1 * norm(bound):
            return False
        explained = explained or left < 0.2 * norm(got - good)
    return explained


def _hypotheses(case, exact, right, found):
    """Yield kinds of fault with the gradients that each would give."""
    weights, of = exact.golden.weights, exact.of
    if of == "output":
        forgotten = exact.gradients(score_gradients=weights * exact.weight_gradients)
        yield "the backward pass forgets the row sums D", forgotten
    for option, name in (("mask", "mask"), ("causal", "causal mask")):
        if option in case.options and of == "output":
            yield f"the backward pass ignores the {name}", _unmasked(case, exact, option)
    if exact.q.shape == exact.k.shape:
        turned = np.swapaxes(exact.score_gradients, -1, -2)
        yield "dS is transposed", exact.gradients(score_gradients=turned)
        rest = exact.gradients(score_gradients=turned)
        yield "dS is transposed", Gradients(rest.q, right.k, right.v)
        yield "dS is transposed", Gradients(right.q, rest.k, right.v)
    yield from _lost_keys(right, found)
    yield from _factors(exact, right, found)


def _unmasked(case, exact, option):
    """Return the gradients with weights computed again from the lse without one of the masks."""
    from softcarry.auditing.golden import causal_mask

    golden = exact.golden
    scores = exact.scale * np.matmul(exact.q, np.swapaxes(exact.k, -1, -2))
    if option == "causal" and "mask" in case.options:
        mask = np.asarray(case.options["mask"])
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if option == "mask" and "causal" in case.options:
        scores = np.where(causal_mask(*scores.shape[-2:]), scores, -np.inf)
    lse = np.where(np.isneginf(golden.lse), np.inf, golden.lse)[..., None]
    with np.errstate(over="ignore"):
        weights = np.exp(np.minimum(scores - lse, 700.0))
    ds = weights * (exact.weight_gradients - exact.row_sums)
    return exact.gradients(weights=weights, score_gradients=ds)


def _lost_keys(right, found):
    """Yield the exact gradients without those of the last keys, as many as are 0 in what was found."""
    for names in (("dK",), ("dV",), ("dK", "dV")):
        lost = []
        for name in names:
            got = found.k if name == "dK" else found.v
            held = np.flatnonzero(got.any(axis=(0, 1, 3)))
            lost.append(got.shape[2] - 1 - int(held[-1]) if held.size else got.shape[2])
        count = min(lost)
        if not 0 < count < right.k.shape[2]:
            continue
        kept = np.arange(right.k.shape[2])[:, None] < right.k.shape[2] - count
        dk = right.k * kept if "dK" in names else right.k
        dv = right.v * kept if "dV" in names else right.v
        yield f"{' and '.join(names)} of the last keys are 0", Gradients(right.q, dk, dv)


def _factors(exact, right, found):
    """Yield the exact gradients times the factors that fit what was found best."""
    factors = []
    for got, good in zip(found, right, strict=True):
        size = float((good * good).sum())
        factor = float((got * good).sum()) / size if size > 0.0 else 1.0
        factors.append(1.0 if abs(factor - 1.0) < 0.01 else factor)
    named = [
        f"{name} is {_factor(factor, exact.scale)}"
        for name, factor in zip(("dQ", "dK", "dV"), factors, strict=True)
        if factor != 1.0
    ]
    if named:
        wrong = Gradients(*(factor * good for factor, good in zip(factors, right, strict=True)))
        yield ", ".join(named), wrong


def _factor(factor, scale):
    known = {
        "without the scale": 1.0 / scale,
        "scaled twice": scale,
        "1/ln 2 times too large, as if the exponentials were base 2": 1.0 / math.log(2.0),
        "ln 2 times too small, as if the exponentials were base 2": math.log(2.0),
    }
    for text, value in known.items():
        if math.isclose(factor, value, rel_tol=0.01):
            return text
    return "0" if abs(factor) < 0.01 else f"{factor:.3g} times the exact one"


def remedy(kind):
    """Say what to change, for a kind of fault."""
    if kind in REMEDIES:
        return REMEDIES[kind]
    if " of the last " in kind:
        return "write the gradients of all keys, those of a last key block that is not full, too"
    return "differentiate s = scale · q·k: dQ and dK each carry the scale once"
