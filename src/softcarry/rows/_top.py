"""softmax_topk, and the result that pieces of rows merge into."""

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array, DType
from softcarry.carry import Carry
from softcarry.cpu.row_work import top_of_rows
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.rows._operand import element_of, operand, require_axis, scores_of
from softcarry.rows._results import (
    Empty,
    address_of,
    as_kind,
    empty_value,
    in_dtype_of,
    made_like,
    moved_axis,
    numpy_view,
    result_element,
)

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class TopK:
    """The k largest scores of rows, their softmax probabilities, and the carry of all scores seen.

    `softmax_topk` makes it, of whole rows or of pieces of them; pieces of the same rows `merge`. It unpacks
    as ``probabilities, indices, lse = top``. Arrays are of the library of the scores; none is changed in
    place.

    Parameters
    ----------
    scores : array (..., k, ...)
        The k largest along ``axis``, best first, exactly as they were, in float32 (float64 for float64 and
        integers).
    indices : int64 array (..., k, ...)
        Where they stand in the whole row: the ``offset`` of the piece is added.
    probabilities : array (..., k, ...)
        e^(s − m) / l over all scores seen, not over the k.
    lse : array (...)
        m + ln l over all scores seen, in float32 (float64 for float64 and integers).
    m : array (...)
        The maximum.
    l : float64 array (...)
        The sum relative to m.
    axis : int
        Of the k, from the front.
    spans : tuple of (start, stop)
        Which indices have been seen: disjoint, ascending, not adjacent.
    empty : {"zero", "nan"}
        The probability in a row without live scores.

    Notes
    -----
    The order is total: a higher score first, NaN before every number; among equals, and −0 equals 0, the
    lower index first. Scores of −inf take part, last, with probability 0. A NaN or +inf makes all
    probabilities of its row NaN, and the lse NaN or +inf. A row without live scores has lse −inf and the k
    lowest indices.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> row = np.array([2.0, 5.0, 1.0, 7.0])
    >>> left, right = sc.softmax_topk(row[:2], 2), sc.softmax_topk(row[2:], 2, offset=2)
    >>> top = left.merge(right)
    >>> top.indices, top.probabilities.round(4)
    (array([3, 1]), array([0.8737, 0.1182]))
    """

    scores: Array
    indices: Array
    probabilities: Array
    lse: Array
    m: Array
    l: Array
    axis: int
    spans: Spans
    empty: Empty = "zero"

    def __iter__(self) -> Iterator[Array]:
        """Yield probabilities, indices and lse."""
        return iter((self.probabilities, self.indices, self.lse))

    @property
    def k(self) -> int:
        """How many scores of a row are kept."""
        return self.scores.shape[self.axis]

    @property
    def n(self) -> int:
        """How many scores of a row have been seen."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def carry(self) -> Carry:
        """The carry (m, l) of all scores seen, without values; it merges with other carries."""
        return Carry(self.m, in_dtype_of(self.m, self.l))

    def merge(self, *others: "TopK", k: int | None = None) -> "TopK":
        """Return the top k of the union of disjoint pieces of the same rows.

        Scores and indices are the same to the bit as those of one call on the whole rows, however they were
        cut and in whatever order the pieces are merged; m too, and l up to its rounding.

        Parameters
        ----------
        *others : TopK
            Of other pieces of the same rows, along the same axis.
        k : int, optional
            How many to keep: by default the largest k among the pieces. A piece that has not kept all its
            scores must have kept at least k. Fewer come out where fewer have been seen.

        Returns
        -------
        TopK

        Raises
        ------
        ShapeError
            If the rows differ in number or the axes differ.
        DTypeError
            If an argument is no TopK, or of another library or format.
        OptionError
            If pieces overlap (give ``offset=`` to `softmax_topk`), k < 1, or a piece has kept too few.
        """
        parts = (self, *others)
        for part in others:
            self._require_same_rows(part)
        wanted = max(part.k for part in parts) if k is None else require_k(k)
        for part in parts:
            if part.k < min(wanted, part.n):
                msg = (
                    f"to merge to the top {wanted} every piece must have kept as many, one of {part.n} "
                    f"scores has kept {part.k}: ask softmax_topk for k={wanted}, or merge with k={part.k}"
                )
                raise OptionError(msg)
        spans = union_of_spans([span for part in parts for span in part.spans])
        scores = np.concatenate([part._last(part.scores) for part in parts], axis=-1)
        indices = np.concatenate([part._last(part.indices) for part in parts], axis=-1)
        order = np.lexsort((indices, -scores, ~np.isnan(scores)))[..., :wanted]
        m, l = merged_carries([(numpy_view(part.m), numpy_view(part.l)) for part in parts])
        return assemble(
            self.probabilities,
            np.take_along_axis(scores, order, -1),
            np.take_along_axis(indices, order, -1),
            m,
            l,
            axis=self.axis,
            spans=spans,
            empty=self.empty,
        )

    def _require_same_rows(self, other: Any) -> None:
        if not isinstance(other, TopK):
            msg = f"merge takes other TopK, got {type(other).__name__}"
            raise DTypeError(msg)
        if tuple(other.m.shape) != tuple(self.m.shape) or other.axis != self.axis:
            msg = (
                f"pieces must be of the same rows, got rows {tuple(self.m.shape)} along axis {self.axis} "
                f"and {tuple(other.m.shape)} along axis {other.axis}"
            )
            raise ShapeError(msg)
        mine, theirs = self.probabilities, other.probabilities
        if type(mine) is not type(theirs) or mine.dtype != theirs.dtype or self.m.dtype != other.m.dtype:
            msg = (
                f"pieces must be of one library and dtype, got {type(mine).__name__} of {mine.dtype} and "
                f"{type(theirs).__name__} of {theirs.dtype}: convert the scores first"
            )
            raise DTypeError(msg)

    def _last(self, array: Array) -> NDArray[Any]:
        return np.moveaxis(numpy_view(array), self.axis, -1)


def softmax_topk(
    x: Array,
    k: int,
    axis: int = -1,
    *,
    offset: int = 0,
    empty: Empty = "zero",
    dtype: DType | str | None = None,
) -> TopK:
    """Return the k largest scores of each row, their softmax probabilities and the row's lse, in one reading.

    Parameters
    ----------
    x : array (..., n, ...)
        NumPy array or torch CPU tensor of float64, float32, float16 or bfloat16, with any strides; it is not
        copied. Integers are converted to float64.
    k : int
        From 1 to n.
    axis : int
        The axis of length n.
    offset : int
        Where x begins in a row that arrives in pieces; it is added to the indices. See `TopK.merge`.
    empty : {"zero", "nan"}
        The probability in a row without live scores.
    dtype : dtype or str, optional
        Of the probabilities: x's by default (float64 for integers), rounded once from the format of the sums.

    Returns
    -------
    TopK
        With scores, indices, probabilities (..., k, ...) and lse (...), of x's library. Its notes have the
        rules for ties, −inf, +inf and NaN.

    Raises
    ------
    DTypeError
        If x is no such array, is complex or an object, records gradients, or ``dtype`` is wider than the
        sums.
    OptionError
        If k, the axis, ``offset`` or ``empty`` is out of range.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, Algorithm 4.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> probabilities, indices, lse = sc.softmax_topk(np.array([2.0, 5.0, 1.0, 7.0]), 2)
    >>> indices, probabilities.round(4), round(float(lse), 4)
    (array([3, 1]), array([0.8737, 0.1182]), 7.135)
    """
    x = scores_of(x)
    axis = require_axis(x, axis)
    of_empty = empty_value(empty)
    element = result_element(x, dtype)
    n = x.shape[axis]
    k = require_k(k, n)
    if not isinstance(offset, Integral) or isinstance(offset, bool) or not 0 <= offset <= 2**63 - 1 - n:
        msg = f"offset must be an integer from 0 on, where x begins in its row; got {offset!r}"
        raise OptionError(msg)
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    probabilities = made_like(x, (math.prod(rows), k), element)
    if math.prod(rows):
        top = top_of_rows(
            operand(x, axis), k, out_element=element, probabilities=address_of(probabilities), empty=of_empty
        )
        scores, indices, m, l, lse = top
    else:
        working = np.float64 if element_of(x) == "float64" else np.float32
        scores, indices = np.empty((0, k), working), np.empty((0, k), np.int64)
        m, l, lse = np.empty(0, working), np.empty(0), np.empty(0, working)

    def placed(array: Array) -> Array:
        return moved_axis(array.reshape(*rows, k), -1, axis)

    return TopK(
        placed(as_kind(x, scores)),
        placed(as_kind(x, indices + offset if offset else indices)),
        placed(probabilities),
        *(as_kind(x, array.reshape(rows)) for array in (lse, m, l)),
        axis=axis,
        spans=((int(offset), int(offset) + n),),
        empty=empty,
    )


def require_k(k: Any, n: int | None = None) -> int:
    """Return k as an int.

    Raises
    ------
    OptionError
        If it is no integer from 1 on, or above n.
    """
    if not isinstance(k, Integral) or isinstance(k, bool) or not 1 <= int(k) <= (int(k) if n is None else n):
        msg = f"k must be an integer from 1 to {'the number of scores' if n is None else n}, got {k!r}"
        raise OptionError(msg)
    return int(k)


def union_of_spans(spans: list[tuple[int, int]]) -> Spans:
    """Return disjoint spans in ascending order, neighbours joined.

    Raises
    ------
    OptionError
        If two overlap.
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start < joined[-1][1]:
            msg = (
                f"pieces must be disjoint, got indices {joined[-1][0]} to {joined[-1][1] - 1} and {start} to "
                f"{stop - 1}: give softmax_topk the offset= of each piece"
            )
            raise OptionError(msg)
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def merged_carries(
    parts: Sequence[tuple[NDArray[Any], NDArray[Any]]],
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Return the carry (m, l) of the union, l in float64, by the rules of `softcarry.Carry`."""
    m = functools.reduce(np.maximum, [m for m, _ in parts])
    shift = np.where(m == -math.inf, 0.0, m).astype(np.float64)
    with np.errstate(invalid="ignore"):
        rescaled = [np.where(top == -math.inf, 0.0, total * np.exp(top - shift)) for top, total in parts]
    return np.asarray(m), np.asarray(functools.reduce(operator.add, rescaled))


def log_sum_exp(m: NDArray[np.floating], l: NDArray[np.float64]) -> NDArray[np.floating]:
    """Return m + ln l in the format of m, rounded once from float64; ±inf and NaN as the carry has them."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isinf(m), m, m + np.log(l)).astype(m.dtype)


def assemble(
    like: Array,
    scores: NDArray[np.floating],
    indices: NDArray[np.int64],
    m: NDArray[np.floating],
    l: NDArray[np.float64],
    *,
    axis: int,
    spans: Spans,
    empty: Empty,
) -> TopK:
    """Make a TopK of the best (..., k) and the carry of all, of the kind of an array of probabilities."""
    live = (m != -math.inf)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = scores.astype(np.float64) - np.where(live, m[..., None], 0.0)
        probabilities = np.where(live, np.exp(gaps) / l[..., None], empty_value(empty)).astype(m.dtype)

    def placed(array: NDArray[Any]) -> Array:
        return as_kind(like, np.moveaxis(array, -1, axis))

    return TopK(
        placed(scores),
        placed(indices),
        in_dtype_of(like, placed(probabilities)),
        *(as_kind(like, array) for array in (log_sum_exp(m, l), m, l)),
        axis=axis,
        spans=spans,
        empty=empty,
    )
