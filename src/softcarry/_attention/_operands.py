"""The arrays of a call of attention: which are taken, and how their shapes fit together."""

from typing import Any, NamedTuple

from softcarry._arrays import Array
from softcarry._host_arrays import SIZES, HostArray, host_array
from softcarry.errors import DTypeError, ShapeError

_LARGEST = 512
"""Components of a query, key or value at most."""


class Operands(NamedTuple):
    """Queries (batch, heads, tq, d), keys and values (batch, kv_heads, tk, d or dv), or pages of them."""

    q: HostArray
    k: HostArray
    v: HostArray

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.k.shape[1]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, heads, tq, dv)"""
        return (*self.q.shape[:3], self.v.shape[3])

    @property
    def working(self) -> str:
        """The element type of carries."""
        return "float64" if self.q.element == "float64" else "float32"


def operands(q: Array, k: Array, v: Array, *, paged: bool) -> Operands:
    """Check queries, keys and values by what they say of themselves; no element is read.

    Raises
    ------
    DTypeError
        If they are no arrays of one library and one of the four dtypes.
    ShapeError
        If they do not fit together.
    """
    given = Operands(host_array("q", q), host_array("k", k), host_array("v", v))
    for name, array in given._asdict().items():
        if array.element not in SIZES:
            msg = (
                f"{name} must hold float64, float32, bfloat16 or float16, got {array.element}: "
                f"convert it, for example to float32"
            )
            raise DTypeError(msg)
        if (array.library, array.element) != (given.q.library, given.q.element):
            msg = (
                f"q, k and v must be of one library and dtype, got q in {given.q.element} of "
                f"{given.q.library} and {name} in {array.element} of {array.library}: convert one"
            )
            raise DTypeError(msg)
        if len(array.shape) != 4:
            what = "(pages, kv_heads, page_size, d)" if paged and name != "q" else "(batch, heads, tokens, d)"
            msg = f"{name} must have four axes, {what}, got shape {array.shape}: reshape it"
            raise ShapeError(msg)
    q_shape, k_shape, v_shape = (array.shape for array in given)
    if k_shape[:3] != v_shape[:3]:
        msg = f"k and v must agree in all axes but the last, got {k_shape} and {v_shape}"
        raise ShapeError(msg)
    if q_shape[3] != k_shape[3]:
        msg = f"q and k must have the same last axis d, got {q_shape} and {k_shape}"
        raise ShapeError(msg)
    for name, size in (("d", q_shape[3]), ("dv", v_shape[3])):
        if not 1 <= size <= _LARGEST:
            msg = f"{name}, the last axis, must be from 1 to {_LARGEST}, got {size}: split or pad it"
            raise ShapeError(msg)
    if not paged and q_shape[0] != k_shape[0]:
        msg = f"q, k and v must have the same batch, the first axis, got {q_shape} and {k_shape}"
        raise ShapeError(msg)
    if (k_shape[1] == 0 and q_shape[1]) or (k_shape[1] and q_shape[1] % k_shape[1]):
        msg = (
            f"the heads of q must be a multiple of those of k and v, got {q_shape[1]} and {k_shape[1]}: "
            f"each head of keys serves as many heads of queries"
        )
        raise ShapeError(msg)
    return given


class PairArray(NamedTuple):
    """A mask or a bias, broadcast to (batch, heads, tq, tk): stride 0 where it is."""

    array: HostArray
    strides: tuple[int, int, int, int]


def pair_array(name: str, array: Any, shape: tuple[int, int, int, int]) -> PairArray:
    """Broadcast a mask or a bias by NumPy's rules.

    Raises
    ------
    ShapeError
        If its shape does not broadcast.
    DTypeError
        If a mask is not boolean, or a bias no real floating point.
    """
    given = host_array(name, array)
    if name == "mask" and given.element != "bool":
        boolean = "mask.bool()" if given.library == "torch" else "mask.astype(bool)"
        remedy = f"bias=, which is added to the scores, or {boolean}, where True attends"
        msg = f"mask must hold booleans, got {given.element}: pass it as {remedy}"
        raise DTypeError(msg)
    if name == "bias" and given.element not in SIZES:
        remedy = "pass it as mask=" if given.element == "bool" else "convert it, for example to float32"
        msg = f"bias must hold float64, float32, bfloat16 or float16, got {given.element}: {remedy}"
        raise DTypeError(msg)
    missing = 4 - len(given.shape)
    lengths = (1,) * missing + given.shape
    fits = missing >= 0 and all(length in (1, full) for length, full in zip(lengths[-4:], shape, strict=True))
    if not fits:
        msg = f"{name} must broadcast to (batch, heads, tq, tk) = {shape}, got {given.shape}"
        raise ShapeError(msg)
    strides = (0,) * missing + given.strides
    broadcast = tuple(0 if length == 1 else stride for length, stride in zip(lengths, strides, strict=True))
    return PairArray(given, broadcast)  # pyright: ignore[reportArgumentType]
