"""Which keys each query attends to, read off calls whose scores are all equal."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing.examination import Examination

WIDTH = 64


class Reading(NamedTuple):
    """The weights that one call gave to all keys, where every score was 0.

    Attributes
    ----------
    call : str
        The call in one line.
    queries, keys : int
    options : dict
        Those of the call.
    weights : ndarray
        (b, tq, tk) float64.
    """

    call: str
    queries: int
    keys: int
    options: dict[str, Any]
    weights: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """Which keys have weight (b, tq, tk): equal scores give all of a row's keys the same."""
        finite = np.where(np.isfinite(self.weights), self.weights, 0.0)
        return (finite > 0.0) & (finite >= 0.5 * finite.max(axis=-1, keepdims=True))


Rule = Callable[[Reading], np.ndarray]
"""Gives the keys that each query should see, or would see by some fault: bool, broadcast to (b, tq, tk)."""


class Fault(NamedTuple):
    """A known way of getting a rule wrong: what to say of it, what it lets through, and what to change."""

    message: str
    rule: Rule
    remedy: str


def read_weights(
    examination: Examination, queries: int, keys: int, *, batches: int = 1, **options
) -> Reading:
    """Read every key's weight in every row, in one call with q = 0 and k = 0.

    The values are the identity, cut into as many heads as it takes: head g shows keys 64g to 64g + 63.

    Parameters
    ----------
    examination : Examination
    queries, keys, batches : int
    **options
        As for ``Examination.call``.

    Returns
    -------
    Reading
    """
    heads = -(-keys // WIDTH)
    key = np.arange(keys)
    v = np.zeros((batches, heads, keys, WIDTH))
    v[:, key // WIDTH, key, key % WIDTH] = 1.0
    q, k = np.zeros((batches, heads, queries, WIDTH)), np.zeros((batches, heads, keys, WIDTH))
    output = examination.call(q, k, v, **options).output
    weights = np.swapaxes(output, 1, 2).reshape(batches, queries, heads * WIDTH)[..., :keys]
    return Reading(_in_words(queries, keys, options), queries, keys, options, weights)


def _in_words(queries, keys, options):
    parts = [f"tq = {queries}, tk = {keys}"]
    for name, value in options.items():
        if name == "mask":
            parts.append("boolean mask")
        else:
            parts.append("causal" if name == "causal" else f"{name} {np.asarray(value, object).tolist()}")
    return ", ".join(parts)


def obeys(reading: Reading, rule: Rule) -> bool:
    """Whether every row that has keys by the rule sees exactly those.

    What a row without keys gets is no question of geometry: check EMPTY asks it. A rule by which no row has
    keys is obeyed by seeing none.
    """
    expected, rows = _expected(reading, rule)
    seen = reading.seen
    return bool((seen == expected)[rows].all()) and bool(rows.any() or not seen.any())


def _expected(reading, rule):
    """Return the keys of a rule, and which rows it can be asked of: those with keys that came out finite."""
    expected = np.broadcast_to(rule(reading), reading.weights.shape)
    return expected, expected.any(axis=-1) & np.isfinite(reading.weights).all(axis=-1)


def judge(
    examination: Examination, what: str, readings: Sequence[Reading], rule: Rule, faults: Sequence[Fault]
) -> dict[str, str]:
    """Hold what was read against a rule: a finding for each kind of fault.

    Parameters
    ----------
    examination : Examination
    what : str
        What the rule is of, such as "the causal mask".
    readings : sequence of Reading
    rule : callable
    faults : sequence of Fault
        Known ways of getting it wrong; the first that explains all that is wrong is named, else the first
        that explains a reading.

    Returns
    -------
    dict
        For each reading that is wrong, its call and the message of the fault.
    """
    failing = [reading for reading in readings if _wrong(reading, rule)]
    _judge_weights(examination, what, readings, rule)
    of_all = [fault for fault in faults if all(obeys(reading, fault.rule) for reading in failing)]
    groups: dict[str, tuple[Fault, list[Reading]]] = {}
    for reading in failing:
        fault = (of_all or [each for each in faults if obeys(reading, each.rule)] or [_unknown(what)])[0]
        groups.setdefault(fault.message, (fault, []))[1].append(reading)
    for fault, wrong in groups.values():
        shown = min(wrong, key=lambda reading: reading.queries * reading.keys)
        examination.fail(
            f"{fault.message} (at {shown.call})",
            evidence=_evidence(shown, rule) | {"wrong calls": [reading.call for reading in wrong]},
            remedy=fault.remedy,
        )
    return {reading.call: fault.message for fault, wrong in groups.values() for reading in wrong}


def _unknown(what):
    return Fault(
        f"{what} lets other keys through than its rule says",
        lambda reading: np.zeros((1, 1), bool),
        "compute the position of each query and key in the whole sequence, also in the last, partial block",
    )


def _wrong(reading, rule):
    expected, rows = _expected(reading, rule)
    return bool((reading.seen != expected)[rows].any())


def _evidence(reading, rule):
    expected, rows = _expected(reading, rule)
    differs = (reading.seen != expected).any(axis=-1) & rows
    batch, row = np.argwhere(differs)[0]
    return {
        "call": reading.call,
        "batch entry": int(batch),
        "query": int(row),
        "keys it sees": spans(reading.seen[batch, row]),
        "keys it should see": spans(expected[batch, row]),
        "wrong rows": f"{int(differs.sum())} of {differs.size}",
    }


def _judge_weights(examination, what, readings, rule):
    """Report weights that are not finite, and those that hidden keys keep."""
    for reading in readings:
        expected = np.broadcast_to(rule(reading), reading.weights.shape)
        rows = expected.any(axis=-1, keepdims=True)
        lost = rows & ~np.isfinite(reading.weights)
        if lost.any():
            batch, row, _ = np.argwhere(lost)[0]
            examination.fail(
                f"{what} leaves rows that have keys without a finite output (at {reading.call})",
                evidence={"call": reading.call, "batch entry": batch, "query": row},
                remedy="shift by 0 where the running maximum still is −inf, after a block that is all masked",
            )
            return
    for reading in readings:
        expected = np.broadcast_to(rule(reading), reading.weights.shape)
        rows = expected.any(axis=-1, keepdims=True)
        leaking = rows & ~expected & ~reading.seen & (reading.weights != 0.0)
        if leaking.any():
            at = tuple(np.argwhere(leaking)[0])
            examination.fail(
                f"keys hidden by {what} keep a small weight, as with a finite fill (at {reading.call})",
                evidence={
                    "call": reading.call,
                    "query": at[1],
                    "key": at[2],
                    "weight": reading.weights[at],
                    "weight of a key that is seen": reading.weights[at[:2]].max(),
                },
                remedy="give hidden scores −inf, or select them away, so that their weight is exactly 0",
            )
            return


def spans(row) -> str:
    """Write a set of keys as its runs.

    Examples
    --------
    >>> spans(np.array([True, True, False, True])), spans(np.array([False]))
    ('0-1, 3', 'none')
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]])))
    runs = [(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:4]]
    return ", ".join(shown + ["…"] * (len(runs) > 4)) or "none"
