"""Rows of scores that are hard to reduce, the layouts they come in, and both kinds of array."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

NAN, INF = math.nan, math.inf
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
KINDS = ("numpy", "torch")

# On both sides of every width that a vector, an unrolled loop or a block is likely to have.
LENGTHS = (
    *(1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513),
    *(1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 16383, 16384, 16385, 40000, 100003),
)
SHORT = tuple(n for n in LENGTHS if n <= 4097)


def result_dtypes(dtype) -> list[str]:
    """Return the names of the dtypes a result may have: float64 for float64, the others for the others.

    From float64 to a narrower one by way of float32 it would be rounded twice.
    """
    wide = np.dtype(dtype) == np.float64
    return [name for name in DTYPES if (name == "float64") == wide]


def largest(dtype) -> float:
    return float(ml_dtypes.finfo(dtype).max)


def _put(row: np.ndarray, position: int, value: float) -> np.ndarray:
    row[position] = value
    return row


def _live_after(n: int, fraction: float, rng) -> np.ndarray:
    return np.where(np.arange(n) < int(fraction * n), -INF, rng.normal(size=n) * 4)


PATTERNS = {
    "normal": lambda n, rng, top: rng.normal(size=n) * 3,
    "wide": lambda n, rng, top: rng.normal(size=n) * 60,
    "offset": lambda n, rng, top: min(1e8, top / 2) + rng.normal(size=n) * 40,
    "negative offset": lambda n, rng, top: -min(1e8, top / 2) + rng.normal(size=n) * 40,
    "ascending": lambda n, rng, top: np.linspace(-90, 90, n),
    "descending": lambda n, rng, top: np.linspace(90, -90, n),
    "spike first": lambda n, rng, top: _put(rng.normal(size=n), 0, 80.0),
    "spike last": lambda n, rng, top: _put(rng.normal(size=n), n - 1, 80.0),
    "spike inside": lambda n, rng, top: _put(rng.normal(size=n), n // 2 + n // 7, 80.0),
    "equal": lambda n, rng, top: np.full(n, 0.7),
    # terms of 2^-24 beside one of 1: a running sum in float32 that starts with the 1 would lose them all
    "swamped": lambda n, rng, top: _put(np.full(n, -24 * math.log(2)), 0, 0.0),
    "scattered": lambda n, rng, top: _put(
        np.where(rng.random(n) < 0.6, -INF, rng.normal(size=n) * 4), n // 3, 1.5
    ),
    "leading": lambda n, rng, top: _put(_live_after(n, 0.6, rng), n - 1, -2.0),
    "trailing": lambda n, rng, top: _put(_live_after(n, 0.6, rng)[::-1].copy(), 0, -2.0),
    "extremes": lambda n, rng, top: np.where(np.arange(n) % 3 == 1, top, -top),
    "one above the least": lambda n, rng, top: _put(np.full(n, -top), n // 2, 0.0),
    "the least": lambda n, rng, top: np.full(n, -top),
    "subnormal": lambda n, rng, top: (np.arange(n) * 7 % 5 - 2.0) * 5e-324,
    "all masked": lambda n, rng, top: np.full(n, -INF),
}


def pattern(name: str, n: int, dtype, seed: int = 0) -> np.ndarray:
    """Return scores (n,) of a named pattern in a dtype."""
    rng = np.random.default_rng([seed, n])
    dtype = np.dtype(dtype)
    row = PATTERNS[name](n, rng, largest(dtype))
    if name == "subnormal":
        row = (np.arange(n) * 7 % 5 - 2.0) * float(ml_dtypes.finfo(dtype).smallest_subnormal)
    return row.astype(dtype)


def _unaligned(values: np.ndarray) -> np.ndarray:
    records = np.zeros(values.shape, np.dtype([("pad", "u1"), ("score", values.dtype)]))
    records["pad"] = 255
    records["score"] = values
    return records["score"]


def _within(values: np.ndarray, shape: tuple[int, ...], index) -> np.ndarray:
    """Return the view at an index of an array of NaN, filled with the values: reading beyond it shows."""
    view = np.full(shape, NAN, values.dtype)[index]
    view[...] = values
    return view


def layouts(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return views that equal the values (rows, n), each in another layout of memory."""
    rows, n = values.shape
    return {
        "C": np.ascontiguousarray(values),
        "F": np.asfortranarray(values),
        "padded rows": _within(values, (rows, n + 3), np.s_[:, :n]),
        "offset by one": _within(values, (rows, n + 1), np.s_[:, 1:]),
        "every third": _within(values, (rows, 3 * n), np.s_[:, 1::3]),
        "every second row": _within(values, (2 * rows, n), np.s_[::2]),
        "steps of both": _within(values, (3 * rows, 2 * n), np.s_[2::3, ::2]),
        "transposed padding": _within(values.T, (n, rows + 5), np.s_[:, 2:-3]).T,
        "reversed": _within(values, (rows, n), np.s_[:, ::-1]),
        "rows reversed": _within(values, (rows, n), np.s_[::-1]),
        "reversed steps": _within(values, (rows, 2 * n), np.s_[::-1, ::-2]),
        "unaligned": _unaligned(values),
        "unaligned columns": _unaligned(values.T).T,
    }


# Axes of different lengths, so that rows taken in a wrong order show. Among the orders of (13, 2, 4) and the
# reversals of (5, 3, 7) are eight rows of which the first and last lie as far apart as if all were adjacent.
BOXES = ((13, 2, 4), (5, 2, 3), (5, 3, 7), (3, 17, 4), (2, 3, 40), (3, 2, 4, 5))


def memory_orders(values: np.ndarray) -> list[np.ndarray]:
    """Return arrays equal to the values whose axes lie in memory in every order there is."""
    orders = list(itertools.permutations(range(values.ndim)))
    return [np.ascontiguousarray(values.transpose(p)).transpose(np.argsort(p)) for p in orders]


def reversals(values: np.ndarray) -> list[np.ndarray]:
    """Return arrays equal to the values of which some axes run backwards in memory, in every combination."""
    views = []
    for steps in itertools.product((1, -1), repeat=values.ndim):
        index = tuple(slice(None, None, step) for step in steps)
        views.append(np.ascontiguousarray(values[index])[index])
    return views


TORCH_LAYOUTS = (
    *("C", "F", "padded rows", "offset by one", "every third", "every second row", "steps of both"),
    "transposed padding",
)


def as_kind(kind: str, array: np.ndarray) -> Any:
    """Return the array itself, or a torch tensor that shares its memory and strides."""
    if kind == "numpy":
        return array
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_numpy(result) -> np.ndarray:
    """Return a result of either kind as a NumPy array of the same bits."""
    if isinstance(result, torch.Tensor):
        if result.dtype == torch.bfloat16:
            return result.view(torch.int16).numpy().view(DTYPES["bfloat16"])
        return result.numpy()
    return np.asarray(result)


def rows_along(array: np.ndarray, axis: int = -1) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield the index of every row without its axis, and the row."""
    moved = np.moveaxis(array, axis, -1)
    for index in np.ndindex(moved.shape[:-1]):
        yield index, moved[index]


def assert_same(got, want) -> None:
    """Fail unless two results agree in kind, shape, dtype and value to the bit, all NaN counting as one."""
    assert isinstance(got, torch.Tensor) == isinstance(want, torch.Tensor)
    got, want = as_numpy(got), as_numpy(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
        return
    wide, other = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(wide, other)
    live = ~np.isnan(wide)
    np.testing.assert_array_equal(np.signbit(wide)[live], np.signbit(other)[live])
