"""A merge of two results: f(output1, lse1, output2, lse2) -> (output, lse), by their log-sum-exps."""

import math

from softcarry.auditing.blocks._asking import Question
from softcarry.auditing.blocks._exact import Result
from softcarry.auditing.blocks._exact import merge_results as exact
from softcarry.auditing.blocks._merge_questions import PAPER, garbage_question, shared_questions
from softcarry.auditing.blocks._merging import Merge
from softcarry.auditing.blocks._tolerance import TINY, lse_tolerance, weight_tolerance
from softcarry.auditing.blocks._values import agree, text

_INF, _NAN = math.inf, math.nan


class MergeOfResults(Merge):
    """A merge of (output, lse) with (output, lse): output (t, dv), lse (t,), or of one row."""

    what = "(output, lse)"
    expected = "f(output1, lse1, output2, lse2) -> (output, lse)"
    empty = Result((0.0, 0.0), -_INF)
    plain = Result((1.0, 0.0), 0.0)
    three = (Result((1.0, 0.0), 0.0), Result((0.0, 8.0), -7.0), Result((4.0, 4.0), -7.0))

    def arguments(self, first, second):
        """Return the arguments of a call."""
        return (*first, *second)

    def exact(self, first, second):
        """Return the exact result."""
        return exact(first, second)

    def written(self, part):
        """Write a partial."""
        return f"{text(list(part.output))}, {text(part.lse)}"

    def join(self, fields):
        """Make a partial of what came, one array a field."""
        output, lse = fields
        return Result(tuple(map(float, output)), float(lse))

    def near(self, came, right, first, second):
        """Whether both output and lse are right."""
        return self.same_output(came, right, first, second) and self.same_lse(came, right, first, second)

    def same_output(self, came, right, first, second):
        """Whether the output is right."""
        relative = weight_tolerance(2, _size(first, second))
        largest = max((abs(x) for x in (*first.output, *second.output) if math.isfinite(x)), default=0.0)
        return agree(came.output, right.output, relative, relative * largest + TINY)

    def same_lse(self, came, right, first, second):
        """Whether the lse is right."""
        tolerance = lse_tolerance(2, _size(first, second))
        return agree(came.lse, right.lse, 0.0, tolerance)

    def is_nan(self, part):
        """Say whether the sum, and which values, are NaN."""
        return math.isnan(part.lse), [math.isnan(x) for x in part.output]

    def questions(self):
        """List the questions to this function, in order."""
        lower, higher = self.levels(0.0, 1.0)
        pairs = [(lower, lower), (lower, higher), (higher, lower)]
        same = [(Result((1.0, 2.0), 0.0),) * 2, (Result((1.0, 2.0), 0.0), Result((1.0, 2.0), 1.0))]
        return [
            Question(
                "BASE",
                "counts in base 2: the lse in units of ln 2",
                "weigh by e^(lse − m) and add m + ln Σ; where lses are in log2, convert them by ln 2",
                "pytorch#181645 (an lse in log2 leaks out)",
                [self.case(a, b, agrees=self._unlike_base_two(a, b)) for a, b in pairs],
            ),
            Question(
                "WEIGHTS",
                "the weights do not add up to 1: two equal outputs are not given back",
                "divide by the sum of the weights, e^(lse1 − m) + e^(lse2 − m)",
                PAPER,
                [self.case(a, b, agrees=self._same_output_as(a, b)) for a, b in same],
                after=("BASE",),
            ),
            Question(
                "RESCALE",
                "the output is weighted wrongly",
                "m = max(lse1, lse2); weigh by e^(lse1 − m) and e^(lse2 − m), divided by their sum",
                PAPER,
                [self.case(a, b, agrees=self._same_output_as(a, b)) for a, b in pairs],
                after=("BASE", "WEIGHTS"),
            ),
            Question(
                "LSE",
                "the lse of the result is wrong",
                "lse = m + ln(e^(lse1 − m) + e^(lse2 − m)), with m = max(lse1, lse2)",
                PAPER,
                [self.case(a, b, agrees=self._same_lse_as(a, b)) for a, b in pairs],
                after=("BASE",),
            ),
            *shared_questions(self),
            garbage_question(self, Result((_NAN, _NAN), -_INF), severity="error"),
        ]

    def levels(self, first, second):
        """Make two partials of one key each."""
        return Result((1.0, 0.0), first), Result((0.0, 1.0), second)

    def nan_cases(self):
        """List pairs of which one holds NaN."""
        one, sick = self.plain, Result((_NAN, _NAN), _NAN)
        return [(sick, one), (one, sick), (sick, self.empty), (Result((_NAN, 0.0), 0.0), one)]

    def infinite_cases(self):
        """List pairs of which one has met a score of +inf."""
        sick = Result((0.0, 1.0), _INF)
        return [(sick, self.plain), (self.plain, sick)]

    def swallowed(self, part):
        """Say whether nothing shows that a score was +inf."""
        return math.isfinite(part.lse) and all(map(math.isfinite, part.output))

    def _unlike_base_two(self, first, second):
        return lambda came: (
            self.near(came, exact(first, second), first, second)
            or not self.near(came, exact(first, second, power=2.0), first, second)
        )

    def _same_output_as(self, first, second):
        return lambda came: self.same_output(came, exact(first, second), first, second)

    def _same_lse_as(self, first, second):
        return lambda came: self.same_lse(came, exact(first, second), first, second)


def _size(first, second):
    return max((abs(part.lse) for part in (first, second) if math.isfinite(part.lse)), default=0.0)
