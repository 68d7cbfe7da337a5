"""NumPy arrays and torch CPU tensors as compiled code sees them: an address, a shape and strides in bytes."""

import functools
import sys
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array, array_namespace, dtype_name
from softcarry.errors import DTypeError, OptionError, ShapeError

NUMPY_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""NumPy's dtype of each element type."""

SIZES = {name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}
"""Bytes of each element type."""

ELEMENTS_BY_DTYPE = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
"""The element type of each of these dtypes of NumPy."""


class HostArray(NamedTuple):
    """An array in the memory of the CPU."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes, of any sign or 0."""
    element: str
    """The name of its dtype."""
    library: str
    """NumPy's or torch's name."""


def is_tensor(array: Any) -> bool:
    """Whether an object is a torch tensor; torch is not imported to find out."""
    return "torch" in sys.modules and isinstance(array, sys.modules["torch"].Tensor)


def require_plain(what: str, tensor: Any) -> None:
    """Refuse tensors that are not in the memory of the CPU, one element after the other by strides.

    Raises
    ------
    DTypeError
    """
    strided = tensor.layout is sys.modules["torch"].strided
    if tensor.device.type != "cpu" or not strided:
        where = f"with layout {tensor.layout}" if not strided else f"on device {tensor.device}"
        msg = f"{what} must be a strided torch tensor on the CPU, got one {where}: convert it first"
        raise DTypeError(msg)


def host_array(what: str, array: Array) -> HostArray:
    """Describe an array of any dtype without reading it.

    Raises
    ------
    DTypeError
        If it is no NumPy array in native byte order, and no strided torch tensor on the CPU that records no
        gradients.
    """
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray | np.matrix):
        if not array.dtype.isnative:
            msg = f"{what} must be in native byte order, got {array.dtype.str}: convert it by astype"
            raise DTypeError(msg)
        name = ELEMENTS_BY_DTYPE.get(array.dtype) or array.dtype.name
        address = array.__array_interface__["data"][0]
        return HostArray(address, array.shape, array.strides, name, "numpy")
    if is_tensor(array):
        return _host_tensor(what, array)
    if not hasattr(array, "dtype") or isinstance(array, np.generic):
        kind = type(array).__name__
        msg = f"{what} must be a NumPy array or torch CPU tensor, got {kind}: use numpy.asarray"
        raise DTypeError(msg)
    array_namespace(array)
    library = type(array).__module__.partition(".")[0]
    msg = f"{what} must be a NumPy array or torch CPU tensor, got one of {library}: use numpy.asarray"
    raise DTypeError(msg)


