"""A checked call of attention, in the numbers that the kernels take."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array
from softcarry._attention._operands import Operands, PairArray
from softcarry._attention._options import Reach
from softcarry._attention._sequences import Sequences, plain_sequences
from softcarry._host_arrays import NUMPY_DTYPES, HostArray, numbers_of, real_array
from softcarry.cpu import attention_layout
from softcarry.cpu.attention_layout import Heads, Pairs, Problem
from softcarry.errors import OptionError, ShapeError

_ELEMENTS = ("float32", "float64", "bfloat16", "float16")
"""In the order of `softcarry.cpu.attention_layout.Pairs.element`."""


class Call(NamedTuple):
    """A problem, and the arrays whose addresses it holds."""

    problem: Problem
    held: tuple[Any, ...]


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
    output: HostArray | None,
) -> Call:
    """Put a call together."""
    strides = tuple(
        None if array is None else array.strides for array in (given.q, given.k, given.v, output, mask, bias)
    )
    table = _table(of.plain, of.key_counts.tobytes(), given.q.shape[1:3], strides) if of.plain else None
    if table is None:
        table = _written(of, given.q.shape[1:3], strides)
    paged = of.pages is not None
    problem = Problem(
        heads_of(given.q),
        heads_of(given.k),
        heads_of(given.v),
        _pairs(mask),
        _pairs(bias),
        table.__array_interface__["data"][0],
        given.heads,
        given.heads // given.kv_heads if given.kv_heads else 1,
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
    return Call(problem, (table, of.pages, slopes))


@functools.lru_cache(maxsize=256)
def _table(
    plain: tuple[int, int, int, int], key_counts: bytes, heads_and_tokens: tuple[int, ...], strides: tuple
) -> NDArray[np.int64]:
    """Return the table of sequences of a plain batch, remembered: making it takes as long as a small call."""
    of = plain_sequences(*plain)._replace(key_counts=np.frombuffer(key_counts, np.int64))
    return _written(of, heads_and_tokens, strides)


def _written(of: Sequences, heads_and_tokens: tuple[int, ...], strides: tuple) -> NDArray[np.int64]:
    """Return the table of sequences, from the strides of q, k, v, output, mask and bias."""
    table = np.zeros((max(of.sequence_count, 1), attention_layout.COLUMNS), np.int64)
    rows = table[: of.sequence_count]
    q, k, v, output, mask, bias = strides
    batch = np.zeros(of.sequence_count, np.int64) if of.packed else np.arange(of.sequence_count)
    kv_batch = np.zeros(of.sequence_count, np.int64) if of.packed_keys or of.pages is not None else batch
    for column, array, entry, first in (
        (attention_layout.QUERIES, q, batch, of.first_queries),
        (attention_layout.KEYS, k, kv_batch, of.first_keys),
        (attention_layout.VALUES, v, kv_batch, of.first_keys),
        (attention_layout.OUTPUT, output, batch, of.first_queries),
    ):
        if array is not None:
            rows[:, column] = entry * array[0] + first * array[2]
    for column, pairs in ((attention_layout.MASK, mask), (attention_layout.BIAS, bias)):
        if pairs is not None:
            rows[:, column] = batch * pairs[0] + of.first_queries * pairs[2] + of.first_keys * pairs[3]
    heads, tokens = heads_and_tokens
    rows[:, attention_layout.QUERY_COUNT] = of.query_counts
    rows[:, attention_layout.KEY_COUNT] = of.key_counts
    rows[:, attention_layout.FIRST_ROW] = batch * heads * tokens + of.first_queries
    if of.pages is not None:
        first_page = of.pages.__array_interface__["data"][0]
        rows[:, attention_layout.PAGES] = first_page + np.arange(of.sequence_count) * of.pages.strides[0]
    return table


def _pairs(pairs: PairArray | None) -> Pairs:
    if pairs is None:
        return Pairs(0, 0, 0, 0, 0)
    element = pairs.array.element
    kind = _ELEMENTS.index(element) if element in _ELEMENTS else 0
    return Pairs(pairs.array.address, *pairs.strides[1:], kind)


def per_head(name: str, numbers: Any, given: Operands, sequences: int | None = None) -> Array | None:
    """Check numbers (heads,), or (sequences, heads) if that is given, without reading them; None for None.

    Raises
    ------
    ShapeError, DTypeError
        If they have another shape, or are no real floating point.
    """
    if numbers is None:
        return None
    array = real_array(name, numbers)
    shapes = {(given.heads,)} | ({(sequences, given.heads)} if sequences is not None else set())
    if tuple(array.shape) not in shapes:
        expected = " or ".join(str(shape) for shape in sorted(shapes, key=len))
        msg = f"{name} must have shape {expected}, a number a query head, got {tuple(array.shape)}"
        raise ShapeError(msg)
    return array


def slopes_of(array: Array | None, given: Operands) -> NDArray[Any] | None:
    """Return ALiBi's slopes in the working type, all finite there; None for None.

    Raises
    ------
    OptionError
    """
    if array is None:
        return None
    slopes = numbers_of(array, NUMPY_DTYPES[given.working])
    if not np.isfinite(slopes).all():
        wrong = slopes[~np.isfinite(slopes)][0]
        msg = f"alibi must hold finite numbers of {given.working}, got one that is {wrong} there"
        raise OptionError(msg)
    return slopes


def sinks_of(array: Array | None, given: Operands) -> NDArray[Any] | None:
    """Return the scores of sinks in the working type, each finite there, or −inf for none; None for None.

    Raises
    ------
    OptionError
    """
    if array is None:
        return None
    sinks = numbers_of(array, NUMPY_DTYPES[given.working])
    if not (sinks < np.inf).all():
        wrong = sinks[~(sinks < np.inf)][0]
        expected = f"finite numbers of {given.working}, or −inf for none"
        msg = f"sinks must be {expected}, got one that is {wrong} there"
        raise OptionError(msg)
    return sinks
