"""A first call runs in fresh processes; the one that fills the cache does not count; failures are told."""

import json

import pytest

from softcarry.benchmarks import start_up
from softcarry.benchmarks._timing import Spread
from softcarry.benchmarks.start_up import StartUp, StartUpCase, measure_start_up, start_up_cases
from softcarry.errors import SoftcarryError


def test_the_process_that_fills_the_cache_does_not_count(monkeypatch):
    seconds = iter([(9.0, 90.0), (0.25, 1.0), (0.75, 0.5), (0.5, 1.25)])
    asked = []

    def first_call(case, threads):
        asked.append((case.name, threads))
        return next(seconds)

    monkeypatch.setattr(start_up, "_first_call", first_call)
    found = measure_start_up(start_up_cases()[0], threads=2, times=3)
    assert asked == [("prefill", 2)] * 4
    assert (found.importing.median, found.calling.median) == (0.5, 1.0)
    # The sum is formed process by process: 1.25, 1.25 and 1.75.
    assert found.together.median == 1.25
    data = json.loads(json.dumps(found.to_dict()))
    assert (data["import_seconds"], data["first_call_seconds"], data["seconds"]) == (0.5, 1.0, 1.25)


@pytest.mark.parametrize(("seconds", "met"), [(1.49, True), (1.5, False)])
def test_the_target_is_of_both_together(seconds, met):
    parts = (Spread.of([0.1]), Spread.of([0.1]), Spread.of([seconds]))
    assert StartUp(StartUpCase("a", 1, 1), *parts).met is met
    assert StartUp(StartUpCase("a", 1, 1), *parts, judged=False).met is None


@pytest.mark.parametrize("case", start_up_cases(), ids=lambda case: case.name)
def test_every_case_runs_in_a_fresh_process(case):
    found = measure_start_up(case, threads=1, times=1)
    assert found.importing.median > 0.0
    assert found.calling.median > 0.0
    assert found.together.median == found.importing.median + found.calling.median


def test_the_process_has_the_threads(monkeypatch):
    monkeypatch.setattr(
        start_up,
        "_PROGRAM",
        "import softcarry as sc, sys; print([sc.get_num_threads(), len(sys.argv[1])])",
    )
    case = StartUpCase("a", 1, 22)
    assert start_up._first_call(case, 3) == (3, len(json.dumps([1, 22, "float32"])))


def test_a_process_that_fails_is_told_with_its_last_words(monkeypatch):
    with pytest.raises(SoftcarryError, match=r"process of start-up/odd failed: TypeError: .*float3"):
        measure_start_up(StartUpCase("odd", 1, 1, "float3"), threads=1)
    monkeypatch.setattr(start_up, "_PROGRAM", "import os; os._exit(7)")
    with pytest.raises(SoftcarryError, match="failed: exit status 7"):
        measure_start_up(StartUpCase("odd", 1, 1), threads=1)
