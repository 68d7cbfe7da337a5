"""Each fault of a normaliser is named with its smallest input; sound ones pass."""

import math
from array import array
from itertools import islice

import numpy as np
import pytest

import softcarry as sc
from block_checks import found, the_finding
from softcarry.auditing.blocks import check

INF, NAN = math.inf, math.nan


def branching(scores):
    """One pass, with a branch at each rise."""
    m, total = -INF, 0.0
    for score in scores:
        s = float(score)
        if math.isnan(s) or math.isnan(m):
            m = total = NAN
        elif s == INF:
            m, total = INF, NAN
        elif s > m:
            m, total = s, total * math.exp(m - s) + 1.0
        elif s > -INF:
            total += math.exp(s - m)
    return m, total


def branchless(scores):
    """One pass of NumPy scalars, without a branch."""
    m, total = np.float64(-INF), np.float64(0.0)
    for s in scores:
        new = np.maximum(m, np.float64(s))
        shift = np.float64(0.0) if new == -INF else new
        total = total * np.exp(m - shift) + np.exp(np.float64(s) - shift)
        m = new
    return [m, total]


def in_blocks(scores, block=32):
    """One pass over blocks of 32, which is all that is kept."""
    rest, m, total = iter(scores), -INF, 0.0
    while len(rows := np.fromiter(islice(rest, block), np.float64)):
        new = np.maximum(m, rows.max())
        shift = 0.0 if new == -INF else new
        total = total * np.exp(m - shift) + np.exp(rows - shift).sum()
        m = new
    return np.array([m, total])


