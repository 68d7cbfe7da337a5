"""Memory of a prefill: both targets are judged, scores that are stored are seen, ours are not."""

import numpy as np
import pytest

from softcarry.benchmarks import _memory, prefill_memory
from softcarry.benchmarks._memory import ExtraMemory
from softcarry.benchmarks.prefill_memory import (
    MeasuredPrefillMemory,
    PrefillMemoryCase,
    measure_prefill_memory,
    prefill_memory_case,
)

MIB = 2**20
measurable = pytest.mark.skipif(
    _memory._obstacle() != "", reason="this system has no high-water mark that can be set back"
)


def measured(half, whole, *, judged=True):
    parts = (ExtraMemory(beyond + 100, 100) for beyond in (half, whole))
    return MeasuredPrefillMemory(PrefillMemoryCase(65536), *parts, judged)


@pytest.mark.parametrize(
    ("half", "whole", "growth", "met"),
    [
        (32 * MIB, 64 * MIB - 1, 2.0, True),
        (32 * MIB, 64 * MIB, 2.0, False),
        (10 * MIB, 22 * MIB, 2.2, True),
        (10 * MIB, 40 * MIB, 4.0, False),
        # Below a MiB there is only noise.
        (0, MIB // 2, 1.0, True),
        (1, 3 * MIB, 3.0, False),
    ],
)
def test_both_targets_are_judged(half, whole, growth, met):
    found = measured(half, whole)
    assert found.growth == pytest.approx(growth)
    assert found.met is met
    assert measured(half, whole, judged=False).met is None
    assert found.to_dict()["beyond_result"] == [half, whole]


def test_what_cannot_be_measured_is_no_miss(monkeypatch):
    unknown = ExtraMemory(None, reason="not here")
    found = MeasuredPrefillMemory(PrefillMemoryCase(64), unknown, unknown)
    assert (found.growth, found.met, found.to_dict()["reason"]) == (None, None, "not here")
    monkeypatch.setattr(prefill_memory, "peak_extra_memory", lambda *_, **__: ExtraMemory(None, reason="so"))
    assert measure_prefill_memory(PrefillMemoryCase(64), threads=1).to_dict()["reason"] == "so"


def test_the_case_is_that_of_the_issue():
    assert (prefill_memory_case().tokens, prefill_memory.TARGET) == (65536, 64 * MIB)
    assert prefill_memory_case(quick=True).tokens == 8192
    assert prefill_memory_case().labels == ("memory", "prefill")


def test_the_call_is_causal_and_the_warm_up_smaller(monkeypatch):
    seen = []

    def attention(q, k, v, *, causal):
        seen.append((q.shape, k.shape, v.shape, q.dtype, causal))
        return q

    monkeypatch.setattr(prefill_memory.sc, "attention", attention)
    monkeypatch.setattr(prefill_memory.sc, "set_num_threads", seen.append)
    warm, call = prefill_memory._prepare(64, 3)
    warm()
    assert prefill_memory._result_bytes(call()) == 64 * 64 * 4
    shapes = [((1, 1, tokens, 64),) * 3 for tokens in (4, 64)]
    assert seen == [3, *((*shape, np.float32, True) for shape in shapes)]


def stores_its_scores(tokens, threads):
    q = np.ones((tokens, 64), np.float32)
    return (lambda: None), (lambda: (q @ q.T) @ q)


@measurable
def test_stored_scores_are_seen(monkeypatch):
    monkeypatch.setattr(prefill_memory, "_prepare", stores_its_scores)
    found = measure_prefill_memory(PrefillMemoryCase(4096), threads=1)
    # 16 MiB and 64 MiB of scores, less what the system has not counted yet.
    assert found.growth > 3.0
    assert found.met is False


@measurable
def test_ours_stays_within_the_target():
    assert measure_prefill_memory(PrefillMemoryCase(4096), threads=2).met is True
