"""TopK: the largest scores of rows, which pieces of the rows merge into."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array
from softcarry.carry import Carry
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.rows._merging import Spans, log_sum_exp, merged_carries, require_k, union_of_spans
from softcarry.rows._results import Empty, as_kind, empty_value, in_dtype_of, numpy_view


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
