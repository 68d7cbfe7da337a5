"""ggml's flash attention as a subject: called rightly, and its real faults found."""

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

pytest.importorskip("xllamacpp", reason='needs pip install "softcarry[subjects]"')

NAME = "ggml-flash"


@pytest.mark.parametrize("case", supported(["mask", "scale", "softcap"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_sinks_are_keys_without_values():
    calling = prepare(load_subject(NAME), "float32")
    q, k, v = np.zeros((1, 2, 1, 8)), np.zeros((1, 2, 3, 8)), np.ones((1, 2, 3, 8))
    output, _ = calling(q, k, v, sinks=np.array([0.0, np.log(3.0)]))
    np.testing.assert_allclose(output[0, :, 0, 0], [0.75, 0.5], rtol=0, atol=1e-6)


def test_outputs_are_float32_whatever_the_inputs_and_there_is_no_lse():
    expected = dict.fromkeys(KNOWN[NAME].dtypes, ("float32", ""))
    assert dtypes_of_results(load_subject(NAME)) == expected


def test_a_mask_that_float16_does_not_hold_is_refused():
    q, k, v, mask = problem()
    with pytest.raises(KernelRaisedError, match="masks are float16"):
        prepare(load_subject(NAME), "float32")(q, k, v, mask=np.where(mask, 0.0, 1.0 + 2.0**-20))


def test_a_mask_of_one_row_counts_for_all_queries():
    q, k, v, mask = problem()
    calling = prepare(load_subject(NAME), "float32")
    one = calling(q, k, v, mask=mask[None, None, :1], broadcast_mask=False).output
    assert np.array_equal(one, calling(q, k, v, mask=np.broadcast_to(mask[:1], mask.shape)).output)


def test_a_mask_beyond_float16_hides_its_keys():
    q, k, v, mask = problem()
    calling = prepare(load_subject(NAME), "float32")
    hidden = calling(q, k, v, mask=np.where(mask, 0.0, -(2.0**30))).output
    assert np.array_equal(hidden, calling(q, k, v, mask=mask).output)


def test_a_row_without_keys_is_0():
    output, lse, _ = row_without_keys(load_subject(NAME))
    assert not output.any()
    assert lse is None


def test_its_float16_output_accumulator_is_found(monkeypatch):
    monkeypatch.setattr("softcarry.auditing.probes.growth.LENGTHS", (64, 256, 1024, 1536, 2048, 3072, 4096))
    found = messages(examine(load_subject(NAME), "GROWTH", dtype="float16"))
    assert any("the running output o stops at 2048 keys" in message for message in found)


def test_float32_is_clean():
    assert messages(examine(load_subject(NAME), "REF")) == []
