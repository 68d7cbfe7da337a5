"""The partials that merges take, outputs and their log-sum-exps in the memory of the CPU; what is refused."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softcarry._arrays import Array, array_namespace, dtype_name
from softcarry._host_arrays import NUMPY_DTYPES, bytes_view, is_tensor, overlaps_itself, require_plain
from softcarry.cpu.merge_work import Part, strided
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.rows._operand import element_of

Arrays = Array | Sequence[Array]


class Partials(NamedTuple):
    """Partials that fit together: one array with a leading axis, or one for each."""

    outputs: list[Array]
    lses: list[Array]
    stacked: bool

    @property
    def number(self) -> int:
        """How many partials."""
        return self.outputs[0].shape[0] if self.stacked else len(self.outputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows, which that of a log-sum-exp is."""
        return tuple(self.lses[0].shape[int(self.stacked) :])

    @property
    def element(self) -> str:
        """Element type of the outputs."""
        return element_of(self.outputs[0])

    @property
    def parts(self) -> list[Part]:
        """Where they are in memory."""
        pairs = zip(self.outputs, self.lses, strict=True)
        return [part_of(output, lse, stacked=self.stacked) for output, lse in pairs]


def part_of(output: Array, lse: Array, *, stacked: bool = False) -> Part:
    """Return where an output and its log-sum-exp are in memory."""
    return Part(strided(output, stacked=stacked, values=True), strided(lse, stacked=stacked))


def partials_of(outputs: Arrays, lses: Arrays) -> Partials:
    """Return outputs (n, ..., dv) and lses (n, ...), stacked or n of each in a sequence, that fit together.

    Raises
    ------
    DTypeError
        If one is no NumPy array or torch CPU tensor, they are of both libraries or several dtypes, an lse is
        not of the working dtype, or one records gradients.
    ShapeError
        If the shapes do not fit, or there is no partial.
    """
    stacked = not isinstance(outputs, list | tuple) and not isinstance(lses, list | tuple)
    given = [outputs] if stacked else _each("outputs", outputs)
    given_lses = [lses] if stacked else _each("lses", lses)
    if not given or len(given) != len(given_lses):
        msg = f"give as many outputs as lses, and at least one; got {len(given)} and {len(given_lses)}"
        raise ShapeError(msg)
    array_namespace(*given, *given_lses)
    outputs = [_in_memory("outputs", output) for output in given]
    lses = [_in_memory("lses", lse) for lse in given_lses]
    require_fitting(outputs, lses, lead="n, " if stacked else "")
    return Partials(outputs, lses, stacked)


def require_fitting(outputs: Sequence[Array], lses: Sequence[Array], *, lead: str = "") -> None:
    """Refuse outputs (..., dv) and lses (...) of which not all fit the first output.

    Raises
    ------
    DTypeError, ShapeError
    """
    first = outputs[0]
    element = element_of(first)
    for output in outputs:
        if output.dtype != first.dtype:
            msg = (
                f"all outputs must have one dtype, got {element} and {dtype_name(output.dtype)}: convert one"
            )
            raise DTypeError(msg)
    working = "float64" if element == "float64" else "float32"
    for lse in lses:
        if dtype_name(lse.dtype) != working:
            msg = (
                f"the lse of an output of {element} must be {working}, got {dtype_name(lse.dtype)}: "
                f"convert it, or both"
            )
            raise DTypeError(msg)
    shape = tuple(first.shape)
    for output in outputs:
        if tuple(output.shape) != shape:
            msg = f"all outputs must have one shape, got {shape} and {tuple(output.shape)}: broadcast first"
            raise ShapeError(msg)
    for lse in lses:
        if not shape or tuple(lse.shape) != shape[:-1] or (lead and len(shape) < 2):
            msg = (
                f"an output ({lead}..., dv) has an lse ({lead}...), got {shape} and {tuple(lse.shape)}: "
                f"transpose the lse to the order of the output's axes"
            )
            raise ShapeError(msg)


