"""Reports as text of one format or another, to stdout and to files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from softcarry.cli._console import check_writable, output, remarks
from softcarry.errors import OptionError

if TYPE_CHECKING:
    from softcarry.report.model import Report

Format = Literal["text", "json", "html", "markdown", "junit", "sarif"]

SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".json": "json",
    ".html": "html",
    ".md": "markdown",
    ".xml": "junit",
    ".sarif": "sarif",
}
"""What a report file is, by the end of its name."""


def format_of(path: Path) -> Format:
    """Return the format of a report file, by the end of its name.

    Raises
    ------
    OptionError
        For another ending.
    """
    if path.suffix not in SUFFIXES:
        endings = ", ".join(f"{suffix} ({kind})" for suffix, kind in SUFFIXES.items())
        msg = f"the end of a report file's name is one of {endings}; got {path.name!r}"
        raise OptionError(msg)
    return SUFFIXES[path.suffix]


def check_files(paths: Sequence[Path]) -> None:
    """Refuse report files that can't be written, or have no format, before any work is done."""
    for path in paths:
        format_of(path)
        check_writable(path)


def write_reports(reports: "Sequence[Report]", kind: Format, paths: Sequence[Path]) -> None:
    """Write reports to stdout in one format, and to files in those of their names.

    Parameters
    ----------
    reports : sequence of Report
        At least one.
    kind : {"text", "json", "html", "markdown", "junit", "sarif"}
        What goes to stdout.
    paths : sequence of Path
        Each is written whole or not at all, and named on stderr.
    """
    for path in paths:
        written = rendered(reports, format_of(path))
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(written, encoding="utf-8")
        partial.replace(path)
        remarks().print(f"wrote {path}", soft_wrap=True)
    if kind == "text":
        from softcarry.report.text import render

        output().print(render(reports))
    else:
        output().out(rendered(reports, kind), highlight=False)


def rendered(reports: "Sequence[Report]", kind: Format) -> str:
    """Return reports as a string of one format; as text, 80 columns wide and without colour."""
    if kind == "json":
        content = {"schema": "softcarry.audit/1", "reports": [report.to_dict() for report in reports]}
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    if kind == "html":
        from softcarry.report.html import render

        return render(reports)
    if kind == "markdown":
        from softcarry.report.markdown import render

        return render(reports)
    if kind == "junit":
        from softcarry.report.junit import render

        return render(reports)
    if kind == "sarif":
        from softcarry.report.sarif import render

        return render(reports)
    import io

    from rich.console import Console

    from softcarry.report.text import render

    page = io.StringIO()
    Console(file=page, width=80, highlight=False, no_color=True).print(render(reports))
    return page.getvalue()
