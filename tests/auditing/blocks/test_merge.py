"""Each fault of a merge, in both forms, is named with its smallest input; sound ones pass."""

import math

import numpy as np
import pytest

import softcarry as sc
from block_checks import found, the_finding
from softcarry.auditing.blocks import check
from softcarry.errors import SubjectError

INF, NAN = math.inf, math.nan


def of_floats(a, b):
    """Plain Python, one value o at a time."""
    (m1, l1, o1), (m2, l2, o2) = a, b
    if m1 != m1 or m2 != m2:
        return NAN, NAN, NAN
    m = max(m1, m2)
    if m == -INF:
        return -INF, 0.0, 0.0
    if m == INF:
        return INF, NAN, NAN
    w1, w2 = math.exp(m1 - m), math.exp(m2 - m)
    parts = [w * float(o) for w, o in ((w1, o1), (w2, o2)) if w > 0.0]
    return m, w1 * l1 + w2 * l2, math.fsum(parts) if parts else 0.0


def of_lists(a, b):
    """Plain Python, o a list."""
    rows = [of_floats((a[0], a[1], x), (b[0], b[1], y)) for x, y in zip(list(a[2]), list(b[2]), strict=True)]
    return [rows[0][0], rows[0][1], [row[2] for row in rows]]


def of_arrays(a, b, *, weigh=np.exp, scale_l=True, scale_o=True, guard=True, select=True, keep=0.0):
    """NumPy, any number of rows; the keywords each put one fault in."""
    (m1, l1, o1), (m2, l2, o2) = a, b
    m = np.maximum(m1, m2)
    shift = np.where(np.isneginf(m), 0.0, m) if guard else m
    w1, w2 = weigh(m1 - shift), weigh(m2 - shift)
    w1, w2 = np.where(w1 * l1 < keep, 0.0, w1), np.where(w2 * l2 < keep, 0.0, w2)
    total = w1 * l1 + w2 * l2 if scale_l else l1 + l2
    if not scale_o:
        return m, total, o1 + o2
    parts = [np.asarray(w)[..., None] * o for w, o in ((w1, o1), (w2, o2))]
    if select:
        live = [np.asarray(w)[..., None] != 0.0 for w in (w1, w2)]
        parts = [np.where(x, part, 0.0) for x, part in zip(live, parts, strict=True)]
    return m, total, parts[0] + parts[1]


def of_tensors(a, b):
    """torch, any number of rows, by a stacked softmax of the maxima."""
    import torch

    m = torch.stack([a[0], b[0]]).amax(0)
    shift = torch.where(torch.isneginf(m), 0.0, m)
    weights = torch.exp(torch.stack([a[0], b[0]]) - shift)
    values = torch.stack([a[2], b[2]])
    values = torch.where((weights != 0)[..., None], values, 0.0)
    return m, (weights * torch.stack([a[1], b[1]])).sum(0), (weights[..., None] * values).sum(0)


def of_softcarry(a, b):
    carry = sc.Carry(*a) | sc.Carry(*b)
    return carry.m, carry.l, carry.o


def by_weights(o1, s1, o2, s2, *, divide=True, guard=True, select=True, base=math.e):
    """NumPy, from outputs and lses."""
    exp, log = (np.exp2, np.log2) if base == 2 else (np.exp, np.log)
    m = np.maximum(s1, s2)
    shift = np.where(np.isneginf(m), 0.0, m) if guard else m
    w1, w2 = exp(s1 - shift), exp(s2 - shift)
    total = w1 + w2
    parts = [np.asarray(w)[..., None] * o for w, o in ((w1, o1), (w2, o2))]
    if select:
        live = [~np.isneginf(s)[..., None] for s in (s1, s2)]
        parts = [np.where(x, part, 0.0) for x, part in zip(live, parts, strict=True)]
    output = parts[0] + parts[1]
    if divide:
        output = output / (np.where(total == 0.0, 1.0, total)[..., None] if guard else total[..., None])
    return output, shift + log(total)


def of_scalars(o1, s1, o2, s2):
    """Plain Python, one output at a time."""
    m, total, o = of_floats((s1, 1.0 if s1 > -INF else 0.0, o1), (s2, 1.0 if s2 > -INF else 0.0, o2))
    if s1 != s1 or s2 != s2 or total != total:
        return NAN, NAN
    return (o / total, m + math.log(total)) if total else (0.0, -INF)


