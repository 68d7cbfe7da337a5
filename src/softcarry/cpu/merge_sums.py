"""One row of a merge: Σ weight·value over its live partials, a block of values at a time.

A live infinity counts however small its weight is, since inf·0 would be a NaN that only some orders meet:
where a sum is not finite, it is taken again with the infinities and NaN apart.
"""

from numba import njit, types
from numba.core.extending import overload

from softcarry.cpu.memory import (
    block_lanes,
    copy_element,
    element_size,
    filled_block,
    filled_strip,
    load_block,
    load_element,
    load_integer,
    load_partial,
    load_strip,
    prefetch,
    store,
    store_partial,
    stream,
)
from softcarry.cpu.simd import STRIP, lanes_above, narrowed, splat, where_equal, widened

_COMPILED_ONLY = "a vector exists in compiled code only: call this from a function under numba.njit"

_LINE = 64
"""Bytes of a cache line. A processor reads ahead of some streams by itself, but not of 32 partials."""

_WIDE = (types.float32, types.float64)


def summand(element, x):
    """Return a vector in the format in which its element type is summed."""
    raise TypeError(_COMPILED_ONLY)


@overload(summand, jit_options={"forceinline": True})
def _summand(element, x):
    if element in _WIDE:
        return lambda element, x: widened(x)
    return lambda element, x: x


@njit(forceinline=True)
def _weight(weights, i):
    return load_element(0.0, weights + 8 * i)


@njit(forceinline=True)
def _block(element, live, i, first):
    """Load a block of the values of a live partial, and ask for that of the next row."""
    size = element_size(element)
    address, following = load_integer(live + 24 * i) + first * size, load_integer(live + 24 * i + 8)
    for byte in range(0, block_lanes(element) * size, _LINE):
        prefetch(address + following + byte)
    return summand(element, load_block(element, address))


@njit
def _write_strips(element, live, weights, count, target, step, first, last, buffer):
    """Write the values ``first`` to ``last`` of a row, in strips, whatever they are and lie."""
    size, like = element_size(element), filled_strip(element, 0.0)
    for j in range(first, last, STRIP):
        held = min(STRIP, last - j)
        total = splat(summand(element, like), -0.0)
        for i in range(count):
            address, stride = load_integer(live + 24 * i), load_integer(live + 24 * i + 16)
            if stride == size:
                address += j * size
            else:
                for k in range(held):
                    copy_element(element, address + (j + k) * stride, buffer + k * size)
                address = buffer
            x = load_strip(element, address) if held == STRIP else load_partial(element, address, held)
            # x − x is 0, but NaN where x is not finite.
            zero, nothing = splat(x, 0.0), splat(x, -0.0)
            finite = summand(element, where_equal(x - x, zero, x, nothing))
            others = summand(element, where_equal(x - x, zero, nothing, x))
            total = total + (finite * splat(finite, _weight(weights, i)) + others)
        result = narrowed(total, like)
        if step != size:
            store(element, buffer, result)
            for k in range(held):
                copy_element(element, buffer + k * size, target + (j + k) * step)
        elif held == STRIP:
            store(element, target + j * size, result)
        else:
            store_partial(element, target + j * size, result, held)


@njit
def write_row(element, live, weights, count, contiguous, target, step, dv, streaming, buffer):
    """Write a row: Σ weight·value over its live partials, at least one.

    Parameters
    ----------
    element : scalar
        Stands for the element type of the values.
    live : int
        Address of three integers for each live partial: address of its values, how much further on those of
        the next row are, and their stride.
    weights : int
        Address of their weights, float64.
    count : int
        How many live partials there are.
    contiguous : bool
        Whether all values lie one after the other, those written too.
    target, step : int
        Address and stride of what is written, which may be the values of a partial.
    dv : int
        Values of the row.
    streaming : bool
        Whether blocks are written past the caches: their addresses are then multiples of 64.
    buffer : int
        Address of eight elements.
    """
    size, lanes = element_size(element), block_lanes(element)
    like = filled_block(element, 0.0)
    done = 0
    if contiguous:
        while done + lanes <= dv:
            x = _block(element, live, 0, done)
            sums = x * splat(x, _weight(weights, 0))
            for i in range(1, count):
                x = _block(element, live, i, done)
                sums = sums + x * splat(x, _weight(weights, i))
            if lanes_above(sums - sums, splat(sums, 0.0)):
                until = done + lanes
                _write_strips(element, live, weights, count, target, step, done, until, buffer)
            elif streaming:
                stream(element, target + done * size, narrowed(sums, like))
            else:
                store(element, target + done * size, narrowed(sums, like))
            done += lanes
    if done < dv:
        _write_strips(element, live, weights, count, target, step, done, dv, buffer)
