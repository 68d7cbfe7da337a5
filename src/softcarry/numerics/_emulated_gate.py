"""What the emulated kernel takes: its options and arrays, checked before any work."""

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.numerics._arguments import whole

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_RULES = ("every-block", "on-growth", "two-pass")


def _real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def number(name: str, value: Any) -> float:
    """Check that ``value`` is a number; it may be infinite or NaN."""
    if not isinstance(value, Real) or isinstance(value, bool):
        msg = f"{name} must be a number; got {value!r}"
        raise OptionError(msg)
    return float(value)


def visiting_order(value: Any) -> Any:
    """Check the order of the key blocks."""
    if isinstance(value, str) and value in ("forward", "backward"):
        return value
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "permuted":
        return ("permuted", whole("the seed of order=('permuted', seed)", value[1], 0))
    msg = f"order must be 'forward', 'backward' or ('permuted', seed); got {value!r}"
    raise OptionError(msg)


def rescale_rule(value: Any) -> Any:
    """Check the rescale rule."""
    if isinstance(value, str) and value in _RULES:
        return value
    if isinstance(value, tuple) and len(value) == 2 and _real(value[1]):
        if value[0] == "lazy" and value[1] >= 0:
            return ("lazy", float(value[1]))
        if value[0] == "bound":
            return ("bound", float(value[1]))
    msg = (
        f"rescale must be 'every-block', 'on-growth', 'two-pass', ('lazy', threshold >= 0) or "
        f"('bound', finite value); got {value!r}"
    )
    raise OptionError(msg)


def fill_value(value: Any) -> Any:
    """Check what becomes of a masked key."""
    if isinstance(value, str) and value in ("select", "-inf"):
        return value
    if _real(value):
        return float(value)
    if isinstance(value, Real) and value == -math.inf:
        return "-inf"
    msg = f"fill must be 'select', '-inf' or a finite number such as -1e9; got {value!r}"
    raise OptionError(msg)


class Inputs(NamedTuple):
    """Checked arrays, in float64.

    Attributes
    ----------
    q, v : (b, h, tq, d) and (b, kv_heads, tk, dv)
    k : (b, kv_heads, d, tk), keys last
    allowed, bias : the boolean and the additive mask, flat
    allowed_step, bias_step : what one step along (b, h, tq, tk) adds to the flat index
    scale : float
    """

    q: NDArray[np.float64]
    k: NDArray[np.float64]
    v: NDArray[np.float64]
    allowed: NDArray[np.bool_]
    allowed_step: tuple[int, int, int, int]
    bias: NDArray[np.float64]
    bias_step: tuple[int, int, int, int]
    scale: float


def inputs(q: Any, k: Any, v: Any, mask: Any, scale: Any) -> Inputs:
    """Check the arrays of one call and bring them into the form that the compiled loop takes."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not isinstance(array, np.ndarray) or array.dtype.name not in _DTYPES:
            came = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
            msg = f"{name} must be a NumPy array of {', '.join(_DTYPES)}; got {came}: convert it first"
            raise DTypeError(msg)
        if array.ndim != 4:
            msg = f"{name} must have the four axes (batch, heads, tokens, width); got shape {array.shape}"
            raise ShapeError(msg)
    if not q.dtype == k.dtype == v.dtype:
        msg = f"q, k and v must have one dtype; got {q.dtype.name}, {k.dtype.name} and {v.dtype.name}"
        raise DTypeError(msg)
    _check_shapes(q, k, v)
    full = (*q.shape[:3], k.shape[2])
    allowed, bias = np.ones((1, 1, 1, 1), np.bool_), np.zeros((1, 1, 1, 1))
    if mask is not None:
        mask = _checked_mask(mask, full)
        if mask.dtype == np.bool_:
            allowed = mask
        else:
            bias = mask
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[3])
    elif not _real(scale):
        msg = f"scale must be a finite number, or None for 1/sqrt(d); got {scale!r}"
        raise OptionError(msg)
    return Inputs(
        _plain(q, np.float64),
        _plain(k.transpose(0, 1, 3, 2), np.float64),
        _plain(v, np.float64),
        _plain(allowed, np.bool_).ravel(),
        _steps(allowed),
        _plain(bias, np.float64).ravel(),
        _steps(bias),
        float(scale),
    )


def _check_shapes(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> None:
    batch, heads, _, width = q.shape
    if width < 1:
        msg = f"q and k must have a width of at least 1; got q {q.shape}"
        raise ShapeError(msg)
    if k.shape[0] != batch or k.shape[3] != width:
        msg = f"k must have q's batch and width, (batch {batch}, kv_heads, tk, {width}); got {k.shape}"
        raise ShapeError(msg)
    if v.shape[:3] != k.shape[:3]:
        msg = f"v must have k's batch, heads and keys, {(*k.shape[:3], 'dv')}; got {v.shape}"
        raise ShapeError(msg)
    if k.shape[1] < 1 or heads % k.shape[1]:
        msg = f"the {heads} heads of q must be a multiple of the heads of k and v; got {k.shape[1]}"
        raise ShapeError(msg)


def _checked_mask(mask: Any, full: tuple[int, ...]) -> NDArray[Any]:
    """Give the mask four axes, each of length 1 or that of ``full``."""
    if not isinstance(mask, np.ndarray) or mask.dtype.name not in ("bool", *_DTYPES):
        came = mask.dtype.name if isinstance(mask, np.ndarray) else type(mask).__name__
        msg = f"mask must be a NumPy array, bool (True = attend) or float (added to the scores); got {came}"
        raise DTypeError(msg)
    lengths = (1,) * (4 - mask.ndim) + mask.shape
    if len(lengths) != 4 or any(own not in (1, whole) for own, whole in zip(lengths, full, strict=True)):
        msg = f"mask must broadcast to (batch, heads, tq, tk) = {full}; got shape {mask.shape}"
        raise ShapeError(msg)
    return mask.reshape(lengths)


def _plain(array: NDArray[Any], dtype: type) -> NDArray[Any]:
    # One memory layout and one dtype keep the compiled loop to a single specialisation; Numba would make
    # another even for a read-only array.
    return np.require(array, dtype, ("C", "ALIGNED", "WRITEABLE"))


def _steps(mask: NDArray[Any]) -> tuple[int, int, int, int]:
    _, heads, queries, keys = mask.shape
    strides = (heads * queries * keys, queries * keys, keys, 1)
    first, second, third, fourth = (
        stride if length > 1 else 0 for stride, length in zip(strides, mask.shape, strict=True)
    )
    return first, second, third, fourth
