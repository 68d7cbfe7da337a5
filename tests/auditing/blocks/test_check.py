"""The report of a check: its fields, its schema, its order; and what check refuses."""

import json
import math
from pathlib import Path

import pytest

import softcarry as sc
from json_schema import violations
from softcarry.auditing.blocks import KINDS, check
from softcarry.errors import OptionError, SubjectError
from softcarry.report.model import Report

SCHEMA = json.loads(Path(__file__, "../../../../docs/report-schema.json").resolve().read_text())


def forgetful(scores):
    """Doesn't rescale, and swallows NaN."""
    m, total = -math.inf, 0.0
    for s in scores:
        m = max(m, s)
        total += math.exp(s - m) if s > -math.inf else 0.0
    return m, total


def test_a_report_follows_the_schema_and_survives_json():
    report = check(forgetful, "normalizer")
    assert violations(report.to_dict(), SCHEMA) == []
    assert Report.from_json(report.to_json()).to_dict() == report.to_dict()
    assert report.subject["name"] == "forgetful"
    assert report.profile["float64"]["building block"].value == "normalizer"
    assert {finding.check for finding in report.findings} == {"RESCALE", "NAN"}


def test_a_report_is_the_same_every_time():
    first, second = (check(forgetful, "normalizer") for _ in range(2))
    assert first.findings == second.findings
    assert first.verdicts == second.verdicts
    assert first.skipped == second.skipped


def test_every_question_has_a_verdict_and_what_was_not_asked_a_reason():
    report = check(forgetful, "normalizer")
    outcomes = {verdict.check: verdict.outcome for verdict in report.verdicts}
    assert outcomes["RESCALE"] == "fail"
    assert outcomes["PASSES"] == "pass"
    assert {name for name, outcome in outcomes.items() if outcome == "skip"} == {
        skip.check for skip in report.skipped
    }


def test_functions_are_found_by_name():
    assert check("softcarry:online_normalizer", "normalizer").ok
    with pytest.raises(SubjectError, match="expected a function to check as topk of that name"):
        check("softcarry:nothing", "topk")
    with pytest.raises(
        SubjectError, match="'math:pi' is of type float; expected a function to check as merge"
    ):
        check("math:pi", "merge")
    with pytest.raises(SubjectError, match="no module 'no_such_module'"):
        check("no_such_module:f", "softmax")


def test_other_arguments_are_refused():
    with pytest.raises(OptionError, match=r"kind is one of 'normalizer', 'merge'.*got 'merg'"):
        check(forgetful, "merg")
    with pytest.raises(OptionError, match="form is one of 'carry', 'lse'; got 'both'"):
        check(forgetful, "merge", form="both")
    with pytest.raises(OptionError, match="form is for kind 'merge'"):
        check(forgetful, "topk", form="lse")
    with pytest.raises(OptionError, match="empty is one of 'any', 'zero'; got 'nan'"):
        check(forgetful, "softmax", empty="nan")


def test_a_function_that_never_works_is_refused_with_the_reasons():
    def broken(scores):
        return scores.nothing

    with pytest.raises(
        SubjectError, match=r"the normaliser could not be called .*has no attribute 'nothing'"
    ):
        check(broken, "normalizer")


def test_an_interrupt_is_not_a_finding():
    def interrupted(scores):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted, "normalizer")


def test_the_kinds():
    assert set(KINDS) == {"normalizer", "merge", "topk", "softmax", "attention"}
    assert callable(sc.auditing.blocks.check)
