"""Masks of every shape that broadcasts, and masks that are views."""

from typing import NamedTuple

import numpy as np

from softcarry.auditing._calling import Outcome
from softcarry.auditing.arrangements import (
    LIBRARIES,
    expanded,
    pitched,
    sliced,
    spread_columns,
    transposed,
)
from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.probes._contiguous_call import BATCH, HEADS, KEYS, QUERIES, Call, problem
from softcarry.auditing.probes._differences import Difference

BROADCAST = ("[B,H,S,T]", "[B,1,S,T]", "[1,H,S,T]", "[1,1,S,T]", "[1,1,1,T]", "[B,1,1,T]", "[S,T]")
VIEWS = {
    "with gaps between rows": pitched,
    "cut out of a larger array": sliced,
    "with the last two axes swapped in memory": transposed,
    "of every second number of a row": spread_columns,
}
REPRESENTATIONS = ("boolean", "additive")


class WrongMask(NamedTuple):
    """A mask with wrong values: its name, the mask itself, and what came beside what should have come."""

    name: str
    mask: np.ndarray
    call: Call
    other: Outcome
    found: Difference


def examine_masks(examination) -> None:
    """Compare a mask in its own shape, or as a view, with the same mask in full and contiguous.

    Parameters
    ----------
    examination : Examination
        Fact ``mask layouts`` and at most one error go to it.
    """
    inputs = problem(examination, QUERIES[0])
    facts, wrong, unjudged = {}, [], []
    for representation in REPRESENTATIONS[:1] if examination.quick else REPRESENTATIONS:
        for name, mask, given, options in _cases(examination, representation):
            try:
                call = Call(examination, *inputs, mask=mask)
                other = examination.call(*inputs, mask=given, **options)
            except CaseRefused:
                facts[name] = "refused"
                continue
            facts[name], found = call.compare(other)
            if facts[name] == "wrong":
                wrong.append(WrongMask(name, given, call, other, found))
            elif facts[name] == "not judged":
                unjudged.append(name)
    examination.fact("mask layouts", facts, 1.0, "against the same mask in full, contiguous")
    if wrong:
        _report(examination, wrong)
    if unjudged:
        examination.skip(
            f"values for {'; '.join(unjudged)}", "the mask in full is beyond the error bound already"
        )


def some(names, most=3) -> str:
    """Write the first few of some names, each once.

    Examples
    --------
    >>> some(["a", "a", "b", "c", "d", "e"])
    'a; b; c and 2 more'
    """
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def _cases(examination, representation):
    """List (name, the mask in full, what is handed over, the options that keep it as it is)."""
    sizes = {"B": BATCH, "H": HEADS, "S": QUERIES[0], "T": KEYS, "1": 1}
    full = tuple(sizes[letter] for letter in "BHST")
    for letters in BROADCAST[1:]:
        shape = tuple(sizes[letter] for letter in letters[1:-1].split(","))
        mask = _draw(examination, representation, shape)
        whole = np.array(np.broadcast_to(mask, full))
        yield f"{representation} mask {letters}", whole, mask, {"broadcast_mask": False}
    if examination.calling.library not in LIBRARIES:
        return
    for name, place in VIEWS.items():
        mask = _draw(examination, representation, full)
        yield (
            f"{representation} mask {name}",
            mask,
            mask,
            {"arrange_mask": lambda x, place=place: place(x).view},
        )
    mask = np.array(np.broadcast_to(_draw(examination, representation, (1, 1, *full[2:])), full))
    options = {"arrange_mask": lambda x: expanded(0, 1)(x).view}
    yield f"{representation} mask with stride 0 over batch and heads", mask, mask, options


def _draw(examination, representation, shape):
    """Draw a mask that leaves no row empty."""
    seen = examination.rng.random(shape) < 0.6
    seen[..., 0] = True
    if representation == "boolean":
        return seen
    bias = examination.round(-4.0 * examination.rng.random(shape))
    return np.where(seen, bias, -np.inf)


def _report(examination, wrong):
    first = wrong[0]
    causes = list(dict.fromkeys(cause for case in wrong if (cause := _cause(examination, case))))
    listed = some([case.name for case in wrong])
    examination.fail(
        f"wrong values for a {listed}" + (f": {causes[0]}" if causes else ""),
        evidence={
            "wrong": [case.name for case in wrong],
            "causes": causes,
            "shape of the mask": list(first.mask.shape),
            "part": first.found.part,
            "largest difference": first.found.largest,
            "bound on the difference": first.found.bound,
        },
        remedy="index a mask by its own strides, 0 along every axis of size 1, or expand it before use",
    )


def _cause(examination, case):
    """Say what the values are the right answer to, if it is a public kind of fault."""
    full = case.call.options["mask"]
    small = case.mask
    batch, heads = full.shape[:2]
    blocks = np.broadcast_to(small, full.shape[:2] + small.shape[-2:]) if small.ndim < 4 else small
    by_head = np.stack([blocks[h % blocks.shape[0], 0] for h in range(heads)])
    suspects = {
        "there is no mask": None,
        "every batch entry takes the mask of the first": np.broadcast_to(full[:1], full.shape),
        "every head takes the mask of the first": np.broadcast_to(full[:, :1], full.shape),
        "every query takes the mask of the first": np.broadcast_to(full[:, :, :1], full.shape),
        "the batch entry of the mask is taken from the head": np.broadcast_to(by_head, full.shape),
        "the mask is read on as if it had all heads": np.resize(blocks, (batch, heads, *small.shape[-2:])),
    }
    for name, mask in suspects.items():
        if mask is not None and np.array_equal(np.broadcast_to(mask, full.shape), full):
            continue
        options = {} if mask is None else {"mask": np.broadcast_to(mask, full.shape)}
        exact = examination.golden(*case.call.inputs, **options).output
        limit = examination.bound(*case.call.inputs, **options).output
        if (np.abs(case.other.output - exact) <= limit).all():
            return name
    return ""
