"""A flash attention kernel in Triton as a subject, run by Triton's interpreter where there is no GPU.

Observed with triton 3.9 and torch 2.13. The kernel is softcarry's own, in the manner of FlashAttention-2:
what is under audit is Triton.

Layout
    q, k, v and the output are (b, h, t, d), contiguous; the lse is (b, h, tq) float32, natural log. Grouped
    heads are taken.
Blocks
    64 queries by 64 keys; d and dv are padded to a power of two, at least 16.
Masks
    Booleans, True = attend, are selected; floats are added to the scores. causal is aligned bottom-right.
Empty rows
    Output 0, lse −inf; also for tk = 0.
Interpreter
    Logic, shapes and masks are those of the kernel; products, sums and exponentials are NumPy's, in float32.
    In bfloat16 they multiply the bit patterns as integers (triton#11584), so that nothing comes out right.
"""

import math
import os
import sys
from typing import Any

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN

_QUERY_BLOCK = 64
_KEY_BLOCK = 64
_INTERPRET = "TRITON_INTERPRET"


def flash() -> Subject:
    """Return the kernel.

    Returns
    -------
    Subject
        Takes mask, causal and scale, separately and together.
    """
    name = "triton-flash"
    return Subject(
        flash_kernel,
        name=name,
        arrays="torch",
        dtypes=KNOWN[name].dtypes,
        lse="e",
        causal="bottom-right",
    )


def flash_kernel(q, k, v, *, mask=None, causal=False, scale=None):
    """Launch `_triton_kernel.flash_forward`.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, h, tq, d), (b, h or a divisor, tk, d), (b, h or a divisor, tk, dv).
    mask : torch.Tensor, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    causal : bool
        Bottom-right.
    scale : float, optional

    Returns
    -------
    output, lse : torch.Tensor
        (b, h, tq, dv) in the dtype of q, and (b, h, tq) float32. An empty row has output 0 and lse −inf.

    Raises
    ------
    ValueError
        If k and v differ in length, or the heads of q are not a multiple of theirs.
    """
    import torch

    b, h, tq, d = q.shape
    kv_heads, tk, dv = k.shape[1], k.shape[2], v.shape[3]
    if k.shape != (b, kv_heads, tk, d) or v.shape != (b, kv_heads, tk, dv) or h % kv_heads:
        msg = f"q, k and v don't fit each other: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        raise ValueError(msg)
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    output = torch.empty((b, h, tq, dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, tq), dtype=torch.float32, device=q.device)
    mask_kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    # The kernel reads no mask of kind 0, and wants an address all the same.
    mask = lse if mask is None else mask.expand(b, h, tq, tk).contiguous()
    _launcher(q.device.type)[-(-tq // _QUERY_BLOCK), b * h](
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        mask.view(torch.uint8) if mask_kind == 1 else mask,
        output,
        lse,
        tq,
        tk,
        h // kv_heads,
        d,
        dv,
        scale * math.log2(math.e),
        causal=causal,
        mask_kind=mask_kind,
        query_block=_QUERY_BLOCK,
        key_block=_KEY_BLOCK,
        depth_block=_padded(d),
        value_depth_block=_padded(dv),
    )
    return output, lse


def _launcher(device) -> Any:
    """Return the kernel, which is interpreted on a processor and compiled on anything else."""
    if device == "cpu":
        if "triton" in sys.modules and os.environ.get(_INTERPRET) != "1":
            msg = (
                "this process has imported triton as a compiler, and can't interpret any more; "
                f"run this subject alone, or set {_INTERPRET}=1 from the start"
            )
            raise RuntimeError(msg)
        os.environ[_INTERPRET] = "1"
    from softcarry.auditing.subjects._triton_kernel import flash_forward

    return flash_forward


def _padded(size):
    return max(16, 1 << (size - 1).bit_length())
