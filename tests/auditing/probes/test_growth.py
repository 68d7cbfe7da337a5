"""GROWTH finds where a narrow carry stops, names what explains it, and is silent about wide ones."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass
from softcarry.auditing import Subject
from softcarry.auditing.probes import growth
from softcarry.numerics import CarryModel, EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, few keys a block": Online(key_block=24),
    "by the lse": LogAddExp(),
    "emulated, one key a block": EmulatedKernel(key_block=1),
    "emulated, backward in splits": EmulatedKernel(key_block=64, order="backward", splits=3),
    "emulated, lazy": EmulatedKernel(rescale=("lazy", 5.5)),
    "reference": blocked_attention,
}

# A fortieth of the work. Bounds grow with n, so that a false alarm comes at short lengths first.
SHORT = (64, 192, 384, 1024, 3072)


@pytest.fixture
def short_lengths(monkeypatch):
    monkeypatch.setattr(growth, "LENGTHS", SHORT)


@pytest.mark.usefixtures("short_lengths")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_wide_carries_pass(kernel, seed):
    examination = examine(kernel, "GROWTH", seed=seed)
    assert messages(examination) == []
    assert examination.facts["knee"].value is None


@pytest.mark.usefixtures("short_lengths")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_wide_carries_pass_in_16_bits(kernel, dtype):
    for seed in range(2):
        assert messages(examine(kernel, "GROWTH", dtype=dtype, seed=seed)) == []


@pytest.mark.parametrize("kernel", [SOUND["emulated, one key a block"], SOUND["reference"]])
def test_wide_carries_pass_at_all_lengths(kernel):
    examination = examine(kernel, "GROWTH")
    assert messages(examination) == []
    assert examination.calls == len(growth.LENGTHS)
    # A float32 sum walks at random at most: no drift.
    assert examination.facts["growth_slope"].value < 0.7


@pytest.mark.usefixtures("short_lengths")
def test_wide_carries_pass_in_float64():
    assert messages(examine(blocked_attention, "GROWTH", dtype="float64")) == []


@pytest.mark.usefixtures("short_lengths")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes(path, dtype):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    subject = getattr(torch_sdpa, path)()
    for seed in range(10):
        examination = examine(subject, "GROWTH", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.facts["knee"].value is None


def random_errors(examination):
    """n to error on normal scores, from the report's first curve."""
    curve = examination.curves[0]
    return dict(zip(curve.n, curve.measured, strict=True))


def test_torch_in_bfloat16_is_flat_from_256_to_16384_keys():
    """A walk of l would make the error grow by 8 and a stall by 100; rounding of P and the output does not.

    With those two roundings and a float32 carry the error stays below the bound. From below: a weight read
    through a power of two is rounded once to bfloat16, by up to u·2/(1 + x) of itself for a mantissa 1 + x;
    that 72 such readings all err by less than u/3 has a probability under (2/3)^72 = 2e-13.
    """
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    examination = examine(torch_sdpa.flash(), "GROWTH", dtype="bfloat16")
    error = random_errors(examination)
    bound = dict(zip(examination.curves[0].n, examination.curves[0].predicted, strict=True))
    ratio = error[16384] / error[256]
    derived = bound[16384] / (2.0**-8 / 3.0)
    figures = (
        f"{error[256]:.2e} at 256 keys, {error[16384]:.2e} at 16384, at most {derived:.1f} times as much"
    )
    assert error[256] > 2.0**-8 / 3.0
    assert ratio < derived < 16.0, figures
    assert abs(examination.facts["growth_slope"].value) < 0.1
    assert messages(examination) == []


def test_a_bfloat16_carry_is_not_flat_from_256_to_16384_keys():
    error = random_errors(
        examine(EmulatedKernel(l_format="bfloat16", key_block=16), "GROWTH", dtype="bfloat16")
    )
    assert error[16384] / error[256] > 16.0


