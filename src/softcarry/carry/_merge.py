"""Combining summaries: compiled where they are large and in the memory of the CPU, else by the formulas."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from softcarry._arrays import Namespace, dtype_name, quiet
from softcarry.carry import _algebra, _groups
from softcarry.carry._algebra import Summary
from softcarry.carry._checks import Base

_LEAST = 2**14
"""Elements of all parts together from which on compiled code is the faster."""


def combine(xp: Namespace, parts: Sequence[Summary], *, base: Base) -> Summary:
    """Return the summary of the union of parts of one shape and dtype."""
    if _is_compiled(parts, len(parts)):
        return _merged(parts, base, np.array([0, len(parts)]), stacked=False)
    with quiet(xp):
        return _algebra.combine(xp, parts, base=base)


def combine_groups(xp: Namespace, parts: Summary, pointer: np.ndarray, *, base: Base) -> Summary:
    """Return the summaries (G, ...) of the groups of parts (N, ...) that the pointer (G + 1,) cuts."""
    if _is_compiled([parts], 1):
        return _merged([parts], base, pointer, stacked=True)
    with quiet(xp):
        return _groups.combine_groups(xp, parts, pointer, base=base)


def _is_compiled(parts: Sequence[Summary], count: int) -> bool:
    largest = parts[0].m if parts[0].o is None else parts[0].o
    return count * math.prod(largest.shape) >= _LEAST and _are_in_memory(parts)


def _merged(parts: Sequence[Summary], base: Base, pointer: np.ndarray, *, stacked: bool) -> Summary:
    # Numba is loaded by whoever needs it.
    from softcarry.cpu.merge_work import Part, merge_parts, result_like, strided

    m, l, o = parts[0]
    groups = len(pointer) - 1 if stacked else None
    result = Summary(
        result_like(m, groups=groups, stacked=stacked),
        result_like(l, groups=groups, stacked=stacked),
        None if o is None else result_like(o, groups=groups, stacked=stacked, values=True),
    )

    def described(summary: Summary) -> Part:
        o = None if summary.o is None else strided(summary.o, stacked=stacked, values=True)
        return Part(o, strided(summary.m, stacked=stacked), strided(summary.l, stacked=stacked))

    merge_parts(
        [described(part) for part in parts],
        described(result),
        element=dtype_name(m.dtype),
        shape=tuple(m.shape[int(stacked) :]),
        dv=0 if o is None else o.shape[-1],
        base=base,
        indptr=pointer,
    )
    return result


def _are_in_memory(parts: Sequence[Summary]) -> bool:
    """Whether all are plain arrays of NumPy, or tensors of torch that are no more than memory of the CPU."""
    arrays = [array for part in parts for array in part if array is not None]
    if all(type(array) is np.ndarray for array in arrays):
        return True
    if "torch" not in sys.modules:
        return False
    torch = sys.modules["torch"]
    if _is_watching(torch):
        return False
    recording = torch.is_grad_enabled()
    return all(
        type(array) in (torch.Tensor, torch.nn.Parameter)
        and array.device.type == "cpu"
        and array.layout is torch.strided
        and not array.is_neg()
        and not (recording and array.requires_grad)
        and _has_memory(array)
        for array in arrays
    )


def _is_watching(torch: Any) -> bool:
    """Whether torch wants to see every operation: a compiler, a tracer, a mode, forward derivatives."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


def _has_memory(tensor: Any) -> bool:
    """Whether a tensor is there itself: the transforms of torch.func put others in its place."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False
