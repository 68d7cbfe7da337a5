"""A softmax: f(x) -> p over the last axis of x."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.blocks import _rows
from softcarry.auditing.blocks._asking import Case, NotApplicableError, Question
from softcarry.auditing.blocks._exact import softmax_rows as exact
from softcarry.auditing.blocks._rows import RowFunction, sized
from softcarry.auditing.blocks._tolerance import DOUBLE, SINGLE, TINY, weight_tolerance
from softcarry.auditing.blocks._values import agree, numbers, row_text, text
from softcarry.report.model import Fact

_BASICS = ("PLAIN", "OVERFLOW", "UNDERFLOW")
_BOOK = "Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 27.1"
_SUM = "Blanchard, Higham and Higham 2021, Accurately computing the log-sum-exp and softmax functions"


class Softmax(RowFunction):
    """A softmax that can be called; see ``RowFunction``."""

    what = "softmax"
    expected = "f(x) -> p of the shape of x"

    def first_call(self) -> None:
        """Make the plain call that says whether these arrays are taken."""
        self.row([0.0, 0.0])

    def row(self, values: Any, *, dtype: str = "float64") -> np.ndarray:
        """Return the probabilities of one row."""
        return self._shaped(self.call(values, dtype=dtype), np.shape(values))

    def rows(self, values: Any) -> np.ndarray:
        """Return the probabilities of several rows at once."""
        try:
            return self._shaped(self.call(values), np.shape(values))
        except (KernelRaisedError, MalformedResultError) as error:
            msg = f"an array of shape {np.shape(values)}: {error}"
            raise NotApplicableError(msg) from None

    def _shaped(self, result, shape):
        p = numbers(result, "probabilities")
        if p.shape != shape and (self.flat or p.shape != (1, *shape)):
            msg = f"returned shape {p.shape} where {shape} was expected"
            raise MalformedResultError(msg)
        return p.reshape(shape)

    @property
    def facts(self) -> dict[str, Fact]:
        """What a row of −inf alone gives."""
        try:
            p = self.row([-math.inf, -math.inf])
        except (KernelRaisedError, MalformedResultError) as error:
            return {"row of −inf alone": Fact("raises", 1.0, str(error))}
        words = "nan" if np.isnan(p).all() else {0.0: "zero", 0.5: "equal weights"}.get(p[0], "other")
        return {"row of −inf alone": Fact(words, 1.0, f"softmax of [-inf, -inf] gave {text(p)}")}

    def questions(self) -> list[Question]:
        """List the questions to this function, in order."""
        return [
            Question(
                "PLAIN",
                "wrong on a plain row",
                "p = e^(x − m) / Σ e^(x − m), with m the maximum of the row",
                _BOOK,
                self.cases([[0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0, -1.0]]),
            ),
            Question(
                "OVERFLOW",
                "overflows: e^x is taken of large scores, without subtracting the maximum",
                "take e^(x − m), with m the maximum of the row: it is at most 1",
                "pytorch#62897 (a softmax that forgot its maximum)",
                self.cases(_rows.LARGE, finite_only=True),
                after=("PLAIN",),
            ),
            Question(
                "UNDERFLOW",
                "the sum underflows to 0 where all scores are far below 0",
                "subtract the maximum of the row also where it is negative: the sum is then at least 1",
                _BOOK,
                self.cases(_rows.LOW),
                after=("PLAIN", "OVERFLOW"),
            ),
            Question(
                "SHIFT",
                "adding a constant to a row changes its probabilities",
                "subtract the maximum, and do not clip scores",
                _SUM,
                self.cases([[60.0, 61.0], [-60.0, -61.0], [1000.0, 1001.0], [1024.0, 1025.0, 1027.0]]),
                after=_BASICS,
            ),
            *self._masked_questions(),
            *self._not_finite(),
            *self._several_rows(),
            Question(
                "TAIL",
                "rows of some lengths come out wrong",
                "visit the last scores, which fill no whole block, and mask what lies beyond with −inf",
                "pytorch#147284 (odd widths 513 to 1023), tiny-flash-attention#12",
                self.cases(_rows.tail_rows()),
                after=_BASICS,
            ),
            Question(
                "STUCK",
                "the row sum stops growing: it is kept in the 16-bit format of the scores",
                "sum in float32 or wider whatever the scores are in",
                "candle#3727, tract PR#2586, executorch PR#20090, tt-metal#52045",
                [self._narrow_case(dtype, n) for dtype, n in _rows.NARROW],
                after=(*_BASICS, "TAIL"),
            ),
            Question(
                "PRECISION",
                "float64 scores give probabilities that are no more exact than float32",
                "compute in the dtype of the scores",
                "Higham 2002, section 2.2",
                self.cases([[0.0, 1.0], [0.0, 1.0, 2.0]], u=DOUBLE),
                severity="warning",
                after=_BASICS,
            ),
        ]

    def _masked_questions(self):
        return [
            Question(
                "NEGINF",
                "a score of −inf, a masked key, spoils the row or gets weight",
                "let e^(−inf) be 0: mask with −inf, never by a product with 0",
                "transformers PR#27114, mlx#1725",
                self.cases(_rows.MASKED),
                after=("PLAIN", "UNDERFLOW"),
            ),
            Question(
                "SENTINEL",
                "−inf is replaced by a finite number: a masked key gets weight where the others are below it",
                "keep −inf as it is, and guard the shift instead: 0 where the maximum is −inf",
                "onnxruntime#28904, burn PR#4697",
                self.cases(_rows.SENTINELS),
                after=(*_BASICS, "NEGINF"),
            ),
            Question(
                "ALL_NEGINF",
                "a row of −inf alone gives "
                + (
                    "another answer than 0"
                    if self.empty == "zero"
                    else "neither 0, nor NaN, nor equal weights"
                ),
                "return 0 for it: shift by 0 where the maximum is −inf, and divide only by sums above 0",
                "pytorch#103963, keras#21123, mlx PR#2608",
                [self._all_masked(row) for row in _rows.ALL_MASKED],
                after=("PLAIN", "NEGINF"),
            ),
        ]

    def _not_finite(self):
        return [
            Question(
                "NAN",
                "NaN is swallowed: a row with NaN has probabilities that are not NaN",
                "let NaN through: its row has no sum",
                "cubecl PR#1070 (a NaN that nobody saw)",
                [self._case(row, agrees=lambda p: bool(np.isnan(p).all())) for row in _rows.WITH_NAN],
                after=("PLAIN",),
            ),
            Question(
                "POSINF",
                "a row with +inf gives finite probabilities that are no limit of it",
                "return NaN: inf − inf is no number",
                "the rules of softcarry.Carry",
                [self._with_infinity(row) for row in _rows.WITH_INFINITY],
                severity="warning",
                after=("PLAIN", "OVERFLOW"),
            ),
        ]

    def _several_rows(self):
        inf, nan = math.inf, math.nan
        beside = ([2000.0, 0.0], [-2000.0, -2000.0], [-inf, -inf], [nan, 0.0])
        return [
            Question(
                "AXIS",
                "another axis than the last is summed over",
                "name the last axis: axis=-1, dim=-1",
                "torch's softmax without dim, which chooses 0 or 1 by the number of axes",
                [self._several([[0.0, 0.0], [0.0, 1.0]]), self._several([[[0.0, 0.0], [0.0, 1.0]]] * 2)],
                after=("PLAIN",),
            ),
            Question(
                "ROWS",
                "a row is changed by the row beside it",
                "take the maximum and the sum of each row apart, keepdims=True",
                "pytorch#108503, vllm#641 (rows that notice their neighbours)",
                [self._several([[0.0, 1.0], row], first_only=True) for row in beside],
                after=("PLAIN", "AXIS"),
            ),
        ]

    def cases(
        self, rows: Iterable[list[float]], *, finite_only: bool = False, u: float = SINGLE
    ) -> list[Case]:
        """Make a case of each row; with ``finite_only`` any finite answer will do."""
        return [
            self._case(row, agrees=_finite if finite_only else self._near(exact(row), row, u)) for row in rows
        ]

    def _case(self, row, *, agrees):
        shown = text if len(row) <= 8 else (lambda p: f"…, {text(p[-2:])[1:]} with sum {text(p.sum())}")
        return Case(row_text(row), lambda: self.row(row), shown(np.asarray(exact(row))), agrees, shown, row)

    def _near(self, right, row, u):
        relative = weight_tolerance(len(row), sized(row), u)
        masked = np.isneginf(row)

        def agrees(p):
            return agree(p, right, relative, TINY) and not p[masked].any()

        return agrees

    def _all_masked(self, row):
        n = len(row)
        right = [0.0] * n

        def agrees(p):
            allowed = (0.0,) if self.empty == "zero" else (0.0, 1.0 / n, math.nan)
            return any(agree(p, [value] * n, weight_tolerance(n, 0.0)) for value in allowed)

        return Case(row_text(row), lambda: self.row(row), text(right), agrees, text, row)

    def _with_infinity(self, row):
        limit = [float(s == math.inf) for s in row]
        return self._case(row, agrees=lambda p: bool(np.isnan(p).any()) or agree(p, limit, SINGLE))

    def _several(self, x, *, first_only=False):
        right = exact(x)
        relative = weight_tolerance(2, 1.0)

        def agrees(p):
            return agree(p[0], right[0], relative) if first_only else agree(p, right, relative)

        shown = (lambda p: f"first row {text(p[0])}") if first_only else text
        return Case(text(x), lambda: self.rows(x), shown(np.asarray(right)), agrees, shown, x)

    def _narrow_case(self, dtype, n):
        from softcarry.numerics._formats import get_format

        relative = weight_tolerance(n, 0.0) + get_format(dtype).unit_roundoff

        def run():
            return self.narrow(lambda: self.row([0.0] * n, dtype=dtype), dtype)

        def shown(p):
            return f"{n} probabilities of {text(p[-1])}, sum {text(p.sum())}"

        right = np.full(n, 1.0 / n)
        return Case(
            f"zeros({n}, {dtype})", run, shown(right), lambda p: agree(p, right, relative), shown, [0.0] * n
        )


def _finite(p):
    return bool(np.isfinite(p).all())
