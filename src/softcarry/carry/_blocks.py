"""One block of keys, from the arguments of a public call to its summary."""

import math

from softcarry._arrays import (
    Array,
    array_namespace,
    broadcast_shape,
    convert,
    options_of,
    quiet,
    require_floating,
    working_dtype,
)
from softcarry.carry import _algebra
from softcarry.carry._algebra import Summary
from softcarry.carry._checks import Base, as_array, require_values_fit
from softcarry.errors import ShapeError


def summarise_block(
    scores: Array, values: Array | None, *, base: Base, bound: Array | float | None
) -> Summary:
    """Return the summary of scores (..., n) and values (..., n, dv); n may be 0.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As `softcarry.Carry.of`.
    """
    xp = array_namespace(scores, values)
    require_floating("scores", scores.dtype)
    if scores.ndim == 0:
        msg = "scores must have shape (..., n), got a point: give it an axis of length 1"
        raise ShapeError(msg)
    dtype = working_dtype(xp, scores.dtype)
    if values is not None:
        require_floating("values", values.dtype)
        require_values_fit(scores, values)
        dtype = working_dtype(xp, scores.dtype, values.dtype)
        values = convert(xp, values, dtype)
    scores = convert(xp, scores, dtype)
    if bound is not None:
        bound = as_array(scores, bound, "bound", tuple(scores.shape[:-1]))
    if scores.shape[-1] == 0:
        return _summary_of_nothing(scores, values)
    with quiet(xp):
        return _algebra.summarise(xp, scores, values, bound=bound, base=base)


def _summary_of_nothing(scores: Array, values: Array | None) -> Summary:
    xp, options = options_of(scores)
    lead, o = tuple(scores.shape[:-1]), None
    if values is not None:
        lead = broadcast_shape(lead, values.shape[:-2]) or ()
        o = xp.zeros((*lead, values.shape[-1]), **options)
    return Summary(xp.full(lead, -math.inf, **options), xp.zeros(lead, **options), o)
