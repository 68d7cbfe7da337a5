"""Problems for attention: hard data in every structure, with any of the options, in every layout of memory.

A `Case` is a name and a seed: `Case.build` makes the same NumPy arguments of `softcarry.attention` each time.
Whatever no query may see (masked keys, keys beyond a length, unused pages, memory between strides) is NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attention_oracle import sequences_of
from row_cases import DTYPES, KINDS, as_kind, as_numpy
from row_oracle import narrowed

INF, NAN = math.inf, math.nan

# On both sides of every width that a vector, a block of queries or a block of keys is likely to have.
LENGTHS = (0, 1, 2, 3, 5, 7, 16, 31, 33, 63, 64, 65, 127, 128, 129, 192, 193, 257, 513)
DEPTHS = (1, 2, 7, 8, 16, 17, 40, 59, 64, 80, 96, 128, 256, 512)
HEADS = ((1, 1), (4, 4), (4, 1), (6, 2), (7, 7), (8, 8))
PAGE_SIZES = (1, 3, 8, 16, 64)


def _plain(rng, q, k, v) -> None:
    return None


def _positive(rng, q, k, v) -> None:
    np.abs(q, out=q)
    np.abs(k, out=k)
    v[...] = rng.random(v.shape)


def _outlier(rng, q, k, v) -> None:
    q[..., 0] *= 20
    k[..., 0] *= 20
    v[..., -1] *= 100


def _repeated(rng, q, k, v) -> None:
    q *= 2
    k[:, :, ::3] = k[:, :, :1]


def _offset(rng, q, k, v) -> None:
    q[..., 0] = 64 * math.sqrt(q.shape[-1])
    k[..., 0] = 64


def _huge(rng, q, k, v) -> None:
    q *= 100
    k *= 100


def _growing(rng, q, k, v) -> None:
    q[...] = 0
    q[..., 0] = math.sqrt(q.shape[-1])
    k[..., 0] = np.linspace(-20, 20, k.shape[2])


# Standard normal numbers, changed in place: scores about 1; all of one sign; one channel that dominates; the
# maximum many times over; scores of 4096 ± 1; scores of 10^4; a maximum that every key raises.
DATA: dict[str, Callable] = {
    "normal": _plain,
    "positive": _positive,
    "outlier": _outlier,
    "repeated": _repeated,
    "offset": _offset,
    "huge": _huge,
    "growing": _growing,
}


def data(name: str, rng, q_shape, k_shape, v_shape, dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and v of a kind of data in a dtype."""
    q, k, v = (rng.normal(size=shape) for shape in (q_shape, k_shape, v_shape))
    DATA[name](rng, q, k, v)
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def _mask_shape(rng, full: tuple[int, ...]) -> tuple[int, ...]:
    """Some of the axes 1, and sometimes the leading axes missing."""
    shape = tuple(n if rng.random() < 0.6 else 1 for n in full)
    return shape[int(rng.integers(0, 4)) :]


def _mask(rng, case, full, dtype):
    mask = rng.random(_mask_shape(rng, full)) < 0.7
    if mask.ndim > 1:
        mask[..., rng.random(mask.shape[-2]) < 0.1, :] = False
    return {"mask": mask}


def _bias(rng, case, full, dtype):
    bias = rng.normal(size=_mask_shape(rng, full)) * 2
    bias[rng.random(bias.shape) < 0.2] = -INF
    other = DTYPES[pick(list(DTYPES), rng)]
    return {"bias": narrowed(bias, other).astype(other)}


