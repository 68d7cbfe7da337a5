"""Attention against the oracle, to the bounds of `attention_agreement`.

Held to it are `softcarry.attention` and `softcarry.attention_carry`, with few queries (keys are streamed) and
many (blocks of queries by blocks of keys), in four dtypes, on arrays of NumPy and torch: lengths and depths
on both sides of every width, all options alone and combined at random, hard data, every layout of memory.
`test_wrong_implementations.py` puts wrong ones through the same cases.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import softcarry as sc
from attention_agreement import assert_agree, assert_carry, assert_case, assert_output, bounds_of
from attention_cases import (
    ALONE,
    DEPTHS,
    DTYPES,
    HARD,
    HEADS,
    LAYOUTS,
    LENGTHS,
    LONG,
    RANDOM,
    STRUCTURED,
    TORCH_LAYOUTS,
    Case,
    as_kind,
    as_numpy,
    rotated,
)
from attention_oracle import attention_of
from row_cases import KINDS
from row_oracle import narrowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tq", LENGTHS)
def test_every_length_of_queries_and_keys(dtype, tq):
    """All pairs in float32, with every head ratio and both kinds of array; a third of them elsewhere."""
    for i, tk in enumerate(LENGTHS):
        at = i + LENGTHS.index(tq)
        if dtype != "float32" and at % 3:
            continue
        heads, kv_heads = rotated([pair for pair in HEADS if tq * tk < 9000 or pair[0] < 6], at)
        case = Case(1, heads, kv_heads, tq, tk, rotated((8, 16, 17), at), rotated((16, 7, 8, 33), at), dtype)
        case = replace(case, kind=rotated(KINDS, at), options=rotated(((), ("causal",), ("top-left",)), i))
        assert_case(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", DEPTHS)
def test_every_depth_of_keys_and_values(dtype, d):
    """All pairs in float32, for few queries and for many in turn; a quarter of them elsewhere."""
    for i, dv in enumerate(DEPTHS):
        at = i + DEPTHS.index(d)
        if dtype == "float32" or at % 4 == 0:
            heads, kv_heads = rotated(((2, 1), (1, 1)), i)
            assert_case(
                Case(1, heads, kv_heads, rotated((3, 35, 1), at), rotated((67, 130), i), d, dv, dtype)
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_every_ratio_of_heads(dtype, heads, kv_heads):
    for tq, tk in ((1, 67), (2, 300), (9, 33), (65, 129)):
        for batch in (1, 3):
            assert_case(Case(batch, heads, kv_heads, tq, tk, 16, 24, dtype, options=("causal",)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_twelve_query_heads_to_a_key_head_and_groups_that_are_no_power_of_two(dtype):
    for heads, kv_heads in ((12, 1), (15, 3), (10, 2), (33, 3)):
        for tq in (1, 2, 40):
            assert_case(Case(2, heads, kv_heads, tq, 70, 8, 8, dtype))


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_every_option_alone(case):
    for seed in range(4):
        assert_case(replace(case, seed=case.seed + 10 * seed))


@pytest.mark.parametrize("case", STRUCTURED, ids=str)
def test_every_structure(case):
    assert_case(case)


@pytest.mark.parametrize("case", HARD, ids=str)
def test_hard_data(case):
    assert_case(case)


@pytest.mark.parametrize("case", LONG, ids=str)
def test_many_keys(case):
    assert_case(case)


@pytest.mark.parametrize("case", RANDOM, ids=str)
def test_options_combined_at_random(case):
    assert_case(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "layout"), [*(("numpy", name) for name in LAYOUTS), *(("torch", name) for name in TORCH_LAYOUTS)]
)
def test_every_layout_of_queries_keys_and_values(kind, dtype, layout):
    for n, (tq, tk) in enumerate(((1, 150), (3, 40), (70, 67))):
        layouts = [layout] * 3
        layouts[n] = "contiguous"
        for mixed in ([layout] * 3, layouts):
            assert_case(Case(2, 4, 2, tq, tk, 24, 17, dtype, layouts=tuple(mixed), kind=kind))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_pages(layout):
    for kind in KINDS if layout in TORCH_LAYOUTS else ("numpy",):
        for tq in (1, 3, 50):
            layouts = ("contiguous", layout, layout)
            assert_case(Case(2, 4, 2, tq, 90, 24, 17, structure="paged", layouts=layouts, kind=kind, seed=3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", range(4))
def test_expanded_arrays(kind, axis):
    """Strides of 0 along the batch, the heads, the tokens and the depth."""
    for dtype in ("float32", "bfloat16"):
        for tq, tk in ((2, 67), (40, 70)):
            q, k, v, _ = Case(3, 4, 2, tq, tk, 8, 9, dtype).build()
            thin = [as_kind(kind, x[(slice(None),) * axis + (slice(0, 1),)].copy()) for x in (q, k, v)]
            shapes = [x.shape for x in (q, k, v)]
            if kind == "torch":
                given = [x.expand(shape) for x, shape in zip(thin, shapes, strict=True)]
            else:
                given = [np.broadcast_to(x, shape) for x, shape in zip(thin, shapes, strict=True)]
            truth = attention_of(*(as_numpy(x) for x in given))
            assert_output(as_numpy(sc.attention(*given)), truth, bounds_of(truth))
            carry = sc.attention_carry(*given)
            assert_carry(carry, truth, bounds_of(truth))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_every_layout_of_mask_and_bias(layout, name):
    rng = np.random.default_rng(8)
    for tq, tk in ((1, 67), (4, 200), (66, 70)):
        q, k, v, _ = Case(2, 4, 2, tq, tk, 8, 9).build()
        for dtype in ("bool",) if name == "mask" else DTYPES:
            full = rng.normal(size=(2, 4, tq, tk))
            full = LAYOUTS[layout](
                full > -0.3 if name == "mask" else narrowed(full, dtype).astype(DTYPES[dtype])
            )
            for axes in ((), (0,), (1,), (2,), (3,), (0, 1), (0, 1, 2)):
                thin = full[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
                for kind in KINDS if layout in TORCH_LAYOUTS and not axes else ("numpy",):
                    assert_agree(q, k, v, {name: thin}, kind)


def test_masks_that_are_expanded_and_of_fewer_axes():
    q, k, v, _ = Case(2, 4, 2, 33, 70, 8, 9).build()
    rng = np.random.default_rng(9)
    for shape in ((), (1,), (70,), (33, 1), (33, 70), (4, 1, 1), (4, 1, 70), (2, 1, 1, 1), (2, 1, 33, 70)):
        mask, bias = np.asarray(rng.random(shape) < 0.7), np.asarray(rng.normal(size=shape))
        for full in ((2, 4, 33, 70), shape):
            assert_agree(q, k, v, {"mask": np.broadcast_to(mask, full)})
            assert_agree(q, k, v, {"bias": np.broadcast_to(bias, full), "mask": mask})


@pytest.mark.parametrize("tq", [0, 1, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_sequences_and_no_pages(tq, dtype):
    for batch, tk, structure in ((0, 70, "plain"), (0, 0, "plain"), (2, 0, "plain"), (2, 0, "paged")):
        for options in ((), ("sinks",), ("causal", "mask", "bias")):
            assert_case(Case(batch, 4, 2, tq, tk, 8, 9, dtype, structure=structure, options=options))


def test_integers_of_every_kind():
    """Lengths, cuts and tables as lists, tuples, tensors and arrays of any integers, of any strides."""
    q, k, v, options = Case(3, 2, 1, 4, 40, 8, 9, structure="paged", seed=1).build()
    table, lengths = np.maximum(options["block_table"], 0), options["kv_lengths"]
    table = np.minimum(table, k.shape[0] - 1)
    for turned in (
        *(
            lambda x, name=name: x.astype(name)
            for name in ("int32", "int64", "uint8", "int16", "uint64", ">i4")
        ),
        np.ndarray.tolist,
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: x[::-1].copy()[::-1],
    ):
        assert_agree(q, k, v, {"block_table": turned(table), "kv_lengths": turned(lengths)})
    for turned in (torch.from_numpy, lambda x: torch.from_numpy(x.astype(np.int32)), np.ndarray.tolist):
        assert_agree(q, k, v, {"block_table": turned(table), "kv_lengths": turned(lengths)}, "torch")
    q, k, v, options = Case(3, 2, 1, 40, 40, 8, 9, structure="packed", seed=1).build()
    cuts = options["cu_seqlens"]
    want = sc.attention(q, k, v, cu_seqlens=cuts)
    for given in (
        cuts.tolist(),
        cuts.astype(np.int32),
        torch.from_numpy(cuts),
        (cuts, cuts),
        (cuts.tolist(),) * 2,
    ):
        np.testing.assert_array_equal(sc.attention(q, k, v, cu_seqlens=given), want)


def test_inputs_are_left_as_they_are_and_may_be_read_only():
    q, k, v, options = Case(2, 4, 2, 33, 50, 8, 9, options=("mask", "bias", "sinks", "alibi")).build()
    before = [x.copy() for x in (q, k, v, *(y for y in options.values() if isinstance(y, np.ndarray)))]
    after = [q, k, v, *(y for y in options.values() if isinstance(y, np.ndarray))]
    for x in after:
        x.flags.writeable = False
    sc.attention(q, k, v, **options)
    sc.attention_carry(q, k, v, **options)
    for x, y in zip(after, before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_bytes_in_the_other_order_are_read_or_refused():
    q, k, v, _ = Case(1, 2, 1, 5, 20, 8, 9).build()
    try:
        got = sc.attention(*(x.astype(">f4") for x in (q, k, v)))
    except sc.SoftcarryError:
        return
    np.testing.assert_array_equal(got, sc.attention(q, k, v))
