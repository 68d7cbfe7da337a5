"""Audit reports for a person at a terminal: what is wrong, how it shows, what to do.

Everything fits 80 columns. Colour repeats what a word says already, so nothing is lost without it.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from softcarry.report.model import Curve, Finding, Report

_WORDS = {
    "pass": ("pass", "green"),
    "fail": ("FAIL", "bold red"),
    "warn": ("warn", "yellow"),
    "skip": ("skip", "dim"),
}


def render(reports: Sequence[Report]) -> RenderableType:
    """Lay out the reports of one run.

    Parameters
    ----------
    reports : sequence of Report
        At least one.

    Returns
    -------
    rich renderable
        Where it ran; a table subject × dtype × check; every finding with its evidence and remedy; the error
        curves beside their ceilings; the profile, if there is one subject; what was skipped; the sum.

    Examples
    --------
    >>> from rich.console import Console
    >>> report = Report(subject={"name": "mine", "dtypes": ["float32"], "control": False})
    >>> Console(width=80).print(render([report]).renderables[-1])
    mine: nothing found
    """
    parts: list[RenderableType] = [_environment(reports[0]), _summary(reports)]
    for report in reports:
        parts += _findings(report)
    for report in reports:
        parts += _curves(report, lengths=8 if len(reports) == 1 else 5)
    if len(reports) == 1:
        parts += _profile(reports[0])
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


def _summary(reports):
    checks = list(dict.fromkeys(verdict.check for report in reports for verdict in report.verdicts))
    grid = _table("subject", "dtype", *checks, left=("subject", "dtype", *checks))
    for report in reports:
        name = report.subject["name"]
        for dtype in report.subject.get("dtypes", ()):
            outcomes = {each.check: each.outcome for each in report.verdicts if each.dtype == dtype}
            words = [Text(*_WORDS[outcomes[check]]) if check in outcomes else "" for check in checks]
            grid.add_row(Text(name), dtype, *words)
            name = ""
    return grid


def _findings(report):
    if not report.findings:
        return []
    control = " (control: wrong on purpose, not counted)" if report.subject.get("control") else ""
    parts: list[RenderableType] = [Text(f"{report.subject['name']}{control}", style="bold")]
    for finding, dtypes in _by_dtype(report.findings, lambda each: (each.check, each.severity, each.message)):
        parts.append(_finding(finding, dtypes))
    return parts


def _finding(finding: Finding, dtypes: list[str]):
    word, style = _WORDS["fail" if finding.severity == "error" else "warn"]
    head = Text.assemble((word, style), f" {finding.check}  {', '.join(dtypes)}")
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, max_width=28, style="dim")
    rows.add_column(overflow="fold")
    for name, value in finding.evidence.items():
        words = _shown(value)
        if words:
            rows.add_row(Text(str(name).replace("_", " ")), Text(_cut(words)))
    rows.add_row("remedy", Text(finding.remedy, style="italic"))
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
            cells.append(_ratio(curve.measured[index]))
            if curve.predicted is not None:
                cells.append(_ratio(curve.predicted[index]))
        grid.add_row(*cells)
    return grid


def _thinned(n, most):
    """Pick at most ``most`` abscissae, evenly spread, the first and last among them."""
    if len(n) <= most:
        return list(range(len(n)))
    return sorted({round(i * (len(n) - 1) / (most - 1)) for i in range(most)})


def _profile(report):
    names = list(dict.fromkeys(name for facts in report.profile.values() for name in facts))
    if not names:
        return []
    grid = _table("inferred", *report.profile, left=("inferred", *report.profile), title="Profile")
    for name in names:
        every = report.profile.values()
        cells = [_cut(_shown(facts[name].value) or "unknown", 60) if name in facts else "" for facts in every]
        grid.add_row(Text(name.replace("_", " ")), *map(Text, cells))
    return [grid]


def _skipped(reports):
    """One line for each reason and the subjects it holds for; the cases by the first of them."""
    cases: dict[tuple[str, str], list[str]] = {}
    where: dict[tuple[str, str], list[str]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for report in reports:
        for skip, dtypes in _by_dtype(report.skipped, lambda each: (each.check, each.what, each.reason)):
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
        counts = {kind: sum(f.severity == kind for f in report.findings) for kind in ("error", "warning")}
        words = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items() if count]
        said = ", ".join(words) or "nothing found"
        if report.subject.get("control"):
            said += " (a control, not counted)"
        style = "red" if counts["error"] else "yellow" if counts["warning"] else "green"
        lines.append(f"{report.subject['name']}: {said}\n", style=style)
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
        grid.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return grid


def _by_dtype(entries: Iterable[Any], key):
    """Entries that differ only in dtype, each with its dtypes, in order of first appearance."""
    groups: dict[Any, list[Any]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return [(group[0], list(dict.fromkeys(each.dtype for each in group))) for group in groups.values()]


def _shown(value: Any, most: int = 8) -> str:
    """Write a value of evidence or of a profile for a reader."""
    if isinstance(value, dict):
        return _entries(value)
    if isinstance(value, (list, tuple)):
        if any(isinstance(each, dict) for each in value):
            most = min(most, 2)
        separator = "; " if any(isinstance(each, (str, dict)) for each in value) else ", "
        words = [_shown(each) or "none" for each in value[:most]]
        return separator.join(words) + (f", … ({len(value)})" if len(value) > most else "")
    if value is None:  # nothing was found out, and nothing is said
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}".replace("-inf", "−inf")
    return str(value)


def _entries(value: dict[Any, Any], most: int = 3) -> str:
    """Write the entries that are known: of many numbers the largest three, of others the first three.

    A mapping inside a mapping is for readers of the JSON.
    """
    known = [(name, each) for name, each in value.items() if not isinstance(each, dict) and _shown(each)]
    chosen = known
    if len(known) > most and all(type(each) in (int, float) for _, each in known):
        chosen = sorted(known, key=lambda entry: -math.inf if math.isnan(entry[1]) else -entry[1])
    left_out = ", …" if len(known) > most else ""
    return ", ".join(f"{name} {_shown(each)}" for name, each in chosen[:most]) + left_out


def _cut(text: str, limit: int = 240) -> str:
    """Cut what would fill the screen; the JSON has all of it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _ratio(error: float) -> str:
    """Write a relative error in six characters: 0.39%, 4.1e-7."""
    if not math.isfinite(error) or error == 0.0:
        return f"{error:.0f}"
    if error >= 1e-4:
        return f"{100.0 * error:.3g}%" if error < 10.0 else f"{error:.1e}"
    mantissa, _, exponent = f"{error:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
