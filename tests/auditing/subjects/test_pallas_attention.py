"""jax's Pallas attention as a subject: called rightly, and its real faults seen."""

import numpy as np
import pytest

from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.golden import golden_attention
from softcarry.auditing.subjects import load_subject
from subject_cases import check_case, dtypes_of_results, problem, supported

NAME = "pallas-mha"


@pytest.mark.parametrize("case", supported(["causal", "scale"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_the_lse_is_float32():
    assert dtypes_of_results(load_subject(NAME)) == {
        dtype: (dtype, "float32") for dtype in ("float32", "bfloat16")
    }


def test_more_than_one_block_must_be_whole_blocks():
    q, k, v, _ = problem()
    long = (np.resize(x, (1, 1, 129, 8)) for x in (k, v))
    with pytest.raises(KernelRaisedError, match="must be a multiple of"):
        prepare(load_subject(NAME), "float32")(q[:1, :1], *long)


def test_causal_rows_past_the_last_key_are_right_in_one_block_and_not_in_two():
    """The loop over keys goes as far as the queries do, past the end of K: NaN comes from there."""
    calling = prepare(load_subject(NAME), "float32")
    k = v = np.random.default_rng(0).integers(-8, 9, (1, 1, 128, 8)) / 8.0
    for queries, sound in ((128, True), (256, False)):
        q = np.resize(k, (1, 1, queries, 8))
        output = calling(q, k, v, causal=True).output
        exact = golden_attention(q, k, v, causal="top-left").output
        np.testing.assert_allclose(output[:, :, :128], exact[:, :, :128], rtol=0, atol=4e-6)
        assert bool(np.allclose(output, exact, rtol=0, atol=4e-6)) is sound
