"""Wrong implementations of attention, each of which the comparison of `test_oracle_agreement.py` catches.

A wrong one is the oracle with one fault, rounded as results are. In every dtype it must fail in some case
that uses the option at fault, or in any for a fault of all; the oracle without a fault fails in none.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import softcarry as sc
from attention_agreement import Implementation, assert_case, working_name
from attention_cases import ALONE, DTYPES, HARD, RANDOM, STRUCTURED, Case
from attention_oracle import INF, Sequence, attention_of
from row_oracle import narrowed


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
        return (
            0 * super().alibi() if self.slopes is None else Sequence.alibi(replace(self, causal="top-left"))
        )


class AlibiOfAnotherSign(Sequence):
    def alibi(self):
        return -super().alibi()


class AlibiOneSided(Sequence):
    def alibi(self):
        return super().alibi() * (self.distances() <= 0)


class SinksTwice(Sequence):
    def rows_of(self):
        return Sequence.rows_of(
            replace(self, sinks=self.sinks if self.sinks is None else self.sinks + np.log(2))
        )


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
