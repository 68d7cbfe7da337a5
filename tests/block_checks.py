"""What the tests of building blocks share."""

from softcarry.auditing.blocks import check


def found(function, kind, **options):
    """The names of the faults that are found, in order."""
    return [finding.check for finding in check(function, kind, **options).findings]


def the_finding(function, kind, name, **options):
    """The finding of that name; an error if there is none."""
    findings = {finding.check: finding for finding in check(function, kind, **options).findings}
    assert name in findings, f"{name} is not among {list(findings)}"
    return findings[name]