def _host_tensor(what: str, tensor: Any) -> HostArray:
    torch = sys.modules["torch"]
    require_plain(what, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        msg = f"{what} must not record gradients: call {what}.detach(), or use torch.no_grad()"
        raise DTypeError(msg)
    if tensor.is_neg() or tensor.is_conj():
        msg = f"{what} must not be a lazily negated or conjugated view: call resolve_neg() or resolve_conj()"
        raise DTypeError(msg)
    element, size = _of_dtype(tensor.dtype)
    strides = tuple([size * stride for stride in tensor.stride()])
    return HostArray(tensor.data_ptr(), tuple(tensor.shape), strides, element, "torch")


@functools.cache
def _of_dtype(dtype: Any) -> tuple[str, int]:
    """Return the name and the bytes of a dtype of torch."""
    return dtype_name(dtype), dtype.itemsize


def integers(what: str, array: Any) -> NDArray[np.int64]:
    """Return integers, of a NumPy array, torch CPU tensor or nested list, as a new contiguous int64 array.

    It is a copy, so that what is checked is what is used, whoever writes to the array meanwhile.

    Raises
    ------
    DTypeError
        If they are no integers, or a list that is no array.
    OptionError
        If one exceeds the range of int64.
    """
    if is_tensor(array):
        name = host_array(what, array).element
        # NumPy has no dtype for some of torch's.
        array = array.numpy() if "int" in name else np.empty(0)
    else:
        array = _as_array(what, array, np.int64)
        name = array.dtype.name
    if array.dtype.kind not in "iu":
        msg = f"{what} must hold integers, got {name}: convert it, for example to int64"
        raise DTypeError(msg)
    largest = np.iinfo(np.int64).max
    if array.dtype == np.uint64 and array.size and array.max() > largest:
        msg = f"{what} must hold integers up to {largest}, got {array.max()}"
        raise OptionError(msg)
    return np.array(array, np.int64, order="C")


def _as_array(what: str, array: Any, of_nothing: Any) -> NDArray[Any]:
    """Return an array of a nested list, or an array; an empty list has a dtype of its own."""
    empty = isinstance(array, list | tuple) and not len(array)
    try:
        return np.asarray(array, of_nothing if empty else None)
    except ValueError as error:
        msg = f"{what} must be an array, got a nested list that is none: give its rows one length"
        raise DTypeError(msg) from error


def real_array(what: str, array: Any) -> Array:
    """Return an array of floating-point numbers, of NumPy, torch or a nested list, as it is; it is not read.

    Raises
    ------
    DTypeError
        If they are no real floating-point numbers of at most 64 bits.
    """
    if is_tensor(array):
        name = host_array(what, array).element
    else:
        array = _as_array(what, array, np.float64)
        name = ELEMENTS_BY_DTYPE.get(array.dtype) or array.dtype.name
    if name not in SIZES:
        msg = f"{what} must hold real floating-point numbers, got {name}: convert it, for example to float32"
        raise DTypeError(msg)
    return array


def numbers_of(array: Array, dtype: np.dtype) -> NDArray[Any]:
    """Return a copy of an array in a dtype of NumPy, contiguous; too large numbers become infinite."""
    if is_tensor(array):
        array = array.to(sys.modules["torch"].float64).numpy()
    with np.errstate(over="ignore"):
        return np.array(array, dtype, order="C")


def empty_like(array: Array, shape: tuple[int, ...], element: str) -> Array:
    """Return a new contiguous array of the library of another, with undefined contents."""
    if is_tensor(array):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, element))
    return np.empty(shape, NUMPY_DTYPES[element])


# Candidate solutions that are looked at before two arrays are taken to overlap.
_WORK: Any = 10**5


class _Memory:
    """What `numpy.asarray` needs to see memory that torch holds."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
            "strides": tuple(size * stride for stride in tensor.stride()),
        }


def bytes_view(array: Array) -> np.ndarray:
    """Return a NumPy array on the memory of an array of any library and dtype; it is not to be read."""
    return array if isinstance(array, np.ndarray) else np.asarray(_Memory(array))


def overlaps_itself(array: Array) -> bool:
    """Whether two elements may share a byte; those of strided views of plain arrays never do."""
    view = bytes_view(array)
    if view.flags.c_contiguous:
        return False
    reach = view.dtype.itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1):
        if stride < reach:
            return view.size > 0
        reach += stride * (length - 1)
    return False


def share_memory(a: Array, b: Array) -> bool:
    """Whether two arrays have a byte in common; if that is too hard to tell, they have."""
    try:
        return np.shares_memory(bytes_view(a), bytes_view(b), max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def require_writable_output(
    out: Array, shape: tuple[int, ...], element: str, library: str, inputs: dict[str, Array]
) -> HostArray:
    """Describe an array that results are written to.

    Raises
    ------
    ShapeError, DTypeError
        If its shape, dtype or library is not that of the result.
    OptionError
        If it can't be written, or shares memory with itself or an input.
    """
    target = host_array("out", out)
    if target.library != library or target.element != element:
        expected = f"{element} of {library}"
        msg = f"out must hold {expected}, as q does, got {target.element} of {target.library}"
        raise DTypeError(msg)
    if target.shape != shape:
        msg = f"out must have shape {shape}, got {target.shape}"
        raise ShapeError(msg)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        msg = "out must be writable, got a read-only array: pass a copy"
        raise OptionError(msg)
    if overlaps_itself(out):
        msg = f"out must have a place for each element, got strides {target.strides} bytes: pass a copy"
        raise OptionError(msg)
    for name, array in inputs.items():
        if share_memory(out, array):
            msg = f"out must not overlap {name}: pass an array of its own"
            raise OptionError(msg)
    if is_tensor(out):
        # torch's derivatives look at it to know that what they kept has changed.
        sys.modules["torch"].autograd.graph.increment_version(out)
    return target
