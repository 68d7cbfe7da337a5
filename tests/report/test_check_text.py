"""The text of a check: what is wrong, with its input; what is right; what was not asked."""

import io

import pytest
from rich.console import Console

from softcarry.report.check_text import render
from softcarry.report.model import Fact, Finding, Report, Skip, Verdict

FINDING = Finding(
    "RESCALE",
    "error",
    "forgets to rescale l",
    {"input": "[0, 1]", "came": "(1, 2)", "right": "(1, 1.36788)", "source": "a paper"},
    "multiply l by e^(m − s)",
    "float64",
)


def text(report, width=80):
    page = io.StringIO()
    Console(file=page, width=width, highlight=False, no_color=True).print(render(report))
    return page.getvalue()


def report(*findings, **more):
    return Report(
        subject={"name": "mine"},
        findings=findings,
        profile={
            "float64": {
                "building block": Fact("normalizer", 1.0, ""),
                "called with": Fact("iterator", 1.0, ""),
                "takes a mask": Fact(False, 1.0, ""),
                "axes": Fact(None, 0.0, ""),
            }
        },
        **more,
    )


def test_a_finding_shows_what_went_in_what_came_and_what_is_right():
    lines = [line.rstrip() for line in text(report(FINDING)).splitlines()]
    assert lines == [
        "mine, a normalizer, called with iterator; takes a mask: no",
        "",
        "  FAIL RESCALE  forgets to rescale l",
        "       input   [0, 1]",
        "       came    (1, 2)",
        "       right   (1, 1.36788)",
        "       remedy  multiply l by e^(m − s)",
        "       see     a paper",
        "mine: 1 error",
    ]


def test_what_is_right_and_what_was_not_asked_is_said_once_for_each_reason():
    shown = text(
        report(
            verdicts=(Verdict("PLAIN", "float64", "pass", 3), Verdict("ORDER", "float64", "skip")),
            skipped=tuple(
                Skip(name, "the question", "RESCALE would decide it", "") for name in ("ORDER", "TAIL")
            ),
        )
    )
    assert "right      PLAIN" in shown
    assert "not asked  ORDER, TAIL: RESCALE would decide it" in shown
    assert "mine: nothing found" in shown


@pytest.mark.parametrize("width", [40, 80])
def test_everything_fits_the_width(width):
    long = Finding("NAME", "warning", "word " * 40, {"input": "[0] * 10 + " * 20}, "word " * 30, "float64")
    assert max(map(len, text(report(long), width).splitlines())) <= width


def test_names_are_no_markup():
    assert "[bold]x[/bold]" in text(Report(subject={"name": "[bold]x[/bold]"}))
