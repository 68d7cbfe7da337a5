"""What `softcarry.numerics` offers: every public function of its rooms, documented, loaded on first use."""

import importlib
import inspect
import subprocess
import sys

import pytest

from softcarry import numerics

BOUNDS = ("attention_bounds", "planning", "summation_bounds", "swamping")


def public_functions(module):
    home = importlib.import_module(f"softcarry.numerics.{module}")
    return {
        name
        for name, value in vars(home).items()
        if inspect.isfunction(value) and value.__module__ == home.__name__ and not name.startswith("_")
    }


@pytest.mark.parametrize("module", BOUNDS)
def test_everything_public_of_the_bounds_is_offered_and_names_its_source(module):
    names = public_functions(module)
    assert names
    assert names <= set(numerics.__all__)
    for name in names:
        text = inspect.getdoc(getattr(numerics, name))
        for section in ("Parameters", "Returns", "Examples", "References"):
            assert f"\n{section}\n---" in text, (name, section)


def test_the_names_are_listed_and_an_unknown_one_is_an_attribute_error():
    assert set(dir(numerics)) == set(numerics.__all__)
    assert len(numerics.__all__) == len(set(numerics.__all__))
    with pytest.raises(AttributeError, match=r"'softcarry\.numerics' has no attribute 'runing_sum'"):
        numerics.runing_sum  # noqa: B018


@pytest.mark.parametrize(
    "use", ["[getattr(numerics, name) for name in numerics.__all__]", "numerics.plan(n=64)"]
)
def test_names_and_bounds_load_no_compiler(use):
    heavy = "{'numba', 'torch', 'jax', 'matplotlib'}"
    code = f"import sys\nimport softcarry.numerics as numerics\n{use}\nprint({heavy} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
