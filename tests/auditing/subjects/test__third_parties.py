"""Subjects of other packages are found by entry points, loaded late, and can't take a name that is taken."""

import subprocess
import sys

import pytest

PACKAGE = """
from pathlib import Path

import numpy as np

Path("imported").touch()
import softcarry


def mean_of_values(q, k, v):
    return np.broadcast_to(v.mean(axis=2, keepdims=True), q.shape[:3] + v.shape[-1:])


def mean():
    return softcarry.Subject(mean_of_values, name="their-mean", arrays="numpy", dtypes=("float64",))


def no_subject():
    return 3
"""

ENTRY_POINTS = """
[softcarry.subjects]
their-mean = their_package:mean
broken = their_package:no_such_function
no-subject = their_package:no_subject
softcarry = their_package:mean
"""


@pytest.fixture
def installed(tmp_path):
    """A folder that holds a package with entry points, as pip would install it."""
    (tmp_path / "their_package.py").write_text(PACKAGE)
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def run(folder, code):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_they_are_listed_last_and_not_imported(installed):
    out = run(
        installed,
        "from softcarry.auditing.subjects import KNOWN\nprint(*list(KNOWN)[-3:], KNOWN['their-mean'])",
    )
    assert out[0].startswith("broken no-subject their-mean ")
    assert "a subject of their-package" in out[0]
    assert not (installed / "imported").exists()


def test_one_is_audited_in_its_own_dtypes(installed):
    code = """
import softcarry as sc
report = sc.audit("their-mean", only="REF")
print(report.subject["name"], [verdict.dtype for verdict in report.verdicts], report.ok)
"""
    assert run(installed, code) == ["their-mean ['float64'] False"]


def test_names_of_softcarrys_own_are_not_taken_over(installed):
    code = "from softcarry.auditing.subjects import KNOWN; print(KNOWN['softcarry'].factory)"
    assert run(installed, code) == ["softcarry.auditing.subjects.softcarry_reference:reference"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "subject 'broken' does not load: AttributeError"),
        ("no-subject", "subject 'no-subject' is no Subject: their_package:no_subject returned a int"),
    ],
)
def test_a_broken_one_harms_only_itself(installed, name, message):
    code = f"""
import softcarry as sc
from softcarry.auditing.subjects import load_subject
try:
    load_subject({name!r})
except sc.SoftcarryError as error:
    print(error)
"""
    assert run(installed, code)[0].startswith(message)
