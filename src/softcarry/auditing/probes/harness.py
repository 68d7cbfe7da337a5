"""HARNESS: can the audit be trusted with this kernel, on this machine?

Question
    Would the comparison that the other checks make tell this kernel's output from one that is wrong on
    purpose? And is the arithmetic that the audit itself relies on right here?
Input
    16 × 640 exact scores; in every row one key, in half of them the last one, holds half of the weight. The
    outputs of the kernel are then spoilt: zeros, NaN, the mean of V, two rows swapped, 8-bit numbers (E5M2),
    an lse in base 2; and outputs of the kernel for another question are put in their place: without the last
    key, with V shifted by a key, with a scale that is 5 % too large, without the mask.
Conclusion
    A spoilt output that is within the bound of the right one: the audit is blind here, which is an error, or
    a warning where a carry was declared whose bound is that wide. So is a bound that is more than a tenth of
    the largest output. A kernel that repeats what it said to another question is found in the same way. The
    rounding to 16-bit formats, the arithmetic of the process after the kernel's call, and the golden answer
    against sums in another order must be right: errors.
Tolerance
    That of the other checks (``tolerance.compare``, ``Examination.bound``); the rounding must be equal bit
    for bit, and the golden answer within the bound of float64.
Source
    The blind spots of published tests of attention kernels; IEEE Std 754-2019, sections 4.3 and 7.5.
Public faults of this kind
    KernelBench#165 (an absolute tolerance that all zeros pass), cubecl#1070 (elements skipped where the
    reference is NaN), QPyTorch#23 and #24 (a simulated rounding to nearest that rounds halves away and drops
    subnormal numbers), ml_dtypes-like double rounding; libraries that flush subnormals for the process.
"""

import math
from dataclasses import replace

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.score_control import score_control
from softcarry.auditing.self_test import arithmetic_faults, golden_faults, rounding_faults
from softcarry.auditing.tolerance import compare

ROWS, KEYS, DEPTH = 16, 640, 64


def probe(examination) -> None:
    """Spoil outputs of the kernel, and see whether they are told from the right ones.

    Parameters
    ----------
    examination : Examination
        A fact ``told apart`` and at most one finding of blindness; one for each fault of the machine.
    """
    q, k, v = problem(examination)
    try:
        outcome = examination.call(q, k, v)
    except CaseRefused:
        outcome = None
    if outcome is not None:
        _report_blindness(examination, q, k, v, outcome)
    _report_machine(examination)


