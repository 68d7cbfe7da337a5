"""Findings as the text of a failed assertion."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softcarry.report.kinds import KINDS

if TYPE_CHECKING:
    from softcarry.report.model import Finding, Report


def describe_failure(report: "Report", findings: "Sequence[Finding]") -> str:
    """Describe findings for somebody whose test has failed.

    Parameters
    ----------
    report : Report
        Names the subject.
    findings : sequence of Finding
        At least one; those that differ only in dtype are told once.

    Returns
    -------
    str
        One paragraph a finding: check, dtypes, what the kernel does; evidence; remedy; the kind of fault with
        public reports of it.

    Examples
    --------
    >>> from softcarry.report.model import Finding, Report
    >>> finding = Finding("LSE", "error", "the lse is in base 2", {"lse": 1.0}, "multiply by ln 2", "float32")
    >>> print(describe_failure(Report(subject={"name": "mine"}), [finding]).splitlines()[0])
    the attention kernel 'mine' is wrong in 1 way
    """
    told: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        told.setdefault((finding.check, finding.message), []).append(finding)
    ways = f"{len(told)} way{'s' if len(told) > 1 else ''}"
    lines = [f"the attention kernel {report.subject['name']!r} is wrong in {ways}"]
    for (check, message), same in told.items():
        first, dtypes = same[0], ", ".join(dict.fromkeys(finding.dtype for finding in same))
        lines += ["", f"{check} ({dtypes}): {message}"]
        lines += [f"    {name}: {_short(value)}" for name, value in first.evidence.items()]
        lines.append(f"    remedy: {first.remedy}")
        if check in KINDS:
            kind = KINDS[check]
            known = ", ".join(fault.reference for fault in kind.faults[:4])
            lines.append(f"    kind of fault: {kind.meaning}" + (f" (as in {known})" if known else ""))
    return "\n".join(lines)


def _short(value, most=100):
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"
