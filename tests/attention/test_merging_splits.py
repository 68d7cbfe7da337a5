"""Carries of pieces of the keys, merged, against the whole; sinks; and rescaling that is put off.

Tolerances. Merging s carries adds `merge_bound(s)` to the errors of l and o, which the master bound counts
as ``splits``: per merge an exponential, a difference and a product with a sum. A rescale threshold τ leaves m
behind the maximum by at most τ. Then o and l hold e^τ times as much at most, which changes no relative error,
and each s − m lies in [−(max − s), τ]: rounding it errs by u·τ more at most, and so does |m| in the residual
of an exponential in base 2. `attention_agreement.row_bounds` adds both to the error of each score.
"""

import itertools

import numpy as np
import pytest

import softcarry as sc
from attention_agreement import assert_carry, assert_output, bounds_of, working_name
from attention_cases import DTYPES, Case, as_kind, as_numpy, assert_same_bits, data, of_kind
from attention_oracle import INF, attention_of
from row_cases import KINDS
from softcarry.errors import OptionError

SIZES = ((1, 150), (4, 67), (70, 130))


def pieces_of(tk: int) -> list[list[int]]:
    """Cuts of the keys: halves, one key and the rest, nothing and everything, many."""
    return [
        [0, tk // 2, tk],
        [0, 1, tk],
        [0, tk - 1, tk],
        [0, 0, tk],
        [0, tk, tk],
        [0, 7, 7, 40, tk // 2 + 25, tk],
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tq", "tk"), SIZES)
def test_carries_of_pieces_merge_to_the_whole(kind, dtype, tq, tk):
    for name in ("normal", "positive", "huge", "growing"):
        q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype, data=name).build()
        truth = attention_of(q, k, v)
        given = [as_kind(kind, x) for x in (q, k, v)]
        bounds_by_pieces = {pieces: bounds_of(truth, splits=pieces) for pieces in (2, 5)}
        for cuts in pieces_of(tk):
            parts = [
                sc.attention_carry(given[0], given[1][:, :, first:last], given[2][:, :, first:last])
                for first, last in itertools.pairwise(cuts)
            ]
            bounds = bounds_by_pieces[len(parts)]
            assert_carry(sc.Carry.merge(*parts), truth, bounds)
            backward = sc.Carry.merge(*parts[::-1])
            assert_carry(backward, truth, bounds)
            output = as_numpy(backward.output)
            # The carry's own output is a division more, in the working format.
            room = bounds.output + 2.0**-23 * np.abs(truth.output.astype(np.float64)) + 1e-45
            assert (np.abs(output.astype(truth.output.dtype) - truth.output) <= room).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tq", "tk"), SIZES)
def test_pieces_with_masks_bias_and_softcap(dtype, tq, tk):
    """Each piece takes its columns of the mask; causality, windows and ALiBi are written as these."""
    rng = np.random.default_rng(5)
    q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype).build()
    mask, bias = rng.random((2, 1, tq, tk)) < 0.6, rng.normal(size=(4, 1, tk)).astype(np.float32)
    mask[:, :, ::3] = np.arange(tk) >= tk // 2
    truth = attention_of(q, k, v, mask=mask, bias=bias, softcap=4.0)
    for cuts in pieces_of(tk):
        parts = [
            sc.attention_carry(
                *(q, k[:, :, first:last], v[:, :, first:last]),
                mask=mask[..., first:last],
                bias=bias[..., first:last],
                softcap=4.0,
            )
            for first, last in itertools.pairwise(cuts)
        ]
        assert_carry(sc.Carry.merge(*parts), truth, bounds_of(truth, splits=len(parts)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tq", "tk"), SIZES)
def test_carries_without_keys_change_no_bit(dtype, tq, tk):
    q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype).build()
    whole = sc.attention_carry(q, k, v)
    for empty in (
        sc.attention_carry(q, k[:, :, :0], v[:, :, :0]),
        sc.attention_carry(q, k, v, mask=np.zeros((), bool)),
        sc.attention_carry(q, k, v, kv_lengths=[0, 0]),
    ):
        assert_same_bits(empty.merge(whole), whole)
        assert_same_bits(whole.merge(empty), whole)
        assert_same_bits(sc.Carry.merge(empty, whole, empty), whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 2, 3, 8, 70, 1000])
def test_splits_stay_within_the_bound(kind, dtype, splits):
    """More of them than keys too: pieces without keys are empty carries."""
    for tq, tk in (*SIZES, (3, 5), (33, 1), (2, 0)):
        for options in ({}, {"causal": True}, {"sinks": np.array([0.1, -INF, 5.0, -80.0], np.float32)}):
            q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype, data="growing").build()
            truth = attention_of(q, k, v, **options)
            bounds = bounds_of(truth, splits=splits)
            given = [as_kind(kind, x) for x in (q, k, v)]
            turned = of_kind(kind, options)
            assert_carry(sc.attention_carry(*given, splits=splits, **turned), truth, bounds)
            assert_output(as_numpy(sc.attention(*given, splits=splits, **turned)), truth, bounds)


def sinks_as_carry(sinks, like):
    """(m = sink, l = 1, o = 0) of every row; a sink of −inf is empty."""
    m = np.broadcast_to(sinks[:, None], like.m.shape).astype(like.m.dtype)
    return sc.Carry(m.copy(), np.where(m == -INF, 0, 1).astype(m.dtype), np.zeros_like(like.o))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [None, 1, 4])
