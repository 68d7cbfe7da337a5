"""What the stand-ins of GPU libraries compute: attention in their layout, by torch's own softmax."""

import math


def attend(q, k, v, scale, causal, window, softcap, mask=None):
    """Output (b, tq, h, dv) in the dtype of q, and lse (b, h, tq) float32, natural log, +inf on empty rows.

    q is (b, tq, h, d), k and v are (b, tk, h or a divisor, ·). The diagonal is bottom-right, a side of −1 of
    the window has no end, a softcap of 0 is none; a mask is boolean or added, broadcast to (b, h, tq, tk).
    """
    import torch

    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = torch.einsum("bihx,bjhx->bhij", q.float(), k.float()) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    tq, tk = scores.shape[2:]
    away = torch.arange(tk)[None, :] - torch.arange(tq)[:, None] - (tk - tq)
    left, right = window
    hidden = (away > 0) & causal
    hidden = hidden | ((away < -left) & (left >= 0)) | ((away > right) & (right >= 0))
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = scores + mask.float()
    scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.where(lse[..., None] == -math.inf, 0.0, torch.exp(scores - lse[..., None]))
    output = torch.einsum("bhij,bjhx->bihx", weights.nan_to_num(0.0), v.float()).to(q.dtype)
    return output, torch.where(lse == -math.inf, math.inf, lse)
