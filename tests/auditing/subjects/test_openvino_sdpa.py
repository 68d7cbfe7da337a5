"""OpenVINO's attention as a subject: called rightly, and its real faults found."""

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import prepare
from softcarry.auditing.subjects import KNOWN, load_subject
from subject_cases import check_case, dtypes_of_results, problem, row_without_keys, supported

pytest.importorskip("openvino", reason='needs pip install "softcarry[subjects]"')

NAME = "openvino-sdpa"
CASES = [case for case in supported(["mask", "causal", "scale"]) if case != "boolean mask and causal"]


@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_a_mask_is_ignored_beside_causal_and_that_is_found():
    q, k, v, mask = problem()
    calling = prepare(load_subject(NAME), "float32")
    alone = calling(q, k, v, causal=True).output
    assert np.array_equal(calling(q, k, v, causal=True, mask=mask).output, alone)
    found = messages(examine(load_subject(NAME), "EMPTY"))
    assert any("boolean mask beside a causal one" in message for message in found)


def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_inside_is_float32_on_every_processor(dtype):
    """A single key comes back bit for bit, and a score of 2^-9 is not lost beside 1."""
    q, k = np.ones((1, 1, 1, 2)), np.zeros((1, 1, 2, 2))
    k[0, 0, :, 0], k[0, 0, 1, 1] = 1.0, 2.0**-9
    v = np.zeros((1, 1, 2, 2))
    v[0, 0, 0, 0], v[0, 0, 1, 1] = 1.0, 1.0
    output, _ = prepare(load_subject(NAME), "float32")(q, k, v, scale=1.0)
    assert np.log(output[0, 0, 0, 1] / output[0, 0, 0, 0]) == pytest.approx(2.0**-9, rel=1e-3)
    single, _ = prepare(load_subject(NAME), dtype)(q, k[:, :, :1], v[:, :, :1])
    assert np.array_equal(single, v[:, :, :1])


def test_a_row_without_keys_is_nan_and_found():
    output, _, _ = row_without_keys(load_subject(NAME))
    assert np.isnan(output).all()
    assert "rows without keys give NaN, where 0 is promised" in messages(examine(load_subject(NAME), "EMPTY"))
