"""The sequences of a call of attention: a batch of equal ones, packed ones, or ones with keys in pages."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry._attention._operands import Operands
from softcarry._host_arrays import integers
from softcarry.errors import OptionError, ShapeError

Integers = NDArray[np.int64]


class Sequences(NamedTuple):
    """Which queries see which keys: those of their own sequence."""

    first_queries: Integers
    """(n,) First token of each sequence on the token axis of q."""
    query_counts: Integers
    first_keys: Integers
    """(n,) First token on the token axis of k and v, if these are packed."""
    key_counts: Integers
    packed: bool
    """Whether the queries share one batch entry."""
    packed_keys: bool
    pages: Integers | None
    """(n, pages): the table of pages, contiguous."""
    pair_shape: tuple[int, int, int, int]
    """What masks and biases are broadcast to."""
    plain: tuple[int, int, int, int] | None = None
    """Of a plain batch: the arguments of `plain_sequences`."""

    @property
    def sequence_count(self) -> int:
        """How many sequences there are."""
        return len(self.query_counts)


def sequences(given: Operands, kv_lengths: Any, cu_seqlens: Any, block_table: Any) -> Sequences:
    """Check and return the sequences of a call.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        If the lengths, ranges or pages are no integers, of the wrong shape, or out of range.
    """
    if block_table is not None:
        return _paged(given, kv_lengths, cu_seqlens, block_table)
    batch, heads, tq, _ = given.q.shape
    tk = given.k.shape[2]
    shape = (batch, heads, tq, tk)
    if cu_seqlens is None:
        of = plain_sequences(*shape)
        return of if kv_lengths is None else of._replace(key_counts=_limited(of.key_counts, kv_lengths))
    _require_one_batch(given, "q, k and v")
    both = isinstance(cu_seqlens, tuple | list) and len(cu_seqlens) == 2 and np.ndim(cu_seqlens[0]) == 1
    of_queries, of_keys = cu_seqlens if both else (cu_seqlens, cu_seqlens)
    queries = _ranges("cu_seqlens of queries" if both else "cu_seqlens", of_queries, tq, "q")
    keys = _ranges("cu_seqlens of keys" if both else "cu_seqlens", of_keys, tk, "k and v")
    if len(queries) != len(keys):
        msg = (
            f"cu_seqlens of queries and of keys must have as many sequences, got {len(queries) - 1} "
            f"and {len(keys) - 1}"
        )
        raise ShapeError(msg)
    counts = _limited(np.diff(keys), kv_lengths)
    return Sequences(queries[:-1], np.diff(queries), keys[:-1], counts, True, True, None, shape)


@functools.lru_cache(maxsize=256)
def plain_sequences(batch: int, heads: int, tq: int, tk: int) -> Sequences:
    """Return the sequences of a batch of equal ones; the arrays are shared and not to be written to."""
    zeros = np.zeros(batch, np.int64)
    counts = (np.full(batch, count, np.int64) for count in (tq, tk))
    queries, keys = counts
    shape = (batch, heads, tq, tk)
    return Sequences(zeros, queries, zeros, keys, False, False, None, shape, shape)


def _paged(given: Operands, kv_lengths: Any, cu_seqlens: Any, block_table: Any) -> Sequences:
    pages = integers("block_table", block_table)
    batch, heads, tq, _ = given.q.shape
    page_count, _, page_size, _ = given.k.shape
    if kv_lengths is None:
        msg = "block_table needs kv_lengths, the number of keys of each sequence: pass both"
        raise OptionError(msg)
    if pages.ndim != 2:
        msg = f"block_table must have shape (sequences, pages), got {pages.shape}"
        raise ShapeError(msg)
    count = len(pages)
    if cu_seqlens is None:
        if batch != count:
            msg = f"block_table must have a row for each of the {batch} entries of q, got shape {pages.shape}"
            raise ShapeError(msg)
        first, queries = np.zeros(count, np.int64), np.full(count, tq, np.int64)
    else:
        _require_one_batch(given, "q")
        ranges = _ranges("cu_seqlens", cu_seqlens, tq, "q")
        if len(ranges) != count + 1:
            msg = f"block_table must have a row for each of {len(ranges) - 1} sequences, got {pages.shape}"
            raise ShapeError(msg)
        first, queries = ranges[:-1], np.diff(ranges)
    capacity = pages.shape[1] * page_size
    lengths = _limited(np.full(count, capacity, np.int64), kv_lengths)
    needed = -(-lengths // max(page_size, 1))
    used = np.arange(pages.shape[1]) < needed[:, None]
    wrong = used & ((pages < 0) | (pages >= page_count))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        msg = (
            f"block_table must hold numbers of pages from 0 to {page_count - 1}, got {pages[row, column]} "
            f"for page {column} of sequence {row}"
        )
        raise OptionError(msg)
    packed = cu_seqlens is not None
    shape = (1 if packed else batch, heads, tq, capacity)
    return Sequences(first, queries, np.zeros(count, np.int64), lengths, packed, False, pages, shape)


def _limited(counts: Integers, kv_lengths: Any) -> Integers:
    if kv_lengths is None:
        return counts
    lengths = integers("kv_lengths", kv_lengths)
    if lengths.shape != counts.shape:
        msg = f"kv_lengths must have shape {counts.shape}, one length a sequence, got {lengths.shape}"
        raise ShapeError(msg)
    wrong = (lengths < 0) | (lengths > counts)
    if wrong.any():
        number = int(np.argmax(wrong))
        msg = (
            f"kv_lengths must be from 0 to the number of keys, {counts[number]} for sequence {number}, "
            f"got {lengths[number]}"
        )
        raise OptionError(msg)
    return lengths


def _ranges(name: str, given: Any, tokens: int, arrays: str) -> Integers:
    ranges = integers(name, given)
    if ranges.ndim != 1 or len(ranges) < 1:
        msg = f"{name} must have shape (sequences + 1,), got {ranges.shape}"
        raise ShapeError(msg)
    if ranges[0] != 0 or ranges[-1] != tokens or (np.diff(ranges) < 0).any():
        msg = (
            f"{name} must rise from 0 to {tokens}, the tokens of {arrays}, got {ranges[0]} to {ranges[-1]}"
            f"{', falling between' if (np.diff(ranges) < 0).any() else ''}"
        )
        raise OptionError(msg)
    return ranges


def _require_one_batch(given: Operands, arrays: str) -> None:
    batches = {given.q.shape[0]} | ({given.k.shape[0]} if "k" in arrays else set())
    if batches != {1}:
        msg = f"{arrays} must have batch 1 with cu_seqlens, got {sorted(batches)}: pack all tokens in one"
        raise ShapeError(msg)
