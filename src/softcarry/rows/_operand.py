"""The arrays that row functions take: NumPy's and torch's on the CPU, seen without a copy."""

import functools
import math
import sys
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array, DType, array_namespace, dtype_name
from softcarry._host_arrays import ELEMENTS_BY_DTYPE, SIZES, is_tensor, require_plain
from softcarry.cpu.row_layout import Operand, Rows
from softcarry.errors import DTypeError, OptionError


def scores_of(x: Array) -> Array:
    """Return an array of one of the four element types: the same, or, for integers, a copy in float64.

    Raises
    ------
    DTypeError
        If x is no NumPy array or torch CPU tensor, of no real number type, or records gradients.
    """
    if type(x) is np.ndarray and x.dtype in ELEMENTS_BY_DTYPE:
        return x
    if is_tensor(x):
        return _tensor_scores(x)
    array_namespace(x)
    if not isinstance(x, np.ndarray | np.generic):
        library = type(x).__module__.partition(".")[0]
        msg = (
            f"x must be a NumPy array or torch CPU tensor, got one of {library}: convert it by numpy.asarray"
        )
        raise DTypeError(msg)
    x = np.asarray(x)
    if x.dtype.kind in "iub":
        return x.astype(np.float64)
    native = x.dtype.newbyteorder("=")
    if native not in ELEMENTS_BY_DTYPE:
        raise _not_real("x", x.dtype)
    return x if x.dtype == native and x.dtype.isnative else x.astype(native)


def _tensor_scores(x: Any) -> Any:
    torch = sys.modules["torch"]
    require_plain("x", x)
    if x.requires_grad and torch.is_grad_enabled():
        msg = (
            "x must not record gradients, which row functions don't have: call x.detach(), or torch.no_grad()"
        )
        raise DTypeError(msg)
    x = x.detach()
    if x.is_complex():
        raise _not_real("x", x.dtype)
    x = x.resolve_neg()
    if not x.dtype.is_floating_point and not x.is_quantized:
        return x.to(torch.float64)
    if dtype_name(x.dtype) not in SIZES:
        raise _not_real("x", x.dtype)
    return x


def integers_of(targets: Any) -> NDArray[Any]:
    """Return targets as a NumPy array of integers.

    Raises
    ------
    DTypeError
        If they are no integers, or a tensor that is not on the CPU.
    """
    if is_tensor(targets):
        require_plain("targets", targets)
        # NumPy has no bfloat16 of torch's: what is no integer becomes something that says so.
        numpy_knows = targets.dtype is not sys.modules["torch"].bfloat16
        targets = targets.detach().numpy() if numpy_knows else targets.detach().float().numpy()
    indices = np.asarray(targets)
    if indices.dtype.kind not in "iu":
        msg = f"targets must be integers, got {indices.dtype}: convert them, for example to int64"
        raise DTypeError(msg)
    return indices


def _not_real(what: str, dtype: DType) -> DTypeError:
    return DTypeError(
        f"{what} must hold float64, float32, float16, bfloat16 or integers, got {dtype_name(dtype)}: "
        f"convert it first, for example to float32"
    )


def element_of(array: Array) -> str:
    """Return the name of an array's element type, one of four."""
    return name_of(array.dtype)


def name_of(dtype: DType) -> str:
    """Return the bare name of a dtype; those of NumPy take a microsecond to find out, and are remembered."""
    return ELEMENTS_BY_DTYPE.get(dtype) or _name_of(dtype)


@functools.lru_cache(maxsize=64)
def _name_of(dtype: DType) -> str:
    return dtype_name(dtype)


def require_axis(array: Array, axis: Any) -> int:
    """Return an axis counted from the front.

    Raises
    ------
    OptionError
        If it is no integer or out of range.
    """
    if not isinstance(axis, Integral) or isinstance(axis, bool):
        msg = f"axis must be an integer, got {axis!r}: reshape to reduce several axes at once"
        raise OptionError(msg)
    if not -array.ndim <= axis < array.ndim:
        msg = f"axis must be from {-array.ndim} to {array.ndim - 1} for {array.ndim} axes, got {axis}"
        if array.ndim == 0:
            msg = f"x must have at least one axis, got shape () and axis {axis}: reshape it to (1,)"
        raise OptionError(msg)
    return int(axis) % array.ndim


def operand(array: Array, axis: int) -> Operand:
    """Describe an array of one of the four element types to the kernels; its rows lie along an axis."""
    element = element_of(array)
    if isinstance(array, np.ndarray):
        address, strides = array.__array_interface__["data"][0], array.strides
    else:
        address, strides = array.data_ptr(), tuple(SIZES[element] * stride for stride in array.stride())
    count, length, step, innermost, outer, place = _rows_of(tuple(array.shape), strides, axis, SIZES[element])
    return Operand(element, Rows(address, step, *innermost, place, len(outer)), count, length, outer)


@functools.lru_cache(maxsize=256)
def _rows_of(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: int, size: int
) -> tuple[int, int, int, tuple[int, int], NDArray[np.int64], int]:
    """Return number, length and step of the rows, length and stride of their innermost axis, and the others.

    It is remembered, since what Python does before a kernel takes as long as a kernel of small rows.
    """
    axes = [
        (length, stride) for i, (length, stride) in enumerate(zip(shape, strides, strict=True)) if i != axis
    ]
    *others, innermost = _coalesced(axes)
    outer = np.array(others, np.int64).reshape(-1, 2)
    count = math.prod(length for length, _ in axes)
    step = strides[axis] if shape[axis] > 1 else size
    return count, shape[axis], step, innermost, outer, outer.__array_interface__["data"][0]


def _coalesced(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring axes that one stride serves; there is at least one in the end."""
    joined: list[tuple[int, int]] = []
    for length, stride in axes:
        if length == 1:
            continue
        if joined and joined[-1][1] == stride * length:
            joined[-1] = (joined[-1][0] * length, stride)
        else:
            joined.append((length, stride))
    return joined or [(1, 0)]
