"""How the work on rows is cut up, given to threads, and put together: the kernels' callers."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry.cpu import row_carries, row_softmax, row_top
from softcarry.cpu.compiling import ready
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.row_layout import SIZES, Grid, Operand
from softcarry.cpu.row_sums import CHUNK
from softcarry.cpu.row_tiles import SHORT
from softcarry.cpu.simd import STRIP
from softcarry.cpu.threads import get_num_threads, run

_PIECE = 8 * CHUNK
"""Elements of a piece, unless a row would have more than _PIECES."""
_PIECES = 4096
_UNIT = 32768
"""Elements of a unit of work, in whole rows where they are shorter."""
_SHARE = 65536
"""Elements that are worth a thread: waking one takes as long as some 20 µs of work."""
_STREAMED = 2**24
"""Bytes of an output that is written past the caches: it is larger than what they would keep."""


class Top(NamedTuple):
    """The best k of each row, best first, and the rows' carries."""

    scores: NDArray[np.floating]
    indices: NDArray[np.int64]
    m: NDArray[np.floating]
    l: NDArray[np.float64]
    lse: NDArray[np.floating]


def row_carries_of(
    x: Operand,
    *,
    out_element: str | None = None,
    lse: int = 0,
    targets: NDArray[np.int64] | None = None,
    logprobs: int = 0,
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Return m and l (rows,) of all rows, and write what else is asked for; there is at least one element.

    Parameters
    ----------
    x : Operand
    out_element : str, optional
        Element type of the outputs.
    lse : int
        Address of (rows,), contiguous; 0 for none.
    targets : int64 array (rows, t), optional
        C-contiguous, each in range.
    logprobs : int
        Address of (rows, t), contiguous.
    """
    threads, grid = _cut(x, _group(x, x.contiguous))
    results = row_carries.CarryResults(
        np.empty(grid.rows * grid.pieces, _working(x)),
        np.empty(grid.rows * grid.pieces),
        lse,
        np.empty((grid.rows, 0), np.int64) if targets is None else targets,
        logprobs,
    )
    elements = (x.element, out_element or x.element)
    scalars = tuple(ELEMENTS[name] for name in elements)
    _share(row_carries.carry_rows, elements, (*scalars, x.rows, grid), threads, grid, (results,))
    if grid.segments > 1:
        arguments: tuple[Any, ...] = (*scalars, x.rows, grid, results, 0, grid.rows)
        ready(row_carries.finish_rows, elements, arguments)
        row_carries.finish_rows(*arguments)
    return results.m[:: grid.pieces], results.l[:: grid.pieces]


def write_softmax(x: Operand, out: Operand, *, logarithms: bool, empty: float) -> None:
    """Write the softmax, or its logarithm, of all rows; there is at least one element.

    Parameters
    ----------
    x, out : Operand
        Of the same shape, without a byte in common.
    logarithms : bool
    empty : float
        Of a row without live scores: what e^−∞ is multiplied by, or, for logarithms, what is subtracted from
        −∞.
    """
    contiguous = x.contiguous and out.contiguous
    threads, grid = _cut(x, _group(x, contiguous))
    m, l = np.empty(grid.rows * grid.pieces, _working(x)), np.empty(grid.rows * grid.pieces)
    size = SIZES[out.element]
    aligned = (
        out.rows.address % size == 0 and not (out.outer[:, 1] % size).any() and out.rows.stride % size == 0
    )
    streaming = contiguous and aligned and out.row_count * out.length * size >= _STREAMED
    elements = (x.element, out.element)
    fixed = (*(ELEMENTS[name] for name in elements), x.rows, out.rows, grid)
    if grid.segments == 1:
        options = (m, l, True, logarithms, empty, streaming)
        _share(row_softmax.softmax_rows, elements, fixed, threads, grid, options)
        return
    row_carries_into(x, grid, threads, m, l)
    _share(
        row_softmax.softmax_rows, elements, fixed, threads, grid, (m, l, False, logarithms, empty, streaming)
    )


def top_of_rows(x: Operand, k: int, *, out_element: str, probabilities: int, empty: float) -> Top:
    """Return the best k of all rows and write their probabilities; there is at least one element.

    Parameters
    ----------
    x : Operand
    k : int
        From 1 to the length of the rows.
    out_element : str
        Element type of the probabilities.
    probabilities : int
        Address of (rows, k), contiguous.
    empty : float
        The probability in a row without live scores.
    """
    # Each segment keeps a list, and all lists together are not to outgrow the rows.
    threads, grid = _cut(x, _group(x, x.contiguous), most=x.length // (16 * k))
    # Room for as many more as are kept makes the work on a full list worth what it throws out.
    capacity = min(2 * k + 32, x.length)
    working = _working(x)
    results = row_top.TopResults(
        np.empty(grid.rows * grid.pieces, working),
        np.empty(grid.rows * grid.pieces),
        np.empty(grid.rows * k, working),
        np.empty(grid.rows * k, np.int64),
        np.empty(grid.rows, working),
        probabilities,
    )
    held = grid.rows * grid.segments if grid.segments > 1 else 0
    # A vector may read beyond the last list.
    room = held * capacity + 32
    lists = row_top.TopLists(
        np.empty(room, working), np.empty(room, np.int64), np.empty(held, np.int64), np.empty(held, working)
    )
    elements = (x.element, out_element)
    scalars = tuple(ELEMENTS[name] for name in elements)
    options = (capacity, k, empty, lists, results)
    _share(row_top.top_rows, elements, (*scalars, x.rows, grid), threads, grid, options)
    if grid.segments > 1:
        arguments: tuple[Any, ...] = (scalars[1], grid, grid.segments, *options)
        ready(row_top.finish_top, elements, arguments)
        row_top.finish_top(*arguments)
    return Top(
        results.scores.reshape(grid.rows, k),
        results.indices.reshape(grid.rows, k),
        results.m[:: grid.pieces],
        results.l[:: grid.pieces],
        results.lse,
    )


def row_carries_into(
    x: Operand, grid: Grid, threads: int, m: NDArray[np.floating], l: NDArray[np.float64]
) -> None:
    """Summarise segments of rows and merge them into the first piece of each row of m, l (rows · pieces)."""
    results = row_carries.CarryResults(m, l, 0, np.empty((grid.rows, 0), np.int64), 0)
    elements = (x.element, x.element)
    scalars = tuple(ELEMENTS[name] for name in elements)
    _share(row_carries.carry_rows, elements, (*scalars, x.rows, grid), threads, grid, (results,))
    arguments: tuple[Any, ...] = (*scalars, x.rows, grid, results, 0, grid.rows)
    ready(row_carries.finish_rows, elements, arguments)
    row_carries.finish_rows(*arguments)


def _working(x: Operand) -> type[np.floating]:
    return np.float64 if x.element == "float64" else np.float32


def _group(x: Operand, contiguous: bool) -> int:
    """Rows that one unit of work takes: whole tiles, or what the buffer holds where they are gathered."""
    if x.length <= SHORT:
        return -(-_UNIT // (x.length * STRIP)) * STRIP
    if not contiguous:
        return row_carries.GATHERED // (CHUNK * SIZES[x.element])
    return max(1, _UNIT // x.length)


def _cut(x: Operand, group: int, *, most: int = _PIECES) -> tuple[int, Grid]:
    """Return how many threads the work is worth, and how it is cut up, with at most so many segments."""
    threads = max(1, min(get_num_threads(), x.row_count * x.length // _SHARE))
    return threads, _grid(x.row_count, x.length, group, most, threads)


@functools.lru_cache(maxsize=256)
def _grid(rows: int, length: int, group: int, most: int, threads: int) -> Grid:
    piece = max(_PIECE, -(-length // (_PIECES * CHUNK)) * CHUNK)
    pieces = -(-length // piece)
    groups = -(-rows // group)
    segments = max(1, min(pieces, most, -(-4 * threads // groups))) if threads > 1 else 1
    return Grid(rows, length, piece, pieces, group, -(-pieces // segments))


def _share(
    kernel: Any, elements: tuple[str, ...], fixed: tuple, threads: int, grid: Grid, rest: tuple
) -> None:
    """Run a kernel in threads that claim the units of a grid."""
    counter = np.zeros(1, np.int64)
    arguments = (*fixed, grid.segments, grid.units, counter, *rest)
    ready(kernel, elements, arguments)
    # What a late call looks at, the counter, is among the arguments, and so outlives it.
    run(lambda: kernel(*arguments), min(threads, grid.units))
