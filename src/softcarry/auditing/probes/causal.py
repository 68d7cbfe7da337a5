"""CAUSAL: which keys does each query see, under a causal mask, a window, lengths and sinks?

Question
    Where is the diagonal of a causal mask if there are fewer queries than keys, or more? Are the edges of a
    window seen? Does the kernel keep one rule for every shape, and does it use what it accepts?
Input
    q = 0 and k = 0, so that all scores are 0 and every key that a row sees has the same weight; the values
    are the identity, cut into heads, so that one call shows every weight. tq below, at and above tk, a single
    query, and lengths to 700 of which no block size is a divisor. A causal mask alone and beside a boolean
    one; windows (left, right), with None and 0 among the sides; lengths; sinks. Then random scores under a
    causal mask, whose maxima move from key block to key block.
Conclusion
    The keys of every row: aligned bottom-right, top-left, or not the same way for all shapes; the edges of a
    window included or not; options that are ignored. A fault that explains all wrong rows is named. The
    alignment is a fact unless it was declared. What a row without keys gets is left to EMPTY.
Tolerance
    None: sets of keys are compared, a weight being one if it is half of its row's largest. Sinks and random
    scores are held to the master bound.
Source
    A zero query gives weights e^0 / Σ e^0 = 1/m whatever the order of summation: the support of a row is read
    exactly. A sink is one more key with value 0: Xiao et al., Efficient Streaming Language Models with
    Attention Sinks, arXiv:2309.17453, 2023.
Public faults of this kind
    pytorch#144858, #103082 and #108108 (one causal query sees key 0 only), onnxruntime#29020 (bottom-right
    here, top-left there), mlx#2835 (the alignment flips when tq > tk), onnxruntime#25927 (a window off by
    one), triton#4541 (causal=False ignored).
"""

from dataclasses import replace
from functools import partial

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes import _geometry as geometry
from softcarry.auditing.probes._live_rows import judge_live_rows
from softcarry.auditing.probes._sinks import examine_sinks
from softcarry.auditing.probes._supports import WIDTH, Fault, judge, obeys, read_weights

_SHAPES = ((6, 6), (4, 9), (9, 4), (1, 6), (67, 700), (130, 130), (1, 700), (300, 200), (130, 67))
_WINDOWS = (
    (12, 12, (3, 2)), (5, 9, (2, 1)), (9, 5, (2, 1)), (67, 700, (130, 20)), (12, 12, (None, 1)),
    (12, 12, (4, None)), (12, 12, (0, 2)), (12, 12, (3, 0)), (1, 40, (7, 0)), (300, 300, (129, 3)),
)  # fmt: skip
_LENGTHS = ((5, 12, (5, 12, 1)), (1, 700, (513, 1, 700)), (67, 700, (300, 129, 700)))
_QUICK = 5


def probe(examination: Examination) -> None:
    """Examine which keys the queries see.

    Parameters
    ----------
    examination : Examination
        Facts "causal alignment", "window" and "causal mask beside lengths", and at most one finding a kind of
        fault go to it.
    """
    alignment = _examine_causal(examination)
    for option, examine in (
        ("window", partial(_examine_windows, alignment=alignment)),
        ("kv_lengths", _examine_lengths),
        ("sinks", examine_sinks),
    ):
        if examination.can(option):
            examine(examination)
        else:
            examination.skip(option, examination.lacks(option))


def _read_all(examination, cases):
    """Read the weights of cases (queries, keys, options); those that the kernel refuses are left out."""
    readings = []
    for queries, keys, batches, options in cases:
        try:
            readings.append(read_weights(examination, queries, keys, batches=batches, **options))
        except CaseRefused:
            continue
    return readings


def _take(examination, cases):
    return cases[:_QUICK] if examination.quick else cases


def _examine_causal(examination):
    """Examine the causal mask, and return its alignment, or None."""
    if examination.calling.causal == "ignored":
        # So said one small call, which a mask of whole key blocks leaves as it is: here longer ones are made.
        examination.calling = replace(examination.calling, causal="bottom-right")
    if not examination.can("causal"):
        examination.skip("causal", examination.lacks("causal"))
        return None
    shapes = _take(examination, _SHAPES)
    readings = _read_all(examination, [(tq, tk, 2, {"causal": True}) for tq, tk in shapes])
    if not readings:
        return None
    declared = examination.contract.causal or examination.subject.causal
    alignment = declared or _best(examination, readings)
    rule = geometry.causal_rule(alignment)
    other = geometry.other_alignment(alignment)
    strayed = [
        each for each in readings if not obeys(each, rule) and obeys(each, geometry.causal_rule(other))
    ]
    groups = list(dict.fromkeys(_group(each) for each in strayed))
    meant = "is declared" if declared else "is its rule elsewhere"
    faults = [
        Fault(
            f"the causal mask is aligned {other} for {' and '.join(groups)}, where {alignment} {meant}",
            geometry.causal_rule(other),
            "compute tk − tq once, with its sign, and use it for every shape; or declare the other alignment",
        ),
        *geometry.causal_faults(alignment),
    ]
    wrong = judge(examination, "the causal mask", readings, rule, faults)
    examination.fact(
        "causal alignment",
        "not the same for all shapes" if wrong else alignment,
        1.0,
        "; ".join(f"{each.call}: {_alignment_of(each)}" for each in readings),
    )
    if not examination.findings:
        _examine_beside_mask(examination, alignment)
        _examine_random_scores(examination, alignment)
    return alignment


