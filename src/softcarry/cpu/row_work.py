"""How the work on rows is cut up, given to threads, and put together: the kernels' callers."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry._host_arrays import SIZES
from softcarry.cpu import row_carries, row_softmax, row_top
from softcarry.cpu.compiling import ready
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.row_layout import Grid, Operand
from softcarry.cpu.row_short import SHORT
from softcarry.cpu.row_sums import CHUNK
from softcarry.cpu.row_team import share
from softcarry.cpu.simd import STRIP
from softcarry.cpu.threads import get_num_threads

_PIECE = 8 * CHUNK
"""Elements of a piece, unless a row would have more than _PIECES."""
_PIECES = 4096
_UNIT = 32768
"""Elements of a unit of work, in whole rows where they are shorter."""
_SHARE = 65536
"""Elements that are worth a thread: waking one takes as long as some 20 µs of work."""
_STREAMED = 2**24
"""Bytes of an output that is written past the caches: it is larger than what they would keep."""


_NO_TARGETS = np.empty((0, 0), np.int64)


class Top(NamedTuple):
    """The best k of each row, best first, and the rows' carries."""

    scores: NDArray[np.floating]
    indices: NDArray[np.int64]
    m: NDArray[np.floating]
    l: NDArray[np.float64]
    lse: NDArray[np.floating]


class _Work(NamedTuple):
    """What is known of a call from the types and the shape alone."""

    threads: int
    grid: Grid
    working: type[np.floating]
    scalars: tuple[Any, ...]
    """Those that stand for the element types."""
    elements: tuple[str, ...]
    """Their names."""
    units: tuple[int, int]
    """Segments of a row, and units in all."""


def row_carries_of(
    x: Operand,
    *,
    out_element: str | None = None,
    lse: int = 0,
    targets: NDArray[np.int64] | None = None,
    logprobs: int = 0,
    keep: bool = True,
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
    keep : bool
        Whether m and l are wanted; otherwise they may be empty.
    """
    work = _work(x, out_element or x.element, x.contiguous)
    grid = work.grid
    count = grid.rows * grid.pieces if keep or grid.length > SHORT else 0
    results = row_carries.CarryResults(
        np.empty(count, work.working),
        np.empty(count),
        lse,
        _NO_TARGETS if targets is None else targets,
        logprobs,
    )
    _share(row_carries.carry_rows, work, (x.rows, grid), (results,))
    if grid.segments > 1:
        arguments: tuple[Any, ...] = (*work.scalars, x.rows, grid, results, 0, grid.rows)
        ready(row_carries.finish_rows, work.elements, arguments)
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
    work = _work(x, out.element, contiguous)
    grid = work.grid
    count = grid.rows * grid.pieces if grid.length > SHORT else 0
    m, l = np.empty(count, work.working), np.empty(count)
    size = SIZES[out.element]
    streaming = contiguous and out.row_count * out.length * size >= _STREAMED
    if streaming:
        rows = out.rows
        streaming = not (rows.address % size or (out.outer[:, 1] % size).any() or rows.stride % size)
    fixed = (x.rows, out.rows, grid)
    if grid.segments > 1:
        row_carries_into(x, work, m, l)
    options = (m, l, grid.segments == 1, logarithms, empty, streaming)
    _share(row_softmax.softmax_rows, work, fixed, options)


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
    work = _work(x, out_element, x.contiguous, most=x.length // (16 * k))
    grid, working = work.grid, work.working
    # Room for as many more as are kept makes the work on a full list worth what it throws out.
    capacity = min(2 * k + 32, x.length)
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
    options = (capacity, k, empty, lists, results)
    _share(row_top.top_rows, work, (x.rows, grid), options)
    if grid.segments > 1:
        arguments: tuple[Any, ...] = (work.scalars[1], grid, grid.segments, *options)
        ready(row_top.finish_top, work.elements, arguments)
        row_top.finish_top(*arguments)
    return Top(
        results.scores.reshape(grid.rows, k),
        results.indices.reshape(grid.rows, k),
        results.m[:: grid.pieces],
        results.l[:: grid.pieces],
        results.lse,
    )


def row_carries_into(x: Operand, work: _Work, m: NDArray[np.floating], l: NDArray[np.float64]) -> None:
    """Summarise segments of rows and merge them into the first piece of each row of m, l (rows · pieces)."""
    grid = work.grid
    results = row_carries.CarryResults(m, l, 0, _NO_TARGETS, 0)
    scalar = ELEMENTS[x.element]
    work = work._replace(elements=(x.element, x.element), scalars=(scalar, scalar))
    _share(row_carries.carry_rows, work, (x.rows, grid), (results,))
    arguments: tuple[Any, ...] = (scalar, scalar, x.rows, grid, results, 0, grid.rows)
    ready(row_carries.finish_rows, work.elements, arguments)
    row_carries.finish_rows(*arguments)


def _work(x: Operand, out_element: str, contiguous: bool, *, most: int = _PIECES) -> _Work:
    """Return how the work on rows is cut up, with at most so many segments of a row."""
    return _cut(x.element, out_element, x.row_count, x.length, contiguous, most, get_num_threads())


@functools.lru_cache(maxsize=256)
def _cut(
    element: str, out_element: str, rows: int, length: int, contiguous: bool, most: int, threads: int
) -> _Work:
    threads = max(1, min(threads, rows * length // _SHARE))
    group = _group(element, length, contiguous)
    piece = max(_PIECE, -(-length // (_PIECES * CHUNK)) * CHUNK)
    pieces = -(-length // piece)
    groups = -(-rows // group)
    segments = max(1, min(pieces, most, -(-4 * threads // groups))) if threads > 1 else 1
    grid = Grid(rows, length, piece, pieces, group, -(-pieces // segments))
    elements = (element, out_element)
    return _Work(
        min(threads, grid.units),
        grid,
        np.float64 if element == "float64" else np.float32,
        tuple(ELEMENTS[name] for name in elements),
        elements,
        (grid.segments, grid.units),
    )


def _group(element: str, length: int, contiguous: bool) -> int:
    """Rows that one unit of work takes: whole eights, or what the buffer holds where they are gathered."""
    if length <= SHORT:
        return -(-_UNIT // (length * STRIP)) * STRIP
    if not contiguous:
        return row_carries.GATHERED // (CHUNK * SIZES[element])
    return max(1, _UNIT // length)


def _share(kernel: Any, work: _Work, fixed: tuple, rest: tuple) -> None:
    """Run a kernel in threads that claim the units of a grid."""
    fixed = (*work.scalars, *fixed, *work.units)
    ready(kernel, work.elements, (*fixed, 0, 0, *rest))
    share(kernel, fixed, rest, work.threads)
