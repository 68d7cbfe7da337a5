"""HEADMAP: which head's queries, keys and values does each query head use, and of which batch entry?

Question
    With fewer heads of k and v than of q, query head h uses kv head h // (heads // kv_heads). Does it, for
    keys and for values, in the path for one query and in that for many?
Input
    2 batch entries; ratios of heads 1, 2, 3, 4, 7 and 8, with one, two and three kv heads; 1, 5 and 130
    queries, 700 keys in some calls. Values: q = 0, and the values of each kv head of each batch entry point
    along an axis of their own. Keys: each kv head has one large score, at a key of its own, and the values
    are the identity. Queries: the same with a large score for each query head.
Conclusion
    The map of each of the three: repeated, as it should be, tiled (h mod kv_heads), collapsed to one head,
    reversed, clamped, divided by the wrong number, taken from another batch entry, or mixed from several.
Tolerance
    None: heads are integers. The head with more than half of the weight is the one that is used; for values,
    whose other weights are exactly 0, any second one is a mixture.
Source
    Ainslie et al., GQA: training generalized multi-query transformer models, arXiv:2305.13245, 2023: groups
    are of consecutive query heads, as torch's enable_gqa, FlashAttention and ONNX repeat them.
Public faults of this kind
    jax-js#180 (tile for repeat), ONNXim#34 (kv_head = head / n_kv).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination

_BATCHES = 2
_WIDTH = 64
_LARGE = 16.0
# Query heads, kv heads: equal; groups; one kv head for all.
_EQUAL = ((4, 4),)
_GROUPED = ((6, 3), (6, 2), (12, 3), (14, 2), (16, 2), (9, 3))
_SINGLE = ((7, 1), (8, 1), (2, 1))
_QUERIES = (5, 1, 130)
_LONG = 700
_SHORT = 64


class _Map(NamedTuple):
    """Which source each query head used: (b, h) heads and batch entries, and whether it was only one."""

    source: str
    heads: int
    kv_heads: int
    call: str
    batch: np.ndarray
    head: np.ndarray
    mixed: bool


def probe(examination: Examination) -> None:
    """Read the maps of heads.

    Parameters
    ----------
    examination : Examination
        Facts about what is taken, and at most one finding for each of queries, keys and values go to it.
    """
    maps = []
    for kind, pairs in (("equal", _EQUAL), ("grouped", _GROUPED), ("single", _SINGLE)):
        refusals = len(examination.skipped)
        found = _maps_of(examination, pairs[:2] if examination.quick else pairs)
        maps += found
        if kind != "equal":
            taken = bool(found)
            what = "kv heads shared by groups" if kind == "grouped" else "one kv head for all query heads"
            examination.fact(
                what, "taken" if taken else "refused", 1.0, _reason(examination, refusals, found)
            )
    for source in ("queries", "keys", "values"):
        _judge(examination, [each for each in maps if each.source == source])


def _reason(examination, refusals, found):
    if found:
        return f"{len(found)} maps read"
    return examination.skipped[-1].reason if len(examination.skipped) > refusals else "no call was made"


def _maps_of(examination, pairs):
    """Read the maps for pairs (heads, kv_heads); a refusal of the first pair stands for all of them."""
    maps = []
    for heads, kv_heads in pairs:
        first = (heads, kv_heads) == pairs[0]
        for queries in _QUERIES if first else _QUERIES[:2]:
            keys = _LONG if first and queries == _QUERIES[0] else _SHORT
            for read in (_read_values, _read_keys, _read_queries) if first else (_read_values, _read_keys):
                try:
                    maps.append(read(examination, heads, kv_heads, queries, keys))
                except CaseRefused:
                    if not maps:
                        return []
    return maps


def _read_values(examination, heads, kv_heads, queries, keys):
    q, k = _zeros(heads, queries), _zeros(kv_heads, keys)
    v = _zeros(kv_heads, keys)
    for code, (batch, head) in enumerate(np.ndindex(_BATCHES, kv_heads)):
        v[batch, head, :, code] = 1.0
    return _map(examination, "values", q, k, v, kv_heads)


def _read_keys(examination, heads, kv_heads, queries, keys):
    q, k = _zeros(heads, queries), _zeros(kv_heads, keys)
    q[..., 0] = math.sqrt(_WIDTH)
    for code, (batch, head) in enumerate(np.ndindex(_BATCHES, kv_heads)):
        k[batch, head, code, 0] = _LARGE
    return _map(examination, "keys", q, k, _identity(kv_heads, keys), kv_heads)


def _read_queries(examination, heads, kv_heads, queries, keys):
    q, k = _zeros(heads, queries), _zeros(kv_heads, keys)
    codes = np.arange(_BATCHES * heads)
    for code, (batch, head) in zip(codes, np.ndindex(_BATCHES, heads), strict=True):
        q[batch, head, :, code] = math.sqrt(_WIDTH)
    k[:, :, codes, codes] = _LARGE
    return _map(examination, "queries", q, k, _identity(kv_heads, keys), heads)


def _zeros(heads, tokens):
    return np.zeros((_BATCHES, heads, tokens, _WIDTH))


def _identity(kv_heads, keys):
    v = _zeros(kv_heads, keys)
    v[...] = np.eye(keys, _WIDTH)
    return v


def _map(examination, source, q, k, v, sources):
    """Make the call and read which of the ``sources`` heads of each batch entry has more than half."""
    output = examination.call(q, k, v).output
    weights = output[..., : _BATCHES * sources]
    # A map that is not the same for all queries is mixed too.
    code = weights.argmax(axis=-1)
    mixed = ~(weights.max(axis=-1) > 0.5).all() or (code != code[:, :, :1]).any()
    if source == "values":
        mixed = mixed or bool((np.count_nonzero(weights, axis=-1) > 1).any())
    heads, kv_heads = q.shape[1], k.shape[1]
    return _Map(
        source,
        heads,
        kv_heads,
        f"{heads} heads, {kv_heads} kv heads, tq = {q.shape[2]}, tk = {k.shape[2]}",
        code[:, :, 0] // sources,
        code[:, :, 0] % sources,
        bool(mixed),
    )


def _repeat(heads, kv_heads):
    return np.arange(heads) // (heads // kv_heads)


_MEANT = "where h // (heads // kv_heads) is meant"

_FAULTS: Sequence[tuple[str, Callable[[int, int], np.ndarray]]] = (
    (f"query head h uses {{}} head h mod kv_heads (tiled), {_MEANT}", lambda h, n: np.arange(h) % n),
    (f"query head h uses {{}} head h // kv_heads, {_MEANT}", lambda h, n: _at_most(n, np.arange(h) // n)),
    (
        f"query head h uses {{}} head (h // kv_heads) mod kv_heads, {_MEANT}",
        lambda h, n: np.arange(h) // n % n,
    ),
    ("every query head uses {} head 0: the map is collapsed", lambda h, n: np.zeros(h, int)),
    ("every query head uses the last {} head: the map is collapsed", lambda h, n: np.full(h, n - 1)),
    (f"query head h uses {{}} head min(h, kv_heads − 1), {_MEANT}", lambda h, n: _at_most(n, np.arange(h))),
    ("the {} heads are used in reverse", lambda h, n: n - 1 - _repeat(h, n)),
    (
        f"query head h uses {{}} head h mod (heads // kv_heads), {_MEANT}",
        lambda h, n: _at_most(n, np.arange(h) % (h // n)),
    ),
)


def _at_most(count, heads):
    return np.minimum(heads, count - 1)


def _judge(examination, maps):
    """Record one finding for what is wrong with the maps of one source."""
    wrong = [each for each in maps if _is_wrong(each)]
    if not wrong:
        return
    shown = wrong[0]
    message, remedy = _explain(wrong)
    examination.fail(
        f"{message} (at {shown.call})",
        evidence={
            "call": shown.call,
            "head used by each query head": shown.head,
            "batch entry used": shown.batch,
            "expected": _expected(shown),
            "wrong calls": [each.call for each in wrong],
            "right calls": [each.call for each in maps if not _is_wrong(each)],
        },
        remedy=remedy,
    )


def _expected(each):
    return _repeat(each.heads, each.heads if each.source == "queries" else each.kv_heads)


def _is_wrong(each):
    own = np.arange(_BATCHES)[:, None]
    return each.mixed or bool((each.head != _expected(each)).any() or (each.batch != own).any())


def _explain(wrong):
    source = wrong[0].source
    name = {"queries": "query", "keys": "key", "values": "value"}[source]
    remedy = "use kv head h // (heads // kv_heads) of the same batch entry for keys and values alike"
    if all(each.mixed for each in wrong):
        return f"the {source} of several heads or batch entries are mixed", remedy
    unmixed = [each for each in wrong if not each.mixed]
    if all((each.head == _expected(each)).all() for each in unmixed):
        return f"the {source} of another batch entry are used", remedy
    for message, rule in _FAULTS:
        if all((each.head == rule(each.heads, _sources(each))).all() for each in unmixed):
            return message.format(name), remedy
    return f"the {name} heads are not used as they should be", remedy


def _sources(each):
    return each.heads if each.source == "queries" else each.kv_heads
