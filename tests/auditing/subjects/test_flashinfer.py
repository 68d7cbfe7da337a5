"""The adapter of FlashInfer, against a stand-in that follows its documentation on a CPU."""

import math
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import load_subject
from stand_ins import attend
from subject_cases import check_case, check_grouped_heads, dtypes_of_results, problem

OPTIONS = ["mask", "causal", "scale", "softcap", "window"]
CASES = [
    "nothing",
    "scale",
    "boolean mask",
    "causal",
    "softcap",
    "softcap and boolean mask",
    "window without an end",
]


def single_prefill_with_kv_cache(
    q,
    k,
    v,
    scale_q=None,
    scale_k=None,
    scale_v=None,
    o_dtype=None,
    custom_mask=None,
    packed_custom_mask=None,
    causal=False,
    kv_layout="NHD",
    pos_encoding_mode="NONE",
    use_fp16_qk_reduction=False,
    sm_scale=None,
    window_left=-1,
    logits_soft_cap=None,
    rope_scale=None,
    rope_theta=None,
    backend="auto",
    return_lse=False,
):
    """q (tq, h, d), k and v (tk, h, d); a mask (tq, tk) makes causal void; lse (tq, h) in base 2."""
    import torch

    assert q.ndim == k.ndim == v.ndim == 3
    assert kv_layout == "NHD"
    if custom_mask is not None:
        assert custom_mask.dtype == torch.bool
        assert custom_mask.shape == (len(q), len(k))
        causal = False
    cap = 0.0 if logits_soft_cap is None else logits_soft_cap
    output, lse = attend(q[None], k[None], v[None], sm_scale, causal, (window_left, -1), cap, custom_mask)
    lse2 = lse[0].T * math.log2(math.e)
    lse2 = torch.where(lse2 == math.inf, -math.inf, lse2)
    return (output[0], lse2) if return_lse else output[0]


@pytest.fixture
def subject(monkeypatch):
    stand_in = ModuleType("flashinfer")
    stand_in.single_prefill_with_kv_cache = single_prefill_with_kv_cache
    stand_in.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in)
    return replace(load_subject("flashinfer"), device="")


@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(subject, case):
    check_case(subject, case)


def test_grouped_heads_are_taken(subject):
    check_grouped_heads(subject)


def test_it_is_declared_as_documented(subject):
    declared = load_subject("flashinfer")
    assert (declared.device, declared.layout, declared.lse, declared.causal) == (
        "cuda",
        "bthd",
        "2",
        "bottom-right",
    )
    assert set(declared.keywords) == set(OPTIONS)
    assert dtypes_of_results(subject) == {d: (d, "float32") for d in ("bfloat16", "float16")}


def test_a_window_beside_causal(subject):
    q, k, v, _ = problem()
    calling = prepare(subject, "float32")
    left = calling(q, k, v, causal=True, window=(1, None)).output
    np.testing.assert_array_equal(calling(q, k, v, causal=True, window=(1, 0)).output, left)
    assert (calling(q, k, v, causal=True).output != left).any()
    np.testing.assert_array_equal(
        calling(q, k, v, causal=True, window=(None, 0)).output, calling(q, k, v, causal=True).output
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": np.zeros((4, 6))}, "custom_mask is boolean"),
        ({"mask": np.arange(48).reshape(1, 2, 4, 6) % 5 > 0}, "one for all heads"),
        ({"mask": np.ones((4, 6), bool), "causal": True}, "takes the place of causal"),
        ({"window": (1, 1)}, "a left side only"),
        ({"window": (1, 0)}, "a left side only"),
    ],
)
def test_what_the_library_does_not_have_is_refused(subject, options, message):
    q, k, v, _ = problem()
    with pytest.raises(KernelRaisedError, match=message):
        prepare(subject, "float32")(q, k, v, **options)


def test_a_batch_has_masks_of_its_own(subject):
    q, k, v, mask = problem()
    both = np.stack([mask, ~mask | (np.arange(6) == 1)])[:, None]
    calling = prepare(subject, "float32")
    together = calling(q, k, v, mask=both).output
    for entry in (0, 1):
        one = slice(entry, entry + 1)
        alone = calling(q[one], k[one], v[one], mask=both[one]).output
        np.testing.assert_array_equal(together[one], alone)
