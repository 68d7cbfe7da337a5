"""RANGE names what fails at large scores, and is silent about sound kernels."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, scores_of
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, few keys a block": Online(key_block=7),
    "emulated": EmulatedKernel(key_block=16, order="backward"),
    "emulated, lazy": EmulatedKernel(rescale=("lazy", 5.5), splits=3),
    "reference": blocked_attention,
}


class FromSentinel:
    """One pass whose running maximum starts at a finite number."""

    def __init__(self, start, guard=True):
        self.start, self.guard = np.float32(start), guard

    def __call__(self, q, k, v):
        s = scores_of(q, k, None, False, None)
        m = np.maximum(s.max(axis=-1, keepdims=True), self.start)
        p = np.exp(s - m)
        total = p.sum(axis=-1, keepdims=True)
        if self.guard:
            total = np.where(total == 0, np.float32(1), total)
        with np.errstate(invalid="ignore"):
            return (p @ v.astype(np.float32) / total).astype(q.dtype)


def scaled_first(q, k, v):
    """Scores in float16, but q is scaled before the product."""
    scale = np.float32(1.0 / math.sqrt(q.shape[-1]))
    with np.errstate(all="ignore"):
        s = ((q * scale) @ np.swapaxes(k, -1, -2)).astype(np.float16).astype(np.float32)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return p @ v / p.sum(axis=-1, keepdims=True)


def fused_residual(q, k, v):
    """2^(s·c − m·c) with one rounded product and one that is not, as a fused multiply-add makes it."""
    c = 1.4426950408889634 / math.sqrt(q.shape[-1])
    s = (q @ np.swapaxes(k, -1, -2)).astype(np.float64)
    m = (s.max(axis=-1, keepdims=True) * c).astype(np.float32)
    with np.errstate(all="ignore"):
        p = np.exp2((s * c - m).astype(np.float32))
        return p @ v / p.sum(axis=-1, keepdims=True)


def no_rescale_below_zero(q, k, v):
    """Rescales by e^|m − m'|: an overflow where the maximum rises by more than 88."""
    s = scores_of(q, k, None, False, None)
    half = s.shape[-1] // 2
    m = [part.max(axis=-1, keepdims=True) for part in (s[..., :half], s[..., half:])]
    both = np.maximum(*m)
    with np.errstate(all="ignore"):
        factors = [np.exp(np.abs(part - both)) for part in m]
        p = [np.exp(s[..., :half] - m[0]), np.exp(s[..., half:] - m[1])]
        total = sum(f * part.sum(axis=-1, keepdims=True) for f, part in zip(factors, p, strict=True))
        return (factors[0] * (p[0] @ v[:, :, :half]) + factors[1] * (p[1] @ v[:, :, half:])) / total


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    examination = examine(kernel, "RANGE", seed=seed)
    assert messages(examination) == []
    assert examination.calls == 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass_in_16_bits(kernel, dtype):
    for seed in range(3):
        assert messages(examine(kernel, "RANGE", dtype=dtype, seed=seed)) == []


def test_sound_kernels_pass_in_float64():
    """float32 inside does not hold the scores that float64 inputs make, and is found out."""
    formats = dict.fromkeys(("m_format", "l_format", "o_format", "p_format", "score_format"), "float64")
    for kernel in (blocked_attention, EmulatedKernel(block_format="float64", **formats)):
        assert messages(examine(kernel, "RANGE", dtype="float64")) == []
    assert len(messages(examine(TwoPass(), "RANGE", dtype="float64"))) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes(path, dtype):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    subject = getattr(torch_sdpa, path)()
    for seed in range(10):
        assert messages(examine(subject, "RANGE", dtype=dtype, seed=seed)) == []


def test_the_range_of_scores_is_what_the_dtype_reaches():
    """float16 reaches 64 · 65504² / 8 = 3.4e10 and no 4e30; float32 reaches that and more."""
    assert examine(TwoPass(), "RANGE").facts["score_range"].value[1] > 3.9e30
    low, high = examine(TwoPass(), "RANGE", dtype="float16").facts["score_range"].value
    assert 1e9 < high < 3.4e10
    assert low == -high


CAUSES = {
    "no maximum": (TwoPass(no_maximum=True), "the maximum is not subtracted before the exponential", 88.0),
    "no maximum, emulated": (
        EmulatedKernel(rescale=("bound", 0.0), empty="nan"),
        "the maximum is not subtracted before the exponential",
        88.0,
    ),
    "maximum from −5e4": (FromSentinel(-5e4), "a finite sentinel of −50000 stands for −∞", 51200.0),
    "maximum floored at −1e4": (
        FromSentinel(-1e4, guard=False),
        "a finite sentinel of −10000 stands for −∞",
        10400.0,
    ),
    "maximum from −1e30": (FromSentinel(-1e30), "a finite sentinel of −1e+30 stands for −∞", 1.02e30),
    "q·k in float16": (
        EmulatedKernel(score_format="float16"),
        "q·k before scaling overflow float16, whose largest number is 65504",
        9800.0,
    ),
    "scores in float16": (
        scaled_first,
        "the scores overflow float16, whose largest number is 65504",
        67014.0,
    ),
    "residual of a rounded maximum": (fused_residual, "scores beyond 1.02e+09 are not handled", 9.8e29),
}


