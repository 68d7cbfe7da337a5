"""The arrays that row functions make, or are given to fill: of the kind of their input, without a copy."""

import math
import sys
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array, DType
from softcarry._host_arrays import NUMPY_DTYPES, SIZES, bytes_view, is_tensor, overlaps_itself, require_plain
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.rows._operand import element_of, name_of

Empty = Literal["zero", "nan"]


def empty_value(empty: Any) -> float:
    """Return the probability that the rule for rows without live scores gives.

    Raises
    ------
    OptionError
        If there is no such rule.
    """
    if not isinstance(empty, str) or empty not in ("zero", "nan"):
        msg = f"empty must be 'zero', or 'nan' as in torch, for rows without live scores; got {empty!r}"
        raise OptionError(msg)
    return 0.0 if empty == "zero" else math.nan


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data_ptr()


def made_like(x: Array, shape: tuple[int, ...], element: str) -> Array:
    """Return a new contiguous array of x's kind."""
    if isinstance(x, np.ndarray):
        return np.empty(shape, NUMPY_DTYPES[element])
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, element))


def as_kind(x: Array, array: np.ndarray) -> Array:
    """Return a NumPy array as one of x's kind, on the same memory."""
    return array if isinstance(x, np.ndarray) else sys.modules["torch"].from_numpy(array)


def numpy_view(array: Array) -> NDArray[Any]:
    """Return an array of float64, float32 or integers as NumPy's, on the same memory."""
    return array if isinstance(array, np.ndarray) else array.numpy()


def moved_axis(array: Array, source: int, destination: int) -> Array:
    """Return a view of an array with one axis moved."""
    if isinstance(array, np.ndarray):
        return np.moveaxis(array, source, destination)
    return array.movedim(source, destination)


def in_dtype_of(like: Array, array: Array) -> Array:
    """Return an array of the same kind in another's dtype, rounded to nearest even."""
    return array.astype(like.dtype) if isinstance(array, np.ndarray) else array.to(like.dtype)


def returned(result: Array, out: Array | None) -> Any:
    """Return a result as the caller expects it: in ``out``, or, of no axis and NumPy's, as a scalar."""
    if out is not None:
        out[...] = result
        return out
    return result[()] if isinstance(result, np.ndarray) else result


def result_element(x: Array, dtype: DType | str | None) -> str:
    """Return the element type of the result: x's, or that of ``dtype``.

    Raises
    ------
    DTypeError
        If the dtype is none that x can have results in: float64 for float64, one of the others for the
        others.
    """
    element = element_of(x)
    if dtype is None:
        return element
    name = dtype if isinstance(dtype, str) else name_of(dtype)
    allowed = ("float64",) if element == "float64" else ("float32", "float16", "bfloat16")
    if name not in allowed:
        msg = (
            f"results of {element} come in {' or '.join(allowed)}, got dtype {name}: "
            f"convert x first, or the result"
        )
        raise DTypeError(msg)
    return name


def require_out(x: Array, shape: tuple[int, ...], out: Any, dtype: DType | str | None) -> str:
    """Check an output given by the caller, and return its element type.

    Raises
    ------
    DTypeError
        If it is not an array of x's kind, of an element type that x can have results in, equal to ``dtype``
        if given.
    ShapeError
        If it has another shape.
    OptionError
        If it is read-only, overlaps x, or itself.
    """
    kind = "a NumPy array" if isinstance(x, np.ndarray) else "a torch CPU tensor"
    same = isinstance(out, np.ndarray) if isinstance(x, np.ndarray) else is_tensor(out)
    if not same or isinstance(out, np.ma.MaskedArray):
        msg = f"out must be {kind}, as x is, got {type(out).__name__}"
        raise DTypeError(msg)
    if not isinstance(out, np.ndarray):
        _require_writable(out)
    if tuple(out.shape) != tuple(shape):
        msg = f"out must have shape {tuple(shape)}, got {tuple(out.shape)}"
        raise ShapeError(msg)
    name = name_of(out.dtype)
    if name not in SIZES or (isinstance(out, np.ndarray) and not out.dtype.isnative):
        msg = f"out must hold float64, float32, float16 or bfloat16 in native order, got {out.dtype}"
        raise DTypeError(msg)
    if dtype is not None and result_element(x, dtype) != name:
        msg = f"out must have the dtype asked for, {result_element(x, dtype)}, got {name}: leave dtype out"
        raise DTypeError(msg)
    result_element(x, name)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        msg = "out must be writable, got a read-only array: copy it first"
        raise OptionError(msg)
    if overlaps_itself(out):
        msg = (
            "out must have an element of memory for each of its own, got overlapping ones: use a plain array"
        )
        raise OptionError(msg)
    if np.shares_memory(bytes_view(x), bytes_view(out)):
        msg = "out must not overlap x, which is read twice: give another array, or leave out= away"
        raise OptionError(msg)
    return name


def _require_writable(out: Any) -> None:
    """Refuse tensors that can't be filled through their memory.

    Raises
    ------
    DTypeError
    """
    require_plain("out", out)
    if out.is_neg() or out.is_conj():
        msg = "out must be what its memory holds, got a view with the negative or conjugate bit set: clone it"
        raise DTypeError(msg)
    if out.requires_grad:
        msg = "out must not record gradients, which row functions don't have: call out.detach()"
        raise DTypeError(msg)
