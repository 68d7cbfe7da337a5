"""SARIF that a code host takes: the parts of the 2.1.0 schema that reports use, checked one by one."""

import json
import re

import pytest

from json_schema import violations
from report_examples import CHECKS, HOSTILE, full_report
from softcarry.report.kinds import KINDS
from softcarry.report.model import Finding, Report
from softcarry.report.sarif import render


def closed(properties, *required):
    """Describe an object with these properties and no others."""
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def several(items):
    return {"type": "array", "items": items}


STRING, BAG = {"type": "string"}, {"type": "object"}
TEXT = closed({"text": STRING, "markdown": STRING}, "text")
LEVEL = {"enum": ["none", "note", "warning", "error"]}
RULE = closed(
    {
        "id": STRING,
        "shortDescription": TEXT,
        "fullDescription": TEXT,
        "help": TEXT,
        "defaultConfiguration": closed({"level": LEVEL}),
        "properties": BAG,
    },
    "id",
)
PLACE = closed(
    {
        "artifactLocation": closed({"uri": STRING, "uriBaseId": STRING}),
        "region": closed({"startLine": {"type": "integer", "minimum": 1}}),
    },
    "artifactLocation",
)
RESULT = closed(
    {
        "ruleId": STRING,
        "ruleIndex": {"type": "integer", "minimum": -1},
        "level": LEVEL,
        "message": TEXT,
        "partialFingerprints": {"type": "object", "additionalProperties": STRING},
        "properties": BAG,
        "locations": several(closed({"physicalLocation": PLACE})),
        "suppressions": several(
            closed({"kind": {"enum": ["inSource", "external"]}, "justification": STRING}, "kind")
        ),
    },
    "message",
)
DRIVER = closed({"name": STRING, "version": STRING, "rules": several(RULE)}, "name")
INVOCATION = closed(
    {"executionSuccessful": {"type": "boolean"}, "startTimeUtc": STRING}, "executionSuccessful"
)
RUN = closed(
    {
        "tool": closed({"driver": DRIVER}, "driver"),
        "invocations": several(INVOCATION),
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "results": several(RESULT),
        "properties": BAG,
    },
    "tool",
)
# What the schema of the standard demands of the properties that are written; others are refused.
SCHEMA = closed({"$schema": STRING, "version": {"const": "2.1.0"}, "runs": several(RUN)}, "version", "runs")


def refuse_constants(name):
    raise AssertionError(name)


def log(*reports):
    content = json.loads(render(reports), parse_constant=refuse_constants)
    assert violations(content, SCHEMA) == []
    (run,) = content["runs"]
    return run


SOURCED = {"source": {"file": "my kernels/flash#1.py", "line": 12}}


@pytest.mark.parametrize(
    "reports",
    [
        [full_report()],
        [full_report("a", **SOURCED), full_report(HOSTILE, control=True)],
        [Report(subject={"name": "bare"})],
        [
            Report(
                subject={"name": "\x00\ud800"}, findings=(Finding("NEW", "error", "m", {}, "r", "float32"),)
            )
        ],
    ],
)
def test_logs_follow_the_schema_and_results_their_rules(reports):
    run = log(*reports)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    assert len(run["results"]) == sum(len(report.findings) for report in reports)
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    render(reports).encode()


def test_the_schema_can_be_broken():
    content = json.loads(render([full_report()]))
    content["runs"][0]["results"][0]["level"] = "fatal"
    assert len(violations(content, SCHEMA)) == 1


def test_a_rule_is_a_check_with_its_kind_of_fault():
    rules = {rule["id"]: rule for rule in log(full_report())["tool"]["driver"]["rules"]}
    assert set(rules) == set(CHECKS)
    assert rules["EMPTY"]["shortDescription"]["text"] == KINDS["EMPTY"].question
    assert KINDS["EMPTY"].meaning in rules["EMPTY"]["help"]["text"]
    assert "pytorch#103963" in rules["EMPTY"]["help"]["text"]
    assert f"]({KINDS['EMPTY'].faults[0].url})" in rules["EMPTY"]["help"]["markdown"]
    assert "onnxruntime#28904" in rules["EMPTY"]["properties"]["faults"]


def test_a_result_has_level_message_and_evidence():
    results = log(full_report())["results"]
    assert results[0]["level"] == "error"
    assert results[0]["message"]["text"] == "mine, float32: EMPTY is wrong: a < b. Remedy: mend <it>."
    assert results[0]["properties"]["evidence"]["lse"] == "-Infinity"
    assert {result["level"] for result in results if result["ruleId"] == "INVAR"} == {"warning"}
    fingerprints = [result["partialFingerprints"]["finding/v1"] for result in results]
    assert len(set(fingerprints)) == len(results)


def test_a_place_is_given_where_the_report_has_one():
    (place,) = log(full_report(**SOURCED))["results"][0]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20kernels/flash%231.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    assert "locations" not in log(full_report())["results"][0]


def test_findings_of_a_control_are_suppressed():
    own, control = full_report("a", checks=("LSE",)), full_report("c", checks=("LSE",), control=True)
    assert [("suppressions" in result) for result in log(own, control)["results"]] == [False] * 3 + [True] * 3


def test_a_process_that_died_is_no_successful_run():
    died = Report(subject={"name": "x"}, findings=(Finding("RUN", "error", "died", {}, "r", "float16"),))
    assert log(died)["invocations"] == [{"executionSuccessful": False}]
    run = log(full_report())["invocations"][0]
    assert run["executionSuccessful"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", run["startTimeUtc"])


def test_equal_reports_give_equal_files():
    assert render([full_report()]) == render([Report.from_json(full_report().to_json())])
