"""The multiply-adds are as many as are counted, in every thread, for both working types."""

import threading

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from softcarry.benchmarks import _arithmetic
from softcarry.benchmarks._arithmetic import Multiplier
from softcarry.errors import OptionError


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_lane_counts_its_multiply_adds(threads, dtype):
    # Every multiply-add counts its lane up by one: the sum of the lanes counts them all. Numbers stay below
    # 2^14, their sum over at most 192 lanes below 2^24: exact in float32.
    sums, operations = [], []
    for turns in (0, 1, 1000):
        with Multiplier(threads, turns=turns) as multiply:
            sums.append(multiply(dtype))
            operations.append(multiply.operations(dtype))
    assert operations[0] == 0
    assert [after - sums[0] for after in sums] == [made / 2 for made in operations]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, "float32"])
def test_all_but_float64_is_multiplied_in_float32(dtype):
    with Multiplier(1, turns=10) as multiply:
        assert multiply.operations(dtype) == 2 * multiply.operations(np.float64)
        assert multiply(dtype) == multiply(np.float32) != multiply(np.float64)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_threads_are_those_asked_for(threads, monkeypatch):
    barrier, used = threading.Barrier(threads), set()

    def multiply_add(factor, addend, turns):
        barrier.wait(timeout=30)
        used.add(threading.get_ident())
        return factor

    monkeypatch.setattr(_arithmetic, "_multiply_add", multiply_add)
    with Multiplier(threads) as multiply:
        assert multiply(np.float32) == threads
    assert len(used) == threads
    assert threading.get_ident() in used


def test_the_loop_itself_touches_no_memory():
    # Compiled again: of what comes from the cache there is no assembly to read.
    compiled = njit(nogil=True)(_arithmetic._multiply_add.py_func)
    compiled(np.float32(1), np.float32(1), 1)
    (assembly,) = compiled.inspect_asm().values()
    fused = [line for line in assembly.splitlines() if "vfmadd" in line]
    if not fused:
        pytest.skip("no fused multiply-adds of x86 to look at")
    assert len(fused) >= 12
    assert not any("(" in line for line in fused)


def test_no_thread_is_refused():
    with pytest.raises(OptionError, match="at least 1 thread; got 0"):
        Multiplier(0)
