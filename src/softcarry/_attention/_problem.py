"""A checked call of attention, in the numbers that the kernels take."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry._attention._operands import Operands, PairArray
from softcarry._attention._options import Reach
from softcarry._attention._sequences import Sequences
from softcarry._host_arrays import NUMPY_DTYPES, HostArray, real_numbers
from softcarry.cpu import attention_layout
from softcarry.cpu.attention_layout import COLUMNS, Heads, Pairs, Problem
from softcarry.errors import ShapeError

_ELEMENTS = ("float32", "float64", "bfloat16", "float16")
"""In the order of `softcarry.cpu.attention_layout.Pairs.element`."""


class Call(NamedTuple):
    """A problem, and the arrays whose addresses it holds."""

    problem: Problem
    table: NDArray[np.int64]
    held: tuple[Any, ...]

    def place_output(self, output: HostArray, of: Sequences) -> None:
        """Say where the outputs of the sequences lie."""
        _place(self.table, attention_layout.OUTPUT, output, of, of.first_queries, shared=of.packed)


def heads_of(array: HostArray) -> Heads:
    """Return where the vectors of an array (batch, heads, tokens, d) lie."""
    return Heads(array.address, *array.strides[1:])


def call_of(
    given: Operands,
    of: Sequences,
    reach: Reach,
    mask: PairArray | None,
    bias: PairArray | None,
    slopes: NDArray[Any] | None,
) -> Call:
    """Put a call together."""
    table = np.zeros((max(len(of), 1), COLUMNS), np.int64)
    layout = attention_layout
    _place(table, layout.QUERIES, given.q, of, of.first_queries, shared=of.packed)
    for column, array in ((layout.KEYS, given.k), (layout.VALUES, given.v)):
        _place(table, column, array, of, of.first_keys, shared=of.packed_keys or of.pages is not None)
    batch = np.zeros(len(of), np.int64) if of.packed else np.arange(len(of))
    rows = slice(0, len(of))
    for column, pairs in ((layout.MASK, mask), (layout.BIAS, bias)):
        if pairs is not None:
            of_batch, _, of_query, of_key = pairs.strides
            table[rows, column] = batch * of_batch + of.first_queries * of_query + of.first_keys * of_key
    table[rows, layout.QUERY_COUNT], table[rows, layout.KEY_COUNT] = of.query_counts, of.key_counts
    if of.pages is not None:
        table[rows, layout.PAGES] = of.pages.ctypes.data + np.arange(len(of)) * of.pages.strides[0]
    heads, tokens = given.heads, given.q.shape[2]
    table[rows, layout.FIRST_ROW] = batch * heads * tokens + of.first_queries
    paged = of.pages is not None
    problem = Problem(
        heads_of(given.q),
        heads_of(given.k),
        heads_of(given.v),
        _pairs(mask),
        _pairs(bias),
        table.ctypes.data,
        heads,
        heads // given.kv_heads if given.kv_heads else 1,
        given.q.shape[3],
        given.v.shape[3],
        reach.left,
        reach.right,
        int(reach.top_left),
        given.k.shape[2] if paged else 0,
        given.k.strides[0] if paged else 0,
        given.v.strides[0] if paged else 0,
        0 if slopes is None else slopes.ctypes.data,
        slopes.strides[0] if slopes is not None and slopes.ndim == 2 else 0,
    )
    return Call(problem, table, (of.pages, slopes))


def _place(
    table: NDArray[np.int64], column: int, array: HostArray, of: Sequences, first: Any, *, shared: bool
) -> None:
    """Write the offsets of the first tokens of sequences, which share a batch entry or have one each."""
    entries = 0 if shared else np.arange(len(of))
    table[: len(of), column] = entries * array.strides[0] + first * array.strides[2]


def _pairs(pairs: PairArray | None) -> Pairs:
    if pairs is None:
        return Pairs(0, 0, 0, 0, 0)
    element = pairs.array.element
    kind = _ELEMENTS.index(element) if element in _ELEMENTS else 0
    return Pairs(pairs.array.address, *pairs.strides[1:], kind)


def per_head(name: str, numbers: Any, given: Operands, sequences: int | None = None) -> NDArray[Any] | None:
    """Return numbers (heads,), or (sequences, heads) if that is given, in the working type; None for None.

    Raises
    ------
    ShapeError, DTypeError
        If they have another shape, or are no real floating point.
    """
    if numbers is None:
        return None
    converted = real_numbers(name, numbers, NUMPY_DTYPES[given.working])
    shapes = {(given.heads,)} | ({(sequences, given.heads)} if sequences is not None else set())
    if converted.shape not in shapes:
        expected = " or ".join(str(shape) for shape in sorted(shapes, key=len))
        msg = f"{name} must have shape {expected}, a number a query head, got {converted.shape}"
        raise ShapeError(msg)
    return converted
