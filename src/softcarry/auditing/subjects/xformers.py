"""memory_efficient_attention of xFormers as a subject. It needs a GPU: here it met only a stand-in.

By the documentation and the sources of xformers 0.0.3x.

Layout
    q, k, v and the output are (b, t, h, d). Grouped heads are not taken in four axes.
Dtypes
    float32, bfloat16 and float16; which of its kernels runs is xFormers' own choice.
lse
    (b, h, tq) float32, natural log; some kernels pad tq, and what is beyond is cut off here.
Options
    Masks are floats in the dtype of q, added to the scores; booleans become 0 and −inf here, as its
    documentation tells. causal and window are masks by name, LowerTriangularFromBottomRightMask and
    LocalAttentionFromBottomRightMask, one at a time. scale.
"""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def memory_efficient() -> Subject:
    """Return ``xformers.ops.memory_efficient_attention``, in the form that returns the lse, on CUDA.

    Returns
    -------
    Subject
        Takes mask, causal, scale and window; one of mask, causal and window at a time.
    """
    name = "xformers"
    return Subject(
        memory_efficient_kernel,
        name=name,
        arrays="torch",
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        lse="e",
        causal="bottom-right",
        device="cuda",
    )


def memory_efficient_kernel(q, k, v, *, mask=None, causal=False, scale=None, window=None):
    """Call ``memory_efficient_attention_forward_requires_grad``, or the plain form for gradients.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, tq, h, d), (b, tk, h, d), (b, tk, h, dv).
    mask : torch.Tensor, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    causal : bool
        Bottom-right.
    scale : float, optional
    window : (left, right), optional

    Returns
    -------
    output : torch.Tensor
        (b, tq, h, dv) in the dtype of q; alone, where gradients are wanted.
    lse : torch.Tensor
        (b, h, tq) float32.

    Raises
    ------
    NotImplementedError
        For more than one of mask, causal and window.
    """
    import torch
    from xformers import ops  # pyright: ignore[reportMissingImports]

    bias = _bias(q, k, mask, causal, window)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=scale)
    output, lse = ops.memory_efficient_attention_forward_requires_grad(q, k, v, attn_bias=bias, scale=scale)
    return output, lse[:, :, : q.shape[1]]


def _bias(q, k, mask, causal, window):
    """Write the options as the one attn_bias."""
    import torch
    from xformers.ops import fmha  # pyright: ignore[reportMissingImports]

    if (mask is not None) + bool(causal) + (window is not None) > 1:
        msg = "attn_bias is one of a mask, causal and a window"
        raise NotImplementedError(msg)
    if causal:
        return fmha.attn_bias.LowerTriangularFromBottomRightMask()
    if window is not None:
        # No key is further away than this.
        left, right = (q.shape[1] + k.shape[1] if side is None else side for side in window)
        return fmha.attn_bias.LocalAttentionFromBottomRightMask(window_left=left, window_right=right)
    if mask is None:
        return None
    mask = mask.expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, float("-inf"))
    return mask.contiguous()
