"""Audit reports for a person at a terminal: what is wrong, how it shows, what to do.

Everything fits 80 columns. Colour repeats what a word or a mark says already, so nothing is lost without it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from softcarry.report._summary import cell, checks_of, dtypes_of, outcome
from softcarry.report._words import as_written, by_dtype, counted, cut, named, ratio, shown
from softcarry.report.kinds import kind_of
from softcarry.report.model import Curve, Finding, Report

# What a check says in a table of words, its mark in a table of many subjects, and the colour of both.
_OUTCOMES = {
    "pass": ("pass", ".", "green"),
    "fail": ("FAIL", "F", "bold red"),
    "warn": ("warn", "w", "yellow"),
    "skip": ("skip", "-", "dim"),
    "": ("", " ", ""),
}
_LEGEND = ". pass   F fail   w warning   - not examined; the worst over the dtypes"
# Facts that are too long for a line of the profile.
_LONG_FACTS = ("empty row table", "fingerprint sample", "fingerprint", "invariance")


def render(reports: Sequence[Report]) -> RenderableType:
    """Lay out the reports of one run.

    Parameters
    ----------
    reports : sequence of Report
        At least one.

    Returns
    -------
    rich renderable
        Where it ran; a table of checks × dtypes, or of subjects × checks if there are several; every finding
        with its evidence, kind of fault and remedy; the error curves beside their ceilings; the profile and
        the invariances, if there is one subject; what was skipped; the sum.

    Examples
    --------
    >>> from rich.console import Console
    >>> report = Report(subject={"name": "mine", "dtypes": ["float32"], "control": False})
    >>> Console(width=80).print(render([report]).renderables[-1])
    mine: nothing found
    """
    reports = as_written(reports)
    alone = len(reports) == 1
    parts: list[RenderableType] = [_environment(reports[0]), *(_verdicts if alone else _matrix)(reports)]
    for report in reports:
        parts += _findings(report)
    for report in reports:
        parts += _curves(report, lengths=8 if alone else 5)
    if alone:
        parts += _profile(reports[0]) + _invariance(reports[0])
    parts += _skipped(reports)
    parts.append(_conclusion(reports))
    return Group(*parts)


def _environment(report):
    where = report.environment
    libraries = where.get("libraries", {})
    versions = [f"{name} {number}" for name, number in libraries.items()]
    lines = [
        f"softcarry {where.get('softcarry', '?')}, Python {where.get('python', '?')}, {', '.join(versions)}",
        f"{where.get('system', '?')}, {where.get('cpu', '?')}, {where.get('threads', '?')} threads, "
        f"seed {where.get('seed', '?')}",
    ]
    return Text("\n".join(lines), style="dim")


def _verdicts(reports):
    """One subject: a line a check, a column a dtype."""
    (report,) = reports
    dtypes = dtypes_of(report)
    grid = _table(report.subject["name"], *dtypes, left=(report.subject["name"], *dtypes))
    for check in checks_of(reports):
        words = (_OUTCOMES[outcome(report, check, dtype)] for dtype in dtypes)
        grid.add_row(check, *(Text(word, style) for word, _, style in words))
    return [grid]


def _matrix(reports):
    """Many subjects: a line each, a mark a check, the names of the checks written downwards."""
    checks = checks_of(reports)
    height = max(map(len, checks), default=0)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(overflow="fold", max_width=80 - 2 * len(checks) - 2)
    for _ in checks:
        grid.add_column(no_wrap=True)
    for line in range(height):
        grid.add_row("", *(check.rjust(height)[line] for check in checks), style="dim")
    for report in reports:
        marks = (_OUTCOMES[cell(report, check).outcome] for check in checks)
        grid.add_row(Text(report.subject["name"]), *(Text(mark, style) for _, mark, style in marks))
    return ["", grid, Text(_LEGEND, style="dim"), ""]


def _findings(report):
    if not report.findings:
        return []
    control = " (control: wrong on purpose, not counted)" if report.subject.get("control") else ""
    parts: list[RenderableType] = [Text(f"{report.subject['name']}{control}", style="bold")]
    explained = set()
    for group, dtypes in by_dtype(report.findings, lambda each: (each.check, each.severity, each.message)):
        finding = group[0]
        parts.append(_finding(finding, dtypes, explain=finding.check not in explained))
        explained.add(finding.check)
    return parts


def _finding(finding: Finding, dtypes: list[str], explain: bool):
    word, _, style = _OUTCOMES["fail" if finding.severity == "error" else "warn"]
    head = Text.assemble((word, style), f" {finding.check}  {', '.join(dtypes)}")
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, max_width=28, style="dim")
    rows.add_column(overflow="fold")
    for name, value in finding.evidence.items():
        words = shown(value)
        if words:
            rows.add_row(Text(named(name)), Text(cut(words)))
    rows.add_row("remedy", Text(finding.remedy, style="italic"))
    kind = kind_of(finding.check) if explain else None
    if kind is not None:
        reports = ", ".join(fault.reference for fault in kind.faults[:3])
        rows.add_row(
            "kind of fault", Text(kind.meaning + (f" Like {reports}." if reports else ""), style="dim")
        )
    body = Group(Text(finding.message), rows, "")
    return Group(Padding(head, (0, 0, 0, 2)), Padding(body, (0, 0, 0, 4)))


def _curves(report, lengths):
    groups: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in report.curves:
        groups.setdefault((curve.check, curve.title, curve.n), []).append(curve)
    parts: list[RenderableType] = []
    for curves in groups.values():
        parts.append(Text(f"{report.subject['name']}: {curves[0].title}", style="bold"))
        parts.append(_curve_table(curves, lengths))
    return parts


def _curve_table(curves, lengths):
    """One table for the same curve in several dtypes."""
    first = curves[0]
    grid = _table(first.x_label.split()[-1])
    for curve in curves:
        grid.add_column(curve.dtype, justify="right", no_wrap=True)
        if curve.predicted is not None:
            grid.add_column("ceiling", justify="right", no_wrap=True, style="dim")
    for index in _thinned(first.n, lengths):
        cells = [str(first.n[index])]
        for curve in curves:
            cells.append(ratio(curve.measured[index]))
            if curve.predicted is not None:
                cells.append(ratio(curve.predicted[index]))
        grid.add_row(*cells)
    return grid


def _thinned(n, most):
    """Pick at most ``most`` abscissae, evenly spread, the first and last among them."""
    if len(n) <= most:
        return list(range(len(n)))
    return sorted({round(i * (len(n) - 1) / (most - 1)) for i in range(most)})


def _profile(report):
    names = list(dict.fromkeys(name for facts in report.profile.values() for name in facts))
    names = [name for name in names if name not in _LONG_FACTS]
    if not names:
        return []
    grid = _table("inferred", *report.profile, left=("inferred", *report.profile), title="Profile")
    for name in names:
        every = report.profile.values()
        cells = [cut(_fact(facts[name].value), 60) if name in facts else "" for facts in every]
        grid.add_row(Text(named(name)), *map(Text, cells))
    return [grid]


def _fact(value):
    # What is nested deeper than a line can show is in the JSON and on the page.
    return shown(value) or ("see --json" if value else "unknown")


def _invariance(report):
    """Where results depend on what surrounds a row: an axis a line, a dtype a column."""
    seen = {
        dtype: facts["invariance"].value for dtype, facts in report.profile.items() if "invariance" in facts
    }
    if not seen:
        return []
    grid = _table(
        "a row by itself, against", *seen, left=("a row by itself, against", *seen), title="Invariance"
    )
    for axis in dict.fromkeys(axis for axes in seen.values() for axis in axes):
        cells = (axes.get(axis, {}).get("outcome", "") for axes in seen.values())
        grid.add_row(Text(axis), *map(Text, cells))
    return [grid]


def _skipped(reports):
    """One line for each reason and the subjects it holds for; the cases by the first of them."""
    cases: dict[tuple[str, str], list[str]] = {}
    where: dict[tuple[str, str], list[str]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for report in reports:
        for group, dtypes in by_dtype(report.skipped, lambda each: (each.check, each.what, each.reason)):
            skip = group[0]
            # Reasons that differ in numbers only, as in the shapes they name, are one.
            key = (skip.check, re.sub(r"\d+", "0", skip.reason))
            reasons.setdefault(key, skip.reason)
            name = report.subject["name"]
            if dtypes != report.subject.get("dtypes"):
                name += f" ({', '.join(dtypes)})"
            for column, entry in ((cases, skip.what), (where, name)):
                if entry not in column.setdefault(key, []):
                    column[key].append(entry)
    if not cases:
        return []
    grid = _table("skipped", "what and why", "subject", left=("skipped", "what and why", "subject"))
    for key, names in where.items():
        first, *others = cases[key]
        what = first + (f" and {len(others)} more" if others else "")
        grid.add_row(key[0], Text(f"{what}: {reasons[key]}"), Text(", ".join(names)))
    return [grid]


def _conclusion(reports):
    lines = Text()
    for report in reports:
        severities = {finding.severity for finding in report.findings}
        style = "red" if "error" in severities else "yellow" if severities else "green"
        lines.append(f"{report.subject['name']}: {counted(report)}\n", style=style)
    lines.right_crop(1)
    return lines


def _table(*columns: str, left: Iterable[str] = (), title: str | None = None) -> Table:
    grid = Table(
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        # As text: a name with brackets is no markup.
        grid.add_column(Text(name), justify="left" if name in left else "right", overflow="fold")
    return grid
