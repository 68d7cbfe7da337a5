"""The audit: from calls alone, what is right and wrong about somebody's attention kernel."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softcarry.auditing._audit import audit as audit
    from softcarry.auditing.contract import Contract as Contract
    from softcarry.auditing.examination import Examination as Examination
    from softcarry.auditing.sandbox import audit_in_process as audit_in_process
    from softcarry.auditing.subject import Subject as Subject
    from softcarry.report.model import Curve as Curve
    from softcarry.report.model import Fact as Fact
    from softcarry.report.model import Finding as Finding
    from softcarry.report.model import Report as Report
    from softcarry.report.model import Skip as Skip

_HOMES = {
    "Contract": "softcarry.auditing.contract",
    "Curve": "softcarry.report.model",
    "Examination": "softcarry.auditing.examination",
    "Fact": "softcarry.report.model",
    "Finding": "softcarry.report.model",
    "Report": "softcarry.report.model",
    "Skip": "softcarry.report.model",
    "Subject": "softcarry.auditing.subject",
    "audit": "softcarry.auditing._audit",
    "audit_in_process": "softcarry.auditing.sandbox",
}

__all__ = [
    "Contract",
    "Curve",
    "Examination",
    "Fact",
    "Finding",
    "Report",
    "Skip",
    "Subject",
    "audit",
    "audit_in_process",
]


def __getattr__(name):
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOMES[name]), name)
