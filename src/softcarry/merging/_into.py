"""merge_output_into: one more partial, in place."""

import sys
from typing import Any

import numpy as np

from softcarry._arrays import Array, array_namespace, broadcast_shape, dtype_name
from softcarry._host_arrays import is_tensor, require_plain
from softcarry.carry._checks import Base, require_base
from softcarry.cpu.merge_work import Strided, merge_parts, strided
from softcarry.errors import DTypeError, ShapeError
from softcarry.merging._partials import (
    note_written,
    part_of,
    partials_of,
    require_apart,
    require_writable,
)


def merge_output_into(
    output: Array,
    lse: Array,
    other: Array,
    other_lse: Array,
    *,
    mask: Array | None = None,
    base: Base = "e",
) -> None:
    """Merge the output of attention over more keys into an output and its lse, in place.

    ``output, lse = merge_outputs([output, other], [lse, other_lse])``, to the bit, without new memory. To
    begin with nothing, let lse be −inf: the output may then hold anything.

    Parameters
    ----------
    output : array (..., dv)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides. Changed.
    lse : array (...)
        Its log-sum-exp, float32 (float64 beside a float64 output), with any strides. Changed.
    other : array (..., dv)
        The other output, of the same library, dtype and shape.
    other_lse : array (...)
        Its log-sum-exp.
    mask : boolean array broadcastable to (...,), optional
        Rows where it is False keep every bit of output and lse. A mask of tokens (t,) is ``mask[:, None]``
        beside an lse of (t, h).
    base : "e" or "2"
        "2" for log-sum-exps in base 2, as FlashInfer has them.

    Raises
    ------
    DTypeError
        If an argument is no such array, dtypes differ, the mask is not boolean, or a tensor records
        gradients.
    ShapeError
        If shapes do not fit.
    OptionError
        If the base is neither, output or lse is read-only, or overlaps itself or another argument.

    See Also
    --------
    merge_outputs : The rules of empty, NaN and infinite rows, and the error.

    Notes
    -----
    The output is rounded to its dtype at every call: over many calls float16 and bfloat16 outputs lose digits
    that a single `merge_outputs` keeps. FlashInfer calls this ``merge_state_in_place(v, s, v_other,
    s_other)``.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> output, lse = np.array([[1.0], [1.0]]), np.array([0.0, 0.0])
    >>> sc.merge_output_into(output, lse, np.full((2, 1), 5.0), np.zeros(2), mask=np.array([True, False]))
    >>> output.ravel(), lse.round(4)
    (array([3., 1.]), array([0.6931, 0.    ]))
    """
    base = require_base(base)
    partials = partials_of([output, other], [lse, other_lse])
    shape = partials.shape
    first, read = partials.outputs
    first_lse, read_lse = partials.lses
    require_writable("output", output, first, tuple(first.shape), first.dtype)
    require_writable("lse", lse, first_lse, shape, first_lse.dtype)
    allowed = None if mask is None else _mask_of(mask, output, shape)
    others = {"other": [read], "other_lse": [read_lse]} | (
        {} if mask is None else {"mask": [np.asarray(mask)]}
    )
    require_apart({"output": output, "lse": lse}, others)
    result = part_of(output, lse)
    merge_parts(
        [result, part_of(read, read_lse)],
        result,
        element=partials.element,
        shape=shape,
        dv=output.shape[-1],
        base=base,
        indptr=np.array([0, 2]),
        mask=allowed,
    )
    note_written(output, lse)


def _mask_of(mask: Any, like: Array, shape: tuple[int, ...]) -> Strided:
    """Return where a mask is in memory, broadcast to a shape.

    Raises
    ------
    DTypeError, ShapeError
    """
    array_namespace(mask, like)
    if is_tensor(mask):
        require_plain("mask", mask)
        boolean = mask.dtype is sys.modules["torch"].bool
    else:
        mask = np.asarray(mask)
        boolean = mask.dtype == np.bool_
    if not boolean:
        msg = f"mask must be boolean, got {dtype_name(mask.dtype)}: compare it, for example mask != 0"
        raise DTypeError(msg)
    if broadcast_shape(tuple(mask.shape), shape) != shape:
        msg = (
            f"mask must broadcast to the shape {shape} of the lse, got {tuple(mask.shape)}: "
            f"give it an axis of length 1 where it does not change"
        )
        raise ShapeError(msg)
    return strided(np.broadcast_to(mask, shape) if isinstance(mask, np.ndarray) else mask.expand(shape))
