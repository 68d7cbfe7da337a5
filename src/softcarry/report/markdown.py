"""Audit reports as Markdown: for a comment under a change, or a page of documentation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softcarry.report._summary import cell, checks_of
from softcarry.report._words import as_written

if TYPE_CHECKING:
    from softcarry.report.model import Report

_WORDS = {"pass": "pass", "fail": "**FAIL**", "warn": "warn", "skip": "skip", "": ""}


def render(reports: "Sequence[Report]") -> str:
    """Write audit reports as Markdown.

    Parameters
    ----------
    reports : sequence of Report
        At least one.

    Returns
    -------
    str
        A table check × subject of the worst outcomes over the dtypes, then, for each subject, the versions,
        and its findings with their dtypes and remedies.

    Examples
    --------
    >>> from softcarry.report.model import Report, Verdict
    >>> report = Report(subject={"name": "mine"}, verdicts=(Verdict("LSE", "float32", "pass"),))
    >>> print(render([report]).splitlines()[2])
    | LSE | pass |
    """
    reports = as_written(reports)
    names = [_cell(report.subject["name"]) for report in reports]
    lines = ["| check | " + " | ".join(names) + " |", "|---" * (1 + len(reports)) + "|"]
    for check in checks_of(reports):
        words = (_WORDS[cell(report, check).outcome] for report in reports)
        lines.append(f"| {check} | " + " | ".join(words) + " |")
    for report in reports:
        lines += ["", *_section(report)]
    return "\n".join(lines) + "\n"


def _section(report):
    where = report.environment
    versions = ", ".join(f"{name} {number}" for name, number in where.get("libraries", {}).items())
    dtypes = ", ".join(report.subject.get("dtypes", ()))
    control = " (a control: wrong on purpose)" if report.subject.get("control") else ""
    lines = [f"### {_cell(report.subject['name'])}{control}", "", f"{dtypes}; {versions}.", ""]
    if not report.findings:
        return [*lines, "Nothing found."]
    told: dict[tuple[str, str, str], list] = {}
    for finding in report.findings:
        told.setdefault((finding.check, finding.severity, finding.message), []).append(finding)
    lines += ["| check | in | what | remedy |", "|---|---|---|---|"]
    for (check, severity, message), same in told.items():
        where = ", ".join(dict.fromkeys(finding.dtype for finding in same))
        warning = " (warning)" if severity == "warning" else ""
        lines.append(f"| {check}{warning} | {where} | {_cell(message)} | {_cell(same[0].remedy)} |")
    return lines


def _cell(text):
    """Escape what Markdown and HTML would take for more than text."""
    one_line = " ".join(text.split())
    for character in "\\`*_|[]#":
        one_line = one_line.replace(character, f"\\{character}")
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
