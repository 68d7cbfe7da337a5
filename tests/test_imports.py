"""Importing softcarry, or asking for help, loads no heavy library; and these tests can fail."""

import subprocess
import sys

import pytest

HEAVY = ("numba", "torch", "jax", "matplotlib")

_REPORT = f"import sys; print(*sorted(m for m in {HEAVY!r} if m in sys.modules))"


def heavy_modules_after(code: str) -> set[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after running ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_REPORT}"], capture_output=True, text=True, check=True, timeout=120
    )
    return set(run.stdout.splitlines()[-1].split())


def test_import_loads_nothing_heavy():
    assert heavy_modules_after("import softcarry") == set()


def test_every_public_module_name_is_lazy():
    assert heavy_modules_after("import softcarry as sc; dir(sc); sc.numerics; sc.Carry") == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["audit", "--help"],
        ["plan", "--help"],
        ["bench", "--help"],
        ["passes", "--help"],
    ],
)
def test_help_loads_nothing_heavy(arguments):
    code = f"""
from softcarry.cli import main
try:
    main({arguments!r})
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
"""
    assert heavy_modules_after(code) == set()


def test_the_check_can_fail():
    assert heavy_modules_after("import numba") == {"numba"}


def test_a_kernel_does_load_numba():
    """The laziness is real: numba is loaded by the first compiled call and not before."""
    assert "numba" in heavy_modules_after(
        "import softcarry as sc; sc.numerics.running_sum([1.0, 2.0], 'bfloat16')"
    )
