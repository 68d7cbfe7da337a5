"""RANGE: is the output right however large the scores are?

Question
    The maximum is subtracted so that no exponential overflows, whatever the scores. Does the kernel do that
    for every size of score that its dtype can make, of both signs?
Input
    Equal scores c, ±1 to ±4e30 as far as q and k of the dtype reach, with one-hot V, so that the output is
    the weights. The same scores moved by a constant through one more coordinate. Scores more than 700 apart,
    for which e^s itself has no range even in float64. q or k near the largest number of the dtype.
Conclusion
    Finite inputs with a finite exact answer give a finite one; equal scores give equal weights that sum to 1;
    moving all scores changes nothing but rounding. What fails only beyond 2^24 + 2 is a warning. From which
    scores fail and which do not: a missing maximum subtraction, scores that overflow float16, a finite
    sentinel (−1e4, −5e4, −1e30) in place of −∞, an lse in place of the pair (m, l).
Tolerance
    Equal scores are equal computations, whose errors cancel: the master bound without the scores' share, a
    sum of weights within n·u_P. Elsewhere the master bound, which grows with the size of the scores; and a
    kernel that is beyond it on moderate scores too is left to REF, unless large ones are far worse.
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
from softcarry.auditing.range_diagnosis import SENTINELS, Equal, diagnose
from softcarry.auditing.score_control import constant_score, score_control
from softcarry.auditing.tolerance import compare

DEPTH = 64
KEYS = 64
SIZES = (1.0, 12.0, 88.0, 104.0, 1e3, 1e4, 5e4, 65504.0, 1e6, 2.0**24, 2.0**24 + 2.0)
SHIFTS = (0.0, 64.0, -64.0, 512.0, -512.0, 4096.0, -4096.0)
# Beyond these scores no model in use goes: what fails only there is a warning.
IN_USE = 2.0**24 + 2.0
SPREADS = (8.0, 704.0, 1500.0, 4e4)


def probe(examination):
    """Sweep the size of the scores.

    Parameters
    ----------
    examination : Examination
        Fact ``score_range`` and up to one finding for each of equal, moved and spread scores, and for inputs
        near the limit of the dtype, go to it.
    """
    reach = _equal_scores(examination)
    # Beyond what equal scores allow, whatever follows would only repeat what they have shown.
    _moved_scores(examination, reach)
    _spread_scores(examination, reach)
    _near_the_limit(examination, reach)
    _sizes_of_values(examination)


class Reach(NamedTuple):
    """Around 0, the scores up to which equal scores came out right."""

    low: float
    high: float

    def covers(self, *scores):
        """Whether all of these scores are among them."""
        return all(self.low <= score <= self.high for score in scores)


def _equal_scores(examination):
    sizes = sorted({*SIZES, 4e30, *(x for s in SENTINELS for x in (0.98 * s, 1.02 * s + 200.0))})
    rows = []
    for target in (sign * size for size in sizes for sign in (1.0, -1.0)):
        q, k = constant_score(target, DEPTH, examination.round, examination.format.largest)
        if q is not None:
            rows.append((q, k))
    q = np.repeat(np.stack([q for q, _ in rows])[None, :, None, :], 2, axis=2)
    k = np.repeat(np.stack([k for _, k in rows])[None, :, None, :], KEYS, axis=2)
    size = reading_size(KEYS)
    v = np.broadcast_to(one_hot_values(np.arange(KEYS), KEYS, size), (1, len(rows), KEYS, KEYS))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return Reach(-np.inf, np.inf)
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
    reach = Reach(
        max((case.score for case in wrong if case.score < 0.0), default=-np.inf),
        min((case.score for case in wrong if case.score > 0.0), default=np.inf),
    )
    sound = [case.score for case in seen if case.right and reach.covers(case.score)]
    examination.fact(
        "score_range",
        [min(sound), max(sound)] if sound else None,
        1.0,
        f"{len(seen) - len(wrong)} of {len(seen)} right, equal scores of up to ±{scores.max():.3g}",
    )
    if wrong:
        cause, remedy = diagnose(seen, DEPTH, KEYS)
        first = min(wrong, key=lambda case: abs(case.score))
        what = f"weights that sum to {first.sum:.4g}" if first.finite else "weights that are not finite"
        report = examination.fail if abs(first.score) <= IN_USE else examination.warn
        report(
            f"{KEYS} equal scores of {first.score:.6g} give {what}: {cause}",
            evidence={
                "cause": cause,
                "wrong": [case.score for case in wrong],
                "right": [case.score for case in seen if case.right],
                "error": first.error,
                "sum_of_weights": first.sum,
            },
            remedy=remedy,
        )
    return Reach(min(sound, default=0.0), max(sound, default=0.0)) if wrong else reach


def _wrong_by_range(excess, moderate):
    """Where error / bound is above 1, and far above that of moderate scores: the rest is no matter of range.

    Errors of the same kind, of a narrow carry say, scatter between heads by less than the factor of four.
    """
    return excess > max(1.0, 4.0 * float(moderate.max()))


def _moved_scores(examination, reach):
    rng = examination.rng
    keys = 96
    base = examination.round(rng.standard_normal(keys))
    shifts = [s for s in SHIFTS if reach.covers(s + base.min(), s + base.max())]
    if len(shifts) < 2:
        return
    q, k = np.zeros((1, len(shifts), 1, DEPTH)), np.zeros((1, len(shifts), keys, DEPTH))
    q[..., 0], q[..., 1] = np.sqrt(DEPTH), 32.0
    k[..., 0] = base
    k[..., 1] = np.array(shifts)[None, :, None] * np.sqrt(DEPTH) / 32.0
    v = np.broadcast_to(examination.round(rng.standard_normal((keys, DEPTH))), (1, len(shifts), keys, DEPTH))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    comparison = compare(examination, q, k, v, output, depth=2)
    excess = comparison.worst(axes=(0, 2, 3))
    wrong = _wrong_by_range(excess, excess[:1])
    if not wrong.any():
        return
    with np.errstate(invalid="ignore"):
        change = np.abs(output - output[:, :1]).max(axis=(0, 2, 3))
    worst = int(np.argmax(np.where(wrong, excess, 0.0)))
    format_ = _coarse_scores(examination.dtype, comparison, v, worst)
    cause = f"; scores rounded to {format_} would do that" if format_ else ""
    examination.fail(
        f"adding {shifts[worst]:g} to every score changes the output by {change[worst]:.2g}{cause}",
        evidence={
            "shift": shifts,
            "change": change.tolist(),
            "error_over_bound": excess.tolist(),
            "format": format_,
        },
        remedy="keep q·k in float32 until the maximum has been subtracted",
    )


def _coarse_scores(dtype, comparison, v, head):
    """Name the format whose rounding of the scores gives an error of the size seen, or None."""
    from softcarry.numerics._formats import formats

    seen = np.abs(comparison.error[0, head]).max()
    # That of the inputs first: the two may explain the same error.
    for name in sorted(("bfloat16", "float16"), key=lambda name: name != dtype):
        rounded = formats[name].round(comparison.golden.scores[0, head])
        weights = np.exp(rounded - rounded.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        expected = np.abs(weights @ v[0, head] - comparison.golden.output[0, head]).max()
        if expected / 2.0 < seen < expected * 2.0:
            return name
    return None


def _spread_scores(examination, reach):
    rng = examination.rng
    keys, places = 320, ("first", "middle", "last")
    spreads = [
        s for s in SPREADS if s / 2.0 <= examination.format.largest and reach.covers(-s / 2.0, s / 2.0)
    ]
    if len(spreads) < 2:
        return
    scores = np.empty((1, len(spreads) * 4, 1, keys))
    names = []
    for i, spread in enumerate(spreads):
        for j, (name, key) in enumerate(zip(places, (0, keys // 2, keys - 1), strict=True)):
            scores[0, i * 4 + j] = -spread / 2.0
            scores[0, i * 4 + j, :, key] = spread / 2.0
            names.append(f"{spread:g} apart, {name} key above all others")
        # The maximum grows with every key, and rescale factors underflow or nearly so.
        scores[0, i * 4 + 3] = np.linspace(-spread / 2.0, spread / 2.0, keys)
        names.append(f"{spread:g} apart, rising key by key")
    q, k = score_control(examination.round(scores), DEPTH)
    v = examination.round(rng.standard_normal((*scores.shape[:2], keys, DEPTH)))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    excess = compare(examination, q, k, v, output, depth=1).worst(axes=(0, 2, 3))
    wrong = _wrong_by_range(excess, excess[:4])
    if not wrong.any():
        return
    failing = [names[i] for i in np.flatnonzero(wrong)]
    what = "a wrong output" if np.isfinite(output[0, wrong]).all() else "an output that is not finite"
    examination.fail(
        f"scores {failing[0]}, give {what}",
        evidence={"scores": failing, "error_over_bound": dict(zip(names, excess.tolist(), strict=True))},
        remedy="subtract the running maximum before exp; rescale by exp(m − m'), never of a positive number",
    )


def _sizes_of_values(examination):
    """Two equal keys with the same value give that value, whatever its size: sums and quotient are exact."""
    from softcarry.numerics._formats import get_format

    formats = [
        examination.format,
        examination.output_format,
        *(get_format(name) for name in (examination.model.l_format, examination.model.o_format)),
    ]
    largest = min(each.largest for each in formats)
    smallest = max(each.smallest_normal for each in formats)
    wanted = (4.0 * smallest, 1e-30, 1e-12, 1e-6, 1.0, 1e5, 1e20, largest)
    kept = sorted({min(x, largest / 4.0) for x in wanted if x >= 4.0 * smallest})
    sizes = examination.round(np.array(kept))
    q, k = np.zeros((1, len(kept), 1, DEPTH)), np.zeros((1, len(kept), 2, DEPTH))
    v = np.broadcast_to(sizes[None, :, None, None], k.shape)
    try:
        output = examination.call(q, k, v).output[0, :, 0, 0]
    except CaseRefused:
        return
    # e^0, their sum 2 and 2v are exact in a wide carry. Roundings of a narrow one are for other checks: what
    # is lost here is lost by its size.
    allowed = sizes / 16.0
    wrong = ~(np.abs(output - sizes) <= allowed)
    if wrong.any():
        examination.fail(
            f"values of {', '.join(f'{x:.3g}' for x in sizes[wrong][:3])} do not come back",
            evidence={
                "call": "two equal keys with the same value: the output is that value",
                "values": sizes[wrong],
                "outputs": output[wrong],
            },
            remedy="do not clamp values, flush small ones to 0, or move them through a narrower format",
        )


def _near_the_limit(examination, reach):
    """One of q and k near the largest number of the dtype, with moderate scores; in float16 both."""
    _, exponent = np.frexp(examination.format.largest)
    largest = float(np.ldexp(1.0, exponent - 1))
    partner = 100.0 * np.sqrt(DEPTH) / largest
    if largest < 2.0**16:
        partner = largest
    pairs = [(a, sign * b) for a, b in ((largest, partner), (partner, largest)) for sign in (1.0, -1.0)]
    pairs = examination.round(np.array([(1.0, 1.0), *pairs]))
    pairs = pairs[[reach.covers(a * (b / np.sqrt(DEPTH))) for a, b in pairs]]
    if len(pairs) < 2:
        return
    q, k = np.zeros((1, len(pairs), 1, DEPTH)), np.zeros((1, len(pairs), KEYS, DEPTH))
    q[0, :, 0, 0] = pairs[:, 0]
    k[0, :, :, 0] = pairs[:, 1:]
    v = examination.round(examination.rng.uniform(0.5, 1.0, (1, len(pairs), KEYS, DEPTH)))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return
    comparison = compare(examination, np.zeros_like(q), np.zeros_like(k), v, output, depth=0)
    excess = comparison.worst(axes=(0, 2, 3))
    wrong = _wrong_by_range(excess, excess[:1])
    if wrong.any():
        a, b = pairs[wrong][0]
        score = a * (b / np.sqrt(DEPTH))
        examination.fail(
            f"q = {a:.3g} and k = {b:.3g}, equal scores of {score:.3g}, give a wrong output",
            evidence={"q_and_k": pairs[wrong].tolist(), "error_over_bound": excess[wrong].tolist()},
            remedy="multiply q and k in float32, scale the product, then subtract the maximum",
        )
