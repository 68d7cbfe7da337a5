"""What the carry refuses, and how it says so: all of it before any work."""

import math
import numbers
import warnings
from typing import Any, Literal, cast

import array_api_compat

from softcarry._arrays import (
    Array,
    array_namespace,
    broadcast_shape,
    convert,
    known,
    quiet,
    require_floating,
    working_dtype,
)
from softcarry.errors import OptionError, ShapeError, UnderflowWarning

Base = Literal["e", "2"]


def require_base(base: Any) -> Base:
    """Return a base as "e" or "2".

    Raises
    ------
    OptionError
        If it is neither, nor the integer 2.
    """
    if isinstance(base, str | int) and str(base) in ("e", "2"):
        return cast("Base", str(base))
    msg = f'base must be "e" or "2", got {base!r}'
    raise OptionError(msg)


def matched(**arrays: Array) -> dict[str, Array]:
    """Return m, l (...,) and the rest (..., dv), checked for shape, in their common working dtype.

    Raises
    ------
    ShapeError, DTypeError
    """
    xp = array_namespace(*arrays.values())
    for name, array in arrays.items():
        require_floating(name, array.dtype)
    lead = tuple(arrays["m"].shape)
    wide = [array for name, array in arrays.items() if name not in ("m", "l")]
    if arrays["l"].shape != lead or any(array.ndim == 0 or array.shape[:-1] != lead for array in wide):
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
        msg = f"a carry has m and l of one shape (...,) and values of shape (..., dv), got {shapes}"
        raise ShapeError(msg)
    dtype = working_dtype(xp, *(array.dtype for array in arrays.values()))
    return {name: convert(xp, array, dtype) for name, array in arrays.items()}


def require_mergeable(carry: Any, other: Any) -> None:
    """Refuse to merge what is no carry, or a carry of another shape, library or set of fields.

    Raises
    ------
    ShapeError, DTypeError, OptionError
    """
    if not isinstance(other, type(carry)):
        msg = (
            f"merge takes carries, got {type(other).__name__}: make one with Carry.of from scores, "
            f"or with Carry.from_lse from an output and its lse"
        )
        raise OptionError(msg)
    array_namespace(carry.m, other.m)
    if (carry.o is None) != (other.o is None):
        msg = "one carry has values (o) and the other has none: give values to both, or to neither"
        raise ShapeError(msg)
    name = "m" if carry.o is None else "o"
    shapes = [tuple(getattr(c, name).shape) for c in (carry, other)]
    if shapes[0] != shapes[1]:
        msg = f"carries to merge must have one shape, got {name} {shapes[0]} and {shapes[1]}: broadcast first"
        raise ShapeError(msg)


def require_values_fit(scores: Array, values: Array) -> None:
    """Refuse values (..., n, dv) that do not go with scores (..., n).

    Raises
    ------
    ShapeError
    """
    got = f"got {tuple(scores.shape)} and {tuple(values.shape)}"
    if values.ndim < 2 or values.shape[-2] != scores.shape[-1]:
        msg = f"scores (..., n) and values (..., n, dv) must share n, {got}: give one value a key"
        raise ShapeError(msg)
    if broadcast_shape(scores.shape[:-1], values.shape[:-2]) is None:
        msg = (
            f"the leading axes of scores (..., n) and values (..., n, dv) must broadcast, {got}: values that "
            f"queries share have a query axis of length 1, (b, h, 1, n, dv) beside (b, h, tq, n)"
        )
        raise ShapeError(msg)


def as_array(like: Array, number: Any, what: str, shape: tuple[int, ...]) -> Array:
    """Return a number or array in the library and dtype of another array, checked to broadcast to a shape.

    Raises
    ------
    ShapeError, DTypeError
    """
    if isinstance(number, numbers.Real) and not isinstance(number, bool):
        options = {"dtype": like.dtype, "device": array_api_compat.device(like)}
        with quiet(xp := array_namespace(like)):
            return xp.asarray(_as_float(number), **options)
    array_namespace(number)
    xp = array_namespace(number, like)
    require_floating(what, number.dtype)
    if broadcast_shape(tuple(number.shape), shape) != shape:
        msg = f"{what} must be a number or broadcast to the shape {shape} of m, got {tuple(number.shape)}"
        raise ShapeError(msg)
    with quiet(xp):
        return convert(xp, number, like.dtype)


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def warn_if_underflowed(carry: Any) -> None:
    """Warn the caller of a public method, two frames up, if a bound underflowed every term of a row."""
    xp = array_namespace(carry.m)
    underflowed = (carry.l == 0) & (carry.m > -math.inf)
    if known(xp.any(underflowed)):
        rows = int(xp.sum(xp.astype(underflowed, xp.int32)))
        msg = (
            f"the bound underflowed every term of {rows} row(s), whose output is 0 and lse −inf: "
            f"lower the bound or leave it out"
        )
        warnings.warn(msg, UnderflowWarning, stacklevel=3)
