"""RANGE: is the output right however large the scores are?

Question
    The maximum is subtracted so that no exponential overflows, whatever the scores. Does the kernel do that for
    every size of score that its dtype can make, of both signs?
Input
    Equal scores c, ±1 to ±4e30 as far as q and k of the dtype reach, with one-hot V, so that the output is
    the weights. The same scores moved by a constant through one more coordinate. Scores more than 700 apart,
    for which e^s itself has no range even in float64. q or k near the largest number of the dtype.
Conclusion
    Finite inputs with a finite exact answer give a finite one; equal scores give equal weights that sum to 1;
    moving all scores changes nothing but rounding. From which scores fail and which do not: a missing maximum
    subtraction, scores that overflow float16, a finite sentinel (−1e4, −5e4, −1e30) in place of −∞.
Tolerance
    Equal scores are equal computations, whose errors cancel: the master bound without the scores' share, a
    sum of weights within n·u_P. Elsewhere the master bound, which grows with the size of the scores.
Source
    Blanchard, Higham and Higham, IMA J. Numer. Anal. 41(4), 2021 (shifted softmax and its error).
Public faults of this kind
    pytorch#62897 (no maximum in a vectorised bfloat16 softmax), pytorch#121558 (residual of a rounded scaled
    maximum), burn PR#4697 (maximum floored at −1e4), flashinfer#4451 (−5e4), llama.cpp PR#13975.
"""

from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.problems import one_hot_values, reading_size
from softcarry.auditing.score_control import constant_score, score_control
from softcarry.auditing.tolerance import compare

DEPTH = 64
KEYS = 64
SENTINELS = (1e4, 5e4, 65504.0, 1e6, 1e9, 1e30)
SIZES = (1.0, 12.0, 88.0, 104.0, 1e3, 1e4, 5e4, 65504.0, 1e6, 2.0**24, 2.0**24 + 2.0)
SHIFTS = (0.0, 64.0, -64.0, 1024.0, -1024.0)
SPREADS = (704.0, 1500.0, 4e4)


class Equal(NamedTuple):
    """Equal scores of one size: what they were, and how the weights came out."""

    score: float
    finite: bool
    right: bool
    error: float
    sum: float


def probe(examination):
    """Sweep the size of the scores.

    Parameters
    ----------
    examination : Examination
        Fact ``score_range`` and up to one finding for each of equal, moved and spread scores, and for inputs
        near the limit of the dtype, go to it.
    """
    _equal_scores(examination)
    _moved_scores(examination)
    _spread_scores(examination)
    _near_the_limit(examination)


def _equal_scores(examination):
    sizes = sorted({*SIZES, 4e30, *(x for s in SENTINELS for x in (0.98 * s, 1.02 * s + 200.0))})
    rows = []
    for target in (sign * size for size in sizes for sign in (1.0, -1.0)):
        q, k = constant_score(target, DEPTH, examination.round, examination.format.largest)
        if q is not None:
            rows.append((q, k))
    if not rows:
        return
    q = np.repeat(np.stack([q for q, _ in rows])[None, :, None, :], 2, axis=2)
    k = np.repeat(np.stack([k for _, k in rows])[None, :, None, :], KEYS, axis=2)
    size = reading_size(KEYS)
    v = np.broadcast_to(one_hot_values(np.arange(KEYS), KEYS, size), (1, len(rows), KEYS, KEYS))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    # The scores of a row are the same sum of the same products, so they err alike and it cancels.
    still = np.zeros((1, len(rows), 2, DEPTH))
    comparison = compare(examination, still, np.zeros_like(k), v, output, depth=0)
    scores = (q[0, :, 0] * k[0, :, 0]).sum(axis=-1) / np.sqrt(DEPTH)
    seen = [
        Equal(
            score=float(scores[i]),
            finite=bool(np.isfinite(output[0, i]).all()),
            right=not comparison.exceeded[0, i].any(),
            error=float(comparison.relative[0, i].max()),
            sum=float(output[0, i, 0].sum() / size),
        )
        for i in range(len(rows))
    ]
    wrong = [case for case in seen if not case.right]
    sound = [case.score for case in seen if case.right]
    examination.fact(
        "score_range",
        [min(sound), max(sound)] if sound else None,
        1.0 if not wrong else 0.8,
        f"equal scores from {scores.min():.3g} to {scores.max():.3g}: {len(sound)} of {len(seen)} right",
    )
    if wrong:
        cause, remedy = diagnose(seen)
        first = min(wrong, key=lambda case: abs(case.score))
        what = "weights that are not finite" if not first.finite else f"weights that sum to {first.sum:.4g}"
        examination.fail(
            f"{KEYS} equal scores of {first.score:.6g} give {what}: {cause}",
            evidence={
                "cause": cause,
                "wrong": [case.score for case in wrong],
                "right": sound,
                "error": first.error,
                "sum_of_weights": first.sum,
            },
            remedy=remedy,
        )


