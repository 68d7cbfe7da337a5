"""GROWTH: does the error grow with the number of keys, and if it does, which carry explains it?

Question
    m, l and o are updated once a key block. A narrow running sum first collects rounding errors and then, at
    2^(t+1) updates, stops: every later key is lost. Does that happen to this kernel at lengths in use?
Input
    n from 64 to 65536 keys, powers of two and lengths between. One row of equal scores, where everything but
    the carry is exact, and rows of normal scores. V has one-hot columns, which show l alone; columns of ones
    and of one sign, which show o once l is known (in a column of ones a stalled l hides a stalled o); and
    columns of random signs. All scores are exact by construction.
Conclusion
    The error beside the bound of the declared carry, at every length. If equal scores show a step, the number
    of keys at which the sum stops, and the formats and key blocks that stop there. A random walk of rounding
    errors grows as n^(1/2), a drift as n; a kernel that changes its method with the length is not fitted with
    one slope: only lengths up to the step are.
Tolerance
    The master bound, |ô − o| ≤ bound, componentwise (``numerics.attention_error_bound``); and whatever
    the declared format, a sum that has stopped is an error. Within the bound, an error beyond its statistical
    form (√n in place of n) is a warning.
Source
    Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 4 (running sums); Higham and Mary,
    SISC 41(5), 2019, and Connolly, Higham and Mary, SISC 43(1), 2021 (growth by the square root; neither
    holds once the sum has stopped, since all errors then have one sign).
Public faults of this kind
    tract PR#2586, candle#3727 (float16 row sum stops at 2048); executorch PR#20090, ml_dtypes#63,
    tt-metal#52045 (bfloat16 at 256); mlir-air#1600, llama.cpp PR#13975, flash-attention PR#2250 (o).
"""

from dataclasses import dataclass

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.growth_fit import fit_power, loglog_slope
from softcarry.auditing.problems import one_hot_values, random_sign_values, reading_size, spread_positions
from softcarry.auditing.score_control import score_control
from softcarry.auditing.stall import explain_stall, find_stall
from softcarry.auditing.tolerance import compare
from softcarry.report.model import Curve

LENGTHS = tuple(sorted([2**k for k in range(6, 17)] + [3 * 2**k for k in range(5, 15)]))
DEPTH = 64
RANDOM_ROWS = 3
ONE_HOT, ONES, POSITIVE, SIGNS = slice(0, 24), slice(24, 28), slice(28, 46), slice(46, 64)


@dataclass(frozen=True)
class Reading:
    """What one length showed.

    Attributes
    ----------
    keys : int
        n.
    flat, random, rms : float
        Relative error |ô − o| / max(w, |ô|): largest on equal scores, largest and root mean square on normal
        ones. The denominator makes the error of a stalled l the lost share of l.
    bound : float
        The largest bound / w.
    excess, unlikely : float
        The largest error / bound; on normal scores, the largest error / what random rounding errors give.
    finite : bool
        Whether the output is.
    kept_l, kept_o : float
        On equal scores, which share of l and of o arrived; 0 or infinite where it overflowed.
    error_l, error_o : float
        Root mean square error of l and of o on normal scores: what the weights of a row have in common, and
        what a column of ones has beside it.
    """

    keys: int
    flat: float
    random: float
    rms: float
    bound: float
    excess: float
    unlikely: float
    finite: bool
    kept_l: float
    kept_o: float
    error_l: float
    error_o: float


def probe(examination):
    """Measure the error against n, and explain it.

    Parameters
    ----------
    examination : Examination
        Facts ``growth_slope`` and ``knee`` and two curves go to it, and at most one error and one warning.
    """
    readings = [reading for n in _lengths(examination) if (reading := _read(examination, n)) is not None]
    if len(readings) < 4:
        examination.skip("growth of the error", "the kernel took fewer than four of the lengths")
        return
    stall = _find_stall(examination, readings)
    _record(examination, readings, stall)
    if stall is not None and stall.kind != "leaves":
        _report_stall(examination, readings, stall)
    elif any(r.excess > 1.0 for r in readings):
        _report_excess(examination, readings, stall)
    elif any(r.unlikely > 1.0 for r in readings):
        _report_drift(examination, readings)
    _compare_with_declaration(examination, stall)


def _lengths(examination):
    """List the lengths up to the longest that the contract promises, and that one itself."""
    longest = examination.contract.longest_n
    lengths = LENGTHS[:-3:3] if examination.quick else LENGTHS
    return lengths if longest is None else (*(n for n in lengths if n < longest), longest)


