"""GRAD names the step of a backward pass that is wrong, and is silent about sound ones."""

import numpy as np
import pytest

from examining import examine, messages
from mutants import TwoPass
from softcarry.auditing.probes import _grad_cases, grad
from softcarry.auditing.subject import Subject
from torch_mutants import Backward, eager, online

pytest.importorskip("torch")


def torch_subject(kernel, **declared):
    return Subject(kernel, arrays="torch", causal="bottom-right", **declared)


def known(name):
    from softcarry.auditing.subjects import torch_sdpa

    return getattr(torch_sdpa, name)()


SOUND = {
    "backward of its own": torch_subject(Backward()),
    "eager": torch_subject(eager, lse="e"),
    "online": torch_subject(online),
    "torch flash": known("flash"),
    "torch math": known("math"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_pass(name, dtype):
    for seed in range(10):
        examination = examine(SOUND[name], "GRAD", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert len(examination.facts["gradients"].value) >= 12


@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_pass_in_float64(name):
    examination = examine(SOUND[name], "GRAD", dtype="float64")
    assert messages(examination) == []
    assert "gradient_ratio" not in examination.facts


def jax_attention(q, k, v, *, mask=None, causal=False, scale=None):
    import jax

    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal, scale=scale)


def test_jax_passes_but_for_rows_without_keys(monkeypatch):
    """It gives them the mean of V: a gradient with respect to every value."""
    pytest.importorskip("jax")
    names = {"49 tokens of depth 32", "boolean mask", "rows without keys"}
    every = _grad_cases.cases
    monkeypatch.setattr(grad, "cases", lambda e: [case for case in every(e) if case.name in names])
    subject = Subject(jax_attention, arrays="jax", layout="bthd", causal="top-left")
    examination = examine(subject, "GRAD")
    assert [message.split(":")[0] for message in messages(examination)] == [
        "rows without keys give gradients that are not 0"
    ]
    assert examination.facts["gradients"].value == ["49 tokens of depth 32", "boolean mask"]
    assert examination.facts["double backward"].value == "finite"


MUTANTS = {
    "the backward pass forgets rowsum(dO ∘ O)": (
        torch_subject(Backward("forgets D")),
        "the backward pass forgets the row sums D",
    ),
    "the backward pass ignores the mask": (
        torch_subject(Backward("ignores the mask")),
        "the backward pass ignores the mask",
    ),
    "the backward pass ignores causal": (
        torch_subject(Backward("ignores causal")),
        "the backward pass ignores the causal mask",
    ),
    "NaN gradients from empty rows": (
        torch_subject(Backward("NaN on empty rows")),
        "rows without keys make gradients that are not finite",
    ),
    "empty rows send gradients to every value": (
        torch_subject(Backward("empty rows leak")),
        "rows without keys give gradients that are not 0",
    ),
    "dQ without the scale": (torch_subject(Backward("dQ without the scale")), "dQ is without the scale"),
    "dK of the last key dropped": (
        torch_subject(Backward("drops the last key")),
        "dK of the last keys are 0",
    ),
    "gradients of the last key block dropped": (
        torch_subject(Backward("drops the last key block")),
        "dK and dV of the last keys are 0",
    ),
    "dS transposed": (torch_subject(Backward("dS transposed")), "dS is transposed"),
    "no maximum in the backward pass": (
        torch_subject(Backward("no maximum")),
        "gradients are not finite where the exact ones are",
    ),
    "D in bfloat16": (torch_subject(Backward("D in bfloat16")), "gradients are beyond the bound"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_wrong_step_is_named(name):
    subject, fragment = MUTANTS[name]
    examination = examine(subject, "GRAD")
    found = messages(examination)
    assert all(finding.severity == "error" for finding in examination.findings)
    assert found
    assert all(message.startswith(fragment) for message in found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in MUTANTS if name != "D in bfloat16"])
def test_the_wrong_step_is_named_in_16_bits(name, dtype):
    subject, fragment = MUTANTS[name]
    assert any(m.startswith(fragment) for m in messages(examine(subject, "GRAD", dtype=dtype)))


def test_kernels_of_numpy_are_skipped():
    examination = examine(TwoPass(), "GRAD")
    assert examination.verdict.outcome == "skip"
    assert any("returns arrays without gradients" in entry.reason for entry in examination.skipped)


def test_kernels_that_take_no_recorded_gradients_are_skipped():
    from softcarry.auditing.subjects.softcarry_attention import torch_attention

    examination = examine(torch_attention(), "GRAD")
    assert examination.verdict.outcome == "skip"
    assert "must not record gradients" in " ".join(entry.reason for entry in examination.skipped)


def test_a_detached_result_is_skipped():
    def detached(q, k, v):
        return eager(q, k, v)[0].detach()

    examination = examine(torch_subject(detached), "GRAD")
    assert examination.verdict.outcome == "skip"
    assert "the kernel returns arrays without gradients" in [s.reason for s in examination.skipped]


def test_what_flash_refuses_is_said():
    examination = examine(known("flash"), "GRAD")
    assert examination.facts["double backward"].value == "refused"
    assert "gradients of the lse" in [entry.what for entry in examination.skipped]


def test_an_lse_in_base_2_is_taken_in_its_unit():
    def base_2(q, k, v):
        output, lse = eager(q, k, v)
        return output, lse / np.log(2.0)

    assert messages(examine(torch_subject(base_2, lse="2"), "GRAD")) == []
    undeclared = examine(torch_subject(base_2), "GRAD").findings
    assert ["lse"] in [finding.evidence["cases"] for finding in undeclared]


def test_a_double_backward_that_is_not_finite_is_found():
    def root(q, k, v):
        """Something that is 0, whose first derivative is 0 too, and whose second is infinite."""
        return eager(q, k, v)[0] + (q - q.detach()).pow(1.5)[..., :1]

    found = messages(examine(torch_subject(root), "GRAD"))
    assert len(found) == 1
    assert found[0].startswith("a double backward pass is not finite")


def test_heads_that_are_shared_otherwise_are_left_to_headmap():
    def tiled(q, k, v):
        import torch

        group = q.shape[1] // k.shape[1]
        k, v = (torch.cat([x] * group, dim=1) for x in (k, v))
        return eager(q, k, v)[0]

    examination = examine(torch_subject(tiled), "GRAD")
    assert messages(examination) == []
    assert any("HEADMAP" in entry.reason for entry in examination.skipped)


def test_quick_takes_fewer_cases():
    from softcarry.auditing.examination import Examination

    quick = Examination(torch_subject(online), "float32", check="GRAD", quick=True)
    full = Examination(torch_subject(online), "float32", check="GRAD")
    assert len(list(_grad_cases.cases(quick))) < len(list(_grad_cases.cases(full)))
