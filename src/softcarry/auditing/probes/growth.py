"""GROWTH: does the error grow with the number of keys, and if it does, which carry explains it?

Question
    m, l and o are updated once a key block. A narrow running sum first collects rounding errors and then, at
    2^(t+1) updates, stops: every later key is lost. Does that happen to this kernel at lengths in use?
Input
    n from 64 to 65536 keys, powers of two and lengths between. One row of equal scores, where everything but
    the carry is exact, and rows of normal scores. V has one-hot columns, which show l alone; columns of one
    sign, which show o where l is right; and columns of random signs. All scores are exact by construction.
Conclusion
    The error beside the bound of the declared carry, at every length. If equal scores show a step, the number
    of keys at which the sum stops, and the formats and key blocks that stop there. A random walk of rounding
    errors grows as n^(1/2), a drift as n; a kernel that changes its method with the length is not fitted with
    one slope: only lengths up to the step are.
Tolerance
    The master bound, |ô − o| ≤ bound, componentwise (``numerics.bounds.attention_error_bound``); and whatever
    the declared format, a sum that has stopped is an error. Within the bound, an error beyond its statistical
    form (√n in place of n) is a warning.
Source
    Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 4 (running sums); Higham and Mary,
    SISC 41(5), 2019, and Connolly, Higham and Mary, SISC 43(1), 2021 (growth by the square root; neither
    holds once the sum has stopped, since all errors then have one sign).
Public faults of this kind
    tract PR#2586, candle#3727 (float16 row sum stops at 2048); executorch PR#20090, ml_dtypes#63, tt-metal#52045
    (bfloat16 at 256); mlir-air#1600, llama.cpp PR#13975, flash-attention PR#2250 (the running output).
"""

from dataclasses import dataclass

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.growth_fit import Knee, find_knee, fit_power, loglog_slope
from softcarry.auditing.problems import one_hot_values, random_sign_values, reading_size, spread_positions
from softcarry.auditing.report import Curve
from softcarry.auditing.score_control import score_control
from softcarry.auditing.tolerance import compare

LENGTHS = tuple(sorted([2**k for k in range(6, 17)] + [3 * 2**k for k in range(5, 15)]))
DEPTH = 64
RANDOM_ROWS = 3
ONE_HOT, POSITIVE, SIGNS = slice(0, 24), slice(24, 44), slice(44, 64)

