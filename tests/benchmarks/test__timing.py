"""Interleaving by a clock that only moves when a call says so: order, medians, ratios, repeats, budget."""

import pytest

from softcarry.benchmarks._timing import Spread, Timings, interleave
from softcarry.errors import OptionError


class Bench:
    """A clock, calls that move it, and a record of what was called and slept."""

    def __init__(self, **durations) -> None:
        self.now, self.record = 0.0, []
        self.calls = {name: lambda name=name: self.run(name) for name in durations}
        self.durations = {name: iter(each) for name, each in durations.items()}

    def run(self, name) -> None:
        self.record.append(name)
        self.now += next(self.durations[name])

    def sleep(self, seconds) -> None:
        self.record.append("sleep")
        self.now += seconds

    def interleave(self, **options):
        return interleave(self.calls, clock=lambda: self.now, sleep=self.sleep, **options)


def repeating(*seconds):
    while True:
        yield from seconds


def test_each_round_calls_all_and_every_second_one_in_reverse():
    bench = Bench(a=repeating(1.0), b=repeating(2.0), c=repeating(3.0))
    timings = bench.interleave(least=3, most=3)
    # Twice to warm up; then a pause, a call that is not timed, and the one that is.
    warm = ["a", "a", "b", "b", "c", "c"]
    forward = [word for name in "abc" for word in ("sleep", name, name)]
    backward = [word for name in "cba" for word in ("sleep", name, name)]
    assert bench.record == warm + forward + backward + forward
    for name, each in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        assert timings.seconds[name] == pytest.approx((each,) * 3)
    assert timings.rounds == 3


def test_pauses_and_lead_in_calls_are_not_timed():
    # warm-up 9 and 4, lead-in 50, timed 4: only the last may be seen
    bench = Bench(a=iter([9.0, 4.0, 50.0, 4.0]))
    assert bench.interleave(least=1, most=1).seconds["a"] == pytest.approx((4.0,))


def test_a_short_call_is_repeated_and_the_time_is_that_of_one():
    # 0.5 ms of 2 ms a sample: 4 calls, of which the average is (1 + 2 + 3 + 6) / 4 = 3 ms
    bench = Bench(a=iter([0.0, 0.5e-3, 77.0, 1e-3, 2e-3, 3e-3, 6e-3]))
    assert bench.interleave(least=1, most=1).seconds["a"] == pytest.approx((3e-3,))


def test_a_call_below_the_resolution_of_the_clock_is_made_once():
    bench = Bench(a=repeating(0.0))
    assert bench.interleave(least=2, most=2).seconds == {"a": (0.0, 0.0)}


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 4), (100.0, 7), (1e9, 20)])
def test_rounds_end_with_the_budget_but_not_before_the_least(budget, rounds):
    # A round is 2 x 8 s and a pause of 5 ms: six fit in 100 s, and the seventh, begun within it, is finished.
    bench = Bench(a=repeating(8.0))
    seen = []
    timings = bench.interleave(budget=budget, least=4, most=20, progress=seen.append)
    assert timings.rounds == rounds
    assert seen == list(range(1, rounds + 1))


def test_the_ratio_is_formed_within_rounds_not_of_medians():
    # The machine is 10 times slower in two rounds of three: ratios of medians would say 20 / 40.
    timings = Timings({"ours": (1.0, 40.0, 50.0), "peer": (2.0, 80.0, 10.0)})
    assert timings.ratio("peer", "ours").median == 2.0
    assert timings.spread("peer").median / timings.spread("ours").median == 0.25


def test_the_spread_is_the_median_and_the_quartiles():
    assert Spread.of((5.0, 1.0, 3.0, 2.0, 4.0)) == Spread(2.0, 3.0, 4.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.25, 1.5, 1.75)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(("least", "most"), [(0, 5), (3, 2)])
def test_wrong_numbers_of_rounds_are_refused_before_any_call(least, most):
    bench = Bench(a=repeating(1.0))
    with pytest.raises(OptionError, match=f"got least={least}, most={most}"):
        bench.interleave(least=least, most=most)
    assert bench.record == []