def by_logaddexp(o1, s1, o2, s2):
    """torch, with the lse of both first."""
    import torch

    both = torch.logaddexp(s1, s2)
    shift = torch.where(torch.isneginf(both), 0.0, both)
    parts = [
        torch.where(torch.isneginf(s)[..., None], 0.0, torch.exp(s - shift)[..., None] * o)
        for o, s in ((o1, s1), (o2, s2))
    ]
    return parts[0] + parts[1], both


def by_softcarry(o1, s1, o2, s2):
    return sc.merge_outputs([o1, o2], [s1, s2])


SOUND = {
    "floats": of_floats,
    "lists": of_lists,
    "arrays": lambda a, b: of_arrays(a, b),
    "softcarry": of_softcarry,
    "outputs of arrays": lambda o1, s1, o2, s2: by_weights(o1, s1, o2, s2),
    "outputs of floats": of_scalars,
    "outputs by softcarry": by_softcarry,
}


@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
def test_sound_merges_pass(function):
    report = check(function, "merge")
    assert [finding.message for finding in report.findings] == []
    assert {verdict.outcome for verdict in report.verdicts} <= {"pass", "skip"}


@pytest.mark.parametrize("function", [of_tensors, by_logaddexp])
def test_sound_merges_of_torch_pass(function):
    pytest.importorskip("torch")
    report = check(function, "merge")
    assert [finding.message for finding in report.findings] == []
    assert report.profile["float64"]["called with"].value == "torch"


def carries(**fault):
    return lambda a, b: of_arrays(a, b, **fault)


def outputs(**fault):
    return lambda o1, s1, o2, s2: by_weights(o1, s1, o2, s2, **fault)


def left_maximum(a, b):
    """Relative to the left side: right in value, until e^(m2 − m1) overflows."""
    w = np.where(np.isneginf(b[0]), 0.0, np.exp(b[0] - np.where(np.isneginf(a[0]), 0.0, a[0])))
    return a[0], a[1] + w * b[1], a[2] + np.asarray(w)[..., None] * b[2]


def left_is_never_empty(a, b):
    return (
        tuple(map(np.add, a, (0.0, 0.0, np.where(np.isneginf(a[0]), 1.0, 0.0)[..., None])))
        if (np.isneginf(b[0]).all())
        else of_arrays(a, b)
    )


def right_unscaled(a, b):
    m, l, o = of_arrays(a, b)
    more = np.where(a[0] > b[0], b[1] * (1.0 - np.exp(b[0] - m)), 0.0)
    return m, np.where(np.isfinite(b[0]) & np.isfinite(a[0]), l + more, l), o


def columns(a, b):
    """Right for m (t, 1), and for one row."""
    m = np.maximum(a[0], b[0])
    shift = np.where(np.isneginf(m), 0.0, m)
    w1, w2 = np.exp(a[0] - shift), np.exp(b[0] - shift)
    return m, w1 * a[1] + w2 * b[1], np.where(w1 == 0, 0, w1 * a[2]) + np.where(w2 == 0, 0, w2 * b[2])


def nan_is_empty(a, b):
    a, b = (
        tuple(np.where(np.isnan(x), y, x) for x, y in zip(part, (-INF, 0.0, 0.0), strict=True))
        for part in (a, b)
    )
    return of_arrays(a, b)


def infinity_is_empty(a, b):
    a, b = (
        tuple(np.where(part[0] == INF, y, x.T).T for x, y in zip(part, (-INF, 0.0, 0.0), strict=True))
        for part in (a, b)
    )
    return of_arrays(a, b)


def added_equal(a, b):
    """Where the maxima are equal, l is not added up."""
    m, l, o = of_arrays(a, b)
    return m, np.where((a[0] == b[0]) & (a[1] == b[1]), a[1], l), o


def log1p_exp(o1, s1, o2, s2):
    """ln(1 + e^d), as in early ring attention."""
    lse = s1 + np.log(1.0 + np.exp(s2 - s1))
    return np.exp(s1 - lse)[..., None] * o1 + np.exp(s2 - lse)[..., None] * o2, lse


