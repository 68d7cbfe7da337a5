"""logsumexp, softmax and log_softmax of rows."""

import math
from typing import Any

from softcarry._arrays import Array, DType
from softcarry.cpu.row_work import row_carries_of, write_softmax
from softcarry.rows._operand import operand, require_axis, scores_of
from softcarry.rows._results import (
    Empty,
    address_of,
    empty_value,
    made_like,
    require_out,
    result_element,
    returned,
)


def logsumexp(
    x: Array,
    axis: int = -1,
    *,
    keepdims: bool = False,
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Any:
    x = scores_of(x)
    axis = require_axis(x, axis)
    shape = tuple(x.shape)
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    final = kept if keepdims else (*shape[:axis], *shape[axis + 1 :])
    element = require_out(x, final, out, dtype) if out is not None else result_element(x, dtype)
    result = made_like(x, final, element)
    if math.prod(shape):
        row_carries_of(operand(x, axis), out_element=element, lse=address_of(result))
    else:
        result[...] = -math.inf
    return returned(result, out)


def softmax(
    x: Array,
    axis: int = -1,
    *,
    empty: Empty = "zero",
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Array:
    return _normalised(x, axis, empty, dtype, out, logarithms=False)


def log_softmax(
    x: Array,
    axis: int = -1,
    *,
    empty: Empty = "zero",
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Array:
    return _normalised(x, axis, empty, dtype, out, logarithms=True)


def _normalised(
    x: Array, axis: int, empty: Empty, dtype: DType | str | None, out: Array | None, *, logarithms: bool
) -> Array:
    x = scores_of(x)
    axis = require_axis(x, axis)
    of_empty = empty_value(empty)
    shape = tuple(x.shape)
    if out is None:
        out = made_like(x, shape, result_element(x, dtype))
    else:
        require_out(x, shape, out, dtype)
    if math.prod(shape):
        write_softmax(operand(x, axis), operand(out, axis), logarithms=logarithms, empty=of_empty)
    return out
