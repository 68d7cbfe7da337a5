"""Compiled code for tests that takes vectors from arrays and puts them back: Python has no vectors."""

import ml_dtypes
import numpy as np
from numba import njit

from softcarry.cpu.exponential import exp, exp2
from softcarry.cpu.memory import (
    ELEMENTS,
    block_lanes,
    element_size,
    load_block,
    load_element,
    load_partial,
    load_strip,
    store,
    store_element,
    store_partial,
    stream,
)
from softcarry.cpu.row_layout import Operand, Rows
from softcarry.cpu.simd import STRIP

DTYPES = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ELEMENT_OF = {dtype: ELEMENTS[name] for name, dtype in DTYPES.items()}

BLOCKS, STRIPS, PARTS, SINGLES, STREAMED = range(5)
"""The ways from memory to memory: `PARTS` of 7, 6, ..., 1, 7, ... elements; `STREAMED` past the caches."""


def address(array: np.ndarray) -> int:
    """The address of an array's first element."""
    return array.__array_interface__["data"][0]


def operand_of(array: np.ndarray) -> Operand:
    """Describe an array whose rows lie along its last axis, whatever its strides."""
    shape, strides = array.shape[:-1] or (1,), array.strides[:-1] or (0,)
    outer = np.array([shape[:-1], strides[:-1]], np.int64).T.copy()
    rows = Rows(address(array), array.strides[-1], shape[-1], strides[-1], address(outer), len(outer))
    return Operand(NAMES[array.dtype], rows, int(np.prod(shape)), array.shape[-1], outer)


def copied(x: np.ndarray, dtype, way: int, out: np.ndarray | None = None) -> np.ndarray:
    """Load contiguous elements of an even number of blocks, and store them as another dtype."""
    out = np.empty(x.shape, dtype) if out is None else out
    assert x.size % 32 == 0
    assert x.dtype.isnative
    _copy(_ELEMENT_OF[x.dtype], _ELEMENT_OF[out.dtype], address(x), address(out), x.size, way)
    return out


@njit(nogil=True)
def _copy(element, out_element, source, target, count, way):
    size, out_size = element_size(element), element_size(out_element)
    i, step = 0, 1
    while i < count:
        at, to = source + i * size, target + i * out_size
        if way == BLOCKS:
            step = block_lanes(element)
            store(out_element, to, load_block(element, at))
        elif way == STRIPS:
            step = STRIP
            store(out_element, to, load_strip(element, at))
        elif way == PARTS:
            step = min(step - 1 if step > 1 else STRIP - 1, count - i)
            store_partial(out_element, to, load_partial(element, at, step), step)
        elif way == SINGLES:
            store_element(out_element, to, load_element(element, at))
        else:
            step = block_lanes(element)
            stream(out_element, to, load_block(element, at))
        i += step


def copied_partly(x: np.ndarray, dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The eight lanes that a part of a strip loads; and 16 elements that were 77, over which it is stored."""
    lanes, stored = np.empty(8, dtype), np.full(16, 77, dtype)
    _copy_part(
        _ELEMENT_OF[x.dtype], _ELEMENT_OF[stored.dtype], address(x), address(lanes), address(stored), count
    )
    return lanes, stored


@njit
def _copy_part(element, out_element, source, lanes, target, count):
    vector = load_partial(element, source, count)
    store(out_element, lanes, vector)
    store_partial(out_element, target, vector, count)


def powers(x: np.ndarray, base_2: bool) -> np.ndarray:
    """2^x, or e^x, of float32 or float64 numbers that are at most 0; any number of them."""
    padded = np.zeros(-(-x.size // 32) * 32, x.dtype)
    padded[: x.size] = x
    got = np.empty_like(padded)
    exponentials(_ELEMENT_OF[x.dtype], address(padded), address(got), padded.size, base_2)
    return got[: x.size]


@njit(nogil=True)
def exponentials(element, source, target, count, base_2):
    """Store 2^x, or e^x, of whole blocks."""
    size, lanes = element_size(element), block_lanes(element)
    for i in range(0, count, lanes):
        x = load_block(element, source + i * size)
        store(element, target + i * size, exp2(x) if base_2 else exp(x))
