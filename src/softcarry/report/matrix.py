"""Many subjects side by side: a matrix subject × check, then the section of each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softcarry.report.html import page

if TYPE_CHECKING:
    from softcarry.report.model import Report


def render(reports: "Sequence[Report]") -> str:
    """Lay out the page of ``html.render`` with the matrix first, be it of one subject.

    Parameters
    ----------
    reports : sequence of Report
        At least one.

    Returns
    -------
    str
        HTML: for each subject and check the worst outcome over the dtypes and the number of findings, linked
        to the subject's section below.

    Examples
    --------
    >>> from softcarry.report.model import Report
    >>> "Subjects side by side" in render([Report(subject={"name": "mine", "control": False})])
    True
    """
    return page(reports, matrix=True)