def log1p_exp_guarded(o1, s1, o2, s2):
    output, lse = by_weights(o1, s1, o2, s2)
    with np.errstate(all="ignore"):
        overflowing = s1 + np.log(1.0 + np.exp(s2 - s1))
    return output, np.where(np.isfinite(s1) & np.isfinite(s2), overflowing, lse)


def largest_lse(o1, s1, o2, s2):
    return by_weights(o1, s1, o2, s2)[0], np.maximum(s1, s2)


def halves(o1, s1, o2, s2):
    _, lse = by_weights(o1, s1, o2, s2)
    one, two = np.isneginf(s1)[..., None], np.isneginf(s2)[..., None]
    return np.where(one, np.where(two, 0.0, o2), np.where(two, o1, (o1 + o2) / 2.0)), lse


def infinite_lse_is_empty(o1, s1, o2, s2):
    return by_weights(o1, np.where(s1 == INF, -INF, s1), o2, np.where(s2 == INF, -INF, s2))


def nan_is_zero(o1, s1, o2, s2):
    def clean(x, value):
        return np.where(np.isnan(x), value, x)

    return by_weights(clean(o1, 0.0), clean(s1, -INF), clean(o2, 0.0), clean(s2, -INF))


# fault: (function, name, part of the message, input, right)
WRONG = {
    "forgets to rescale": (
        carries(scale_l=False, scale_o=False),
        "RESCALE",
        "forgets to rescale l and o",
        "f((0, 1, [1, 0]), (1, 1, [0, 1]))",
        "(1, 1.36788, [0.367879, 1])",
    ),
    "forgets to rescale l": (
        carries(scale_l=False),
        "RESCALE",
        "forgets to rescale l where",
        "f((0, 1, [1, 0]), (1, 1, [0, 1]))",
        "1.36788",
    ),
    "forgets to rescale o": (
        carries(scale_o=False),
        "RESCALE",
        "forgets to rescale o where",
        "f((0, 1, [1, 0]), (1, 1, [0, 1]))",
        "0.367879",
    ),
    "base 2": (carries(weigh=np.exp2), "BASE", "base 2", "f((0, 1, [1, 0]), (1, 1, [0, 1]))", "1.36788"),
    "equal maxima": (
        added_equal,
        "PLAIN",
        "the same m come out wrong: l wrong",
        "f((0, 1, [1, 0]), (0, 1, [0, 1]))",
        "(0, 2, [1, 1])",
    ),
    "two empties": (
        carries(guard=False, select=False),
        "TWO_EMPTIES",
        "breaks on two empties",
        "f((-inf, 0, [0, 0]), (-inf, 0, [0, 0]))",
        "(-inf, 0, [0, 0])",
    ),
    "empty on the left": (
        left_maximum,
        "EMPTY",
        "an empty partial on the left",
        "f((-inf, 0, [0, 0]), (0, 1, [1, 0]))",
        "(0, 1, [1, 0])",
    ),
    "overflow": (
        left_maximum,
        "RANGE",
        "overflows",
        "f((0, 1, [1, 0]), (1000, 1, [0, 1]))",
        "(1000, 1, [0, 1])",
    ),
    "one side only": (
        right_unscaled,
        "COMMUTE",
        "not commutative",
        "f((0, 1, [1, 0]), (1, 1, [0, 1])) and with sides swapped",
        "(1, 1.36788, [0.367879, 1])",
    ),
    "small weights dropped, one by one": (
        carries(keep=1e-3),
        "DROPPED",
        "small weight is dropped",
        "f((0, 1, [1, 0]), (-7, 1, [0, 1]))",
        "(0, 1.00091, [1, 0.000911882])",
    ),
    "small weights dropped": (
        carries(keep=1e-3),
        "ASSOC",
        "not associative",
        "a = (0, 1, [1, 0]), b = (-7, 1, [0, 8]), c = (-7, 1, [4, 4])",
        "1.00182",
    ),
    "the wrong axis": (
        columns,
        "BROADCAST",
        "along the wrong axis",
        "second row, f((1, 1, [0, 1]), (0, 1, [1, 0]))",
        "[0.367879, 1]",
    ),
    "NaN is lost": (
        nan_is_empty,
        "NAN",
        "NaN is swallowed",
        "f((nan, nan, [nan, nan]), (0, 1, [1, 0]))",
        "NaN",
    ),
    "+inf is lost": (
        infinity_is_empty,
        "POSINF",
        "score of +inf",
        "f((inf, nan, [nan, nan]), (0, 1, [1, 0]))",
        "NaN or inf",
    ),
    "0 · NaN": (
        carries(select=False),
        "GARBAGE",
        "0 · NaN",
        "f((-inf, 0, [nan, nan]), (0, 1, [1, 0]))",
        "(0, 1, [1, 0])",
    ),
    "outputs, base 2": (outputs(base=2), "BASE", "base 2", "f([1, 0], 0, [1, 0], 0)", "0.693147"),
    "outputs, no division": (
        outputs(divide=False),
        "WEIGHTS",
        "do not add up to 1",
        "f([1, 2], 0, [1, 2], 0)",
        "[1, 2], 0.693147",
    ),
    "outputs, mean": (
        halves,
        "RESCALE",
        "weighted wrongly",
        "f([1, 0], 0, [0, 1], 1)",
        "[0.268941, 0.731059], 1.31326",
    ),
    "outputs, largest lse": (
        largest_lse,
        "LSE",
        "the lse of the result is wrong",
        "f([1, 0], 0, [1, 0], 0)",
        "0.693147",
    ),
    "outputs, ln(1 + e^d)": (
        log1p_exp_guarded,
        "RANGE",
        "overflows",
        "f([1, 0], 0, [0, 1], 1000)",
        "[0, 1], 1000",
    ),
    "outputs, ln(1 + e^d) on empties": (
        log1p_exp,
        "EMPTY",
        "an empty partial on the left",
        "f([0, 0], -inf, [1, 0], 0)",
        "[1, 0], 0",
    ),
    "outputs, two empties": (
        outputs(guard=False),
        "TWO_EMPTIES",
        "NaN",
        "f([0, 0], -inf, [0, 0], -inf)",
        "[0, 0], -inf",
    ),
    "outputs, 0 · NaN": (
        outputs(select=False),
        "GARBAGE",
        "0 · NaN",
        "f([nan, nan], -inf, [1, 0], 0)",
        "[1, 0], 0",
    ),
    "outputs, NaN is lost": (nan_is_zero, "NAN", "NaN is swallowed", "f([nan, nan], nan, [1, 0], 0)", "NaN"),
    "outputs, +inf is lost": (
        infinite_lse_is_empty,
        "POSINF",
        "score of +inf",
        "f([0, 1], inf, [1, 0], 0)",
        "NaN or inf",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_each_fault_is_named_with_its_smallest_input_and_the_right_value(fault):
    function, name, words, given, right = WRONG[fault]
    finding = the_finding(function, "merge", name)
    assert words in finding.message
    assert finding.evidence["input"].endswith(given)
    assert right in finding.evidence["right"]


def test_a_carry_relative_to_another_number_than_the_maximum_is_right():
    """(m, l, o) and (m + c, l e^−c, o e^−c) are one state."""

    def shifted(a, b):
        m, l, o = of_arrays(a, b)
        return m + 1.0, l / math.e, o / math.e

    assert found(shifted, "merge") == []


def test_the_form_is_told_by_the_signature_or_by_hand():
    assert found(lambda *parts: by_weights(*parts), "merge", form="lse") == []
    assert found(lambda a, b, base="e": of_arrays(a, b), "merge") == []
    with pytest.raises(SubjectError, match=r"say form='carry' or form='lse' \(--form\)"):
        check(lambda *parts: by_weights(*parts), "merge")
    with pytest.raises(SubjectError, match=r"expected f\(\(m1, l1, o1\), \(m2, l2, o2\)\)"):
        check(by_weights, "merge", form="carry")


def test_half_precision_partials_are_not_associative():
    def in_half(o1, s1, o2, s2):
        output, lse = by_weights(o1, s1, o2, s2)
        return output, np.float16(lse).astype(np.float64)

    assert "LSE" in found(in_half, "merge")