# Formats that a carry has been kept in, by drop index; TF32 has float16's.
_SUSPECTS = ("E5M2", "E4M3", "bfloat16", "float16")


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
    kept_l, kept_o : float
        On equal scores, which share of l and of o arrived, in the column where the least of it did.
    """

    keys: int
    flat: float
    random: float
    rms: float
    bound: float
    excess: float
    unlikely: float
    kept_l: float
    kept_o: float


def probe(examination):
    """Measure the error against n, and explain it.

    Parameters
    ----------
    examination : Examination
        Facts ``growth_slope`` and ``knee`` and two curves go to it, and at most one error and one warning.
    """
    readings = [reading for n in LENGTHS if (reading := _read(examination, n)) is not None]
    if len(readings) < 4:
        examination.skip("growth of the error", "the kernel took fewer than four of the lengths")
        return
    knee = find_knee(
        [r.keys for r in readings],
        [r.flat for r in readings],
        floor=2.0 * examination.output_format.unit_roundoff,
    )
    stall = _stall(readings, knee)
    _record(examination, readings, knee, stall)
    if stall is not None:
        _report_stall(examination, readings, knee, stall)
    elif any(r.excess > 1.0 for r in readings):
        _report_excess(examination, readings, knee)
    elif any(r.unlikely > 1.0 for r in readings):
        _report_drift(examination, readings)
    _compare_with_declaration(examination, knee, stall)


def _read(examination, n):
    rng = examination.rng
    scores = np.concatenate([np.zeros((1, n)), examination.round(rng.standard_normal((RANDOM_ROWS, n)))])
    q, k = score_control(scores, DEPTH)
    positive = examination.round(rng.uniform(0.5, 1.0, (n, POSITIVE.stop - POSITIVE.start)))
    v = np.concatenate(
        [
            one_hot_values(spread_positions(rng, n, ONE_HOT.stop), n, reading_size(n)),
            positive,
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
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.fmax(comparison.weight, np.abs(output))
        relative = np.where(comparison.error == 0.0, 0.0, np.abs(comparison.error) / size)[0, 0]
        kept_l = (comparison.golden.output / output)[0, 0, 0, ONE_HOT]
        kept_o = (output / comparison.golden.output)[0, 0, 0, POSITIVE]
    relative = np.where(np.isnan(relative), 1.0, relative)
    return Reading(
        keys=n,
        flat=float(relative[0].max()),
        random=float(relative[1:].max()),
        rms=float(np.sqrt(np.mean(relative[1:] ** 2))),
        bound=float(comparison.relative_bound.max()),
        excess=float(comparison.worst()),
        unlikely=float(comparison.worst_likely()[0, 0, 1:].max()),
        kept_l=float(kept_l.min()),
        kept_o=float(kept_o.min()),
    )


@dataclass(frozen=True)
class Stall:
    """A sum that stops: which one, and after how many keys."""

    part: str
    keys: float


def _stall(readings, knee):
    """The level at which l or o stops on equal scores, or None if they do not stop."""
    if knee is None or knee.returns:
        return None
    beyond = [r for r in readings if r.keys >= knee.above]
    for part, kept in (("l", [r.kept_l for r in beyond]), ("o", [r.kept_o for r in beyond])):
        levels = np.array([r.keys * share for r, share in zip(beyond, kept, strict=True)])
        # A sum that has stopped has the same value at every length: its last one before the next rounding.
        if (
            np.isfinite(levels).all()
            and levels[0] < 0.95 * beyond[0].keys
            and levels.max() < 1.1 * levels.min()
        ):
            return Stall(part, float(np.median(levels)))
    return None


def _explanations(readings, knee, stall):
    """Formats and key blocks whose sum stops at that many keys, the likeliest first.

    Just before the stop there were 2^(t+1) = 1/u updates. Their roundings are worth at most u/2 each and on
    normal scores walk at random, to about u·√(1/u)/3: that ranks the formats.
    """
    from softcarry.numerics.formats import formats

    before = [r.rms for r in readings if r.keys <= knee.below][-1]
    found = []
    for name in _SUSPECTS:
        format_ = formats[name]
        block = stall.keys / format_.drop_index
        if block < 0.9:
            continue
        distance = abs(np.log(max(before, 1e-300) / (np.sqrt(format_.unit_roundoff) / 3.0)))
        found.append(
            (float(distance), {"format": name, "key_block": round(block, 1), "updates": format_.drop_index})
        )
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _report_stall(examination, readings, knee, stall):
    explanations = _explanations(readings, knee, stall)
    last = readings[-1]
    words = [
        f"{e['updates']} updates of {e['key_block']:g} key{'s' if e['key_block'] != 1 else ''} in {e['format']}"
        for e in explanations[:2]
    ]
    name = {"l": "the running sum l", "o": "the running output o"}[stall.part]
    because = f"; {' or '.join(words)} would explain it" if words else ""
    examination.fail(
        f"{name} stops at {stall.keys:.0f} keys: error {last.flat:.0%} at n = {last.keys} on equal scores"
        f"{because}",
        evidence={
            "knee": stall.keys,
            "between": [knee.below, knee.above],
            "part": stall.part,
            "explanations": explanations,
            "error_at_longest": last.flat,
            "error_on_normal_scores": last.random,
            "bound_at_longest": last.bound,
            "predicted_knee": _predicted_knee(examination),
        },
        remedy=f"keep {stall.part} in float32 between key blocks, or keep n/Bc below the drop index of its format",
    )


def _report_excess(examination, readings, knee):
    first = next(r for r in readings if r.excess > 1.0)
    worst = max(readings, key=lambda r: r.excess)
    slope = loglog_slope([r.keys for r in readings], [r.rms for r in readings])
    returns = list(knee.returns) if knee else []
    shape = (
        f"and comes back at n = {returns[0]:.0f}, as if the method changed with the length"
        if returns
        else (f"growing as n^{slope:.2f}")
    )
    examination.fail(
        f"the error leaves the bound of the declared carry at n = {first.keys}, {shape}: it is "
        f"{max(worst.flat, worst.random):.1e} at n = {worst.keys}, {worst.excess:.2g} times the bound",
        evidence={
            "first": first.keys,
            "knee": None if knee is None else knee.position,
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
        remedy="look for roundings of one sign, or a carry, or a sum inside a key block, narrower than declared",
    )


def _predicted_knee(examination):
    """Bc · 2^(t+1) · splits of the declared carry, or None if none is declared or it never stops."""
    from softcarry.numerics.formats import get_format

    declared = examination.subject.carry_in(examination.dtype)
    if declared is None or declared.order != "sequential":
        return None
    drop = min(get_format(declared.l_format).drop_index, get_format(declared.o_format).drop_index)
    return drop * declared.key_block * declared.splits


def _compare_with_declaration(examination, knee, stall):
    predicted = _predicted_knee(examination)
    if predicted is None or stall is None or predicted / 2.0 <= stall.keys <= predicted * 2.0:
        return
    examination.warn(
        f"the sum stops at {stall.keys:.0f} keys, where the declared carry predicts {predicted}",
        evidence={"knee": stall.keys, "predicted_knee": predicted},
        remedy="declare the carry that the kernel keeps: its format, key block and splits",
    )


def _record(examination, readings, knee, stall):
    n = [r.keys for r in readings]
    regime = [r for r in readings if knee is None or r.keys <= knee.below]
    slope = loglog_slope([r.keys for r in regime], [r.rms for r in regime])
    fit = fit_power([r.keys for r in regime], [r.rms for r in regime])
    up_to = "over all lengths" if knee is None else f"up to the knee, n ≤ {knee.below:.0f}"
    examination.fact(
        "growth_slope",
        None if np.isnan(slope) else round(slope, 3),
        0.0 if np.isnan(fit.misfit) else float(np.clip(1.0 - fit.misfit, 0.0, 1.0)),
        f"rms error on normal scores {up_to}: {fit.floor:.1e} + {fit.factor:.1e}·n^{fit.exponent:.2f}",
    )
    if knee is None:
        examination.fact("knee", None, 1.0, f"no step in the error on equal scores, n = {n[0]} to {n[-1]}")
    else:
        where = stall.keys if stall is not None else knee.position
        examination.fact(
            "knee",
            round(where),
            1.0 if stall is not None else 0.5,
            f"error on equal scores steps up between n = {knee.below:.0f} and {knee.above:.0f}",
        )
    examination.curve(
        Curve(
            "error on normal scores, bound of the declared carry",
            n,
            [r.random for r in readings],
            [r.bound for r in readings],
            y_label="error / w",
        )
    )
    declared = examination.subject.carry_in(examination.dtype)
    block = 1 if declared is None else declared.key_block
    examination.curve(
        Curve(
            f"error on equal scores, ceiling of a bfloat16 carry with key block {block}",
            n,
            [r.flat for r in readings],
            [max(0.0, 1.0 - 256.0 * block / keys) for keys in n],
            y_label="error / w",
        )
    )
