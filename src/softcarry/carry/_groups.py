"""Groups of partials merged at once: N summaries along the leading axis, cut into G groups by an indptr.

Every group is folded by halving: neighbours are combined pairwise until one is left, all groups in step. That
takes ⌈log2 of the longest group⌉ rounds and work in proportion to N, however uneven the groups are, where
padding to the longest group would cost G times its length.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import array_api_compat
import numpy as np

from softcarry._arrays import Array, Namespace, select
from softcarry.carry._algebra import Summary, clear_empty, rescale, shift_of
from softcarry.errors import DTypeError, OptionError, ShapeError


class _Round(NamedTuple):
    """Which elements meet in one round; ``right`` repeats ``left`` where the element is alone."""

    left: np.ndarray
    right: np.ndarray
    paired: np.ndarray


def read_indptr(indptr: Any, n: int) -> np.ndarray:
    """Return a CSR pointer over n elements as a NumPy array of int64.

    Raises
    ------
    DTypeError
        If it does not hold integers.
    ShapeError
        If it is not one-dimensional with at least one entry.
    OptionError
        If it does not start at 0, decreases, does not end at n, or is traced.
    """
    try:
        pointer = _to_numpy(indptr)
    except (TypeError, RuntimeError, ValueError, BufferError) as error:
        msg = f"indptr must be an array of known integers, got {type(indptr).__name__}: do not trace it"
        raise OptionError(msg) from error
    if pointer.ndim != 1 or pointer.size == 0:
        msg = f"indptr must have shape (groups + 1,), got {pointer.shape}: begin it with 0"
        raise ShapeError(msg)
    if pointer.dtype.kind not in "iu":
        msg = f"indptr must hold integers, got {pointer.dtype}: convert it to int64"
        raise DTypeError(msg)
    pointer = pointer.astype(np.int64)
    if pointer[0] != 0 or pointer[-1] != n:
        msg = f"indptr must run from 0 to {n}, the length of axis 0, got {pointer[0]} to {pointer[-1]}"
        raise OptionError(msg)
    steps = np.diff(pointer)
    if (steps < 0).any():
        group = int(np.argmax(steps < 0))
        msg = f"indptr must not decrease, group {group} has length {steps[group]}: sort indptr"
        raise OptionError(msg)
    return pointer


def _to_numpy(array: Any) -> np.ndarray:
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu().numpy()
    if hasattr(array, "__array__") or not array_api_compat.is_array_api_obj(array):
        return np.asarray(array)
    return np.from_dlpack(cast("Any", array))


def combine_groups(xp: Namespace, parts: Summary, pointer: np.ndarray, *, base: str) -> Summary:
    """Return the summaries (G, ...) of the groups of parts (N, ...) that the pointer (G + 1,) cuts."""
    lengths = np.diff(pointer)
    rounds = _halvings(lengths)
    m = _fold(xp, xp.maximum, parts.m, -np.inf, rounds, lengths)
    group_of = np.repeat(np.arange(lengths.size), lengths)
    scaled = rescale(xp, parts, _take(xp, shift_of(xp, m), group_of), base=base)
    total = _fold(xp, operator.add, scaled.l, 0.0, rounds, lengths)
    if scaled.o is None:
        return Summary(m, total, None)
    return Summary(m, total, clear_empty(xp, m, _fold(xp, operator.add, scaled.o, -0.0, rounds, lengths)))


def _halvings(lengths: np.ndarray) -> list[_Round]:
    rounds = []
    while lengths.size and lengths.max() > 1:
        halves = (lengths + 1) // 2
        group = np.repeat(np.arange(lengths.size), halves)
        place = 2 * (np.arange(group.size) - (np.cumsum(halves) - halves)[group])
        left = (np.cumsum(lengths) - lengths)[group] + place
        paired = place + 1 < lengths[group]
        rounds.append(_Round(left, left + paired, paired))
        lengths = halves
    return rounds


def _fold(
    xp: Namespace,
    operation: Callable[[Array, Array], Array],
    array: Array,
    neutral: float,
    rounds: list[_Round],
    lengths: np.ndarray,
) -> Array:
    for left, right, paired in rounds:
        partner = _where(xp, paired, _take(xp, array, right), neutral)
        array = operation(_take(xp, array, left), partner)
    occupied = lengths > 0
    if occupied.all():
        return array
    if not occupied.any():
        device = array_api_compat.device(array)
        return xp.full((lengths.size, *array.shape[1:]), neutral, dtype=array.dtype, device=device)
    # One element is left of every occupied group; an empty group borrows any of them and selects it away.
    source = np.maximum(np.cumsum(occupied) - 1, 0)
    return _where(xp, occupied, _take(xp, array, source), neutral)


def _take(xp: Namespace, array: Array, indices: np.ndarray) -> Array:
    return xp.take(array, xp.asarray(indices, device=array_api_compat.device(array)), axis=0)


def _where(xp: Namespace, condition: np.ndarray, array: Array, neutral: float) -> Array:
    if condition.all():
        return array
    column = xp.asarray(condition, device=array_api_compat.device(array))
    return select(xp, xp.reshape(column, (-1,) + (1,) * (array.ndim - 1)), array, neutral)
