"""INVAR: on what, beside its own query and keys, do the bits of a row depend?

Question
    The same row, computed alone or in a batch, beside other rows, in another chunk of queries, with padded
    keys, by more threads, again, in more splits, with its keys in another order: is it the same?
Input
    Normal data over 641 keys, one query and 37, and 4160 keys where threads may split a row. Batches of 2 to
    8; neighbours with ordinary queries and 64 times as large ones; the first 1 to 192 of 776 queries; 1 to
    512 more keys behind a mask or beyond kv_lengths; 1, 2 and 3 threads; up to 8 splits.
Conclusion
    An axis is "same", or "within the bound", or "different". That a call repeats to the bit is always asked;
    the axes in the contract's ``invariant`` must be the same to the bit; the others may differ by rounding,
    and how much they do is a fact. Where bits differ, the stage is isolated: scores alone (two keys with
    weight), l alone (exact scores, one-hot V), P·V alone (equal scores), merges alone (two keys far apart).
Tolerance
    None for bits. Else the bounds of both calls: each is within one of the exact answer, so that one of them
    is wrong if they are further apart. Where both are wrong, other checks say so.
Source
    ``numerics.attention_error_bound``, which covers 2·(E_l + E_o)·w; Thinking Machines, Defeating
    nondeterminism in LLM inference, 2025 (what batch invariance is).
Public faults of this kind
    mlx#3573 (bits of query 0 change from 8 to 9 queries), jax#36570 (padded keys), vllm#51902 and #53257
    (deterministic, and not batch-invariant), pytorch#182593, sglang#25790, pytorch#108503.
"""

from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.probes import _variations as vary
from softcarry.auditing.probes._differences import Difference, difference
from softcarry.auditing.probes._stages import DEPTH, differing_stages

REPEATED = "repeated runs"
AXES = {
    REPEATED: vary.repeats,
    "alone or in a batch": vary.batches,
    "neighbours": vary.neighbours,
    "query chunks": vary.query_chunks,
    "padded keys": vary.padded_keys,
    "threads": vary.threads,
    "splits": vary.splits,
    "key order": vary.key_order,
}
"""What is varied, by the names that a contract's ``invariant`` uses."""

_REMEDIES = {
    REPEATED: "add partial sums in a fixed order: no atomic additions, and no unwritten memory",
    "alone or in a batch": "choose blocks and splits by the lengths of a row, not by the size of the batch",
    "neighbours": "keep m, l and o of a row to itself",
    "query chunks": "use one kernel, and one key block, for any number of queries",
    "padded keys": "end at the last live key, and let blocks not depend on the padded length",
    "threads": "cut the keys by their number, not by the number of threads",
    "splits": "merge carries by their maxima, in float32, in the order of their keys",
    "key order": "rescale l and o by the same factor whenever the maximum grows",
}


class Seen(NamedTuple):
    """What one variation showed."""

    variation: vary.Variation
    sides: vary.Pair
    difference: Difference
    outputs: tuple[np.ndarray, np.ndarray]


def probe(examination):
    """Compute the same rows twice, with one thing changed.

    Parameters
    ----------
    examination : Examination
        Fact ``invariance``, and at most one error an axis, go to it.
    """
    table = {}
    for axis, variations in AXES.items():
        reason = _cannot(examination, axis)
        if reason:
            examination.skip(axis, reason)
        seen = [] if reason else _observe(examination, variations)
        repeats = table.get(REPEATED, {}).get("bitwise") is not False
        table[axis] = _judge(examination, axis, seen, repeats)
    examination.fact(
        "invariance", table, 1.0, "the same rows computed twice; largest difference and bound of an output"
    )


def _cannot(examination, axis):
    """Say why an axis can't be examined, or "" if it can."""
    if axis == "threads" and examination.calling.library == "jax":
        return "jax fixes its threads when it starts"
    if axis == "splits" and not examination.can("splits"):
        return examination.lacks("splits")
    if axis == "padded keys" and not (examination.can("mask") or examination.can("kv_lengths")):
        return examination.lacks("mask", "kv_lengths")
    return ""


def _observe(examination, variations):
    """List what each variation shows; those that the kernel refuses are left out."""
    seen, problems = [], {}
    for variation in variations(examination):
        b, h, tq, tk = variation.shape
        if variation.shape not in problems:
            problems[variation.shape] = [
                examination.round(examination.rng.standard_normal((b, h, tokens, DEPTH)))
                for tokens in (tq, tk, tk)
            ]
        sides = variation.pair(*problems[variation.shape])
        try:
            one, other = (side.outcome(examination) for side in sides)
        except CaseRefused:
            continue
        found = difference(one, other, lambda sides=sides: _allowed(examination, sides))
        seen.append(Seen(variation, sides, found, (one.output, other.output)))
    return seen


def _allowed(examination, sides):
    one, other = (side.bound(examination) for side in sides)
    return type(one)(one.output + other.output, one.lse + other.lse)


def _judge(examination, axis, seen, repeats):
    """Record what breaks the contract or a bound, and return the axis' entry in the table."""
    entry = {"bitwise": None, "largest difference": None, "bound": None, "stage": None, "outcome": "skipped"}
    if not seen:
        return entry
    worst = max(seen, key=lambda each: (each.difference.excess, each.difference.largest))
    entry |= {"bitwise": True, "largest difference": 0.0, "outcome": "same"}
    if worst.difference.bitwise:
        return entry
    beyond = worst.difference.excess > 1.0
    promised = axis in examination.contract.invariant
    isolate = repeats and (beyond or promised or not examination.quick)
    entry |= {
        "bitwise": False,
        "largest difference": worst.difference.largest,
        "bound": worst.difference.bound,
        "stage": differing_stages(examination, worst.variation) if isolate else None,
        "outcome": "different" if beyond else "within the bound",
    }
    differing = [each.variation.name for each in seen if not each.difference.bitwise]
    evidence = entry | {
        "worst": worst.variation.name,
        "part": worst.difference.part,
        "differing": f"{len(differing)} of {len(seen)}: {'; '.join(differing)}",
    }
    where = f" ({worst.variation.name})"
    if axis == REPEATED:
        message = "the same call does not give the same bits twice"
    elif beyond and not _both_wrong(examination, worst):
        message = f"a row depends on {_PHRASES[axis]} by more than rounding"
    elif promised and repeats:
        stage = f", in {entry['stage']}" if entry["stage"] else ""
        message = (
            f"the bits of a row depend on {_PHRASES[axis]}{stage}; the contract promises that they do not"
        )
    else:
        if beyond:
            examination.skip(f"{axis}, by the bound", "both calls are beyond their error bounds already")
        if promised:
            examination.skip(f"{axis}, to the bit", "the same call does not give the same bits twice")
        return entry
    examination.fail(message + where, evidence=evidence, remedy=_REMEDIES[axis])
    return entry


_PHRASES = {
    "alone or in a batch": "the size of the batch",
    "neighbours": "its neighbours",
    "query chunks": "the chunk of queries that it comes in",
    "padded keys": "masked keys after its own",
    "threads": "the number of threads",
    "splits": "the number of splits",
    "key order": "the order of the keys",
}


def _both_wrong(examination, seen):
    """Whether both calls are beyond their own bounds, which is the matter of other checks."""
    doubled = 2.0 if examination.dtype == "float64" else 1.0
    return all(
        not (np.abs(output - side.exact(examination)) <= doubled * side.bound(examination).output).all()
        for side, output in zip(seen.sides, seen.outputs, strict=True)
    )
