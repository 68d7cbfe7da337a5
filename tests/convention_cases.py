"""The conventions as the public sources state them, typed again here, and arrays written from them by einsum.

Nothing here reads softcarry's table: a wrong entry there disagrees with this one.
"""

import math
from typing import NamedTuple

import numpy as np

INF, NAN = math.inf, math.nan
LN2 = math.log(2.0)
FLOAT32_MIN = float(np.finfo(np.float32).min)


class Case(NamedTuple):
    """Base, axes of the output and of the lse, what an empty row's lse is, and how many numbers a row has."""

    base: str
    output: str
    lse: str
    empty: float
    kind: str = "lse"


CASES = {
    "softcarry": Case("e", "bhtd", "bht", -INF),
    "flashinfer": Case("2", "thd", "th", -INF),
    "flashinfer-states": Case("2", "tnhd", "tnh", -INF),
    "flashinfer-sentinel": Case("2", "thd", "th", -5e4),
    "trtllm-gen": Case("2", "thd", "th", -INF),
    "trtllm-gen-base-e": Case("e", "thd", "th", -INF),
    "flash-attn": Case("e", "bthd", "bht", INF),
    "flash-attn-varlen": Case("e", "thd", "ht", INF),
    "flash-attn-varlen-before-2.6": Case("e", "thd", "bhs", INF),
    "flash-attn-rocm-varlen": Case("e", "thd", "th", -INF),
    "flash-attn-3": Case("e", "bthd", "bht", -INF),
    "flash-attn-3-varlen": Case("e", "thd", "ht", -INF),
    "flash-attn-4": Case("e", "bthd", "bht", -INF),
    "flash-attn-4-varlen": Case("e", "thd", "ht", -INF),
    "flash-attn-4-combine": Case("e", "nbthd", "nbth", -INF),
    "flash-attn-4-combine-varlen": Case("e", "nthd", "nth", -INF),
    "vllm": Case("e", "thd", "ht", -INF),
    "vllm-dcp": Case("e", "thd", "th", -INF),
    "vllm-dcp-gathered": Case("e", "nthd", "nth", -INF),
    "vllm-dcp-base-2": Case("2", "thd", "th", -INF),
    "vllm-dcp-gathered-base-2": Case("2", "nthd", "nth", -INF),
    "sglang": Case("e", "thd", "th", -INF),
    "sglang-heads-first": Case("e", "thd", "ht", -INF),
    "xformers": Case("e", "bthd", "bht", -INF),
    "xformers-grouped": Case("e", "btghd", "bght", -INF),
    "natten": Case("e", "bthd", "bth", -INF),
    "torch-flex": Case("e", "bhtd", "bht", -INF),
    "torch-flex-operator": Case("2", "bhtd", "bht", -INF),
    "torch-flex-before-2.5": Case("e", "bhtd", "bht", 0.0),
    "aten-flash-cpu": Case("e", "bhtd", "bht", 0.0),
    "aten-flash-cuda": Case("e", "bhtd", "bht", INF),
    "aten-efficient": Case("e", "bhtd", "bht", 0.0),
    "aten-efficient-before-2.5": Case("e", "bhtd", "bht", -INF),
    "torch-varlen": Case("e", "thd", "ht", INF),
    "torch-varlen-documented": Case("e", "thd", "th", INF),
    "torch-varlen-rocm": Case("e", "thd", "bhs", INF),
    "jax-nn": Case("e", "bthd", "bth", 0.7 * FLOAT32_MIN),
    "jax-cudnn": Case("e", "bthd", "bht", -INF),
    "jax-cudnn-bnth": Case("e", "bhtd", "bht", -INF),
    "pallas-decode": Case("e", "thd", "th", FLOAT32_MIN, "lm"),
    "pallas-decode-unnormalised": Case("e", "thd", "th", FLOAT32_MIN, "lm"),
    "sycl-tla": Case("e", "bhtd", "bht", NAN, "mixed"),
    "keops": Case("e", "bhtd", "bht1", NAN),
    "keops-pair": Case("e", "bhtd", "bht1", -INF, "ml"),
}
DECODABLE = [name for name, case in CASES.items() if case.kind != "mixed"]
SIZES = {"n": 2, "b": 2, "g": 2, "h": 3, "t": 7, "d": 5}
LENGTHS = (4, 3)
CU_SEQLENS = [0, 4, 7]


class Rows(NamedTuple):
    """Rows in canonical order, in float64: the scores' softmax by plain loops. Row 2 of every t is empty."""

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray
    output: np.ndarray
    lse: np.ndarray
    empty: np.ndarray


def rows_for(case: Case, *, seed: int = 0, keys: int = 9, spread: float = 3.0) -> Rows:
    """Return random rows of the case's axes, with values of unequal size and one empty row in t."""
    axes = [axis for axis in "nbght" if axis in case.output]
    shape = tuple(SIZES[axis] for axis in axes)
    rng = np.random.default_rng(seed)
    scores = spread * rng.standard_normal((*shape, keys))
    values = rng.standard_normal((*shape, keys, SIZES["d"])) * 2.0 ** rng.integers(-3, 4, keys)[:, None]
    scores[..., 2, :] = -INF
    m, l, lse = (np.full(shape, fill) for fill in (-INF, 0.0, -INF))
    o, output = np.zeros((*shape, SIZES["d"])), np.zeros((*shape, SIZES["d"]))
    for row in np.ndindex(shape):
        if row[-1] != 2:
            m[row] = max(scores[row])
            terms = [math.exp(s - m[row]) for s in scores[row]]
            l[row] = math.fsum(terms)
            lse[row] = m[row] + math.log(l[row])
            o[row] = [
                math.fsum(p * v for p, v in zip(terms, column, strict=True)) for column in values[row].T
            ]
            output[row] = o[row] / l[row]
    return Rows(m, l, o, output, lse, lse == -INF)


def written(case: Case, rows: Rows, *, unnormalised: bool = False):
    """Return (output, lse) as the library of the case would, in float32."""
    stored = [axis for axis in "nbght" if axis in case.output]
    canonical = "".join(stored)
    unit = LN2 if case.base == "2" else 1.0

    def lay_out(statistic, fill):
        statistic = np.where(rows.empty, fill, statistic).astype(np.float32)
        if case.lse == "bhs":
            padded = np.full((len(LENGTHS), SIZES["h"], max(LENGTHS) + 1), NAN, np.float32)
            for b, n in enumerate(LENGTHS):
                padded[b, :, :n] = statistic[:, CU_SEQLENS[b] : CU_SEQLENS[b] + n]
            return padded
        axes = case.lse.removesuffix("1")
        laid_out = np.einsum(f"{canonical}->{axes}", statistic)
        return laid_out[..., None] if case.lse.endswith("1") else laid_out

    output = np.einsum(
        f"{canonical}d->{case.output}", (rows.o if unnormalised else rows.output).astype(np.float32)
    )
    if case.kind == "lse":
        return output, lay_out(rows.lse / unit, case.empty)
    m, l = lay_out(rows.m / unit, case.empty), lay_out(rows.l, 0.0)
    return output, (l, m) if case.kind == "lm" else (m, l)


def options_for(case: Case) -> dict[str, list[int]]:
    """Return the options that decode and encode need for the case."""
    return {"cu_seqlens": CU_SEQLENS} if case.lse == "bhs" else {}
