import json
import math

import numpy as np
import pytest

from softcarry.errors import OptionError
from softcarry.numerics.planning import plan


def rounded(x, t):
    """Oracle: x > 0 to t stored bits, exponents unbounded."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(fraction, t + 1)), exponent - t - 1)


def carried(block_sums, t):
    """Oracle: a carry that adds the block sums (rows, updates) in turn, rounding every time."""
    total = np.zeros(len(block_sums))
    for block_sum in block_sums.T:
        total = rounded(total + block_sum, t)
    return total


@pytest.mark.parametrize(
    ("fmt", "worst", "probable", "stall"),
    [("bfloat16", 2, 6, 256), ("float16", 20, 400, 2048), ("float32", 1.7e5, 2.8e10, 2**24)],
)
def test_error_points_at_one_percent_are_not_the_stall_point(fmt, worst, probable, stall):
    """Known figures for n·u ≤ 1 % and √n·u ≤ 1 %, to the digits given."""
    found = plan(n=64, fmt=fmt, tolerance=1e-2)
    digits = 1 if worst < 100 else 2
    assert float(f"{found.worst_case_updates:.{digits}g}") == worst
    assert float(f"{found.probabilistic_updates:.{1 if probable < 1e4 else 2}g}") == probable
    assert found.stall_updates == stall
    text = found.explain()
    assert f"error point: {found.worst_case_updates} updates in the worst case" in text
    assert f"stall point: {stall} updates" in text


def test_bfloat16_at_8192_keys():
    found = plan(n=8192, fmt="bfloat16")
    assert found.safe_key_blocks == (4096, 8192)
    by_block = {option.key_block: option for option in found.options}
    assert [block for block, option in by_block.items() if option.stalls] == [1, 2, 4, 8, 16]
    assert by_block[32].updates == 256
    assert by_block[32].stall_n == 8192
    assert "sum stalls only after 256" in by_block[64].reason
    assert "stops moving after 256" in by_block[8].reason
    assert "likely, not guaranteed" in by_block[2048].reason
    assert by_block[8].probabilistic == math.inf
    assert found.alternatives == ()


@pytest.mark.parametrize(("fmt", "t"), [("bfloat16", 7), ("float16", 10), ("E5M10", 10)])
def test_safe_is_safe_and_stalling_stalls_when_tried(fmt, t):
    n, tolerance = 4096, 1e-2
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.exp(rng.standard_normal((40, n))), rng.random((40, n)), np.ones((1, n))])
    for option in plan(n=n, fmt=fmt, tolerance=tolerance).options:
        block_sums = rows.reshape(len(rows), -1, option.key_block).sum(axis=2)
        errors = np.abs(carried(block_sums, t) / rows.sum(axis=1) - 1)
        assert np.all(errors <= option.worst_case)
        if option.safe:
            assert np.all(errors <= tolerance)
        if option.stalls:
            assert errors[-1] == 1 - option.stall_n / n
        else:
            # Equal terms in blocks of powers of two are exact up to the stall point.
            assert errors[-1] == 0


def test_stall_point_of_rounding_to_nearest_away():
    # From 256 on each update of one term adds two, so that 512 is reached after 256 + 128 updates.
    assert plan(n=64, rounding="nearest-away").stall_updates == 384
    assert plan(n=64, rounding="toward-zero").stall_updates == 256
    assert plan(n=64, rounding="stochastic").stall_updates == math.inf


def test_splits_divide_the_updates_and_add_merges():
    one = plan(n=32768, fmt="float16", key_block=64)
    eight = plan(n=32768, fmt="float16", key_block=64, splits=8)
    assert (one.options[0].updates, eight.options[0].updates) == (512, 64)
    assert (one.options[0].stall_n, eight.options[0].stall_n) == (64 * 2048, 8 * 64 * 2048)
    merged = eight.options[0].worst_case - plan(n=4096, fmt="float16", key_block=64).options[0].worst_case
    # Seven merges of three roundings each, in the carry format.
    assert 0.9 * 7 * 3 * 2.0**-11 < merged < 1.1 * 7 * 3 * 2.0**-11
    assert "a split" in eight.options[0].reason


def test_updates_of_a_split_that_does_not_divide():
    assert plan(n=1001, key_block=10, splits=4).options[0].updates == 26


def test_alternatives_meet_the_tolerance_that_the_options_miss():
    found = plan(n=8192, fmt="bfloat16", key_block=64, tolerance=0.05)
    text = "\n".join(found.alternatives)
    assert found.safe_key_blocks == ()
    assert "a key block of at least 683, for 12 updates" in text
    assert plan(n=8192, fmt="bfloat16", key_block=683, tolerance=0.05).safe_key_blocks == (683,)
    assert "carry l in float32" in text
    # (B + 1)·u/(1 − (B + 1)·u) ≤ 0.05 for B + 1 ≤ 12.
    assert "flush into a float32 sum after 11 updates" in text
    assert "Kahan" in text
    assert "a carry stack in bfloat16" in text
    for line in found.alternatives:
        assert line in found.explain()
    stack = plan(n=8192, fmt="bfloat16", key_block=64, tolerance=0.05, order="carry-stack")
    assert stack.safe_key_blocks == (64,)
    assert stack.stall_updates == math.inf
    two = plan(n=8192, fmt="bfloat16", key_block=64, tolerance=0.05, order="two-level", flush_every=11)
    assert two.safe_key_blocks == (64,)
    assert plan(n=8192, key_block=64, tolerance=0.05, order="two-level", flush_every=12).safe_key_blocks == ()
    # 2u + 2·129·u² = 0.0118
    assert plan(n=8192, key_block=64, tolerance=0.012, order="kahan").safe_key_blocks == (64,)
    assert plan(n=8192, key_block=64, tolerance=0.011, order="kahan").safe_key_blocks == ()


def test_no_alternative_in_a_format_too_coarse_for_the_tolerance():
    found = plan(n=8192, fmt="bfloat16", tolerance=1e-4)
    assert found.worst_case_updates == 0
    assert [line.split(":")[0] for line in found.alternatives] == ["carry l in float32"]


def test_a_carry_that_may_overflow_is_never_safe():
    found = plan(n=100_000, fmt="float16", key_block=[128, 100_000])
    assert found.safe_key_blocks == ()
    assert all("l may reach 100000, above 65504" in option.reason for option in found.options)
    assert all(option.worst_case == math.inf for option in found.options)
    assert any("float32" in line for line in found.alternatives)
    assert plan(n=65504, fmt="float16", key_block=65504).safe_key_blocks == (65504,)


def test_stochastic_rounding_is_judged_by_its_probable_error():
    found = plan(n=4096, fmt="float16", key_block=[16, 64], rounding="stochastic")
    assert found.safe_key_blocks == (16, 64)
    assert all(option.worst_case > found.tolerance for option in found.options)
    strict = plan(n=4096, fmt="float16", key_block=[16, 64], rounding="stochastic", lambda_=2.0)
    assert strict.safe_key_blocks == (64,)
    assert plan(n=64, rounding="up").options[0].probabilistic == math.inf


def test_float64_block_sums_are_as_wide_as_the_carry():
    assert plan(n=2**20, fmt="float64", tolerance=1e-9).safe_key_blocks == tuple(2**i for i in range(21))


def test_key_blocks_are_sorted_and_single():
    assert [option.key_block for option in plan(n=64, key_block=(8, 2, 8)).options] == [2, 8]


def test_plan_as_json():
    found = plan(n=512, rounding="stochastic")
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["stall_updates"] is None
    assert json.loads(text)["safe_key_blocks"] == list(found.safe_key_blocks)
    assert len(json.loads(text)["options"]) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is a whole number of at least 1; got 0"),
        ({"n": -8}, "n is a whole number of at least 1; got -8"),
        ({"n": 8.5}, "n is a whole number of at least 1; got 8.5"),
        ({"n": "8"}, "n is a whole number of at least 1; got '8'"),
        ({"n": math.nan}, "n is a whole number of at least 1; got nan"),
        ({"n": 8, "fmt": "bf16"}, "unknown format 'bf16'"),
        ({"n": 8, "key_block": 0}, "key_block is a whole number of at least 1; got 0"),
        ({"n": 8, "key_block": [4, -1]}, "key_block is a whole number of at least 1; got -1"),
        ({"n": 8, "key_block": []}, "key_block is a whole number, several, or None"),
        ({"n": 8, "tolerance": 0}, "tolerance is a finite number above 0; got 0"),
        ({"n": 8, "tolerance": -1e-3}, "tolerance is a finite number above 0; got -0.001"),
        ({"n": 8, "tolerance": math.nan}, "tolerance is a finite number above 0; got nan"),
        ({"n": 8, "splits": 0}, "splits is a whole number of at least 1; got 0"),
        ({"n": 8, "order": "blocked"}, "order is one of"),
        ({"n": 8, "order": "two-level"}, "needs flush_every="),
        ({"n": 8, "rounding": "nearest"}, "rounding is one of"),
        ({"n": 8, "lambda_": 0.0}, "lambda_ is a finite number above 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(options, message):
    with pytest.raises(OptionError, match=message) as caught:
        plan(**options)
    assert "\n" not in str(caught.value)


def test_the_ladder_ends_at_n():
    assert [option.key_block for option in plan(n=100).options] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert [option.key_block for option in plan(n=64).options] == [1, 2, 4, 8, 16, 32, 64]
    assert [option.key_block for option in plan(n=1).options] == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 10**30}, r"n is at most 2\*\*53.*got 10{30}"),
        ({"n": 100, "splits": 200}, "splits is at most n = 100.*got 200"),
    ],
)
def test_counts_beyond_reason_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        plan(**arguments)
