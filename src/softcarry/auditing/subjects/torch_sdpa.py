"""torch's scaled_dot_product_attention on a CPU as subjects.

Observed with torch 2.13: the public function hides the lse of its flash path, so that path is audited through
the operator beneath it, which returns (output, lse). The operator takes additive masks only; booleans are
turned into 0 and −inf here, as the public function does. Both causal masks are aligned top-left.
"""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def flash() -> Subject:
    """Return the CPU flash attention operator.

    Returns
    -------
    Subject
        Takes mask, is_causal and scale, separately and together, and refuses dropout. Its P is rounded to
        the dtype of its inputs (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
    """
    return _subject("torch-sdpa-flash", flash_kernel)


def math() -> Subject:
    """Return the MATH path of the public function, which computes the whole score matrix.

    Returns
    -------
    Subject
        Takes mask, dropout_p, is_causal and scale; refuses a mask beside is_causal. Returns no lse.
    """
    return _subject("torch-sdpa-math", math_kernel)


def _subject(name, kernel):
    return Subject(
        kernel,
        name=name,
        arrays="torch",
        dtypes=KNOWN[name].dtypes,
        lse="e" if kernel is flash_kernel else None,
        causal="top-left",
    )


def flash_kernel(q, k, v, *, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Call the operator beneath ``F.scaled_dot_product_attention``'s flash path.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, d).
    attn_mask : torch.Tensor, optional
        Boolean, True = attend, or floating in the dtype of q.
    dropout_p : float
        The operator refuses all but 0.
    is_causal : bool
    scale : float, optional

    Returns
    -------
    output, lse : torch.Tensor
        (b, h, tq, d) in the dtype of q, and (b, h, tq) float32. An empty row has output 0 and lse 0. The
        process dies if tk is 0.

    Raises
    ------
    ValueError
        If the last axis of q, k or v is not of stride 1. The operator takes that for granted, reads beside
        the view and says nothing; the public function does not choose its flash path then.
    """
    import torch

    if any(x.numel() and x.stride(-1) != 1 for x in (q, k, v)):
        msg = "the public function takes its flash path only where the last axis has stride 1"
        raise ValueError(msg)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=q.dtype).masked_fill(~attn_mask, float("-inf"))
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return operator(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)


def math_kernel(q, k, v, *, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Call ``F.scaled_dot_product_attention`` with only its MATH path allowed.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv).
    attn_mask : torch.Tensor, optional
        Boolean, True = attend, or floating in the dtype of q.
    dropout_p : float
        Drawn from torch's global generator.
    is_causal : bool
    scale : float, optional

    Returns
    -------
    torch.Tensor
        (b, h, tq, dv) in the dtype of q. An empty row has output 0.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
