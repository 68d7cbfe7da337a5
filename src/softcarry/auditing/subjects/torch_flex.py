"""torch's flex_attention as subjects: called plainly, and through torch.compile.

Observed with torch 2.13 on a CPU.

Layout
    q, k, v and the output are (b, h, t, d), the lse (b, h, tq) float32 (float64 for float64), natural log.
Called plainly
    Unfused: the whole score matrix. float64, float32, bfloat16 and float16.
Compiled
    A C++ template, which a compiler builds anew for each head count, d, dv, dtype and kind of mask; it takes
    seconds each time, and torch keeps what was built for the next process. No float64, no lse, no gradients.
    Past 8 variants torch would go back to the plain path and say nothing of it; here the limit is lifted, and
    reaching it is an error.
Masks, causal, window, kv_lengths, softcap
    The library has none of them: its users write them as functions of a score and of positions, and so they
    are here. Booleans and the rules are a mask_mod in a BlockMask, floats and the cap a score_mod. The
    diagonal is put bottom-right.
Empty rows
    Output 0, lse −inf.
"""

from functools import lru_cache

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._lengths import check_lengths


def eager() -> Subject:
    """Return flex_attention as it is when called plainly.

    Returns
    -------
    Subject
        Takes mask, causal, scale, softcap, window and kv_lengths, together too; and grouped heads.
    """
    return _subject("torch-flex", eager_kernel, lse="e")


def compiled() -> Subject:
    """Return flex_attention as torch.compile makes it: a C++ kernel.

    Returns
    -------
    Subject
        Takes the same options. Returns no lse.
    """
    return _subject("torch-flex-compiled", compiled_kernel, lse=None)


def _subject(name, kernel, lse):
    return Subject(
        kernel, name=name, arrays="torch", dtypes=KNOWN[name].dtypes, lse=lse, causal="bottom-right"
    )


def eager_kernel(q, k, v, *, mask=None, causal=False, scale=None, softcap=None, window=None, kv_lengths=None):
    """Call ``flex_attention`` plainly.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, h, tq, d), (b, h or a divisor, tk, d), (b, h or a divisor, tk, dv).
    mask : torch.Tensor, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    causal : bool
        Bottom-right.
    scale, softcap : float, optional
    window : (left, right), optional
    kv_lengths : torch.Tensor, optional
        (b,) integers.

    Returns
    -------
    output, lse : torch.Tensor
        (b, h, tq, dv) in the dtype of q; (b, h, tq) float32, or float64 for float64. An empty row has output
        0 and lse −inf.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    modifications = _modifications(q, k, mask, causal, softcap, window, kv_lengths)
    with _no_limit_of_variants():
        output, auxiliary = flex_attention(
            q,
            k,
            v,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
            **modifications,
        )
    return output, auxiliary.lse


def compiled_kernel(
    q, k, v, *, mask=None, causal=False, scale=None, softcap=None, window=None, kv_lengths=None
):
    """Call ``torch.compile(flex_attention)``.

    Parameters
    ----------
    q, k, v, mask, causal, scale, softcap, window, kv_lengths
        As of `eager_kernel`.

    Returns
    -------
    torch.Tensor
        (b, h, tq, dv) in the dtype of q. An empty row has output 0.
    """
    modifications = _modifications(q, k, mask, causal, softcap, window, kv_lengths)
    with _no_limit_of_variants():
        return _compiled()(q, k, v, scale=scale, enable_gqa=q.shape[1] != k.shape[1], **modifications)


@lru_cache(maxsize=1)
def _compiled():
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _no_limit_of_variants():
    import torch

    many = 1 << 20
    return torch._dynamo.config.patch(
        recompile_limit=many, accumulated_recompile_limit=many, fail_on_recompile_limit_hit=True
    )


def _modifications(q, k, mask, causal, softcap, window, kv_lengths):
    """Write the options as the functions that flex_attention takes."""
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    b, h, tq, tk = *q.shape[:3], k.shape[2]
    mask = None if mask is None else mask.expand(b, h, tq, tk)
    additive = mask is not None and mask.is_floating_point()
    rules = []
    if mask is not None and not additive:
        rules.append(lambda batch, head, i, j: mask[batch, head, i, j])
    if causal:
        rules.append(lambda batch, head, i, j: j <= i + (tk - tq))
    if window is not None:
        # No key is further away than this.
        left, right = (tq + tk if side is None else side for side in window)
        rules.append(lambda batch, head, i, j: (j >= i + (tk - tq) - left) & (j <= i + (tk - tq) + right))
    check_lengths(kv_lengths, b, tk)
    if kv_lengths is not None:
        rules.append(lambda batch, head, i, j: j < kv_lengths[batch])
    written = {}
    if rules:
        written["block_mask"] = create_block_mask(and_masks(*rules), b, h, tq, tk, device=q.device)
    if softcap is not None or additive:
        written["score_mod"] = _score_mod(softcap, mask if additive else None)
    return written


def _score_mod(softcap, bias):
    def cap(score):
        return score if softcap is None else softcap * (score / softcap).tanh()

    if bias is None:
        return lambda score, batch, head, i, j: cap(score)
    return lambda score, batch, head, i, j: cap(score) + bias[batch, head, i, j]
