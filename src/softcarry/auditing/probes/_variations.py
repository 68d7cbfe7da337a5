"""Pairs of calls in which the same rows should come out the same: alone and in a batch, and so on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing._calling import Outcome
from softcarry.auditing.thread_counts import thread_count


class Side(NamedTuple):
    """One call, and which of its rows are looked at.

    Attributes
    ----------
    q, k, v : ndarray
        float64 (b, h, t, d).
    options : mapping
        Of ``examination.call``; masks are those of padded keys, the same for every query.
    batch, heads, queries : slice
        The rows.
    threads : int or None
        How many threads the call has, or as many as there are.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    options: Mapping[str, Any] = MappingProxyType({})
    batch: slice = slice(None)
    heads: slice = slice(None)
    queries: slice = slice(None)
    threads: int | None = None

    def outcome(self, examination) -> Outcome:
        """Make the call."""
        with nullcontext() if self.threads is None else thread_count(self.threads):
            whole = examination.call(self.q, self.k, self.v, **self.options)
        rows = self.batch, self.heads, self.queries
        return Outcome(whole.output[rows], None if whole.lse is None else whole.lse[rows])

    def exact(self, examination) -> np.ndarray:
        """Return the golden output of the rows."""
        return examination.golden(*self._rows(), **self._known()).output

    def bound(self, examination) -> Outcome:
        """Bound the error of the rows."""
        model = replace(examination.model, splits=self.options.get("splits", examination.model.splits))
        bound = examination.bound(*self._rows(), **self._known(), model=model)
        return Outcome(bound.output, bound.lse)

    def _rows(self):
        group = self.batch, self.heads
        return self.q[group][:, :, self.queries], self.k[group], self.v[group]

    def _known(self):
        """Return the options that change the exact answer."""
        known = {name: value for name, value in self.options.items() if name in ("mask", "kv_lengths")}
        if "kv_lengths" in known:
            known["kv_lengths"] = known["kv_lengths"][self.batch]
        return known


Pair = tuple[Side, Side]


class Shape(NamedTuple):
    """b, h, tq and tk of a problem."""

    batch: int
    heads: int
    queries: int
    keys: int


class Variation(NamedTuple):
    """One way of computing the same rows twice.

    Attributes
    ----------
    name : str
        What is varied, for a reader.
    shape : Shape
        Of the problem that ``pair`` takes.
    pair : callable
        ``pair(q, k, v) -> (Side, Side)``.
    """

    name: str
    shape: Shape
    pair: Callable[..., Pair]


DECODE = Shape(1, 2, 1, 641)
PREFILL = Shape(1, 2, 37, 641)
LONG_DECODE = Shape(1, 1, 1, 4160)


def batches(examination) -> Iterator[Variation]:
    """Yield a batch entry alone, and among others."""
    for shape, sizes in _shapes(examination, (DECODE, (2, 3, 8)), (PREFILL, (3,))):
        for size in sizes[-1:] if examination.quick else sizes:
            for at in (size - 1,) if examination.quick else (0, size - 1):

                def pair(q, k, v, at=at):
                    one = slice(at, at + 1)
                    return Side(q[one], k[one], v[one]), Side(q, k, v, batch=one)

                name = f"{_queries(shape)}, entry {at} of a batch of {size}"
                yield Variation(name, shape._replace(batch=size), pair)


def neighbours(examination) -> Iterator[Variation]:
    """Yield the same row beside other rows: of other batch entries, other heads and other queries."""
    rng = examination.rng
    for shape in _shapes(examination, PREFILL._replace(batch=2), DECODE._replace(batch=3)):
        for size in (64.0,) if examination.quick else (1.0, 64.0):

            def pair(q, k, v, size=size):
                others = [
                    examination.round(factor * rng.standard_normal(x.shape))
                    for x, factor in ((q, size), (k, 1.0), (v, 1.0))
                ]
                others[0][0, 0, 0] = q[0, 0, 0]
                for mine, other in zip((k, v), others[1:], strict=True):
                    other[0, 0] = mine[0, 0]
                row: dict[str, Any] = {"batch": slice(1), "heads": slice(1), "queries": slice(1)}
                return Side(q, k, v, **row), Side(*others, **row)

            yield Variation(f"{_queries(shape)}, neighbours with queries of size {size:g}", shape, pair)


