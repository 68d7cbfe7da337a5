"""JUnit XML that a CI service reads: counts that add up, one failure a case, every character legal."""

import xml.etree.ElementTree as ET

import pytest

from report_examples import CHECKS, DTYPES, HOSTILE, full_report
from softcarry.report.junit import render
from softcarry.report.model import Finding, Report, Skip, Verdict


def suites(*reports):
    root = ET.fromstring(render(reports).encode())
    assert root.tag == "testsuites"
    return root


def case(root, name):
    (found,) = (each for each in root.iter("testcase") if each.get("name") == name)
    return found


def test_a_suite_is_a_subject_and_a_case_a_check_and_dtype():
    root = suites(full_report("a"), full_report("b", checks=("LSE",)))
    assert [suite.get("name") for suite in root] == ["a", "b"]
    first = root[0]
    assert [each.tag for each in first][:2] == ["properties", "testcase"]
    names = [each.get("name") for each in first.iter("testcase")]
    assert names == [f"{check} {dtype}" for check in CHECKS for dtype in DTYPES]
    assert {each.get("classname") for each in first.iter("testcase")} == {"a"}
    assert first.get("timestamp") == "2025-01-01T00:00:00"


def test_counts_add_up():
    root = suites(full_report("a"), full_report("b", checks=("LSE",)))
    for parent in (root, *root):
        assert int(parent.get("tests")) == len(list(parent.iter("testcase")))
        assert int(parent.get("failures")) == len(list(parent.iter("failure")))
        assert int(parent.get("skipped")) == len(list(parent.iter("skipped")))
        assert parent.get("errors") == "0"
    assert (root[0].get("tests"), root[0].get("failures"), root[0].get("skipped")) == ("57", "48", "3")


def test_a_failure_has_evidence_kind_and_remedy():
    failure = case(suites(full_report()), "EMPTY bfloat16").find("failure")
    assert failure.get("message") == "EMPTY is wrong: a < b"
    assert failure.get("type") == "EMPTY"
    for words in (
        'call: q (1, 2, 4, 16), "EMPTY" & <b>',
        "remedy: mend <it>",
        "kind of fault",
        "pytorch#103963",
    ):
        assert words in failure.text


def test_warnings_pass_and_are_told():
    warned = case(suites(full_report()), "INVAR float32")
    assert [each.tag for each in warned] == ["system-out"]
    assert "warning: INVAR is wrong" in warned[0].text


def test_what_passed_is_empty_and_what_was_skipped_has_a_reason():
    root = suites(full_report())
    assert list(case(root, "REF float32")) == []
    assert (
        case(root, "DROP float32").find("skipped").get("message") == "all of it: the kernel takes no dropout"
    )
    bare = Report(subject={"name": "x"}, verdicts=(Verdict("LSE", "float32", "skip"),))
    assert case(suites(bare), "LSE float32").find("skipped").get("message") == "not examined"


def test_several_errors_of_a_case_are_one_failure():
    findings = tuple(Finding("LSE", "error", message, {}, "r", "float32") for message in ("one", "two"))
    report = Report(
        subject={"name": "x"},
        findings=findings,
        skipped=(Skip("LSE", "b", "c", "float32"),),
        verdicts=(Verdict("LSE", "float32", "fail"),),
    )
    (failure,) = case(suites(report), "LSE float32")
    assert failure.get("message") == "one (and 1 more)"
    assert "error: two" in failure.text


def test_a_finding_without_a_verdict_is_not_lost():
    report = Report(subject={"name": "x"}, findings=(Finding("RUN", "error", "died", {}, "r", "float16"),))
    assert case(suites(report), "RUN float16").find("failure").get("message") == "died"


def test_a_control_fails_nothing():
    root = suites(full_report("c", control=True))
    assert root.get("failures") == "0"
    control = case(root, "EMPTY float32")
    assert "on purpose" in control.find("skipped").get("message")
    assert "EMPTY is wrong" in control.find("system-out").text


def test_the_environment_is_properties():
    properties = {each.get("name"): each.get("value") for each in suites(full_report())[0].find("properties")}
    assert properties["libraries.torch"] == "2.13.0+cpu"
    assert properties["contract.empty_rows"] == "zero"
    assert properties["seed"] == "0"
    assert properties["found"] == "48 errors, 3 warnings"


@pytest.mark.parametrize("name", [HOSTILE, 'a"b', "a\x00b\x1b", "\ud800", "]]>", "\ufffe"])
def test_every_text_is_legal_xml(name):
    finding = Finding(name, "error", name, {name: name}, name, name)
    root = suites(Report(subject={"name": name}, findings=(finding,), environment={"cpu": name}))
    assert root[0].get("name") == "".join("\ufffd" if c in "\x00\x1b\ud800\ufffe" else c for c in name)


def test_equal_reports_give_equal_files():
    assert render([full_report()]) == render([Report.from_json(full_report().to_json())])