def _best(examination, readings):
    """Return the alignment that most readings obey; that of the first call where they are even."""
    count = {
        alignment: sum(obeys(reading, geometry.causal_rule(alignment)) for reading in readings)
        for alignment in geometry.ALIGNMENTS
    }
    first = examination.calling.causal
    other = geometry.other_alignment(first)
    return other if count[other] > count[first] else first


def _group(reading):
    if reading.queries == 1:
        return "one query"
    return "tq > tk" if reading.queries > reading.keys else "tq < tk"


def _alignment_of(reading):
    held = [a for a in geometry.ALIGNMENTS if obeys(reading, geometry.causal_rule(a))]
    return " or ".join(held) or "neither"


def _examine_beside_mask(examination, alignment):
    if not examination.can("mask"):
        examination.skip("a causal mask beside a boolean one", examination.lacks("mask"))
        return
    cases = []
    for queries, keys in ((7, 12), (67, 700)):
        mask = examination.rng.random((queries, keys)) < 0.5
        cases.append((queries, keys, 1, {"causal": True, "mask": mask}))

    def rule(reading):
        return geometry.causal_rule(alignment)(reading) & reading.options["mask"]

    faults = geometry.mask_faults(alignment)
    judge(examination, "a causal mask beside a boolean one", _read_all(examination, cases), rule, faults)


def _examine_random_scores(examination, alignment):
    """Rows of random scores: with equal ones the maximum never moves, and no carry is ever rescaled."""
    queries, keys = 40, 700
    rng = examination.rng
    q, k, v = (examination.round(rng.standard_normal((1, 2, t, WIDTH))) for t in (queries, keys, keys))
    try:
        outcome = examination.call(q, k, v, causal=True)
        rows = [0, 1, 15, 16, 31, 32, 38, 39]
        judge_live_rows(examination, "causal mask, random scores", outcome, rows, q, k, v, causal=True)
    except CaseRefused:
        return


def _examine_windows(examination, alignment):
    windows = _take(examination, _WINDOWS)
    cases = [(tq, tk, 1, {"window": window}) for tq, tk, window in windows]
    if examination.can("causal") and not examination.findings:
        cases = [*cases, (12, 12, 1, {"window": (3, 2), "causal": True})]
    readings = _read_all(examination, cases)
    if not readings:
        return
    if alignment is None:  # no causal mask says where the diagonal is: the window itself may
        aligned = [a for a in geometry.ALIGNMENTS if all(obeys(r, geometry.window_rule(a)) for r in readings)]
        alignment = (aligned or ["bottom-right"])[0]
    rule = geometry.window_rule(alignment)
    wrong = judge(examination, "the window", readings, rule, geometry.window_faults(alignment))
    if not wrong:
        examination.fact("window", f"{alignment}, both edges included", 1.0, "the keys of every row")


def _examine_lengths(examination):
    cases = [(tq, tk, len(of), {"kv_lengths": np.array(of)}) for tq, tk, of in _LENGTHS]
    readings = _read_all(examination, cases)
    wrong = judge(examination, "kv_lengths", readings, geometry.lengths_rule, geometry.lengths_faults())
    if wrong or not readings or not examination.can("causal") or examination.findings:
        return
    # Whether the diagonal ends at tk or at the length is a convention: either is legal.
    lengths = {"kv_lengths": np.array((5, 12, 9)), "causal": True}
    for reading in _read_all(examination, [(4, 12, 3, lengths)]):
        held = [name for name, rule in geometry.diagonals(examination.causal).items() if obeys(reading, rule)]
        examination.fact(
            "causal mask beside lengths",
            held[0] if held else "neither",
            1.0,
            f"keys of the last query: {reading.seen[:, -1].sum(axis=-1).tolist()} of lengths (5, 12, 9)",
        )
        if not held:
            judge(
                examination,
                "a causal mask beside lengths",
                [reading],
                geometry.diagonals(examination.causal)["its diagonal ends at tk"],
                [],
            )
