"""LAYOUT: is the result the same wherever the inputs lie in memory, and whatever shape a mask has?

Question
    Callers hand over views: transposed projections, slices of a cache, expanded heads, masks that broadcast.
    Does the kernel read what the view holds, and nothing beside it? Does it leave its inputs alone?
Input
    One problem, of 33 queries and of one, over 641 keys: q, k and v contiguous; then as views of the same
    values: axes swapped, one third of a joint projection, gaps between rows, an odd offset, cut out of a
    larger array, every second row, a last axis that is not contiguous, stride 0 over batch or heads, and, for
    NumPy, negative strides. All memory beside a view is NaN. All three at once, and each alone, as a kernel
    may take the strides of k for those of v. Masks, boolean and additive, as [B,1,S,T], [1,H,S,T], [1,1,1,T],
    [B,1,1,T] and [S,T], all sizes different, and as strided views.
Conclusion
    The arrangements and mask shapes with wrong values, and for a mask what the values are the answer to;
    which inputs are written to. Where bits differ within the bound, the kernel takes another path: a fact. A
    kernel that refuses a view says so, which is its right. JAX's arrays have no strides: only masks are
    examined.
Tolerance
    None for bits; for values twice the master bound, once for each of the two calls.
Source
    ``numerics.attention_error_bound``.
Public faults of this kind
    onnxruntime#24017 (a mask [B,1,S,T] at the wrong offset), torch-spyre#4331 (views wrong, which padding
    hid), jax#28974 (a mask [B,1,1,K] not broadcast), cudnn-frontend#624 (memory beside the view is read).
"""

from typing import NamedTuple

import numpy as np

from softcarry.auditing._calling import Outcome
from softcarry.auditing.arrangements import ARRANGEMENTS, LIBRARIES, Arranger, expanded
from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.probes._contiguous_call import QUERIES, Call, problem
from softcarry.auditing.probes._differences import Difference
from softcarry.auditing.probes._mask_shapes import examine_masks, some

APART = ("the second and third axis swapped in memory", "gaps between rows")
QUICK = (*APART, "the last two axes swapped in memory")


class Wrong(NamedTuple):
    """An arrangement with wrong values: of which inputs, over how many queries, and what came."""

    names: str
    arrangement: str
    queries: int
    other: Outcome
    call: Call
    found: Difference


def probe(examination):
    """Call the kernel with the same values laid into memory in other ways.

    Parameters
    ----------
    examination : Examination
        Facts ``layouts`` and ``mask layouts``, and at most one error each for views, masks and writing go to
        it.
    """
    written = {}
    if examination.calling.library in LIBRARIES:
        _examine_views(examination, written)
    else:
        examination.skip(
            "views of q, k and v", f"{examination.calling.library} arrays have no strides of their own"
        )
    if examination.can("mask"):
        examine_masks(examination)
    else:
        examination.skip("shapes of a mask", examination.lacks("mask"))
    _report_writes(examination, written)


def _cases(examination):
    """List (which inputs, name, how they are placed, axis along which they are equal or None)."""
    library = examination.calling.library
    usable = [each for each in ARRANGEMENTS if library in each.libraries]
    if examination.quick:
        usable = [each for each in usable if each.name in QUICK]
    for arrangement in usable:
        yield "qkv", arrangement.name, arrangement.place, None
        if arrangement.name in APART:
            for name in "qkv":
                yield name, arrangement.name, arrangement.place, None
    heads = examination.subject.layout.index("h")
    # The axes of what is drawn are (b, h, t, d), those of what the kernel gets its own.
    yield "qkv", "stride 0 over the batch", expanded(0), 0
    yield "kv", "stride 0 over the heads", expanded(heads), 1


def _examine_views(examination, written):
    facts, wrong, unjudged = {}, [], []
    for queries in QUERIES[:1] if examination.quick else QUERIES:
        q, k, v = problem(examination, queries)
        calls = {}
        for names, name, place, equal in _cases(examination):
            if len(names) == 1 and queries != QUERIES[0]:
                continue
            try:
                if equal not in calls:
                    alike = [x if equal is None else _repeated(x, equal) for x in (q, k, v)]
                    calls[equal] = Call(examination, *alike)
                    _note_writes(written, calls[equal].watch, "contiguous q, k, v")
                call, arranger = calls[equal], Arranger(place, names)
                other = examination.call(*call.inputs, arrange=arranger)
            except CaseRefused:
                facts.setdefault(_title(names, name), "refused")
                continue
            _note_writes(written, arranger, _title(names, name))
            kind, found = call.compare(other)
            if kind == "wrong":
                wrong.append(Wrong(names, name, queries, other, call, found))
            elif kind == "not judged":
                unjudged.append(_title(names, name))
            facts[_title(names, name)] = _worse(facts.get(_title(names, name), kind), kind)
    examination.fact("layouts", facts, 1.0, "against the same call with contiguous q, k and v")
    if wrong:
        _report_views(examination, wrong)
    if unjudged:
        examination.skip(
            "values for " + "; ".join(dict.fromkeys(unjudged)),
            "contiguous inputs are beyond the error bound already",
        )


def _repeated(x, axis):
    return np.broadcast_to(np.take(x, [0], axis), x.shape)


def _title(names, arrangement):
    return f"{', '.join(names)}: {arrangement}"


def _worse(one, other):
    order = ("refused", "same bits", "within the bound", "not judged", "wrong")
    return max(one, other, key=order.index)


def _report_views(examination, wrong):
    first = wrong[0]
    beside = [case for case in wrong if not np.isfinite(case.other.output).all()]
    alone = {case.names for case in wrong if len(case.names) == 1}
    names = sorted(alone or set("".join(case.names for case in wrong)), key="qkv".index)
    listed = some([case.arrangement for case in wrong])
    cause = "reads memory beside the view" if beside else "wrong values"
    examination.fail(
        f"{cause} where {_and(names)} {'are' if len(names) > 1 else 'is'} not plain in memory: {listed}",
        evidence={
            "call": [f"{case.queries} queries, {_title(case.names, case.arrangement)}" for case in wrong],
            "first": _title(first.names, first.arrangement),
            "part": first.found.part,
            "contiguous": _at(first.call.outcome, first.found),
            "view": _at(first.other, first.found),
            "bound on the difference": first.found.bound,
            "not finite in": list(dict.fromkeys(_title(case.names, case.arrangement) for case in beside)),
        },
        remedy=(
            "take every stride of every input from that input, the last one too; or copy it into contiguous "
            "memory first; or refuse it"
        ),
    )


def _at(outcome, found):
    return (outcome.output if found.part == "output" else outcome.lse)[found.place]


def _and(names):
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _note_writes(written, arranger, case):
    for name in arranger.written():
        written.setdefault(name, case)


def _report_writes(examination, written):
    found = dict.fromkeys(examination.calling.writes_to, "one plain call") | written
    if not found:
        return
    names = sorted(found, key="qkv".index)
    examination.fail(
        f"the kernel writes to {_and(names)}",
        evidence={"first seen with": {name: found[name] for name in names}},
        remedy="work on a copy: the caller's arrays, and the memory beside a view of them, are only read",
    )
