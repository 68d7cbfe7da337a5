"""Softmaxes of libraries as subjects: called rightly, and their real faults found."""

import numpy as np
import pytest

import oracle
from examining import examine, messages
from softcarry.auditing._calling import prepare
from softcarry.auditing.subjects import KNOWN, load_subject

NAMES = [name for name, entry in KNOWN.items() if name.endswith("-softmax")]
LENGTHS = (64, 128, 192, 256, 384, 512, 1024, 2048, 3072, 4096)


def loaded(name):
    if not KNOWN[name].available:
        pytest.skip(f"needs {KNOWN[name].install}")
    return load_subject(name)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_formula(name):
    subject = loaded(name)
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-8, 9, (1, 2, t, 8)) / 8.0 for t in (4, 6, 6))
    mask = rng.random((4, 6)) < 0.6
    mask[:, 0] = True
    for dtype in subject.dtypes:
        u = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
        outcome = prepare(subject, dtype)(q, k, v, mask=mask)
        output, _ = oracle.attention(q, k, v, mask=mask)
        # Scores up to 3 rounded once, and a handful of roundings of each of six weights.
        np.testing.assert_allclose(outcome.output, output, rtol=0, atol=32 * u)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("softcarry-softmax",)])
def test_a_row_without_scores_is_nan_and_found(name):
    subject = loaded(name)
    found = messages(examine(subject, "EMPTY", dtype=subject.dtypes[0]))
    assert "rows without keys give NaN, where 0 is promised" in found


def test_softcarrys_is_clean():
    for dtype in ("float32", "bfloat16"):
        assert messages(examine(load_subject("softcarry-softmax"), "EMPTY", dtype=dtype)) == []


def test_the_controls_sum_is_found_to_stop_at_256(monkeypatch):
    monkeypatch.setattr("softcarry.auditing.probes.growth.LENGTHS", LENGTHS)
    examination = examine(load_subject("control-numpy-softmax"), "GROWTH", dtype="bfloat16")
    assert any("the running sum l stops at 256 keys" in message for message in messages(examination))


@pytest.mark.parametrize(
    "name", ["torch-softmax", "tract-softmax", "executorch-softmax", "softcarry-softmax"]
)
def test_sums_of_16_bits_do_not_stop(name, monkeypatch):
    """tract PR#2586 and executorch PR#20090 are mended in the versions that are tested."""
    monkeypatch.setattr("softcarry.auditing.probes.growth.LENGTHS", LENGTHS)
    examination = examine(loaded(name), "GROWTH", dtype="float16")
    assert messages(examination) == []
    assert examination.calls
