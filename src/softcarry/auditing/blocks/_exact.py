"""The right values, one row at a time in plain Python: two passes, every sum correctly rounded.

Nothing here is shared with the kernels, the carry or the audit's golden attention.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

Row = Sequence[float]


class Part(NamedTuple):
    """A carry of one row: m, l and the list o."""

    m: float
    l: float
    o: tuple[float, ...]


class Result(NamedTuple):
    """A normalised partial of one row: the list of outputs and the lse."""

    output: tuple[float, ...]
    lse: float


def normalizer(scores: Row) -> tuple[float, float]:
    """Return (m, l): (−inf, 0) of no scores, (NaN, NaN) with a NaN, else (inf, NaN) with a +inf."""
    if any(math.isnan(s) for s in scores):
        return math.nan, math.nan
    m = max(scores, default=-math.inf)
    if m == math.inf:
        return m, math.nan
    return m, math.fsum(math.exp(s - m) for s in scores if s > -math.inf)


def softmax(scores: Row) -> list[float]:
    """Return the probabilities of a row: 0 for a row of −inf alone, NaN for one with NaN or +inf."""
    m, total = normalizer(scores)
    if math.isnan(total):
        return [math.nan] * len(scores)
    return [0.0 if s == -math.inf else math.exp(s - m) / total for s in scores]


def softmax_rows(x: Any) -> Any:
    """Return the softmax over the last axis of nested lists."""
    return softmax(x) if not x or not isinstance(x[0], list) else [softmax_rows(row) for row in x]


def softmax_topk(scores: Row, k: int) -> tuple[list[float], list[int]]:
    """Return the k largest probabilities of the whole row, and where they stand; ties to the lower index."""
    best = sorted(range(len(scores)), key=lambda i: (not math.isnan(scores[i]), -scores[i], i))[:k]
    probabilities = softmax(scores)
    return [probabilities[i] for i in best], best


def merge(first: Part, second: Part, *, power: float = math.e) -> Part:
    """Merge two carries of finite or empty parts; ``power`` is the base in which m counts."""
    m = max(first.m, second.m)
    weights = [_power(power, part.m, m) for part in (first, second)]
    return Part(m, _weighted(weights, (first.l, second.l)), _columns(weights, first.o, second.o))


def merge_results(first: Result, second: Result, *, power: float = math.e) -> Result:
    """Merge two normalised partials; the output is 0 where both are empty."""
    m = max(first.lse, second.lse)
    weights = [_power(power, part.lse, m) for part in (first, second)]
    total = math.fsum(weights)
    if total == 0.0:
        return Result(tuple(0.0 for _ in first.output), -math.inf)
    output = _columns([w / total for w in weights], first.output, second.output)
    return Result(output, m + (math.log2(total) if power == 2.0 else math.log(total)))


def attention(q: Sequence[Row], k: Sequence[Row], v: Sequence[Row], mask: Any = None) -> list[list[float]]:
    """Softmax attention of one head, q (t, d), k (n, d), v (n, dv), mask (t, n) of booleans; scale 1/√d."""
    output = []
    for i, query in enumerate(q):
        scores = [math.fsum(map(_product, query, key)) / math.sqrt(len(query)) for key in k]
        seen = [j for j in range(len(k)) if mask is None or mask[i][j]]
        weights = softmax([scores[j] for j in seen])
        columns = zip(*(v[j] for j in seen), strict=True) if seen else [()] * len(v[0])
        output.append([math.fsum(map(_product, weights, column)) for column in columns])
    return output


def _product(a, b):
    return a * b


def _power(base, exponent, largest):
    if exponent == -math.inf:
        return 0.0
    return math.exp(exponent - largest) if base == math.e else base ** (exponent - largest)


def _weighted(weights, values):
    return math.fsum(w * x for w, x in zip(weights, values, strict=True) if w != 0.0)


def _columns(weights, first, second):
    return tuple(_weighted(weights, pair) for pair in zip(first, second, strict=True))
