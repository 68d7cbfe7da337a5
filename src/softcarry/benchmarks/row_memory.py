"""Peak extra memory of reductions over a vocabulary, beside torch's."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import softcarry as sc
from softcarry.benchmarks._machine import missing
from softcarry.benchmarks._memory import ExtraMemory, peak_extra_memory
from softcarry.benchmarks.rows import as_torch, long_shape

TARGET = 2**20
"""Bytes beyond the result that a call on a vocabulary may take."""


class MemoryCase(NamedTuple):
    """A call whose peak extra memory is measured.

    Attributes
    ----------
    name : str
        The function.
    library : str
        Whose it is.
    call : callable
        The call, of float32 scores.
    target : int or None
        Bytes beyond the result that it may take.
    """

    name: str
    library: str
    call: Callable[["np.ndarray[Any, Any]"], Any]
    target: int | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The group and the name."""
        return "memory", self.name


class MeasuredMemory(NamedTuple):
    """What came of a case.

    Attributes
    ----------
    case : MemoryCase
        The case.
    found : ExtraMemory
        The bytes, or why there are none.
    judged : bool
        Whether the target counts.
    """

    case: MemoryCase
    found: ExtraMemory
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none, it is not judged, or nothing was measured."""
        beyond = self.found.beyond_result
        if self.case.target is None or beyond is None or not self.judged:
            return None
        return beyond < self.case.target

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; memory is in bytes."""
        return {
            "name": self.case.name,
            "library": self.case.library,
            "peak": self.found.peak,
            "result": self.found.result,
            "beyond_result": self.found.beyond_result,
            "target": self.case.target,
            "met": self.met,
            "reason": self.found.reason,
        }


def memory_cases() -> list[MemoryCase]:
    """List the calls: ours with a target, torch's to be known."""
    return [
        MemoryCase("logsumexp", "softcarry", _our_logsumexp, TARGET),
        MemoryCase("logsumexp", "torch", _torch_logsumexp),
        MemoryCase("top5", "softcarry", _our_top, TARGET),
        MemoryCase("top5", "torch", _torch_top),
    ]


def measure_memory(case: MemoryCase, *, threads: int, quick: bool = False) -> MeasuredMemory:
    """Measure the peak extra memory of a call on a float32 vocabulary, in a fresh process.

    Examples
    --------
    >>> measure_memory(memory_cases()[0], threads=1, quick=True).met is None
    True
    """
    reason = missing([case.library])
    if reason:
        return MeasuredMemory(case, ExtraMemory(None, reason=reason), judged=not quick)
    prepare = partial(_prepare, case, long_shape(quick=quick), threads)
    return MeasuredMemory(case, peak_extra_memory(prepare, size=_result_bytes), judged=not quick)


def _prepare(case: MemoryCase, shape: tuple[int, int], threads: int) -> tuple[Callable, Callable]:
    """Make the call, and as warm-up the same on half as many rows of half the length."""
    if case.library == "torch":
        import torch

        torch.set_num_threads(threads)
    else:
        sc.set_num_threads(threads)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    small = np.ascontiguousarray(x[: shape[0] // 2, : shape[1] // 2])
    return partial(case.call, small), partial(case.call, x)


def _result_bytes(result: Any) -> int:
    """Count the bytes of an array, or of all the arrays that a result yields."""
    return int(result.nbytes) if hasattr(result, "nbytes") else sum(map(_result_bytes, result))


def _our_logsumexp(x):
    return sc.logsumexp(x)


def _our_top(x):
    return sc.softmax_topk(x, 5)


def _torch_logsumexp(x):
    return as_torch(x).logsumexp(-1)


def _torch_top(x):
    return as_torch(x).softmax(-1).topk(5)
