"""ONNX Runtime's standard Attention as a subject: called rightly, and its real faults found."""

import numpy as np
import pytest

import oracle
from examining import examine, messages
from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import KNOWN, load_subject
from softcarry.auditing.subjects.onnxruntime_attention import attention_kernel
from subject_cases import (
    check_case,
    check_grouped_heads,
    dtypes_of_results,
    problem,
    row_without_keys,
    supported,
)

pytest.importorskip("onnxruntime", reason='needs pip install "softcarry[subjects]"')
pytest.importorskip("onnx", reason='needs pip install "softcarry[subjects]"')

NAME = "onnxruntime-attention"


@pytest.mark.parametrize("case", supported(["mask", "causal", "scale", "softcap", "window", "kv_lengths"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


def test_causal_beside_lengths_is_refused_as_it_means_something_else():
    q, k, v, _ = problem()
    with pytest.raises(KernelRaisedError, match="the diagonal ends at each length"):
        prepare(load_subject(NAME), "float32")(q, k, v, causal=True, kv_lengths=np.array([3, 5]))


def test_a_row_without_keys_is_0():
    output, lse, _ = row_without_keys(load_subject(NAME))
    assert not output.any()
    assert lse is None


def test_float64_is_scaled_by_a_float32_square_root():
    """Found by the audit: with a scale whose root float32 holds, the error is that of float64."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, t, 16)) for t in (4, 6, 6))

    def error(scale):
        exact, _ = oracle.attention(q, k, v, scale=scale)
        return np.abs(attention_kernel(q, k, v, scale=scale) - exact).max()

    assert error(0.25) < 1e-14
    assert error(0.5) > 1e-10
    assert any("times the bound" in m for m in messages(examine(load_subject(NAME), "REF", dtype="float64")))


def test_float16_scores_are_found():
    found = messages(examine(load_subject(NAME), "RANGE", dtype="float16"))
    assert any("the scores overflow float16" in message for message in found)
