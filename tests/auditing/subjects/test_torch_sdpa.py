"""torch's kernels as subjects: called rightly, and their real faults found."""

import numpy as np
import pytest

import oracle
import softcarry as sc
from softcarry.auditing._calling import prepare
from softcarry.auditing.subjects import load_subject

NAMES = ["torch-sdpa-flash", "torch-sdpa-math"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["none", "boolean", "additive", "causal"])
def test_options_mean_what_they_say(name, kind):
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-8, 9, (1, 2, t, 8)) / 8.0 for t in (4, 6, 6))
    mask = rng.random((4, 6)) < 0.6
    mask[:, 0] = True
    options = {
        "none": {},
        "boolean": {"mask": mask},
        "additive": {"mask": np.where(mask, 0.0, -np.inf)},
        "causal": {"causal": True},
    }[kind]
    calling = prepare(load_subject(name), "float32")
    outcome = calling(q, k, v, scale=0.5, **options)
    exact = {"mask": mask if "mask" in options else None, "causal": "top-left" if kind == "causal" else False}
    output, lse = oracle.attention(q, k, v, scale=0.5, **exact)
    # Six products and sums of size below 10, in float32 on one side.
    np.testing.assert_allclose(outcome.output, output, rtol=0, atol=2e-6)
    if calling.returns_lse:
        np.testing.assert_allclose(outcome.lse, lse, rtol=0, atol=2e-6)


def test_the_flash_operators_lse_of_an_empty_row_is_found():
    report = sc.audit("torch-sdpa-flash", only=["EMPTY", "LSE"], dtypes="float32")
    found = {finding.message: finding for finding in report.findings}
    assert not report.ok
    empty = found["the lse of rows without keys is 0, not −inf"]
    assert empty.evidence["lse"] == 0.0
    assert empty.evidence["rows"] == [1, 4, 5, 7]
    assert "return −inf where l = 0" in empty.remedy
    assert "a part without keys has weight in a merge: its lse is 0" in found
    assert "the process dies when there are no keys (tk = 0): killed by SIGFPE" in found
    assert len(found) == 3
    assert report.profile["float32"]["empty rows"].value == "ZERO"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_flash_operator_in_16_bits_has_the_same_fault_and_no_other(dtype):
    report = sc.audit("torch-sdpa-flash", only="LSE", dtypes=dtype)
    assert [f.message for f in report.findings] == ["a part without keys has weight in a merge: its lse is 0"]


def test_the_math_path_is_sound_and_returns_no_lse():
    report = sc.audit("torch-sdpa-math", only=["EMPTY", "LSE"], dtypes="float32")
    assert report.ok
    assert [v.outcome for v in report.verdicts] == ["pass", "skip"]
    assert any("Explicit attn_mask" in skip.reason for skip in report.skipped)
