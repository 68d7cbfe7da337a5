"""logprobs: log-probabilities of chosen scores, of the largest, or of both."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array, DType
from softcarry.cpu.row_work import row_carries_of
from softcarry.errors import OptionError, ShapeError
from softcarry.rows._operand import integers_of, operand, require_axis, scores_of
from softcarry.rows._results import (
    address_of,
    as_kind,
    in_dtype_of,
    made_like,
    moved_axis,
    numpy_view,
    require_out,
    result_element,
    returned,
)
from softcarry.rows._softmax_topk import softmax_topk


class Logprobs(NamedTuple):
    """Log-probabilities of the targets and of the k largest scores of each row."""

    targets: Array | None
    """Of the targets, in their shape; None where none were given."""
    top: Array
    """(..., k, ...) of the largest, in descending order."""
    indices: Array
    """(..., k, ...) int64: where the largest stand."""


def logprobs(
    x: Array,
    targets: Any = None,
    axis: int = -1,
    *,
    top_k: int | None = None,
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Any:
    """Return the log-probabilities (x − m) − ln l of chosen scores of each row, reading the rows once.

    They are computed from the pair (m, l) in float64 and rounded once, never from x − lse, which cancels:
    with a common offset of 1e8 the lse of float32 scores has lost everything below 4, while x − m is exact.

    Parameters
    ----------
    x : array (..., n, ...)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides; it is not
        copied. Integers are converted to float64.
    targets : int or integer array (...) or (..., t, ...), optional
        Indices along the axis, one a row or several. NumPy's, or a torch CPU tensor.
    axis : int
        The axis of length n.
    top_k : int, optional
        Also report the k largest scores of each row: from 1 to n.
    dtype : dtype or str, optional
        Of the result: x's by default (float64 for integers).
    out : array, optional
        Where to put the result, if ``top_k`` is not given.

    Returns
    -------
    array or Logprobs
        An array of the shape of ``targets``, of x's library; or, with ``top_k``, the tuple (targets, top,
        indices). A score of −inf has log-probability −inf, also in a row without live scores. A NaN or +inf
        makes those of its row NaN.

    Raises
    ------
    DTypeError
        If x is no such array, is complex or an object, or records gradients; if targets are no integers; if
        ``dtype`` or ``out`` can't hold the result.
    ShapeError
        If ``targets`` or ``out`` has another shape.
    OptionError
        If a target, k or the axis is out of range, if neither targets nor ``top_k`` is given, or ``out``
        overlaps x.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> x = np.array([[2.0, 5.0, 1.0, 7.0], [1e8, 1e8 + 1, 1e8, 1e8]])
    >>> sc.logprobs(x, np.array([3, 1])).round(4)
    array([-0.135 , -0.7437])
    >>> sc.logprobs(x[0], 3, top_k=2).indices
    array([3, 1])
    """
    x = scores_of(x)
    axis = require_axis(x, axis)
    if top_k is not None and out is not None:
        msg = "out holds the log-probabilities of targets only, got top_k too: leave one of them out"
        raise OptionError(msg)
    chosen = None if targets is None else _chosen(x, targets, axis)
    if top_k is None:
        if chosen is None:
            msg = "logprobs needs targets, top_k, or both, got neither"
            raise OptionError(msg)
        return _of_targets(x, axis, chosen, dtype, out)
    top = softmax_topk(x, top_k, axis, dtype=dtype)
    scores, m, l = (numpy_view(array) for array in (top.scores, top.m, top.l))

    def result(scores: NDArray[np.floating], place: Callable[[Any], Any]) -> Array:
        return in_dtype_of(top.probabilities, place(as_kind(x, log_probabilities(scores, m, l))))

    return Logprobs(
        None if chosen is None else result(gathered(x, axis, chosen.indices), chosen.place),
        result(np.moveaxis(scores, axis, -1), lambda array: moved_axis(array, -1, axis)),
        top.indices,
    )


class _Chosen(NamedTuple):
    """Targets (rows..., t), and how a result of that shape is brought to the shape that they came in."""

    indices: NDArray[np.int64]
    place: Callable[[Array], Array]
    shape: tuple[int, ...]


def _chosen(x: Array, targets: Any, axis: int) -> _Chosen:
    indices = integers_of(targets)
    n = x.shape[axis]
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    several = indices.ndim == x.ndim
    columns = np.moveaxis(indices, axis, -1) if several else indices[..., None]
    if columns.shape[:-1] != rows:
        along = (*rows[:axis], "t", *rows[axis:])
        msg = (
            f"targets must have shape {rows}, one a row, or ({', '.join(map(str, along))}), several along "
            f"axis {axis}; got {indices.shape}"
        )
        raise ShapeError(msg)
    if indices.size and not (indices.min() >= 0 and indices.max() < n):
        outside = indices[(indices < 0) | (indices >= n)].flat[0]
        msg = f"targets must be from 0 to {n - 1}, got {outside}: leave out the rows that have no target"
        raise OptionError(msg)

    def place(array: Array) -> Array:
        return moved_axis(array, -1, axis) if several else array[..., 0]

    return _Chosen(columns.astype(np.int64), place, indices.shape)


def _of_targets(x: Array, axis: int, chosen: _Chosen, dtype: DType | str | None, out: Array | None) -> Any:
    element = result_element(x, dtype) if out is None else require_out(x, chosen.shape, out, dtype)
    result = made_like(x, chosen.indices.shape, element)
    if chosen.indices.size:
        count = math.prod(chosen.indices.shape[:-1])
        row_carries_of(
            operand(x, axis),
            out_element=element,
            targets=np.ascontiguousarray(chosen.indices).reshape(count, -1),
            logprobs=address_of(result),
            keep=False,
        )
    return returned(chosen.place(result), out)


def gathered(x: Array, axis: int, indices: NDArray[np.int64]) -> NDArray[np.floating]:
    """Return the scores (rows..., t) at some indices, in float64."""
    if isinstance(x, np.ndarray):
        return np.take_along_axis(np.moveaxis(x, axis, -1), indices, -1).astype(np.float64)
    picked = x.movedim(axis, -1).gather(-1, as_kind(x, indices))
    return picked.double().numpy()


def log_probabilities(
    scores: NDArray[np.floating], m: NDArray[np.floating], l: NDArray[np.float64]
) -> NDArray[np.floating]:
    """Return (s − m) − ln l of scores (..., t) in the format of m (...,), rounded once from float64."""
    live = m != -math.inf
    shift, total = np.where(live, m, 0.0).astype(np.float64), np.where(live, l, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        return ((scores - shift[..., None]) - np.log(total)[..., None]).astype(m.dtype)
