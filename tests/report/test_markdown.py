"""Markdown: a table of outcomes, and what was found, with nothing taken for more than text."""

from report_examples import HOSTILE
from softcarry.report import markdown
from softcarry.report.model import Finding, Report, Verdict


def report(name, *findings, outcome="pass", control=False):
    return Report(
        subject={"name": name, "dtypes": ["float32", "float16"], "control": control},
        findings=findings,
        verdicts=(Verdict("LSE", "float32", outcome), Verdict("GRAD", "float32", "skip")),
        environment={"libraries": {"numpy": "2.4"}},
    )


def lse(dtype, severity="error", message="the lse is in base 2"):
    return Finding("LSE", severity, message, {}, "multiply by ln 2", dtype)


def test_outcomes_stand_side_by_side_and_findings_below():
    page = markdown.render([report("sound"), report("wrong", lse("float32"), lse("float16"), outcome="fail")])
    lines = page.splitlines()
    assert lines[:4] == [
        "| check | sound | wrong |",
        "|---|---|---|",
        "| LSE | pass | **FAIL** |",
        "| GRAD | skip | skip |",
    ]
    assert "### sound" in lines
    assert "Nothing found." in lines
    assert "| LSE | float32, float16 | the lse is in base 2 | multiply by ln 2 |" in lines
    assert lines.count("float32, float16; numpy 2.4.") == 2


def test_warnings_and_controls_are_named():
    page = markdown.render([report("mine", lse("float32", "warning"), control=True)])
    assert "### mine (a control: wrong on purpose)" in page
    assert "| LSE (warning) | float32 |" in page


def test_names_and_messages_are_text_only():
    page = markdown.render([report(HOSTILE, lse("float32", message="a | b\n*c* [d](e) `f` <i>"))])
    assert "<script>" not in page
    assert "<i>" not in page
    assert r"a \| b \*c\* \[d\](e) \`f\` &lt;i&gt;" in page
    assert all(line.count("|") - line.count(r"\|") in (0, 3, 5) for line in page.splitlines())


def test_equal_reports_give_equal_pages():
    assert markdown.render([report("a")]) == markdown.render([Report.from_json(report("a").to_json())])