def _window(rng, case, full, dtype):
    left, right = (int(n) for n in rng.integers(0, max(2, full[3] // 2), 2))
    choices = [(left, right), (left, None), (None, right), (0, 0), (None, None), (left, 0)]
    return {"window": pick(choices, rng)}


def _alibi(rng, case, full, dtype):
    shape = (case.heads,) if rng.random() < 0.5 else (case.batch, case.heads)
    return {"alibi": (2.0 ** -rng.integers(0, 9, shape)).astype(np.float32)}


def _sinks(rng, case, full, dtype):
    sinks = rng.normal(size=case.heads) * 2
    sinks[rng.random(case.heads) < 0.2] = -INF
    return {"sinks": narrowed(sinks, np.float32).astype(np.float32)}


def _one_of(name: str, *values):
    return lambda rng, case, full, dtype: {name: pick(values, rng)}


OPTIONS: dict[str, Callable] = {
    "scale": _one_of("scale", 0.37, 1.0, 0.0, -0.2),
    "causal": _one_of("causal", True),
    "bottom-right": _one_of("causal", "bottom-right"),
    "top-left": _one_of("causal", "top-left"),
    "window": _window,
    "mask": _mask,
    "bias": _bias,
    "softcap": _one_of("softcap", 0.5, 3.0, 30.0),
    "alibi": _alibi,
    "sinks": _sinks,
    "splits": _one_of("splits", 1, 2, 3, 7, 1000),
    "threshold": _one_of("rescale_threshold", 0.0, 2.5, 8.0, 20.0),
}
CAUSAL = ("causal", "bottom-right", "top-left")
STRUCTURES = ("plain", "lengths", "packed", "packed pair", "packed lengths", "paged", "paged packed")


def within(values: np.ndarray, shape: tuple[int, ...], index) -> np.ndarray:
    """Return the view at an index of an array of NaN, filled with the values: reading beyond it shows."""
    view = np.full(shape, NAN, values.dtype)[index]
    view[...] = values
    return view


def _in_order(values: np.ndarray, *axes: int) -> np.ndarray:
    return np.ascontiguousarray(values.transpose(axes)).transpose(np.argsort(axes))


def _unaligned(values: np.ndarray) -> np.ndarray:
    view = np.zeros(values.nbytes + 1, np.uint8)[1:].view(values.dtype).reshape(values.shape)
    view[...] = values
    return view


def _odd_strides(values: np.ndarray) -> np.ndarray:
    records = np.zeros(values.shape, np.dtype([("pad", "u1"), ("value", values.dtype)]))
    records["value"] = values
    return records["value"]


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": np.ascontiguousarray,
    "tokens before heads": lambda x: _in_order(x, 0, 2, 1, 3),
    "tokens outermost": lambda x: _in_order(x, 2, 0, 1, 3),
    "depth outermost": lambda x: _in_order(x, 3, 1, 0, 2),
    "tokens innermost": lambda x: _in_order(x, 0, 1, 3, 2),
    "padded": lambda x: within(x, (*x.shape[:2], x.shape[2] + 2, x.shape[3] + 3), np.s_[:, :, 1:-1, 2:-1]),
    "every second": lambda x: within(
        x, (*x.shape[:2], 2 * x.shape[2], 3 * x.shape[3]), np.s_[:, :, ::2, ::3]
    ),
    "sliced heads": lambda x: within(x, (x.shape[0] + 1, x.shape[1] + 2, *x.shape[2:]), np.s_[1:, 1:-1]),
    "reversed tokens": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
    "unaligned": _unaligned,
    "odd strides": _odd_strides,
}
# torch has no negative strides, and none that are no multiple of an element.
TORCH_LAYOUTS = tuple(list(LAYOUTS)[:8])


def _cuts(rng, total: int, pieces: int) -> np.ndarray:
    inner = np.sort(rng.integers(0, total + 1, pieces - 1)) if pieces > 1 else np.zeros(0, np.int64)
    return np.array([0, *inner.tolist(), total]) if pieces else np.zeros(1, np.int64)


def paged(rng, x: np.ndarray, lengths: np.ndarray, table: np.ndarray, page: int, pages: int) -> np.ndarray:
    """Put (n, h, t, d) into a cache (pages, h, page, d) by a block table; the rest of the cache is NaN."""
    cache = np.full((pages, x.shape[1], page, x.shape[3]), NAN, x.dtype)
    for s, length in enumerate(lengths.tolist()):
        for first in range(0, length, page):
            part = x[s, :, first : min(first + page, length)]
            cache[table[s, first // page], :, : part.shape[1]] = part
    return cache


@dataclass(frozen=True)
class Case:
    """One call. ``batch`` sequences in whatever structure; packed ones share out tq and tk tokens."""

    batch: int
    heads: int
    kv_heads: int
    tq: int
    tk: int
    d: int
    dv: int
    dtype: str = "float32"
    data: str = "normal"
    structure: str = "plain"
    options: tuple[str, ...] = ()
    layouts: tuple[str, str, str] = ("contiguous", "contiguous", "contiguous")
    kind: str = "numpy"
    seed: int = 0

    def __str__(self) -> str:
        shape = f"{self.batch},{self.heads}:{self.kv_heads},{self.tq},{self.tk},{self.d}:{self.dv}"
        plain = {"normal", "plain", "contiguous"}
        words = [self.data, self.structure, *self.options, *dict.fromkeys(self.layouts)]
        said = "-".join(word for word in words if word not in plain)
        return f"{shape}-{self.dtype}-{self.kind}-{said}-{self.seed}".replace("--", "-")

    def build(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return q, k, v and the options, all of NumPy."""
        rng = np.random.default_rng([self.seed, self.tq, self.tk, self.d, self.dv, self.heads])
        dtype, options = DTYPES[self.dtype], {}
        packed, pages = "packed" in self.structure, "paged" in self.structure
        tk = self.tq if self.structure == "packed" else self.tk
        rows = (1 if packed else self.batch, self.heads, self.tq)
        kv = (1 if packed and not pages else self.batch, self.kv_heads, tk)
        q, k, v = data(self.data, rng, (*rows, self.d), (*kv, self.d), (*kv, self.dv), dtype)
        query_cuts, key_cuts = _cuts(rng, self.tq, self.batch), _cuts(rng, tk, self.batch)
        if self.structure in ("packed", "paged packed"):
            options["cu_seqlens"] = query_cuts
        elif packed:
            options["cu_seqlens"] = (query_cuts, key_cuts)
        if pages or "lengths" in self.structure:
            own = np.diff(key_cuts) if packed and not pages else np.full(self.batch, tk)
            lengths = np.array([int(rng.integers(0, n + 1)) for n in own], np.int64)
            options["kv_lengths"] = lengths
            starts = key_cuts[:-1] if packed and not pages else np.zeros(self.batch, np.int64)
            for s, (start, n, length) in enumerate(zip(starts, own, lengths, strict=True)):
                for x in (k, v):
                    x[0 if packed and not pages else s, :, start + length : start + n] = NAN
        total = tk
        if pages:
            page = pick(PAGE_SIZES, rng)
            k, v, table = to_pages(rng, k, v, options["kv_lengths"], page)
            options["block_table"], total = table, table.shape[1] * page
        full = (*rows, total)
        for name in self.options:
            options |= OPTIONS[name](rng, self, full, dtype)
        if not pages:
            poison_unseen(q, k, v, options)
        q, k, v = (LAYOUTS[layout](x) for layout, x in zip(self.layouts, (q, k, v), strict=True))
        return q, k, v, options

    def arguments(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return the same as arrays of the case's library."""
        q, k, v, options = self.build()
        return (*(as_kind(self.kind, x) for x in (q, k, v)), of_kind(self.kind, options))


def to_pages(rng, k: np.ndarray, v: np.ndarray, lengths: np.ndarray, page: int):
    """Scatter k and v (n, h, t, d) over pages in random order; table entries past a length are junk."""
    count, most = k.shape[0], -(-k.shape[2] // page)
    pages = count * most + 3
    table = rng.permutation(pages)[: count * most].reshape(count, most)
    caches = [paged(rng, x, lengths, table, page, pages) for x in (k, v)]
    for s, length in enumerate(lengths.tolist()):
        table[s, -(-length // page) :] = rng.choice([-1, -(2**31), 2**31 - 1, pages])
    return *caches, table


def poison_unseen(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> None:
    """Put NaN into all keys and values that no query sees."""
    for sequence in sequences_of(q, k, v, **options):
        seen = sequence.live().any(axis=1)
        seen = seen.reshape(k.shape[1], q.shape[1] // k.shape[1], seen.shape[-1]).any(axis=1)
        for x in (k, v):
            x[sequence.batch, :, sequence.columns][~seen] = NAN


def of_kind(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options whose arrays are of a library."""

    def turned(value):
        if isinstance(value, np.ndarray):
            return as_kind(kind, value)
        return tuple(turned(x) for x in value) if isinstance(value, tuple) else value

    return {name: turned(value) for name, value in options.items()}


def bits(array) -> np.ndarray:
    """Return the bits of an array of either library, all NaN counting as one."""
    array = np.ascontiguousarray(as_numpy(array))
    array = np.where(np.isnan(array.astype(np.float64)), np.asarray(NAN, array.dtype), array)
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(got, want) -> None:
    """Fail unless two outputs, or two carries, agree in kind, dtype, shape and every bit."""
    if hasattr(want, "m"):
        for name in ("m", "l", "o"):
            assert_same_bits(getattr(got, name), getattr(want, name))
        return
    assert isinstance(got, torch.Tensor) == isinstance(want, torch.Tensor)
    assert as_numpy(got).dtype == as_numpy(want).dtype
    assert tuple(got.shape) == tuple(want.shape)
    differ = bits(got) != bits(want)
    assert not differ.any(), (
        f"{int(differ.sum())} of {differ.size} differ, first at {np.argwhere(differ)[0].tolist()}: "
        f"{as_numpy(got)[differ][:3]} for {as_numpy(want)[differ][:3]}"
    )


def pick(values, rng):
    return values[int(rng.integers(len(values)))]


def random_cases(count: int, *, tiny: bool = False, start: int = 0) -> list[Case]:
    """Return so many cases of random structures, options, data, layouts, shapes, dtypes and libraries."""
    cases = []
    for seed in range(start, start + count):
        rng = np.random.default_rng([seed, 7])
        structure = STRUCTURES[seed % len(STRUCTURES)]
        heads, kv_heads = pick(HEADS, rng)
        most_q, most_k = (6, 9) if tiny else ((4, 300) if rng.random() < 0.5 else (90, 140))
        wanted = [name for name in OPTIONS if rng.random() < 0.35]
        causal = [name for name in wanted if name in CAUSAL][1:]
        kind = "numpy" if tiny or rng.random() < 0.5 else "torch"
        layouts = TORCH_LAYOUTS if kind == "torch" else tuple(LAYOUTS)
        cases.append(
            Case(
                batch=int(rng.integers(1, 4)),
                heads=2 * kv_heads if tiny else heads,
                kv_heads=kv_heads,
                tq=int(rng.integers(1, most_q + 1)),
                tk=int(rng.integers(0 if rng.random() < 0.1 else 1, most_k + 1)),
                d=int(rng.integers(1, 5)) if tiny else int(rng.choice(DEPTHS[:-2])),
                dv=int(rng.integers(1, 4)) if tiny else int(rng.choice(DEPTHS[:-2])),
                dtype=pick(list(DTYPES), rng),
                data=pick(list(DATA), rng),
                structure=structure,
                options=tuple(name for name in wanted if name not in causal),
                layouts=(pick(layouts, rng), pick(layouts, rng), pick(layouts, rng)),
                kind=kind,
                seed=seed,
            )
        )
    return cases


def rotated(values, at: int):
    return values[at % len(values)]


# What every implementation meets: options alone, structures, hard data, and options combined at random.
ALONE = [
    Case(2, 4, 2, tq, tk, 16, 24, dtype, options=(name,), kind=rotated(KINDS, n), seed=seed)
    for name in OPTIONS
    for n, dtype in enumerate(DTYPES)
    for seed, (tq, tk) in enumerate(((1, 67), (5, 200), (70, 67)))
]
STRUCTURED = [
    Case(3, 4, 2, tq, tk, 16, 24, dtype, structure=name, kind=rotated(KINDS, n + seed), options=options)
    for name in STRUCTURES[1:]
    for n, dtype in enumerate(DTYPES)
    for seed, (tq, tk) in enumerate(((1, 67), (5, 200), (70, 129)))
    for options in ((), ("causal",))
]
HARD = [
    Case(1, 2, 1, tq, tk, d, 24, dtype, data=name, kind=rotated(KINDS, n), options=options)
    for name in DATA
    for n, dtype in enumerate(DTYPES)
    for tq, tk, d, options in (
        (1, 300, 64, ()),
        (4, 131, 40, ("causal",)),
        (70, 193, 64, ()),
        (65, 513, 16, ()),
    )
]
# Where keys are split over threads, and blocks of them skipped. Long doubles are multiplied one at a time.
MANY = (
    *(("plain", ()), ("plain", ("causal",)), ("plain", ("window",)), ("plain", ("window", "top-left"))),
    *(("plain", ("mask",)), ("plain", ("bias", "splits")), ("lengths", ("causal", "sinks"))),
    *(("paged", ("causal",)), ("packed pair", ("window",)), ("plain", ("alibi", "softcap", "causal"))),
)
LONG = [
    Case(1, 4, 2, tq, tk, 40, 24, rotated(list(DTYPES)[tq > 9 :], n), structure=name, options=options, seed=n)
    for n, (name, options) in enumerate(MANY)
    for tq, tk in ((1, 4099), (3, 2048), (17, 1537), (200, 2051), (700, 1100))
]
RANDOM = random_cases(240)
