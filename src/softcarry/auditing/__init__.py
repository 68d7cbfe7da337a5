"""The audit: from calls alone, what is right and wrong about somebody's attention kernel."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softcarry.auditing._audit import audit as audit
    from softcarry.auditing.contract import Contract as Contract
    from softcarry.auditing.examination import Examination as Examination
    from softcarry.auditing.report import Curve as Curve
    from softcarry.auditing.report import Fact as Fact
    from softcarry.auditing.report import Finding as Finding
    from softcarry.auditing.report import Report as Report
    from softcarry.auditing.report import Skip as Skip
    from softcarry.auditing.subject import Subject as Subject

_HOMES = {
    "Contract": "contract",
    "Curve": "report",
    "Examination": "examination",
    "Fact": "report",
    "Finding": "report",
    "Report": "report",
    "Skip": "report",
    "Subject": "subject",
    "audit": "_audit",
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
]


def __getattr__(name):
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
