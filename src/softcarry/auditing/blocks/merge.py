"""A merge of two carries: f((m1, l1, o1), (m2, l2, o2)) -> (m, l, o); and the choice between its forms."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from softcarry.auditing.blocks._asking import Question
from softcarry.auditing.blocks._exact import Part
from softcarry.auditing.blocks._exact import merge as exact
from softcarry.auditing.blocks._merge_questions import PAPER, garbage_question, shared_questions
from softcarry.auditing.blocks._merging import Merge
from softcarry.auditing.blocks._tolerance import SINGLE, TINY, sum_tolerance
from softcarry.auditing.blocks._values import agree, text
from softcarry.auditing.blocks.merge_lse import MergeOfResults
from softcarry.errors import SubjectError

_INF, _NAN = math.inf, math.nan
_EMPTY = Part(-_INF, 0.0, (0.0, 0.0))


def merge_block(function: Callable[..., Any], form: str | None) -> Merge:
    """Make the merge of the form that is asked for, or that the signature tells.

    Raises
    ------
    SubjectError
        If there is no signature of two or four parameters, or no plain call works.
    """
    if form is None:
        form = _form_of(function)
    return MergeOfCarries(function) if form == "carry" else MergeOfResults(function)


def _form_of(function):
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    counts = {len(places), sum(p.default is p.empty for p in places)}
    forms = [form for form, count in (("carry", 2), ("lse", 4)) if count in counts]
    if len(forms) != 1:
        msg = (
            f"a merge takes two carries or four arrays; got a function of {len(places)} parameters: "
            "say form='carry' or form='lse' (--form)"
        )
        raise SubjectError(msg)
    return forms[0]


class MergeOfCarries(Merge):
    """A merge of (m, l, o) with (m, l, o): m (t,), l (t,), o (t, dv), or of one row."""

    what = "(m, l, o)"
    expected = "f((m1, l1, o1), (m2, l2, o2)) -> (m, l, o)"
    empty = _EMPTY
    plain = Part(0.0, 1.0, (1.0, 0.0))
    three = (Part(0.0, 1.0, (1.0, 0.0)), Part(-7.0, 1.0, (0.0, 8.0)), Part(-7.0, 1.0, (4.0, 4.0)))

    def arguments(self, first, second):
        """Return the arguments of a call."""
        return (first, second)

    def exact(self, first, second):
        """Return the exact result."""
        return exact(first, second)

    def written(self, part):
        """Write a partial."""
        return f"({text(part.m)}, {text(part.l)}, {text(list(part.o))})"

    def join(self, fields):
        """Make a partial of what came, one array a field."""
        m, l, o = fields
        return Part(float(m), float(l), tuple(map(float, o)))

    def near(self, came, right, first, second):
        """Whether a carry stands for the same row, whatever maximum it is relative to."""
        if not (math.isfinite(came.m) and math.isfinite(right.m)):
            return agree([came.m, came.l, *came.o], [right.m, right.l, *right.o], SINGLE)
        size = _gap(first, second)
        relative = sum_tolerance(2, size)
        factor = math.exp(min(max(came.m - right.m, -700.0), 700.0))
        largest = max(abs(x) for x in (*first.o, *second.o, 0.0))
        return agree(came.l * factor, right.l, relative, TINY) and agree(
            np.multiply(came.o, factor), right.o, relative, relative * largest + TINY
        )

    def is_nan(self, part):
        """Say whether the sum, and which values, are NaN."""
        return math.isnan(part.l) or math.isnan(part.m), [math.isnan(x) for x in part.o]

    def questions(self):
        """List the questions to this function, in order."""
        part = Part
        one, left, right = self.plain, part(0.0, 1.0, (1.0, 0.0)), part(1.0, 1.0, (0.0, 1.0))
        return [
            Question(
                "BASE",
                "counts in base 2: m in units of ln 2",
                "weigh by e^(m1 − m); where scores were scaled by log2 e, scale m back by ln 2",
                "pytorch#181645 (an lse in log2 leaks out)",
                [
                    self.case(a, b, agrees=self.unlike_base_two(a, b))
                    for a, b in ((left, right), (right, left))
                ],
            ),
            Question(
                "PLAIN",
                self.explain_plain,
                "of two carries with the same m, add l and l, o and o",
                PAPER,
                [self.case(one, part(0.0, 1.0, (0.0, 1.0))), self.case(one, part(0.0, 2.0, (2.0, 4.0)))],
                after=("BASE",),
            ),
            Question(
                "RESCALE",
                self.explain_rescale,
                "m = max(m1, m2); multiply l1 and o1 by e^(m1 − m), l2 and o2 by e^(m2 − m), then add",
                PAPER,
                [
                    self.case(left, right),
                    self.case(right, left),
                    self.case(part(0.0, 2.0, (2.0, 4.0)), part(2.0, 3.0, (1.0, -8.0))),
                    self.case(part(-1.0, 2.0, (2.0, 4.0)), part(-3.0, 3.0, (1.0, -8.0))),
                ],
                after=("BASE", "PLAIN"),
            ),
            *shared_questions(self),
            garbage_question(self, part(-_INF, 0.0, (_NAN, _NAN)), severity="warning"),
        ]

    def levels(self, first, second):
        """Make two partials of one key each."""
        return Part(first, 1.0, (1.0, 0.0)), Part(second, 1.0, (0.0, 1.0))

    def nan_cases(self):
        """List pairs of which one holds NaN."""
        one, sick = self.plain, Part(_NAN, _NAN, (_NAN, _NAN))
        return [(sick, one), (one, sick), (sick, self.empty), (Part(0.0, 1.0, (_NAN, 0.0)), one)]

    def infinite_cases(self):
        """List pairs of which one has met a score of +inf."""
        sick = Part(_INF, _NAN, (_NAN, _NAN))
        return [(sick, self.plain), (self.plain, sick)]

    def swallowed(self, part):
        """Say whether nothing shows that a score was +inf."""
        return math.isfinite(part.l) and math.isfinite(part.m)

    def unlike_base_two(self, first, second):
        """Make a test for answers that are not those of base 2."""
        return lambda came: (
            self.near(came, exact(first, second), first, second)
            or not self.near(came, exact(first, second, power=2.0), first, second)
        )

    def explain_plain(self, failure):
        """Say which of l and o is wrong."""
        return f"two carries with the same m come out wrong{self._which(failure)}"

    def explain_rescale(self, failure):
        """Say which of l and o is not rescaled."""
        if failure.came is None:
            return "fails on two carries of different m"
        first, second = failure.case.arguments
        came = failure.came
        forgotten = []
        if agree(came.l, first.l + second.l, SINGLE):
            forgotten.append("l")
        if agree(came.o, np.add(first.o, second.o), SINGLE, SINGLE):
            forgotten.append("o")
        if forgotten:
            return f"forgets to rescale {' and '.join(forgotten)} where the maxima differ"
        return f"rescales wrongly where the maxima differ{self._which(failure)}"

    def _which(self, failure):
        if failure.came is None:
            return ""
        right = exact(*failure.case.arguments)
        fields = ("m", "l", "o")
        wrong = [
            f for f in fields if not agree(getattr(failure.came, f), getattr(right, f), 8 * SINGLE, SINGLE)
        ]
        return f": {' and '.join(wrong)} wrong" if wrong else ""


def _gap(first, second):
    gap = first.m - second.m
    return min(abs(gap), 1000.0) if math.isfinite(gap) else 0.0
