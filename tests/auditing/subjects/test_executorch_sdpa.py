"""ExecuTorch's custom_sdpa as a subject: called rightly, and its real faults found."""

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

pytest.importorskip("executorch", reason="needs pip install --no-deps executorch")

NAME = "executorch-sdpa"
CASES = [case for case in supported(["mask", "causal", "scale"]) if case != "boolean mask and causal"]


@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


def test_a_mask_that_differs_between_heads_is_refused():
    q, k, v, mask = problem()
    both = np.stack([mask, ~mask])[None]
    with pytest.raises(KernelRaisedError, match="one mask"):
        prepare(load_subject(NAME), "float32")(q, k, v, mask=both)


def test_a_row_without_keys_is_nan_and_found():
    output, _, _ = row_without_keys(load_subject(NAME))
    assert np.isnan(output).all()
    assert "rows without keys give NaN, where 0 is promised" in messages(examine(load_subject(NAME), "EMPTY"))


def test_nothing_of_it_reaches_the_standard_error_stream(capfd):
    q, k, v, _ = problem()
    prepare(load_subject(NAME), "float32")(q, k, v)
    assert capfd.readouterr().err == ""
