"""Peak extra memory of a causal prefill of one head, whose scores would take gigabytes."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

import softcarry as sc
from softcarry.benchmarks._memory import ExtraMemory, peak_extra_memory

TOKENS = 65536
TARGET = 64 * 2**20
"""Bytes beyond inputs and result that the longest prefill may take."""
GROWTH_TARGET = 2.2
"""By how much that may grow from half as many tokens: twice, and never four times."""

_D = 64
_LEAST = 2**20
"""What counts at least: the system counts pages in batches, so that the growth of less says nothing."""


class PrefillMemoryCase(NamedTuple):
    """A causal prefill of one head, and one of half as many tokens.

    Attributes
    ----------
    tokens : int
        Queries, and keys.
    """

    tokens: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The group and the name."""
        return "memory", "prefill"


class MeasuredPrefillMemory(NamedTuple):
    """What came of it.

    Attributes
    ----------
    case : PrefillMemoryCase
        The case.
    half, whole : ExtraMemory
        The bytes of half the tokens and of all, or why there are none.
    judged : bool
        Whether the targets count.
    """

    case: PrefillMemoryCase
    half: ExtraMemory
    whole: ExtraMemory
    judged: bool = True

    @property
    def growth(self) -> float | None:
        """How many times as much twice the tokens take; a MiB is the least that counts."""
        half, whole = self.half.beyond_result, self.whole.beyond_result
        return None if half is None or whole is None else max(whole, _LEAST) / max(half, _LEAST)

    @property
    def met(self) -> bool | None:
        """Whether both targets are met; None if they do not count, or nothing was measured."""
        growth, beyond = self.growth, self.whole.beyond_result
        if growth is None or beyond is None or not self.judged:
            return None
        return beyond < TARGET and growth <= GROWTH_TARGET

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; memory is in bytes."""
        return {
            "name": self.case.labels[1],
            "tokens": [self.case.tokens // 2, self.case.tokens],
            "peak": [self.half.peak, self.whole.peak],
            "result": [self.half.result, self.whole.result],
            "beyond_result": [self.half.beyond_result, self.whole.beyond_result],
            "target": TARGET,
            "growth": self.growth,
            "growth_target": GROWTH_TARGET,
            "met": self.met,
            "reason": self.whole.reason,
        }


def prefill_memory_case(*, quick: bool = False) -> PrefillMemoryCase:
    """Return the case; with ``quick`` there are an eighth of the tokens.

    Examples
    --------
    >>> prefill_memory_case().tokens
    65536
    """
    return PrefillMemoryCase(TOKENS // 8 if quick else TOKENS)


def measure_prefill_memory(
    case: PrefillMemoryCase, *, threads: int, judged: bool = True
) -> MeasuredPrefillMemory:
    """Measure both prefills, each in a fresh process.

    Parameters
    ----------
    case : PrefillMemoryCase
        The case.
    threads : int
        Threads of the kernel.
    judged : bool
        Whether the targets count.

    Returns
    -------
    MeasuredPrefillMemory
        Figures, or why there are none.
    """
    half, whole = (
        peak_extra_memory(partial(_prepare, tokens, threads), size=_result_bytes)
        for tokens in (case.tokens // 2, case.tokens)
    )
    return MeasuredPrefillMemory(case, half, whole, judged)


def _prepare(tokens: int, threads: int) -> tuple[Any, Any]:
    """Make the call, and as warm-up the same on a sixteenth of the tokens."""
    sc.set_num_threads(threads)
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, tokens, _D), np.float32)
    few = slice(tokens // 16)
    warm = partial(sc.attention, q[:, :, few], k[:, :, few], v[:, :, few], causal=True)
    return warm, partial(sc.attention, q, k, v, causal=True)


def _result_bytes(result: Any) -> int:
    return int(result.nbytes)
