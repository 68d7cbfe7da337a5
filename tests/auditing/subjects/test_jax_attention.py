"""jax.nn.dot_product_attention as a subject: called rightly, and its real faults found."""

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing.subjects import load_subject
from subject_cases import check_case, check_grouped_heads, dtypes_of_results, row_without_keys, supported

NAME = "jax-dot-product"


@pytest.mark.parametrize("case", supported(["mask", "causal", "scale", "window", "kv_lengths"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_the_lse_has_the_dtype_of_the_inputs():
    assert dtypes_of_results(load_subject(NAME)) == {
        "float32": ("float32", "float32"),
        "bfloat16": ("bfloat16", "bfloat16"),
    }


def test_a_row_without_keys_is_the_mean_of_all_values():
    output, lse, values = row_without_keys(load_subject(NAME))
    np.testing.assert_allclose(output, values.mean(axis=0), rtol=0, atol=1e-6)
    assert lse == pytest.approx(-0.7 * np.finfo(np.float32).max)


def test_its_empty_rows_are_found():
    found = messages(examine(load_subject(NAME), "EMPTY"))
    assert any("rows without keys give the mean of V over all keys" in message for message in found)
    assert any("the lse of rows without keys is -2.38198e+38" in message for message in found)


def test_its_narrow_lse_is_found():
    assert "the lse is returned in bfloat16" in messages(examine(load_subject(NAME), "LSE", dtype="bfloat16"))
