"""ONNX Runtime's MultiHeadAttention as a subject: called rightly, and its real faults found."""

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import prepare
from softcarry.auditing.subjects import KNOWN, load_subject
from softcarry.auditing.subjects.onnxruntime_multi_head import additive, packed, unpacked
from subject_cases import check_case, dtypes_of_results, row_without_keys, supported

pytest.importorskip("onnxruntime", reason='needs pip install "softcarry[subjects]"')
pytest.importorskip("onnx", reason='needs pip install "softcarry[subjects]"')

NAME = "onnxruntime-mha"


@pytest.mark.parametrize("case", supported(["mask", "scale", "kv_lengths"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5)])
def test_causal_is_top_left_but_for_a_last_row_of_fewer_queries(queries, keys):
    calling = prepare(load_subject(NAME), "float32")
    q, k = np.zeros((1, 1, queries, 8)), np.zeros((1, 1, keys, 8))
    output, _ = calling(q, k, np.eye(keys, 8)[None, None], causal=True)
    seen = np.count_nonzero(output[0, 0], axis=-1).tolist()
    assert seen == [*range(1, queries), keys]


def test_a_row_without_keys_is_nan_and_found():
    output, _, _ = row_without_keys(load_subject(NAME))
    assert np.isnan(output).all()
    found = messages(examine(load_subject(NAME), "EMPTY"))
    assert "rows without keys give NaN, where 0 is promised" in found
    assert "rows without keys give the mean of V over some keys, where 0 is promised" in found


def test_heads_are_packed_behind_the_tokens():
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    assert packed(x)[0, 1].tolist() == [4, 5, 6, 7, 16, 17, 18, 19]
    assert np.array_equal(unpacked(packed(x), 2), x)


def test_booleans_become_0_and_minus_infinity():
    given = additive(np.array([[True, False]]), np.dtype(np.float16))
    assert given.tolist() == [[0.0, -np.inf]]
    assert given.dtype == np.float16
    assert additive(None, np.dtype(np.float16)) is None
