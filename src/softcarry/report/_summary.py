"""Verdicts at a glance: checks × dtypes of one subject, subjects × checks of many."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from softcarry.report.model import Report

_WORST_FIRST = ("fail", "warn", "pass", "skip")


class Cell(NamedTuple):
    """How a check ended over all dtypes of a subject.

    Attributes
    ----------
    outcome : {"pass", "fail", "warn", "skip", ""}
        The worst; "" if the check was not among those asked for. A check that passed in one dtype and was
        skipped in another passed.
    findings : int
        Those that differ in more than their dtype.
    """

    outcome: str
    findings: int


def checks_of(reports: Sequence["Report"]) -> list[str]:
    """Every check with a verdict or a finding, in the order of the reports."""
    return list(
        dict.fromkeys(each.check for report in reports for each in (*report.verdicts, *report.findings))
    )


def dtypes_of(report: "Report") -> list[str]:
    """Every dtype of a report: those of the subject, and others in which something was judged."""
    judged = (each.dtype for each in (*report.verdicts, *report.findings))
    return list(dict.fromkeys((*report.subject.get("dtypes", ()), *judged)))


def outcome(report: "Report", check: str, dtype: str) -> str:
    """Return how a check ended in one dtype: "pass", "fail", "warn", "skip", or "" if it was not asked for.

    Findings count where there is no verdict.
    """
    verdicts = [v.outcome for v in report.verdicts if (v.check, v.dtype) == (check, dtype)]
    severities = [f.severity for f in report.findings if (f.check, f.dtype) == (check, dtype)]
    return _worst(verdicts) or _worst("fail" if each == "error" else "warn" for each in severities)


def cell(report: "Report", check: str) -> Cell:
    """Sum a check up over the dtypes of a subject.

    Examples
    --------
    >>> from softcarry.report.model import Report, Verdict
    >>> verdicts = (Verdict("LSE", "float32", "pass"), Verdict("LSE", "float16", "fail"))
    >>> cell(Report(subject={}, verdicts=verdicts), "LSE")
    Cell(outcome='fail', findings=0)
    """
    worst = _worst(outcome(report, check, dtype) for dtype in dtypes_of(report))
    return Cell(worst, len({(f.severity, f.message) for f in report.findings if f.check == check}))


def _worst(outcomes: Iterable[str]) -> str:
    seen = set(outcomes)
    return next((each for each in _WORST_FIRST if each in seen), "")
