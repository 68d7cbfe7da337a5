"""How a call of attention is cut into units of work: all that follows from its shapes alone."""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry.cpu.attention_layout import KEY_BLOCK
from softcarry.cpu.attention_tasks import TASK_COLUMNS
from softcarry.cpu.decode import MOST_ROWS
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.product import padded_columns

_PIECE = 16 * KEY_BLOCK
"""Keys of a piece where few rows leave no other work to share out."""
_MOST_PIECES = 256
_BLOCKS = 8
"""Blocks of queries, of all heads of a sequence, that are work enough to share out."""
_QUERY_BYTES = 2**18
"""Of a block of queries and its running output: they stay in the second-level cache."""
_MOST_QUERIES = 512
_MANY_QUERIES = 24
"""Queries that fill enough of a panel to go by blocks, however few rows share their keys."""
_PANEL = {"float32": 32, "float64": 16}


class Shapes(NamedTuple):
    """What the cutting up goes by."""

    heads: int
    group: int
    d: int
    dv: int
    working: str
    """Element type of the carries."""
    query_counts: bytes
    """(n,) int64: the queries of each sequence."""
    key_counts: bytes
    splits: int
    """Pieces that the keys are cut into; 0 if that follows from the shapes of each sequence by itself."""


class Cut(NamedTuple):
    """The work on the sequences that take one path."""

    few: bool
    """Whether keys and values are streamed once for all rows that share them."""
    tasks: NDArray[np.int64]
    """The table of `softcarry.cpu.attention_tasks.Task`."""
    units: int
    parted_rows: int
    """Rows whose keys come in pieces."""
    parts: int
    """Pieces of all such rows."""
    rows: int
    """Queries of a unit, in whole panels."""
    width: int
    """Columns of the running output, in whole panels."""
    products: int
    """Multiplications."""


@functools.lru_cache(maxsize=256)
def cuts(shapes: Shapes) -> tuple[Cut, ...]:
    """Return the work on many rows, and that on few: query heads that share keys, times queries.

    A sequence's path and pieces follow from its own shape, not from those beside it. The result is
    remembered: for small problems it would take longer than the work.
    """
    queries, keys = (np.frombuffer(counts, np.int64) for counts in (shapes.query_counts, shapes.key_counts))
    few = (queries * shapes.group <= MOST_ROWS) & (queries < _MANY_QUERIES)
    chosen = (np.flatnonzero(~few), np.flatnonzero(few & (queries > 0)))
    return tuple(
        _cut(shapes, numbers, queries[numbers], keys[numbers], streamed)
        for streamed, numbers in zip((False, True), chosen, strict=True)
        if len(numbers)
    )


def _cut(
    shapes: Shapes,
    numbers: NDArray[np.int64],
    queries: NDArray[np.int64],
    keys: NDArray[np.int64],
    few: bool,
) -> Cut:
    if few:
        rows, heads, blocks = 0, shapes.heads // shapes.group, np.ones(len(numbers), np.int64)
        work = np.zeros(len(numbers), np.int64)
    else:
        rows = _query_block(shapes, int(queries.max()))
        heads, blocks = shapes.heads, -(-queries // rows)
        work = shapes.heads * -(-queries // _MOST_QUERIES)
    pieces = _pieces(work, keys, shapes.splits)
    tasks = _tasks(numbers, heads, blocks, pieces, keys, queries * shapes.heads)
    parted_rows, parts, units = (int(number) for number in tasks[-1, 4:])
    width = padded_columns(8 * ELEMENTS[shapes.working].itemsize, shapes.dv)
    products = int((queries * keys).sum()) * shapes.heads * (shapes.d + shapes.dv)
    return Cut(few, tasks, units, parted_rows, parts, rows, width, products)


def _query_block(shapes: Shapes, longest: int) -> int:
    """Return the queries of a unit of work, in whole panels."""
    panel, size = _PANEL[shapes.working], ELEMENTS[shapes.working].itemsize
    fitting = _QUERY_BYTES // (size * (shapes.d + shapes.dv)) // panel * panel
    return max(panel, min(_MOST_QUERIES, fitting, -(-longest // panel) * panel))


def _pieces(work: NDArray[np.int64], keys: NDArray[np.int64], splits: int) -> NDArray[np.int64]:
    """Return into how many pieces the keys of each sequence are cut, at least 1."""
    whole = np.maximum(-(-keys // KEY_BLOCK), 1)
    if splits:
        return np.minimum(splits, whole)
    enough = np.where(work == 0, _MOST_PIECES, -(-_BLOCKS // np.maximum(work, 1)))
    return np.maximum(np.minimum(-(-keys // _PIECE), enough), 1)


def _tasks(
    numbers: NDArray[np.int64],
    heads: int,
    blocks: NDArray[np.int64],
    pieces: NDArray[np.int64],
    keys: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the table of tasks, and a row for the end."""
    whole = np.maximum(-(-keys // KEY_BLOCK), 1)
    piece_keys = -(-whole // pieces) * KEY_BLOCK
    # Rounding up may leave fewer pieces than were meant.
    pieces = np.maximum(-(-keys // piece_keys), 1)
    parted = np.where(pieces > 1, rows, 0)
    tasks = np.zeros((len(numbers) + 1, TASK_COLUMNS), np.int64)
    tasks[:-1, :4] = np.stack([numbers, blocks, pieces, piece_keys], axis=1)
    for column, amount in ((4, parted), (5, parted * pieces), (6, heads * blocks * pieces)):
        np.cumsum(amount, out=tasks[1:, column])
    return tasks