@pytest.mark.parametrize(("tq", "tk"), SIZES)
def test_sinks_are_a_carry_that_is_merged_once(dtype, splits, tq, tk):
    sinks = np.array([0.25, -INF, 9.0, -40.0], np.float32)
    for options in ({}, {"causal": True}, {"mask": np.random.default_rng(3).random((tq, tk)) < 0.1}):
        q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype).build()
        truth = attention_of(q, k, v, sinks=sinks, **options)
        bounds = bounds_of(truth, splits=2 if splits is None else splits + 1)
        without = sc.attention_carry(q, k, v, splits=splits, **options)
        within = sc.attention_carry(q, k, v, splits=splits, sinks=sinks, **options)
        assert_carry(within, truth, bounds)
        assert_carry(without.merge(sinks_as_carry(sinks, without)), truth, bounds)
        # A head whose sink is −inf has the bits of a call without sinks.
        for name in ("m", "l", "o"):
            assert_same_bits(getattr(within, name)[:, 1], getattr(without, name)[:, 1])


def staircase(step: float, tq: int, tk: int, dtype: str):
    """Scores that rise by a step every 8 keys, and stay put for the last quarter."""
    rng = np.random.default_rng(11)
    q, k, v = data("normal", rng, (1, 2, tq, 8), (1, 2, tk, 8), (1, 2, tk, 9), DTYPES[dtype])
    q[...], k[..., 0] = 0, 0
    q[..., 0] = np.sqrt(8)
    rise = np.minimum(np.arange(tk) // 8, 3 * tk // 32) * step
    k[..., 0] = (rise - rise.max() / 2).astype(k.dtype)
    return q, k, v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0, 8.0, 12.0, 20.0])
def test_rescaling_put_off_stays_within_its_bound(dtype, threshold):
    """Steps below the threshold, at it, and above; all of them in one key block, and over many."""
    for tq, tk in ((1, 150), (5, 700), (70, 260), (65, 700)):
        for step in (0.0, 0.4, 1.0, threshold, 1.01 * threshold + 0.1):
            q, k, v = staircase(min(step, 40.0), tq, tk, dtype)
            truth = attention_of(q, k, v)
            for splits in (None, 3):
                bounds = bounds_of(truth, splits=splits or 1, threshold=threshold)
                options = {"rescale_threshold": threshold, "splits": splits}
                carry = sc.attention_carry(q, k, v, **options)
                assert_carry(carry, truth, bounds)
                assert (
                    carry.m.astype(np.float64) >= truth.m.astype(np.float64) - threshold - bounds.m_below
                ).all()
                assert_output(sc.attention(q, k, v, **options), truth, bounds)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_with_and_without_a_threshold_lie_within_both_bounds(dtype):
    for name in ("normal", "huge", "growing", "offset"):
        for tq, tk in SIZES:
            q, k, v, options = Case(
                2, 4, 2, tq, tk, 16, 24, dtype, data=name, options=("mask", "sinks")
            ).build()
            truth = attention_of(q, k, v, **options)
            always = sc.attention(q, k, v, **options).astype(truth.output.dtype)
            for threshold in (1.0, 10.0, 20.0):
                lazy = sc.attention(q, k, v, rescale_threshold=threshold, **options)
                allowed = (
                    bounds_of(truth, splits=2).rounded
                    + bounds_of(truth, splits=2, threshold=threshold).rounded
                )
                assert (np.abs(lazy.astype(always.dtype) - always) <= allowed).all()


def test_the_bound_of_a_threshold_is_of_the_size_of_its_effect():
    """τ = 80 costs 2·80·u·(1 + log2 e/2) of a weight at most: a bound that grew as e^τ would hold nothing."""
    q, k, v = staircase(1.0, 3, 150, "float32")
    truth = attention_of(q, k, v)
    growth = bounds_of(truth, threshold=20.0).output / bounds_of(truth).output
    assert growth.max() < 40


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_thresholds_that_may_overflow_are_refused(dtype):
    q, k, v, _ = Case(1, 2, 1, 3, 5, 8, 8, dtype).build()
    for threshold in (20.5, 1e4, INF, np.nan, -1.0):
        for call in (sc.attention, sc.attention_carry):
            with pytest.raises(OptionError, match="rescale_threshold") as caught:
                call(q, k, v, rescale_threshold=threshold)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_carries_feed_everything_that_takes_carries(dtype):
    """Their lse, their form of output and lse, ragged groups of them."""
    q, k, v, _ = Case(2, 4, 2, 5, 90, 16, 24, dtype).build()
    truth, whole = attention_of(q, k, v), sc.attention_carry(q, k, v)
    bounds = bounds_of(truth, splits=3)
    assert str(whole.lse.dtype) == working_name(DTYPES[dtype])
    parts = [sc.attention_carry(q, k[:, :, i : i + 30], v[:, :, i : i + 30]) for i in (0, 30, 60)]
    through_lse = sc.Carry.merge(*(sc.Carry.from_lse(part.output, part.lse) for part in parts))
    # (output, lse) and back rounds m once more for each part, which weighs u·|lse| in every weight.
    u = 2.0 ** -(53 if dtype == "float64" else 24)
    extra = 4 * u * (1 + np.abs(truth.lse.astype(np.float64)).max()) * np.abs(v.astype(np.float64)).max()
    off = np.abs(through_lse.output.astype(truth.output.dtype) - truth.output)
    assert (off <= bounds.output + 2 * extra).all()
