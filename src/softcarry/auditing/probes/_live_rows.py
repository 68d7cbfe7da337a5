"""Rows that have keys, beside rows that have none and behind masked key blocks."""

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._bits import differing_rows, repeats


def compare_neighbours(
    examination: Examination, case: str, outcome, inputs, mask, emptied: list[int]
) -> None:
    """Rows that have keys must be the same bits whether or not other rows have none.

    A kernel whose bits differ from one call to the next, as with atomic additions, can't be asked this.

    Parameters
    ----------
    examination : Examination
    case : str
    outcome : Outcome
        Of a call in which the rows ``emptied`` have no keys.
    inputs : tuple of ndarray
        q, k and v of that call.
    mask : ndarray
        The same mask, in which the rows ``emptied`` do have keys.
    emptied : list of int
    """
    alone = examination.call(*inputs, mask=mask)
    differs = differing_rows(outcome, alone)
    differs[:, :, emptied] = False
    if not differs.any():
        return
    if not repeats(examination, alone, *inputs, mask=mask):
        examination.skip(
            f"bits of rows beside empty ones ({case})", "the kernel does not give the same bits twice"
        )
        return
    batch, head, row = np.argwhere(differs)[0]
    examination.fail(
        "rows that have keys change when other rows have none",
        evidence={
            "case": case,
            "rows without keys": emptied,
            "rows that change": sorted(set(np.argwhere(differs)[:, 2].tolist())),
            "output beside them": outcome.output[batch, head, row, :4],
            "output without them": alone.output[batch, head, row, :4],
        },
        remedy="keep m, l and o of a row to itself: an empty row's maximum or NaN has reached its neighbours",
    )


def judge_live_rows(
    examination: Examination, case: str, outcome, rows: list[int], q, k, v, **options
) -> None:
    """Rows that have keys must be finite, and within the master bound of the exact answer.

    The bound is applied if the kernel is within it without a mask, on all keys and on those of the row alone:
    a kernel that is inaccurate everywhere is the matter of other checks.

    Parameters
    ----------
    examination : Examination
    case : str
    outcome : Outcome
        Of ``call(q, k, v, **options)``.
    rows : list of int
        Those that have keys.
    q, k, v, **options
    """
    golden = examination.golden(q, k, v, **options)
    exact = golden.output[:, :, rows]
    bound = examination.bound(q, k, v, **options).output[:, :, rows]
    output = outcome.output[:, :, rows]
    # Written so that NaN, for which every comparison is false, is wrong.
    wrong = ~(np.abs(output - exact) <= bound)
    if not wrong.any():
        return
    lost = ~np.isfinite(output)
    if not lost.any():
        wrong &= accurate_without_mask(examination, golden.scores, rows, wrong, q, k, v)
        if not wrong.any():
            what = f"values of rows with keys ({case})"
            examination.skip(what, "without a mask they are beyond their error bound already")
            return
    shown = lost if lost.any() else wrong
    first = tuple(np.argwhere(shown)[0])
    evidence = {
        "case": case,
        "rows": [rows[i] for i in np.flatnonzero(shown.any(axis=(0, 1, 3)))],
        "output": output[first],
        "exact": exact[first],
        "bound on the error": bound[first],
    }
    if lost.any():
        examination.fail(
            f"rows that have keys are not finite ({case})",
            evidence=evidence,
            remedy=(
                "where the running maximum is −inf, or still is after a block, shift by 0 instead of by it: "
                "−inf − (−inf) is NaN and stays in the carry"
            ),
        )
    else:
        examination.fail(
            f"rows that have keys are wrong ({case})",
            evidence=evidence,
            remedy="give masked keys weight exactly 0, and rescale l and o by the same factor in every block",
        )


def accurate_without_mask(examination: Examination, scores, rows, wrong, q, k, v) -> np.ndarray:
    """Find which of the wrong rows are right on all keys, and where the kernel gets only their own keys.

    Parameters
    ----------
    examination : Examination
    scores : ndarray
        (b, h, tq, tk), −inf at the keys that a row does not attend to.
    rows : sequence of int
        The rows that ``wrong`` has.
    wrong : ndarray
        (b, h, len(rows), dv) bool.
    q, k, v : ndarray

    Returns
    -------
    ndarray
        Of the shape of ``wrong``, True in those of its rows.
    """
    accurate = np.zeros(wrong.shape, bool)
    if not _within_bound(examination, q, k, v).all():
        return accurate
    for batch, head, place in dict.fromkeys(map(tuple, np.argwhere(wrong)[:, :3])):
        row = (batch, head, rows[place])
        keys = np.flatnonzero(~np.isneginf(scores[row]))
        try:
            accurate[batch, head, place] = _within_bound(examination, q, k[:, :, keys], v[:, :, keys])[
                row
            ].all()
        except CaseRefused:  # too few keys for it: the call with all of them must do
            accurate[batch, head, place] = True
    return accurate


def _within_bound(examination, *inputs):
    error = np.abs(examination.call(*inputs).output - examination.golden(*inputs).output)
    return error <= examination.bound(*inputs).output
