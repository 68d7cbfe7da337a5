"""Rates are operations, or bytes, over the seconds of the median round."""

import json

import numpy as np

from softcarry.benchmarks._arithmetic import Multiplier
from softcarry.benchmarks._bandwidth import Reader
from softcarry.benchmarks._limits import measure_limits
from softcarry.benchmarks._timing import Timings


def test_the_rates_are_those_of_the_median_round():
    made = []

    def timing(calls, **options):
        made.extend((name, call()) for name, call in calls.items())
        assert options == {"least": 5}
        seconds = {"float32": (1.0, 2.0, 9.0), "float64": (4.0, 3.0, 1.0), "read": (0.5, 0.25, 4.0)}
        return Timings(seconds)

    with Reader(1) as read, Multiplier(2, turns=10) as multiply:
        limits = measure_limits(read, multiply, size=8000, timing=timing, least=5)
        assert limits.fma32 == multiply.operations(np.float32) / 2.0
        assert limits.fma64 == multiply.operations(np.float64) / 3.0
        expected = [multiply(np.float32), multiply(np.float64), read(np.ones(1000))]
    assert (limits.read, limits.read_bytes) == (16000.0, 8000)
    assert made == list(zip(("float32", "float64", "read"), expected, strict=True))
    assert json.loads(json.dumps(limits.to_dict()))["read_bytes_a_second"] == 16000.0
