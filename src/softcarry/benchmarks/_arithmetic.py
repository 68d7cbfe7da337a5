"""The limit that products are held against: multiply-adds that never leave the registers, by all threads.

Each thread fuses a ← a·x + y in twelve registers in turn. No step waits for another within a turn, and twelve
cover what a processor of today has under way: two results a cycle, each ready after four cycles.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit

from softcarry.cpu.simd import Vector, fma, intrinsic, lane_sum, splat
from softcarry.errors import OptionError

_TURNS = 2**22
"""Turns of one call, some 10 ms. Below 2^24, up to which float32 counts without a gap."""

_REGISTER = 64 if llvm.get_host_cpu_features().get("avx512f") else 32
"""Bytes of a register; where they are smaller, as on NEON, there are twice as many."""
_VECTORS = 3


def _vector(number: Any) -> Vector:
    """Return the type of four registers."""
    return Vector(number, 4 * _REGISTER * 8 // number.bitwidth)


@intrinsic
def _counted_lanes(typingctx, number):
    """Return 0, 1, 2, … in the lanes of four registers of the type of a number."""
    vector = _vector(number)

    def generate(context, builder, signature, arguments):
        return ir.Constant(vector.llvm, [float(lane) for lane in range(vector.lanes)])

    return vector(number), generate


@njit(nogil=True, cache=True)
def _multiply_add(factor, addend, turns):
    first = _counted_lanes(factor)
    x, y = splat(first, factor), splat(first, addend)
    # Three that differ: of equal ones the compiler would keep one.
    second = fma(first, x, y)
    third = fma(second, x, y)
    for _ in range(turns):
        first = fma(first, x, y)
        second = fma(second, x, y)
        third = fma(third, x, y)
    return lane_sum(first + second + third)


class Multiplier:
    """Makes multiply-adds in registers, by a fixed number of threads that stay alive between calls.

    Parameters
    ----------
    threads : int
        How many, at least 1; the calling thread is one of them.
    turns : int
        Of the loop, in each call.

    Raises
    ------
    OptionError
        If there is to be no thread.

    Examples
    --------
    >>> with Multiplier(2, turns=10) as multiply:
    ...     multiply(np.float32) > 0.0, multiply.operations(np.float32) == 2 * multiply.operations(np.float64)
    (True, True)
    """

    def __init__(self, threads: int, *, turns: int = _TURNS) -> None:
        if threads < 1:
            msg = f"a Multiplier has at least 1 thread; got {threads}"
            raise OptionError(msg)
        self.threads, self._turns = threads, turns
        self._helpers = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def __enter__(self) -> "Multiplier":
        return self

    def __exit__(self, *_: object) -> None:
        if self._helpers is not None:
            self._helpers.shutdown()

    def __call__(self, dtype: Any) -> float:
        """Run the loop once in each thread.

        Parameters
        ----------
        dtype : dtype
            Of the arrays that a kernel would take: float64 is multiplied in float64, all else in float32.

        Returns
        -------
        float
            The sum of what is in the registers at the end, which are counted up by 1 a turn.
        """
        one = _working(dtype).type(1.0)
        arguments = (_multiply_add, one, one, self._turns)
        waiting = [self._helpers.submit(*arguments) for _ in range(self.threads - 1)] if self._helpers else []
        return float(_multiply_add(one, one, self._turns)) + sum(float(each.result()) for each in waiting)

    def operations(self, dtype: Any) -> int:
        """Return the floating-point operations of a call: a multiply-add is two."""
        lanes = 4 * _REGISTER // _working(dtype).itemsize
        return 2 * _VECTORS * lanes * self._turns * self.threads


def _working(dtype: Any) -> "np.dtype[Any]":
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)
