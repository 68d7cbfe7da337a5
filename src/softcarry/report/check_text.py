"""Reports of ``softcarry check`` for a person at a terminal: each fault with its smallest failing input.

Everything fits 80 columns. Colour repeats what a word says already, so nothing is lost without it.
"""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from softcarry.report.model import Finding, Report

_LINES = ("input", "came", "right")


def render(report: Report) -> RenderableType:
    """Lay out the report of one building block.

    Parameters
    ----------
    report : Report
        Of ``softcarry.auditing.blocks.check``.

    Returns
    -------
    rich renderable
        What was called and how; every finding with its input, what came, the right value, the remedy and its
        source; what is right; what was not asked, and why; the sum.

    Examples
    --------
    >>> from rich.console import Console
    >>> report = Report(subject={"name": "mine", "dtypes": ["float64"]})
    >>> Console(width=80).print(render(report).renderables[-1])
    mine: nothing found
    """
    parts: list[RenderableType] = [_head(report)]
    parts += [_finding(finding) for finding in report.findings]
    parts += _rest(report)
    parts.append(_conclusion(report))
    return Group(*parts)


def _head(report):
    facts = {name: fact.value for each in report.profile.values() for name, fact in each.items()}
    kind, called = facts.pop("building block", "function"), facts.pop("called with", "?")
    article = "an" if kind[0] in "aeiou" else "a"
    head = Text.assemble((report.subject["name"], "bold"), f", {article} {kind}, called with {called}")
    for name, value in facts.items():
        if value is not None:
            words = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
            head.append(f"; {name}: {words}", style="dim")
    return head


def _finding(finding: Finding):
    word, style = ("FAIL", "bold red") if finding.severity == "error" else ("warn", "yellow")
    head = Text.assemble((word, style), f" {finding.check}  {finding.message}")
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(overflow="fold")
    # The audit's own findings have other evidence, which is for softcarry audit to show.
    for name in _LINES:
        if isinstance(finding.evidence.get(name), str):
            rows.add_row(name, Text(finding.evidence[name]))
    rows.add_row("remedy", Text(finding.remedy, style="italic"))
    if isinstance(finding.evidence.get("source"), str):
        rows.add_row("see", Text(finding.evidence["source"], style="dim"))
    return Group(Padding(head, (1, 0, 0, 2)), Padding(rows, (0, 0, 0, 7)))


def _rest(report):
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(overflow="fold")
    right = [verdict.check for verdict in report.verdicts if verdict.outcome == "pass"]
    if right:
        rows.add_row("right", Text(", ".join(right)))
    reasons: dict[str, list[str]] = {}
    for skip in report.skipped:
        names = reasons.setdefault(skip.reason, [])
        if skip.check not in names:
            names.append(skip.check)
    for reason, names in reasons.items():
        rows.add_row("not asked", Text(f"{', '.join(names)}: {reason}"))
    return [Padding(rows, (1, 0, 1, 2))] if rows.row_count else []


def _conclusion(report):
    counts = {kind: sum(f.severity == kind for f in report.findings) for kind in ("error", "warning")}
    words = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items() if count]
    style = "red" if counts["error"] else "yellow" if counts["warning"] else "green"
    return Text(f"{report.subject['name']}: {', '.join(words) or 'nothing found'}", style=style)
