"""What the page of a report shows, ready for its templates: words, tables and figures."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from softcarry.report._measured import figures_of
from softcarry.report._summary import cell, checks_of, dtypes_of, outcome
from softcarry.report._words import by_dtype, counted, cut, named, shown
from softcarry.report.evidence_figures import evidence_svg
from softcarry.report.kinds import kind_of

if TYPE_CHECKING:
    from softcarry.report.model import Report

_LONG = 600
# Of a page: a reader who looks for more finds the same in the tables.
_MOST_FIGURES_OF_EVIDENCE = 12
# Of more subjects than these each has its first figure only: the page is a matrix then, and stays small.
_FEW_SUBJECTS = 4
# Facts with a figure of their own, or that mean nothing to a reader.
_NOT_IN_THE_PROFILE = ("invariance", "empty row table", "fingerprint sample")
_WORDS = {
    "pass": ("pass", "✓"),
    "fail": ("FAIL", "✗"),
    "warn": ("warn", "!"),
    "skip": ("skip", "–"),
    "": ("not asked", ""),
}
"""The word and the mark of an outcome."""


def environment_of(reports: "Sequence[Report]") -> list[tuple[str, str]]:
    """List where the reports were made: what they have in common."""
    first, *others = (_environment(report) for report in reports)
    return [(name, value) for name, value in first.items() if all(each.get(name) == value for each in others)]


def matrix_of(reports: "Sequence[Report]") -> dict[str, Any]:
    """List subjects and checks, with the worst outcome over the dtypes and the number of findings."""
    checks = checks_of(reports)
    rows = []
    for place, report in enumerate(reports, 1):
        cells = []
        for check in checks:
            sum_ = cell(report, check)
            word, mark = _WORDS[sum_.outcome]
            cells.append({"outcome": sum_.outcome, "word": word, "mark": mark, "findings": sum_.findings})
        rows.append({
            "id": f"subject-{place}", "name": str(report.subject.get("name", "")), "sum": counted(report),
            "cells": list(zip(checks, cells, strict=True)),
        })  # fmt: skip
    return {"checks": checks, "rows": rows}


def section_of(report: "Report", place: int, reports: "Sequence[Report]") -> dict[str, Any]:
    """Prepare the section of one subject.

    Parameters
    ----------
    report : Report
    place : int
        Its place among the reports of the page, from 1; it begins every id of the section.
    reports : sequence of Report
        All of the page: what their environments have in common stands above.

    Returns
    -------
    dict
        What ``subject.html.jinja`` shows.
    """
    ids = f"subject-{place}"
    common = dict(environment_of(reports))
    own = [(name, value) for name, value in _environment(report).items() if name not in common]
    few = len(reports) <= _FEW_SUBJECTS
    findings = _findings(report, ids, figures=_MOST_FIGURES_OF_EVIDENCE // len(reports) if few else 0)
    figures = figures_of(report, ids)
    for figure in () if few else figures[1:]:
        figure["svg"] = ""
    return {
        "id": ids,
        "name": str(report.subject.get("name", "")),
        "sum": counted(report),
        "outcome": "skip" if report.subject.get("control") else _outcome(report),
        "control": bool(report.subject.get("control")),
        "traits": _traits(report) + own,
        "dtypes": dtypes_of(report),
        "verdicts": _verdicts(report),
        "failing": [each["check"] for each in findings],
        "findings": findings,
        "figures": figures,
        "profile": _profile(report),
        "skipped": _skipped(report),
    }


def _outcome(report):
    severities = {finding.severity for finding in report.findings}
    return "fail" if "error" in severities else "warn" if severities else "pass"


def _environment(report):
    where = dict(report.environment)
    libraries = where.pop("libraries", {})
    contract = where.pop("contract", {})
    entries = {named(name): shown(value) for name, value in where.items()}
    entries["libraries"] = ", ".join(f"{name} {number}" for name, number in libraries.items())
    promised = [f"{named(name)} {shown(each)}" for name, each in contract.items() if shown(each)]
    entries["contract"] = "; ".join(promised)
    return {name: value for name, value in entries.items() if value}


def _traits(report):
    """List what was found out about how the subject is called."""
    subject = report.subject
    outputs = subject.get("output_dtypes") or {}
    differing = [f"{outputs[dtype]} for {dtype}" for dtype in outputs if outputs[dtype] != dtype]
    source = subject.get("source")
    unit = subject.get("lse_unit")
    traits = {
        "arrays": subject.get("arrays"),
        "layout": subject.get("layout"),
        "dtypes": ", ".join(subject.get("dtypes") or ()),
        "output": ", ".join(differing),
        "options": ", ".join(key if key == name else f"{key} as {name}" for key, name in _options(subject)),
        "lse": (f"returned, base {unit}" if unit else "returned")
        if subject.get("returns_lse")
        else "not returned",
        "causal mask": subject.get("causal"),
        "source": f"{source['file']}, line {source['line']}" if source else None,
    }
    return [(name, words) for name, value in traits.items() if (words := cut(shown(value), _LONG))]


def _options(subject):
    return (subject.get("options") or {}).items()


def _verdicts(report):
    rows = []
    for check in checks_of([report]):
        kind = kind_of(check)
        cells = []
        for dtype in dtypes_of(report):
            seen = outcome(report, check, dtype)
            word, mark = _WORDS[seen]
            cells.append({"outcome": seen, "word": word if seen else "", "mark": mark})
        rows.append({"check": check, "question": kind.question if kind else "", "cells": cells})
    return rows


def _findings(report, ids, figures):
    """Group findings by check, those that differ in dtype only as one, with the evidence of each dtype."""
    left = figures
    checks: dict[str, list[dict[str, Any]]] = {}
    groups = by_dtype(report.findings, lambda f: (f.check, f.severity, f.message, f.remedy))
    for number, (group, dtypes) in enumerate(groups, 1):
        finding = group[0]
        figure = evidence_svg(finding, f"{ids}-e{number}-") if left else None
        left -= figure is not None
        checks.setdefault(finding.check, []).append(
            {
                "outcome": "fail" if finding.severity == "error" else "warn",
                "severity": finding.severity,
                "message": finding.message,
                "remedy": finding.remedy,
                "dtypes": dtypes,
                "evidence": _evidence(group),
                "figure": figure,
                "figure_dtype": finding.dtype if len(dtypes) > 1 else "",
            }
        )
    return [
        {"check": check, "kind": kind_of(check), "findings": findings} for check, findings in checks.items()
    ]


def _evidence(group):
    """List a row a piece of evidence: a cell for all dtypes where they agree, else one for each."""
    rows = []
    for name in dict.fromkeys(name for finding in group for name in finding.evidence):
        words = [cut(_whole(finding.evidence.get(name)), _LONG) for finding in group]
        if any(words):
            rows.append((named(name), words[:1] if len(set(words)) == 1 else words))
    return rows


def _whole(value):
    """Write evidence for a page, which has more room than a terminal: mappings in mappings too."""
    if isinstance(value, dict):
        written = ((name, _whole(each)) for name, each in value.items())
        return "; ".join(f"{named(name)}: {words}" for name, words in written if words)
    return shown(value, most=24)


def _profile(report):
    """List facts by name, those that are the same in several dtypes as one."""
    facts = [
        (name, dtype, fact)
        for dtype, every in report.profile.items()
        for name, fact in every.items()
        if name not in _NOT_IN_THE_PROFILE
    ]
    groups: dict[Any, list[str]] = {}
    for name in dict.fromkeys(name for name, _, _ in facts):
        for other, dtype, fact in facts:
            if other == name:
                words = _fact(name, fact.value)
                key = (named(name), words, f"{100 * fact.confidence:.0f} %", cut(fact.evidence, _LONG))
                groups.setdefault(key, []).append(dtype)
    return [(name, dtypes, *rest) for (name, *rest), dtypes in groups.items()]


def _fact(name, value):
    if name == "fingerprint" and isinstance(value, dict):
        value = {case: f"{str(bits)[:12]}…" for case, bits in value.items()}
    return cut(_whole(value), _LONG) or "can't be told"


def _skipped(report):
    """List what was not examined and why; reasons that differ in numbers only, as in shapes, are one."""
    groups: dict[Any, list[Any]] = {}
    for skip in report.skipped:
        groups.setdefault((skip.check, re.sub(r"\d+", "0", skip.reason)), []).append(skip)
    rows = []
    for (check, _), skips in groups.items():
        cases = list(dict.fromkeys(skip.what for skip in skips))
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        dtypes = list(dict.fromkeys(skip.dtype for skip in skips if skip.dtype))
        rows.append((check, cut(cases[0], _LONG) + more, cut(skips[0].reason, _LONG), dtypes))
    return rows
