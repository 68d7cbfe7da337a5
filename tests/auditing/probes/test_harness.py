"""HARNESS says where the audit could not tell wrong from right, and is silent where it can."""

import numpy as np
import pytest

from arithmetic_flags import flushes_subnormals, restore_arithmetic, rounds_upwards
from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass
from softcarry.auditing import tolerance
from softcarry.auditing.probes import harness
from softcarry.auditing.subject import Subject
from softcarry.numerics import CarryModel, EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(key_block=64, rescale=("lazy", 5.5), splits=3),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_are_told_from_spoilt_ones(name, dtype):
    for seed in range(10):
        examination = examine(SOUND[name], "HARNESS", dtype=dtype, seed=seed)
        assert messages(examination) == []
        told = examination.facts["told apart"].value
        assert min(told.values()) > 3.0
        assert {"zeros", "NaN", "8-bit numbers", "keys without the last", "a scale 5 % too large"} <= set(
            told
        )


def test_sound_kernels_pass_in_float64():
    assert messages(examine(blocked_attention, "HARNESS", dtype="float64")) == []


@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes(path):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    for dtype in ("float32", "bfloat16", "float16"):
        assert messages(examine(getattr(torch_sdpa, path)(), "HARNESS", dtype=dtype)) == []


class FromMemory:
    """Says again what it said to a question of the same shapes."""

    __name__ = "FromMemory"

    def __init__(self):
        self.said = {}

    def __call__(self, q, k, v, *, mask=None, scale=None):
        key = (q.shape, k.shape, mask is not None)
        if key not in self.said:
            self.said[key] = TwoPass(lse_dtype=None)(q, k, v, mask=mask, scale=scale)
        return self.said[key]


class MaskOnce(FromMemory):
    """Takes the last key for masked in every call once one was: a buffer that is not cleared."""

    def __call__(self, q, k, v, *, mask=None, scale=None):
        output = TwoPass(lse_dtype=None)(q, k, v, mask=mask, scale=scale)
        return self.said.setdefault((q.shape, v.shape), output) if mask is None else output


@pytest.fixture(autouse=True)
def restored_arithmetic():
    """Set the flags back that some of these kernels leave behind."""
    yield
    restore_arithmetic()


MUTANTS = {
    "answers from memory": (FromMemory(), "the audit is blind here: it can't tell shifted keys"),
    "answers from memory where there is no mask": (
        MaskOnce(),
        "the audit is blind here: it can't tell shifted keys",
    ),
    "a carry declared so narrow that anything passes": (
        Subject(TwoPass(), arrays="numpy", carry=CarryModel("bfloat16", "bfloat16")),
        "the audit is blind here: it can't tell zeros",
    ),
    "flushes subnormal numbers for the whole process": (
        flushes_subnormals,
        "the arithmetic of this process is not that of IEEE 754: float64 subnormal numbers are flushed",
    ),
    "leaves another rounding direction behind": (
        rounds_upwards,
        "the arithmetic of this process is not that of IEEE 754: float64 sums are not rounded to nearest",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_can_not_be_told_is_said(name):
    if "subnormal" in name:
        pytest.importorskip("torch")
    kernel, fragment = MUTANTS[name]
    examination = examine(kernel, "HARNESS")
    restore_arithmetic()
    assert any(message.startswith(fragment) for message in messages(examination))


def test_a_bound_that_is_wide_because_it_was_declared_is_a_warning():
    kernel, _ = MUTANTS["a carry declared so narrow that anything passes"]
    assert [finding.severity for finding in examine(kernel, "HARNESS").findings] == ["warning"]
    assert [f.severity for f in examine(FromMemory(), "HARNESS").findings] == ["error"]


def test_an_absolute_tolerance_that_zeros_pass_is_found(monkeypatch):
    """KernelBench#165."""
    sound = tolerance._bound

    def loose(*arguments, **options):
        return np.maximum(sound(*arguments, **options), 2.0)

    monkeypatch.setattr(tolerance, "_bound", loose)
    examination = examine(TwoPass(), "HARNESS")
    assert [finding.severity for finding in examination.findings] == ["error"]
    assert "zeros" in messages(examination)[0]


def test_a_comparison_that_skips_what_is_not_a_number_is_found(monkeypatch):
    """cubecl#1070."""

    def skipping(self):
        return np.nan_to_num(self.output - self.golden.output, nan=0.0)

    monkeypatch.setattr(tolerance.Comparison, "error", property(skipping))
    assert messages(examine(TwoPass(), "HARNESS")) == [
        "the audit is blind here: it can't tell NaN from the right answer"
    ]


@pytest.mark.parametrize("what", ["rounding_faults", "golden_faults"])
def test_a_fault_of_the_machine_is_an_error(monkeypatch, what):
    monkeypatch.setattr(harness, what, lambda: ("something",))
    found = examine(TwoPass(), "HARNESS").findings
    assert [(f.severity, f.message.split(": ")[1]) for f in found] == [("error", "something")]


def test_a_kernel_that_is_wrong_is_left_to_ref():
    examination = examine(lambda q, k, v: 2 * TwoPass(lse_dtype=None)(q, k, v), "HARNESS")
    assert messages(examination) == []
    assert any("see REF" in entry.reason for entry in examination.skipped)
