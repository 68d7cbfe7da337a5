"""A softmax with top-k: f(x, k) -> (probabilities, indices) of the k largest, of the softmax of all of x."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.blocks import _rows
from softcarry.auditing.blocks._asking import Case, Question
from softcarry.auditing.blocks._exact import softmax
from softcarry.auditing.blocks._exact import softmax_topk as exact
from softcarry.auditing.blocks._rows import RowFunction, sized
from softcarry.auditing.blocks._tolerance import TINY, weight_tolerance
from softcarry.auditing.blocks._values import agree, numbers, parts, row_text, text

_PAPER = "Milakov and Gimelshein 2018, arXiv:1805.02867, section 4, Algorithm 4"
_BASICS = ("NORMALISER", "PLAIN", "OVERFLOW", "UNDERFLOW")
_CALLS = (([0.0, 2.0], 1), ([2.0, 0.0], 1), ([2.0, 0.0, 1.0], 2), ([0.0, 3.0, 1.0, 2.0], 3))


class Top(NamedTuple):
    """The k largest: their probabilities and indices; ``refused`` if the function raised."""

    probabilities: tuple[float, ...]
    indices: tuple[float, ...]
    refused: bool = False

    def __str__(self) -> str:
        return f"{text(list(self.probabilities))} at {text(list(self.indices))}"


class TopK(RowFunction):
    """A top-k that can be called; see ``RowFunction``."""

    what = "top-k"
    expected = "f(x, k) -> (probabilities, indices)"

    def first_call(self) -> None:
        """Make the plain call that says whether these arrays are taken."""
        self.top([0.0, 0.0, 0.0], 2)

    def top(self, row: Any, k: int, *, dtype: str = "float64") -> Top:
        """Return the k largest probabilities of a row, and their indices."""
        result = self.call(row, k, dtype=dtype)
        if not hasattr(result, "probabilities"):
            # A third part, the lse, is none of this check's business.
            pair = parts(result, 2, self.expected[6:]) if _length(result) != 3 else tuple(result)[:2]
        else:
            pair = (result.probabilities, result.indices)
        p, indices = (np.atleast_1d(numbers(x, "probabilities and indices")) for x in pair)
        if p.shape != indices.shape or p.ndim != (1 if self.flat else 2) or (p.ndim == 2 and len(p) != 1):
            msg = f"returned probabilities of shape {p.shape} and indices of shape {indices.shape}"
            raise MalformedResultError(msg)
        return Top(tuple(p.reshape(-1).tolist()), tuple(indices.reshape(-1).tolist()))

    def questions(self) -> list[Question]:
        """List the questions to this function, in order."""
        return [
            Question(
                "NORMALISER",
                "the softmax is over the top k alone: their probabilities add up to 1",
                "divide by l = Σ e^(x − m) over all scores of the row, not over the k that are kept",
                _PAPER,
                [self._case(row, k, agrees=_unlike_renormalised(row, k)) for row, k in _CALLS],
            ),
            Question(
                "PLAIN",
                _explain,
                "find the k largest scores, and divide their e^(x − m) by the sum over the row",
                _PAPER,
                [self._case(row, k, agrees=_same_set(row, k)) for row, k in _CALLS],
                after=("NORMALISER",),
            ),
            Question(
                "OVERFLOW",
                "overflows: e^x is taken of large scores, without subtracting the maximum",
                "take e^(x − m), with m the maximum of the row: it is at most 1",
                "pytorch#62897 (a softmax that forgot its maximum)",
                [self._case(row, 1, agrees=_finite) for row in _rows.LARGE],
                after=("NORMALISER", "PLAIN"),
            ),
            Question(
                "UNDERFLOW",
                "the sum underflows to 0 where all scores are far below 0",
                "start from m = −inf, and subtract the maximum also where it is negative",
                _PAPER,
                self.cases(
                    [
                        (row, 1)
                        for row in (
                            [-1.0],
                            [-1000.0],
                            [-1000.0, -1001.0],
                            [-1e5, -100001.0],
                            [-1e10],
                            [-1e31],
                        )
                    ]
                ),
                after=("NORMALISER", "PLAIN", "OVERFLOW"),
            ),
            Question(
                "SORTED",
                "the k largest are not in descending order",
                "sort the k that are kept, the largest first",
                _PAPER,
                self.cases([call for call in _CALLS if call[1] > 1]),
                after=_BASICS,
            ),
            Question(
                "DUPLICATES",
                "equal scores come back under the same index",
                "keep the index beside its score, and do not look for it by value",
                "the contract of a top-k: k different indices",
                [self._case(row, k, agrees=_distinct) for row, k in _TIES],
                after=("NORMALISER", "PLAIN"),
            ),
            Question(
                "TIES",
                "of equal scores a later one goes first: the answer depends on the order of work",
                "let the lower index win, as a stable sort does",
                "the contract of softcarry.softmax_topk",
                self.cases(_TIES),
                severity="warning",
                after=(*_BASICS, "SORTED", "DUPLICATES"),
            ),
            Question(
                "K_TOO_LARGE",
                "k > n gives entries that are no scores",
                "raise, return n entries, or fill up with probability 0",
                "pytorch#159247 (keys beyond the end)",
                [self._beyond([0.0], 2), self._beyond([0.0, 1.0], 3)],
                after=("NORMALISER", "PLAIN", "SORTED"),
            ),
            *self._not_finite(),
            Question(
                "TAIL",
                "rows of some lengths come out wrong",
                "do visit the last scores, those that fill no whole block",
                "tiny-flash-attention#12, pytorch#147284 (lengths that are no multiple of the block)",
                self.cases((row, 1) for row in _rows.tail_rows()),
                after=_BASICS,
            ),
            Question(
                "STUCK",
                "the row sum stops growing: it is kept in a format of too few bits",
                "sum in float32 or wider whatever the scores are in",
                "candle#3727, tract PR#2586, executorch PR#20090",
                [self._long(dtype, n) for dtype, n in (*_rows.NARROW, ("float32", 4096))],
                after=(*_BASICS, "TAIL"),
            ),
        ]

    def _not_finite(self):
        return [
            Question(
                "NEGINF",
                "a score of −inf, a masked token, spoils the row or gets weight",
                "let e^(−inf) be 0, and start from m = −inf",
                "transformers PR#27114, mlx#1725",
                self.cases([([-math.inf, 0.0], 1), ([-math.inf, 0.0], 2), ([-math.inf, -math.inf, 0.0], 1)]),
                after=("NORMALISER", "PLAIN", "UNDERFLOW"),
            ),
            Question(
                "ALL_NEGINF",
                "a row of −inf alone does not give "
                + ("probability 0" if self.empty == "zero" else "k of its indices with 0, NaN or 1/n"),
                "return probability 0, and indices within the row",
                "pytorch#103963, keras#21123",
                [self._all_masked([-math.inf] * n, k) for n, k in ((1, 1), (2, 1), (2, 2))],
                after=("NORMALISER", "PLAIN", "NEGINF"),
            ),
            Question(
                "NAN",
                "NaN is swallowed: no probability of a row with NaN is NaN",
                "let NaN through: its row has no sum",
                "cubecl PR#1070 (a NaN that nobody saw)",
                [self._case(row, 1, agrees=_some_nan) for row in _rows.WITH_NAN],
                after=("PLAIN",),
            ),
        ]

    def cases(self, calls: Iterable[tuple[list[float], int]]) -> list[Case]:
        """Make a case of each row and k that asks for the exact answer, order included."""
        return [self._case(row, k, agrees=_same(row, k)) for row, k in calls]

    def _case(self, row, k, *, agrees):
        p, indices = exact(row, k)
        right = str(Top(tuple(p), tuple(indices)))
        return Case(_given(row, k), lambda: self.top(row, k), right, agrees, str, (row, k))

    def _beyond(self, row, k):
        p, indices = exact(row, len(row))

        def run():
            try:
                return self.top(row, k)
            except KernelRaisedError:  # the best answer of all
                return Top((), (), refused=True)

        def agrees(came):
            if came.refused:
                return True
            n = len(row)
            first = Top(came.probabilities[:n], came.indices[:n])
            return _same(row, n)(first) and not any(came.probabilities[n:])

        right = f"an error, or {Top(tuple(p), tuple(indices))}"
        return Case(_given(row, k), run, right, agrees, str, (row, k))

    def _all_masked(self, row, k):
        n = len(row)

        def agrees(came):
            values = (0.0,) if self.empty == "zero" else (0.0, 1.0 / n, math.nan)
            weights = any(agree(came.probabilities, [x] * k, weight_tolerance(n, 0.0)) for x in values)
            return weights and _distinct(came) and all(0 <= i < n for i in came.indices)

        right = str(Top((0.0,) * k, tuple(range(k))))
        return Case(_given(row, k), lambda: self.top(row, k), right, agrees, str, (row, k))

    def _long(self, dtype, n):
        from softcarry.numerics._formats import get_format

        # Sums of ones are exact in float32 up to 2^24; what is left is the division, or the rounded lse.
        relative = weight_tolerance(1, math.log(n)) + get_format(dtype).unit_roundoff

        def run():
            return self.narrow(lambda: self.top([0.0] * n, 1, dtype=dtype), dtype)

        right = f"{text(1.0 / n)} each"
        return Case(
            f"zeros({n}, {dtype}), k=1",
            run,
            right,
            lambda came: agree(came.probabilities, [1.0 / n], relative),
            str,
        )


_TIES = (([0.0, 0.0], 1), ([0.0, 0.0], 2), ([0.0, 1.0, 1.0], 1), ([1.0, 0.0, 1.0], 2), ([1.0] * 40, 3))


def _given(row, k):
    return f"x = {row_text(row)}, k = {k}"


def _length(result):
    try:
        return len(result)
    except TypeError:
        return 0


def _near(came, p, row, n):
    return agree(came, p, weight_tolerance(n, sized(row)), TINY)


def _same(row, k):
    p, indices = exact(row, k)

    def agrees(came):
        # Which of several masked scores comes last is nobody's business.
        live = sum(row[i] > -math.inf for i in indices)
        return _near(came.probabilities, p, row, len(row)) and list(came.indices)[:live] == indices[:live]

    return agrees


def _same_set(row, k):
    p, indices = exact(row, k)
    order = np.argsort(indices)

    def agrees(came):
        if len(came.indices) != k:
            return False
        mine = np.argsort(came.indices)
        return agree(np.take(came.indices, mine), np.take(indices, order), 0.0) and _near(
            np.take(came.probabilities, mine), np.take(p, order), row, len(row)
        )

    return agrees


def _unlike_renormalised(row, k):
    p, indices = exact(row, k)
    kept = softmax(sorted(row, reverse=True)[:k])

    def agrees(came):
        values = sorted(came.probabilities, reverse=True)
        of_the_kept = _near(values, kept, row, len(row)) and sorted(came.indices) == sorted(indices)
        return _near(values, p, row, len(row)) or not of_the_kept

    return agrees


def _explain(failure):
    if failure.came is None:
        return "fails on a plain row"
    row, k = failure.case.arguments
    p, indices = exact(row, k)
    came = failure.came
    if came.probabilities == tuple(indices):
        return "returns (indices, probabilities) where (probabilities, indices) is meant"
    if came.indices == tuple(i + 1.0 for i in indices):
        return "indices count from 1, not from 0"
    if _near(came.probabilities, [row[i] for i in indices], row, len(row)):
        return "returns scores where probabilities are meant"
    if not _near(sorted(came.probabilities), sorted(p), row, len(row)):
        return "the probabilities are wrong on a plain row"
    return "the indices are not those of the k largest scores"


def _finite(came):
    return all(map(math.isfinite, came.probabilities))


def _some_nan(came):
    return any(map(math.isnan, came.probabilities))


def _distinct(came):
    return len(set(came.indices)) == len(came.indices)