def torch_scalars(scores):
    import torch

    m, total = torch.tensor(-INF, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    for s in scores:
        s = torch.tensor(float(s), dtype=torch.float64)
        new = torch.maximum(m, s)
        shift = torch.where(torch.isneginf(new), 0.0, new)
        total = total * torch.exp(m - shift) + torch.exp(s - shift)
        m = new
    return m, total


SOUND = {
    "a branch at each rise": branching,
    "no branch": branchless,
    "in blocks": in_blocks,
    "softcarry": sc.online_normalizer,
}


@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
def test_sound_normalisers_pass(function):
    report = check(function, "normalizer")
    assert [finding.message for finding in report.findings] == []
    assert {verdict.outcome for verdict in report.verdicts} == {"pass"}


def test_a_sound_normaliser_of_torch_passes(monkeypatch):
    pytest.importorskip("torch")
    from softcarry.auditing.blocks import _passes, normalizer

    # torch takes microseconds a scalar: shorter rows say the same.
    monkeypatch.setattr(normalizer, "_SIZES", (1, 2, 3, 33))
    monkeypatch.setattr(_passes, "_LONG", 512)
    monkeypatch.setattr(_passes, "_LENGTHS", (16, 512))
    assert found(torch_scalars, "normalizer") == []


def online(*, start=-INF, first=0.0, rescale=math.exp, add=math.exp, guard=True, relative=True):
    """One pass with places for a fault."""

    def normaliser(scores):
        m, total = start, first
        for s in scores:
            new = s if s > m or s != s else m
            shift = 0.0 if (new == -INF and guard) or not relative else new
            total = total * rescale(m - shift if relative else 0.0) + add(s - shift)
            m = new
        return m, total

    return normaliser


def two_passes(scores):
    m = max(scores, default=-INF)
    return m, math.fsum(math.exp(s - m) for s in scores if s > -INF)


def copied(scores):
    return two_passes(list(scores))


def packed(scores):
    kept = array("d", scores)
    return two_passes(kept)


def whole_array(scores):
    m = scores.max(initial=-INF)
    return m, np.exp(scores - (0.0 if m == -INF else m), dtype=np.float64).sum(where=scores > -INF)


def exchanged(scores):
    return branching(scores)[::-1]


def log_sum(scores):
    m, total = branching(scores)
    return m, m + math.log(total) if total else -INF


def no_equals(scores):
    """Equal scores count once."""
    m, total = -INF, 0.0
    for s in scores:
        if s > m:
            m, total = s, total * math.exp(m - s) + 1.0
        elif s < m:
            total += math.exp(s - m)
    return m, total


def first_rise_only(scores):
    m, total, rises = -INF, 0.0, 0
    for s in scores:
        if s > m:
            rises += m > -INF
            total = total * (math.exp(m - s) if rises <= 1 else 1.0) + 1.0
            m = s
        elif s > -INF:
            total += math.exp(s - m)
    return m, total


def starts_afresh(scores):
    m, total = -INF, 0.0
    for s in scores:
        if s > m:
            m, total = s, 1.0
        elif s > -INF:
            total += math.exp(s - m)
    return m, total


def whole_blocks_only(scores):
    """From 32 scores on, those that fill no block of 32 are dropped."""
    rest, m, total = iter(scores), -INF, 0.0
    while block := list(islice(rest, 32)):
        if len(block) == 32 or m == -INF:
            m, total = _merged((m, total), branching(block))
    return m, total


def skips_nan(scores):
    return branching(s for s in scores if s == s)


def finite_at_infinity(scores):
    m, total = branching(scores)
    return (m, 1.0) if m == INF else (m, total)


def in_the_dtype_of_the_scores(scores):
    m, total = -INF, 0
    for s in scores:
        new = max(m, s) if s == s and m == m else np.float64(NAN)
        shift = 0 if new == -INF else new
        total = total * np.exp(m - shift) + np.exp(s - shift)
        m = new
    return m, total


def in_single(scores):
    m, total = branching(np.float32(s) for s in scores)
    return m, np.float32(total)


def empty_is_none(scores):
    scores = iter(scores)
    m, total = next(scores), 1.0  # raises on no scores
    rest_m, rest_total = branching(scores)
    return sc.online_normalizer([m, rest_m]) if math.isnan(m) else _merged((m, total), (rest_m, rest_total))


def _merged(a, b):
    m = max(a[0], b[0]) if b[0] == b[0] else NAN
    if m in (-INF, INF) or m != m:
        return m, 0.0 if m == -INF else NAN
    return m, a[1] * math.exp(a[0] - m) + b[1] * math.exp(b[0] - m)


def nan_if_all_masked(scores):
    m, total, count = -INF, 0.0, 0
    for s in scores:
        count += 1
        m, total = _merged((m, total), (s, 1.0)) if s > -INF or s != s else (m, total)
    return (m, NAN) if m == -INF and count else (m, total)


# fault: (function, name, part of the message, input, right)
WRONG = {
    "two passes": (two_passes, "PASSES", "takes 2 passes over its input", "[1, 0]", "1 pass"),
    "a copy": (copied, "PASSES", "copies the whole row", "16 scores", "a few scores kept at once"),
    "a packed copy": (
        packed,
        "PASSES",
        "memory grows with the row",
        "16384 scores of a generator",
        "no more memory",
    ),
    "the whole array": (whole_array, "PASSES", "can't read an iterator", "iter([1, 0])", "one pass over"),
    "starts from l = 1": (
        online(first=1.0, rescale=lambda d: 1.0 if d == -INF else math.exp(d)),
        "PLAIN",
        "l starts from 1",
        "[0]",
        "(0, 1)",
    ),
    "(l, m)": (exchanged, "PLAIN", "returns (l, m)", "[0]", "(0, 1)"),
    "log-sum-exp": (log_sum, "PLAIN", "the log-sum-exp", "[0]", "(0, 1)"),
    "equal scores once": (no_equals, "PLAIN", "l is not the sum", "[0, 0]", "(0, 2)"),
    "no maximum": (online(relative=False), "OVERFLOW", "overflows", "[1000]", "(1000, 1)"),
    "start 0": (online(start=0.0), "START", "starts from a finite number, 0", "[-1]", "(-1, 1)"),
    "start -1e9": (online(start=-1e9), "START", "finite number, -1e+09", "[-1e+10]", "(-1e+10, 1)"),
    "start of the largest float32": (online(start=-3.4e38), "START", "-3.4e+38", "[-1e+300]", "(-1e+300, 1)"),
    "base 2": (online(rescale=math.exp2, add=math.exp2), "SUM", "2^(s − m)", "[1, 0]", "(1, 1.36788)"),
    "forgets to rescale": (
        online(rescale=lambda d: 1.0),
        "RESCALE",
        "l is not rescaled when",
        "[0, 1]",
        "(1, 1.36788)",
    ),
    "starts afresh": (starts_afresh, "RESCALE", "starts afresh", "[0, 1]", "(1, 1.36788)"),
    "rescales once": (first_rise_only, "ORDER", "order of the scores", "[0, 1, 2]", "(2, 1.50321)"),
    "whole blocks": (whole_blocks_only, "TAIL", "some lengths", "[0] * 32 + [1]", "(1, "),
    "raises on none": (empty_is_none, "EMPTY", "without scores", "[]", "(-inf, 0)"),
    "largest float64 as start": (
        online(start=-1.7976931348623157e308),
        "EMPTY",
        "without scores",
        "[]",
        "(-inf, 0)",
    ),
    "−inf first": (online(guard=False), "NEGINF", "−inf at the start", "[-inf, 0]", "(0, 1)"),
    "−inf alone": (nan_if_all_masked, "ALL_NEGINF", "−inf alone", "[-inf]", "(-inf, 0)"),
    "NaN skipped": (skips_nan, "NAN", "NaN is swallowed", "[nan]", "NaN"),
    "+inf swallowed": (finite_at_infinity, "POSINF", "+inf is swallowed", "[inf]", "(inf, nan)"),
    "16-bit sums": (
        in_the_dtype_of_the_scores,
        "STUCK",
        "stops growing",
        "zeros(2064, float16)",
        "(0, 2064)",
    ),
    "float32": (in_single, "PRECISION", "rounded to float32", "[16777217]", "16777217, 1"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_each_fault_is_named_with_its_smallest_input_and_the_right_value(fault):
    function, name, words, given, right = WRONG[fault]
    finding = the_finding(function, "normalizer", name)
    assert words in finding.message
    assert finding.evidence["input"] == given
    assert right in finding.evidence["right"]
    assert finding.remedy
    assert finding.evidence["source"]


def test_errors_come_before_what_follows_from_them():
    """A missing maximum spoils everything; one finding says so, beside what does not follow from it."""
    assert found(online(relative=False), "normalizer") == ["OVERFLOW"]
    assert found(online(start=-1e9), "normalizer") == ["START"]
    assert found(online(rescale=lambda d: 1.0), "normalizer") == ["RESCALE"]


def test_what_is_worth_knowing_is_a_warning():
    report = check(in_single, "normalizer")
    assert report.ok
    assert [finding.severity for finding in report.findings] == ["warning"]


@pytest.mark.parametrize("form", [tuple, list, np.array])
def test_a_result_is_read_in_any_form(form):
    assert found(lambda scores: form(branching(scores)), "normalizer") == []


def test_a_function_that_sees_each_score_twice_in_turn_takes_one_pass():
    def pairwise(scores):
        m, total = -INF, 0.0
        for s in scores:
            m, total = branching([m, s])[0], _sum(m, total, s)
        return m, total

    def _sum(m, total, s):
        new = branching([m, s])[0]
        if new != new or new == INF:
            return NAN
        return 0.0 if new == -INF else total * math.exp(m - new) + math.exp(s - new)

    assert found(pairwise, "normalizer") == []
