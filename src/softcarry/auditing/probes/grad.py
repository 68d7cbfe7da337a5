"""GRAD: are the gradients of q, k and v those of attention?

Question
    Does a kernel that can be differentiated return the gradients of what it computes, also in rows without
    keys, in tails, behind masks and where nearly all weight lies on one key?
Input
    Random q, k and v with a random cotangent of the output: 49 tokens of depth 32; 67 × 613 tokens; one
    query; all keys equal, where dQ = 0 because rows of dS sum to 0; rows that are nearly one-hot; scores up
    to ±2^13; heads of k and v that are shared; boolean and additive masks with rows that are empty; causal
    masks, alone and beside another; another scale; a cotangent of the lse; and a second differentiation.
Conclusion
    Beyond the bound, or not finite: an error, with the step of the backward pass that is wrong where one
    explains what came. Over twice the error of a plain backward pass in the same dtype, within the bound: a
    warning. Empty rows have gradient 0. Kernels whose results carry no gradient are skipped.
Tolerance
    ``golden_gradients.gradient_bounds``, componentwise, which is the master bound for dV; ratio 2 for the
    warning. The plain backward pass rounds P, dP, dS and the results to the dtype and sums in float32.
Source
    Dao et al., FlashAttention, NeurIPS 2022, appendix B.2 (the formulas), and its test suite (the ratio);
    Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1 and 3.5.
Public faults of this kind
    pytorch#133671 (CPU flash backward at 49 tokens of depth 32), pytorch#153799 (NaN in the backward pass of
    lengths that are no multiple of 128), triton#4541 (a backward pass that ignores causal=False),
    FlashAttention's and PyTorch's reports of NaN gradients from rows without keys.
"""

import numpy as np

from softcarry.auditing._gradients import Gradients, NoGradientError
from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.golden_gradients import backward, gradient_bounds
from softcarry.auditing.probes import _grad_faults as faults
from softcarry.auditing.probes._grad_cases import cases, small_case
from softcarry.auditing.tolerance import compare


def probe(examination) -> None:
    """Compare gradients with the exact ones, case by case.

    Parameters
    ----------
    examination : Examination
        Facts ``gradients``, ``gradient_ratio`` and ``double backward``, and a finding for each kind of fault.
    """
    deviations: dict[str, list] = {}
    right = []
    for case in cases(examination):
        if case.k.shape[1] != case.q.shape[1] and not _shares_heads_in_order(examination, case):
            continue
        try:
            found = examination.gradients(
                case.q, case.k, case.v, cotangent=case.cotangent, of=case.of, **case.options
            )
        except NoGradientError as error:
            if case.of == "lse":
                examination.skip("gradients of the lse", str(error))
                continue
            examination.skip("gradients", str(error))
            return
        except CaseRefused:
            continue
        exact = backward(examination, case.q, case.k, case.v, case.cotangent, of=case.of, **case.options)
        deviation = faults.judge(case, exact, found, gradient_bounds(examination, exact, **case.options))
        if deviation is not None:
            deviations.setdefault(_kind(case, deviation, right), []).append((case, deviation))
            continue
        if not right and not deviations:
            _compare_with_plain(examination, exact, found)
        right.append(case.name)
    if examination.calls:
        examination.fact("gradients", right, 1.0, "calls whose gradients lie within the bound")
    for kind, found in _merged(deviations).items():
        _report(examination, kind, found)
    if right:
        _differentiate_twice(examination, emptied="rows without keys" in right)


def _kind(case, deviation, right):
    if case.name == "rows without keys" and "boolean mask" in right:
        return {faults.NOT_FINITE: faults.EMPTY, faults.UNKNOWN: faults.LEAK}.get(
            deviation.kind, deviation.kind
        )
    return deviation.kind


def _merged(deviations):
    """Put what no fault explains with a fault that was seen in the same gradients, if there is one."""
    unknown = deviations.get(faults.UNKNOWN, [])
    named = [kind for kind in deviations if kind != faults.UNKNOWN]
    for case, deviation in list(unknown):
        for kind in named:
            if set(deviation.excess) <= set(deviations[kind][0][1].excess):
                deviations[kind].append((case, deviation))
                unknown.remove((case, deviation))
                break
    return {kind: found for kind, found in deviations.items() if found}


def _shares_heads_in_order(examination, case):
    """Whether the kernel takes fewer heads of k and v, and query head h uses head h // group of them."""
    try:
        output = examination.call(case.q, case.k, case.v).output
    except CaseRefused:
        return False
    groups = case.q.shape[1] // case.k.shape[1]
    k, v = (np.repeat(x, groups, axis=1) for x in (case.k, case.v))
    if compare(examination, case.q, k, v, output).exceeded.any():
        examination.skip(f"gradients with {case.name}", "the output is not that of shared heads: see HEADMAP")
        return False
    return True


