"""REF tells rounding from faults, on data on which the usual wrong answers are beyond its bound."""

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, scores_of
from softcarry.auditing.golden import golden_attention
from softcarry.auditing.probes.ref import KINDS, plain_attention
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, few keys a block": Online(key_block=7),
    "by the lse": LogAddExp(),
    "emulated, one key a block": EmulatedKernel(key_block=1, order="backward"),
    "emulated, lazy in splits": EmulatedKernel(key_block=64, rescale=("lazy", 5.5), splits=3),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    examination = examine(kernel, "REF", seed=seed)
    assert messages(examination) == []
    assert examination.skipped == []
    assert all(count > 0 for count in examination.facts["reference_power"].value.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass_in_16_bits(kernel, dtype):
    for seed in range(3):
        examination = examine(kernel, "REF", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.skipped == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_p_rounded_to_the_dtype_passes(dtype):
    for seed in range(10):
        assert messages(examine(EmulatedKernel(p_format=dtype), "REF", dtype=dtype, seed=seed)) == []


def test_sound_kernels_pass_in_float64():
    for kernel in (blocked_attention, lambda q, k, v: golden_attention(q, k, v).output):
        examination = examine(kernel, "REF", dtype="float64")
        assert messages(examination) == []
        assert "reference_ratio" not in examination.facts
    assert len(messages(examine(TwoPass(), "REF", dtype="float64"))) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes(path, dtype):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    subject = getattr(torch_sdpa, path)()
    for seed in range(10):
        assert messages(examine(subject, "REF", dtype=dtype, seed=seed)) == []


def right(q, k, v):
    return TwoPass(lse_dtype=None)(q, k, v)


def half_precision(q, k, v):
    return (
        right(*(x.astype(np.float16).astype(np.float32) for x in (q, k, v)))
        .astype(np.float16)
        .astype(q.dtype)
    )


def swapped_keys(q, k, v):
    """Two neighbours change places in V but not in K."""
    order = np.arange(k.shape[2])
    order[[-1, -2]] = order[[-2, -1]]
    return right(q, k, v[:, :, order])


def merge_without_rescale(q, k, v):
    """Two halves, each relative to its own maximum, added as they are."""
    half = k.shape[2] // 2
    o = l = np.float32(0.0)
    for part in (slice(0, half), slice(half, None)):
        s = scores_of(q, k[:, :, part], None, False, None)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        o = o + p @ v[:, :, part].astype(np.float32)
        l = l + p.sum(axis=-1, keepdims=True)
    return (o / l).astype(q.dtype)


def absolute_zero(q, k, v):
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


def last_head_nan(q, k, v):
    output = right(q, k, v)
    output[:, -1, 0, 0] = np.nan
    return output


WRONG = {
    "zeros": (absolute_zero, "zeros"),
    "shuffled keys": (lambda q, k, v: right(q, k, np.roll(v, 1, axis=2)), "shuffled keys"),
    "dropped last key": (lambda q, k, v: right(q, k[:, :, :-1], v[:, :, :-1]), "dropped last key"),
    "forgotten rescale": (merge_without_rescale, "forgotten rescale"),
    "forgotten rescale of the carry": (Online(key_block=320, rescale=False), None),
    "forgotten rescale in short blocks": (Online(key_block=16, rescale=False), None),
    "two keys swapped": (swapped_keys, None),
    "half precision": (half_precision, None),
    "scores in bfloat16": (EmulatedKernel(score_format="bfloat16"), None),
    "l in float16": (EmulatedKernel(l_format="float16", key_block=16), None),
    "another scale": (lambda q, k, v: right(q * np.float32(1.001), k, v), None),
    "not finite": (last_head_nan, None),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_beyond_the_bound(name):
    kernel, same_as = WRONG[name]
    examination = examine(kernel, "REF")
    assert [f.severity for f in examination.findings] == ["error"]
    finding = examination.findings[0]
    assert finding.evidence["same_as"] == ([] if same_as is None else [same_as])
    if same_as is not None:
        assert finding.message.endswith(f"; it is the answer of {same_as}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["zeros", "shuffled keys", "dropped last key", "forgotten rescale"])
def test_wrong_answers_are_beyond_the_wider_bound_of_16_bits(name, dtype):
    examination = examine(WRONG[name][0], "REF", dtype=dtype)
    assert [f.severity for f in examination.findings] == ["error"]


def test_an_error_that_is_not_finite_says_so():
    examination = examine(last_head_nan, "REF")
    assert messages(examination) == ["error on repeated maximum data: not finite"]
    assert examination.findings[0].evidence["failing"] == ["repeated maximum"]


def test_an_error_within_the_bound_but_large_for_the_dtype_is_a_warning():
    """0.7 % too much: under u_P + u_out = 0.78 % of the bound, over twice what roundings to nearest make."""

    def biased(q, k, v):
        return (
            right(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)) * np.float32(1.007)
        ).astype(q.dtype)

    examination = examine(biased, "REF", dtype="bfloat16")
    assert [f.severity for f in examination.findings] == ["warning"]
    assert "times that of the plain formula" in messages(examination)[0]
    errors = examination.facts["reference_error"].value
    # Positive data show the sign of the bias: mean and root mean square of the error nearly agree.
    assert errors["positive"]["bias"] > 0.9


def test_a_check_whose_bound_allows_everything_says_that_it_is_blind():
    examination = examine(right, "REF", contract={"carry_format": "E5M2"})
    assert messages(examination) == []
    assert len(examination.skipped) == 1
    assert "blind" in examination.skipped[0].reason
    assert examination.facts["reference_power"].value == dict.fromkeys(
        ("zeros", "shuffled keys", "dropped last key", "forgotten rescale"), 0
    )


def test_the_plain_formula_is_attention():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 8)).astype(np.float32).astype(np.float64) for n in (3, 40, 40))
    plain = plain_attention(q, k, v, lambda x: np.asarray(x, np.float64))
    # 8 products, 40 terms of l and of o, one quotient, in float32, on weights that sum to 1.
    assert np.abs(plain - golden_attention(q, k, v).output).max() < 2.0**-24 * 100 * np.abs(v).max()


def test_facts_hold_an_entry_for_each_kind_of_data():
    examination = examine(right, "REF", dtype="bfloat16")
    assert set(examination.facts["reference_ratio"].value) == set(KINDS)
    errors = examination.facts["reference_error"].value
    assert set(errors) == set(KINDS)
    # One rounding to bfloat16 of an output whose size is w: up to u, and unbiased.
    assert 2.0**-10 < errors["positive"]["largest"] < 1.01 * 2.0**-8
    assert abs(errors["positive"]["bias"]) < 0.2


def test_the_exact_kernel_has_no_ratio_to_exceed():
    examination = examine(lambda q, k, v: golden_attention(q, k, v).output.astype(q.dtype), "REF")
    assert max(examination.facts["reference_ratio"].value.values()) < 1.0


MUTANTS = {
    name: (kernel, f"it is the answer of {same_as}" if same_as else "times the bound")
    for name, (kernel, same_as) in WRONG.items()
    if name != "not finite"
} | {"not finite": (last_head_nan, "error on repeated maximum data: not finite")}
"""The faults above, for the table in docs/audit-mutants.md."""
