"""merge_outputs and merge_outputs_ragged against extended precision, and the laws that hold to the bit."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

from merge_oracle import ROUNDING, assert_merged, assert_near, merged, partials, same_bits
from row_cases import KINDS, as_kind, as_numpy, memory_orders, reversals
from softcarry.cpu import merge_work
from softcarry.merging import merge_outputs, merge_outputs_ragged

NAN, INF = math.nan, math.inf
every_dtype = pytest.mark.parametrize("dtype", ROUNDING)
every_base = pytest.mark.parametrize("base", ["e", "2"])
# On both sides of a strip of 8 and of blocks of 16 and 32.
WIDTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 128, 130)


def merge(outputs, lses, kind="numpy", **options):
    """Merge NumPy arrays as arrays of a kind, and return NumPy arrays."""
    result = merge_outputs(as_kind(kind, outputs), as_kind(kind, lses), **options)
    return tuple(map(as_numpy, result))


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        assert same_bits(a, b)


def test_the_oracle_is_mpmath_s():
    outputs, lses = partials(5, (4, 3), "float64", seed=8)
    for base in ("e", "2"):
        want = merged(outputs, lses, base=base)
        with mpmath.workprec(200):
            power = mpmath.exp if base == "e" else lambda x: mpmath.power(2, x)
            for row in range(4):
                terms = [power(mpmath.mpf(float(s))) for s in lses[:, row]]
                total = mpmath.fsum(terms)
                lse = mpmath.log(total) / (mpmath.log(2) if base == "2" else 1)
                assert abs(mpmath.mpf(float(want.lse[row])) - lse) <= 2.0**-52 * abs(lse)
                for j in range(3):
                    column = [
                        t * mpmath.mpf(float(o)) for t, o in zip(terms, outputs[:, row, j], strict=True)
                    ]
                    output = mpmath.fsum(column) / total
                    magnitude = mpmath.fsum(map(abs, column)) / total
                    assert abs(mpmath.mpf(float(want.output[row, j])) - output) <= 2.0**-52 * magnitude


@every_dtype
@every_base
@pytest.mark.parametrize("kind", KINDS)
def test_every_width_and_number_is_within_the_bound(dtype, base, kind):
    for n, dv in itertools.product((1, 2, 3, 8, 33), WIDTHS):
        outputs, lses = partials(n, (11, dv), dtype, seed=dv)
        output, lse = merge(outputs, lses, kind, base=base)
        assert (output.dtype, lse.dtype) == (outputs.dtype, lses.dtype)
        assert_merged(output, lse, outputs, lses, base=base)
        each = merge_outputs(list(as_kind(kind, outputs)), [as_kind(kind, part) for part in lses], base=base)
        assert_same((output, lse), map(as_numpy, each))


@every_dtype
def test_an_lse_of_numbers_of_every_size_is_within_the_bound(dtype):
    outputs, lses = partials(4, (500, 3), dtype, seed=3)
    rng = np.random.default_rng(5)
    lses = (rng.standard_normal(lses.shape) * 10.0 ** rng.uniform(-30, 30, lses.shape[1:])).astype(lses.dtype)
    for base in ("e", "2"):
        assert_merged(*merge(outputs, lses, base=base), outputs, lses, base=base)


@every_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_no_layout_changes_a_bit(dtype, kind):
    outputs, lses = partials(3, (2, 5, 3, 9), dtype)
    want = merge(outputs, lses)
    assert_merged(*want, outputs, lses)
    orders = [o for o in memory_orders(outputs) if o.strides[-1] == o.itemsize]
    pairs = [(o, lses) for o in orders] + [(outputs, s) for s in memory_orders(lses)]
    pairs += [
        (o, s) for o, s in zip(memory_orders(outputs), itertools.cycle(memory_orders(lses)), strict=False)
    ]
    if kind == "numpy":
        pairs += [(o, s) for o, s in zip(reversals(outputs), itertools.cycle(reversals(lses)), strict=False)]
    for o, s in pairs:
        assert_same(merge(o, s, kind), want)
    padded = np.full((3, 2, 5, 3, 12), NAN, outputs.dtype)
    padded[..., 2:11] = outputs
    assert_same(merge(padded[..., 2:11], lses, kind), want)
    # Each partial in a layout of its own.
    mixed = [np.ascontiguousarray(o) for o in outputs]
    mixed[1] = np.asfortranarray(mixed[1])
    mixed[2] = padded[2, ..., 2:11]
    each = merge_outputs([as_kind(kind, o) for o in mixed], [as_kind(kind, s) for s in lses])
    assert_same(map(as_numpy, each), want)


def test_expanded_and_unaligned_partials():
    outputs, lses = partials(4, (1, 6, 40), "float32")
    wide, wide_lse = np.broadcast_to(outputs, (4, 5, 6, 40)), np.broadcast_to(lses, (4, 5, 6))
    assert_same(merge(wide, wide_lse), merge(wide.copy(), wide_lse.copy()))
    records = np.zeros(wide.shape[:-1], np.dtype([("pad", "u1"), ("o", np.float32, 40), ("s", np.float32)]))
    records["o"], records["s"] = wide, wide_lse
    assert_same(merge(records["o"], records["s"]), merge(wide.copy(), wide_lse.copy()))


@pytest.mark.parametrize("kind", KINDS)
def test_results_have_the_order_of_memory_of_the_first_partial(kind):
    outputs, lses = partials(2, (4, 6, 3, 8), "float32")
    views = as_kind(kind, outputs).swapaxes(2, 3), as_kind(kind, lses).swapaxes(2, 3)
    output, lse = merge_outputs(*views)
    assert tuple(output.shape) == (4, 3, 6, 8)
    assert as_numpy(output).swapaxes(1, 2).flags.c_contiguous
    assert as_numpy(lse).swapaxes(1, 2).flags.c_contiguous
    assert_same((as_numpy(output).swapaxes(1, 2), as_numpy(lse).swapaxes(1, 2)), merge(outputs, lses))


@every_dtype
@pytest.mark.parametrize("dv", [3, 40])
def test_an_empty_partial_anywhere_changes_no_bit(dtype, dv):
    outputs, lses = partials(3, (9, dv), dtype)
    lses[0, 0], lses[:, 1] = NAN, -INF
    lses[1, 2] = INF
    outputs[0, 4, 1] = NAN
    garbage = np.resize(np.array([NAN, INF, -INF, 3e4], outputs.dtype), (1, 9, dv))
    nothing = np.full((1, 9), -INF, lses.dtype)
    want = merge(outputs, lses)
    for place in range(4):
        more = np.insert(outputs, place, garbage, axis=0), np.insert(lses, place, nothing, axis=0)
        assert_same(merge(*more), want)


@every_dtype
@every_base
def test_one_live_partial_is_returned_to_the_bit(dtype, base):
    width = {2: np.uint16, 4: np.uint32, 8: np.uint64}
    outputs, lses = partials(1, (300, 17), dtype)
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**63, outputs.shape, dtype=np.uint64).astype(width[outputs.itemsize])
    outputs = bits.view(outputs.dtype)
    bits = rng.integers(0, 2**63, lses.shape, dtype=np.uint64).astype(width[lses.itemsize])
    lses = bits.view(lses.dtype)
    lses[~np.isfinite(lses)] = -0.0
    outputs[0, :4, 0], lses[0, :4] = [-0.0, 0.0, -INF, NAN], [-0.0, 0.0, 1e-38, -1e30]
    assert_same(merge(outputs, lses, base=base), (outputs[0], lses[0]))
    two = (
        np.concatenate(pair)
        for pair in ((outputs, np.full_like(outputs, NAN)), (lses, np.full_like(lses, -INF)))
    )
    assert_same(merge(*two, base=base), (outputs[0], lses[0]))


@every_dtype
def test_rules_of_rows_without_a_finite_lse(dtype):
    outputs = np.array([[1.0], [2.0]], dtype="f4").astype(partials(1, (1, 1), dtype)[0].dtype)
    state = np.float64 if dtype == "float64" else np.float32
    for one, other, want_lse, want in (
        (-INF, -INF, -INF, 0.0),
        (NAN, 0.0, NAN, NAN),
        (NAN, -INF, NAN, NAN),
        (INF, 0.0, INF, NAN),
        (INF, INF, INF, NAN),
        (INF, -INF, INF, NAN),
        (INF, NAN, NAN, NAN),
    ):
        for pair in ((one, other), (other, one)):
            output, lse = merge(outputs[:, None], np.array(pair, state)[:, None])
            np.testing.assert_equal(lse[0], state(want_lse))
            np.testing.assert_equal(float(output[0, 0]), want)
            assert not np.signbit(output[0, 0].astype("f4")) or math.isnan(want)


@every_dtype
@pytest.mark.parametrize("dv", [5, 64])
def test_live_infinities_and_nan_reach_their_values_and_no_others(dtype, dv):
    """However small the weight is, wherever they stand among the values, and whatever the order."""
    outputs, lses = partials(3, (8, dv), dtype)
    lses[...] = np.array([0.0, -1.0, -2000.0])[:, None]
    clean = merge(outputs, lses)
    dirty = outputs.copy()
    dirty[2, 3, 1], dirty[2, 4, 2], dirty[1, 5, 3], dirty[2, 5, 3], dirty[2, 6, dv - 1] = (
        INF,
        -INF,
        INF,
        -INF,
        NAN,
    )
    for order in itertools.permutations(range(3)):
        output, lse = merge(dirty[list(order)], lses[list(order)])
        assert output[3, 1] == INF
        assert output[4, 2] == -INF
        assert np.isnan(output[5, 3])
        assert np.isnan(output[6, dv - 1])
        changed = ~np.isfinite(output.astype("f8"))
        assert changed.sum() == 4
        if order == (0, 1, 2):
            assert same_bits(output[~changed], clean[0][~changed])
        assert np.isfinite(lse).all()
        assert_merged(output, lse, dirty, lses)


@every_dtype
@every_base
def test_two_partials_can_be_exchanged_to_the_bit(dtype, base):
    outputs, lses = partials(2, (400, 37), dtype)
    assert_same(merge(outputs, lses, base=base), merge(outputs[::-1], lses[::-1], base=base))


@every_dtype
def test_any_order_is_within_twice_the_bound(dtype):
    outputs, lses = partials(6, (40, 33), dtype)
    want, rng = merged(outputs, lses), np.random.default_rng(0)
    first = merge(outputs, lses)
    for _ in range(5):
        order = rng.permutation(6)
        output, lse = merge(outputs[order], lses[order])
        assert_near(output, first[0].astype(np.longdouble), 2 * want.output_bound)
        assert_near(lse, first[1].astype(np.longdouble), 2 * want.lse_bound)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_any_grouping_is_within_the_sum_of_the_bounds(dtype):
    """Merging what was merged: each step adds its bound, and the lse errors of the first move the weights."""
    outputs, lses = partials(6, (40, 33), dtype, seed=4)
    lses = np.where(lses == -INF, lses, np.clip(lses, -3, 3)).astype(lses.dtype)
    want = merged(outputs, lses)
    left, right = merge(outputs[:2], lses[:2]), merge(outputs[2:], lses[2:])
    output, lse = merge(np.stack([left[0], right[0]]), np.stack([left[1], right[1]]))
    steps = [merged(outputs[:2], lses[:2]), merged(outputs[2:], lses[2:])]
    moved = sum(step.lse_bound for step in steps)
    largest = np.abs(np.where((lses > -INF)[..., None], outputs, 0)).max(axis=0).astype(np.longdouble)
    bound = want.output_bound + sum(step.output_bound for step in steps) + 2 * moved[..., None] * largest
    assert_near(output, want.output, bound)
    assert_near(lse, want.lse, want.lse_bound + moved)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_partials_that_agree_are_returned(dtype):
    outputs, lses = partials(7, (200, 40), dtype)
    outputs[...] = outputs[0]
    # Nor does the sum of large numbers overflow.
    outputs[:, 0] = np.nextafter(np.array(INF, outputs.dtype), np.array(0, outputs.dtype))
    live = (lses > -INF).any(axis=0)
    assert same_bits(merge(outputs, lses)[0][live], outputs[0][live])


@every_dtype
def test_an_exact_shift_of_all_lses_leaves_the_output(dtype):
    outputs, lses = partials(4, (50, 19), dtype)
    lses = (np.round(np.where(lses == -INF, 0, lses) % 8 * 8) / 8).astype(lses.dtype)
    assert same_bits(merge(outputs, lses)[0], merge(outputs, lses + lses.dtype.type(4096))[0])


@every_dtype
def test_ragged_groups_are_merges_of_each_to_the_bit(dtype):
    lengths = [3, 0, 1, 17, 0, 2, 0]
    indptr = np.cumsum([0, *lengths])
    outputs, lses = partials(indptr[-1], (3, 37), dtype)
    for kind, pointer in itertools.product(KINDS, (indptr, indptr.astype(np.int32), list(indptr))):
        result = merge_outputs_ragged(as_kind(kind, outputs), as_kind(kind, lses), pointer)
        output, lse = map(as_numpy, result)
        assert output.shape == (7, 3, 37)
        for g, length in enumerate(lengths):
            part = slice(indptr[g], indptr[g + 1])
            if length:
                assert_same((output[g], lse[g]), merge(outputs[part], lses[part]))
            else:
                assert same_bits(output[g], np.zeros((3, 37), outputs.dtype))
                assert (lse[g] == -INF).all()
    each = merge_outputs_ragged(list(outputs), list(lses), torch.from_numpy(indptr), base="2")
    for g in (0, 3):
        part = slice(indptr[g], indptr[g + 1])
        assert_same((each[0][g], each[1][g]), merge(outputs[part], lses[part], base="2"))


def test_no_groups_no_rows_no_values():
    outputs, lses = partials(2, (3, 5), "float32")
    assert merge_outputs_ragged(outputs[:0], lses[:0], [0])[0].shape == (0, 3, 5)
    nothing, lse = merge_outputs_ragged(outputs[:0], lses[:0], [0, 0, 0])
    assert not nothing.any()
    assert (lse == -INF).all()
    assert merge(outputs[:, :0], lses[:, :0])[0].shape == (0, 5)
    output, lse = merge(outputs[..., :0], lses)
    assert output.shape == (3, 0)
    assert_near(lse, merged(outputs, lses).lse, merged(outputs, lses).lse_bound)
    output, lse = merge_outputs(outputs[:, 0], lses[:, 0])
    assert isinstance(lse, np.float32)
    assert same_bits(output, merge(outputs, lses)[0][0])


@every_dtype
@pytest.mark.parametrize("streamed", [0, 2**24])
def test_out_is_filled_and_nothing_beside_it(dtype, streamed, monkeypatch):
    monkeypatch.setattr(merge_work, "_STREAMED", streamed)
    outputs, lses = partials(3, (2, 7, 64), dtype)
    want = merge(outputs, lses)
    for first in (0, 1):
        for step in (1, 2):
            room = np.full((2, 9, 64 * step + 64), NAN, outputs.dtype)
            out = room[:, 1:8, first * 16 : first * 16 + 64 * step : step]
            lse_room = np.full((7, 4), NAN, lses.dtype)
            lse = lse_room[:, 1:3].T
            result = merge_outputs(outputs, lses, out=(out, lse))
            assert result[0] is out
            assert result[1] is lse
            assert_same(result, want)
            assert np.isnan(room).sum() == room.size - out.size
            assert np.isnan(lse_room).sum() == lse_room.size - lse.size
    tensors = (
        torch.zeros(2, 7, 64, dtype=getattr(torch, dtype)),
        torch.zeros(2, 7).to(torch.from_numpy(lses).dtype),
    )
    before = tensors[0]._version
    merge_outputs(as_kind("torch", outputs), as_kind("torch", lses), out=tensors)
    assert_same(map(as_numpy, tensors), want)
    assert tensors[0]._version > before
    # A result that is made is aligned, so that it is written past the caches.
    assert_same(merge(outputs, lses), want)


def test_torch_without_gradients():
    outputs, lses = partials(2, (3, 5), "float32")
    leaf = torch.from_numpy(outputs).requires_grad_()
    with torch.no_grad():
        assert_same(map(as_numpy, merge_outputs(leaf, torch.from_numpy(lses))), merge(outputs, lses))
    with torch.inference_mode():
        result = merge_outputs(
            torch.from_numpy(outputs), torch.from_numpy(lses), out=(torch.ones(3, 5), torch.ones(3))
        )
    assert_same([part.numpy() for part in result], merge(outputs, lses))
    negative = torch._neg_view(torch.from_numpy(-outputs))
    assert_same(map(as_numpy, merge_outputs(negative, torch.from_numpy(lses))), merge(outputs, lses))


def test_other_byte_order_is_read():
    outputs, lses = partials(2, (3, 5), "float32")
    swapped = outputs.astype(outputs.dtype.newbyteorder())
    assert_same(merge(swapped, lses.astype(lses.dtype.newbyteorder())), merge(outputs, lses))


def test_scores_cut_in_parts_give_the_attention_of_all():
    rng = np.random.default_rng(3)
    scores, values = rng.standard_normal((6, 50)) * 4, rng.standard_normal((50, 4))
    parts = []
    for keys in np.split(np.arange(50), [7, 7, 30]):
        weights = np.exp(scores[:, keys])
        total = weights.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts.append(((weights @ values[keys]) / total[:, None], np.log(total)))
    output, lse = merge_outputs(*map(list, zip(*parts, strict=True)))
    weights = np.exp(scores)
    # Each row: 50 products and sums, twice, of numbers whose weights add up to 1.
    bound = 200 * 2.0**-53 * np.abs(values).max()
    assert np.abs(output - weights @ values / weights.sum(axis=1)[:, None]).max() <= bound
    assert np.abs(lse - np.log(weights.sum(axis=1))).max() <= 200 * 2.0**-53
