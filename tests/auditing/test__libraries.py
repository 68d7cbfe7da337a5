"""Arrays cross to a library and back without losing a bit."""

import importlib.util
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from softcarry.auditing._libraries import libraries_to_try, library_of, to_float64, to_library

LIBRARIES = ["numpy", "torch", "jax"]


def all_of_16_bits(dtype):
    """Every finite number of a 16-bit format, as float64."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    with np.errstate(invalid="ignore"):
        numbers = np.arange(2**16, dtype=np.uint16).view(kind).astype(np.float64)
    return numbers[np.isfinite(numbers)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_number_survives(library, dtype):
    numbers = all_of_16_bits(dtype)
    there = to_library(numbers, library, dtype)
    assert library_of(there) == library
    assert dtype in str(there.dtype)
    back = to_float64(there)
    assert back.dtype == np.float64
    np.testing.assert_array_equal(back, numbers)
    np.testing.assert_array_equal(np.signbit(back), np.signbit(numbers))


@pytest.mark.parametrize("library", LIBRARIES)
def test_float32_infinities_and_nan_survive(library):
    numbers = np.array([0.1, np.inf, -np.inf, np.nan, 1e-45, 3e38], np.float32).astype(np.float64)
    np.testing.assert_array_equal(to_float64(to_library(numbers, library, "float32")), numbers)


@pytest.mark.parametrize("library", LIBRARIES)
def test_booleans_stay_booleans(library):
    assert "bool" in str(to_library(np.array([True, False]), library, "bfloat16").dtype)


def test_a_transposed_tensor_comes_back_right():
    import torch

    x = torch.arange(6.0).to(torch.bfloat16).reshape(2, 3).T
    np.testing.assert_array_equal(to_float64(x), [[0, 3], [1, 4], [2, 5]])


def test_a_kernel_can_not_reach_the_caller_through_its_inputs():
    x = np.zeros(3)
    to_library(x, "numpy", "float64")[0] = 1.0
    assert x[0] == 0.0


def test_jax_without_float64_says_so():
    with pytest.raises(TypeError, match="jax_enable_x64"):
        to_library(np.array([0.1]), "jax", "float64")


def test_what_is_no_array_has_no_library():
    assert library_of([1.0]) is None
    assert library_of(None) is None


def test_imported_libraries_are_tried_first():
    code = "from softcarry.auditing._libraries import libraries_to_try; print(*libraries_to_try())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    installed = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
    assert run.stdout.split() == ["numpy", *installed]
    import torch  # noqa: F401

    assert libraries_to_try()[:2] == ["torch", "numpy"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_integers_stay_integers(library):
    there = to_library(np.array([3, 0], np.int32), library, "bfloat16")
    assert "int32" in str(there.dtype)
    assert there.tolist() == [3, 0]


def test_arrays_are_put_where_they_are_asked_for():
    assert to_library(np.zeros(2), "torch", "bfloat16", "meta").device.type == "meta"
    assert to_library(np.zeros(2), "torch", "float32", "cpu").device.type == "cpu"
    (place,) = to_library(np.zeros(2), "jax", "float32", "cpu").devices()
    assert place.platform == "cpu"
    with pytest.raises(RuntimeError, match="nowhere"):
        to_library(np.zeros(2), "jax", "float32", "nowhere")