def _read(examination, n):
    rng = examination.rng
    scores = np.concatenate([np.zeros((1, n)), examination.round(rng.standard_normal((RANDOM_ROWS, n)))])
    q, k = score_control(scores, DEPTH)
    v = np.concatenate(
        [
            one_hot_values(spread_positions(rng, n, ONE_HOT.stop), n, reading_size(n)),
            np.ones((n, ONES.stop - ONES.start)),
            examination.round(rng.uniform(0.5, 1.0, (n, POSITIVE.stop - POSITIVE.start))),
            random_sign_values(rng, n, SIGNS.stop - SIGNS.start),
        ],
        axis=1,
    )
    q, k, v = (x[None, None] for x in (q, k, v))
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return None
    # One product a score is not zero, so nothing in it is added inexactly.
    comparison = compare(examination, q, k, v, output, depth=1, statistical=True)
    exact = comparison.golden.output[0, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.abs(comparison.error) / np.fmax(comparison.weight, np.abs(output))
        ratio = output[0, 0] / exact
    relative = np.where(np.isnan(relative), 1.0, relative)[0, 0]
    ratio = np.where(np.isnan(ratio), 0.0, ratio)
    common = np.median(ratio[:, ONE_HOT], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept_l = float(np.divide(1.0, common[0]))
        rest = np.abs(ratio[1:, ONES] / common[1:, None] - 1.0)
    return Reading(
        keys=n,
        flat=float(relative[0].max()),
        random=float(relative[1:].max()),
        rms=float(np.sqrt(np.mean(relative[1:] ** 2))),
        bound=float(comparison.relative_bound.max()),
        excess=float(comparison.worst()),
        unlikely=float(comparison.worst_likely()[0, 0, 1:].max()),
        finite=bool(np.isfinite(output).all()),
        kept_l=kept_l,
        kept_o=float(np.median(ratio[0, ONES])) * (kept_l if np.isfinite(kept_l) else 1.0),
        error_l=float(np.sqrt(np.mean((common[1:] - 1.0) ** 2))),
        error_o=float(np.sqrt(np.mean(np.where(np.isfinite(rest), rest, 1.0) ** 2))),
    )


def _find_stall(examination, readings):
    # In a column of ones a stalled l hides a stalled o, so l comes first.
    n = [r.keys for r in readings]
    # A loss of an eighth is seen even where the declared carry is so narrow that its bound allows everything.
    least = 8.0 * examination.output_format.unit_roundoff
    floor = [max(least, min(r.bound, 0.125)) for r in readings]
    return find_stall(n, [r.kept_l for r in readings], "l", floor=floor) or find_stall(
        n, [r.kept_o for r in readings], "o", floor=floor
    )


def _report_stall(examination, readings, stall):
    explanations = []
    if stall.kind == "stops":
        explanations = explain_stall(
            stall.keys,
            [r.keys for r in readings],
            [r.error_l if stall.part == "l" else r.error_o for r in readings],
            output_roundoff=examination.output_format.unit_roundoff,
        )
    last = readings[-1]
    name = {"l": "the running sum l", "o": "the running output o"}[stall.part]
    broken = next((r.keys for r in readings if not r.finite), None)
    if broken is not None:
        what = f"the output is not finite from n = {broken}"
    elif stall.kind == "overflows":
        what = f"{name} overflows between {stall.knee.below:.0f} and {stall.knee.above:.0f} keys"
        if stall.knee.below < 65504.0 < 1.01 * stall.knee.above:
            what += ", as a float16 does beyond 65504"
    else:
        what = f"{name} stops at {stall.keys:.0f} keys"
    words = [f"{e['updates']} updates of {e['key_block']:g} in {e['format']}" for e in explanations[:2]]
    because = f"; {' or '.join(words)} would explain it" if words else ""
    loss = "" if broken is not None else f": error {last.flat:.0%} at n = {last.keys} on equal scores"
    examination.fail(
        f"{what}{loss}{because}",
        evidence={
            "knee": stall.keys,
            "between": [stall.knee.below, stall.knee.above],
            "part": stall.part,
            "explanations": explanations,
            "error_at_longest": last.flat,
            "error_on_normal_scores": last.random,
            "bound_at_longest": last.bound,
            "beyond_bound_from": next((r.keys for r in readings if r.excess > 1.0), None),
            "predicted_knee": _predicted_knee(examination),
        },
        remedy=f"keep {stall.part} in float32 between key blocks, or n/Bc below the drop index of its format",
    )


def _report_excess(examination, readings, stall):
    first = next(r for r in readings if r.excess > 1.0)
    worst = max(readings, key=lambda r: r.excess)
    slope = loglog_slope([r.keys for r in readings], [r.rms for r in readings])
    shape = f"growing as n^{slope:.2f}" if slope >= 0.1 else "and does not grow with n"
    returns = [] if stall is None else list(stall.knee.returns)
    if returns:
        shape = f"and is small again at n = {returns[0]:.0f}: the method changes with the length"
    part = "l" if first.error_l > first.error_o else "o"
    size = max(worst.flat, worst.random)
    examination.fail(
        f"from n = {first.keys} the error is beyond the bound of the declared carry, {shape}: "
        f"{size:.1e} of w at n = {worst.keys}, {worst.excess:.2g} times the bound, mostly from {part}",
        evidence={
            "first": first.keys,
            "knee": None if stall is None else stall.knee.position,
            "part": part,
            "slope": slope,
            "fit": fit_power([r.keys for r in readings], [r.rms for r in readings])._asdict(),
            "n": [r.keys for r in readings],
            "error_over_bound": [r.excess for r in readings],
            "on_floor_again": returns,
        },
        remedy="keep m, l and o in float32 between key blocks; if the error does not grow with n, see REF",
    )


def _report_drift(examination, readings):
    first = next(r for r in readings if r.unlikely > 1.0)
    worst = max(readings, key=lambda r: r.unlikely)
    examination.warn(
        f"from n = {first.keys} the error is larger than random roundings of the declared carry make it, "
        f"{worst.unlikely:.2g} times at n = {worst.keys}, though within the worst-case bound",
        evidence={
            "n": [r.keys for r in readings],
            "error_over_likely": [r.unlikely for r in readings],
            "error": [r.random for r in readings],
        },
        remedy="look for roundings of one sign, or a carry or a sum in a key block narrower than declared",
    )


def _predicted_knee(examination):
    """Bc · 2^(t+1) · splits of the declared carry, or None if none is declared or it never stops."""
    from softcarry.numerics._formats import get_format

    declared = examination.subject.carry_in(examination.dtype)
    if declared is None or declared.order != "sequential":
        return None
    drop = min(get_format(declared.l_format).drop_index, get_format(declared.o_format).drop_index)
    return drop * declared.key_block * declared.splits


def _compare_with_declaration(examination, stall):
    predicted = _predicted_knee(examination)
    if predicted is None or stall is None or predicted / 2.0 <= stall.keys <= predicted * 2.0:
        return
    examination.warn(
        f"the sum stops at {stall.keys:.0f} keys, where the declared carry predicts {predicted}",
        evidence={"knee": stall.keys, "predicted_knee": predicted},
        remedy="declare the carry that the kernel keeps: its format, key block and splits",
    )


def _record(examination, readings, stall):
    n = [r.keys for r in readings]
    regime = [r for r in readings if stall is None or r.keys <= stall.knee.below]
    slope = loglog_slope([r.keys for r in regime], [r.rms for r in regime])
    fit = fit_power([r.keys for r in regime], [r.rms for r in regime])
    up_to = "over all lengths" if stall is None else f"up to the knee, n ≤ {stall.knee.below:.0f}"
    examination.fact(
        "growth_slope",
        None if np.isnan(slope) else round(slope, 3),
        0.0 if np.isnan(fit.misfit) else float(np.clip(1.0 - fit.misfit, 0.0, 1.0)),
        f"rms error on normal scores {up_to}: {fit.floor:.1e} + {fit.factor:.1e}·n^{fit.exponent:.2f}",
    )
    if stall is None:
        examination.fact("knee", None, 1.0, f"no step in l or o on equal scores, n = {n[0]} to {n[-1]}")
    else:
        examination.fact(
            "knee",
            round(stall.keys),
            1.0 if stall.kind == "stops" else 0.5,
            f"{stall.part} on equal scores leaves its floor between n = {stall.knee.below:.0f} and "
            f"{stall.knee.above:.0f}",
        )
    examination.curve(
        Curve(
            "error on normal scores, bound of the declared carry",
            tuple(n),
            tuple(r.random for r in readings),
            tuple(r.bound for r in readings),
            y_label="error / w",
        )
    )
    declared = examination.subject.carry_in(examination.dtype)
    block = 1 if declared is None else declared.key_block
    examination.curve(
        Curve(
            f"l or o lost on equal scores, ceiling of a bfloat16 carry with key block {block}",
            tuple(n),
            tuple(_lost(r) for r in readings),
            tuple(max(0.0, 1.0 - 256.0 * block / keys) for keys in n),
            y_label="lost share",
        )
    )


def _lost(reading):
    """Return the share of l, or of o, that did not arrive: all of it where the sum overflowed."""
    lost = np.abs(1.0 - np.array([reading.kept_l, reading.kept_o]))
    return float(np.where(np.isfinite(lost), lost, 1.0).max())
