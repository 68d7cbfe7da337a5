"""What is read off a carry: log-sum-exp, output, weights, log-probabilities.

Rows without weight to give (empty, or underflowed below a bound) are selected away before any division or
logarithm, so that neither values nor gradients meet an infinity there.
"""

import math
from typing import TYPE_CHECKING

from softcarry._arrays import (
    Array,
    Namespace,
    array_namespace,
    broadcast_shape,
    convert,
    quiet,
    require_floating,
    select,
    working_dtype,
)
from softcarry.carry import _algebra
from softcarry.carry._algebra import LN2
from softcarry.carry._checks import Base, as_array
from softcarry.errors import OptionError, ShapeError

if TYPE_CHECKING:
    from softcarry.carry.state import Carry


def log_sum_exp(carry: "Carry", base: Base) -> Array:
    """Return the log-sum-exp (...,) in units of a base."""
    xp = array_namespace(carry.m)
    with quiet(xp):
        weightless, _, total = _safe(xp, carry)
        m = select(xp, weightless, -math.inf, carry.to_base(base).m)
        return select(xp, m == math.inf, math.inf, m + (xp.log if base == "e" else xp.log2)(total))


def output(carry: "Carry") -> Array:
    """Return o / l (..., dv).

    Raises
    ------
    OptionError
        If the carry holds no values.
    """
    if carry.o is None:
        msg = "this carry holds no values, so it has no output: give values to Carry.of or absorb"
        raise OptionError(msg)
    xp = array_namespace(carry.m)
    with quiet(xp):
        _, _, total = _safe(xp, carry)
        return _algebra.clear_empty(xp, carry.m, carry.o) / xp.expand_dims(total, axis=-1)


def weights(carry: "Carry", scores: Array) -> Array:
    """Return e^(s − m) / l (..., n).

    Raises
    ------
    ShapeError, DTypeError
    """
    xp = array_namespace(scores, carry.m)
    require_floating("scores", scores.dtype)
    if scores.ndim == 0 or broadcast_shape(scores.shape[:-1], carry.m.shape) is None:
        msg = (
            f"scores must have shape (..., n) whose leading axes broadcast with m {tuple(carry.m.shape)}, "
            f"got {tuple(scores.shape)}"
        )
        raise ShapeError(msg)
    with quiet(xp):
        weightless, shift, total = (xp.expand_dims(array, axis=-1) for array in _safe(xp, carry))
        scores = convert(xp, scores, working_dtype(xp, scores.dtype, carry.m.dtype))
        return _algebra.exponential(xp, carry.base)(select(xp, weightless, -math.inf, scores) - shift) / total


def logprob(carry: "Carry", score: Array | float) -> Array:
    """Return (s − m) − ln l (...,), natural whatever the base.

    Raises
    ------
    ShapeError, DTypeError
    """
    xp = array_namespace(carry.m)
    score = as_array(carry.m, score, "score", tuple(carry.m.shape))
    with quiet(xp):
        weightless, shift, total = _safe(xp, carry)
        gap = select(xp, weightless, -math.inf, xp.broadcast_to(score, carry.m.shape)) - shift
        return (gap * LN2 if carry.base == "2" else gap) - xp.log(total)


def _safe(xp: Namespace, carry: "Carry") -> tuple[Array, Array, Array]:
    """Return which rows have no weight to give, the shift, and l with 1 in those rows."""
    weightless = (carry.m == -math.inf) | (carry.l == 0)
    return weightless, _algebra.shift_of(xp, carry.m), select(xp, weightless, 1.0, carry.l)
