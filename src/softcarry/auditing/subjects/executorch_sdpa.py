"""ExecuTorch's custom_sdpa, the attention that its exported language models call, as a subject.

Observed with ExecuTorch 1.5: torch tensors (b, t, h, d) in float32, bfloat16 and float16; a copy of torch's
CPU flash kernel. The keys are a cache of which the first start_pos + tq count, so that start_pos is tk − tq
here. A mask is (tq, tk) float32 for all batches and heads, and not beside is_causal; booleans go in as 0 and
−inf. Causal is aligned bottom-right. A row without keys is NaN. The operator returns no lse. What it refuses
it reports on the standard error stream and then returns memory that it has not written.
"""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._executorch import load_library, quiet
from softcarry.errors import ShapeError


def sdpa() -> Subject:
    """Return torch.ops.llama.custom_sdpa.

    Returns
    -------
    Subject
    """
    load_library()
    name = "executorch-sdpa"
    return Subject(
        sdpa_kernel,
        name=name,
        arrays="torch",
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        causal="bottom-right",
    )


def sdpa_kernel(q, k, v, *, attn_mask=None, is_causal=False, scale=None):
    """Call the operator.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, tq, h, d), (b, tk, kv_heads, d), (b, tk, kv_heads, d).
    attn_mask : torch.Tensor, optional
        Boolean, True = attend, or floating; the same for every batch and head.
    is_causal : bool
    scale : float, optional

    Returns
    -------
    torch.Tensor
        (b, tq, h, d) in the dtype of q. An empty row is NaN.

    Raises
    ------
    ShapeError
        For a mask that differs between batches or heads.
    """
    import torch

    if attn_mask is not None:
        attn_mask = attn_mask.reshape(-1, *attn_mask.shape[-2:])
        if not torch.equal(attn_mask, attn_mask[:1].expand_as(attn_mask)):
            msg = "custom_sdpa takes one mask (tq, tk) for all batches and heads; got different ones"
            raise ShapeError(msg)
        attn_mask = attn_mask[0]
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, float("-inf"))
        attn_mask = attn_mask.to(torch.float32).contiguous()
    load_library()
    start = k.shape[1] - q.shape[1]
    with quiet():
        return torch.ops.llama.custom_sdpa(q, k, v, start, attn_mask, 0.0, is_causal, scale)