@pytest.mark.parametrize("key_block", [1, 16, 64])
def test_the_naive_bfloat16_carry_stops_where_predicted(key_block):
    """l and o in bfloat16, one update a key block: 256 · Bc keys, within a factor of two."""
    kernel = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=key_block)
    declared = CarryModel(l_format="bfloat16", o_format="bfloat16", key_block=key_block)
    subject = Subject(kernel, arrays="numpy", options=(), control=True, carry=declared)
    for contract in ({"carry_format": "float32"}, None):
        examination = examine(subject, "GROWTH", contract=contract)
        assert len(examination.findings) == 1, messages(examination)
        finding = examination.findings[0]
        predicted = 256 * key_block
        assert finding.severity == "error"
        assert finding.message.startswith("the running sum l stops at ")
        assert predicted / 2 <= finding.evidence["knee"] <= predicted * 2
        assert finding.evidence["predicted_knee"] == predicted
        assert predicted / 2 <= examination.facts["knee"].value <= predicted * 2
        assert {"format": "bfloat16", "key_block": float(key_block), "updates": 256} in finding.evidence[
            "explanations"
        ][:2]
    # What equal scores lose is 1 − 256·Bc/n to the bit, read through an output of float32: a few u.
    curve = examination.curves[1]
    assert np.abs(np.subtract(curve.measured, curve.predicted)).max() < 2.0**-22


STALLS = {
    "l in bfloat16": ({"l_format": "bfloat16", "key_block": 8}, "l", 2048, "bfloat16"),
    "o in bfloat16": ({"o_format": "bfloat16", "key_block": 16}, "o", 4096, "bfloat16"),
    "l in float16": ({"l_format": "float16", "key_block": 1}, "l", 2048, "float16"),
    "o in float16": ({"o_format": "float16", "key_block": 4}, "o", 8192, "float16"),
    "l in bfloat16, splits": ({"l_format": "bfloat16", "key_block": 8, "splits": 4}, "l", 8192, None),
}


@pytest.mark.parametrize("name", STALLS)
def test_the_sum_that_stops_is_named(name):
    options, part, keys, format_ = STALLS[name]
    examination = examine(EmulatedKernel(**options), "GROWTH")
    assert len(examination.findings) == 1, messages(examination)
    finding = examination.findings[0]
    what = {"l": "the running sum l", "o": "the running output o"}[part]
    assert finding.message.startswith(f"{what} stops at {keys} keys: error ")
    assert finding.evidence["part"] == part
    if format_ is not None:
        assert finding.evidence["explanations"][0]["format"] == format_
        assert finding.evidence["explanations"][0]["key_block"] == options["key_block"]


def test_a_float16_sum_that_overflows_is_named():
    """64 keys a block: at 65536 keys the sum is beyond 65504 before it could stall."""
    examination = examine(EmulatedKernel(l_format="float16", key_block=64), "GROWTH")
    assert len(examination.findings) == 1
    assert (
        "l overflows between 49152 and 65536 keys, as a float16 does beyond 65504" in messages(examination)[0]
    )


def test_a_carry_too_wide_to_stall_fails_by_its_random_walk():
    examination = examine(EmulatedKernel(l_format="bfloat16", key_block=512), "GROWTH")
    assert len(examination.findings) == 1
    assert "the error is beyond the bound of the declared carry" in messages(examination)[0]
    assert "mostly from l" in messages(examination)[0]
    assert examination.facts["knee"].value is None


def test_stochastic_rounding_does_not_stop():
    """Its error is unbiased: the sum leaves its floor and keeps moving."""
    examination = examine(EmulatedKernel(l_format="bfloat16", key_block=16, rounding="stochastic"), "GROWTH")
    assert len(examination.findings) == 1
    assert "stops" not in messages(examination)[0]
    assert examination.findings[0].evidence["slope"] < 0.75


def test_roundings_of_one_sign_are_a_warning():
    """float32 rounded toward zero drifts by about n·u/2, inside the worst case n·u and beyond 6·√n·u."""
    examination = examine(EmulatedKernel(key_block=1, rounding="toward-zero"), "GROWTH")
    assert [f.severity for f in examination.findings] == ["warning"]
    assert "larger than random roundings" in messages(examination)[0]
    assert examination.facts["growth_slope"].value > 0.8


