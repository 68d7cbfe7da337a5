"""ONNX Runtime's GroupQueryAttention as a subject: called rightly, and its real faults found."""

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import KNOWN, load_subject
from subject_cases import answer, check_case, check_grouped_heads, dtypes_of_results, problem, supported

pytest.importorskip("onnxruntime", reason='needs pip install "softcarry[subjects]"')
pytest.importorskip("onnx", reason='needs pip install "softcarry[subjects]"')

NAME = "onnxruntime-gqa"


@pytest.mark.parametrize("case", supported(["mask", "causal", "scale", "softcap"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


def test_windows_reach_to_the_left_and_hold_the_diagonal():
    q, k, v, _ = problem()
    options = {"causal": True, "window": (2, 0)}
    outcome = prepare(load_subject(NAME), "float32")(q, k, v, **options)
    output, _ = answer(q, k, v, alignment="bottom-right", **options)
    np.testing.assert_allclose(outcome.output, output, rtol=0, atol=4e-6)


def test_sinks_are_keys_without_values():
    calling = prepare(load_subject(NAME), "float32")
    q, k, v = np.zeros((1, 2, 1, 16)), np.zeros((1, 2, 3, 16)), np.ones((1, 2, 3, 16))
    output, _ = calling(q, k, v, sinks=np.array([0.0, np.log(3.0)]))
    np.testing.assert_allclose(output[0, :, 0, 0], [0.75, 0.5], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (5, {"causal": True}, "no more queries than keys; got 5 and 3"),
        (2, {"window": (1, 0)}, "only with causal"),
        (2, {"causal": True, "window": (1, 1)}, "windows to the left"),
    ],
)
def test_what_the_operator_lacks_is_refused(queries, options, message):
    calling = prepare(load_subject(NAME), "float32")
    q, k = np.zeros((1, 1, queries, 16)), np.zeros((1, 1, 3, 16))
    with pytest.raises(KernelRaisedError, match=message):
        calling(q, k, k, **options)


def test_empty_rows_of_float16_are_nan_where_those_of_float32_are_0():
    assert messages(examine(load_subject(NAME), "EMPTY")) == []
    found = messages(examine(load_subject(NAME), "EMPTY", dtype="float16"))
    assert found == ["rows without keys give NaN, where 0 is promised"]