def diagnose(cases):
    """The fault that explains which equal scores come out wrong, and what to do about it.

    Parameters
    ----------
    cases : sequence of Equal
        At least one of them wrong.

    Returns
    -------
    cause, remedy : str

    Examples
    --------
    >>> diagnose([Equal(x, x > -5e4, x > -5e4, 0.0, 1.0) for x in (-1e6, -51200.0, -5e4 + 1, 1e6)])[0]
    'a finite sentinel of −50000 stands for −∞'
    """
    wrong = [case.score for case in cases if not case.right]
    sound = [case.score for case in cases if case.right]
    up, down = [x for x in wrong if x > 0.0], [-x for x in wrong if x < 0.0]
    sound_up, sound_down = [x for x in sound if x > 0.0], [-x for x in sound if x < 0.0]
    if up and down and max(min(up), min(down)) <= 110.0 and max(sound_up, default=0.0) < max(up):
        return (
            "the maximum is not subtracted before the exponential",
            "subtract the running maximum from every score before exp",
        )
    if down and not up:
        for sentinel in SENTINELS:
            # Up to ln(largest float32) below the sentinel the terms are small but alive.
            if max((x for x in sound_down if x < min(down)), default=0.0) <= sentinel < min(down):
                return (
                    f"a finite sentinel of −{sentinel:.5g} stands for −∞",
                    "start the running maximum at −inf and select masked scores away; no score is then too low",
                )
        return (
            f"scores below about −{min(down):.3g} are lost, as with a finite sentinel in place of −∞",
            "start the running maximum at −inf, and do not clamp it",
        )
    smallest = min(up + down)
    reached = max((x for x in sound_up + sound_down if x < smallest), default=0.0)
    for limit, where in ((65504.0 / np.sqrt(DEPTH), "q·k before scaling"), (65504.0, "the scores")):
        if reached <= limit * 1.001 < smallest * 1.001:
            return (
                f"{where} overflow float16, whose largest number is 65504",
                "compute and keep q·k in float32",
            )
    return (
        f"scores beyond {reached:.3g} are not handled",
        "subtract the maximum from the scores in the arithmetic in which they were rounded, then scale",
    )


def _moved_scores(examination):
    rng = examination.rng
    keys, heads = 96, len(SHIFTS)
    base = examination.round(rng.standard_normal(keys))
    q, k = np.zeros((1, heads, 1, DEPTH)), np.zeros((1, heads, keys, DEPTH))
    q[..., 0], q[..., 1] = np.sqrt(DEPTH), 32.0
    k[..., 0] = base
    k[..., 1] = np.array(SHIFTS)[None, :, None] * np.sqrt(DEPTH) / 32.0
    v = np.broadcast_to(examination.round(rng.standard_normal((keys, DEPTH))), (1, heads, keys, DEPTH))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    comparison = compare(examination, q, k, v, output, depth=2)
    wrong = comparison.exceeded.any(axis=(0, 2, 3))
    change = np.abs(output - output[:, :1]).max(axis=(0, 2, 3))
    if not wrong.any():
        return
    worst = int(np.argmax(comparison.worst(axes=(0, 2, 3))))
    format_ = _coarse_scores(comparison, v, worst)
    cause = f"; scores rounded to {format_} would do that" if format_ else ""
    examination.fail(
        f"adding {SHIFTS[worst]:g} to every score changes the output by {change[worst]:.2g}{cause}",
        evidence={
            "shift": SHIFTS[worst],
            "wrong": [s for s, bad in zip(SHIFTS, wrong, strict=True) if bad],
            "change": change.tolist(),
            "error_over_bound": comparison.worst(axes=(0, 2, 3)).tolist(),
        },
        remedy="keep q·k in float32 until the maximum has been subtracted",
    )


