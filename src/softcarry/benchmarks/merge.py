"""Merges of partial outputs beside the eager formula that people write in torch, case by case.

Eight partials of 4096 tokens, 32 heads and 128 values, two of them, groups of unequal number; in float32 and
bfloat16. torch and softcarry work on the same bytes with the same number of threads. The peer stacks the
partials, as it must where they come one by one; of groups it takes sums by index.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import softcarry as sc
from softcarry.benchmarks._cases import Calls, Case
from softcarry.benchmarks._machine import missing
from softcarry.benchmarks._memory import ExtraMemory, peak_extra_memory
from softcarry.benchmarks.row_memory import MeasuredMemory, MemoryCase
from softcarry.benchmarks.rows import as_torch
from softcarry.merging import merge_outputs, merge_outputs_ragged

SHAPE = (4096, 32, 128)
"""Tokens, heads, values of one partial."""
PARTIALS = 8
GROUPS = (4096, 8, 128)
"""Groups, heads, values; a group has eight partials on average."""
TARGET = 2**20
"""Bytes beyond the result that a merge may take."""

_SLICE = 256
"""Tokens that are compared at once."""


class Inputs(NamedTuple):
    """Outputs (n, ..., dv) and log-sum-exps (n, ...) of partials."""

    outputs: "np.ndarray[Any, Any]"
    lses: "np.ndarray[Any, Any]"


def merge_cases(*, quick: bool = False) -> list[Case]:
    """List every case; with ``quick`` there are fewer tokens, an eighth.

    Examples
    --------
    >>> [case.name for case in merge_cases()]
    ['8-partials-out', '8-partials', '2-partials', 'ragged', '8-partials', '2-partials']
    """
    tokens, *rest = SHAPE
    shape = (tokens // 8 if quick else tokens, *rest)
    groups = (GROUPS[0] // 8 if quick else GROUPS[0], *GROUPS[1:])
    total = int(_indptr(groups[0])[-1])
    return [
        _case("float32", PARTIALS, shape, out=True, target=8.0, share_target=0.7),
        _case("float32", PARTIALS, shape, target=8.0),
        _case("float32", 2, shape),
        Case(
            *("ragged", "ragged", (total, *groups[1:]), "float32", "torch sums by index", "torch"),
            partial(_ragged, groups),
        ),
        _case("bfloat16", PARTIALS, shape),
        _case("bfloat16", 2, shape),
    ]


def _case(dtype: str, count: int, shape: tuple[int, ...], *, out: bool = False, **targets: float) -> Case:
    build = partial(_partials, (count, *shape), dtype, out=out)
    name = f"{count}-partials{'-out' if out else ''}"
    return Case(*(dtype, name, (count, *shape), dtype, "torch, eager", "torch", build), **targets)


@lru_cache(maxsize=1)
def inputs(shape: tuple[int, ...], dtype: str) -> Inputs:
    """Draw normal outputs, and log-sum-exps of which one in a thousand belongs to an empty partial."""
    rng = np.random.default_rng(shape)
    outputs = np.empty(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for part in outputs:
        part[...] = rng.standard_normal(part.shape, np.float32)
    lses = rng.standard_normal(shape[:-1], np.float32) * np.float32(2.0) + np.float32(8.0)
    lses[rng.random(lses.shape) < 1e-3] = -np.inf
    # Some partial of every row is live, without which the eager formula is NaN.
    lses[0] = np.maximum(lses[0], 0.0)
    return Inputs(outputs, lses)


def _partials(shape: tuple[int, ...], dtype: str, *, out: bool) -> Calls:
    outputs, lses = inputs(shape, dtype)
    ours = partial(merge_outputs, list(outputs), list(lses))
    if out:
        # The system clears new memory first, which for 64 MiB takes a third as long as the merge.
        ours = partial(ours, out=ours())
    peer = partial(eager, list(as_torch(outputs)), list(as_torch(lses)))

    def wrong() -> str:
        output, lse = ours()
        for start in range(0, shape[1], _SLICE):
            part = slice(start, start + _SLICE)
            found = disagreement(output[part], lse[part], outputs[:, part], lses[:, part])
            if found:
                return f"from token {start} on: {found}"
        return ""

    return Calls(ours, peer, wrong, buffer=outputs, traffic=_traffic(outputs, lses, 1))


def _ragged(groups: tuple[int, ...]) -> Calls:
    import torch

    indptr = _indptr(groups[0])
    outputs, lses = inputs((int(indptr[-1]), *groups[1:]), "float32")
    lses[indptr[:-1]] = np.maximum(lses[indptr[:-1]], 0.0)
    lengths = np.diff(indptr)
    group_of = torch.from_numpy(np.repeat(np.arange(groups[0]), lengths))
    ours = partial(merge_outputs_ragged, outputs, lses, indptr)

    def wrong() -> str:
        output, lse = ours()
        for group in range(groups[0]):
            part = slice(indptr[group], indptr[group + 1])
            found = disagreement(output[group], lse[group], outputs[part], lses[part])
            if found:
                return f"in group {group}: {found}"
        return ""

    peer = partial(eager_ragged, as_torch(outputs), as_torch(lses), group_of, groups[0])
    return Calls(ours, peer, wrong, buffer=outputs, traffic=_traffic(outputs, lses, groups[0]))


def _indptr(groups: int) -> "np.ndarray[Any, Any]":
    """Return where groups of 1 to 15 partials begin."""
    return np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(1, 16, groups))])


def _traffic(outputs: "np.ndarray[Any, Any]", lses: "np.ndarray[Any, Any]", results: int) -> int:
    """Count the bytes of all partials, and of so many results of the size of one."""
    parts = outputs.nbytes + lses.nbytes
    return parts + parts // len(outputs) * results


def eager(outputs: list[Any], lses: list[Any]) -> tuple[Any, Any]:
    """Merge as people write it in torch: stack, maximum, exponential, weighted sum."""
    import torch

    stacked, lse = torch.stack(outputs), torch.stack(lses)
    m = lse.max(dim=0).values
    weights = torch.exp(lse - m)
    total = weights.sum(dim=0)
    output = (stacked * weights.unsqueeze(-1)).sum(dim=0) / total.unsqueeze(-1)
    return output.to(stacked.dtype), m + torch.log(total)


def eager_ragged(outputs: Any, lses: Any, group_of: Any, groups: int) -> tuple[Any, Any]:
    """Merge groups in torch by reductions over an index."""
    import torch

    index = group_of.view(-1, *(1 for _ in lses.shape[1:])).expand_as(lses)
    m = torch.full((groups, *lses.shape[1:]), -torch.inf).scatter_reduce_(0, index, lses, "amax")
    weights = torch.exp(lses - m[group_of])
    total = torch.zeros_like(m).index_add_(0, group_of, weights)
    output = torch.zeros(groups, *outputs.shape[1:]).index_add_(0, group_of, outputs * weights.unsqueeze(-1))
    return output / total.unsqueeze(-1), m + torch.log(total)


def disagreement(output: Any, lse: Any, outputs: Any, lses: Any) -> str:
    """Compare a merge (..., dv), (...) with float64; return "" or what is wrong.

    The bound is that of any sound merge in the working format, float32: the rounding to the output's dtype;
    gap = m − lse, which is rounded and of which the exponential errs by two places, n terms to be summed and
    divided by.
    """
    wide = lses.astype(np.float64)
    m = wide.max(axis=0)
    gap = m - wide
    terms = np.exp(-gap)
    total = terms.sum(axis=0)
    values = outputs.astype(np.float64)
    expected = (terms[..., None] * values).sum(axis=0) / total[..., None]
    u, w = (2.0**-8 if outputs.dtype == ml_dtypes.bfloat16 else 2.0**-24), 2.0**-24
    factors = (
        np.where(terms > 0.0, terms * (np.where(terms > 0.0, gap, 0.0) + 2 * len(lses) + 8), 0.0) / total
    )
    bound = u * np.abs(expected) + w * (factors[..., None] * np.abs(values)).sum(axis=0)
    off = np.abs(np.asarray(output).astype(np.float64) - expected)
    if not (off <= 1.01 * bound).all():
        return f"the output is off by {off.max():.3g}, {(off / bound).max():.3g} times its bound"
    expected_lse = m + np.log(total)
    lse_bound = 2 * w * np.abs(expected_lse) + w * (2 * len(lses) + 8)
    off = np.abs(np.asarray(lse, np.float64) - expected_lse)
    if not (off <= lse_bound).all():
        return f"the lse is off by {off.max():.3g}, {(off / lse_bound).max():.3g} times its bound"
    return ""


def memory_cases() -> list[MemoryCase]:
    """List the merges whose peak memory is measured: ours with a target, torch's to be known."""
    return [
        MemoryCase("merge", "softcarry", _our_merge, TARGET),
        MemoryCase("merge", "torch", _torch_merge),
    ]


