"""Peak extra memory sees what a call takes for a moment, and no more than that."""

from functools import partial

import numpy as np
import pytest

from softcarry.benchmarks import _memory
from softcarry.benchmarks._memory import ExtraMemory, peak_extra_memory

MIB = 2**20

# The kernel counts pages in batches of up to 64, 256 KiB, and the call may touch code not yet loaded.
NOISE = MIB // 2

measurable = pytest.mark.skipif(
    _memory._obstacle() != "", reason="this system has no high-water mark that can be set back"
)


def nothing():
    return None


def touch_and_free(size):
    """Take memory, write to it, and let go of it."""
    np.ones(size, np.uint8)


def keep(size):
    return np.ones(size, np.uint8)


def prepared(call, *, warm=nothing):
    return warm, call


@measurable
def test_a_call_that_takes_nothing_measures_nothing():
    assert peak_extra_memory(partial(prepared, nothing)).peak <= NOISE


@measurable
@pytest.mark.parametrize("size", [2 * MIB, 8 * MIB])
def test_memory_that_is_gone_at_the_end_is_seen(size):
    found = peak_extra_memory(partial(prepared, partial(touch_and_free, size)))
    assert size - NOISE <= found.peak <= size + NOISE
    assert found.reason == ""


@measurable
def test_a_warm_up_that_took_as_much_hides_nothing():
    call = partial(touch_and_free, 8 * MIB)
    found = peak_extra_memory(partial(prepared, call, warm=call))
    assert 8 * MIB - NOISE <= found.peak <= 8 * MIB + NOISE


@measurable
def test_what_only_the_warm_up_takes_does_not_count():
    prepare = partial(prepared, nothing, warm=partial(touch_and_free, 32 * MIB))
    assert peak_extra_memory(prepare).peak <= NOISE


@measurable
def test_the_result_is_told_apart_from_the_rest():
    found = peak_extra_memory(partial(prepared, partial(keep, 4 * MIB)), size=len)
    assert found.result == 4 * MIB
    assert found.peak >= 4 * MIB - NOISE
    assert found.beyond_result <= NOISE


def test_beyond_the_result_is_never_negative():
    assert ExtraMemory(10, 4).beyond_result == 6
    assert ExtraMemory(0, 4).beyond_result == 0


def test_where_it_cannot_be_measured_the_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(_memory, "_STATUS", tmp_path / "status")
    found = peak_extra_memory(partial(prepared, nothing))
    assert found.peak is None
    assert found.beyond_result is None
    assert "measured on Linux with /proc only" in found.reason


@measurable
def test_an_error_of_the_call_comes_back():
    with pytest.raises(ZeroDivisionError):
        peak_extra_memory(partial(prepared, partial(divmod, 1, 0)))
