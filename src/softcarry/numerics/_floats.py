"""What the emulation takes in: real numbers that float64 holds exactly, and seeds."""

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softcarry.errors import DTypeError, OptionError

_LARGEST_EXACT_INTEGER = 2**53


def as_float_array(x: ArrayLike) -> tuple[NDArray[np.float64], bool]:
    """``x`` as a float64 array of the same values, and whether it was float32.

    Compiled code sees float64 alone, in memory that it would take without asking for another version of
    itself: contiguous, aligned and writable.
    """
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = (
            f"expected an array of real numbers; got {type(x).__name__}, which NumPy cannot read "
            f"({str(error).splitlines()[0]}): pass it as float32, detached and on the CPU"
        )
        raise DTypeError(msg) from error
    if not _float64_holds(array):
        msg = (
            "expected real numbers that float64 holds (floating point to 64 bits, ml_dtypes, integers to "
            f"2**53); got dtype {array.dtype}: convert the array to float64 first"
        )
        raise DTypeError(msg)
    # A signalling NaN is no reason to warn about.
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.float64, copy=False)
    return np.require(wide, requirements=["C", "A", "W"]), array.dtype == np.float32


def _float64_holds(array: NDArray[Any]) -> bool:
    if array.dtype.kind == "f":
        return array.dtype.itemsize <= 8
    if array.dtype.kind in "iu":
        return bool(np.all(array <= _LARGEST_EXACT_INTEGER) and np.all(array >= -_LARGEST_EXACT_INTEGER))
    if array.dtype.kind != "V":  # how NumPy sees the dtypes of ml_dtypes
        return False
    import ml_dtypes

    try:
        ml_dtypes.finfo(array.dtype)
    except (ValueError, TypeError):
        return False
    return True


def draw_seed(rng: Any) -> np.uint64:
    """64 random bits from a NumPy generator, or the seed given."""
    if isinstance(rng, np.random.Generator):
        return rng.integers(2**64, dtype=np.uint64)
    return as_seed(rng, "rng", "a numpy Generator or an integer seed")


def as_seed(seed: Any, name: str = "seed", expected: str = "an integer") -> np.uint64:
    """``seed`` as 64 bits."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**64:
        msg = (
            f"stochastic rounding needs {name}: expected {expected} from 0 to 2**64 - 1; got {seed!r}: "
            f"pass {name}=0"
        )
        raise OptionError(msg)
    return np.uint64(number)
