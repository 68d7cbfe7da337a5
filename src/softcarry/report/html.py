"""Audit reports as one HTML page that needs nothing else: no script, no network, no other file.

The page is laid out by the templates beside this module; ``_sections`` prepares what they show.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from softcarry.report._sections import environment_of, matrix_of, section_of
from softcarry.report._words import as_written
from softcarry.report.kinds import KINDS

if TYPE_CHECKING:
    from jinja2 import Environment

    from softcarry.report.model import Report


def render(reports: "Sequence[Report]") -> str:
    """Lay out audit reports as a page for a browser.

    Parameters
    ----------
    reports : sequence of Report
        At least one. Of several, a matrix subject × check comes first.

    Returns
    -------
    str
        HTML, light or dark as the reader's system is, and printable. Where it ran; the verdicts; for each
        subject its findings with evidence, kind of fault and remedy, its figures, its profile, and what was
        not examined. Equal reports give equal pages; all names and values are escaped.

    Examples
    --------
    >>> from softcarry.report.model import Report
    >>> page = render([Report(subject={"name": "<mine>", "dtypes": ["float32"], "control": False})])
    >>> page.startswith("<!doctype html>"), "&lt;mine&gt;: nothing found" in page
    (True, True)
    """
    return page(reports, matrix=len(reports) > 1)


def page(reports: "Sequence[Report]", *, matrix: bool) -> str:
    """Lay out a page with or without the matrix subject × check.

    Parameters
    ----------
    reports : sequence of Report
        At least one.
    matrix : bool

    Returns
    -------
    str
        HTML.
    """
    reports = as_written(reports)
    content: dict[str, Any] = {
        "title": "softcarry audit",
        "environment": environment_of(reports),
        "matrix": matrix_of(reports) if matrix else None,
        "kinds": KINDS,
        "sections": [section_of(report, place, reports) for place, report in enumerate(reports, 1)],
    }
    return _templates().get_template("page.html.jinja").render(content)


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("softcarry.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
