"""Doubling the keys: every length is checked, with its own keys; ratios are formed round by round."""

import json

import numpy as np
import pytest

import softcarry as sc
from softcarry.benchmarks._attention_inputs import Shape
from softcarry.benchmarks._timing import Spread, Timings
from softcarry.benchmarks.decode_growth import GrowthCase, growth_case, measure_growth

CASE = GrowthCase(Shape(1, 4, 2, 1, 96, 16), 2)


def fake_timing(*seconds):
    def timing(calls, **options):
        assert list(calls) == ["24", "48", "96"]
        return Timings(dict(zip(calls, seconds, strict=True)))

    return timing


def test_the_lengths_are_those_of_the_issue():
    assert growth_case().keys == (8192, 16384, 32768, 65536)
    assert growth_case().shape[:3] == (1, 32, 8)
    assert growth_case(quick=True).keys == (1024, 2048, 4096, 8192)
    assert growth_case().labels == ("doubling", "keys")


def test_ratios_are_medians_of_rounds():
    found = measure_growth(CASE, timing=fake_timing((1.0, 10.0, 2.0), (2.0, 21.0, 3.0), (4.0, 40.0, 7.0)))
    assert [ratio.median for ratio in found.ratios] == [2.0, 2.0]
    assert [each.median for each in found.seconds] == [2.0, 3.0, 7.0]
    assert found.ratios[0] == Spread.of([2.0, 2.1, 1.5])
    assert found.met is True
    data = json.loads(json.dumps(found.to_dict()))
    assert (data["keys"], data["ratios"], data["target"]) == ([24, 48, 96], [2.0, 2.0], 2.2)


@pytest.mark.parametrize(("last", "met"), [(4.4, True), (4.5, False)])
def test_no_doubling_may_cost_more(last, met):
    timing = fake_timing((1.0,), (2.0,), (last,))
    assert measure_growth(CASE, timing=timing).met is met
    assert measure_growth(CASE, timing=timing, judged=False).met is None


def test_each_call_has_its_own_keys(monkeypatch):
    lengths = []
    right = sc.attention

    def recorded(q, k, v):
        lengths.append((k.shape[2], v.shape[2]))
        return right(q, k, v)

    monkeypatch.setattr(sc, "attention", recorded)

    def timing(calls, **options):
        assert options == {"most": 3}
        lengths.clear()
        for call in calls.values():
            call()
        return Timings(dict.fromkeys(calls, (1.0,)))

    measure_growth(CASE, timing=timing, most=3)
    assert lengths == [(24, 24), (48, 48), (96, 96)]


@pytest.mark.parametrize("bad", [24, 48, 96])
def test_a_wrong_answer_of_any_length_is_not_timed(bad, monkeypatch):
    right = sc.attention
    monkeypatch.setattr(sc, "attention", lambda q, k, v: right(q, k, v) + np.float32(k.shape[2] == bad))
    found = measure_growth(CASE, judged=False, timing=lambda *_, **__: pytest.fail("timed"))
    assert (found.status, found.met) == ("wrong", False)
    assert found.reason.startswith(f"output of {bad} keys[")
    assert found.to_dict()["ratios"] == []
