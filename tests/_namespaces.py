"""The array libraries that the tests of array functions run over, and the way in and out of each."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

NAMES = ("numpy", "torch", "jax", "array_api_strict")


@dataclass(frozen=True)
class Library:
    """One array library: its namespace, and arrays made of NumPy's."""

    name: str
    xp: Any
    array: Callable[[Any], Any]

    @property
    def has_float64(self) -> bool:
        return self.name != "jax"  # not unless it is switched on for the whole process

    def numpy(self, array: Any) -> np.ndarray:
        if self.name == "torch":
            return array.detach().numpy()
        if self.name == "array_api_strict":
            return np.from_dlpack(array)
        return np.asarray(array)


def library(name: str) -> Library:
    module = pytest.importorskip("jax.numpy" if name == "jax" else name)
    if name == "torch":
        # from_numpy would share memory with read-only arrays, of which torch warns.
        return Library(
            name, importlib.import_module("array_api_compat.torch"), lambda x: module.tensor(np.array(x))
        )
    return Library(name, module, module.asarray)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two NumPy arrays agree to the bit, any NaN equal to any other."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    both_nan = np.isnan(a) & np.isnan(b)
    integers = np.int32 if a.dtype == np.float32 else np.int64
    return bool((both_nan | (a.view(integers) == b.view(integers))).all())