def _report(examination, kind, found):
    case, deviation = found[0]
    worst = max(deviation.excess.values())
    amount = "" if np.isinf(worst) else f", {worst:.2g} times the bound"
    names = ", ".join(case.name for case, _ in found[:4]) + (", …" if len(found) > 4 else "")
    examination.fail(
        f"{kind}: {' and '.join(deviation.excess)} wrong{amount} ({names})",
        evidence={
            "call": case.call,
            "element": deviation.example,
            "error over bound": deviation.excess,
            "cases": [case.name for case, _ in found],
        },
        remedy=faults.remedy(kind),
    )


def _compare_with_plain(examination, exact, found):
    """Take the ratio to the error of a plain backward pass in the same dtype."""
    # The golden gradients of float64 err as the kernel's do: there is nothing to take a ratio to.
    if examination.dtype == "float64":
        return
    plain = plain_gradients(exact, examination.output_format.round)
    ratios = {}
    for name, got, other, good in zip(("dQ", "dK", "dV"), found, plain, exact.gradients(), strict=True):
        own, reference = np.abs(got - good), np.abs(other - good)
        # The largest of many errors scatters: both it and the root mean square must be larger.
        ratios[name] = float(min(own.max() / reference.max(), _rms(own) / _rms(reference)))
    examination.fact(
        "gradient_ratio",
        ratios,
        1.0,
        "error over that of a plain backward pass in the same dtype: the smaller of largest and rms ratio",
    )
    worst = max(ratios, key=ratios.__getitem__)
    if ratios[worst] > 2.0:
        examination.warn(
            f"the error of {worst} is {ratios[worst]:.2g} times that of a plain backward pass in the dtype",
            evidence={"ratios": ratios, "queries and keys": list(exact.golden.weights.shape[-2:])},
            remedy="look for a rounding that the plain formula lacks: of D, or of dQ between key blocks",
        )


def plain_gradients(exact, rounding) -> Gradients:
    """Run the backward pass in one dtype: P, O, dP, dS and results are rounded to it, sums are float32.

    The sums go term by term, so that the result does not depend on a matrix library.

    Parameters
    ----------
    exact : Backward
        Whose inputs and cotangent are taken.
    rounding : callable
        Rounds to the dtype.

    Returns
    -------
    Gradients
    """
    narrow = np.float32
    q, k, v, cotangent = (x.astype(narrow) for x in (exact.q, exact.k, exact.v, exact.cotangent))
    scale = narrow(exact.scale)

    def rounded(x):
        return rounding(x).astype(narrow)

    def turned(x):
        return np.swapaxes(x, -1, -2)

    scores = scale * _product(q, turned(k))
    masked = np.isneginf(exact.golden.scores)
    scores = np.where(masked, narrow(-np.inf), scores)
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = rounded(terms / np.add.accumulate(terms, axis=-1)[..., -1:])
    output = rounded(_product(weights, v))
    row_sums = np.add.accumulate(cotangent * output, axis=-1)[..., -1:]
    ds = rounded(weights * (rounded(_product(cotangent, turned(v))) - row_sums))
    dq, dk = scale * _product(ds, k), scale * _product(turned(ds), q)
    return Gradients(
        *(rounding(x) for x in (dq, exact.shared(dk), exact.shared(_product(turned(weights), cotangent))))
    )


def _product(a, b):
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for i in range(a.shape[-1]):
        total += a[..., i, None] * b[..., None, i, :]
    return total


def _rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def _differentiate_twice(examination, *, emptied):
    """Differentiate the gradients once more: formulas of the same finite numbers, so finite."""
    case = small_case(examination, emptied=emptied)
    try:
        found = examination.gradients(
            case.q, case.k, case.v, cotangent=case.cotangent, second=True, **case.options
        )
    except NoGradientError as error:
        examination.skip("double backward", str(error))
        examination.fact("double backward", "refused", 1.0, str(error))
        return
    except CaseRefused as error:
        examination.fact("double backward", "refused", 1.0, str(error))
        return
    finite = all(np.isfinite(x).all() for x in found)
    examination.fact("double backward", "finite" if finite else "not finite", 1.0, case.call)
    if not finite:
        where = [name for name, x in zip("qkv", found, strict=True) if not np.isfinite(x).all()]
        examination.fail(
            f"a double backward pass is not finite where the exact one is ({case.name})",
            evidence={"call": case.call, "with respect to": where},
            remedy="select empty rows away before the exponential and the division, not after them",
        )
