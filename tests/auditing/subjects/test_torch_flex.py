"""torch's flex_attention as subjects: called rightly, plainly and compiled."""

import shutil

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import prepare
from softcarry.auditing.subjects import load_subject
from softcarry.auditing.subjects.torch_flex import _no_limit_of_variants
from subject_cases import (
    CASES,
    check_case,
    check_grouped_heads,
    dtypes_of_results,
    row_without_keys,
)

compiles = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile builds the kernel with g++, which is not installed"
)


@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(case):
    check_case(load_subject("torch-flex"), case)


@compiles
def test_it_means_the_same_compiled():
    """One test, because each variant takes seconds to build."""
    from torch._dynamo.utils import counters

    subject = load_subject("torch-flex-compiled")
    prepare(subject, "float32")
    before = counters["stats"]["unique_graphs"]
    check_case(subject, "softcap and boolean mask")
    assert counters["stats"]["unique_graphs"] > before
    output, lse, _ = row_without_keys(subject)
    assert not output.any()
    assert lse is None


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject("torch-flex"))


def test_a_row_without_keys_is_empty():
    output, lse, _ = row_without_keys(load_subject("torch-flex"))
    assert not output.any()
    assert lse == -np.inf


def test_the_lse_is_wider_than_16_bits():
    assert dtypes_of_results(load_subject("torch-flex")) == {
        "float64": ("float64", "float64"),
        "float32": ("float32", "float32"),
        "bfloat16": ("bfloat16", "float32"),
        "float16": ("float16", "float32"),
    }


def test_the_plain_path_is_not_fallen_back_to_after_some_variants():
    import torch

    with _no_limit_of_variants():
        assert torch._dynamo.config.fail_on_recompile_limit_hit
        assert torch._dynamo.config.recompile_limit > 10_000
        assert torch._dynamo.config.accumulated_recompile_limit > 10_000


@pytest.mark.parametrize("check", ["EMPTY", "LSE"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plain_path_is_sound(check, dtype):
    examination = examine(load_subject("torch-flex"), check, dtype=dtype)
    assert messages(examination) == []
    assert examination.calls
