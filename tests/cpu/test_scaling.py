"""e^x for sums with a term of 1: what it differs by from e^x, and that no host shows in it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from row_cases import INF
from softcarry.cpu.exponential import exp_in_live_sum, exp_in_sum
from softcarry.cpu.memory import ELEMENTS, load_block, store
from vector_calls import address

LOWEST = {"float32": -87.0, "float64": -708.0}
# Stored mantissa bits, and the least exponent of a normal number.
FORMAT = {"float32": (23, -126), "float64": (52, -1022)}
NAMES = pytest.mark.parametrize("name", ["float32", "float64"])


@njit
def _live(element, source, target, count, lanes, size):
    for i in range(0, count, lanes):
        store(element, target + i * size, exp_in_live_sum(load_block(element, source + i * size)))


@njit
def _plain(element, source, target, count, lanes, size):
    for i in range(0, count, lanes):
        store(element, target + i * size, exp_in_sum(load_block(element, source + i * size)))


def results(function, x):
    out = np.empty_like(x)
    assert x.size % 32 == 0
    function(ELEMENTS[x.dtype.name], address(x), address(out), x.size, 128 // x.itemsize, x.itemsize)
    return out


@NAMES
def test_above_its_lowest_it_is_the_other_to_the_bit(name):
    x = np.linspace(LOWEST[name], 0, 2**18).astype(name)
    np.testing.assert_array_equal(results(_live, x), results(_plain, x))


@NAMES
def test_below_it_is_too_small_for_a_sum_of_one(name):
    x = np.full(32, -INF, name)
    x[::2] = np.nextafter(np.dtype(name).type(LOWEST[name]), np.dtype(name).type(-INF))
    x[1::4] = np.finfo(name).min
    got = results(_live, x)
    assert (got == got[0]).all()
    stored, least = FORMAT[name]
    # A normal number; a chunk of 2048 of them is far below half the last place of 1 as float64 has it.
    assert 2.0**least <= got[0]
    assert float(got[0]) * 2048 < 2.0**-60
    assert stored < 60


@NAMES
def test_nan_stays_nan_whatever_its_payload(name):
    bits = np.uint32 if name == "float32" else np.uint64
    stored = FORMAT[name][0]
    infinity = int(np.array(INF, name).view(bits))
    payloads = [2 ** (stored - 1) + p for p in (0, 1, 2, 255, 256, 2**20, 2 ** (stored - 1) - 1)] + [
        1,
        2,
        511,
    ]
    sign = 1 << (8 * np.dtype(name).itemsize - 1)
    nans = np.array([infinity + s + p for s in (0, sign) for p in payloads], bits).view(name)
    x = np.full(64, -1.0, name)
    x[: 3 * nans.size : 3] = nans[: x[: 3 * nans.size : 3].size]
    np.testing.assert_array_equal(np.isnan(results(_live, x)), np.isnan(x))
    assert np.isnan(x).any()


OTHER_HOST = """
    import sys
    import numpy as np
    sys.path.insert(0, sys.argv[1])
    sys.path.insert(0, sys.argv[1] + "/cpu")
    from test_scaling import _live, results

    for name in ("float32", "float64"):
        x = np.linspace(-720, 0, 4096).astype(name)
        sys.stdout.write(results(_live, x).tobytes().hex())
"""


def test_code_for_any_processor_gives_the_same_bits():
    tests = str(Path(__file__).resolve().parents[1])
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_HOST), tests],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    want = b"".join(results(_live, np.linspace(-720, 0, 4096).astype(name)).tobytes() for name in LOWEST)
    assert bytes.fromhex(done.stdout) == want
