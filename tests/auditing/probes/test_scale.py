"""SCALE reads off how scores are scaled, capped and biased, names what is wrong, and spares sound kernels."""

import math

import numpy as np
import pytest

import oracle
from examining import examine, messages
from kernel_with_options import WithOptions, mutant
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.probes import _scores
from softcarry.auditing.probes._scores import Case
from softcarry.auditing.subjects import load_subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "all options": WithOptions(),
    "two passes": TwoPass(),
    "one pass": Online(key_block=128),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(key_block=64),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    for dtype in ("float32", "bfloat16", "float16"):
        examination = examine(kernel, "SCALE", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.facts["default scale"].value == "1/√d"


@pytest.mark.parametrize("name", ["all options", "reference"])
def test_sound_kernels_pass_in_float64(name):
    assert messages(examine(SOUND[name], "SCALE", dtype="float64")) == []


@pytest.mark.parametrize("name", ["torch-sdpa-flash", "torch-sdpa-math", "softcarry-attention"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_real_kernels_pass(name, dtype):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    assert messages(examine(load_subject(name), "SCALE", dtype=dtype)) == []


def scaled(factor):
    """A mutant whose scores are the products times ``factor(scale or None, d)``."""
    return mutant(scaled=lambda self, products, d, scale: products * products.dtype.type(factor(scale, d)))


def default(d):
    return 1.0 / math.sqrt(d)


def by_default(factor):
    """A mutant whose scale by default is ``factor(d)``."""
    return scaled(lambda scale, d: factor(d) if scale is None else scale)


def given(factor):
    """A mutant that uses ``factor(scale, d)`` where a scale is given."""
    return scaled(lambda scale, d: default(d) if scale is None else factor(scale, d))


def rounded_to_bfloat16(number):
    return float(
        (np.float32(number).view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    )


class BeforeTheMask(WithOptions):
    """Hidden keys are given −inf before the cap, which makes −c of it (onnxruntime#28379)."""

    def masked(self, products, d, scale, softcap, mask, seen):
        scores = self.biased(self.scaled(products, d, scale), mask, scale)
        return self.capped(np.where(seen, scores, -np.inf), softcap)


class BeforeTheBias(WithOptions):
    """Hidden keys are selected away at last, finite biases are capped with the scores."""

    def masked(self, products, d, scale, softcap, mask, seen):
        scores = self.scaled(products, d, scale)
        hidden = np.zeros(scores.shape, bool)
        if mask is not None:
            hidden = ~mask if mask.dtype == bool else np.isneginf(mask)
            scores = scores if mask.dtype == bool else scores + np.where(hidden, 0, mask)
        return np.where(seen & ~hidden, self.capped(scores, softcap), -np.inf)


class CapBeforeScale(WithOptions):
    def masked(self, products, d, scale, softcap, mask, seen):
        scores = self.biased(self.scaled(self.capped(products, softcap), d, scale), mask, scale)
        return np.where(seen, scores, -np.inf)


class UnscaledBesideMasks(WithOptions):
    """The path with a mask is another one, and its scale was forgotten."""

    def masked(self, products, d, scale, softcap, mask, seen):
        scale = scale if mask is None or mask.dtype == bool else 1.0
        return super().masked(products, d, scale, softcap, mask, seen)


def ratio_of_exponentials(self, scores, softcap):
    """vllm#56578: (e^2x − 1) / (e^2x + 1)."""
    if softcap is None:
        return scores
    with np.errstate(all="ignore"):
        e = np.exp(2 * scores / softcap)
        return softcap * (e - 1) / (e + 1)


def capped(function):
    return mutant(capped=lambda self, s, c: s if c is None else function(s, s.dtype.type(c)))


def biased(function):
    """A mutant that adds ``function(mask, scale)``."""

    def step(self, scores, mask, scale):
        if mask is None or mask.dtype == bool:
            return WithOptions.biased(self, scores, mask, scale)
        return scores + function(mask.astype(scores.dtype), 0.125 if scale is None else scale)

    return mutant(biased=step)


MUTANTS = {
    "default 1": (by_default(lambda d: 1.0), "the default scale is 1: scores are not divided by √d"),
    "default 1/d": (by_default(lambda d: 1.0 / d), "the default scale is 1/d: 1/√d is applied twice"),
    "default of half the pair": (by_default(lambda d: d**-0.25), "the default scale is d^(−1/4)"),
    "default of all heads": (by_default(lambda d: default(2 * d)), "the default scale is 1/√(heads · d)"),
    "default of d padded to 8": (by_default(lambda d: default(-(-d // 8) * 8)), "padded to a multiple of 8"),
    "default of d padded to 64": (
        by_default(lambda d: default(-(-d // 64) * 64)),
        "padded to a multiple of 64",
    ),
    "default of d padded to 2^k": (
        by_default(lambda d: default(2 ** math.ceil(math.log2(d)))),
        "padded to a power of two",
    ),
    "base 2": (
        scaled(lambda scale, d: math.log(2.0) * (default(d) if scale is None else scale)),
        "weights are powers of 2, not of e",
    ),
    "log2 e twice": (by_default(lambda d: default(d) / math.log(2.0)), "log2 e is multiplied in twice"),
    "scale ignored": (given(lambda scale, d: default(d)), "the scale is ignored: 1/√d is used"),
    "scale ignored, none used": (given(lambda scale, d: 1.0), "the scale is ignored: scores are not scaled"),
    "scale on top of 1/√d": (given(lambda scale, d: scale * default(d)), "applied on top of 1/√d"),
    "scale applied twice": (given(lambda scale, d: scale**2), "the scale is applied twice"),
    "scale of 0 is none": (given(lambda scale, d: scale or default(d)), "a scale of 0 counts as none"),
    "sign lost": (given(lambda scale, d: abs(scale)), "the sign of the scale is lost"),
    "divided by the scale": (given(lambda scale, d: 1 / scale if scale else 0.0), "divided by the scale"),
    "mask scaled": (
        biased(lambda mask, scale: mask * mask.dtype.type(scale)),
        "the mask is multiplied by the scale",
    ),
    "mask subtracted": (
        biased(lambda mask, scale: np.where(np.isinf(mask), mask, -mask)),
        "the mask is subtracted",
    ),
    "mask ignored if finite": (
        biased(lambda mask, scale: np.where(np.isinf(mask), mask, 0)),
        "a finite additive mask is ignored",
    ),
    "unscaled beside masks": (UnscaledBesideMasks(), "beside a mask the scores are not scaled"),
    "cap ignored": (capped(lambda s, c: s), "softcap is accepted and ignored"),
    "cap after the mask": (BeforeTheMask(), "softcap is applied after the mask"),
    "cap after the bias": (BeforeTheBias(), "softcap is applied after the mask"),
    "cap before the scale": (CapBeforeScale(), "softcap is applied before the scale"),
    "cap clips": (capped(lambda s, c: np.clip(s, -c, c)), "softcap clips the scores"),
    "cap not multiplied back": (capped(lambda s, c: np.tanh(s / c)), "not multiplied back by the cap"),
    "cap not divided": (capped(lambda s, c: c * np.tanh(s)), "not divided by the cap"),
    "cap by a ratio of exponentials": (
        mutant(capped=ratio_of_exponentials),
        "softcap does not come out finite",
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_is_named_once(name, dtype):
    kernel, said = MUTANTS[name]
    examination = examine(kernel, "SCALE", dtype=dtype)
    found = messages(examination)
    assert sum(said in message for message in found) == 1, found
    assert {finding.severity for finding in examination.findings} == {"error"}
    assert len(found) == 1


@pytest.mark.parametrize("what", ["default", "given"])
def test_a_scale_rounded_to_16_bits_is_named_in_float32(what):
    factor = {
        "default": by_default(lambda d: rounded_to_bfloat16(default(d))),
        "given": given(lambda scale, d: rounded_to_bfloat16(scale)),
    }[what]
    assert "scale is rounded to bfloat16" in messages(examine(factor, "SCALE"))[0]


def test_the_effective_scale_is_evidence():
    finding = examine(MUTANTS["default of d padded to 64"][0], "SCALE").findings[0]
    assert finding.evidence["call"] == "d = 7, tk = 7"
    assert finding.evidence["slope of ln weight over q·k"] == pytest.approx(1 / 8, rel=1e-5)
    assert finding.evidence["scale that is meant"] == pytest.approx(7**-0.5)


def test_an_unknown_scale_is_a_finding_too():
    finding = examine(by_default(lambda d: 0.9 * default(d)), "SCALE").findings[0]
    assert finding.message.startswith("weights are not those of the default scale that is meant")
    assert finding.evidence["slope of ln weight over q·k"] == pytest.approx(0.9 / 8, rel=1e-5)


def test_an_error_of_a_hundred_ulps_is_seen_in_float32():
    assert messages(examine(by_default(lambda d: default(d) * (1 + 2.0**-15)), "SCALE"))
    assert not messages(examine(by_default(lambda d: default(d) * (1 + 2.0**-24)), "SCALE"))


def test_what_a_kernel_lacks_is_skipped():
    examination = examine(plain, "SCALE")
    assert examination.verdict.outcome == "pass"
    assert [skip.what for skip in examination.skipped] == ["scale", "additive masks", "softcap"]


def test_depths_that_are_refused_are_skipped():
    def even_only(q, k, v):
        if q.shape[3] % 8:
            msg = "d must be a multiple of 8"
            raise ValueError(msg)
        return plain(q, k, v)

    examination = examine(even_only, "SCALE")
    assert messages(examination) == []
    assert "multiple of 8" in examination.skipped[0].reason
    assert "7" not in examination.facts["default scale"].evidence.split("= ")[1].split(", ")


def test_the_rule_of_the_right_scores_is_that_of_loops():
    case = Case(np.array([1.0, -2.0, 0.5]), 16, scale=0.5, softcap=2.0, bias=np.array([1.0, 0.0, -1.0]))
    expected = [2.0 * math.tanh(0.5 * x / 2.0) + b for x, b in ((1.0, 1.0), (-2.0, 0.0), (0.5, -1.0))]
    np.testing.assert_allclose(_scores.scores(case), expected, rtol=1e-15)


def test_a_case_is_the_call_that_it_describes():
    case = Case(np.array([1.0, -2.0, 0.5]), 16, scale=0.5, keys=40)
    q, k, v = case.inputs()
    output, _ = oracle.attention(q, k, v, scale=0.5)
    terms = np.exp(0.5 * case.spread(case.products))
    np.testing.assert_allclose(output[0, 0, 0, :3], (terms / terms.sum())[case.read], rtol=1e-14)
    assert str(case) == "d = 16, tk = 40, scale 0.5"
