"""Attention by its plain dense formula in wide numbers.

Inputs are taken as they are (already rounded to their dtype) and widened, to float64, or to long double where
the inputs are float64, so that the oracle's own error is far below the bounds. Packed sequences, lengths and
pages are undone first: what is left is one `Sequence` after another, each with its own tokens only, and the
formula sees nothing else. Nothing here calls softcarry.
`tests/attention/test_oracle.py` holds the formulas here to three nested loops in fifty digits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

INF = math.inf


def wide_of(dtype) -> type:
    return np.longdouble if np.dtype(dtype) == np.float64 else np.float64


@dataclass(frozen=True)
class Sequence:
    """One sequence: its queries and its own keys, and the options cut to them. All arrays are wide.

    ``rows`` and ``columns`` are where its queries and keys lie among those of the batch entry. A fault to be
    caught is a subclass that overrides one of the methods.
    """

    batch: int
    rows: slice
    columns: slice
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: Any
    causal: bool | str
    window: tuple[int | None, int | None] | None
    mask: np.ndarray
    bias: np.ndarray
    softcap: float | None
    slopes: np.ndarray | None
    sinks: np.ndarray | None
    buffer: int

    @property
    def offset(self) -> int:
        """What is added to a query's index to place it among the keys."""
        return 0 if self.causal == "top-left" else self.k.shape[1] - self.q.shape[1]

    def distances(self) -> np.ndarray:
        """j − (i + offset), (tq, tk)."""
        queries, keys = np.arange(self.q.shape[1]), np.arange(self.k.shape[1])
        return keys[None, :] - (queries[:, None] + self.offset)

    def per_query_head(self, kv: np.ndarray) -> np.ndarray:
        return np.repeat(kv, self.q.shape[0] // kv.shape[0], axis=0) if kv.shape[0] else kv

    def products(self) -> np.ndarray:
        return np.matmul(self.q, self.per_query_head(self.k).swapaxes(1, 2))

    def alibi(self) -> np.ndarray:
        if self.slopes is None:
            return np.zeros((1, 1, 1), self.q.dtype)
        return -self.slopes[:, None, None] * np.abs(self.distances())

    def capped(self, x: np.ndarray) -> np.ndarray:
        return x if self.softcap is None else self.softcap * np.tanh(x / self.softcap)

    def scores(self) -> np.ndarray:
        """(hq, tq, tk), before anything is masked."""
        return self.capped(self.products() * self.scale) + self.bias + self.alibi()

    def live(self) -> np.ndarray:
        """Which keys a query attends to by causality, window, mask and a bias of −inf, (hq, tq, tk)."""
        away = self.distances()
        live = self.mask & (self.bias != -INF)
        if self.causal:
            live &= away <= 0
        left, right = self.window or (None, None)
        if left is not None:
            live &= away >= -left
        if right is not None:
            live &= away <= right
        return live

    def magnitudes(self) -> np.ndarray:
        """What the roundings of a score act on, but for those of a softcap: scale·Σ|q||k| + |bias| + |alibi|.

        ALiBi's slope, its product, and the sum round once each, as the bias does: the four roundings that
        the master bound adds to the d of a dot product cover both.
        """
        kv = self.per_query_head(np.abs(self.k))
        products = np.matmul(np.abs(self.q), kv.swapaxes(1, 2)) * abs(self.scale)
        return products + np.abs(self.bias) + np.abs(self.alibi())

    def rows_of(self) -> "Rows":
        """The carry of every row, sinks included."""
        with np.errstate(all="ignore"):
            scores = np.where(self.live(), self.scores(), -INF)
            magnitudes = self.magnitudes()
            sinks = np.full(scores.shape[0], -INF) if self.sinks is None else self.sinks
            sinks = np.broadcast_to(sinks[:, None], scores.shape[:2]).astype(scores.dtype)
            m = np.maximum(scores.max(axis=-1, initial=-INF), sinks)
            shift = np.where(m == -INF, 0, m)
            # What is not live has the term 0, and its value is not looked at.
            terms = np.where(scores == -INF, 0, np.exp(scores - shift[..., None]))
            l = terms.sum(axis=-1) + np.exp(sinks - shift)
            o = product_of_live(terms, scores != -INF, self.per_query_head(self.v))
            lse = np.where(m == INF, INF, shift + np.log(l))
            undefined = np.isnan(m) | (m == INF)
            l, o = np.where(undefined, np.nan, l), np.where(undefined[..., None], np.nan, o)
            output = o / np.where(m == -INF, 1, l)[..., None]
        return Rows(self, scores, magnitudes, sinks, m, l, o, np.where(m == -INF, -INF, lse), output)


def product_of_live(terms: np.ndarray, live: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ terms·values over live keys; an infinity or NaN among live values counts even if its term is 0."""
    finite = np.isfinite(values)
    o = np.matmul(terms, np.where(finite, values, 0))
    if finite.all():
        return o
    reached = live.astype(np.float64)
    above, below, nan = (np.matmul(reached, x.astype(np.float64)) > 0 for x in classes_of(values))
    o = np.where(above, INF, np.where(below, -INF, o))
    return np.where(nan | (above & below), np.nan, o)


def classes_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return x == INF, x == -INF, np.isnan(x)


@dataclass(frozen=True)
class Rows:
    """The exact rows of one sequence: scores (hq, tq, tk), −inf where dead; m, l, lse (hq, tq); o, output."""

    sequence: Sequence
    scores: np.ndarray
    magnitudes: np.ndarray
    sinks: np.ndarray
    m: np.ndarray
    l: np.ndarray
    o: np.ndarray
    lse: np.ndarray
    output: np.ndarray


@dataclass(frozen=True)
class Truth:
    """m, l, lse (b, hq, tq), o and output (b, hq, tq, dv) in wide numbers, and the sequences they are of."""

    dtype: np.dtype
    parts: list[Rows]
    m: np.ndarray
    l: np.ndarray
    o: np.ndarray
    lse: np.ndarray
    output: np.ndarray


def sequences_of(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    window=None,
    mask=None,
    bias=None,
    softcap=None,
    alibi=None,
    sinks=None,
    kv_lengths: Any = None,
    cu_seqlens: Any = None,
    block_table: Any = None,
    splits=None,
    rescale_threshold=0.0,
    kind: type[Sequence] = Sequence,
) -> Iterator[Sequence]:
    """Cut NumPy arguments of `softcarry.attention` into their sequences."""
    wide = wide_of(q.dtype)
    total_q, heads, depth = q.shape[2], q.shape[1], q.shape[3]
    packed, paged = cu_seqlens is not None, block_table is not None
    page, total_k = k.shape[2], k.shape[2]
    if paged:
        block_table = np.asarray(block_table)
        total_k = block_table.shape[1] * page
    query_cuts = key_cuts = cu_seqlens
    if isinstance(cu_seqlens, tuple):
        query_cuts, key_cuts = cu_seqlens
    full = (q.shape[0], heads, total_q, total_k)
    mask = np.broadcast_to(np.asarray(True) if mask is None else mask, full)
    bias = np.broadcast_to(np.zeros((), wide) if bias is None else bias, full)
    for s in range(len(query_cuts) - 1 if packed else q.shape[0]):
        batch = 0 if packed else s
        rows = slice(int(query_cuts[s]), int(query_cuts[s + 1])) if packed else slice(0, total_q)
        length: Any = None if kv_lengths is None else int(kv_lengths[s])
        if paged:
            first, last = 0, length
            keys, values = (gathered(x, block_table[s], length) for x in (k, v))
        else:
            first, last = (int(key_cuts[s]), int(key_cuts[s + 1])) if packed else (0, total_k)
            last = last if length is None else first + length
            keys, values = k[batch, :, first:last], v[batch, :, first:last]
        slopes = None if alibi is None else np.asarray(alibi).astype(wide)
        yield kind(
            batch=batch,
            rows=rows,
            columns=slice(first, last),
            q=q[batch, :, rows].astype(wide),
            k=keys.astype(wide),
            v=values.astype(wide),
            scale=1 / np.sqrt(wide(depth)) if scale is None else wide(scale),
            causal=causal,
            window=window,
            mask=mask[batch, :, rows, first:last],
            bias=bias[batch, :, rows, first:last].astype(wide),
            softcap=None if softcap is None else wide(softcap),
            slopes=slopes[s] if slopes is not None and slopes.ndim == 2 else slopes,
            sinks=None if sinks is None else np.asarray(sinks).astype(wide),
            buffer=total_k,
        )


def gathered(cache: np.ndarray, pages: np.ndarray, length: int) -> np.ndarray:
    """The keys or values of one sequence, (hk, length, d), from a cache (pages, hk, page_size, d)."""
    page = cache.shape[2]
    tokens = [cache[int(pages[j // page]), :, j % page] for j in range(length)]
    return np.stack(tokens, axis=1) if tokens else np.zeros((cache.shape[1], 0, cache.shape[3]), cache.dtype)


def attention_of(q, k, v, *, kind: type[Sequence] = Sequence, **options) -> Truth:
    """The exact answer to `softcarry.attention_carry(q, k, v, **options)`, all of them NumPy's arrays."""
    wide = wide_of(q.dtype)
    rows, dv = q.shape[:3], v.shape[3]
    truth = Truth(
        q.dtype,
        [sequence.rows_of() for sequence in sequences_of(q, k, v, kind=kind, **options)],
        np.full(rows, -INF, wide),
        np.zeros(rows, wide),
        np.zeros((*rows, dv), wide),
        np.full(rows, -INF, wide),
        np.zeros((*rows, dv), wide),
    )
    for part in truth.parts:
        for name in ("m", "l", "o", "lse", "output"):
            getattr(truth, name)[part.sequence.batch, :, part.sequence.rows] = getattr(part, name)
    return truth
