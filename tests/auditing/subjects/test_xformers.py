"""The adapter of xFormers, against a stand-in that follows its documentation on a CPU."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest

from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import load_subject
from stand_ins import attend
from subject_cases import check_case, dtypes_of_results, problem, supported

OPTIONS = ["mask", "causal", "scale", "window"]
CASES = [case for case in supported(OPTIONS) if case != "boolean mask and causal"]


@dataclass
class LocalAttentionFromBottomRightMask:
    window_left: int
    window_right: int


class LowerTriangularFromBottomRightMask:
    pass


def forward_requires_grad(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    """(b, t, h, d); a tensor as attn_bias is (b, h, tq, tk) in the dtype of q; lse (b, h, tq or more)."""
    import torch

    assert p == 0.0
    assert query.shape[2] == key.shape[2]
    causal = isinstance(attn_bias, LowerTriangularFromBottomRightMask)
    window, bias = (-1, -1), None
    if isinstance(attn_bias, LocalAttentionFromBottomRightMask):
        window = attn_bias.window_left, attn_bias.window_right
        assert min(window) >= 0
    elif attn_bias is not None and not causal:
        bias = attn_bias
        assert bias.dtype == query.dtype
        assert bias.shape == (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    output, lse = attend(query, key, value, scale, causal, window, 0.0, bias)
    return output, torch.nn.functional.pad(lse, (0, -lse.shape[2] % 32), value=float("inf"))


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    return forward_requires_grad(query, key, value, attn_bias, p, scale)[0]


@pytest.fixture
def subject(monkeypatch):
    names = ("xformers", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias")
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
        module.__spec__ = sys.__spec__
        monkeypatch.setitem(sys.modules, name, module)
    bias = modules["xformers.ops.fmha.attn_bias"]
    bias.LocalAttentionFromBottomRightMask = LocalAttentionFromBottomRightMask
    bias.LowerTriangularFromBottomRightMask = LowerTriangularFromBottomRightMask
    modules["xformers.ops"].memory_efficient_attention = memory_efficient_attention
    modules["xformers.ops"].memory_efficient_attention_forward_requires_grad = forward_requires_grad
    return replace(load_subject("xformers"), device="")


@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(subject, case):
    check_case(subject, case)


def test_it_is_declared_as_documented(subject):
    declared = load_subject("xformers")
    assert (declared.device, declared.layout, declared.lse, declared.causal) == (
        "cuda",
        "bthd",
        "e",
        "bottom-right",
    )
    assert set(declared.keywords) == set(OPTIONS)
    assert dtypes_of_results(subject) == {d: (d, "float32") for d in ("float32", "bfloat16", "float16")}


def test_one_bias_at_a_time(subject):
    q, k, v, mask = problem()
    calling = prepare(subject, "float32")
    for options in ({"mask": mask, "causal": True}, {"causal": True, "window": (1, 0)}):
        with pytest.raises(KernelRaisedError, match="one of a mask, causal and a window"):
            calling(q, k, v, **options)


def test_gradients_go_through_the_form_that_has_them(subject):
    import torch

    q, k, v = (torch.from_numpy(np.swapaxes(x, 1, 2)).float().requires_grad_() for x in problem()[:3])
    output = subject.kernel(q, k, v)
    assert isinstance(output, torch.Tensor)
    output.sum().backward()
    assert all(x.grad is not None for x in (q, k, v))
    with torch.no_grad():
        assert len(subject.kernel(q, k, v)) == 2
