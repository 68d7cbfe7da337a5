import inspect
import subprocess
import sys

import softcarry.numerics.bounds as bounds


def test_every_public_name_is_here_and_documented_with_an_example_and_its_source():
    for name in bounds.__all__:
        value = getattr(bounds, name)
        text = inspect.getdoc(value)
        assert text, name
        if inspect.isfunction(value):
            for section in ("Parameters", "Returns", "Examples", "References"):
                assert f"\n{section}\n---" in text, (name, section)


def test_nothing_public_is_left_out():
    public = {name for name, value in vars(bounds).items() if callable(value) and not name.startswith("_")}
    assert public == set(bounds.__all__)


def test_error_analysis_brings_no_compiler_along():
    heavy = "{'numba', 'torch', 'jax', 'matplotlib'}"
    code = f"import sys, softcarry.numerics.bounds as b; b.plan(n=64); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
