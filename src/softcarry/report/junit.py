"""Audit reports as JUnit XML, the form in which CI services take test results."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softcarry.report._summary import checks_of, dtypes_of, outcome
from softcarry.report._words import as_written, counted, named, shown
from softcarry.report.kinds import kind_of

if TYPE_CHECKING:
    from softcarry.report.model import Finding, Report


def render(reports: "Sequence[Report]") -> str:
    """Write audit reports as JUnit XML.

    Parameters
    ----------
    reports : sequence of Report
        At least one.

    Returns
    -------
    str
        A test suite for each subject, with the environment as its properties, and a test case for each check
        and dtype. Errors are failures, with evidence, kind of fault and remedy; warnings are output of a
        test case that passes; what was not examined is skipped, with the reason. A control, which is wrong
        on purpose, has no failures: what was found is output of a skipped case. Times are not measured.

    Examples
    --------
    >>> from softcarry.report.model import Report, Verdict
    >>> report = Report(subject={"name": "mine"}, verdicts=(Verdict("LSE", "float32", "pass"),))
    >>> '<testcase classname="mine" name="LSE float32" />' in render([report])
    True
    """
    root = ET.Element("testsuites", name="softcarry audit")
    for report in as_written(reports):
        root.append(_suite(report))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report):
    suite = ET.Element("testsuite", name=str(report.subject.get("name", "")))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report):
        ET.SubElement(properties, "property", name=name, value=value)
    for check in checks_of([report]):
        for dtype in dtypes_of(report):
            ended = outcome(report, check, dtype)
            if ended:
                suite.append(_case(report, check, dtype, ended))
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", "0")
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    when = report.environment.get("time")
    if when:
        # The schema's timestamps are without a zone; ours are UTC.
        suite.set("timestamp", str(when)[:19])
    return suite


def _properties(report):
    """List the environment, the libraries one by one, and the sum."""
    for name, value in report.environment.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", words) for key, each in value.items() if (words := shown(each)))
        elif shown(value):
            yield name, shown(value)
    yield "found", counted(report)


def _case(report, check, dtype, ended):
    name = str(report.subject.get("name", ""))
    case = ET.Element("testcase", classname=name, name=f"{check} {dtype}")
    found = [each for each in report.findings if (each.check, each.dtype) == (check, dtype)]
    errors = [each for each in found if each.severity == "error"]
    control = report.subject.get("control")
    if control and found:
        ET.SubElement(case, "skipped", message="a control: wrong on purpose, not counted")
    elif errors or ended == "fail":
        kind = kind_of(check)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        message = errors[0].message + more if errors else f"{check} failed"
        failure = ET.SubElement(case, "failure", message=message, type=check)
        said = [_told(each) for each in errors]
        if kind is not None:
            said.append(_explained(kind))
        failure.text = "\n\n".join(said)
    elif ended == "skip":
        reasons = dict.fromkeys(
            f"{skip.what}: {skip.reason}"
            for skip in report.skipped
            if (skip.check, skip.dtype) == (check, dtype)
        )
        ET.SubElement(case, "skipped", message="; ".join(reasons) or "not examined")
    told = found if control else [each for each in found if each.severity != "error"]
    if told:
        output = ET.SubElement(case, "system-out")
        output.text = "\n\n".join(_told(each) for each in told)
    return case


def _told(finding: "Finding") -> str:
    lines = [f"{finding.severity}: {finding.message}"]
    lines += [f"  {named(name)}: {shown(each)}" for name, each in finding.evidence.items() if shown(each)]
    return "\n".join([*lines, f"  remedy: {finding.remedy}"])


def _explained(kind):
    lines = [f"kind of fault: {kind.question} {kind.meaning}"]
    return "\n".join([*lines, *(f"  {fault.reference}: {fault.what}" for fault in kind.faults)])