def _coarse_scores(comparison, v, head):
    """The format whose rounding of the scores gives an error of the size that was seen, or None."""
    from softcarry.numerics.formats import formats

    seen = np.abs(comparison.error[0, head]).max()
    for name in ("bfloat16", "float16"):
        rounded = formats[name].round(comparison.golden.scores[0, head])
        weights = np.exp(rounded - rounded.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        expected = np.abs(weights @ v[0, head] - comparison.golden.output[0, head]).max()
        if expected / 2.0 < seen < expected * 2.0:
            return name
    return None


def _spread_scores(examination):
    rng = examination.rng
    keys, largest = 320, examination.format.largest
    spreads = [s for s in SPREADS if s / 2.0 <= largest]
    places = (0, keys // 2, keys - 1)
    scores = np.empty((1, len(spreads) * (len(places) + 1), 1, keys))
    for i, spread in enumerate(spreads):
        for j, place in enumerate(places):
            scores[0, i * 4 + j] = -spread / 2.0
            scores[0, i * 4 + j, :, place] = spread / 2.0
        # A rising ramp: the maximum grows with every key, and every rescale factor underflows or nearly so.
        scores[0, i * 4 + 3] = np.linspace(-spread / 2.0, spread / 2.0, keys)
    scores = examination.round(scores)
    q, k = score_control(scores, DEPTH)
    v = examination.round(rng.standard_normal((*scores.shape[:2], keys, DEPTH)))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    comparison = compare(examination, q, k, v, output, depth=1)
    wrong = comparison.exceeded.any(axis=(0, 2, 3))
    if not wrong.any():
        return
    names = [f"{s:g} ({where})" for s in spreads for where in ("first", "middle", "last", "ramp")]
    failing = [name for name, bad in zip(names, wrong, strict=True) if bad]
    finite = np.isfinite(output[0, wrong]).all()
    examination.fail(
        f"scores {failing[0]} apart give {'a wrong' if finite else 'no finite'} output, where exactly one key "
        f"should count",
        evidence={
            "spread_and_place_of_the_maximum": failing,
            "worst_error_over_bound": float(comparison.worst()),
        },
        remedy="subtract the running maximum before exp, and rescale by exp of a difference that is never positive",
    )


def _near_the_limit(examination):
    """One of q and k near the largest number of the dtype, with moderate scores; in float16 both."""
    _, exponent = np.frexp(examination.format.largest)
    largest = float(np.ldexp(1.0, exponent - 1))
    partner = 100.0 * np.sqrt(DEPTH) / largest
    if largest < 2.0**16:
        partner = largest
    pairs = [(a, sign * b) for a, b in ((largest, partner), (partner, largest)) for sign in (1.0, -1.0)]
    pairs = examination.round(np.array(pairs))
    q, k = np.zeros((1, len(pairs), 1, DEPTH)), np.zeros((1, len(pairs), KEYS, DEPTH))
    q[0, :, 0, 0] = pairs[:, 0]
    k[0, :, :, 0] = pairs[:, 1:]
    v = examination.round(examination.rng.uniform(0.5, 1.0, (1, len(pairs), KEYS, DEPTH)))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    comparison = compare(examination, np.zeros_like(q), np.zeros_like(k), v, output, depth=0)
    wrong = comparison.exceeded.any(axis=(0, 2, 3))
    if wrong.any():
        a, b = pairs[wrong][0]
        examination.fail(
            f"q = {a:.3g} and k = {b:.3g}, equal scores of {a * (b / np.sqrt(DEPTH)):.3g}, give a wrong output",
            evidence={"q_and_k": pairs[wrong].tolist(), "worst_error_over_bound": float(comparison.worst())},
            remedy="multiply q and k in float32, scale the product, then subtract the maximum",
        )
