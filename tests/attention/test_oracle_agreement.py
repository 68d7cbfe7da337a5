"""Every implementation of attention against the oracle, and wrong ones, which the same comparison catches.

Held to it are `softcarry.attention` and `softcarry.attention_carry`, with few queries (keys are streamed) and
many (blocks of queries by blocks of keys), in four dtypes, on arrays of NumPy and torch: lengths and depths on
both sides of every width, all options alone and combined at random, hard data, every layout of memory.

The tolerance is the master bound with all sums in the working format, one after another, in blocks of any
size (`attention_oracle.bounds_of` says what options add to it). An output in float16 or bfloat16 may differ
by that and one rounding. m, m + ln l and o / l are bounded each, which fixes the carry.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
import torch

import softcarry as sc
from attention_cases import (
    DATA,
    DEPTHS,
    DTYPES,
    HEADS,
    LAYOUTS,
    LENGTHS,
    OPTIONS,
    STRUCTURES,
    TORCH_LAYOUTS,
    Case,
    as_kind,
    as_numpy,
    data,
    of_kind,
    random_cases,
)
from attention_oracle import (
    INF,
    Sequence,
    assert_carry,
    assert_output,
    attention_of,
    working_name,
)
from row_cases import KINDS
from row_oracle import narrowed


@dataclass(frozen=True)
class Implementation:
    """Two functions with the signature of `softcarry.attention` and `softcarry.attention_carry`."""

    attention: Callable
    attention_carry: Callable


# Looked up at each call, so that a test may put something else in their place.
OURS = Implementation(
    lambda *arrays, **options: sc.attention(*arrays, **options),
    lambda *arrays, **options: sc.attention_carry(*arrays, **options),
)


def assert_agree(q, k, v, options, kind="numpy", implementation=OURS):
    """Fail unless both functions of an implementation agree with the oracle on NumPy arguments."""
    truth = attention_of(q, k, v, **options)
    bounds = truth.bounds(
        splits=options.get("splits") or 1, threshold=options.get("rescale_threshold", 0.0)
    )
    given = [as_kind(kind, x) if isinstance(x, np.ndarray) else x for x in (q, k, v)]
    turned = of_kind(kind, options)
    output = implementation.attention(*given, **turned)
    assert isinstance(output, torch.Tensor) == (kind == "torch")
    assert_output(as_numpy(output), truth, bounds)
    carry = implementation.attention_carry(*given, **turned)
    assert isinstance(carry, sc.Carry)
    assert carry.base == "e"
    assert isinstance(carry.m, torch.Tensor) == (kind == "torch")
    assert_carry(*(as_numpy(x) for x in (carry.m, carry.l, carry.o)), truth, bounds)


def assert_case(case: Case, implementation=OURS):
    assert_agree(*case.build(), kind=case.kind, implementation=implementation)


def rotated(values, at: int):
    return values[at % len(values)]


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
            assert_case(Case(1, heads, kv_heads, rotated((3, 35, 1), at), rotated((67, 130), i), d, dv, dtype))


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


ALONE = [
    Case(2, 4, 2, tq, tk, 16, 24, dtype, options=(name,), kind=rotated(KINDS, n), seed=seed)
    for name in OPTIONS
    for n, dtype in enumerate(DTYPES)
    for seed, (tq, tk) in enumerate(((1, 67), (5, 200), (70, 67)))
]
STRUCTURED = [
    Case(3, 4, 2, tq, tk, 16, 24, dtype, structure=name, kind=rotated(KINDS, n + seed), options=options)
    for name in STRUCTURES[1:]
    for n, dtype in enumerate(DTYPES)
    for seed, (tq, tk) in enumerate(((1, 67), (5, 200), (70, 129)))
    for options in ((), ("causal",))
]
HARD = [
    Case(1, 2, 1, tq, tk, d, 24, dtype, data=name, kind=rotated(KINDS, n), options=options)
    for name in DATA
    for n, dtype in enumerate(DTYPES)
    for tq, tk, d, options in ((1, 300, 64, ()), (4, 131, 40, ("causal",)), (70, 193, 64, ()), (65, 513, 16, ()))
]
RANDOM = random_cases(240)


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
            assert_output(as_numpy(sc.attention(*given)), truth, truth.bounds())
            carry = sc.attention_carry(*given)
            assert_carry(*(as_numpy(x) for x in (carry.m, carry.l, carry.o)), truth, truth.bounds())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_every_layout_of_mask_and_bias(layout, name):
    rng = np.random.default_rng(8)
    for tq, tk in ((1, 67), (4, 200), (66, 70)):
        q, k, v, _ = Case(2, 4, 2, tq, tk, 8, 9).build()
        for dtype in ("bool",) if name == "mask" else DTYPES:
            full = rng.normal(size=(2, 4, tq, tk))
            full = LAYOUTS[layout](full > -0.3 if name == "mask" else narrowed(full, dtype).astype(DTYPES[dtype]))
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
        *(lambda x, name=name: x.astype(name) for name in ("int32", "int64", "uint8", "int16", "uint64", ">i4")),
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
    for given in (cuts.tolist(), cuts.astype(np.int32), torch.from_numpy(cuts), (cuts, cuts), (cuts.tolist(),) * 2):
        np.testing.assert_array_equal(sc.attention(q, k, v, cu_seqlens=given), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_of_any_strides_is_written_and_returned(kind, dtype):
    for layout in TORCH_LAYOUTS if kind == "torch" else LAYOUTS:
        for tq in (1, 3, 40):
            q, k, v, options = Case(2, 4, 2, tq, 50, 8, 9, dtype, options=("causal",)).build()
            out = as_kind(kind, LAYOUTS[layout](np.full((2, 4, tq, 9), 7.0, DTYPES[dtype])))
            given = [as_kind(kind, x) for x in (q, k, v)]
            assert sc.attention(*given, out=out, **options) is out
            np.testing.assert_array_equal(as_numpy(out), as_numpy(sc.attention(*given, **options)))


def test_out_writes_nothing_beside_it():
    q, k, v, options = Case(2, 4, 2, 33, 50, 8, 9, options=("mask",)).build()
    around = np.full((3, 8, 70, 22), 7.0, np.float32)
    sc.attention(q, k, v, out=around[1:, 1::2, 3:69:2, 2:20:2], **options)
    around[1:, 1::2, 3:69:2, 2:20:2] = 7.0
    assert (around == 7.0).all()


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


# Wrong implementations: the oracle with one fault, rounded as it should be. Each must fail where its option
# is used, and the oracle without a fault nowhere.


class LastKeyDropped(Sequence):
    def live(self):
        live = super().live()
        live[..., -1:] = False
        return live


class FirstKeyOfEveryBlockTwice(Sequence):
    def scores(self):
        scores = super().scores()
        scores[..., ::64] += np.log(2.0)
        return scores


class FiniteSentinel(Sequence):
    def scores(self):
        return np.where(super().live(), super().scores(), -1e30)

    def live(self):
        return np.ones_like(self.mask)


class ScoresTimesMask(Sequence):
    def scores(self):
        return super().scores() * super().live()

    def live(self):
        return np.ones_like(self.mask)


class ValuesTimesMask(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        dead = ~(rows.scores != -INF)
        nan = np.isnan(self.per_query_head(self.v)).astype(float)
        reached = np.matmul(dead.astype(float), nan) > 0
        return replace(rows, output=np.where(reached, np.nan, rows.output))


class CausalExcludesItself(Sequence):
    def live(self):
        return super().live() & ((self.distances() < 0) | (not self.causal))


class CausalSeesTheNext(Sequence):
    def live(self):
        free = replace(self, causal=False)
        return Sequence.live(free) & ((self.distances() <= 1) | (not self.causal))


class AlwaysTopLeft(Sequence):
    @property
    def offset(self):
        return 0


class AlwaysBottomRight(Sequence):
    @property
    def offset(self):
        return self.k.shape[1] - self.q.shape[1]


class OffsetOfTheBuffer(Sequence):
    @property
    def offset(self):
        return 0 if self.causal == "top-left" else self.buffer - self.q.shape[1]


class WindowExclusive(Sequence):
    def live(self):
        left = (self.window or (None, None))[0]
        return super().live() & ((self.distances() > -left) if left is not None else True)


class WindowOnOneSide(Sequence):
    def live(self):
        return Sequence.live(replace(self, window=((self.window or (None, None))[0], None)))


class BiasScaled(Sequence):
    def scores(self):
        return self.capped(self.products() * self.scale) + self.bias * self.scale + self.alibi()


class CapAfterBias(Sequence):
    def scores(self):
        return self.capped(self.products() * self.scale + self.bias + self.alibi())


class CapBeforeScale(Sequence):
    def capped(self, x):
        return super().capped(x / self.scale) * self.scale if self.scale else x


class ScaleOfTheValuesDepth(Sequence):
    def products(self):
        return super().products() * np.sqrt(self.q.shape[2] / self.v.shape[2])


class HeadsInTurn(Sequence):
    def per_query_head(self, kv):
        return kv[np.arange(self.q.shape[0]) % kv.shape[0]]


class AlibiWithoutOffset(Sequence):
    def alibi(self):
        return 0 * super().alibi() if self.slopes is None else Sequence.alibi(replace(self, causal="top-left"))


class AlibiOfAnotherSign(Sequence):
    def alibi(self):
        return -super().alibi()


class AlibiOneSided(Sequence):
    def alibi(self):
        return super().alibi() * (self.distances() <= 0)


class SinksTwice(Sequence):
    def rows_of(self):
        return Sequence.rows_of(replace(self, sinks=self.sinks if self.sinks is None else self.sinks + np.log(2)))


class SinksForgottenInEmptyRows(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        empty = ~(rows.scores != -INF).any(axis=-1)
        return replace(rows, m=np.where(empty, -INF, rows.m), l=np.where(empty, 0, rows.l))


class SinksWithoutSign(Sequence):
    def rows_of(self):
        return Sequence.rows_of(replace(self, sinks=self.sinks if self.sinks is None else abs(self.sinks)))


class NoMaximum(Sequence):
    """e^s in the working format without a maximum, which overflows and underflows."""

    def rows_of(self):
        rows = super().rows_of()
        largest = 88.0 if rows.m.dtype == np.float64 else 709.0
        with np.errstate(invalid="ignore"):
            beyond = np.isfinite(rows.m) & (abs(rows.m) > largest)
        return replace(rows, output=np.where(beyond[..., None], np.nan, rows.output))


class WeightsInBfloat16(Sequence):
    """P is rounded before P·V, as kernels on matrix units do."""

    def rows_of(self):
        rows = super().rows_of()
        with np.errstate(invalid="ignore"):
            p = np.exp(rows.scores - np.where(np.isfinite(rows.m), rows.m, 0)[..., None]).astype(np.float64)
        p = np.where(rows.scores == -INF, 0.0, narrowed(p, ml_dtypes.bfloat16))
        values = np.where(np.isfinite(self.v), self.v, 0)
        o = np.matmul(p, self.per_query_head(values))
        total = np.where(rows.l == 0, 1, rows.l)[..., None]
        return replace(rows, o=o.astype(rows.o.dtype), output=(o / total).astype(rows.o.dtype))


class SumInBfloat16(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        return replace(rows, l=narrowed(rows.l, ml_dtypes.bfloat16).astype(rows.l.dtype))


class MaximumInUnitsOfTwo(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        return replace(rows, m=rows.m * np.log2(np.e))


class NormalisedCarry(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        return replace(rows, o=rows.output)


class ZeroOutput(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        return replace(rows, output=0 * rows.output, o=0 * rows.o)


class NanInEmptyRows(Sequence):
    def rows_of(self):
        rows = super().rows_of()
        return replace(rows, output=np.where((rows.m == -INF)[..., None], np.nan, rows.output))


class KeysShuffled(Sequence):
    def products(self):
        return super().products()[..., ::-1]


def implementation_of(kind: type[Sequence]) -> Implementation:
    """The oracle, or the oracle with a fault, rounded as results are."""

    def attention(q, k, v, **options):
        truth = attention_of(q, k, v, kind=kind, **options)
        with np.errstate(over="ignore"):
            return narrowed(truth.output.astype(np.float64), q.dtype).astype(q.dtype)

    def attention_carry(q, k, v, **options):
        truth = attention_of(q, k, v, kind=kind, **options)
        with np.errstate(over="ignore"):
            return sc.Carry(*(x.astype(working_name(q.dtype)) for x in (truth.m, truth.l, truth.o)))

    return Implementation(attention, attention_carry)


def using(*names) -> list[Case]:
    """Cases that use an option, or are of a structure or a kind of data; all but the longest for no name."""
    cases = [*ALONE, *STRUCTURED, *HARD, *RANDOM]
    if names:
        cases = [case for case in cases if {*case.options, case.structure, case.data} & set(names)]
    return [replace(case, kind="numpy") for case in cases if case.tq * case.tk < 20000]


WRONG = {
    LastKeyDropped: (),
    FirstKeyOfEveryBlockTwice: (),
    FiniteSentinel: ("causal", "mask"),
    ScoresTimesMask: ("mask", "causal", "window"),
    ValuesTimesMask: (),
    CausalExcludesItself: ("causal", "bottom-right", "top-left"),
    CausalSeesTheNext: ("causal", "bottom-right", "top-left"),
    AlwaysTopLeft: ("causal", "bottom-right"),
    AlwaysBottomRight: ("top-left",),
    OffsetOfTheBuffer: ("lengths", "paged"),
    WindowExclusive: ("window",),
    WindowOnOneSide: ("window",),
    BiasScaled: ("bias",),
    CapAfterBias: ("softcap",),
    CapBeforeScale: ("softcap",),
    ScaleOfTheValuesDepth: (),
    HeadsInTurn: (),
    AlibiWithoutOffset: ("alibi",),
    AlibiOfAnotherSign: ("alibi",),
    AlibiOneSided: ("alibi",),
    SinksTwice: ("sinks",),
    SinksForgottenInEmptyRows: ("sinks",),
    SinksWithoutSign: ("sinks",),
    NoMaximum: ("offset", "huge"),
    WeightsInBfloat16: (),
    SumInBfloat16: (),
    MaximumInUnitsOfTwo: (),
    NormalisedCarry: (),
    ZeroOutput: (),
    NanInEmptyRows: (),
    KeysShuffled: (),
}


def refutes(case: Case, implementation: Implementation) -> bool:
    try:
        assert_case(case, implementation)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda kind: kind.__name__)
def test_wrong_implementations_are_caught_in_every_dtype(wrong, dtype):
    cases = [case for case in using(*WRONG[wrong]) if case.dtype == dtype]
    assert any(refutes(case, implementation_of(wrong)) for case in cases)


def test_the_oracle_itself_is_accepted():
    implementation = implementation_of(Sequence)
    for case in using()[::2]:
        assert_case(case, implementation)
