"""Every check has mutants, kills them, and they stand in the table of the docs.

SOFTCARRY_WRITE_DOCS=1 writes the table anew.
"""

import os

import pytest

from arithmetic_flags import restore_arithmetic
from mutant_table import DOCUMENT, mutants_of, table, what_is_said
from softcarry.auditing.probes import CHECKS

pytest.importorskip("torch")  # some mutants are torch's

LEAST = 3


@pytest.fixture(autouse=True)
def restored_arithmetic():
    """Two mutants leave it changed."""
    yield
    restore_arithmetic()


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_has_mutants(check):
    assert len(mutants_of(check)) >= LEAST


@pytest.mark.parametrize("check", CHECKS)
def test_every_mutant_is_killed_by_its_check(check):
    missed = {}
    for fault, (_, fragment) in mutants_of(check).items():
        said = what_is_said(check, fault)
        restore_arithmetic()
        if not any(fragment in message for message in said):
            missed[fault] = said
    assert missed == {}


def test_the_table_of_the_docs_is_that_of_the_tests():
    if os.environ.get("SOFTCARRY_WRITE_DOCS"):
        DOCUMENT.write_text(table(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == table(), "run once with SOFTCARRY_WRITE_DOCS=1"


def test_a_mutant_that_lives_would_be_seen(monkeypatch):
    from mutants import plain

    monkeypatch.setitem(mutants_of("REF"), "none", (plain, "error"))
    assert what_is_said("REF", "none") == []
