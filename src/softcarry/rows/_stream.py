"""Rows whose scores arrive in blocks: from an iterator, a memory-mapped file, an array beyond memory."""

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array
from softcarry._host_arrays import is_tensor
from softcarry.carry import Carry
from softcarry.cpu.row_work import row_carries_of
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.rows._logprobs import gathered, log_probabilities
from softcarry.rows._merging import log_sum_exp, merged_carries, require_k
from softcarry.rows._operand import element_of, integers_of, operand, require_axis, scores_of
from softcarry.rows._results import as_kind, numpy_view
from softcarry.rows._softmax_topk import softmax_topk
from softcarry.rows._top import TopK

Progress = Callable[[int, int | None], object]

# Elements of the blocks that an array is cut into: 16 MiB of float32.
_BLOCK = 2**22


class RowStream:
    """Summarise rows whose scores arrive in blocks: lse, carry, top k and log-probabilities of targets.

    Each block is read once and let go; what is kept is m and l, the k best, and the targets' scores of each
    row. With the carry in the end, a second reading gives the softmax, block by block:
    ``stream.carry.weights(block)``.

    Parameters
    ----------
    k : int, optional
        How many of the largest scores to keep.
    targets : int or integer array (...), optional
        Index of one score of each row, whose log-probability is wanted.

    Raises
    ------
    OptionError
        If k < 1 or a target is negative.
    DTypeError
        If the targets are no integers.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> stream = sc.RowStream(k=2, targets=0)
    >>> for block in (np.array([2.0, 5.0]), np.array([1.0, 7.0])):
    ...     stream = stream.absorb(block)
    >>> stream.n, round(float(stream.lse), 4), round(float(stream.logprobs), 4)
    (4, 7.135, -5.135)
    >>> stream.topk.indices
    array([3, 1])
    """

    def __init__(self, k: int | None = None, targets: Any = None) -> None:
        self._k = None if k is None else require_k(k)
        self._targets = None if targets is None else _indices(targets)
        self._n = 0
        self._like: Array | None = None
        self._m: NDArray[np.floating]
        self._l: NDArray[np.float64]
        self._topk: TopK | None = None
        self._chosen: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        blocks: Array | Iterable[Array],
        axis: int = -1,
        *,
        k: int | None = None,
        targets: Any = None,
        block: int | None = None,
        progress: Progress | None = None,
    ) -> "RowStream":
        """Absorb all blocks of an iterable, or an array cut into blocks.

        Parameters
        ----------
        blocks : array, or iterable of arrays (..., b, ...)
            An array may be memory-mapped and larger than memory. The blocks of an iterable may differ in
            length along the axis; their order is that of the row.
        axis : int
            The axis along which rows lie.
        k, targets
            As for the class.
        block : int, optional
            Length of the blocks that an array is cut into; by default such that a block has some 4 million
            scores.
        progress : callable, optional
            Called as ``progress(done, total)`` after each block with how many scores of a row have been read,
            and how many there are: None for an iterable.

        Returns
        -------
        RowStream

        Raises
        ------
        ShapeError, DTypeError, OptionError
            As `absorb`; also if ``blocks`` is neither, or ``block`` < 1.
        """
        stream = cls(k, targets)
        total = None
        if is_tensor(blocks) or isinstance(blocks, np.ndarray):
            array: Array = blocks
            axis = require_axis(array, axis)
            total = array.shape[axis]
            blocks = _cut(array, axis, _length(array, axis, block))
        elif isinstance(blocks, str | bytes) or not isinstance(blocks, Iterable):
            msg = f"blocks must be an array, or an iterable of arrays, got {type(blocks).__name__}"
            raise DTypeError(msg)
        elif block is not None:
            msg = "block= cuts an array into blocks, got it with an iterable, which has its own: leave it out"
            raise OptionError(msg)
        for part in blocks:
            stream.absorb(part, axis)
            if progress is not None:
                progress(stream.n, total)
        return stream

    def absorb(self, block: Array, axis: int = -1) -> "RowStream":
        """Absorb the next scores of every row, and return the stream itself, changed.

        Parameters
        ----------
        block : array (..., b, ...)
            NumPy array or torch CPU tensor as `softcarry.logsumexp` takes it, b ≥ 0. All blocks are of the
            same rows, library and dtype.
        axis : int
            The axis of length b.

        Raises
        ------
        ShapeError
            If its rows are not those of the blocks before, or of the targets.
        DTypeError
            If it is no such array, or not of the library and dtype of the blocks before.
        OptionError
            If the axis is out of range.
        """
        block = scores_of(block)
        axis = require_axis(block, axis)
        rows = (*block.shape[:axis], *block.shape[axis + 1 :])
        self._require_same(block, rows)
        if self._like is None:
            self._begin(block, rows)
        count = block.shape[axis]
        if count == 0:
            return self
        if math.prod(rows):
            self._take_targets(block, axis, count)
            self._merge(block, axis, rows, count)
        self._n += count
        return self

    @property
    def n(self) -> int:
        """How many scores of a row have been absorbed."""
        return self._n

    @property
    def carry(self) -> Carry:
        """The carry (m, l) of each row, without values, in float32 (float64 for float64 and integers).

        Raises
        ------
        OptionError
            If no block has been absorbed, which would say how many rows there are.
        """
        self._require_begun()
        return Carry(self._read(self._m), self._read(self._l.astype(self._m.dtype)))

    @property
    def lse(self) -> Array:
        """Log-sum-exp of each row, in float32 (float64 for float64 and integers); −inf for an empty one.

        Raises
        ------
        OptionError
            If no block has been absorbed.
        """
        self._require_begun()
        return self._read(log_sum_exp(self._m, self._l))

    @property
    def topk(self) -> TopK:
        """The k largest scores of each row so far, fewer where fewer have been absorbed.

        Raises
        ------
        OptionError
            If k was not given, or no score has been absorbed.
        """
        if self._topk is None:
            why = "RowStream was made without k=" if self._k is None else "no score has been absorbed yet"
            msg = f"there are no largest scores: {why}"
            raise OptionError(msg)
        return self._topk

    @property
    def logprobs(self) -> Array:
        """(s − m) − ln l of each row's target, in float32 (float64 for float64 and integers).

        Raises
        ------
        OptionError
            If targets were not given, or one has not been absorbed yet.
        """
        if self._targets is None:
            msg = "there are no log-probabilities: RowStream was made without targets="
            raise OptionError(msg)
        self._require_begun()
        missing = self._targets[self._targets >= self._n]
        if missing.size:
            msg = f"targets must be among the {self._n} scores absorbed, got {missing.flat[0]}: absorb more"
            raise OptionError(msg)
        return self._read(log_probabilities(self._chosen[..., None], self._m, self._l)[..., 0])

    def _require_begun(self) -> None:
        if self._like is None:
            msg = "there are no rows yet: no block has been absorbed"
            raise OptionError(msg)

    def _require_same(self, block: Array, rows: tuple[int, ...]) -> None:
        if self._targets is not None and self._targets.shape != rows:
            msg = f"blocks must have the rows of the targets, {self._targets.shape}, got {rows}"
            raise ShapeError(msg)
        if self._like is None:
            return
        if self._m.shape != rows:
            msg = f"blocks must all be of the same rows, {self._m.shape}, got {rows}"
            raise ShapeError(msg)
        before = self._like
        if is_tensor(block) != is_tensor(before) or block.dtype != before.dtype:
            msg = (
                f"blocks must all be of one library and dtype, {type(before).__name__} of {before.dtype}, "
                f"got {type(block).__name__} of {block.dtype}: convert them"
            )
            raise DTypeError(msg)

    def _begin(self, block: Array, rows: tuple[int, ...]) -> None:
        working = np.float64 if element_of(block) == "float64" else np.float32
        self._like = block[tuple(slice(0, 0) for _ in block.shape)]
        self._m, self._l = np.full(rows, -math.inf, working), np.zeros(rows)
        self._chosen = np.zeros(rows)

    def _take_targets(self, block: Array, axis: int, count: int) -> None:
        if self._targets is None:
            return
        here = (self._targets >= self._n) & (self._targets < self._n + count)
        if here.any():
            columns = np.where(here, self._targets - self._n, 0)[..., None]
            self._chosen = np.where(here, gathered(block, axis, columns)[..., 0], self._chosen)

    def _merge(self, block: Array, axis: int, rows: tuple[int, ...], count: int) -> None:
        if self._k is None:
            m, l = (array.reshape(rows) for array in row_carries_of(operand(block, axis)))
            self._m, self._l = merged_carries([(self._m, self._l), (m, l)])
            return
        piece = softmax_topk(block, min(self._k, count), axis, offset=self._n)
        self._topk = piece if self._topk is None else self._topk.merge(piece, k=self._k)
        self._m, self._l = numpy_view(self._topk.m), numpy_view(self._topk.l)

    def _read(self, array: NDArray[np.floating]) -> Array:
        return as_kind(self._like, np.asarray(array).copy())


def _indices(targets: Any) -> NDArray[np.int64]:
    indices = integers_of(targets)
    if indices.size and indices.min() < 0:
        msg = f"targets must be from 0 on, got {indices.min()}: leave out the rows that have no target"
        raise OptionError(msg)
    return indices.astype(np.int64)


def _length(array: Array, axis: int, block: Any) -> int:
    if block is None:
        rows = math.prod(array.shape) // max(1, array.shape[axis])
        return max(1, _BLOCK // max(1, rows))
    if not isinstance(block, Integral) or isinstance(block, bool) or block < 1:
        msg = f"block, the length of the blocks that an array is cut into, must be at least 1, got {block!r}"
        raise OptionError(msg)
    return int(block)


def _cut(array: Array, axis: int, block: int) -> Iterator[Array]:
    length = array.shape[axis]
    before = (slice(None),) * axis
    for start in range(0, length, block):
        yield array[(*before, slice(start, start + block))]
