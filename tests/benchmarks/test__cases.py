"""A case is checked before it is timed, and judged by its targets; peers that are missing are skipped."""

import json
from dataclasses import replace

import numpy as np
import pytest

from softcarry.benchmarks import _cases
from softcarry.benchmarks._arithmetic import Multiplier
from softcarry.benchmarks._bandwidth import Reader
from softcarry.benchmarks._cases import Calls, Case, Measured, measure, select
from softcarry.benchmarks._timing import Spread, Timings
from softcarry.errors import OptionError

BUFFER = np.arange(1000, dtype=np.float32)


def fake_case(*, wrong="", library="numpy", target=None, share_target=None, traffic=4000):
    def call():
        raise AssertionError("only the timing makes the calls")

    calls = Calls(call, call, lambda: wrong, BUFFER, traffic)
    return Case(
        "group", "name", (10, 100), "float32", "numpy.x", library, lambda: calls, target, share_target
    )


def fake_timing(ours, peer, read):
    def timing(calls, **options):
        assert list(calls) == ["softcarry", "peer", "read"]
        return Timings({"softcarry": ours, "peer": peer, "read": read})

    return timing


def measured(case, **options):
    timing = fake_timing((1.0, 2.0, 4.0), (3.0, 8.0, 8.0), (0.5, 1.5, 3.5))
    with Reader(1) as read:
        return measure(case, read, timing=timing, **options)


def test_ratio_and_share_are_medians_of_rounds():
    found = measured(fake_case(traffic=8000))
    assert found.status == "timed"
    assert found.rounds == 3
    # Rounds: peer/ours 3, 4, 2; read/ours 0.5, 0.75, 0.875, and twice the bytes of the input are moved.
    assert found.ratio == Spread(2.5, 3.0, 3.5)
    assert found.share == Spread(1.25, 1.5, 1.625)
    assert (found.seconds.median, found.peer_seconds.median, found.read_seconds.median) == (2.0, 8.0, 1.5)
    assert found.read_bytes == 4000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cases_that_count_operations_are_held_against_multiply_adds(dtype):
    made = []

    def timing(calls, **options):
        assert list(calls) == ["softcarry", "peer", "fma"]
        made.append(calls["fma"]())
        return Timings({"softcarry": (1.0, 2.0, 4.0), "peer": (3.0, 8.0, 8.0), "fma": (0.5, 1.5, 3.5)})

    with Reader(1) as read, Multiplier(1, turns=10) as multiply:
        operations = 2 * multiply.operations(dtype)
        calls = Calls(int, int, str, BUFFER.astype(dtype), 4000, operations)
        case = replace(fake_case(target=3.0, share_target=1.5), build=lambda: calls)
        found = measure(case, read, multiply=multiply, timing=timing)
        assert made == [multiply(dtype)]
    # Rounds: multiply-adds over ours 0.5, 0.75, 0.875, and a call makes twice as many.
    assert found.share == Spread(1.25, 1.5, 1.625)
    assert (found.operations, found.read_seconds, found.met) == (operations, None, True)
    assert found.to_dict()["operations"] == operations


def test_cases_that_count_none_are_held_against_the_read_all_the_same():
    with Multiplier(1, turns=10) as multiply:
        found = measured(fake_case(), multiply=multiply)
    assert (found.operations, found.read_seconds.median) == (0, 1.5)


def test_the_plain_read_reads_the_input():
    read_of = []

    def timing(calls, **options):
        read_of.append(calls["read"]())
        return Timings(dict.fromkeys(calls, (1.0,)))

    with Reader(1) as read:
        measure(fake_case(), read, timing=timing)
    assert read_of == [int(BUFFER.view(np.uint64).sum())]


@pytest.mark.parametrize(
    ("target", "share_target", "met"),
    [
        (None, None, None),
        (3.0, None, True),
        (3.01, None, False),
        (None, 0.75, True),
        (None, 0.76, False),
        (3.0, 0.76, False),
        (3.01, 0.75, False),
        (3.0, 0.75, True),
    ],
)
def test_every_target_must_be_met(target, share_target, met):
    case = fake_case(target=target, share_target=share_target)
    assert measured(case).met is met
    assert measured(case, judged=False).met is None


def test_a_wrong_answer_is_not_timed_and_never_passes():
    def timing(calls, **options):
        raise AssertionError("timed")

    with Reader(1) as read:
        found = measure(fake_case(wrong="it is 3", target=1.0), read, judged=False, timing=timing)
    assert (found.status, found.reason, found.met) == ("wrong", "it is 3", False)


def test_a_missing_peer_is_skipped_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("softcarry.benchmarks._machine.find_spec", lambda name: None)
    for library, command in (("torch", "pip install 'softcarry[torch]'"), ("scipy", "pip install scipy")):
        case = replace(fake_case(library=library, target=1.0), build=lambda: pytest.fail("built"))
        with Reader(1) as read:
            found = measure(case, read)
        assert (found.status, found.met) == ("skipped", None)
        assert found.reason == f"{library} is not installed: {command}"


def test_the_options_reach_the_timing():
    seen = {}

    def timing(calls, **options):
        seen.update(options)
        return Timings(dict.fromkeys(calls, (1.0,)))

    with Reader(1) as read:
        measure(fake_case(), read, timing=timing, budget=0.25, least=2)
    assert seen == {"budget": 0.25, "least": 2}


def test_plain_data_for_json():
    data = json.loads(json.dumps(measured(fake_case(target=2.0, share_target=0.9)).to_dict()))
    assert data["seconds"] == 2.0
    assert data["ratio"] == 3.0
    assert data["ratio_quartiles"] == [2.5, 3.5]
    assert data["share"] == 0.75
    assert data["met"] is False
    skipped = Measured(fake_case(), "skipped", "why").to_dict()
    assert (skipped["seconds"], skipped["ratio"], skipped["reason"]) == (None, None, "why")
    assert skipped.keys() == data.keys()


def test_selection_by_name_group_or_both():
    cases = [replace(fake_case(), group=group, name=name) for group in "ab" for name in ("x", "y", "xy")]

    def chosen(*words):
        return ["/".join(case.labels) for case in select(cases, list(words))]

    assert chosen("x") == ["a/x", "b/x"]
    assert chosen("b") == ["b/x", "b/y", "b/xy"]
    assert chosen("b/y", "a/x") == ["a/x", "b/y"]
    assert select(cases, None) == cases
    with pytest.raises(OptionError, match=r"\(a, x, y, xy, b\); got 'z'"):
        chosen("x", "z")


def test_the_default_timing_is_the_interleaved_one():
    case = replace(fake_case(), build=lambda: Calls(int, int, str, BUFFER, 4000))
    with Reader(1) as read:
        found = _cases.measure(case, read, least=2, most=2)
    assert found.rounds == 2
    assert found.seconds.median > 0.0
