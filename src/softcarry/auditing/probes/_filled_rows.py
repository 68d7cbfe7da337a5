"""Rows in which every key is masked, by representation, and masks beside a causal one."""

from collections.abc import Sequence

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._classes import weights_class
from softcarry.auditing.probes._representations import LOWEST, Representation

_WIDTH = 16
_FILLED = [1, 4, 7]
_PADS = 5

_OVERFLOW = (
    "the fill overflows to −inf inside, by a factor or a second fill, and −inf − (−inf) is NaN: shift by 0 "
    "where the maximum is −inf"
)


def classify_filled_rows(examination: Examination, written: Sequence[Representation]) -> None:
    """Record the class of rows without a single live key, by representation of the mask.

    Parameters
    ----------
    examination : Examination
        Fact ``fully masked rows by representation``; an error for NaN where the fill is finite; a warning
        where booleans and −inf differ.
    written : sequence of Representation
        The ways in which masks are written.
    """
    q, k, v = _inputs(examination)
    mask = examination.rng.random((1, 2, 8, _WIDTH)) < 0.6
    mask[..., 0] = True
    mask[:, :, _FILLED] = False
    classes, not_numbers = {}, {}
    for representation in written:
        given = representation.write(mask)
        try:
            output = examination.call(q, k, v, mask=given).output[:, :, _FILLED]
        except CaseRefused:
            continue
        classes[representation.name] = kind = _class(examination, output, (q, k, v), given)
        if kind == "NAN" and np.isfinite(representation.fill):
            not_numbers[representation.name] = output[0, 0, 0, :4]
    examination.fact(
        "fully masked rows by representation",
        classes,
        1.0,
        "weights of rows with every key masked; with a finite fill all keys take part",
    )
    _report_not_numbers(examination, not_numbers)
    hidden = {name: classes[name] for name in ("booleans", "−inf") if name in classes}
    if len(set(hidden.values())) > 1:
        examination.warn(
            f"a fully masked row gives {hidden['booleans']} with booleans and {hidden['−inf']} with −inf",
            evidence={"classes": classes},
            remedy="turn booleans into −inf, or −inf into booleans, in one place, so that one rule holds",
        )


def _report_not_numbers(examination, cases):
    if cases:
        examination.fail(
            f"rows filled with a finite number are NaN: a mask of {', '.join(cases)}",
            evidence={"output by representation": cases, "rows": _FILLED, "expected": "weights of sum 1"},
            remedy=_OVERFLOW,
        )


def _inputs(examination, queries=8):
    q, k = (
        examination.round(examination.rng.standard_normal((1, 2, tokens, _WIDTH)))
        for tokens in (queries, _WIDTH)
    )
    return q, k, np.broadcast_to(np.eye(_WIDTH), (1, 2, _WIDTH, _WIDTH))


def _class(examination, output, inputs, mask):
    unmasked = examination.golden(*inputs).weights[:, :, _FILLED]
    u = max(examination.format.unit_roundoff, examination.output_format.unit_roundoff)
    kind = weights_class(output, unmasked, u)
    if kind != "GARBAGE":
        return kind
    exact = examination.golden(*inputs, mask=mask).output[:, :, _FILLED]
    bound = examination.bound(*inputs, mask=mask).output[:, :, _FILLED]
    # With a fill of −1e4 the sums keep a few digits of the scores.
    return "UNMASKED" if (np.abs(output - exact) <= bound).all() else kind


def judge_beside_causal(examination: Examination) -> None:
    """Mask the first keys by the lowest finite number beside a causal mask: rows that see only those.

    A causal mask that is the same number added overflows where both hide a key, and lets the keys after the
    diagonal in where only it does.

    Parameters
    ----------
    examination : Examination
    """
    if not examination.can("causal"):
        examination.skip("padding beside a causal mask", examination.lacks("causal"))
        return
    q, k, v = _inputs(examination, _WIDTH)
    pads = np.ones((1, 2, _WIDTH, _WIDTH), bool)
    pads[..., :_PADS] = False
    mask = np.where(pads, 0.0, -examination.format.largest)
    try:
        output = examination.call(q, k, v, mask=mask, causal=True).output
    except CaseRefused:
        return
    seen = np.tri(_WIDTH, dtype=bool)
    beyond = np.abs(np.where(seen, 0.0, output))
    case = f"keys filled with {LOWEST} beside the causal mask"
    lost = ~np.isfinite(output).all(axis=(0, 1, 3))
    if lost.any():
        row = int(np.argmax(lost))
        examination.fail(
            f"{case}: rows that see only those are NaN"
            if row < _PADS
            else f"{case}: rows that see other keys are not finite",
            evidence={"rows": np.flatnonzero(lost), "output": output[0, 0, row], "filled keys": _PADS},
            remedy=_OVERFLOW,
        )
    elif beyond.any():
        row = int(np.argmax(beyond.max(axis=(0, 1, 3)) > 0.0))
        examination.fail(
            f"{case}: keys after the diagonal get weight",
            evidence={"row": row, "weights": output[0, 0, row], "filled keys": _PADS},
            remedy="let the causal mask hide keys for good, by −inf or by selection, whatever the mask adds",
        )
    examination.fact(
        "padding beside a causal mask",
        "NaN" if lost.any() else "ZERO" if not output[:, :, :_PADS].any() else "weights",
        1.0,
        f"rows whose keys are all filled with {LOWEST}",
    )
