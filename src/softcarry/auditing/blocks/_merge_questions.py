"""The questions that both forms of a merge are asked: empties, ranges, order, rows, NaN and +inf."""

import math
from typing import Any

from softcarry.auditing.blocks._asking import Case, NotApplicableError, Question
from softcarry.auditing.blocks._merging import Merge
from softcarry.report.model import Severity

PAPER = "FlashAttention, Dao et al. 2022, arXiv:2205.14135, section 3.1"
_VALUES = ("PLAIN", "RESCALE", "BASE", "WEIGHTS")


def shared_questions(merge: Merge) -> list[Question]:
    """List the questions that do not depend on the form."""
    empty, one = merge.empty, merge.plain
    return [
        Question(
            "EMPTY",
            _which_side,
            "weigh an empty partial by exactly 0, and leave the other as it is",
            "flashinfer#4451, flash-attention PR#978",
            [
                merge.case(one, empty),
                merge.case(empty, one),
                merge.case(merge.levels(-1000.0, 0.0)[0], empty),
            ],
            after=("PLAIN",),
        ),
        Question(
            "TWO_EMPTIES",
            _explain_two_empties,
            "shift by 0 where both maxima are −inf, and divide by l only where l > 0",
            "flashinfer#4051 (two empties do not give an empty)",
            [merge.case(empty, empty)],
            after=("EMPTY",),
        ),
        Question(
            "RANGE",
            "overflows or loses a side where maxima are large or far apart",
            "subtract the larger maximum before every exponential: e^(m1 − m), never e^m1 or e^|m1 − m2|",
            "EasyContext#14 (ln(1 + e^d) overflows)",
            [merge.case(*merge.levels(*pair)) for pair in _far_apart()],
            after=_VALUES,
        ),
        Question(
            "DROPPED",
            "a partial of small weight is dropped: e^-7 is 0.0009, and counts",
            "leave a side out only where its weight is exactly 0",
            "flash-attention PR#2067 (deviations that grow with a threshold)",
            [merge.case(*merge.levels(0.0, -7.0)), merge.case(*merge.levels(-7.0, 0.0))],
            after=_VALUES,
        ),
        Question(
            "COMMUTE",
            "not commutative: the result depends on which partial comes first",
            "treat both sides alike: rescale each by its own e^(m − m_new)",
            PAPER,
            [_swapped(merge, *pair) for pair in (merge.levels(0.0, 1.0), merge.levels(0.0, 3.0))],
        ),
        Question(
            "ASSOC",
            "not associative within rounding: the result depends on how partials are grouped",
            "drop no partial for its small weight, and keep lse and l in float32 or wider",
            "Megatron and flash-attention#2723 (partials in 16 bits)",
            [_grouped(merge)],
            after=(*_VALUES, "LSE", "RANGE", "COMMUTE"),
        ),
        Question(
            "BROADCAST",
            "m of shape (t,) meets o of shape (t, dv) along the wrong axis: silently wrong where t = dv",
            "write m[..., None] where it multiplies o, or say that m is (t, 1)",
            "onnxruntime PR#24017 (a wrong broadcast)",
            [_two_rows(merge)],
            severity="warning",
            after=_VALUES,
        ),
        Question(
            "NAN",
            "NaN is swallowed: a partial of NaN leaves no trace in the result",
            "let NaN through: compare and select so that NaN is not taken for empty or small",
            "cubecl PR#1070 (a NaN that nobody saw)",
            [_with_nan(merge, *pair) for pair in merge.nan_cases()],
        ),
        Question(
            "POSINF",
            "a partial that has met a score of +inf leaves no trace in the result",
            "let it become NaN, or stay +inf: inf − inf is no number",
            "flash-attention PR#978 (+inf stood for empty)",
            [_with_infinity(merge, *pair) for pair in merge.infinite_cases()],
            severity="warning",
            after=("NAN",),
        ),
    ]


def garbage_question(merge: Merge, garbage: Any, *, severity: Severity) -> Question:
    """Ask whether NaN in the values of an empty partial reaches the result."""
    one = merge.plain
    return Question(
        "GARBAGE",
        "NaN in the values of an empty partial reaches the result: 0 · NaN is NaN",
        "select the values of an empty partial away, as in where(weight > 0, weight · o, 0)",
        "vllm PR#43961, cudnn-frontend#624 (0 · NaN)",
        [merge.case(garbage, one), merge.case(one, garbage)],
        severity=severity,
        after=("EMPTY", *_VALUES),
    )


def _far_apart():
    gaps = (100.0, 1000.0)
    yield from ((0.0, gap) for gap in gaps)
    yield from ((gap, 0.0) for gap in gaps)
    yield from ((level, level) for level in (100.0, 1000.0, -100.0, -1000.0))
    yield from ((-1000.0, 0.0), (0.0, -1000.0), (-1000.0, -999.0))


def _which_side(failure):
    first, _ = failure.case.arguments
    side = "left" if -math.inf in first else "right"
    return f"an empty partial on the {side} changes the result"


def _explain_two_empties(failure):
    spoilt = failure.came is None or "nan" in failure.shown
    return "breaks on two empties" + (": −inf − (−inf) is NaN" if spoilt else ", which do not give an empty")


def _swapped(merge, first, second):
    def run():
        return merge(first, second), merge(second, first)

    def agrees(came):
        return merge.near(came[0], came[1], first, second)

    return Case(
        f"{merge.pair_written(first, second)} and with sides swapped",
        run,
        f"both {merge.written(merge.exact(first, second))}",
        agrees,
        lambda came: " and ".join(map(merge.written, came)),
    )


def _grouped(merge):
    a, b, c = merge.three

    def run():
        return merge(merge(a, b), c), merge(a, merge(b, c))

    return Case(
        f"a = {merge.written(a)}, b = {merge.written(b)}, c = {merge.written(c)}",
        run,
        f"both groupings {merge.written(merge.exact(a, merge.exact(b, c)))}",
        # Each grouping is two merges, each within the tolerance of one.
        lambda came: merge.near(came[0], came[1], a, b),
        lambda came: " and ".join(map(merge.written, came)),
    )


def _two_rows(merge):
    pairs = merge.pairs()

    def run():
        came = merge.two_rows()
        if came is None:
            msg = "two rows at once are refused, which is right for a function of one row"
            raise NotApplicableError(msg)
        return came

    def agrees(came):
        return all(merge.near(row, merge.exact(*pair), *pair) for row, pair in zip(came, pairs, strict=True))

    return Case(
        " and, as a second row, ".join(merge.pair_written(*pair) for pair in pairs),
        run,
        " and ".join(merge.written(merge.exact(*pair)) for pair in pairs),
        agrees,
        lambda came: " and ".join(map(merge.written, came)),
    )


def _with_nan(merge, first, second):
    inner = [merge.is_nan(part) for part in (first, second)]
    sum_is, values_are = (
        any(i[0] for i in inner),
        [any(pair) for pair in zip(*(i[1] for i in inner), strict=True)],
    )

    def agrees(came):
        of_sum, of_values = merge.is_nan(came)
        return (of_sum or not sum_is) and all(x or not y for x, y in zip(of_values, values_are, strict=True))

    right = "NaN where a side has NaN"
    return Case(merge.pair_written(first, second), lambda: merge(first, second), right, agrees, merge.written)


def _with_infinity(merge, first, second):
    return Case(
        merge.pair_written(first, second),
        lambda: merge(first, second),
        "NaN or inf",
        lambda came: not merge.swallowed(came),
        merge.written,
    )
