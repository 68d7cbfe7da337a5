"""Rows that have keys, beside rows that have none and behind masked key blocks."""

import numpy as np

from softcarry.auditing.examination import Examination


def compare_neighbours(examination: Examination, case: str, outcome, alone, emptied: list[int]) -> None:
    """Rows that have keys must be the same bits whether or not other rows have none.

    Parameters
    ----------
    examination : Examination
    case : str
    outcome, alone : Outcome
        Two calls that differ only in that the rows ``emptied`` have no keys in the first.
    emptied : list of int
    """
    differs = ~_same(outcome.output, alone.output).all(axis=-1)
    if outcome.lse is not None:
        differs |= ~_same(outcome.lse, alone.lse)
    differs[:, :, emptied] = False
    if not differs.any():
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


def _same(a, b):
    return (a == b) | (np.isnan(a) & np.isnan(b))


def judge_live_rows(
    examination: Examination, case: str, outcome, rows: list[int], q, k, v, **options
) -> None:
    """Rows that have keys must be finite, and within the master bound of the exact answer.

    The bound is applied only if the same call without any mask is within its own: a kernel that is
    inaccurate everywhere is the matter of other checks.

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
    exact = examination.golden(q, k, v, **options).output[:, :, rows]
    bound = examination.bound(q, k, v, **options).output[:, :, rows]
    output = outcome.output[:, :, rows]
    # Written so that NaN, for which every comparison is false, is wrong.
    wrong = ~(np.abs(output - exact) <= bound)
    if not wrong.any():
        return
    lost = ~np.isfinite(output).all(axis=(0, 1, 3))
    first = tuple(np.argwhere(~np.isfinite(output) if lost.any() else wrong)[0])
    evidence = {
        "case": case,
        "rows": [rows[i] for i in np.flatnonzero(lost if lost.any() else wrong.any(axis=(0, 1, 3)))],
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
    elif _accurate_without_mask(examination, q, k, v):
        examination.fail(
            f"rows that have keys are wrong ({case})",
            evidence=evidence,
            remedy="give masked keys weight exactly 0, and rescale l and o by the same factor in every block",
        )
    else:
        examination.skip(
            f"values of rows with keys ({case})", "unmasked rows are beyond their error bound already"
        )


def _accurate_without_mask(examination, q, k, v):
    plain = examination.call(q, k, v)
    error = np.abs(plain.output - examination.golden(q, k, v).output)
    return bool((error <= examination.bound(q, k, v).output).all())
