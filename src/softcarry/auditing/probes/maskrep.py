"""MASKREP: does a mask mean the same, whichever way it is written?

Question
    A mask comes as booleans, as −inf, the lowest finite number, −1e9 or −1e4 to be added, or as the sum of
    two of these. Booleans and −inf hide a key for good; what is finite is added, and no more.
Input
    The same mask in all these ways: random, single keys, whole key blocks hidden, 700 keys. V is non-zero in
    columns of its own at hidden keys only, so that they hold the weight of the hidden keys. Scores from
    −2^101 to 2^15 against hidden keys of score 0 and above. Rows in which every key is hidden, with V =
    identity. Hidden keys beside a causal mask. Floating masks of 0 and 1, and of whole numbers from −3 to 3;
    integers.
Conclusion
    The representations whose answer is wrong, and how the kernel reads them: inverted, ignored, multiplied,
    scaled, taken for booleans, or with a finite sentinel of about which size. The class of fully masked rows
    by representation is a fact, and a warning where booleans and −inf differ; the class itself is EMPTY's
    matter. Rows filled with finite numbers have keys: they may be any weights but not NaN.
Tolerance
    The weight of a hidden key is exactly 0, and at most e^(fill − s_max) for a finite fill; outputs are
    within the master bound. An additive mask of −1e4 over scores of −2e4 wins, as the formula says.
Source
    Softmax of scores plus mask, in float64; e^x is 0 for x below −745 in every format.
Public faults of this kind
    pytorch#103963 (0 and 1), transformers#27114 (sum of two), transformers#31035, flax#982 (fill overflows),
    onnxruntime#14363 (finite penalties), jax#34114, tensorflow#55682, openvino#31630, pytorch#109517,
    tt-metal#42694 (multiplied by the scale).
"""

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._filled_rows import classify_filled_rows, judge_beside_causal
from softcarry.auditing.probes._hidden_weights import judge_large_scores
from softcarry.auditing.probes._hiding import draw_inputs
from softcarry.auditing.probes._live_rows import accurate_without_mask
from softcarry.auditing.probes._representations import (
    readings_of_booleans,
    readings_of_floats,
    representations,
)

_QUERIES = 8
_KEYS = 700
_LEAKS = 8  # columns of V that are non-zero at hidden keys only

_REMEDIES = {
    "booleans": "where a boolean mask is False the score is −inf; where it is True the score stays",
    "floats": "score = scale · q·k + mask, before the maximum is taken; only bool dtypes are booleans",
    "weight": "give hidden keys the score −inf, or select their weights away; no finite number is low enough",
}


def probe(examination: Examination) -> None:
    """Hand over the same mask in different ways.

    Parameters
    ----------
    examination : Examination
        Facts ``fully masked rows by representation`` and ``integer masks``.
    """
    if not examination.can("mask"):
        examination.skip("masks in all their representations", examination.lacks("mask"))
        return
    keys = _KEYS if examination.contract.longest_n is None else min(_KEYS, examination.contract.longest_n)
    written = representations(examination)
    added = _judge_biases(examination, keys)
    if not added:
        # A fill is read like any other number: what follows from that is the same fault.
        written = written[:1]
        examination.skip("masks of −inf and of finite fills", "other floating masks are read wrongly")
    written = _judge_representations(examination, keys, written)
    judge_large_scores(examination, written)
    classify_filled_rows(examination, written)
    if added:
        judge_beside_causal(examination)
        _classify_integers(examination)


