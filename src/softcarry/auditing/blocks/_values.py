"""Numbers on their way into a function, out of it, and before a reader."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np

from softcarry.auditing._calling import MalformedResultError
from softcarry.auditing._libraries import library_of, to_float64, to_library

LISTS = "list"
"""The arrays of plain Python: lists of floats."""


def libraries() -> list[str]:
    """List the arrays to try a function with: those of torch come last where it would have to be imported.

    A function that is written for torch has imported it, and importing it takes seconds.
    """
    ready = ["numpy", *(["torch"] if "torch" in sys.modules else []), LISTS]
    return ready + [name for name in ("torch",) if name not in ready and find_spec(name) is not None]


def hand_over(values: Any, library: str, dtype: str = "float64") -> Any:
    """Turn nested numbers into the arrays of a library, or into lists of Python floats."""
    array = np.asarray(values, np.float64)
    return array.tolist() if library == LISTS else to_library(array, library, dtype)


def numbers(result: Any, what: str) -> np.ndarray:
    """Read numbers as float64, exactly: scalars, nested lists and tuples, and arrays of every library.

    Raises
    ------
    MalformedResultError
        If they are no real numbers.
    """
    try:
        if library_of(result) is not None:
            return to_float64(result)
        if isinstance(result, list | tuple):
            return np.asarray([numbers(each, what) for each in result], np.float64)
        if isinstance(result, str | bytes | None):
            raise TypeError
        return np.asarray(result, np.float64)
    except (TypeError, ValueError):
        msg = f"returned {what} of type {type(result).__name__}, no real numbers"
        raise MalformedResultError(msg) from None


def parts(result: Any, count: int, what: str) -> tuple[Any, ...]:
    """Take a result of several parts apart: a tuple, a list, a named tuple or an array.

    Raises
    ------
    MalformedResultError
        If it has another number of parts.
    """
    try:
        found = tuple(result)
    except TypeError:
        found = (result,)
    if isinstance(result, str | dict) or len(found) != count:
        size = "" if len(found) == count else f" with {len(found)} parts"
        msg = f"returned {type(result).__name__}{size} where {what} was expected"
        raise MalformedResultError(msg)
    return found


def text(value: Any) -> str:
    """Write numbers in brief: [0, -inf, 0.5]; long rows by their first few."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple):
        return f"({', '.join(map(text, value))})"
    if isinstance(value, list):
        shown = [text(each) for each in value[:6]]
        return f"[{', '.join(shown)}{', …' if len(value) > 6 else ''}]"
    return _number(float(value), digits=6)


def row_text(values: Sequence[float]) -> str:
    """Write a row of numbers so that it can be typed: [0] * 4096, [0] * 32 + [3]."""
    row = [float(x) for x in values]
    if len(row) <= 8:
        return f"[{', '.join(map(_typed, row))}]"
    runs = [(word, len(list(run))) for word, run in groupby(map(_typed, row))]
    if len(runs) > 4:
        return f"{len(row)} scores {text(row)}"
    return " + ".join(f"[{word}]" + (f" * {count}" if count > 1 else "") for word, count in runs)


def _typed(number):
    return _number(number, digits=8)


def _number(number, digits):
    """Write an integer exactly, as 16777217 or 1e+10, and other numbers with some digits."""
    if not number.is_integer():
        return f"{number:.{digits}g}"
    brief = f"{number:g}"
    return brief if abs(number) >= 2**53 or float(brief) == number else f"{number:.0f}"


def agree(came: Any, right: Any, relative: float, absolute: Any = 0.0) -> bool:
    """Whether numbers are of the same shape, the same NaN and infinities, and near enough elsewhere."""
    came, right = np.asarray(came, np.float64), np.asarray(right, np.float64)
    if came.shape != right.shape:
        return False
    with np.errstate(invalid="ignore"):
        same = (came == right) | (np.isnan(came) & np.isnan(right))
        near = np.abs(came - right) <= relative * np.abs(right) + absolute
        return bool(np.all(same | (near & np.isfinite(came) & np.isfinite(right))))
