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
    """Return ln Σ e^x along an axis, reading x from memory once.

    Parameters
    ----------
    x : array (..., n, ...)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides; it is not
        copied. Integers are converted to float64.
    axis : int
        The axis of length n.
    keepdims : bool
        Keep that axis, with length 1.
    dtype : dtype or str, optional
        Of the result: x's by default (float64 for integers). float32 keeps all that a bfloat16 or float16
        would round away.
    out : array, optional
        Where to put the result: of x's library and the result's shape, without overlap with x.

    Returns
    -------
    array (...)
        Of x's library; a scalar for NumPy's x of one axis. Sums are kept in float32 in blocks of 2048, in
        float64 beyond, and the result is rounded once from there: its error does not grow with n. −inf for a
        row without live scores, or of length 0; +inf for a row with +inf and no NaN; NaN for one with NaN.

    Raises
    ------
    DTypeError
        If x is no such array, is complex or an object, or records gradients; if ``dtype`` or ``out`` can't
        hold the result.
    ShapeError
        If ``out`` has another shape.
    OptionError
        If the axis is out of range, or ``out`` overlaps x or itself or is read-only.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, section 3 (one
    pass); Blanchard, Higham and Mary, A class of fast and accurate summation algorithms, SISC 42(3), 2020
    (the sum).

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> float(sc.logsumexp(np.array([2.0, 5.0, 1.0, 7.0])).round(4))
    7.135
    >>> sc.logsumexp(np.full((2, 3), -np.inf))
    array([-inf, -inf])
    """
    x = scores_of(x)
    axis = require_axis(x, axis)
    shape = tuple(x.shape)
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    final = kept if keepdims else (*shape[:axis], *shape[axis + 1 :])
    element = require_out(x, final, out, dtype) if out is not None else result_element(x, dtype)
    result = made_like(x, final, element)
    if math.prod(shape):
        row_carries_of(operand(x, axis), out_element=element, lse=address_of(result), keep=False)
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
    """Return e^(x − m) / l, which sums to 1, along an axis.

    Parameters
    ----------
    x : array (..., n, ...)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides; it is not
        copied. Integers are converted to float64.
    axis : int
        The axis of length n.
    empty : {"zero", "nan"}
        What a row without live scores becomes, whose scores are all −inf: 0 everywhere by default, or NaN, as
        torch, JAX and SciPy have it.
    dtype : dtype or str, optional
        Of the result: x's by default (float64 for integers).
    out : array, optional
        Where to put the result: of x's library and shape, with any strides, without overlap with x.

    Returns
    -------
    array (..., n, ...)
        e^(x − m) / l. e^(x − m) is 0 where it would be below 2^−126.5 in float32, half an exponent below its
        smallest normal number, and 2^−1022.5 in float64. A NaN or +inf makes its whole row NaN.

    Raises
    ------
    DTypeError
        If x is no such array, is complex or an object, or records gradients; if ``dtype`` or ``out`` can't
        hold the result.
    ShapeError
        If ``out`` has another shape.
    OptionError
        If the axis or ``empty`` is out of range, or ``out`` overlaps x or itself or is read-only.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, Algorithm 3.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> sc.softmax(np.array([2.0, 5.0, 1.0, 7.0])).round(4)
    array([0.0059, 0.1182, 0.0022, 0.8737])
    >>> sc.softmax(np.full(2, -np.inf)), sc.softmax(np.full(2, -np.inf), empty="nan")
    (array([0., 0.]), array([nan, nan]))
    """
    return _normalised(x, axis, empty, dtype, out, logarithms=False)


def log_softmax(
    x: Array,
    axis: int = -1,
    *,
    empty: Empty = "zero",
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Array:
    """Return (x − m) − ln l, the logarithm of the softmax, along an axis.

    Parameters
    ----------
    x : array (..., n, ...)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides; it is not
        copied. Integers are converted to float64.
    axis : int
        The axis of length n.
    empty : {"zero", "nan"}
        What a row without live scores becomes, whose scores are all −inf: −inf everywhere by default, the
        logarithm of 0, or NaN, as torch, JAX and SciPy have it.
    dtype : dtype or str, optional
        Of the result: x's by default (float64 for integers).
    out : array, optional
        Where to put the result: of x's library and shape, with any strides, without overlap with x.

    Returns
    -------
    array (..., n, ...)
        (x − m) − ln l, from the pair and never from x − lse, which cancels under a large common offset. A NaN
        or +inf makes its whole row NaN.

    Raises
    ------
    DTypeError
        If x is no such array, is complex or an object, or records gradients; if ``dtype`` or ``out`` can't
        hold the result.
    ShapeError
        If ``out`` has another shape.
    OptionError
        If the axis or ``empty`` is out of range, or ``out`` overlaps x or itself or is read-only.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, Algorithm 3.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> sc.log_softmax(np.array([2.0, 5.0, 1.0, 7.0]) + 1e8).round(4)
    array([-5.135, -2.135, -6.135, -0.135])
    """
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
