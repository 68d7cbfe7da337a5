"""What pieces of the same rows merge by: the indices that they cover, and their carries with l in float64."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softcarry.carry import Carry
from softcarry.errors import OptionError

Spans = tuple[tuple[int, int], ...]


def require_k(k: Any, n: int | None = None) -> int:
    """Return k as an int.

    Raises
    ------
    OptionError
        If it is no integer from 1 on, or above n.
    """
    if not isinstance(k, Integral) or isinstance(k, bool) or not 1 <= int(k) <= (int(k) if n is None else n):
        msg = f"k must be an integer from 1 to {'the number of scores' if n is None else n}, got {k!r}"
        raise OptionError(msg)
    return int(k)


def union_of_spans(spans: list[tuple[int, int]]) -> Spans:
    """Return disjoint spans in ascending order, neighbours joined.

    Raises
    ------
    OptionError
        If two overlap.
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start < joined[-1][1]:
            msg = (
                f"pieces must be disjoint, got indices {joined[-1][0]} to {joined[-1][1] - 1} and {start} to "
                f"{stop - 1}: give softmax_topk the offset= of each piece"
            )
            raise OptionError(msg)
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def merged_carries(
    parts: Sequence[tuple[NDArray[Any], NDArray[Any]]],
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Return the carry (m, l) of the union, merged left to right in float64; m keeps its format, exactly."""
    merged = Carry.merge(*(_wide(m, l) for m, l in parts))
    return np.asarray(merged.m).astype(parts[0][0].dtype), np.asarray(merged.l)


def log_sum_exp(m: NDArray[np.floating], l: NDArray[np.float64]) -> NDArray[np.floating]:
    """Return the lse of carries in the format of m, rounded once from float64."""
    return np.asarray(_wide(m, l).lse).astype(m.dtype)


def _wide(m: NDArray[np.floating], l: NDArray[np.float64]) -> Carry:
    return Carry(m.astype(np.float64), l)
