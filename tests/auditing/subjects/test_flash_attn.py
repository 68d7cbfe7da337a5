"""The adapter of flash-attn, against a stand-in that follows its documentation on a CPU."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import load_subject
from stand_ins import attend
from subject_cases import CASES, check_case, check_grouped_heads, dtypes_of_results, problem, supported

OPTIONS = ["causal", "scale", "softcap", "window", "kv_lengths", "dropout"]


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """(b, t, h, d); −1 is no side, 0.0 no cap; lse (b, h, tq), +inf on empty rows; aligned bottom-right."""
    assert alibi_slopes is None
    assert deterministic is False
    output, lse = attend(q, k, v, softmax_scale, causal, window_size, softcap)
    if dropout_p:
        output = output * 0 + dropout_p
    return (output, lse, None) if return_attn_probs else output


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Each entry of the batch has keys of its own length, and its diagonal ends there."""
    import torch

    assert cache_seqlens.dtype == torch.int32
    pairs = [
        attend(
            q[b : b + 1],
            k_cache[b : b + 1, :n],
            v_cache[b : b + 1, :n],
            softmax_scale,
            causal,
            window_size,
            softcap,
        )
        for b, n in enumerate(cache_seqlens.tolist())
    ]
    output, lse = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return (output, lse) if return_softmax_lse else output


@pytest.fixture
def subject(monkeypatch):
    stand_in = ModuleType("flash_attn")
    stand_in.flash_attn_func = flash_attn_func
    stand_in.flash_attn_with_kvcache = flash_attn_with_kvcache
    stand_in.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    return replace(load_subject("flash-attn"), device="")


@pytest.mark.parametrize("case", supported(OPTIONS))
def test_options_mean_what_they_say(subject, case):
    check_case(subject, case)


def test_grouped_heads_are_taken(subject):
    check_grouped_heads(subject)


def test_it_is_declared_as_documented(subject):
    declared = load_subject("flash-attn")
    assert (declared.device, declared.layout, declared.lse, declared.causal) == (
        "cuda",
        "bthd",
        "e",
        "bottom-right",
    )
    assert set(declared.keywords) == set(OPTIONS)
    assert dtypes_of_results(subject) == {d: (d, "float32") for d in ("bfloat16", "float16")}


def test_the_infinite_lse_of_an_empty_row_is_not_mended(subject):
    q, k, v, _ = problem()
    outcome = prepare(subject, "float32")(q, k[:, :, :3], v[:, :, :3], causal=True)
    assert (outcome.lse[:, :, 0] == np.inf).all()
    assert not outcome.output[:, :, 0].any()


def test_dropout_is_handed_over(subject):
    q, k, v, _ = problem()
    assert (prepare(subject, "float32")(q, k, v, dropout=0.25).output == 0.25).all()


@pytest.mark.parametrize("other", [{"causal": True}, {"window": (1, 0)}, {"dropout": 0.5}])
def test_lengths_are_called_alone(subject, other):
    q, k, v, _ = problem()
    with pytest.raises(KernelRaisedError, match="lengths are called alone"):
        prepare(subject, "float32")(q, k, v, kv_lengths=np.array([3, 5]), **other)


def test_masks_are_no_option(subject):
    assert "boolean mask" in CASES
    assert "mask" not in subject.keywords