@pytest.mark.parametrize("name", CAUSES)
def test_faults_are_named(name):
    kernel, cause, size = CAUSES[name]
    examination = examine(kernel, "RANGE")
    found = [f for f in examination.findings if f.evidence.get("cause") == cause]
    assert len(found) == 1, messages(examination)
    assert found[0].severity == ("error" if size < 2.0**25 else "warning")
    assert min(abs(score) for score in found[0].evidence["wrong"]) == pytest.approx(size, rel=1e-3)
    assert all(abs(s) <= size or s > 0 for s in found[0].evidence["right"])


@pytest.mark.parametrize("name", ["no maximum", "maximum from −5e4", "residual of a rounded maximum"])
def test_what_follows_from_a_fault_is_not_reported_again(name):
    assert len(messages(examine(CAUSES[name][0], "RANGE"))) == 1


class LseOnly(LogAddExp):
    """The same recurrence with its lse kept in float32."""

    def __call__(self, q, k, v):
        s = scores_of(q, k, None, False, None)
        lse = np.logaddexp.reduce(s, axis=-1, keepdims=True)
        return np.exp(s - lse) @ v


def test_an_lse_in_place_of_the_pair_is_named():
    """ulp(lse)/2 passes ln 64 at 2^26 in float32 and at 2^55 in float64, where no score in use is."""
    examination = examine(LseOnly(), "RANGE")
    assert [f.severity for f in examination.findings] == ["error"]
    assert "ln l is lost beside m" in messages(examination)[0]
    assert examination.findings[0].evidence["wrong"][0] < 1e4
    examination = examine(LogAddExp(), "RANGE")
    assert [f.severity for f in examination.findings] == ["warning"]
    assert "ln l is lost beside m" in messages(examination)[0]


@pytest.mark.parametrize(("score_format", "dtype"), [("bfloat16", "float32"), ("float16", "bfloat16")])
def test_rounded_scores_are_told_by_a_shift(score_format, dtype):
    kernel = EmulatedKernel(score_format=score_format, p_format=dtype)
    examination = examine(kernel, "RANGE", dtype=dtype)
    found = [f for f in examination.findings if "to every score changes the output" in f.message]
    assert len(found) == 1, messages(examination)
    assert found[0].evidence["format"] == score_format
    # What is wrong by rounding alone, the scores nearest 0, is the floor of the evidence.
    assert max(found[0].evidence["error_over_bound"]) > 10 * found[0].evidence["error_over_bound"][0]


@pytest.mark.parametrize("key_block", [1, 16, 128])
@pytest.mark.parametrize("format_", ["bfloat16", "float16"])
def test_a_narrow_carry_is_no_matter_of_range(format_, key_block):
    for seed in range(3):
        kernel = EmulatedKernel(l_format=format_, o_format=format_, key_block=key_block)
        found = messages(examine(kernel, "RANGE", seed=seed))
        if format_ == "float16":  # values of any size do not fit in its o
            assert found.pop().startswith("values of ")
        assert found == []


def test_a_rescale_that_overflows_is_found_by_scores_far_apart():
    examination = examine(no_rescale_below_zero, "RANGE")
    assert messages(examination) == [
        "scores 704 apart, first key above all others, give an output that is not finite"
    ]


def test_a_kernel_that_refuses_is_skipped():
    calls = []

    def refuses(q, k, v):
        calls.append(0)
        if len(calls) > 1:
            msg = "no more"
            raise ValueError(msg)
        return TwoPass(lse_dtype=None)(q, k, v)

    examination = examine(refuses, "RANGE")
    assert messages(examination) == []
    assert len(examination.skipped) == 5


MUTANTS = {name: (kernel, cause) for name, (kernel, cause, _) in CAUSES.items()}
"""The faults above, for the table in docs/audit-mutants.md."""


@pytest.mark.parametrize(
    ("spoil", "sizes"),
    [
        (lambda v: np.clip(v, -65504, 65504), "1e+05, 1e+20"),
        (lambda v: np.where(np.abs(v) < 1e-6, 0, v).astype(v.dtype), "4.7e-38, 1e-30, 1e-12"),
    ],
    ids=["clamped", "flushed"],
)
def test_values_that_are_clamped_or_flushed_are_found(spoil, sizes):
    def kernel(q, k, v):
        return TwoPass(lse_dtype=None)(q, k, spoil(v))

    (message,) = messages(examine(kernel, "RANGE"))
    assert message.startswith(f"values of {sizes}")
    assert message.endswith("do not come back")
