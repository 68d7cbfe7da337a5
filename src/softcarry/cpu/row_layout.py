"""Where the rows of an array lie, how their work is cut up, and how scattered rows become contiguous ones."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from softcarry._host_arrays import SIZES
from softcarry.cpu.memory import copy_element, element_size, load_integer


class Rows(NamedTuple):
    """The rows of an array: all axes but one, in C order. Strides are in bytes, of any sign or 0.

    There are numbers only: an array would be counted, atomically, by every thread at every use.
    """

    address: int
    step: int
    """Stride along a row."""
    length: int
    """Of the innermost axis of rows."""
    stride: int
    """Of the innermost axis of rows."""
    outer: int
    """Address of the lengths and strides of the other axes of rows, (axes, 2) int64."""
    axes: int
    """How many other axes."""


class Operand(NamedTuple):
    """An array as the kernels see it."""

    element: str
    """A name of `softcarry.cpu.memory.ELEMENTS`."""
    rows: Rows
    row_count: int
    """Number of rows."""
    length: int
    """Elements of a row."""
    outer: NDArray[np.int64]
    """(axes, 2): what ``rows.outer`` is the address of."""

    @property
    def contiguous(self) -> bool:
        """Whether the elements of a row follow each other."""
        return self.rows.step == SIZES[self.element] or self.length <= 1


class Grid(NamedTuple):
    """How rows are cut into units of work: a group of rows, and a segment of consecutive pieces of each.

    A piece is the part of a row that is summarised by itself. Its length does not depend on the number of
    threads, so that neither does the result.
    """

    rows: int
    length: int
    piece: int
    pieces: int
    group: int
    segment: int
    """Pieces in a segment."""

    @property
    def segments(self) -> int:
        """Segments of a row."""
        return -(-self.pieces // self.segment)

    @property
    def units(self) -> int:
        """Units of work."""
        return -(-self.rows // self.group) * self.segments


@njit(forceinline=True)
def row_address(rows, row):
    """Address of the first element of a row."""
    if row < rows.length:
        return rows.address + row * rows.stride
    address = rows.address + row % rows.length * rows.stride
    row //= rows.length
    for axis in range(rows.axes - 1, -1, -1):
        length = load_integer(rows.outer + 16 * axis)
        address += row % length * load_integer(rows.outer + 16 * axis + 8)
        row //= length
    return address


@njit
def row_addresses(rows, first, last):
    """Addresses of the first elements of the rows from ``first`` to ``last``."""
    addresses = np.empty(last - first, np.int64)
    for row in range(first, last):
        addresses[row - first] = row_address(rows, row)
    return addresses


@njit
def gather(element, rows, addresses, first, count, buffer):
    """Copy ``count`` elements, from ``first`` on, of the rows at some addresses into rows of a buffer."""
    size = element_size(element)
    span = count * size
    if addresses.size > 1 and abs(addresses[1] - addresses[0]) < abs(rows.step):
        for j in range(count):
            for r in range(addresses.size):
                copy_element(element, addresses[r] + (first + j) * rows.step, buffer + r * span + j * size)
    else:
        for r in range(addresses.size):
            for j in range(count):
                copy_element(element, addresses[r] + (first + j) * rows.step, buffer + r * span + j * size)


@njit
def scatter(element, rows, addresses, first, count, buffer):
    """Copy back: the reverse of `gather`."""
    size = element_size(element)
    span = count * size
    if addresses.size > 1 and abs(addresses[1] - addresses[0]) < abs(rows.step):
        for j in range(count):
            for r in range(addresses.size):
                copy_element(element, buffer + r * span + j * size, addresses[r] + (first + j) * rows.step)
    else:
        for r in range(addresses.size):
            for j in range(count):
                copy_element(element, buffer + r * span + j * size, addresses[r] + (first + j) * rows.step)
