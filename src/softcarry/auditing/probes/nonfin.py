"""NONFIN: does a NaN or an infinity that a row does see reach its output, and no other?

Question
    A NaN in the inputs is a fault upstream. A kernel that swallows it hides the fault; one that spreads it
    hides where it was.
Input
    One element of Q, of K and of V set to NaN, +inf and −inf, each in a head of its own, with one head left
    as it is; both infinities in one column of V; the same beside a boolean and a causal mask, at a key that
    some rows attend to. 704 keys, more than a key block, and 64: whole vectors of 16.
Conclusion
    Class by class (NaN, +inf, −inf, finite), element by element, against float64: a NaN in q reaches its row,
    one in k the rows that attend to that key, one in v their outputs in its column. An infinity in v comes
    out as it is. A score of +inf makes its row NaN (inf − inf), one of −inf has weight 0.
Tolerance
    None for classes. Elements that do not depend on what was set keep their bits; where a kernel goes another
    way because of a NaN, they differ by no more than their bounds, which is a fact. Where the field has no
    rule, a difference is a warning: NaN where float64 has an infinity (0 · inf of a weight that underflowed,
    inf − inf of a split product) or a finite number (a score of −inf); the value of the key whose score is
    +inf, which is the limit. An lse of +inf is as good as NaN there.
Source
    IEEE 754-2019 section 6; softmax of torch, JAX and SciPy give NaN for a score of +inf.
Public faults of this kind
    cubecl#1070 (a harness that skips NaN), repairs of empty rows that turn every NaN into 0, minima and
    maxima that drop NaN; torch 2.13's CPU flash gives 0 in 16 bits for a score of +inf.
"""

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._bits import repeats, same_bits
from softcarry.auditing.probes._hiding import draw_inputs
from softcarry.auditing.probes._reached import Case, judge_dependent, report

_QUERIES = 8
_KEYS = 704
_FEW = 64
_OPERANDS = ("Q", "K", "V")
_VALUES = {"NaN": np.nan, "+inf": np.inf, "−inf": -np.inf}


def probe(examination: Examination) -> None:
    """Set single elements to NaN and infinities.

    Parameters
    ----------
    examination : Examination
        At most one finding for each kind of fault and operand.
    """
    longest = examination.contract.longest_n
    keys, few = (most if longest is None else min(most, longest) for most in (_KEYS, _FEW))
    long = draw_inputs(examination, (2, 2), _QUERIES, keys)
    short = draw_inputs(examination, (2, 2), _QUERIES, few)
    calls = [(short, {}, _OPERANDS), (long, {}, (*_OPERANDS, "both infinities in V"))]
    calls += [(long, options, _OPERANDS) for options in _masked(examination, keys)]
    seen = {}
    for inputs, options, operands in calls:
        try:
            clean = examination.call(*inputs, **options)
            accurate = _accurate(examination, clean, inputs, options)
            for operand in operands:
                case = _set(examination, operand, inputs, options)
                outcome = examination.call(*case.inputs, **options)
                judge_dependent(examination, case, outcome, seen, accurate=accurate)
                if "mask" not in options and "causal" not in options:
                    _judge_others(examination, case, outcome, clean, inputs, seen)
        except CaseRefused:
            continue
    report(examination, seen)


def _accurate(examination, clean, inputs, options):
    """Whether the kernel is within its bound where nothing is set; if not, other checks say so."""
    error = np.abs(clean.output - examination.golden(*inputs, **options).output)
    accurate = bool((error <= examination.bound(*inputs, **options).output).all())
    if not accurate:
        examination.skip("values beside a score of −inf", "without it they are beyond their error bound")
    return accurate


def _masked(examination, keys):
    """List the options of calls beside the masks that the kernel takes."""
    calls = []
    if examination.can("mask"):
        mask = examination.rng.random((2, 2, _QUERIES, keys)) < 0.7
        mask[:, :, :2] = True
        calls.append({"mask": mask})
    else:
        examination.skip("a live NaN beside a boolean mask", examination.lacks("mask"))
    if examination.can("causal"):
        calls.append({"causal": True})
    else:
        examination.skip("a live NaN beside a causal mask", examination.lacks("causal"))
    return calls[:1] if examination.quick else calls


def _set(examination, operand, inputs, options):
    """Set an element in three of the four heads, in different rows, keys and columns."""
    keys = inputs[1].shape[2]
    arrays = [x.copy() for x in inputs]
    alone = operand in _OPERANDS
    array = arrays["QKV".index(operand if alone else "V")]
    places = {"NaN": (0, 0), "+inf": (0, 1), "−inf": (1, 1)}
    # Top-left, the first rows see the first keys only.
    rows = np.array([0, keys // 2, keys - 1] if examination.causal != "top-left" else [0, 3, 5])
    changed = np.zeros(array.shape, bool)
    values = {}
    for index, (name, place) in enumerate(places.items()):
        row = (1, 4, 6)[index] if operand == "Q" else min(int(rows[index]), keys - 1)
        column = (3 * index + 2) % array.shape[3]
        array[(*place, row, column)] = _VALUES[name]
        changed[(*place, row, column)] = True
        if not alone:
            array[(*place, (row + 1) % keys, column)] = -_VALUES[name]
            changed[(*place, (row + 1) % keys, column)] = True
        values[place] = name
    return Case(operand, tuple(arrays), options, changed, values, tuple(places.values()))


def _judge_others(examination, case, outcome, clean, inputs, seen):
    """Elements that do not depend on what was set stay what they are: their bits, or within the bound."""
    output, lse = case.dependent
    bound = examination.bound(*inputs, **case.options)
    parts = [(outcome.output, clean.output, output, bound.output, "")]
    if outcome.lse is not None and clean.lse is not None:
        parts.append((outcome.lse, clean.lse, lse, bound.lse, "the lse of other rows"))
    for given, without, dependent, allowed, where in parts:
        changed = ~same_bits(given, without) & ~dependent & np.isfinite(without)
        if not changed.any():
            continue
        far = changed & ~(np.abs(given - without) <= 2.0 * allowed)
        if not far.any() or not repeats(examination, clean, *inputs, **case.options):
            examination.fact(
                "bits beside a NaN or an infinity",
                "change within the error bound" if not far.any() else "do not repeat",
                1.0,
                f"elements that do not depend on what was set in {case.operand}",
            )
            far &= ~np.isfinite(given)
        if far.any():
            at = tuple(int(x) for x in np.argwhere(far)[0])
            seen.setdefault(("spread", case.operand, where or case.spread_to(far)), []).append(
                {
                    "set": case.described(),
                    "batch, head, row, column": at,
                    "with it": given[at],
                    "without it": without[at],
                    "elements": int(far.sum()),
                }
            )
            return
