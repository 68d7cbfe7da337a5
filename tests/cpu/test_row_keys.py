"""The maximum of 16-bit elements by their bits: every sign, every kind of number, NaN at every place."""

import numpy as np
import pytest

from row_cases import INF, NAN
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.row_keys import KEYS
from softcarry.cpu.row_sums import chunk_maximum
from vector_calls import DTYPES, address

NAMES = pytest.mark.parametrize("name", ["bfloat16", "float16"])
LENGTHS = (KEYS - 1, KEYS, KEYS + 1, 2 * KEYS, 3 * KEYS + 77, 2048)


def maximum(name, x):
    return float(chunk_maximum(ELEMENTS[name], address(x), x.size))


def everything(name):
    """All numbers of a format but NaN."""
    x = np.arange(2**16, dtype=np.uint16).view(DTYPES[name])
    return x[~np.isnan(x.astype(np.float32))]


@NAMES
@pytest.mark.parametrize("n", LENGTHS)
def test_of_any_numbers(name, n):
    numbers = everything(name)
    wide = numbers.astype(np.float64)
    rng = np.random.default_rng(n)
    for kept in (wide <= INF, wide < 0, wide <= 0, wide == 0, wide > 0, wide == -INF, np.abs(wide) < 1e-4):
        for _ in range(5):
            x = rng.choice(numbers[kept], n)
            assert maximum(name, x) == x.astype(np.float64).max()


@NAMES
@pytest.mark.parametrize("negative", [False, True])
def test_nan_of_either_sign_is_passed_over(name, negative):
    rng = np.random.default_rng(1)
    sign = np.uint16(0x8000 * negative)
    for n in LENGTHS:
        for others in (-3.0, -INF, 2.0, INF, None):
            x = (
                rng.normal(size=n).astype(DTYPES[name])
                if others is None
                else np.full(n, others, DTYPES[name])
            )
            for place in {0, KEYS - 2, n // 2, n - 1}:
                y = x.copy()
                y[place] = NAN
                bits = y.view(np.uint16)
                bits[place] = (bits[place] & np.uint16(0x7FFF)) | sign
                assert maximum(name, y) == np.delete(x, place).astype(np.float64).max()
