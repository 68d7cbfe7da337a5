"""Reports are valid JSON of a written schema, and come back from it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from json_schema import violations
from report_examples import ENVIRONMENT, full_report, subject
from softcarry.errors import OptionError
from softcarry.report.model import SCHEMA, Curve, Fact, Finding, Report, Skip, Verdict

SCHEMA_FILE = json.loads(Path(__file__, "../../../docs/report-schema.json").resolve().read_text())


def small_report():
    return Report(
        subject=subject(dtypes=["float32"]),
        findings=(Finding("LSE", "error", "wrong", {"lse": math.nan, "rows": [1, 2]}, "repair", "float32"),),
        verdicts=(Verdict("LSE", "float32", "fail", 3),),
        profile={"float32": {"knee": Fact(None, 0.5, "no step")}},
        curves=(Curve("error", (1, 2), (0.5, math.inf), (1.0, math.nan), check="GROWTH", dtype="float32"),),
        skipped=(Skip("EMPTY", "masks", "it takes none", "float32"),),
        environment=ENVIRONMENT,
    )


def refuse_constants(name):
    raise AssertionError(name)


def test_json_is_valid_and_follows_the_schema():
    content = json.loads(small_report().to_json(), parse_constant=refuse_constants)
    assert violations(content, SCHEMA_FILE) == []
    assert violations(json.loads(full_report().to_json()), SCHEMA_FILE) == []
    assert content["schema"] == SCHEMA
    assert content["findings"][0]["evidence"]["lse"] == "NaN"
    assert content["curves"][0]["measured"] == [0.5, "Infinity"]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("curves"),
        lambda c: c.update(extra=1),
        lambda c: c["findings"][0].update(severity="bad"),
        lambda c: c["curves"][0].update(n=[1.5]),
        lambda c: c["environment"].update(hostname="x"),
        lambda c: c["verdicts"][0].update(calls=True),
    ],
)
def test_the_schema_can_be_broken(change):
    content = json.loads(small_report().to_json())
    change(content)
    assert len(violations(content, SCHEMA_FILE)) == 1


def test_a_report_comes_back():
    report = small_report()
    again = Report.from_json(report.to_json())
    assert again.to_json() == report.to_json()
    assert again.curves[0].measured == (0.5, math.inf)
    assert math.isnan(again.curves[0].predicted[1])
    assert again.profile == report.profile


def test_numpy_values_are_plain_in_json():
    evidence = {
        "a": np.float32(0.5),
        "b": np.arange(2),
        "c": {np.int64(1): (np.bool_(True),)},
        "d": {3},
        "e": 1j,
    }
    finding = Finding("LSE", "warning", "m", evidence, "r", "float32")
    content = json.loads(Report(subject={}, findings=(finding,)).to_json(indent=None))
    expected = {"a": 0.5, "b": [0, 1], "c": {"1": [True]}, "d": [3], "e": "1j"}
    assert content["findings"][0]["evidence"] == expected


def test_ok_counts_errors_only():
    warning = Finding("LSE", "warning", "m", {}, "r", "float32")
    error = Finding("LSE", "error", "m", {}, "r", "float32")
    assert Report(subject={}).ok
    assert Report(subject={}, findings=(warning,)).ok
    assert not Report(subject={}, findings=(warning, error)).ok


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "softcarry.report/2"}'])
def test_other_text_is_refused(text):
    with pytest.raises(OptionError, match="expected"):
        Report.from_json(text)


def test_a_curve_has_equal_lengths():
    with pytest.raises(OptionError, match="as many"):
        Curve("t", (1, 2), (0.1,))
    with pytest.raises(OptionError, match="as many"):
        Curve("t", (1, 2), (0.1, 0.2), (0.1,))


def test_one_or_several_reports_are_read_back():
    one, other = Report(subject={"name": "one"}), Report(subject={"name": "other"})
    several = json.dumps({"schema": "softcarry.audit/1", "reports": [one.to_dict(), other.to_dict()]})
    assert Report.all_from_json(several) == [one, other]
    assert Report.all_from_json(one.to_json()) == [one]
    with pytest.raises(OptionError, match=r"softcarry\.report/1"):
        Report.all_from_json('{"schema": "other"}')
    with pytest.raises(OptionError, match="does not parse"):
        Report.all_from_json("{")


def test_a_report_writes_its_own_page():
    page = full_report().to_html()
    assert page.startswith("<!doctype html>")
    assert page == full_report().to_html()
