"""MLX's attention as a subject: called rightly, and its real faults found."""

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import KNOWN, load_subject
from subject_cases import (
    check_case,
    check_grouped_heads,
    dtypes_of_results,
    problem,
    row_without_keys,
    supported,
)

pytest.importorskip("mlx.core", reason='needs pip install "softcarry[subjects]"')

NAME = "mlx-sdpa"
CASES = [case for case in supported(["mask", "causal", "scale"]) if case != "boolean mask and causal"]


@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_a_mask_beside_causal_is_refused():
    q, k, v, mask = problem()
    with pytest.raises(KernelRaisedError, match="a mask or causal, not both"):
        prepare(load_subject(NAME), "float32")(q, k, v, causal=True, mask=mask)


def test_sinks_are_keys_without_values():
    calling = prepare(load_subject(NAME), "float32")
    q, k, v = np.zeros((1, 2, 1, 8)), np.zeros((1, 2, 3, 8)), np.ones((1, 2, 3, 8))
    output, _ = calling(q, k, v, sinks=np.array([0.0, np.log(3.0)]))
    np.testing.assert_allclose(output[0, :, 0, 0], [0.75, 0.5], rtol=0, atol=1e-6)


def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


def test_a_row_without_keys_is_the_mean_of_all_values_or_nan_and_found():
    output, _, values = row_without_keys(load_subject(NAME))
    np.testing.assert_allclose(output, values.mean(axis=0), rtol=0, atol=1e-6)
    found = messages(examine(load_subject(NAME), "EMPTY"))
    assert "rows without keys give the mean of V over all keys, where 0 is promised" in found
    assert "rows without keys give NaN, where 0 is promised" in found


def test_causal_wraps_around_with_more_queries_than_keys():
    calling = prepare(load_subject(NAME), "float32")
    q, k = np.zeros((1, 1, 5, 8)), np.zeros((1, 1, 3, 8))
    output, _ = calling(q, k, np.eye(3, 8)[None, None], causal=True)
    assert np.count_nonzero(output[0, 0], axis=-1).tolist() == [3, 3, 1, 2, 3]


def test_narrow_scores_are_found():
    found = messages(examine(load_subject(NAME), "RANGE", dtype="bfloat16"))
    assert any("scores rounded to bfloat16 would do that" in message for message in found)