def _judge_representations(examination, keys, written):
    """Hold live rows to the bound and hidden keys to a weight of 0; return what is read rightly."""
    rng = examination.rng
    q, k, v = draw_inputs(examination, (2, 2), _QUERIES, keys)
    always = rng.random((2, 2, keys)) < 0.1
    mask = rng.random((2, 2, _QUERIES, keys)) < 0.5
    mask[:, :, 1, : keys * 6 // 7] = False
    mask[:, :, 2, keys // 7 :] = False
    mask[:, :, 3] = False
    mask &= ~always[:, :, None]
    # One key that every row has, in its own place for the rows whose start or end is hidden.
    for row, key in enumerate((0, -1, 0, keys // 2, 0, 0, -1, 0)):
        mask[:, :, row, key] = True
    always &= ~mask.any(axis=2)
    v[..., :_LEAKS] = np.where(always[..., None], 4.0, 0.0)
    wrong, leaking = {}, {}
    for representation in written:
        given = representation.write(mask)
        readings = readings_of_booleans if given.dtype == bool else readings_of_floats
        try:
            outcome = examination.call(q, k, v, mask=given)
            fault = _fault(examination, outcome, (q, k, v), given, readings, first=_LEAKS)
        except CaseRefused:
            continue
        if fault is not None:
            reading, evidence = fault
            wrong.setdefault((given.dtype == bool, reading), []).append((representation.name, evidence))
        leaked = np.abs(outcome.output[..., :_LEAKS]).max(axis=(0, 1, 3)) / 4.0
        # NaN is a wrong value, not a weight.
        if (leaked > 0.0).any() and fault is None:
            leaking[representation.name] = float(np.nanmax(leaked))
    _report_wrong(examination, wrong)
    if leaking:
        examination.fail(
            f"hidden keys keep a weight with masks of {', '.join(leaking)}",
            evidence={"largest weight of all hidden keys": leaking, "expected": 0.0},
            remedy=_REMEDIES["weight"],
        )
    faulty = {name for cases in wrong.values() for name, _ in cases} | leaking.keys()
    return [representation for representation in written if representation.name not in faulty]


def _fault(examination, outcome, inputs, mask, readings, first=0):
    """Return (how the mask is read, evidence) if columns from ``first`` on are beyond bounds, or None."""
    golden = examination.golden(*inputs, mask=mask)
    bound = examination.bound(*inputs, mask=mask).output
    wrong = ~(np.abs(outcome.output - golden.output) <= bound)
    wrong[..., :first] = False
    if not wrong.any():
        return None
    reading = None
    if np.isfinite(outcome.output).all():
        reading = _reading(examination, outcome, inputs, mask, golden, readings)
        if reading is None and _read_rightly(examination, outcome, inputs, golden):
            wrong[:] = False
        elif reading is None:
            rows = list(range(wrong.shape[2]))
            wrong &= accurate_without_mask(examination, golden.scores, rows, wrong, *inputs)
    if not wrong.any():
        examination.skip("values under a mask", "beyond their error bound, and not by the mask: see REF")
        return None
    at = tuple(int(x) for x in np.argwhere(wrong)[0])
    return reading, {
        "batch, head, row, column": at,
        "output": outcome.output[at],
        "exact": golden.output[at],
        "bound on the error": bound[at],
        "rows": sorted({int(row) for row in np.argwhere(wrong)[:, 2]}),
    }


def _read_rightly(examination, outcome, inputs, golden):
    """Whether the error is under a tenth of what the mask changes, so that the mask is not its cause."""
    unmasked = examination.golden(*inputs).output
    live = ~np.isneginf(golden.lse)
    effect = np.abs(unmasked - golden.output)[live].max(initial=0.0)
    return np.abs(outcome.output - golden.output)[live].max(initial=0.0) <= 0.1 * effect


def _reading(examination, outcome, inputs, mask, golden, readings):
    """Name the wrong reading that explains all of the output and is not the right one, or None."""
    closest = np.abs(outcome.output - golden.output).max()
    unmasked = examination.bound(*inputs).output.max()
    for name, wrong in readings(*inputs, mask):
        # A row that such a reading leaves without keys may hold anything.
        live = ~np.isneginf(wrong.lse)
        error = np.abs(outcome.output - wrong.output)[live].max(initial=0.0)
        if live.mean() >= 0.5 and error <= min(2.0 * unmasked, 0.1 * closest):
            return name
    return None


def _report_wrong(examination, wrong):
    for (boolean, reading), cases in wrong.items():
        names = [name for name, _ in cases]
        said = f"is {reading}" if reading else "gives wrong outputs"
        if not np.isfinite(cases[0][1]["output"]):
            said = "gives rows that have keys no finite output"
        examination.fail(
            f"a mask of {', '.join(names)} {said}",
            evidence={"representations": names} | cases[0][1],
            remedy=_REMEDIES["booleans" if boolean else "floats"],
        )


def _biases(examination, keys):
    """Floating masks that are no masks: of 0 and 1, and of whole numbers; the inputs show which is which."""
    q, k, v = draw_inputs(examination, (2, 2), _QUERIES, keys)
    rng = examination.rng
    binary = (rng.random((2, 2, _QUERIES, keys)) < 0.5).astype(np.float64)
    whole = rng.integers(-3, 4, (1, 2, _QUERIES, keys)).astype(np.float64)
    # Column r is +1 where row r has a mask above 0, so that the effect of the mask is large there.
    v[..., :_QUERIES] = np.swapaxes(np.where(binary > 0.0, 1.0, -1.0), 2, 3)
    whole = np.where(binary > 0.0, np.abs(whole), -np.abs(whole))
    return (q, k, v), {"0 and 1": binary, "whole numbers from −3 to 3": whole}


def _judge_biases(examination, keys):
    """Hold floating masks that hide nothing to the bound; return whether they are read as they are meant."""
    inputs, masks = _biases(examination, keys)
    wrong = {}
    for name, mask in masks.items():
        try:
            outcome = examination.call(*inputs, mask=mask)
            fault = _fault(examination, outcome, inputs, mask, readings_of_floats)
        except CaseRefused:
            continue
        if fault is not None:
            wrong.setdefault((False, fault[0]), []).append((f"floating {name}", fault[1]))
    _report_wrong(examination, wrong)
    return not wrong


def _classify_integers(examination):
    """See what becomes of integers 0 and 1, which no rule of the field makes either booleans or numbers."""
    inputs, masks = _biases(examination, 64)
    mask = masks["0 and 1"]
    try:
        outcome = examination.calling(*inputs, mask=mask.astype(np.int64))
    except (KernelRaisedError, MalformedResultError) as error:
        examination.fact("integer masks", "refused", 1.0, str(error))
        return
    bound = examination.bound(*inputs).output.max()
    meanings = {"added": mask, "taken for booleans": mask > 0.0, "ignored": None}
    errors = {
        name: np.abs(outcome.output - examination.golden(*inputs, mask=meaning).output).max()
        for name, meaning in meanings.items()
    }
    nearest = min(errors, key=lambda name: errors[name])
    if errors[nearest] <= 4.0 * bound:
        examination.fact("integer masks", nearest, 1.0, "outputs with a mask of integers 0 and 1")
        return
    examination.fact("integer masks", "neither added nor booleans", 1.0, "outputs with integers 0 and 1")
    examination.warn(
        "a mask of integers is neither refused, nor added, nor taken for booleans",
        evidence={"errors": errors, "bound on the error": bound},
        remedy="refuse masks that are neither of bool nor of floating dtype",
    )
