"""NONFIN follows NaN and infinities to what depends on them, and to nothing else."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.subjects import load_subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, few keys a block": Online(key_block=24),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(),
    "emulated, splits": EmulatedKernel(key_block=64, splits=4, order="backward"),
    "reference": blocked_attention,
    "no options": plain,
}


def changed(before=None, after=None):
    """Two passes, with q, k and v changed before them or the output after them."""

    def kernel(q, k, v, *, mask=None, causal=False):
        with np.errstate(all="ignore"):
            arrays = (q, k, v) if before is None else before(q, k, v)
            output, lse = TwoPass()(*arrays, mask=mask, causal=causal)
            return (output if after is None else after(output, mask, v)), lse

    return kernel


def of_scores(change):
    """Make a kernel whose scores are changed before the maximum is taken."""

    def kernel(q, k, v, *, mask=None):
        with np.errstate(all="ignore"):
            s = q.astype(np.float32) @ np.swapaxes(k, -1, -2).astype(np.float32)
            s = change(s / np.float32(math.sqrt(q.shape[3])))
            s = s if mask is None else np.where(mask, s, -np.inf)
            m = s.max(axis=-1, keepdims=True)
            p = np.exp(s - np.where(np.isneginf(m), np.float32(0), m))
            return (p @ v.astype(np.float32) / p.sum(axis=-1, keepdims=True)).astype(q.dtype)

    return kernel


def limit_at_infinity(s):
    infinite = np.isposinf(s)
    return np.where(infinite.any(axis=-1, keepdims=True), np.where(infinite, np.float32(0), -np.inf), s)


def split_values(q, k, v, *, mask=None, causal=False):
    """P·V in two products, of the leading bits of V and of the rest."""
    with np.errstate(all="ignore"):
        leading = v.astype(np.float16).astype(v.dtype)
        one, lse = TwoPass()(q, k, leading, mask=mask, causal=causal)
        other, _ = TwoPass()(q, k, v - leading, mask=mask, causal=causal)
        return one + other, lse


def scale_of(axis):
    """V divided by its largest size and multiplied back, as quantised kernels do."""

    def kernel(q, k, v, *, mask=None, causal=False):
        with np.errstate(all="ignore"):
            largest = np.abs(v).max(axis=axis, keepdims=True)
            output, lse = TwoPass()(q, k, v / largest, mask=mask, causal=causal)
            return output * largest, lse

    return kernel


def silent_lse(q, k, v, *, mask=None, causal=False):
    output, lse = TwoPass()(q, k, v, mask=mask, causal=causal)
    return output, np.nan_to_num(lse, nan=0.0, posinf=0.0, neginf=-np.inf)


FINITE = float(np.finfo(np.float16).max)

MUTANTS = {
    "NaN of the output becomes 0": (
        changed(after=lambda output, mask, v: np.where(np.isnan(output), 0, output).astype(v.dtype)),
        "NaN, +inf, −inf in Q does not reach the output",
    ),
    "NaN becomes 0 where there is a mask": (
        changed(after=lambda output, mask, v: output if mask is None else np.nan_to_num(output)),
        "does not reach the output beside a boolean mask",
    ),
    "scores are clamped by a minimum that drops NaN": (
        of_scores(lambda s: np.fmax(np.fmin(s, np.float32(FINITE)), np.float32(-FINITE))),
        "NaN in K does not reach the output",
    ),
    "NaN scores are masked": (
        of_scores(lambda s: np.where(np.isnan(s), -np.inf, s)),
        "NaN in K does not reach the output",
    ),
    "values are clipped": (
        changed(before=lambda q, k, v: (q, k, np.clip(v, -FINITE, FINITE).astype(v.dtype))),
        "+inf, −inf in V does not reach the output",
    ),
    "values lose their NaN": (
        changed(before=lambda q, k, v: (q, k, np.where(np.isnan(v), 0, v).astype(v.dtype))),
        "NaN in V does not reach the output",
    ),
    "infinities lose their sign": (
        changed(after=lambda output, mask, v: np.where(np.isinf(output), np.inf, output).astype(v.dtype)),
        "−inf in V comes out as another non-finite number",
    ),
    "one maximum for all rows of a head": (
        TwoPass(shared_maximum=True),
        "a NaN or infinity in Q reaches other rows",
    ),
    "one scale of V for all columns": (scale_of((2, 3)), "a NaN or infinity in V reaches other columns"),
    "one scale of V for all heads": (
        scale_of((0, 1, 2, 3)),
        "a NaN or infinity in V reaches other heads or batch entries",
    ),
    "the lse stays finite": (silent_lse, "in K does not reach the lse"),
    "P·V in two products": (split_values, "+inf, −inf in V comes out as NaN"),
    "the limit at a score of +inf": (
        of_scores(limit_at_infinity),
        "+inf, −inf in K gives the value of the key whose score is +inf",
    ),
    "a score of −inf takes part": (
        of_scores(lambda s: np.where(np.isneginf(s), np.float32(0), s)),
        "in K makes scores of −inf that are not weight 0",
    ),
}

WARNINGS = ("P·V in two products", "the limit at a score of +inf")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    dtypes = ("float32", "bfloat16", "float16")
    examination = examine(kernel, "NONFIN", dtype=dtypes[seed % 3], seed=seed)
    assert messages(examination) == []
    assert examination.verdict.outcome == "pass"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_sound_kernels_pass_in_all_dtypes(dtype):
    for kernel in (blocked_attention, load_subject("softcarry-attention")):
        assert messages(examine(kernel, "NONFIN", dtype=dtype)) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_faults_are_named(name):
    kernel, fragment = MUTANTS[name]
    examination = examine(kernel, "NONFIN")
    found = [finding for finding in examination.findings if fragment in finding.message]
    assert found, messages(examination)
    assert found[0].severity == ("warning" if name in WARNINGS else "error")


@pytest.mark.parametrize("name", WARNINGS)
def test_what_the_field_has_no_rule_for_is_only_a_warning(name):
    assert {finding.severity for finding in examine(MUTANTS[name][0], "NONFIN").findings} == {"warning"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_faults_are_named_in_16_bits(dtype):
    for name in ("NaN of the output becomes 0", "NaN scores are masked", "one scale of V for all columns"):
        kernel, fragment = MUTANTS[name]
        assert any(fragment in message for message in messages(examine(kernel, "NONFIN", dtype=dtype))), name


def test_a_row_that_a_nan_reaches_through_a_mask_is_left_to_poison():
    """Two passes let NaN in V through masks, to rows that do not attend to it."""
    assert messages(examine(TwoPass(), "NONFIN")) == []
    assert messages(examine(TwoPass(), "POISON")) != []


def test_an_lse_of_infinity_is_as_good_as_nan():
    def kernel(q, k, v, *, mask=None, causal=False):
        output, lse = TwoPass()(q, k, v, mask=mask, causal=causal)
        with np.errstate(all="ignore"):
            s = q.astype(np.float32) @ np.swapaxes(k, -1, -2).astype(np.float32)
        return output, np.where(np.isposinf(s).any(axis=-1), np.float32(np.inf), lse)

    assert messages(examine(kernel, "NONFIN")) == []


def test_a_kernel_that_adds_in_any_order_is_not_blamed_for_its_bits():
    rng = np.random.default_rng(0)

    def kernel(q, k, v):
        order = rng.permutation(k.shape[2])
        return TwoPass()(q, k[:, :, order], v[:, :, order])

    examination = examine(kernel, "NONFIN")
    assert messages(examination) == []
    assert examination.facts["bits beside a NaN or an infinity"].value == "change within the error bound"


def test_a_kernel_that_is_inaccurate_everywhere_is_left_to_other_checks():
    narrow = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1)
    examination = examine(narrow, "NONFIN")
    assert messages(examination) == []
    assert "values beside a score of −inf" in {skip.what for skip in examination.skipped}


def test_a_refused_mask_does_not_end_the_check():
    def kernel(q, k, v, *, mask=None):
        if mask is not None:
            msg = "no masks today"
            raise ValueError(msg)
        return TwoPass(shared_maximum=True)(q, k, v)

    examination = examine(kernel, "NONFIN")
    assert any("no masks today" in skip.reason for skip in examination.skipped)
    assert "a NaN or infinity in Q reaches other rows" in messages(examination)


def test_the_evidence_says_where_and_what():
    kernel, fragment = MUTANTS["NaN scores are masked"]
    finding = next(f for f in examine(kernel, "NONFIN").findings if fragment in f.message)
    assert finding.evidence["set"].startswith("K[0, 0, ")
    assert math.isnan(finding.evidence["float64"])
    assert math.isfinite(finding.evidence["output"])


@pytest.mark.parametrize("name", ["torch-sdpa-flash", "torch-sdpa-math"])
def test_torch_passes_in_float32(name):
    pytest.importorskip("torch")
    assert messages(examine(load_subject(name), "NONFIN")) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_flash_swallows_a_score_of_infinity_in_16_bits(dtype):
    """A real fault of torch 2.13: rows of whole vectors of 16 keys give 0 where float32 gives NaN."""
    pytest.importorskip("torch")
    examination = examine(load_subject("torch-sdpa-flash"), "NONFIN", dtype=dtype)
    assert messages(examination) == [
        "+inf, −inf in Q does not reach the output",
        "+inf, −inf in K does not reach the output",
    ]
    assert {finding.evidence["output"] for finding in examination.findings} == {0.0}
    assert messages(examine(load_subject("torch-sdpa-math"), "NONFIN", dtype=dtype)) == []