def require_writable(what: str, array: Array, like: Array, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse to write where ``what`` is: it must be of one kind with ``like``, of a shape and a dtype.

    Raises
    ------
    DTypeError, ShapeError, OptionError
    """
    kind = "a NumPy array" if isinstance(like, np.ndarray) else "a torch CPU tensor"
    same = isinstance(array, np.ndarray) if isinstance(like, np.ndarray) else is_tensor(array)
    if not same or isinstance(array, np.ma.MaskedArray):
        msg = f"{what} must be {kind}, as the partials are, got {type(array).__name__}"
        raise DTypeError(msg)
    if not isinstance(array, np.ndarray):
        require_plain(what, array)
        if array.is_neg() or array.is_conj() or array.requires_grad:
            msg = f"{what} must be plain memory, without gradients or a negative bit: clone and detach it"
            raise DTypeError(msg)
    if tuple(array.shape) != shape:
        msg = f"{what} must have shape {shape}, got {tuple(array.shape)}"
        raise ShapeError(msg)
    if array.dtype != dtype:
        msg = f"{what} must have dtype {dtype_name(dtype)}, got {dtype_name(array.dtype)}"
        raise DTypeError(msg)
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        msg = f"{what} must be writable, got a read-only array: copy it first"
        raise OptionError(msg)
    if overlaps_itself(array):
        msg = f"{what} must have memory for each of its elements, got some that share it: copy it first"
        raise OptionError(msg)


def require_apart(written: dict[str, Array], read: Mapping[str, Sequence[Array]]) -> None:
    """Refuse to write to memory that is read, or that two arrays share.

    Raises
    ------
    OptionError
    """
    names = list(written)
    others = {**{name: [array] for name, array in written.items()}, **read}
    for place, name in enumerate(names):
        for other, arrays in others.items():
            if other in names[: place + 1]:
                continue
            if any(np.shares_memory(bytes_view(written[name]), bytes_view(array)) for array in arrays):
                msg = f"{name} must not overlap {other}, got memory that both share: copy one of them"
                raise OptionError(msg)


def note_written(*arrays: Array) -> None:
    """Tell torch's autograd that tensors have changed, as it can't see by itself."""
    for array in arrays:
        if not isinstance(array, np.ndarray) and not array.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(array)


def _each(what: str, arrays: Any) -> list[Array]:
    """Return the arrays of a sequence, or the views along the leading axis of a stack."""
    if isinstance(arrays, list | tuple):
        return list(arrays)
    array_namespace(arrays)
    if not arrays.shape:
        msg = f"{what} must be a sequence of arrays, or stacked along a leading axis, got shape ()"
        raise ShapeError(msg)
    return list(arrays)


def _in_memory(what: str, array: Array) -> Array:
    """Return a plain array of one of the four element types on the same memory.

    Raises
    ------
    DTypeError
    """
    if is_tensor(array):
        torch = sys.modules["torch"]
        require_plain(what, array)
        if array.requires_grad and torch.is_grad_enabled():
            msg = (
                f"{what} must not record gradients, which a merge does not have: call detach(), or no_grad()"
            )
            raise DTypeError(msg)
        array = array.detach().resolve_neg()
    elif isinstance(array, np.ndarray | np.generic):
        array = np.asarray(array)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
    else:
        library = type(array).__module__.partition(".")[0]
        msg = f"{what} must be NumPy arrays or torch CPU tensors, got {library}'s: use numpy.asarray"
        raise DTypeError(msg)
    known = array.dtype in NUMPY_DTYPES.values() if isinstance(array, np.ndarray) else True
    if not known or dtype_name(array.dtype) not in NUMPY_DTYPES:
        msg = (
            f"{what} must hold float64, float32, float16 or bfloat16, got {dtype_name(array.dtype)}: "
            f"convert them first, for example to float32"
        )
        raise DTypeError(msg)
    return array
