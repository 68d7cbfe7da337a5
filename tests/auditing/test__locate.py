"""From a name to a subject, and one clear line when there is none."""

import sys

import pytest

from softcarry.auditing._locate import resolve
from softcarry.auditing.subject import Subject
from softcarry.errors import SubjectError

SOURCE = """
from softcarry.auditing import Subject

def kernel(q, k, v): ...

class Kernels:
    @staticmethod
    def inner(q, k, v): ...

declared = Subject(kernel, name="declared", arrays="numpy")
number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_kernels.py").write_text(SOURCE)
    (tmp_path / "broken_kernels.py").write_text("import math\n1 // 0\n")
    (tmp_path / "lacking_kernels.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("own_kernels", "broken_kernels", "lacking_kernels"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own_module")
def test_functions_attributes_and_subjects_are_found():
    assert resolve("own_kernels:kernel").name == "own_kernels:kernel"
    assert resolve("own_kernels:Kernels.inner").name == "own_kernels:Kernels.inner"
    assert resolve("own_kernels:declared").name == "declared"


def test_subjects_and_callables_are_taken_as_they_are():
    subject = Subject(print)
    assert resolve(subject) is subject
    assert resolve(print).kernel is print


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("torch-sdpa-flsh", ("'torch-sdpa-flsh'", "'torch-sdpa-flash'", "module:function")),
        ("zzz", ("'zzz'", "known ones are softcarry")),
        ("no_such_module:kernel", ("'no_such_module'", "install")),
        ("own_kernels:missing", ("own_kernels.py", "'missing'")),
        ("own_kernels:number", ("int", "Subject")),
        ("broken_kernels:kernel", ("raised ZeroDivisionError",)),
        ("lacking_kernels:kernel", ("raised ModuleNotFoundError", "no_such_library")),
        ("own_kernels:", ("module:function",)),
        (":kernel", ("module:function",)),
        ("own_kernels.py:kernel", ("not by a file", " own_kernels:kernel names it")),
        ("folder/own_kernels.py:kernel", ("not by a file", " own_kernels:kernel names it")),
        ("./own_kernels.py", ("not by a file", " own_kernels:function names it")),
    ],
)
def test_what_is_not_there_is_one_clear_line(spec, words):
    with pytest.raises(SubjectError) as caught:
        resolve(spec)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)
