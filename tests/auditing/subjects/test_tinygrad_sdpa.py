"""tinygrad's attention as a subject: called rightly, and its real faults found."""

import os
from shutil import which

import numpy as np
import pytest

from softcarry.auditing.subjects import KNOWN, load_subject
from softcarry.errors import MissingDependencyError
from subject_cases import check_case, check_grouped_heads, dtypes_of_results, row_without_keys, supported

pytest.importorskip("tinygrad", reason='needs pip install "softcarry[subjects]"')

NAME = "tinygrad-sdpa"
CASES = [case for case in supported(["mask", "causal"]) if case != "boolean mask and causal"]
compiled = pytest.mark.skipif(
    which(os.environ.get("CC", "clang")) is None, reason="tinygrad's CPU device needs clang"
)


@compiled
@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


@compiled
def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


@compiled
def test_outputs_have_the_dtype_of_the_inputs_and_there_is_no_lse():
    expected = {dtype: (dtype, "") for dtype in KNOWN[NAME].dtypes}
    assert dtypes_of_results(load_subject(NAME)) == expected


@compiled
def test_a_row_without_keys_is_nan():
    output, _, _ = row_without_keys(load_subject(NAME))
    assert np.isnan(output).all()


def test_without_a_compiler_it_does_not_load(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(MissingDependencyError, match="compiles with no-such-compiler, which is not there"):
        load_subject(NAME)
