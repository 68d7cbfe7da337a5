"""CAUSAL reads the rule of every mask exactly, names what is wrong, and is silent about sound kernels."""

import math
from functools import partial

import numpy as np
import pytest

from examining import examine, messages
from kernel_with_options import WithOptions, mutant
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.probes import _geometry as geometry
from softcarry.auditing.probes._supports import Reading, spans
from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import load_subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention


class TopLeft(WithOptions):
    def after(self, tq, tk):
        return np.arange(tk)[None, :] - np.arange(tq)[:, None]


SOUND = {
    "all options": WithOptions(),
    "all options, top-left": TopLeft(),
    "two passes": TwoPass(),
    "one pass": Online(),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(key_block=32),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    for dtype in ("float32", "bfloat16", "float16"):
        assert messages(examine(kernel, "CAUSAL", seed=seed, dtype=dtype)) == []


@pytest.mark.parametrize("name", ["all options", "all options, top-left", "reference"])
def test_sound_kernels_pass_in_float64(name):
    assert messages(examine(SOUND[name], "CAUSAL", dtype="float64")) == []


def shift(tq, tk, by):
    return np.arange(tk)[None, :] - np.arange(tq)[:, None] - by


def clamped(self, tq, tk):
    """mlx#2835: the offset is not let below 0."""
    return shift(tq, tk, max(tk - tq, 0))


def decoding_sees_key_0(self, tq, tk):
    """pytorch#144858, in a kernel that is aligned bottom-right otherwise."""
    return shift(tq, tk, 0 if tq == 1 else tk - tq)


def whole_blocks(self, after):
    tq, tk = after.shape
    position = np.arange(tq)[:, None] + tk - tq
    return np.arange(tk)[None, :] // 64 <= position // 64


def restarting(self, after):
    tq, tk = after.shape
    return shift(tq, tk, tk - tq) <= (np.arange(tq) % 64 - np.arange(tq))[:, None]


def first_batch_only(self, q, k, causal, window, kv_lengths):
    seen = WithOptions.seen(self, q, k, causal, window, kv_lengths)
    seen[1:] |= causal and window is None and kv_lengths is None
    return seen


class FilledBy(WithOptions):
    """A finite fill too near to the scores."""

    def masked(self, products, d, scale, softcap, mask, seen):
        scores = self.biased(self.scaled(products, d, scale), mask, scale)
        return np.where(seen, scores, np.float32(-9.0))


class NanInMaskedBlocks(WithOptions):
    """Key blocks of 128 whose scores are all hidden give −inf − (−inf)."""

    def __call__(self, q, k, v, *, causal=False):
        output = super().__call__(q, k, v, causal=causal)
        empty = causal and k.shape[2] - q.shape[2] > 128
        return np.full_like(output, np.nan) if empty else output


class ForgetsToRescale(Online):
    """Under a causal mask only, where no check without one can see it."""

    def __init__(self):
        super().__init__(key_block=64)
        self.wrong = Online(key_block=64, rescale=False)

    def __call__(self, q, k, v, *, mask=None, causal=False, scale=None):
        kernel = self.wrong if causal else super().__call__
        return kernel(q, k, v, mask=mask, causal=causal, scale=scale)


class OneMaskOnly(WithOptions):
    def __init__(self, kept):
        self.kept = kept

    def __call__(self, q, k, v, *, mask=None, causal=False):
        if mask is not None and causal:
            mask, causal = (mask, False) if self.kept == "mask" else (None, True)
        return super().__call__(q, k, v, mask=mask, causal=causal)


class EitherMask(WithOptions):
    def __call__(self, q, k, v, *, mask=None, causal=False):
        if mask is not None and causal:
            rule = self.after(*mask.shape[2:]) <= 0
            return super().__call__(q, k, v, mask=mask | rule)
        return super().__call__(q, k, v, mask=mask, causal=causal)


class WithoutOption(WithOptions):
    """Accepts an option and does nothing with it."""

    def __init__(self, option):
        self.option = option

    def __call__(self, q, k, v, *, causal=False, window=None, kv_lengths=None, sinks=None):
        options = {"causal": causal, "window": window, "kv_lengths": kv_lengths, "sinks": sinks}
        return super().__call__(q, k, v, **{**options, self.option: None})


def window(change):
    """A mutant that gets other sides of the window."""
    return mutant(window=lambda self, after, *sides: WithOptions.window(self, after, *change(*sides)))


def less(side, by=1):
    return None if side is None else side - by


def top_left_window(self, after, left, right):
    tq, tk = after.shape
    return WithOptions.window(self, shift(tq, tk, 0), left, right)


def every_block_merges_the_sink(self, sinks, m, q, blocks=6):
    return blocks * np.exp(sinks[None, :, None, None] - m)


def sinks_as(change):
    return mutant(sink_terms=lambda self, sinks, m, q: WithOptions.sink_terms(self, change(sinks), m, q))


def lengths(change):
    return mutant(lengths=lambda self, key, length: key < change(length))


MUTANTS = {
    "causal ignored": (WithoutOption("causal"), "the causal option is accepted and ignored"),
    "causal off by one": (mutant(causal=lambda self, after: after <= 1), "sees one key beyond its own"),
    "causal without the diagonal": (mutant(causal=lambda self, after: after < 0), "the diagonal is excluded"),
    "causal transposed": (mutant(causal=lambda self, after: after >= 0), "the causal mask is transposed"),
    "causal by whole blocks": (mutant(causal=whole_blocks), "hides whole blocks of 64 keys only"),
    "causal rows restart in a query block": (mutant(causal=restarting), "starts again every 64 rows"),
    "causal in the first batch entry": (mutant(seen=first_batch_only), "the first batch entry only"),
    "alignment flips where tq > tk": (
        mutant(after=clamped),
        "the causal mask is aligned top-left for tq > tk, where bottom-right is its rule elsewhere",
    ),
    "one query sees key 0": (
        mutant(after=decoding_sees_key_0),
        "the causal mask is aligned top-left for one query, where bottom-right is its rule elsewhere",
    ),
    "aligned otherwise than declared": (
        Subject(TopLeft(), arrays="numpy", causal="bottom-right"),
        "the causal mask is aligned top-left for tq < tk and tq > tk and one query, where bottom-right is",
    ),
    "ignored though declared": (
        Subject(WithoutOption("causal"), arrays="numpy", causal="bottom-right"),
        "the causal option is accepted and ignored",
    ),
    "causal by a finite fill": (FilledBy(), "keys hidden by the causal mask keep a small weight"),
    "NaN after a masked block": (NanInMaskedBlocks(), "leaves rows that have keys without a finite output"),
    "no rescale under a causal mask": (ForgetsToRescale(), "rows that have keys are wrong (causal mask"),
    "causal replaces the mask": (OneMaskOnly("causal"), "beside a causal mask the boolean mask is ignored"),
    "mask replaces causal": (OneMaskOnly("mask"), "beside a boolean mask the causal mask is ignored"),
    "either of two masks": (EitherMask(), "a key that one of two masks hides is seen"),
    "window ignored": (WithoutOption("window"), "the window option is accepted and ignored"),
    "window's left edge exclusive": (
        window(lambda left, right: (less(left), right)),
        "the left edge of the window is exclusive: one key is missing",
    ),
    "window one too far left": (
        window(lambda left, right: (less(left, -1), right)),
        "one key too far to the left",
    ),
    "window one too far right": (
        window(lambda left, right: (left, less(right, -1))),
        "one key too far to the right",
    ),
    "window's right edge exclusive": (
        window(lambda left, right: (left, less(right))),
        "the right edge of the window is exclusive",
    ),
    "window's sides swapped": (
        window(lambda left, right: (right, left)),
        "the sides of the window are swapped",
    ),
    "window causal by itself": (window(lambda left, right: (left, 0)), "no keys after the diagonal"),
    "window of 0 is no limit": (
        window(lambda left, right: (left or None, right or None)),
        "a side of 0 keys counts as no limit",
    ),
    "window aligned otherwise": (
        mutant(window=top_left_window),
        "the window is aligned top-left, where bottom-right is meant",
    ),
    "lengths ignored": (WithoutOption("kv_lengths"), "kv_lengths is accepted and ignored"),
    "lengths one too many": (lengths(lambda length: length + 1), "the key at kv_lengths is seen"),
    "lengths one too few": (
        lengths(lambda length: np.maximum(length - 1, 1 * (length == 1))),
        "the last key before kv_lengths is hidden",
    ),
    "lengths in whole blocks": (lengths(lambda length: -(-length // 128) * 128), "a multiple of 128"),
    "lengths of the first sequence": (
        lengths(lambda length: np.broadcast_to(length[:1], length.shape)),
        "the length of the first sequence counts for all",
    ),
    "sinks ignored": (WithoutOption("sinks"), "the sinks are accepted and ignored"),
    "sinks scaled": (sinks_as(lambda sinks: sinks / 8), "the sinks are multiplied by the scale"),
    "sinks in every block": (mutant(sink_terms=every_block_merges_the_sink), "the sink is counted 6 times"),
    "sinks reversed": (sinks_as(lambda sinks: sinks[::-1]), "the sinks of the heads are reversed"),
    "sinks in base 2": (
        sinks_as(lambda sinks: sinks * sinks.dtype.type(math.log(2.0))),
        "the sinks are taken in base 2",
    ),
}


ALSO_OF_WINDOWS = {
    "alignment flips where tq > tk",
    "one query sees key 0",
    "aligned otherwise than declared",
    "causal by a finite fill",
}
"""Faults of the diagonal, or of the fill, that windows share."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_is_named_once(name, dtype):
    kernel, said = MUTANTS[name]
    examination = examine(kernel, "CAUSAL", dtype=dtype)
    found = messages(examination)
    assert sum(said in message for message in found) == 1, found
    assert len(found) == 1 or name in ALSO_OF_WINDOWS, found
    assert {finding.severity for finding in examination.findings} == {"error"}


def test_the_smallest_failing_call_is_the_evidence():
    kernel, _ = MUTANTS["causal off by one"]
    evidence = examine(kernel, "CAUSAL").findings[0].evidence
    assert evidence["call"] == "tq = 6, tk = 6, causal"
    assert (evidence["query"], evidence["keys it sees"], evidence["keys it should see"]) == (0, "0-1", "0")
    assert len(evidence["wrong calls"]) > 3


def test_an_unknown_rule_is_a_finding_too():
    kernel = mutant(causal=lambda self, after: (after <= 0) & (after % 3 == 0))
    assert "lets other keys through than its rule says" in messages(examine(kernel, "CAUSAL"))[0]


@pytest.mark.parametrize("kernel", [WithOptions(), TopLeft()], ids=["bottom-right", "top-left"])
def test_undeclared_alignments_are_facts(kernel):
    facts = examine(kernel, "CAUSAL").facts
    alignment = "top-left" if isinstance(kernel, TopLeft) else "bottom-right"
    assert facts["causal alignment"].value == alignment
    assert facts["window"].value == f"{alignment}, both edges included"
    assert facts["causal mask beside lengths"].value == "its diagonal ends at tk"


def test_a_contract_decides_over_what_is_seen():
    kernel = TopLeft()
    assert messages(examine(kernel, "CAUSAL", contract={"causal": "top-left"})) == []
    found = messages(examine(kernel, "CAUSAL", contract={"causal": "bottom-right"}))
    assert any("where bottom-right is declared" in message for message in found)


def test_what_a_kernel_lacks_is_skipped():
    examination = examine(plain, "CAUSAL")
    assert examination.verdict.outcome == "skip"
    assert [skip.what for skip in examination.skipped] == ["causal", "window", "kv_lengths", "sinks"]


def test_one_refused_case_does_not_end_the_check():
    class NoLongRows(WithOptions):
        def __call__(self, q, k, v, *, causal=False, window=None):
            if k.shape[2] > 512:
                msg = "too long"
                raise ValueError(msg)
            return super().__call__(q, k, v, causal=causal, window=window)

    examination = examine(NoLongRows(), "CAUSAL")
    assert messages(examination) == []
    assert examination.calls > 10
    assert any("too long" in skip.reason for skip in examination.skipped)


@pytest.mark.parametrize("name", ["torch-sdpa-flash", "torch-sdpa-math"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_is_aligned_top_left_for_every_shape(name, dtype):
    pytest.importorskip("torch")
    examination = examine(load_subject(name), "CAUSAL", dtype=dtype)
    assert messages(examination) == []
    assert examination.facts["causal alignment"].value == "top-left"


def test_quick_takes_fewer_calls():
    from softcarry.auditing.examination import Examination
    from softcarry.auditing.probes.causal import probe

    calls = []
    for quick in (True, False):
        examination = Examination(
            Subject(WithOptions(), arrays="numpy"), "float32", check="CAUSAL", quick=quick
        )
        probe(examination)
        calls.append(examination.calls)
    assert calls[0] < calls[1]


def test_rows_without_keys_are_not_judged_here():
    class MeanOfAll(WithOptions):
        def __call__(self, q, k, v, *, causal=False):
            output = super().__call__(q, k, v, causal=causal)
            empty = max(q.shape[2] - k.shape[2], 0) if causal else 0
            output[:, :, :empty] = v.mean(axis=2, keepdims=True)
            return output

    assert messages(examine(MeanOfAll(), "CAUSAL")) == []


def reading(queries, keys, **options):
    return Reading("", queries, keys, options, np.zeros((1, queries, keys)))


@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3), (1, 4), (4, 4)])
def test_the_rules_are_those_of_loops(queries, keys):
    for alignment in geometry.ALIGNMENTS:
        diagonal = keys - queries if alignment == "bottom-right" else 0
        causal = [[j <= i + diagonal for j in range(keys)] for i in range(queries)]
        assert geometry.causal_rule(alignment)(reading(queries, keys)).tolist() == causal
        window = [[i + diagonal - 2 <= j <= i + diagonal + 1 for j in range(keys)] for i in range(queries)]
        rule = geometry.window_rule(alignment)
        assert rule(reading(queries, keys, window=(2, 1))).tolist() == window


def test_spans_cut_long_lists_short():
    row = np.zeros(20, bool)
    row[::2] = True
    assert spans(row) == "0, 2, 4, 6, …"


def test_a_functools_partial_is_read_like_any_kernel():
    examination = examine(partial(blocked_attention, key_block=16), "CAUSAL")
    assert messages(examination) == []
    assert examination.facts["causal alignment"].value == "bottom-right"
