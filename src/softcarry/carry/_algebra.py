"""The formulas of the carry on bare arrays m, l (...,) and o (..., dv): summarise a block, combine summaries.

Three devices recur. Where m = −inf the shift is 0, so that −inf − (−inf) is never formed. Whatever belongs to
a masked score or to an empty part is selected away before it is used, never multiplied by 0, which keeps NaN
and infinity behind it out of the result and out of the gradient (a NaN times the zero that ``where`` sends
back is a NaN). And what must add nothing adds −0.0, the one number that leaves both zeros as they are.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from softcarry._arrays import Array, Namespace, convert, dtype_name, known, matmul, select
from softcarry.errors import OptionError

LN2 = math.log(2.0)
LOG2E = 1.0 / LN2


class Summary(NamedTuple):
    """The three arrays of a carry; ``o`` is None where there are no values."""

    m: Array
    l: Array
    o: Array | None


def exponential(xp: Namespace, base: str) -> Callable[[Array], Array]:
    """Return the function e^x or 2^x of a namespace."""
    if base == "e":
        return xp.exp
    # exp2 is not in the array-API standard, though every large library has it.
    return xp.exp2 if hasattr(xp, "exp2") else lambda x: 2.0**x


def shift_of(xp: Namespace, m: Array) -> Array:
    """Return what is subtracted before exponentiating: m, or 0 where there is no live score."""
    return select(xp, m == -math.inf, 0.0, m)


def bounded_maximum(xp: Namespace, largest: Array, bound: Array) -> Array:
    """Return the bound in place of the largest score, where that is finite.

    Raises
    ------
    OptionError
        If the bound is NaN or +inf, or a score exceeds it; traced arrays are not looked into.
    """
    if known(xp.any(xp.isnan(bound) | (bound == math.inf))):
        msg = (
            f"a bound must be finite in {dtype_name(bound.dtype)} (or −inf for a row without live scores), "
            f"got NaN or +inf, or a number that overflows to it: leave it out"
        )
        raise OptionError(msg)
    if known(xp.any(largest > bound)):
        excess = float(xp.max(select(xp, largest > bound, largest - bound, 0.0)))
        msg = (
            f"a bound must be at least every score of its row, a score exceeds it by {excess:g}: "
            f"raise the bound or leave it out"
        )
        raise OptionError(msg)
    return select(xp, xp.isfinite(largest), xp.broadcast_to(bound, largest.shape), largest)


def summarise(
    xp: Namespace, scores: Array, values: Array | None, *, bound: Array | None, base: str
) -> Summary:
    """Return the summary of scores (..., n) and values (..., n, dv), n ≥ 1, relative to maximum or bound."""
    # Every namespace that we know lets NaN through the maximum, which is the rule of the carry.
    m = xp.max(scores, axis=-1)
    if bound is not None:
        m = bounded_maximum(xp, m, bound)
    # +inf − (+inf) = NaN is wanted: a score of +inf makes l and o NaN.
    terms = exponential(xp, base)(scores - xp.expand_dims(shift_of(xp, m), axis=-1))
    total = xp.sum(terms, axis=-1)
    if values is None:
        return Summary(m, total, None)
    o = _weighted_sum(xp, terms, scores != -math.inf, values)
    if m.shape != o.shape[:-1]:
        m, total = (xp.broadcast_to(array, o.shape[:-1]) for array in (m, total))
    return Summary(m, total, o)


def of_normalised(xp: Namespace, lse: Array, output: Array | None) -> Summary:
    """Return the summary m = lse, l = 1, o = output, by the rules of the carry where lse is not finite."""
    finite = xp.isfinite(lse)
    total = select(xp, finite | (lse == -math.inf), convert(xp, finite, lse.dtype), math.nan)
    if output is not None:
        output = select(xp, xp.expand_dims(finite, axis=-1), output, math.nan)
        output = clear_empty(xp, lse, output)
    return Summary(lse, total, output)


def combine(xp: Namespace, parts: Sequence[Summary], *, base: str) -> Summary:
    """Return the summary of the union, each part rescaled once to the common maximum, summed left to right.

    The plain order of the sum keeps it free of where empty parts stand: adding −0.0 anywhere changes no bit.
    """
    m = functools.reduce(xp.maximum, [part.m for part in parts])
    shift = shift_of(xp, m)
    rescaled = [rescale(xp, part, shift, base=base) for part in parts]
    total = functools.reduce(operator.add, [part.l for part in rescaled])
    outputs: list[Array] = [part.o for part in rescaled if part.o is not None]
    if not outputs:
        return Summary(m, total, None)
    o = functools.reduce(operator.add, outputs)
    return Summary(m, total, clear_empty(xp, m, o))


def rescale(xp: Namespace, part: Summary, shift: Array, *, base: str) -> Summary:
    """Return a part measured relative to ``shift``; an empty part becomes 0 and −0.0, whatever it held."""
    empty = part.m == -math.inf
    factor = exponential(xp, base)(part.m - shift)
    total = select(xp, empty, 0.0, part.l) * factor
    if part.o is None:
        return Summary(part.m, total, None)
    empty = xp.expand_dims(empty, axis=-1)
    live = xp.isfinite(part.o) & ~empty
    # A live infinity stays one however small the factor is: inf·0 is a NaN that only some orders meet.
    nonfinite = select(xp, live | empty, -0.0, part.o)
    o = select(xp, live, part.o, -0.0) * xp.expand_dims(factor, axis=-1) + nonfinite
    return Summary(part.m, total, o)


def clear_empty(xp: Namespace, m: Array, o: Array) -> Array:
    """Return o with 0 where the row is empty."""
    return select(xp, xp.expand_dims(m == -math.inf, axis=-1), 0.0, o)


def _weighted_sum(xp: Namespace, terms: Array, live: Array, values: Array) -> Array:
    """Return Σ terms·values (..., dv), where values of scores that are not live never count.

    A NaN or infinity in a live value reaches its row whatever its term underflows to.
    """
    finite = xp.isfinite(values)
    if known(xp.all(finite)):
        return _contract(xp, terms, values)
    upward = (values == math.inf) | xp.isnan(values)
    downward = (values == -math.inf) | xp.isnan(values)
    marks = xp.astype(xp.concat([upward, downward], axis=-1), terms.dtype)
    reached = _contract(xp, xp.astype(live, terms.dtype), marks) > 0
    dv = values.shape[-1]
    total = _contract(xp, terms, select(xp, finite, values, 0.0))
    nothing = xp.full_like(total, -0.0)
    total = total + select(xp, reached[..., :dv], math.inf, nothing)
    return total + select(xp, reached[..., dv:], -math.inf, nothing)


def _contract(xp: Namespace, terms: Array, values: Array) -> Array:
    """Return Σ_n terms (..., n) · values (..., n, dv), leading axes broadcast."""
    if terms.ndim > 1 and (values.ndim == 2 or values.shape[-3] == 1):
        # Queries that share values take one matrix product a head, not a matrix-vector product a query.
        return matmul(xp, terms, values if values.ndim == 2 else xp.squeeze(values, axis=-3))
    return xp.squeeze(matmul(xp, xp.expand_dims(terms, axis=-2), values), axis=-2)
