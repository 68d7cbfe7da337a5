"""What `softcarry.numerics` offers: all of the bounds, loaded on first use."""

import subprocess
import sys

import pytest

from softcarry import numerics
from softcarry.numerics import bounds


def test_everything_public_of_the_bounds_is_offered():
    assert set(bounds.__all__) <= set(numerics.__all__)
    for name in bounds.__all__:
        assert getattr(numerics, name) is getattr(bounds, name)


def test_the_names_are_listed_and_an_unknown_one_is_an_attribute_error():
    assert set(dir(numerics)) == set(numerics.__all__)
    assert len(numerics.__all__) == len(set(numerics.__all__))
    with pytest.raises(AttributeError, match=r"'softcarry\.numerics' has no attribute 'runing_sum'"):
        numerics.runing_sum  # noqa: B018


def test_looking_names_up_loads_no_compiler():
    code = """
import sys
import softcarry.numerics as numerics
for name in numerics.__all__:
    getattr(numerics, name)
print("numba" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
