"""Audit reports as SARIF 2.1.0, the form in which code hosts take findings of analysis tools.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0, 2020; the section numbers
below are its own.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from softcarry.report._summary import checks_of
from softcarry.report._words import as_written
from softcarry.report.kinds import kind_of

if TYPE_CHECKING:
    from softcarry.report.model import Finding, Report


def render(reports: "Sequence[Report]") -> str:
    """Write audit reports as a SARIF log.

    Parameters
    ----------
    reports : sequence of Report
        At least one.

    Returns
    -------
    str
        JSON: one run, a rule for each check, with the kind of fault as its help, and a result for each
        finding. A result has the place of the kernel where the report gives one. Findings of a control,
        which is wrong on purpose, are suppressed.

    Examples
    --------
    >>> from softcarry.report.model import Report
    >>> json.loads(render([Report(subject={"name": "mine"})]))["version"]
    '2.1.0'
    """
    reports = as_written(reports)
    # Numbers that JSON lacks are strings here, as in the report itself.
    plain = [report.to_dict() for report in reports]
    checks = checks_of(reports)
    driver: dict[str, Any] = {"name": "softcarry", "rules": [_rule(check) for check in checks]}
    version = reports[0].environment.get("softcarry")
    if version:
        driver["version"] = str(version)
    results = [
        _result(content, finding, evidence["evidence"], checks)
        for content, written in zip(reports, plain, strict=True)
        for finding, evidence in zip(content.findings, written["findings"], strict=True)
    ]
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(reports)],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"environment": plain[0]["environment"]},
    }
    log = {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rule(check):
    kind = kind_of(check)
    if kind is None:
        return {"id": check}
    faults = [f"{fault.reference}: {fault.what}" for fault in kind.faults]
    links = [f"- [{fault.reference}]({fault.url}): {fault.what}" for fault in kind.faults]
    like = "Public reports of this kind of fault:"
    return {
        "id": check,
        "shortDescription": {"text": kind.question},
        "fullDescription": {"text": kind.meaning},
        "help": {
            "text": "\n".join([kind.meaning, *([like, *faults] if faults else [])]),
            "markdown": "\n".join([kind.meaning, *(["", like, "", *links] if links else [])]),
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {
            "tags": ["attention", "numerics"],
            "faults": [fault.reference for fault in kind.faults],
        },
    }


def _invocation(reports):
    """Say when it ran, and whether every subject's process lived (3.20)."""
    lived = not any(finding.check == "RUN" for report in reports for finding in report.findings)
    invocation: dict[str, Any] = {"executionSuccessful": lived}
    when = str(reports[0].environment.get("time", ""))
    if when.endswith("+00:00"):
        invocation["startTimeUtc"] = when.removesuffix("+00:00") + "Z"
    return invocation


def _result(
    report: "Report", finding: "Finding", evidence: dict[str, Any], checks: list[str]
) -> dict[str, Any]:
    name = str(report.subject.get("name", ""))
    identity = "\n".join((name, finding.check, finding.dtype, finding.message))
    result: dict[str, Any] = {
        "ruleId": finding.check,
        "ruleIndex": checks.index(finding.check),
        "level": finding.severity,
        "message": {"text": f"{name}, {finding.dtype}: {finding.message}. Remedy: {finding.remedy}."},
        "partialFingerprints": {"finding/v1": sha256(identity.encode()).hexdigest()},
        "properties": {
            "subject": name,
            "dtype": finding.dtype,
            "evidence": evidence,
            "remedy": finding.remedy,
        },
    }
    source = report.subject.get("source")
    if source:
        # Relative to the folder that the host knows as the root of the sources (3.4).
        place = {"uri": quote(source["file"].replace("\\", "/")), "uriBaseId": "%SRCROOT%"}
        region = {"startLine": source["line"]}
        result["locations"] = [{"physicalLocation": {"artifactLocation": place, "region": region}}]
    if report.subject.get("control"):
        result["suppressions"] = [{"kind": "external", "justification": "a control: wrong on purpose"}]
    return result