@pytest.mark.usefixtures("short_lengths")
def test_a_sum_inside_blocks_that_is_too_narrow_fails_without_growth():
    examination = examine(EmulatedKernel(block_format="bfloat16", key_block=32), "GROWTH")
    assert len(examination.findings) == 1
    assert "and does not grow with n" in messages(examination)[0]


def test_a_method_that_changes_with_the_length_is_not_fitted_with_one_slope():
    """As in tt-metal#52045: wrong from 4096 to 12288 keys and right beyond."""
    narrow, wide = EmulatedKernel(l_format="bfloat16", key_block=8), EmulatedKernel()

    def kernel(q, k, v):
        return (narrow if 4096 <= k.shape[2] <= 12288 else wide)(q, k, v)[0]

    examination = examine(kernel, "GROWTH")
    assert len(examination.findings) == 1
    assert "is small again at n = 16384" in messages(examination)[0]
    assert examination.findings[0].evidence["on_floor_again"] == [16384, 24576, 32768, 49152, 65536]
    assert "n ≤ 3072" in examination.facts["growth_slope"].evidence


def test_another_knee_than_declared_is_a_warning_too():
    kernel = EmulatedKernel(l_format="bfloat16", key_block=8)
    declared = CarryModel(l_format="bfloat16", key_block=64)
    examination = examine(Subject(kernel, arrays="numpy", options=(), carry=declared), "GROWTH")
    assert [f.severity for f in examination.findings] == ["error", "warning"]
    assert messages(examination)[1] == "the sum stops at 2048 keys, where the declared carry predicts 16384"


@pytest.mark.usefixtures("short_lengths")
def test_an_output_that_is_not_finite_is_said_to_be():
    def kernel(q, k, v):
        output = TwoPass(lse_dtype=None)(q, k, v)
        return output * np.float32(math.nan) if k.shape[2] > 1000 else output

    assert messages(examine(kernel, "GROWTH")) == ["the output is not finite from n = 1024"]


@pytest.mark.usefixtures("short_lengths")
def test_zeros_are_beyond_the_bound_at_every_length():
    examination = examine(lambda q, k, v: 0 * TwoPass(lse_dtype=None)(q, k, v), "GROWTH")
    assert [f.severity for f in examination.findings] == ["error"]
    assert examination.findings[0].evidence["first"] == 64


def test_lengths_that_a_kernel_refuses_are_left_out(monkeypatch):
    monkeypatch.setattr(growth, "LENGTHS", SHORT)

    def kernel(q, k, v, *, limit=2000):
        if k.shape[2] > limit:
            msg = f"at most {limit} keys"
            raise ValueError(msg)
        return TwoPass(lse_dtype=None)(q, k, v)

    examination = examine(kernel, "GROWTH")
    assert messages(examination) == []
    assert examination.curves[0].n == (64, 192, 384, 1024)
    assert len(examination.skipped) == 1
    examination = examine(lambda q, k, v: kernel(q, k, v, limit=200), "GROWTH")
    assert examination.curves == []
    assert examination.skipped[-1].reason == "the kernel took fewer than four of the lengths"


@pytest.mark.usefixtures("short_lengths")
def test_the_report_gets_both_curves_and_facts():
    examination = examine(TwoPass(), "GROWTH")
    assert [curve.n for curve in examination.curves] == [SHORT, SHORT]
    assert all(curve.check == "GROWTH" and curve.predicted is not None for curve in examination.curves)
    assert all(
        m < p for m, p in zip(examination.curves[0].measured, examination.curves[0].predicted, strict=True)
    )
    assert set(examination.facts) == {"growth_slope", "knee"}


MUTANTS = {
    name: (
        EmulatedKernel(**options),
        f"{'the running sum l' if part == 'l' else 'the running output o'} stops at {keys} keys",
    )
    for name, (options, part, keys, _) in STALLS.items()
}
"""The sums above that stop, for the table in docs/audit-mutants.md."""