def problem(examination):
    """Draw exact scores and values with which every corruption is far from the right answer.

    Parameters
    ----------
    examination : Examination

    Returns
    -------
    q, k, v : ndarray
        (1, 1, 16, 64), (1, 1, 640, 64), (1, 1, 640, 64) float64, exact in the dtype.
    """
    rng = examination.rng
    scores = rng.integers(-2, 3, (ROWS, KEYS)) / 4.0
    rows = np.arange(ROWS)
    hot = np.where(rows % 2 == 0, KEYS - 1, rng.choice(KEYS - 1, ROWS, replace=False))
    scores[rows, hot] = 6.5
    q, k = score_control(scores, DEPTH)
    v = rng.choice([-1.0, 1.0], (KEYS, DEPTH))
    # Half of the columns see how the weight is shared between the hot keys and the others, a quarter has a
    # mean far from zero, and the rest differs from key to key.
    v[:, : DEPTH // 2] = -1.0
    v[hot, : DEPTH // 2] = 1.0
    quarter = slice(DEPTH // 2, 3 * DEPTH // 4)
    v[:, quarter] = rng.integers(8, 17, v[:, quarter].shape) / 16.0
    return q[None, None], k[None, None], v[None, None]


def _report_blindness(examination, q, k, v, outcome):
    comparison = compare(examination, q, k, v, outcome.output)
    sound = not comparison.exceeded.any()
    golden = comparison.golden
    output = outcome.output if sound else golden.output
    told = {name: replace(comparison, output=spoilt).worst() for name, spoilt in _spoilt(output, v).items()}
    if sound:
        told |= {
            name: replace(comparison, output=other).worst()
            for name, other in _other_answers(examination, q, k, v)
        }
        told |= _without_mask(examination, q, k, v, output)
    else:
        examination.skip(
            "answers of the kernel to other questions",
            "its own answer is beyond the bound already: see REF",
        )
    if outcome.lse is not None:
        error = np.abs(golden.lse / math.log(2.0) - golden.lse)
        told["an lse in base 2"] = float((error / examination.bound(q, k, v).lse).max())
    told["the size of the output, over ten"] = float(
        np.abs(golden.output).max() / comparison.bound.max() / 10
    )
    examination.fact(
        "told apart", told, 1.0, "distance from the exact output over the bound; at least 1 is told apart"
    )
    blind = [name for name, ratio in told.items() if not ratio > 1.0]
    if not blind:
        return
    declared = examination.subject.carry_in(examination.dtype) is not None
    declared = declared or examination.contract.carry_format is not None
    find = examination.warn if declared and comparison.bound.max() > 0.1 else examination.fail
    find(
        f"the audit is blind here: it can't tell {', '.join(blind)} from the right answer",
        evidence={
            "distance over bound": told,
            "largest bound": float(comparison.bound.max()),
            "call": f"q {q.shape}, k {k.shape}, v {v.shape}",
        },
        remedy="return the answer to the inputs of this call; declare no narrower carry than the kernel has",
    )


def _spoilt(output, v):
    """Name and make the outputs that are spoilt without the kernel."""
    from softcarry.numerics import get_format

    swapped = output.copy()
    swapped[:, :, :2] = output[:, :, 1::-1]
    return {
        "zeros": np.zeros_like(output),
        "NaN": np.full_like(output, np.nan),
        "the mean of V": np.broadcast_to(v.mean(axis=2, keepdims=True), output.shape),
        "two rows swapped": swapped,
        "8-bit numbers": np.asarray(get_format("E5M2").round(output), np.float64),
    }


def _other_answers(examination, q, k, v):
    """Yield the kernel's own answers to other questions of which none has the same answer."""
    scale = {"scale": 1.05 / math.sqrt(DEPTH)} if examination.can("scale") else {}
    scaled = q if scale else examination.round(1.05 * q)
    for name, call, options in (
        ("keys without the last", (q, k[:, :, :-1], v[:, :, :-1]), {}),
        ("shifted keys", (q, k, np.roll(v, 1, axis=2)), {}),
        ("a scale 5 % too large", (scaled, k, v), scale),
    ):
        try:
            yield name, examination.call(*call, **options).output
        except CaseRefused:
            continue


def _without_mask(examination, q, k, v, output):
    """Measure how far an answer without the mask is from one with it."""
    if not examination.can("mask"):
        examination.skip("answers without the mask", examination.lacks("mask"))
        return {}
    mask = np.ones((ROWS, KEYS), bool)
    mask[:, -1] = False
    try:
        masked = examination.call(q, k, v, mask=mask).output
    except CaseRefused:
        return {}
    golden = examination.golden(q, k, v, mask=mask).output
    bound = examination.bound(q, k, v, mask=mask).output
    bound = bound * (2.0 if examination.dtype == "float64" else 1.0)
    if not (np.abs(masked - golden) <= bound).all():
        examination.skip(
            "answers without the mask", "its own answer with a mask is beyond the bound: MASKREP"
        )
        return {}
    return {"a mask ignored": float((np.abs(output - golden) / bound).max())}


def _report_machine(examination):
    for what, found, remedy in (
        (
            "the arithmetic of this process is not that of IEEE 754",
            arithmetic_faults(),
            "leave the rounding direction and the flush-to-zero flags of the caller as they were",
        ),
        (
            "the audit's rounding is wrong on this machine",
            rounding_faults(),
            "distrust every bound of this report; report it with the processor and the versions",
        ),
        (
            "the golden answer is wrong on this machine",
            golden_faults(),
            "distrust every finding of this report; report it with the processor and the versions",
        ),
    ):
        if found:
            examination.fail(f"{what}: {found[0]}", evidence={"found": list(found)}, remedy=remedy)