def measure_memory(case: MemoryCase, *, threads: int, quick: bool = False) -> MeasuredMemory:
    """Measure the peak extra memory of a merge of eight float32 partials, in a fresh process."""
    reason = missing([case.library])
    if reason:
        return MeasuredMemory(case, ExtraMemory(None, reason=reason), judged=not quick)
    tokens, *rest = SHAPE
    shape = (PARTIALS, tokens // (32 if quick else 4), *rest)
    prepare = partial(_prepare, case, shape, threads)
    return MeasuredMemory(case, peak_extra_memory(prepare, size=_result_bytes), judged=not quick)


def _prepare(case: MemoryCase, shape: tuple[int, ...], threads: int) -> tuple[Callable, Callable]:
    """Make the merge, and as warm-up that of half as many tokens."""
    if case.library == "torch":
        import torch

        torch.set_num_threads(threads)
    else:
        sc.set_num_threads(threads)
    outputs, lses = inputs(shape, "float32")
    half = shape[1] // 2
    small = Inputs(np.ascontiguousarray(outputs[:, :half]), np.ascontiguousarray(lses[:, :half]))
    call: Callable[[Any], Any] = case.call
    return partial(call, small), partial(call, Inputs(outputs, lses))


def _result_bytes(result: Any) -> int:
    return sum(int(part.nbytes) for part in result)


def _our_merge(partials: Any) -> Any:
    return merge_outputs(list(partials.outputs), list(partials.lses))


def _torch_merge(partials: Any) -> Any:
    return eager(list(as_torch(partials.outputs)), list(as_torch(partials.lses)))
