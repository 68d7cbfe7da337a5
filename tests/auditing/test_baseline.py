"""What two reports of a kernel differ in."""

import numpy as np
import pytest

from mutants import TwoPass, plain
from softcarry.auditing import Subject, audit
from softcarry.auditing.baseline import compare_with_baseline
from softcarry.report.model import Fact, Finding, Report, Verdict


def report(name="mine", findings=(), verdicts=(), environment=None, output="float32", **facts):
    return Report(
        {"name": name, "output_dtypes": {"float32": output}},
        findings=tuple(findings),
        verdicts=tuple(verdicts),
        profile={"float32": {key: Fact(value, 1.0, "seen") for key, value in facts.items()}},
        environment=environment or {},
    )


def found(message="wrong", check="LSE", severity="error", dtype="float32"):
    return Finding(check, severity, message, {"x": 1}, "mend it", dtype)


def said(now, then):
    return [(finding.check, finding.message) for finding in compare_with_baseline(now, then)]


def test_a_report_is_like_itself_and_like_itself_read_back():
    mine = audit(Subject(plain, name="mine", arrays="numpy"), only="FPRINT,LSE,TAIL", quick=True)
    assert compare_with_baseline(mine, mine) == ()
    assert compare_with_baseline(mine, Report.from_json(mine.to_json())) == ()


def test_changed_bits_are_counted_in_units_in_the_last_place():
    def later(q, k, v):
        return plain(q, k[:, :, ::-1], v[:, :, ::-1])

    then, now = (
        audit(Subject(kernel, name="mine", arrays="numpy"), only="FPRINT") for kernel in (plain, later)
    )
    (finding,) = compare_with_baseline(now, Report.from_json(then.to_json()))
    assert (finding.check, finding.severity, finding.dtype) == ("FPRINT", "warning", "float32")
    assert finding.message == "output bits differ from the baseline's in 4 of 4 cases"
    distances = finding.evidence["distances in units in the last place"]
    assert set(distances) - {"0"}
    assert sum(distances.values()) == 4 * (2048 // 4 // 8)


def test_what_changed_around_changed_bits_is_named():
    prints = {"fingerprint": {"a": "1", "b": "2", "only then": "3"}}
    then = report(environment={"time": "1", "libraries": {"torch": "2.11"}, "cpu": "same"}, **prints)
    now = report(
        environment={"time": "2", "libraries": {"torch": "2.12"}, "cpu": "same"},
        fingerprint={"a": "1", "b": "5", "only now": "7"},
    )
    (finding,) = compare_with_baseline(now, then)
    assert finding.message == "output bits differ from the baseline's in 1 of 2 cases"
    assert finding.evidence["cases that differ"] == ["b"]
    assert finding.evidence["changed around it"] == {
        "libraries": {"then": {"torch": "2.11"}, "now": {"torch": "2.12"}}
    }


def test_other_output_dtypes_are_not_measured_in_units():
    then = report(fingerprint={"a": "1"}, output="bfloat16")
    (finding,) = compare_with_baseline(report(fingerprint={"a": "2"}), then)
    distances = finding.evidence["distances in units in the last place"]
    assert distances == "outputs are float32 now and were bfloat16"


@pytest.mark.parametrize(
    ("old", "new", "drifts"),
    [
        ("e", "2", True),
        ("e", "e", False),
        (512, 256, True),
        (None, 256, True),
        (True, False, True),
        (1.0e-7, 1.5e-7, False),
        (1.0e-7, 2.5e-7, True),
        (0.3, -0.3, True),
        (0.0, 0.0, False),
        ([1, 2], [1, 3], True),
        ([1, 2], [1, 2, 3], True),
        (float("inf"), float("inf"), False),
        (float("inf"), 1.0, True),
    ],
)
def test_facts_drift(old, new, drifts):
    expected = [("PROFILE", "drift: size is not what it was")] if drifts else []
    assert said(report(size=new), report(size=old)) == expected


def test_drift_of_a_table_shows_what_differs_in_it():
    then = report(invariance={"threads": {"bitwise": True}, "splits": {"bitwise": True}, "gone": 1})
    now = report(invariance={"threads": {"bitwise": False}, "splits": {"bitwise": True}})
    (finding,) = compare_with_baseline(now, then)
    assert finding.evidence == {
        "then": {"threads": {"bitwise": True}, "gone": 1},
        "now": {"threads": {"bitwise": False}},
    }


def test_a_fact_that_only_one_has_is_no_drift():
    assert said(report(new=1), report(old=1)) == []


def test_new_and_mended_findings_are_named_and_numbers_in_them_do_not_matter():
    verdicts = [Verdict("LSE", "float32", "fail")]
    then = report(findings=[found("off by 1.5e-3 at n = 7"), found("in base 2")], verdicts=verdicts)
    now = report(findings=[found("off by −2.5 at n = 1024"), found("NaN on empty rows")], verdicts=verdicts)
    assert said(now, then) == [
        ("LSE", "new since the baseline: NaN on empty rows"),
        ("LSE", "mended since the baseline: in base 2"),
    ]


def test_verdicts_that_got_worse_are_named():
    def verdicts(*outcomes):
        return [Verdict(f"C{i}", "float32", outcome) for i, outcome in enumerate(outcomes)]

    then = report(verdicts=verdicts("pass", "pass", "fail", "warn", "pass"))
    now = report(verdicts=verdicts("pass", "skip", "pass", "fail", "warn"))
    assert said(now, then) == [
        ("C1", "worse than in the baseline: pass then, skip now"),
        ("C3", "worse than in the baseline: warn then, fail now"),
        ("C4", "worse than in the baseline: pass then, warn now"),
    ]


def test_what_only_one_of_them_has_is_said_and_not_compared():
    then = report(verdicts=[Verdict("LSE", "float32", "pass"), Verdict("LSE", "float16", "pass")])
    now = report(
        findings=[found(check="TAIL")],
        verdicts=[Verdict("LSE", "float32", "pass"), Verdict("TAIL", "float32", "fail")],
    )
    assert said(now, then) == [
        ("BASELINE", "not compared, as only one of the reports has these dtypes: float16"),
        ("BASELINE", "not compared, as only one of the reports has these checks: TAIL"),
    ]


def test_a_baseline_of_another_subject_is_said():
    assert said(report("mine"), report("yours")) == [
        ("BASELINE", "the baseline is a report of another subject, yours")
    ]


def test_a_kernel_that_breaks_is_seen_against_its_baseline():
    broken = TwoPass(fill=np.float32(-1e9))
    kernels = {"then": TwoPass(), "now": broken}
    reports = {
        key: audit(Subject(k, name="mine", arrays="numpy"), only="EMPTY") for key, k in kernels.items()
    }
    lines = said(reports["now"], reports["then"])
    assert ("EMPTY", "worse than in the baseline: pass then, fail now") in lines
    assert any(line.startswith("new since the baseline: ") for _, line in lines)
    back = said(reports["then"], reports["now"])
    assert any(line.startswith("mended since the baseline: ") for _, line in back)
