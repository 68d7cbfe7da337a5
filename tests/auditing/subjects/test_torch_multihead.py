"""torch.nn.MultiheadAttention as subjects: without projections, masks turned round, and its empty rows."""

import numpy as np
import pytest

from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import load_subject
from subject_cases import (
    answer,
    check_case,
    dtypes_of_results,
    problem,
    row_without_keys,
    supported,
)

NAMES = ["torch-multihead", "torch-multihead-weights"]
CASES = supported(["mask", "causal", "kv_lengths", "dropout"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(name, case):
    check_case(load_subject(name), case)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_mask_over_keys_alone_is_a_padding_mask(name, kind):
    q, k, v, _ = problem()
    seen = np.array([[True, False, True, True, False, True], [True] * 5 + [False]])
    mask = seen[:, None, None] if kind == "boolean" else np.where(seen, 0.0, -np.inf)[:, None, None]
    calling = prepare(load_subject(name), "float32")
    for more in ({}, {"kv_lengths": np.array([3, 5])}, {"causal": True}):
        outcome = calling(q, k, v, mask=mask, broadcast_mask=False, **more)
        for entry in (0, 1):
            one = slice(entry, entry + 1)
            length = {"kv_lengths": more["kv_lengths"][one]} if "kv_lengths" in more else {}
            output, _ = answer(
                q[one],
                k[one],
                v[one],
                alignment="top-left",
                mask=np.broadcast_to(seen[entry], (4, 6)),
                causal="causal" in more,
                **length,
            )
            np.testing.assert_allclose(outcome.output[one], output, rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_projections_are_left_out(name):
    """With one key the output is its value, and a NaN stays in its column of its head, in every dtype."""
    for dtype in ("float32", "bfloat16", "float16"):
        q, k, v, _ = problem()
        v[0, 1, 0, 3] = np.nan
        outcome = prepare(load_subject(name), dtype)(q, k[:, :, :1], v[:, :, :1])
        np.testing.assert_array_equal(outcome.output, np.broadcast_to(v[:, :, :1], outcome.output.shape))


@pytest.mark.parametrize("name", NAMES)
def test_other_modules_have_their_projections_back(name):
    import torch

    linear = torch.nn.functional.linear
    q, k, v, _ = problem()
    calling = prepare(load_subject(name), "float32")
    calling(q, k, v)
    with pytest.raises(KernelRaisedError):
        calling(q, k, v[..., :4])
    assert torch.nn.functional.linear is linear


def test_rows_without_keys_are_0_or_nan():
    output, lse, _ = row_without_keys(load_subject("torch-multihead"))
    assert not output.any()
    assert lse is None
    output, _, _ = row_without_keys(load_subject("torch-multihead-weights"))
    assert np.isnan(output).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_output_has_the_dtype_of_the_inputs(name):
    assert dtypes_of_results(load_subject(name)) == {
        dtype: (dtype, "") for dtype in ("float32", "bfloat16", "float16")
    }


@pytest.mark.parametrize("name", NAMES)
def test_dropout_drops_and_its_absence_does_not(name):
    q, k, v, _ = problem()
    calling = prepare(load_subject(name), "float32")
    plain = calling(q, k, v).output
    assert (calling(q, k, v, dropout=0.5).output != plain).any()
    np.testing.assert_array_equal(calling(q, k, v).output, plain)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_inputs(name):
    import torch

    q, k, v = (torch.from_numpy(x).float().requires_grad_() for x in problem()[:3])
    load_subject(name).kernel(q, k, v).sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in (q, k, v))


@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_are_refused(name):
    q, k, v, _ = problem()
    with pytest.raises(KernelRaisedError):
        prepare(load_subject(name), "float32")(q, k[:, :1], v[:, :1])
