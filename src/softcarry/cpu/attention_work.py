"""How a call of attention is cut up, given to threads, and put together: the kernels' caller."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry.cpu import attention_tasks, decode, prefill
from softcarry.cpu.attention_layout import KEY_BLOCK, Problem
from softcarry.cpu.attention_results import Parts, Results
from softcarry.cpu.attention_tasks import TASK_COLUMNS
from softcarry.cpu.compiling import ready
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.prefill import Options
from softcarry.cpu.product import padded_columns
from softcarry.cpu.threads import get_num_threads, run

_PIECE = 16 * KEY_BLOCK
"""Keys of a piece where few rows leave no other work to share out."""
_MOST_PIECES = 256
_BLOCKS = 8
"""Blocks of queries, of all heads of a sequence, that are work enough to share out."""
_QUERY_BYTES = 2**18
"""Of a block of queries and its running output: they stay in the second-level cache."""
_MOST_QUERIES = 256
_PANEL = {"float32": 32, "float64": 16}
_SHARE = 2**20
"""Multiplications that are worth a thread: waking one takes as long as some 20 µs of work."""


class Shapes(NamedTuple):
    """What the cutting up goes by."""

    heads: int
    group: int
    d: int
    dv: int
    query_counts: NDArray[np.int64]
    key_counts: NDArray[np.int64]
    splits: int
    """Pieces that the keys are cut into; 0 if that follows from the shapes of each sequence by itself."""


def attend(element: str, problem: Problem, options: Options, results: Results, shapes: Shapes) -> None:
    """Compute attention of all sequences. No result depends on the number of threads.

    A sequence's path and pieces follow from its own shape, not from those beside it: where few rows, of query
    heads that share keys, stand against the keys, these are streamed once for all.
    """
    few = (shapes.query_counts * shapes.group <= decode.MOST_ROWS) & (shapes.query_counts > 0)
    many = shapes.query_counts * shapes.group > decode.MOST_ROWS
    working = "float64" if element == "float64" else "float32"
    for chosen, kernel in ((many, prefill.attend_queries), (few, decode.attend_groups)):
        numbers = np.flatnonzero(chosen)
        if len(numbers):
            _attend_some(element, working, problem, options, results, shapes, numbers, kernel)


def _attend_some(
    element: str,
    working: str,
    problem: Problem,
    options: Options,
    results: Results,
    shapes: Shapes,
    numbers: NDArray[np.int64],
    kernel: Any,
) -> None:
    like = ELEMENTS[working]
    bits = 8 * like.itemsize
    width = padded_columns(bits, shapes.dv)
    queries, keys = shapes.query_counts[numbers], shapes.key_counts[numbers]
    if kernel is prefill.attend_queries:
        rows = _query_block(working, shapes, int(queries.max()))
        heads, blocks = shapes.heads, -(-queries // rows)
        work = shapes.heads * -(-queries // _MOST_QUERIES)
    else:
        rows = 0
        heads, blocks = shapes.heads // shapes.group, np.ones(len(numbers), np.int64)
        work = np.zeros(len(numbers), np.int64)
    pieces = _pieces(work, keys, shapes.splits)
    tasks = _tasks(numbers, heads, blocks, pieces, keys, queries * shapes.heads)
    units, parted_rows, part_count = (int(tasks[-1, column]) for column in (6, 4, 5))
    held = np.empty(part_count * (2 + width) + 64, like.dtype)
    m = held.ctypes.data
    parts = Parts(m, m + part_count * like.itemsize, _aligned(m + 2 * part_count * like.itemsize), width)
    counter = np.zeros(2, np.int64)
    fixed = (ELEMENTS[element], like, problem, options, results, parts, tasks.ctypes.data, units)
    arguments = (*fixed, rows, width, counter.ctypes.data) if rows else (*fixed, width, counter.ctypes.data)
    products = int((queries * keys).sum()) * shapes.heads * (shapes.d + shapes.dv)
    threads = max(1, min(get_num_threads(), products // _SHARE, units))
    ready(kernel, (element,), arguments)
    run(lambda: kernel(*arguments), threads)
    if part_count:
        finish = (ELEMENTS[element], like, problem, results, parts, tasks.ctypes.data, parted_rows)
        finish = (*finish, counter.ctypes.data + 8)
        ready(attention_tasks.finish_rows, (element,), finish)
        run(lambda: attention_tasks.finish_rows(*finish), min(threads, -(-part_count * width // _SHARE)))
    # What the addresses are of, and a late call looks at, outlives the calls.
    del held, tasks, counter


def _query_block(working: str, shapes: Shapes, longest: int) -> int:
    """Return the queries of a unit of work, in whole panels."""
    panel = _PANEL[working]
    size = ELEMENTS[working].itemsize
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


def _aligned(address: int) -> int:
    return -(-address // 64) * 64
