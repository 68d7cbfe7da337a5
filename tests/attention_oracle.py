"""Attention by its plain dense formula in wide numbers, and the bounds on what rounding makes of it.

Inputs are taken as they are (already rounded to their dtype) and widened, to float64, or to long double where
the inputs are float64, so that the oracle's own error is far below the bounds. Packed sequences, lengths and
pages are undone first: what is left is one `Sequence` after another, each with its own tokens only, and the
formula sees nothing else. Of softcarry only the master bound is used, `attention_error_bound`.
`tests/attention/test_oracle.py` holds the formulas here to three nested loops in fifty digits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from softcarry.numerics import attention_error_bound
from softcarry.numerics.attention_bounds import CarryModel

INF = math.inf
LOG2_E = 1.0 / math.log(2.0)

# Stored mantissa bits, least exponent of a normal number.
LAYOUT = {"float64": (52, -1022), "float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}

# What exponentials may err by, in units in the last place: the 1 to 2 of the master bound.
EXP_ULPS = 2.0

# Roundings of the size of the cap in c·tanh(x/c), with tanh y = 1 − 2/(1 + e^(2y)): x and 1/c each move y by
# u·|y|, which weighs sech²y·|y| < 1/2 at most; the exponential errs by 4u, which weighs 2e^(2y)/(1 + e^(2y))²
# ≤ 1/2; 1 + e, the quotient, 1 − 2/(1 + e) and the product with c round once each, by at most u·c; c itself
# is rounded, and so is c·log2 e. tanh' ≤ 1: the error of x comes on top, no larger than it was.
SOFTCAP_ROUNDINGS = 8.0


def unit_roundoff(dtype) -> float:
    return 2.0 ** -(LAYOUT[np.dtype(dtype).name][0] + 1)


def working_name(dtype) -> str:
    return "float64" if np.dtype(dtype) == np.float64 else "float32"


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
        """Which keys a query attends to, (hq, tq, tk), as causality, window, mask and a bias of −inf decide."""
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
class Bounds:
    """Bounds on the errors of the output before its last rounding, and after it, of lse and of m."""

    output: np.ndarray
    rounded: np.ndarray
    lse: np.ndarray
    m_below: np.ndarray
    m_above: np.ndarray


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

    def live(self) -> list[np.ndarray]:
        return [rows.scores != -INF for rows in self.parts]

    def bounds(self, *, splits: int = 1, threshold: float = 0.0, statistical: bool = False) -> Bounds:
        """The master bound, `bounds_of`, of every row."""
        bounds = Bounds(
            np.zeros(self.output.shape),
            np.zeros(self.output.shape),
            *(np.zeros(self.m.shape) for _ in range(3)),
        )
        for rows in self.parts:
            found = bounds_of(rows, self.dtype, splits, threshold, statistical)
            for name in vars(bounds):
                getattr(bounds, name)[rows.sequence.batch, :, rows.sequence.rows] = getattr(found, name)
        return bounds


def bounds_of(rows: Rows, dtype, splits: int, threshold: float, statistical: bool) -> Bounds:
    """The master bound of a kernel that keeps m, l, o and P in the working format, in blocks of any size.

    Beyond `attention_error_bound` there are, in a score's error d_j,

    - |bias| and |alibi| beside scale·Σ|q||k| (see `Sequence.magnitudes`);
    - a softcap c: 8u·c (see SOFTCAP_ROUNDINGS);
    - a sink: one more key, of value 0, whose score is rounded and not computed;
    - a rescale threshold τ: m lags behind the maximum by τ at most, so that where the bound has u·(m − s) and
      u·|m| there may be τ more: u·τ·(2 + log2 e). o and l only grow by it, which no relative error sees.

    A sum u·E is added to d_j as E/(d + 4) of magnitude, since that weighs γ_{d+4} ≥ (d + 4)·u. More splits
    than keys have nothing to merge.
    """
    sequence, name = rows.sequence, working_name(dtype)
    u, depth = unit_roundoff(name), sequence.q.shape[-1]
    extra = threshold * (2.0 + LOG2_E)
    if sequence.softcap is not None:
        extra += SOFTCAP_ROUNDINGS * sequence.softcap
    finite = np.isfinite(rows.magnitudes)
    magnitudes = np.where(finite, rows.magnitudes, INF).astype(np.float64) + extra / (depth + 4)
    scores = rows.scores.astype(np.float64)
    # The sink is one more key, and every value but its own is padded below by a row of zeros.
    sinks = rows.sinks[..., None].astype(np.float64)
    scores = np.concatenate([scores, sinks], axis=-1)
    magnitudes = np.concatenate([magnitudes, np.where(np.isfinite(sinks), np.abs(sinks), 0.0)], axis=-1)
    values = np.pad(sequence.v.astype(np.float64), ((0, 0), (0, 1), (0, 0)))
    model = CarryModel(
        l_format=name,
        o_format=name,
        score_format=name,
        exp_ulps=EXP_ULPS,
        splits=max(1, min(splits, scores.shape[-1])),
    )
    with np.errstate(all="ignore"):
        found = attention_error_bound(
            scores[None],
            magnitudes[None],
            values[None],
            depth=depth,
            model=model,
            output_format=name,
            lse_format=name,
            statistical=statistical,
        )
        live = scores != -INF
        score_errors = (depth + 5) * u * magnitudes + (2.0 + LOG2_E) * u * np.abs(scores)
        m = rows.m.astype(np.float64)
        m_above = (np.where(live, scores + score_errors, -INF)).max(axis=-1) - m
        m_below = m - (np.where(live, scores - score_errors, -INF)).max(axis=-1) + threshold
        empty = m == -INF
        # Another margin for the oracle itself, which matters only where long doubles are no wider.
        margin = 1.0 + float(np.finfo(wide_of(dtype)).eps) / u
        output, lse = margin * found.output[0], margin * found.lse[0]
        roundoff = 0.0 if np.dtype(dtype).name == name else unit_roundoff(dtype)
        bits, least = LAYOUT[np.dtype(dtype).name]
        rounded = output + roundoff * (np.abs(rows.output.astype(np.float64)) + output)
        rounded = np.where(empty[..., None], 0.0, rounded + 2.0 ** (least - bits) * (roundoff > 0))
    residual = LOG2_E * u * np.abs(np.where(np.isfinite(m), m, 0.0))
    m_below, m_above = (
        np.where(empty, 0.0, np.where(np.isfinite(m), x + residual, INF)) for x in (m_below, m_above)
    )
    return Bounds(output, rounded, lse, m_below, m_above)


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
    kv_lengths=None,
    cu_seqlens=None,
    block_table=None,
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
        length = None if kv_lengths is None else int(kv_lengths[s])
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


def worst(error: np.ndarray, bound: np.ndarray) -> str:
    """Say where an error exceeds its bound most."""
    with np.errstate(all="ignore"):
        ratio = np.where(np.isnan(error), INF, error / np.where(bound > 0, bound, 5e-324))
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = tuple(int(i) for i in at)
    return f"{place}: off by {float(error[at]):.3g}, allowed {float(bound[at]):.3g} (x{float(ratio[at]):.3g})"


def assert_within(name: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray, below=None) -> None:
    """Fail unless |got − want| ≤ bound where want is finite, and got is of the same class where it is not.

    A NaN counts as an infinity: which of the two comes out depends on whether 0·inf is formed.
    """
    got = got.astype(want.dtype)
    assert got.shape == want.shape, f"{name}: shape {got.shape} for {want.shape}"
    finite = np.isfinite(want)
    odd = ~finite & (want != -INF if name in ("m", "lse") else True)
    wrong = (odd & np.isfinite(got)) | (np.isinf(got) & np.isinf(want) & (got != want))
    wrong |= ~finite & ~odd & (got != want)
    assert not wrong.any(), f"{name}: {got[wrong][:3]} for {want[wrong][:3]} at {np.argwhere(wrong)[:3]}"
    with np.errstate(all="ignore"):
        difference = np.where(finite, got - want, 0).astype(np.float64)
    below = bound if below is None else below
    allowed = np.where(difference < 0, below, bound)
    assert not np.isnan(allowed).any(), f"{name}: there is no bound"
    fine = np.abs(difference) <= allowed
    assert fine.all(), f"{name} {worst(np.abs(difference), allowed)}"


def assert_zero(name: str, got: np.ndarray, rows: np.ndarray) -> None:
    """Fail unless rows are +0 to the bit, as those of an empty carry are."""
    wrong = (got[rows] != 0) | np.signbit(got[rows])
    assert not wrong.any(), f"{name} of empty rows: {got[rows][wrong][:3]} at {np.argwhere(rows)[:3].tolist()}"


def assert_output(got: np.ndarray, truth: Truth, bounds: Bounds) -> None:
    """Fail unless an output (b, hq, tq, dv) in the dtype of q lies within the bound and one rounding."""
    assert got.dtype == truth.dtype, got.dtype
    assert_within("output", got, truth.output, bounds.rounded)
    assert_zero("output", got.astype(truth.output.dtype), truth.m == -INF)


def assert_carry(m: np.ndarray, l: np.ndarray, o: np.ndarray, truth: Truth, bounds: Bounds) -> None:
    """Fail unless m, m + ln l and o / l lie within their bounds; these three fix the carry."""
    name = working_name(truth.dtype)
    assert [str(x.dtype) for x in (m, l, o)] == [name] * 3, [x.dtype for x in (m, l, o)]
    assert_within("m", m, truth.m, bounds.m_above, bounds.m_below)
    empty = truth.m == -INF
    assert_zero("l", l, empty)
    assert_zero("o", o, empty)
    finite = np.isfinite(truth.m)
    assert not (l[finite] <= 0).any(), "l: a row with keys has none"
    wide = truth.m.dtype
    with np.errstate(all="ignore"):
        total = np.where(empty, 1, l.astype(wide))
        lse = np.where(empty, -INF, m.astype(wide) + np.log(total))
        output = o.astype(wide) / total[..., None]
    assert_within("lse", np.where(truth.m == INF, m, lse), truth.lse, bounds.lse)
    assert_within("o / l", output, truth.output, bounds.output)
