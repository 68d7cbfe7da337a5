"""The table of known subjects loads nothing, and says what is missing."""

import subprocess
import sys

import pytest

from softcarry.auditing.subjects import KNOWN, _table, load_subject
from softcarry.errors import MissingDependencyError, SubjectError


def test_the_table_and_its_availability_import_no_library():
    code = """
import sys
from softcarry.auditing.subjects import KNOWN
assert [entry.available for entry in KNOWN.values()]
print(*sorted({"numba", "torch", "jax"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_subject_loads_as_the_table_says(name):
    if not KNOWN[name].available:
        pytest.skip(f"{KNOWN[name].requires} is not installed: {KNOWN[name].install}")
    try:
        subject = load_subject(name)
    except MissingDependencyError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        pytest.skip(f"beyond its module it needs more: {error}")
    assert subject.name == name
    assert subject.dtypes == KNOWN[name].dtypes
    assert subject.control == KNOWN[name].control


def test_only_the_labelled_controls_are_controls():
    controls = [name for name in KNOWN if KNOWN[name].control]
    assert controls == ["control-bfloat16-carry", "control-numpy-softmax"]


def test_a_missing_library_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(_table, "find_spec", lambda name: None)
    assert not KNOWN["torch-sdpa-flash"].available
    assert KNOWN["softcarry"].available
    with pytest.raises(MissingDependencyError, match=r'needs torch.*pip install "softcarry\[torch\]"'):
        load_subject("torch-sdpa-flash")


def test_an_unknown_name_gives_close_ones():
    with pytest.raises(SubjectError, match="did you mean 'torch-sdpa-math'"):
        load_subject("torch-sdpa-maths")
