"""The weight of hidden keys against live scores of any size, which shows what number stands for −∞."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._representations import Representation
from softcarry.auditing.range_diagnosis import SENTINELS
from softcarry.auditing.score_control import score_control

_DEPTH = 16
_KEYS = 640
# Far enough for a weight of 0 in every format, a float32 rounding of the larger score included.
_CLEAR = 200.0


class Pair(NamedTuple):
    """The score of a row's live keys, and of its hidden keys before the mask."""

    live: float
    hidden: float


def pairs(examination: Examination) -> list[Pair]:
    """List the pairs of scores, one a row: exact in the dtype, and below the range in which scores overflow.

    The live scores lie between the sentinels that kernels have used: 1e4, 5e4, 65504, 1e6, 1e9 and 1e30.

    Parameters
    ----------
    examination : Examination

    Returns
    -------
    list of Pair
    """
    low = [-128.0, -4096.0, -(2.0**15), -61440.0, -(2.0**18), -(2.0**21), -(2.0**31), -(2.0**101)]
    threshold = float(examination.round(-1e4))
    rows = [Pair(live, 0.0) for live in low]
    rows += [Pair(threshold, 0.0), Pair(2.0**12, 0.0), Pair(0.0, 2.0**12), Pair(0.0, 2.0**15)]
    return [row for row in rows if max(abs(row.live), abs(row.hidden)) <= examination.format.largest]


def judge_large_scores(examination: Examination, written: Sequence[Representation]) -> None:
    """Hold hidden keys to the weight that their mask leaves them, whatever the live scores are.

    Parameters
    ----------
    examination : Examination
        At most one error for booleans and −inf, and one for finite fills.
    written : sequence of Representation
        The ways in which masks are written.
    """
    rows = pairs(examination)
    keys = _KEYS if examination.contract.longest_n is None else min(_KEYS, examination.contract.longest_n)
    mask = examination.rng.random((1, 2, len(rows), keys)) < 0.5
    mask[:, 1, :, : keys // 2] = False
    mask[..., -1] = True
    mask[..., 0] = False
    live, hidden = (np.array(scores)[:, None] for scores in zip(*rows, strict=True))
    q, k = score_control(np.where(mask, live, hidden), _DEPTH)
    # Column r holds the weight of all keys that are hidden from row r.
    v = np.zeros((1, 2, keys, _DEPTH))
    v[..., : len(rows)] = np.swapaxes(~mask, 2, 3)
    faults = {}
    for representation in written:
        given = representation.write(mask)
        try:
            fault = _fault(examination, (q, k, v), given, representation, live, hidden)
        except CaseRefused:
            continue
        if fault is not None:
            faults[representation.name] = fault
    hiding = {name: faults.pop(name) for name in ("booleans", "−inf") if name in faults}
    _report_hiding(examination, rows, hiding)
    _report_fills(examination, rows, faults)


def _fault(examination, inputs, mask, representation, live, hidden):
    """Return (which are wrong, the weights, the exact ones), each (h, rows), or None."""
    rows = len(live)
    weights = _diagonal(examination.call(*inputs, mask=mask).output, rows)
    if not np.isfinite(weights).all():
        examination.skip("weights of hidden keys at large scores", "not finite: see RANGE and EMPTY")
    exact, slack = _expected(examination, inputs, mask, representation, live - hidden)
    wrong = np.abs(weights - exact) > slack
    if np.isfinite(representation.fill) and wrong.any():
        # The same scores without a mask: where those are beyond the bound, it is not the mask's doing.
        shown = inputs[2][..., :rows].swapaxes(2, 3) == 0.0
        scores = np.where(shown, live, examination.round(hidden + representation.fill))
        unmasked = examination.call(*score_control(scores, _DEPTH), inputs[2]).output
        wrong &= np.abs(_diagonal(unmasked, rows) - exact) <= slack
    return (wrong, weights, exact) if wrong.any() else None


def _diagonal(output, rows):
    """Return the weight of the hidden keys of each row, (h, rows)."""
    return np.diagonal(output[..., :rows], axis1=2, axis2=3)[0]


def _expected(examination, inputs, mask, representation, above):
    """Return the weight of the hidden keys (h, rows), and by how much it may differ: inf makes no claim."""
    with np.errstate(over="ignore"):
        clear = above[:, 0] - representation.fill >= _CLEAR + np.abs(representation.fill) / 64.0
    rows = len(clear)
    if np.isneginf(representation.fill):
        return np.zeros((2, rows)), np.zeros((2, rows))
    exact = _diagonal(examination.golden(*inputs, mask=mask).output, rows)
    bound = _diagonal(examination.bound(*inputs, mask=mask).output, rows)
    # At large scores the bound on a weight exceeds 1, and tells nothing.
    return exact, np.where(clear, 0.0, np.where(bound < 0.25, bound, np.inf))


def _report_hiding(examination, rows, faults):
    if not faults:
        return
    excess = np.any([fault[0] for fault in faults.values()], axis=(0, 1))
    size = _sentinel(rows, excess)
    said = f": a finite fill of about {size} stands for −∞" if size else ""
    examination.fail(
        f"hidden keys get weight over large live scores with masks of {', '.join(faults)}{said}",
        evidence=_evidence(rows, faults),
        remedy="write −inf, or select the weights of hidden keys away; a finite fill is a score like others",
    )


def _sentinel(rows, excess):
    """Say which number stands for −∞, if hidden keys win over all live scores below one and no others."""
    losing = [-row.live for row, wrong in zip(rows, excess, strict=True) if row.live < 0 and wrong]
    winning = [-row.live for row, wrong in zip(rows, excess, strict=True) if row.live < 0 and not wrong]
    elsewhere = any(row.live >= 0 and wrong for row, wrong in zip(rows, excess, strict=True))
    if elsewhere or not losing or not winning or max(winning) > min(losing):
        return ""
    # A weight is seen from e^−104 on, the smallest in float32.
    likely = [x for x in SENTINELS if max(winning) < x <= min(losing) + 104.0]
    return f"−{likely[0]:g}" if len(likely) == 1 else f"−{max(winning):g} to −{min(losing):g}"


def _report_fills(examination, rows, faults):
    if not faults:
        return
    less = any((fault[1] < fault[2])[fault[0]].any() for fault in faults.values())
    examination.fail(
        f"masks of {', '.join(faults)} are not added as the numbers they are: "
        + ("keys are hidden that the sum leaves in" if less else "keys keep weight that the sum takes away"),
        evidence=_evidence(rows, faults),
        remedy="add floating masks to the scores whatever their size; only −inf hides a key for good",
    )


def _evidence(rows, faults):
    name, (excess, weights, exact) = next(iter(faults.items()))
    head, row = (int(x) for x in np.argwhere(excess)[0])
    return {
        "mask": name,
        "live scores": rows[row].live,
        "scores of hidden keys": rows[row].hidden,
        "weight of the hidden keys": weights[head, row],
        "expected": exact[head, row],
        "live scores of all wrong rows": [
            pair.live for pair, wrong in zip(rows, excess.any(axis=0), strict=True) if wrong
        ],
    }
