"""What the audit relies on is right here, and would be seen to be wrong."""

import numpy as np
import pytest

from softcarry.auditing import self_test
from softcarry.auditing.self_test import arithmetic_faults, golden_faults, rounding_faults
from softcarry.numerics._formats import FloatFormat


def test_nothing_is_wrong_here():
    assert arithmetic_faults() == []
    assert rounding_faults() == ()
    assert golden_faults() == ()


def test_flushed_subnormals_are_seen():
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero flag")
    try:
        found = arithmetic_faults()
    finally:
        torch.set_flush_denormal(False)
    assert found == [f"{name} subnormal numbers are flushed to zero" for name in ("float64", "float32")]
    assert arithmetic_faults() == []


@pytest.mark.parametrize("fault", ["halves away from zero", "no subnormals", "twice"])
def test_a_rounding_that_is_wrong_is_seen(monkeypatch, fault):
    sound = FloatFormat.round

    def wrong(self, x, mode="nearest-even", **options):
        if fault == "halves away from zero":  # QPyTorch#23
            return sound(self, x, "nearest-away", **options)
        if fault == "twice":
            x = sound(FloatFormat("between", self.exponent_bits, self.mantissa_bits + 2), x)
        rounded = sound(self, x, mode, **options)
        if fault == "no subnormals":  # QPyTorch#24
            return np.where(np.abs(rounded) < self.smallest_normal, 0.0, rounded)
        return rounded

    monkeypatch.setattr(FloatFormat, "round", wrong)
    found = rounding_faults.__wrapped__()
    assert [entry.split(":")[0] for entry in found] == ["bfloat16", "float16"]


@pytest.mark.parametrize("fault", ["float32", "lse", "last key"])
def test_a_golden_answer_that_is_wrong_is_seen(monkeypatch, fault):
    sound = self_test.golden_attention

    def wrong(q, k, v):
        golden = sound(q, k, v)
        if fault == "float32":
            return golden._replace(output=golden.output.astype(np.float32).astype(np.float64))
        if fault == "lse":
            return golden._replace(lse=np.nextafter(golden.lse, np.inf) + 1e-12)
        return sound(q, k[:, :, :-1], v[:, :, :-1])._replace(scores=golden.scores)

    monkeypatch.setattr(self_test, "golden_attention", wrong)
    assert golden_faults.__wrapped__()
