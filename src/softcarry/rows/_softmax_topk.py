"""softmax_topk: the k largest scores of rows in one reading."""

import math
from numbers import Integral

import numpy as np

from softcarry._arrays import Array, DType
from softcarry.cpu.row_work import top_of_rows
from softcarry.errors import OptionError
from softcarry.rows._merging import require_k
from softcarry.rows._operand import element_of, operand, require_axis, scores_of
from softcarry.rows._results import (
    Empty,
    address_of,
    as_kind,
    empty_value,
    made_like,
    moved_axis,
    result_element,
)
from softcarry.rows._top import TopK


def softmax_topk(
    x: Array,
    k: int,
    axis: int = -1,
    *,
    offset: int = 0,
    empty: Empty = "zero",
    dtype: DType | str | None = None,
) -> TopK:
    """Return the k largest scores of each row, their softmax probabilities and the row's lse, in one reading.

    Parameters
    ----------
    x : array (..., n, ...)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides; it is not
        copied. Integers are converted to float64.
    k : int
        From 1 to n.
    axis : int
        The axis of length n.
    offset : int
        Where x begins in a row that arrives in pieces; it is added to the indices. See `TopK.merge`.
    empty : {"zero", "nan"}
        The probability in a row without live scores.
    dtype : dtype or str, optional
        Of the probabilities: x's by default (float64 for integers), rounded once from the format of the sums.

    Returns
    -------
    TopK
        With scores, indices, probabilities (..., k, ...) and lse (...), of x's library. Its notes have the
        rules for ties, −inf, +inf and NaN.

    Raises
    ------
    DTypeError
        If x is no such array, is complex or an object, records gradients, or can't have results in ``dtype``.
    OptionError
        If k, the axis, ``offset`` or ``empty`` is out of range.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, Algorithm 4.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> probabilities, indices, lse = sc.softmax_topk(np.array([2.0, 5.0, 1.0, 7.0]), 2)
    >>> indices, probabilities.round(4), round(float(lse), 4)
    (array([3, 1]), array([0.8737, 0.1182]), 7.135)
    """
    x = scores_of(x)
    axis = require_axis(x, axis)
    of_empty = empty_value(empty)
    element = result_element(x, dtype)
    n = x.shape[axis]
    k = require_k(k, n)
    if not isinstance(offset, Integral) or isinstance(offset, bool) or not 0 <= offset <= 2**63 - 1 - n:
        msg = f"offset must be an integer from 0 on, where x begins in its row; got {offset!r}"
        raise OptionError(msg)
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    probabilities = made_like(x, (math.prod(rows), k), element)
    if math.prod(rows):
        top = top_of_rows(
            operand(x, axis), k, out_element=element, probabilities=address_of(probabilities), empty=of_empty
        )
        scores, indices, m, l, lse = top
    else:
        working = np.float64 if element_of(x) == "float64" else np.float32
        scores, indices = np.empty((0, k), working), np.empty((0, k), np.int64)
        m, l, lse = np.empty(0, working), np.empty(0), np.empty(0, working)

    def placed(array: Array) -> Array:
        return moved_axis(array.reshape(*rows, k), -1, axis)

    return TopK(
        placed(as_kind(x, scores)),
        placed(as_kind(x, indices + offset if offset else indices)),
        placed(probabilities),
        *(as_kind(x, array.reshape(rows)) for array in (lse, m, l)),
        axis=axis,
        spans=((int(offset), int(offset) + n),),
        empty=empty,
    )
