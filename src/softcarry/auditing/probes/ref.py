"""REF: how far is the output from the exact one, and is that what its dtype costs?

Question
    On data such as models make, is the error within the bound of the declared carry, and no larger than that
    of plain attention in the same dtype?
Input
    Normal data; all-positive data, whose rounding errors do not cancel; an outlier channel, which makes
    scores large; an attention sink, one key with most of the weight; a repeated maximum with values of one
    sign, where the roundings of P all go one way. 640 keys, 32 queries, d = dv = 64.
Conclusion
    Beyond the bound: an error. Within it, but over twice the error of the plain reference: a warning, as
    FlashAttention's and PyTorch's tests have it. The golden answer is float64 on the rounded inputs, never a
    reference in the same dtype. And the probe tests its own power: zeros, shuffled keys, a dropped last key
    and a forgotten rescale must all be beyond the bound on these data, or it says that it is blind.
Tolerance
    The master bound, componentwise (``numerics.attention_error_bound``); ratio 2 for the warning.
Source
    Dao et al., FlashAttention, 2022, and its test suite (the ratio); Qiu and Yao, arXiv:2510.04212, 2025
    (bias from a repeated maximum); KernelBench#165 (an absolute tolerance that all zeros pass).
Public faults of this kind
    tt-metal#51927 (relative error 0.026 behind a correlation of 0.9997), flash-attention#1138 (ranking by a
    reference in the same dtype), pytorch#108503.
"""

import math
from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.tolerance import compare

QUERIES, KEYS, DEPTH = 32, 640, 64
KINDS = ("normal", "positive", "outlier channel", "attention sink", "repeated maximum")


class Errors(NamedTuple):
    """Errors on one kind of data: largest / w, root mean square / w, relative L2, and mean signed / rms."""

    largest: float
    rms: float
    relative_l2: float
    bias: float


def probe(examination):
    """Compare with the exact answer, with a plain reference, and with wrong answers.

    Parameters
    ----------
    examination : Examination
        Facts ``reference_error``, ``reference_ratio`` and ``reference_power``, and at most one error, one
        warning and one skip go to it.
    """
    q, k, v = problem(examination)
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    comparison = compare(examination, q, k, v, output)
    errors = [_errors(comparison, head) for head in range(len(KINDS))]
    examination.fact(
        "reference_error",
        {kind: error._asdict() for kind, error in zip(KINDS, errors, strict=True)},
        1.0,
        f"{QUERIES} × {KEYS} scores a kind of data, against float64 on the rounded inputs",
    )
    _report_power(examination, comparison, v)
    excess = comparison.worst(axes=(0, 2, 3))
    if (excess > 1.0).any():
        _report_beyond(examination, comparison, errors, excess, v)
    # A float64 kernel errs as the golden answer itself does: there is nothing to take a ratio to.
    elif examination.dtype != "float64":
        _report_ratio(examination, comparison, errors, (q, k, v))


def problem(examination):
    """One head a kind of data.

    Parameters
    ----------
    examination : Examination
        Gives the generator and the rounding.

    Returns
    -------
    q, k, v : ndarray
        (1, 5, t, 64) float64, exact in the dtype.
    """
    rng = examination.rng
    heads = len(KINDS)
    q = rng.standard_normal((1, heads, QUERIES, DEPTH))
    k = rng.standard_normal((1, heads, KEYS, DEPTH))
    v = rng.standard_normal((1, heads, KEYS, DEPTH))
    for x in (q, k, v):
        x[:, 1] = rng.random(x[:, 1].shape)
    q[:, 2, :, 5] *= 4.0
    k[:, 2, :, 5] = 16.0 + 2.0 * k[:, 2, :, 5]
    q[:, 3, :, 0], k[:, 3, :, 0], k[:, 3, 0] = math.sqrt(DEPTH), 0.0, 0.0
    k[:, 3, 0, 0], v[:, 3, 0] = 8.0, 0.0625 * v[:, 3, 0]
    repeated = np.unique(np.append(rng.integers(0, KEYS, 24), KEYS - 1))
    q[:, 4, :, 0], k[:, 4, :, 0], k[:, 4, repeated] = math.sqrt(DEPTH), 0.0, 0.0
    k[:, 4, repeated, 0] = 4.0
    v[:, 4] = 0.5 + np.abs(v[:, 4])
    return tuple(examination.round(x) for x in (q, k, v))


def plain_attention(q, k, v, rounding):
    """Compute attention unfused in one dtype: scores, P and output are rounded to it, sums are float32.

    The sums go term by term from left to right, so that the result does not depend on a matrix library.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, t, d) float64, exact in the dtype.
    rounding : callable
        Rounds to the dtype.

    Returns
    -------
    ndarray
        (b, h, tq, dv) float64.
    """
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for i in range(q.shape[3]):
        scores += q[..., i, None] * k[..., None, :, i]
    scores = rounding(scores * np.float32(1.0 / math.sqrt(q.shape[3]))).astype(np.float32)
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = rounding(terms / np.add.accumulate(terms, axis=-1)[..., -1:]).astype(np.float32)
    output = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for j in range(k.shape[2]):
        output += weights[..., j, None] * v[..., None, j, :]
    return rounding(output)


