"""POISON names what gets through from where, and is silent about kernels that select."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.subjects import load_subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention


def allowed(q, k, mask=None, causal=False, kv_lengths=None):
    """Which keys each row attends to, (b, h, tq, tk)."""
    b, h, tq, _ = q.shape
    tk = k.shape[2]
    seen = np.ones((b, h, tq, tk), bool)
    if mask is not None:
        seen &= mask if mask.dtype == bool else ~np.isneginf(mask)
    if causal:
        seen &= np.tri(tq, tk, tk - tq, dtype=bool)
    if kv_lengths is not None:
        seen &= np.arange(tk) < kv_lengths[:, None, None, None]
    return seen


def raw_scores(q, k):
    with np.errstate(all="ignore"):
        return (q.astype(np.float32) @ np.swapaxes(k, -1, -2).astype(np.float32)) / np.float32(
            math.sqrt(q.shape[-1])
        )


class Gathering:
    """Copies out the keys of a row and looks at nothing else."""

    def __call__(self, q, k, v, *, mask=None, causal=False, kv_lengths=None):
        seen = allowed(q, k, mask, causal, kv_lengths)
        output = np.zeros((*q.shape[:3], v.shape[3]))
        lse = np.full(q.shape[:3], -np.inf)
        for at in np.ndindex(*q.shape[:3]):
            keys = np.flatnonzero(seen[at])
            if keys.size:
                s = k[at[:2]][keys].astype(np.float64) @ q[at].astype(np.float64) / math.sqrt(q.shape[3])
                s = s if mask is None or mask.dtype == bool else s + mask[at][keys].astype(np.float64)
                m = s.max()
                p = np.exp(s - m)
                output[at] = p @ v[at[:2]][keys].astype(np.float64) / p.sum()
                lse[at] = m + np.log(p.sum())
        return output.astype(q.dtype), lse.astype(np.float32)


class Selecting:
    """Two passes in which masked scores and values are selected away; the keywords each put one fault in."""

    def __init__(self, *, add=False, maximum_of_all=False, fill=-np.inf, scale_of_all=False, pad_lengths=1):
        self.add, self.maximum_of_all, self.fill = add, maximum_of_all, np.float32(fill)
        self.scale_of_all, self.pad_lengths = scale_of_all, pad_lengths

    def __call__(self, q, k, v, *, mask=None, causal=False, kv_lengths=None):
        if kv_lengths is not None:
            kv_lengths = -(-kv_lengths // self.pad_lengths) * self.pad_lengths
        seen = allowed(q, k, mask, causal, kv_lengths)
        s = raw_scores(q, k)
        with np.errstate(all="ignore"):
            s = s + np.where(seen, np.float32(0), self.fill) if self.add else np.where(seen, s, self.fill)
            m = raw_scores(q, k).max() if self.maximum_of_all else s.max(axis=-1, keepdims=True)
            p = np.exp(s - np.where(np.isneginf(m), np.float32(0), m))
            total = p.sum(axis=-1, keepdims=True)
            values = v.astype(np.float32)
            largest = np.abs(values).max() if self.scale_of_all else np.float32(1)
            values = values / largest
            output = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
            for row in range(q.shape[2]):
                weights = p[:, :, row, :, None]
                output[:, :, row] = np.where(weights == 0, np.float32(0), weights * values).sum(axis=2)
            output = output * largest / np.where(total == 0, 1, total)
            lse = np.where(total == 0, -np.inf, m + np.log(np.where(total == 0, 1, total)))[..., 0]
        return output.astype(q.dtype), lse.astype(np.float32)


def one_maximum(q, k, v):
    """One maximum of all batch entries and heads."""
    s = raw_scores(q, k)
    with np.errstate(all="ignore"):
        p = np.exp(s - s.max())
        return (p @ v.astype(np.float32) / p.sum(axis=-1, keepdims=True)).astype(q.dtype)


SOUND = {
    "reference": blocked_attention,
    "gathering": Gathering(),
    "selecting": Selecting(),
    "emulated": EmulatedKernel(),
    "emulated, splits": EmulatedKernel(key_block=64, splits=4, order="backward"),
}

NON_FINITE = "NaN and infinities in"
MUTANTS = {
    "weight 0 times the value, two passes": (TwoPass(), f"{NON_FINITE} V behind a boolean mask"),
    "weight 0 times the value, one pass": (Online(), f"{NON_FINITE} V behind a boolean mask"),
    "weight 0 times the value, by the lse": (LogAddExp(), f"{NON_FINITE} V behind a boolean mask"),
    "−inf is added to the score": (
        Selecting(add=True),
        f"{NON_FINITE} K behind a boolean mask, a causal mask and a length reach the output",
    ),
    "the maximum of all keys, hidden ones too": (
        Selecting(maximum_of_all=True),
        "in K behind a boolean mask, a causal mask and a length",
    ),
    "a finite fill that leaves a weight": (
        Selecting(fill=-30.0),
        "large numbers in V behind a boolean mask, a causal mask and a length change the output",
    ),
    "lengths rounded up to whole pages": (
        Selecting(pad_lengths=16),
        "keys behind a length take part in the output",
    ),
    "one scale of V for all heads": (
        Selecting(scale_of_all=True),
        "in V of one head reach other heads or batch entries",
    ),
    "one maximum for all heads": (one_maximum, "in K of one head reach other heads or batch entries"),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    dtypes = ("float32", "bfloat16", "float16")
    examination = examine(kernel, "POISON", dtype=dtypes[seed % 3], seed=seed)
    assert messages(examination) == []
    assert examination.verdict.outcome == "pass"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_sound_kernels_pass_in_all_dtypes(dtype):
    for kernel in (blocked_attention, Gathering(), load_subject("softcarry-attention")):
        assert messages(examine(kernel, "POISON", dtype=dtype)) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_faults_are_named(name):
    kernel, fragment = MUTANTS[name]
    examination = examine(kernel, "POISON")
    assert any(fragment in message for message in messages(examination)), messages(examination)
    assert all(finding.severity == "error" for finding in examination.findings)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_faults_are_named_in_16_bits(dtype):
    for kernel, fragment in (MUTANTS["−inf is added to the score"], MUTANTS["one maximum for all heads"]):
        assert any(fragment in message for message in messages(examine(kernel, "POISON", dtype=dtype)))


def test_poison_in_k_and_in_v_is_told_apart():
    found = messages(examine(TwoPass(), "POISON"))
    assert found == [f"{NON_FINITE} V behind a boolean mask and a causal mask reach the output"]
    found = messages(examine(Selecting(add=True), "POISON"))
    assert [message for message in found if " V " in message] == []


def test_the_evidence_is_a_row_that_sees_none_of_the_poison():
    finding = examine(TwoPass(), "POISON").findings[0]
    assert finding.evidence["where"] == "a boolean mask"
    assert np.isnan(finding.evidence["output with poison"]).all()
    assert np.isfinite(finding.evidence["output without poison"]).all()
    assert finding.evidence["what gets through"]["a causal mask"] == ["NaN", "infinities"]


def test_an_additive_mask_is_only_classified():
    examination = examine(Selecting(), "POISON")
    assert examination.facts["poison through an additive mask"].value == {"K": [], "V": []}

    def adds(q, k, v, *, mask=None):
        with np.errstate(all="ignore"):
            s = raw_scores(q, k)
            s = s + (0 if mask is None else np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
            return (np.exp(s) @ v / np.exp(s).sum(axis=-1, keepdims=True)).astype(q.dtype)

    through = examine(adds, "POISON").facts["poison through an additive mask"].value
    assert through["K"] == ["NaN", "infinities"]
    assert through["V"][:2] == ["NaN", "infinities"]


def test_a_kernel_without_options_is_asked_about_other_heads_only():
    examination = examine(plain, "POISON")
    assert messages(examination) == []
    assert examination.calls == 5
    assert {skip.what for skip in examination.skipped} == {
        "what boolean masks hide",
        "what causal masks hide",
        "what lengths hide",
    }


def test_a_kernel_that_adds_in_any_order_is_judged_by_what_is_finite():
    rng = np.random.default_rng(0)

    def shuffled(kernel):
        def call(q, k, v, *, mask=None):
            order = rng.permutation(k.shape[2])
            return kernel(q, k[:, :, order], v[:, :, order], mask=None if mask is None else mask[..., order])

        return call

    examination = examine(shuffled(Selecting()), "POISON")
    assert messages(examination) == []
    assert "the kernel does not give the same bits twice" in {skip.reason for skip in examination.skipped}
    assert f"{NON_FINITE} V behind a boolean mask reach the output" in messages(
        examine(shuffled(TwoPass()), "POISON")
    )


def test_a_refused_mask_does_not_end_the_check():
    def kernel(q, k, v, *, mask=None, causal=False):
        if mask is not None:
            msg = "no masks today"
            raise ValueError(msg)
        return TwoPass()(q, k, v, causal=causal)

    examination = examine(kernel, "POISON")
    assert messages(examination) == [f"{NON_FINITE} V behind a causal mask reach the output"]
    assert any("no masks today" in skip.reason for skip in examination.skipped)


def test_a_mask_that_hides_nothing_is_said_to():
    def ignores(q, k, v, *, mask=None):
        return Selecting()(q, k, v)

    assert messages(examine(ignores, "POISON")) == ["keys behind a boolean mask take part in the output"]


def test_numbers_that_are_refused_leave_the_others_to_be_examined():
    def kernel(q, k, v, *, mask=None):
        if np.abs(np.nan_to_num(k, posinf=0.0, neginf=0.0)).max() > 1e29:
            msg = "a score overflows"
            raise ValueError(msg)
        return Selecting(add=True)(q, k, v, mask=mask)

    examination = examine(kernel, "POISON")
    assert messages(examination) == [f"{NON_FINITE} K behind a boolean mask reach the output"]
    assert any("a score overflows" in skip.reason for skip in examination.skipped)


def test_the_longest_row_of_the_contract_is_kept_to():
    examination = examine(Selecting(), "POISON", contract={"longest_n": 40})
    assert messages(examination) == []
    assert not any("longest_n" in skip.reason for skip in examination.skipped)
    assert messages(examine(TwoPass(), "POISON", contract={"longest_n": 40})) != []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_lets_poison_through_its_masks(dtype):
    """A real fault of torch 2.13: True and False become 0 and −inf, which are added, and P·V multiplies."""
    pytest.importorskip("torch")
    assert messages(examine(load_subject("torch-sdpa-math"), "POISON", dtype=dtype)) == [
        f"{NON_FINITE} K behind a boolean mask and a causal mask reach the output",
        f"{NON_FINITE} V behind a boolean mask and a causal mask reach the output",
    ]
    assert messages(examine(load_subject("torch-sdpa-flash"), "POISON", dtype=dtype)) == [
        f"{NON_FINITE} K behind a boolean mask reach the output",
        f"{NON_FINITE} V behind a boolean mask and a causal mask reach the output",
    ]


def test_a_contract_may_leave_masked_values_alone():
    kernel, _ = next(iter(MUTANTS.values()))
    examination = examine(kernel, "POISON", contract={"masked_values": "any"})
    assert examination.findings == []
    assert examination.verdict.outcome == "skip"
