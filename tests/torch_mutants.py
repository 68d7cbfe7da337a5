"""torch attention with a backward pass of its own: a sound one, and ones with a single known fault.

torch is imported when a kernel is called, so that tests without torch can import this module.
"""

import math

FAULTS = (
    "",
    "forgets D",
    "ignores the mask",
    "ignores causal",
    "NaN on empty rows",
    "dQ without the scale",
    "drops the last key",
    "drops the last key block",
    "dS transposed",
    "D in bfloat16",
    "empty rows leak",
    "no maximum",
)


def rule_of(mask, causal, shape):
    """The boolean mask (…, tq, tk) of a call, or None."""
    import torch

    tq, tk = shape[-2:]
    rule = torch.ones(tq, tk, dtype=torch.bool).tril(tk - tq) if causal else None
    if mask is not None and mask.dtype == torch.bool:
        rule = mask if rule is None else rule & mask
    return rule


def scores_of(q, k, mask, causal, scale):
    """Scaled scores, −inf where masked."""
    import torch

    s = scale * (q @ k.mT)
    if mask is not None and mask.dtype != torch.bool:
        s = s + mask.to(s.dtype)
    rule = rule_of(mask, causal, s.shape)
    return s if rule is None else s.masked_fill(~rule, -torch.inf)


class Backward:
    """Flash attention's backward pass, P computed again from the lse, with one fault of ``FAULTS`` or none.

    Sums are float32, or float64 for float64; the gradients are rounded once.
    """

    def __init__(self, fault=""):
        assert fault in FAULTS
        self.fault = fault
        self.__name__ = fault or "sound backward"

    def __call__(self, q, k, v, *, mask=None, causal=False, scale=None):
        scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
        return _function().apply(q, k, v, mask, causal, scale, self.fault)


def _function():
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, mask, causal, scale, fault):
            wide = torch.promote_types(q.dtype, torch.float32)
            s = scores_of(q.to(wide), k.to(wide), mask, causal, scale)
            lse = torch.logsumexp(s, dim=-1, keepdim=True)
            empty = lse == -torch.inf
            p = torch.where(empty, 0.0, torch.exp(s - torch.where(empty, 0.0, lse)))
            output = (p @ v.to(wide)).to(q.dtype)
            ctx.save_for_backward(q, k, v, output, lse)
            ctx.options = mask, causal, scale, fault
            return output

        @staticmethod
        def backward(ctx, grad):
            q, k, v, output, lse = ctx.saved_tensors
            mask, causal, scale, fault = ctx.options
            wide = lse.dtype
            dtype = q.dtype
            q, k, v, output, grad = (x.to(wide) for x in (q, k, v, output, grad))
            if fault == "ignores the mask":
                mask = None
            if fault == "ignores causal":
                causal = False
            s = scores_of(q, k, mask, causal, scale)
            empty = lse == -torch.inf
            if fault == "no maximum":
                p = torch.exp(s) / torch.exp(lse)
                p = torch.where(empty, 0.0, p)
            elif fault == "NaN on empty rows":
                p = torch.exp(s - lse)
            elif fault == "empty rows leak":
                p = torch.exp(torch.where(empty, 0.0, s - lse)) / torch.where(empty, float(s.shape[-1]), 1.0)
            else:
                p = torch.where(empty, 0.0, torch.exp(s - torch.where(empty, 0.0, lse)))
            rows = (grad * output).sum(dim=-1, keepdim=True)
            if fault == "D in bfloat16":
                rows = rows.to(torch.bfloat16).to(wide)
            if fault == "forgets D":
                rows = torch.zeros_like(rows)
            ds = p * (grad @ v.mT - rows)
            if fault == "dS transposed" and ds.shape[-1] == ds.shape[-2]:
                ds = ds.mT
            dq = ds @ k * (1.0 if fault == "dQ without the scale" else scale)
            dk, dv = scale * (ds.mT @ q), p.mT @ grad
            if fault == "drops the last key":
                dk[:, :, -1] = 0.0
            if fault == "drops the last key block" and k.shape[2] > 64:
                dk[:, :, k.shape[2] // 64 * 64 :] = 0.0
                dv[:, :, k.shape[2] // 64 * 64 :] = 0.0
            return dq.to(dtype), dk.to(dtype), dv.to(dtype), None, None, None, None

    return Attention


def eager(q, k, v, *, mask=None, causal=False, scale=None):
    """Attention and its lse by torch's own operations, differentiable as often as one likes."""
    import torch

    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = scores_of(q, k, mask, causal, scale)
    empty = (s == -torch.inf).all(dim=-1, keepdim=True)
    s = s.masked_fill(empty, 0.0)
    p = torch.softmax(s, dim=-1).masked_fill(empty, 0.0)
    lse = torch.logsumexp(s, dim=-1).masked_fill(empty[..., 0], -torch.inf)
    return p @ v, lse


def online(q, k, v, *, mask=None, causal=False, scale=None):
    """One pass over blocks of 48 keys, in float32 (float64), differentiated by torch's own autograd."""
    import torch

    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = torch.promote_types(q.dtype, torch.float32)
    s = scores_of(q.to(wide), k.to(wide), mask, causal, scale)
    m = torch.full((*s.shape[:-1], 1), -torch.inf, dtype=wide)
    total, o = torch.zeros_like(m), torch.zeros((*s.shape[:-1], v.shape[-1]), dtype=wide)
    for start in range(0, k.shape[2], 48):
        block = s[..., start : start + 48]
        new = torch.maximum(m, block.amax(dim=-1, keepdim=True)).detach()
        shift = torch.where(new == -torch.inf, 0.0, new)
        factor, p = torch.exp(m - shift), torch.exp(block - shift)
        total = total * factor + p.sum(dim=-1, keepdim=True)
        o = o * factor + p @ v[:, :, start : start + 48].to(wide)
        m = new
    dead = total == 0.0
    return torch.where(dead, 0.0, o / torch.where(dead, 1.0, total)).to(q.dtype)