def wrong_answers(golden, v):
    """Compute what four public faults would return on the same data.

    Parameters
    ----------
    golden : Golden
    v : ndarray
        (b, h, tk, dv).

    Returns
    -------
    dict
        Name to output (b, h, tq, dv).
    """
    weights, half = golden.weights, v.shape[2] // 2
    without_last = weights[..., :-1] / weights[..., :-1].sum(axis=-1, keepdims=True)
    scores = golden.scores
    terms = [
        np.exp(part - part.max(axis=-1, keepdims=True)) for part in (scores[..., :half], scores[..., half:])
    ]
    merged = (terms[0] @ v[:, :, :half] + terms[1] @ v[:, :, half:]) / (
        terms[0].sum(axis=-1, keepdims=True) + terms[1].sum(axis=-1, keepdims=True)
    )
    return {
        "zeros": np.zeros_like(golden.output),
        "shuffled keys": weights @ np.roll(v, 1, axis=2),
        "dropped last key": without_last @ v[:, :, :-1],
        "forgotten rescale": merged,
    }


def _errors(comparison, head):
    error = comparison.error[:, head]
    weight = comparison.weight[:, head]
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = error / weight
        rms = float(np.sqrt(np.mean(scaled**2)))
        signed = float(np.mean(scaled * np.sign(comparison.golden.output[:, head])))
        norm = np.linalg.norm(error) / np.linalg.norm(comparison.golden.output[:, head])
    return Errors(float(np.abs(scaled).max()), rms, float(norm), signed / rms if 0.0 < rms < np.inf else 0.0)


def _report_beyond(examination, comparison, errors, excess, v):
    failing = [kind for kind, ratio in zip(KINDS, excess, strict=True) if ratio > 1.0]
    worst = int(np.argmax(excess))
    same_as = (
        [
            name
            for name, wrong in wrong_answers(comparison.golden, v).items()
            if not (np.abs(comparison.output - wrong) > comparison.bound).any()
        ]
        if np.isfinite(comparison.output).all()
        else []
    )
    cause = f"; it is the answer of {same_as[0]}" if same_as else ""
    amount = f"{errors[worst].largest:.2g} of w, {excess[worst]:.2g} times the bound"
    if not np.isfinite(excess[worst]):
        amount = "not finite"
    examination.fail(
        f"error on {KINDS[worst]} data: {amount}{cause}",
        evidence={
            "failing": failing,
            "error_over_bound": dict(zip(KINDS, excess.tolist(), strict=True)),
            "errors": {kind: error._asdict() for kind, error in zip(KINDS, errors, strict=True)},
            "same_as": same_as,
        },
        remedy="compare one row with the float64 formula; sums of scores, l and o belong in float32",
    )


def _report_ratio(examination, comparison, errors, inputs):
    from softcarry.numerics import get_format

    q, k, v = inputs
    # A kernel whose output is wider than its scores is declared to round those: so does the plain formula.
    formats = (examination.output_format, get_format(examination.model.score_format))
    plain = plain_attention(q, k, v, min(formats, key=lambda each: each.mantissa_bits).round)
    ratios = {}
    for head, kind in enumerate(KINDS):
        own = comparison.error[:, head]
        other = plain[:, head] - comparison.golden.output[:, head]
        # The largest of many errors scatters: both it and the root mean square must be larger.
        ratios[kind] = float(min(np.abs(own).max() / np.abs(other).max(), _rms(own) / _rms(other)))
    examination.fact(
        "reference_ratio",
        ratios,
        1.0,
        "error over that of the plain formula in the same dtype: the smaller of largest and rms ratio",
    )
    worst = max(ratios, key=ratios.__getitem__)
    if ratios[worst] > 2.0:
        examination.warn(
            f"error on {worst} data is {ratios[worst]:.2g} times that of the plain formula",
            evidence={"ratios": ratios},
            remedy="look for a rounding that the plain formula lacks: of l, or of o between blocks",
        )


def _rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def _report_power(examination, comparison, v):
    wrong = wrong_answers(comparison.golden, v)
    power = {
        name: int((np.abs(answer - comparison.golden.output) > comparison.bound).any(axis=(0, 2, 3)).sum())
        for name, answer in wrong.items()
    }
    examination.fact(
        "reference_power",
        power,
        1.0,
        f"kinds of data, of {len(KINDS)}, on which the bound rules the fault out",
    )
    blind = [name for name, count in power.items() if count == 0]
    if blind:
        examination.skip(
            f"REF with the answer of {', '.join(blind)}",
            "the bound of the declared carry is wider than that fault: this check is blind to it",
        )
