"""A normaliser: f(iterable of scores) -> (m, l) in one pass, m their maximum and l = Σ e^(s − m)."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing._libraries import numpy_dtype
from softcarry.auditing.blocks._asking import Case, NotApplicableError, Question, guarded
from softcarry.auditing.blocks._exact import normalizer as exact
from softcarry.auditing.blocks._passes import passes_question
from softcarry.auditing.blocks._tolerance import DOUBLE, SINGLE, sum_tolerance
from softcarry.auditing.blocks._values import (
    LISTS,
    agree,
    hand_over,
    libraries,
    numbers,
    parts,
    row_text,
    text,
)
from softcarry.errors import SubjectError

_PAPER = "Milakov and Gimelshein 2018, arXiv:1805.02867, Algorithm 3"
_SIZES = (*range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1025)
_LOW = (-1.0, -100.0, -1000.0, -1e5, -1e6, -1e10, -1e31)
_BASICS = ("PLAIN", "OVERFLOW", "START")


class Normalizer:
    """A normaliser that can be called, and what it is called with.

    Parameters
    ----------
    function : callable

    Attributes
    ----------
    dtype, library : str
        Of what it is handed.

    Raises
    ------
    SubjectError
        If no kind of row gives two numbers.
    """

    dtype = "float64"

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        reasons = {}
        # An iterator is what the contract says; a row that can be read again is for those that need one.
        for self.library in ("iterator", LISTS, *(name for name in libraries() if name != LISTS)):
            try:
                m, total = self([0.0, 0.0])
            except (KernelRaisedError, MalformedResultError) as error:
                reasons.setdefault(str(error), []).append(self.library)
                continue
            if self.library != "iterator" or agree((m, total), (0.0, 2.0), sum_tolerance(2, 0.0)):
                return
            # It may have gone over an iterator twice, and found nothing the second time.
            reasons.setdefault(f"gave {text((m, total))} for [0, 0]", []).append(self.library)
        tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        msg = f"the normaliser could not be called ({tried}); expected f(iterable of floats) -> (m, l)"
        raise SubjectError(msg)

    def __call__(self, scores: Sequence[float]) -> tuple[float, float]:
        """Return (m, l) of a row."""
        row = iter(list(scores)) if self.library == "iterator" else hand_over(scores, self.library)
        return self.read(row)

    def read(self, row: Any) -> tuple[float, float]:
        """Return (m, l) of whatever stands for a row."""
        result = guarded(self.function, row)
        both = [numbers(each, "m and l") for each in parts(result, 2, "(m, l)")]
        if any(each.size != 1 for each in both):
            msg = f"returned arrays of shapes {both[0].shape} and {both[1].shape} where (m, l) was expected"
            raise MalformedResultError(msg)
        m, total = (float(each.reshape(())) for each in both)
        return m, total

    def works_in_single(self) -> bool:
        """Whether scores are rounded to float32 inside."""
        try:
            return self([16777217.0])[0] == 16777216.0
        except (KernelRaisedError, MalformedResultError):
            return False

    def questions(self) -> list[Question]:
        """List the questions to this function, in order."""
        low = [[low] for low in _LOW] + ([] if self.works_in_single() else [[-1e300]])
        return [
            passes_question(self),
            Question(
                "PLAIN",
                _explain,
                "start from m = −inf and l = 0, and add e^(s − m) for every score s",
                _PAPER,
                self.cases([[0.0], [0.0, 0.0], [0.0, 0.0, 0.0]]),
            ),
            Question(
                "OVERFLOW",
                "overflows: e^s is taken of scores from which the maximum has not been subtracted",
                "take e^(s − m), which is at most 1",
                "pytorch#62897 (a softmax that forgot its maximum)",
                self.cases([[100.0], [1000.0], [1000.0, 1000.0], [1000.0, 999.0]], finite_only=True),
                after=("PLAIN",),
            ),
            Question(
                "START",
                _explain_start,
                "start from m = −inf and l = 0, the empty carry, and no finite stand-in for −inf",
                "burn PR#4697 (a floor of −1e4 under the maximum), flashinfer#4451",
                self.cases(low),
                after=("PLAIN", "OVERFLOW"),
            ),
            Question(
                "SUM",
                _explain,
                "l sums e^(s − m), with m the maximum of the scores so far",
                _PAPER,
                self.cases([[1.0, 0.0], [2.0, 1.0, 0.0], [-1.0, -2.0], [3.0, 1.0, 2.0]]),
                after=_BASICS,
            ),
            Question(
                "RESCALE",
                _explain_rescale,
                "when the maximum rises from m to s, multiply l by e^(m − s) before adding 1",
                _PAPER,
                self.cases([[0.0, 1.0], [0.0, 2.0], [-1.0, 0.0], [0.0, 1000.0]]),
                after=(*_BASICS, "SUM"),
            ),
            Question(
                "ORDER",
                "the result depends on the order of the scores",
                "rescale l at every rise of the maximum, from the maximum before to the new one",
                _PAPER,
                self.cases([list(row) for n in (3, 4) for row in permutations(range(n))]),
                after=(*_BASICS, "SUM", "RESCALE"),
            ),
            Question(
                "TAIL",
                "rows of some lengths come out wrong",
                "do add the last scores, those that fill no whole block",
                "tiny-flash-attention#12, pytorch#147284 (lengths that are no multiple of the block)",
                self.cases([[0.0] * (n - 1) + [1.0] for n in _SIZES] + [_waves(300)]),
                after=(*_BASICS, "SUM", "RESCALE", "ORDER"),
            ),
            Question(
                "EMPTY",
                "a row without scores is not (−inf, 0)",
                "return the start, m = −inf and l = 0, if nothing was read",
                "tinygrad PR#17822 (NaN), pytorch PR#134650 (0)",
                self.cases([[]]),
                after=("PLAIN", "START"),
            ),
            *self._not_finite(),
            *self._precision(),
        ]

    def cases(self, rows: Iterable[Sequence[float]], *, finite_only: bool = False) -> list[Case]:
        """Make a case of each row; with ``finite_only`` any finite answer will do."""
        return [self._case(list(map(float, row)), finite_only) for row in rows]

    def _case(self, row, finite_only):
        right = exact(row)
        size = max((abs(s) for s in row if math.isfinite(s)), default=0.0)
        # Differences of scores are what is rounded; those beyond 1000 below the maximum weigh nothing.
        size = min(size, 1000.0)

        def agrees(came):
            if finite_only:
                return all(map(math.isfinite, came))
            return agree(came[0], right[0], SINGLE) and agree(
                came[1], right[1], sum_tolerance(len(row), size)
            )

        return Case(row_text(row), lambda: self(row), text(right), agrees, text, row)

    def _not_finite(self):
        inf, nan = math.inf, math.nan
        return [
            Question(
                "NEGINF",
                _explain_masked,
                "shift by 0 while the maximum is −inf, so that −inf − (−inf) is never formed",
                "tinygrad PR#17853 (a prefix of −inf gives NaN)",
                self.cases([[-inf, 0.0], [0.0, -inf], [-inf, -inf, 0.0], [-inf, 0.0, 1.0]]),
                after=(*_BASICS, "SUM", "RESCALE"),
            ),
            Question(
                "ALL_NEGINF",
                "a row of −inf alone is not (−inf, 0)",
                "return m = −inf and l = 0: shift by 0 while the maximum is −inf",
                "tinygrad PR#17822, onnxruntime#28904",
                self.cases([[-inf], [-inf, -inf]]),
                after=("PLAIN", "START", "NEGINF"),
            ),
            Question(
                "NAN",
                "NaN is swallowed: a score of NaN leaves m and l finite",
                "let NaN through: test for it, since every comparison with NaN is false",
                "cubecl PR#1070 (a NaN that nobody saw)",
                self._any_nan([[nan], [0.0, nan], [nan, 0.0], [1.0, nan, 0.0], [nan, -inf]]),
                after=("PLAIN",),
            ),
            Question(
                "POSINF",
                "a score of +inf is swallowed: l stays finite, though it is inf/inf that follows",
                "return l = NaN beside m = inf",
                "the rules of softcarry.Carry",
                self._overflowed([[inf], [0.0, inf], [inf, 0.0], [inf, inf]]),
                severity="warning",
                after=("PLAIN", "OVERFLOW"),
            ),
        ]

    def _any_nan(self, rows):
        return [
            Case(
                row_text(row), lambda row=row: self(row), "NaN", lambda came: any(map(math.isnan, came)), text
            )
            for row in rows
        ]

    def _overflowed(self, rows):
        return [
            Case(
                row_text(row),
                lambda row=row: self(row),
                text(exact(row)),
                lambda came: not math.isfinite(came[1]),
                text,
            )
            for row in rows
        ]

    def _precision(self):
        return [
            Question(
                "STUCK",
                "the sum stops growing: l is kept in the 16-bit format of the scores",
                "keep l in float32 or wider whatever the scores are in",
                "ml_dtypes#63, candle#3727, tract PR#2586, executorch PR#20090",
                [
                    self._narrow(dtype, n)
                    for dtype, n in (
                        ("bfloat16", 272),
                        ("bfloat16", 1024),
                        ("float16", 2064),
                        ("float16", 4096),
                    )
                ],
                after=("PLAIN", "TAIL"),
            ),
            Question(
                "PRECISION",
                "scores are rounded to float32: m and l are less exact than the floats they come from",
                "compute in float64, as Python floats do",
                "Higham 2002, section 2.2",
                self._double(),
                severity="warning",
                after=(*_BASICS, "SUM", "RESCALE"),
            ),
        ]

    def _narrow(self, dtype, n):
        def run():
            row = np.zeros(n, numpy_dtype(dtype))
            try:
                return self.read(row)
            except (KernelRaisedError, MalformedResultError) as error:
                msg = f"a NumPy array of {dtype}: {error}"
                raise NotApplicableError(msg) from None

        def agrees(came):
            return agree(came, (0.0, float(n)), sum_tolerance(n, 0.0))

        return Case(f"zeros({n}, {dtype})", run, text((0.0, float(n))), agrees, text)

    def _double(self):
        for row in ([16777217.0], [0.0, -1.0], [0.0, -1.0, -2.0]):
            right = exact(row)

            def agrees(came, right=right):
                return came[0] == right[0] and agree(came[1], right[1], sum_tolerance(3, 4.0, DOUBLE))

            yield Case(
                row_text(row), lambda row=row: self(row), f"{right[0]:.17g}, {right[1]:.17g}", agrees, _digits
            )


def _explain(failure):
    """Say which other quantity came instead of (m, l), if it is a known one."""
    if failure.came is None:
        return "fails on a plain row"
    row = failure.case.arguments
    m, total = exact(row)
    known = {
        "returns (l, m) where (m, l) is meant": (total, m),
        "l sums e^s, not e^(s − m): the maximum is not subtracted": (m, total * math.exp(m)),
        "returns the log-sum-exp where l is meant": (m, m + math.log(total)),
        "returns ln l where l is meant": (m, math.log(total)),
        "l sums 2^(s − m) where e^(s − m) is meant": (m, math.fsum(2.0 ** (s - m) for s in row)),
        "l starts from 1, not from 0": (m, total + 1.0),
    }
    tolerance = sum_tolerance(len(row), 4.0)
    for words, values in known.items():
        if agree(failure.came, values, tolerance, tolerance):
            return words
    if not agree(failure.came[0], m, SINGLE):
        return "m is not the maximum of the scores"
    return "l is not the sum of e^(s − m)"


def _explain_start(failure):
    if failure.came is None:
        return "fails on scores far below 0"
    m = failure.came[0]
    if math.isfinite(m) and m > failure.case.arguments[0]:
        return f"m starts from a finite number, {text(m)}: rows of scores below it come out wrong"
    return "scores below 0 come out wrong"


def _explain_rescale(failure):
    row = failure.case.arguments
    if failure.came is not None:
        if agree(failure.came[1], float(len(row)), sum_tolerance(2, 0.0)):
            return "l is not rescaled when the maximum rises"
        if agree(failure.came[1], 1.0, sum_tolerance(2, 0.0)):
            return "l starts afresh when the maximum rises: the scores before are forgotten"
    return "l is rescaled wrongly when the maximum rises"


def _explain_masked(failure):
    if failure.case.arguments[0] == -math.inf:
        return "a score of −inf at the start, a masked key, spoils the row"
    return "a score of −inf, a masked key, spoils the row"


def _digits(came):
    return f"{came[0]:.17g}, {came[1]:.17g}"


def _waves(n):
    return [float(round(16 * math.sin(j))) / 2.0 for j in range(n)]
