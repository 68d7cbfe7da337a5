"""Every check has a kind of fault, told in a line, with references that can be followed."""

import re

from report_examples import CHECKS
from softcarry.auditing.probes import CHECKS as PROBES
from softcarry.report.kinds import KINDS, kind_of


def test_every_check_has_a_kind():
    assert {*CHECKS, *PROBES, "RUN", "CONTRACT"} <= set(KINDS)
    assert kind_of("EMPTY") is KINDS["EMPTY"]
    assert kind_of("a check of another version") is None


def test_kinds_are_told_in_a_line_and_name_public_reports():
    for check, kind in KINDS.items():
        assert kind.question.endswith("?"), check
        assert len(kind.question) <= 80, check
        assert kind.meaning.endswith("."), check
        assert kind.faults or check in ("CONTRACT", "PROFILE", "BASELINE")
        references = [fault.reference for fault in kind.faults]
        assert len(references) == len(set(references)) <= 5


def test_every_reference_has_an_address():
    for kind in KINDS.values():
        for fault in kind.faults:
            assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", fault.url)
            assert fault.what[-1] not in ".\n"
            assert fault.url.endswith("/" + fault.reference.split("#")[1])