def query_chunks(examination) -> Iterator[Variation]:
    """Yield the first queries alone, and with those that follow."""
    sizes = (1, 9) if examination.quick else (1, 2, 8, 9, 16, 33, 64, 191, 192)
    whole = Shape(1, 1, 65 if examination.quick else 776, 641)
    for size in sizes:

        def pair(q, k, v, size=size):
            chunk = slice(0, size)
            return Side(q[:, :, chunk], k, v), Side(q, k, v, queries=chunk)

        yield Variation(f"the first {size} of {whole.queries} queries", whole, pair)


def padded_keys(examination) -> Iterator[Variation]:
    """Yield keys alone, and with others after them that are masked."""
    rng = examination.rng
    how = [name for name in ("mask", "kv_lengths") if examination.can(name)]
    for option in how:
        for shape in _shapes(examination, DECODE, PREFILL):
            for more in (63,) if examination.quick else (1, 63, 512):

                def pair(q, k, v, more=more, option=option):
                    keys = k.shape[2]
                    shapes = [(*x.shape[:2], more, x.shape[3]) for x in (k, v)]
                    pads = [examination.round(rng.standard_normal(shape)) for shape in shapes]
                    longer = [np.concatenate([x, pad], axis=2) for x, pad in zip((k, v), pads, strict=True)]
                    return (
                        Side(q, k, v, _seen(option, q, keys, keys)),
                        Side(q, longer[0], longer[1], _seen(option, q, keys, keys + more)),
                    )

                behind = "a mask" if option == "mask" else "kv_lengths"
                yield Variation(f"{_queries(shape)}, {more} keys behind {behind}", shape, pair)


def _seen(option, q, keys, among):
    """Return the option that leaves the first keys of so many."""
    if option == "kv_lengths":
        return {option: np.full(q.shape[0], keys)}
    return {option: (np.arange(among) < keys)[None, None, None, :]}


def threads(examination) -> Iterator[Variation]:
    """Yield the same call with one thread and with more."""
    for shape in _shapes(examination, LONG_DECODE, PREFILL):
        for count in (2,) if examination.quick else (2, 3):

            def pair(q, k, v, count=count):
                return Side(q, k, v, threads=1), Side(q, k, v, threads=count)

            yield Variation(f"{_queries(shape)}, {count} threads", shape, pair)


def repeats(examination) -> Iterator[Variation]:
    """Yield the same call twice."""
    for shape in _shapes(examination, LONG_DECODE, PREFILL._replace(batch=2)):
        for turn in range(1 if examination.quick else 3):

            def pair(q, k, v):
                return Side(q, k, v), Side(q, k, v)

            yield Variation(f"{_queries(shape)}, call 1 and {turn + 2}", shape, pair)


def splits(examination) -> Iterator[Variation]:
    """Yield the keys in one piece, and cut into several."""
    for shape in _shapes(examination, DECODE, PREFILL):
        for count in (3,) if examination.quick else (2, 3, 8):

            def pair(q, k, v, count=count):
                return Side(q, k, v, {"splits": 1}), Side(q, k, v, {"splits": count})

            yield Variation(f"{_queries(shape)}, {count} splits", shape, pair)


def key_order(examination) -> Iterator[Variation]:
    """Yield the keys in order, and shuffled or backwards."""
    for shape in _shapes(examination, DECODE, PREFILL):
        shuffled = examination.rng.permutation(shape.keys)
        for name, order in (("backwards", np.arange(shape.keys)[::-1]), ("shuffled", shuffled)):

            def pair(q, k, v, order=order):
                return Side(q, k, v), Side(q, k[:, :, order], v[:, :, order])

            yield Variation(f"{_queries(shape)}, keys {name}", shape, pair)


def _shapes(examination, *shapes: Any) -> tuple[Any, ...]:
    return shapes[:1] if examination.quick else shapes


def _queries(shape):
    return "one query" if shape.queries == 1 else f"{shape.queries} queries"
