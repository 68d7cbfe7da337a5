"""single_prefill_with_kv_cache of FlashInfer as a subject. It needs a GPU: here it met only a stand-in.

By the documentation of flashinfer 0.6.

Layout
    One request: q is (tq, h, d), k and v are (tk, h, d), called "NHD"; grouped heads are taken. A batch is
    one call an entry.
Dtypes
    float16 and bfloat16.
lse
    (tq, h) float32, in base 2.
Options
    causal and window, aligned bottom-right. The window has a left side only; its right side must be 0 beside
    causal, and None alone. softcap and scale. A mask is boolean, True = attend, (tq, tk) for all heads of a
    request, and takes the place of causal; floats are refused.
Empty rows
    Output 0, and an lse of −inf by intention (versions differ: flashinfer#4452 found −5e4).
"""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def single_prefill() -> Subject:
    """Return ``flashinfer.single_prefill_with_kv_cache``, with its lse, on CUDA.

    Returns
    -------
    Subject
        Takes mask, causal, scale, softcap and window.
    """
    name = "flashinfer"
    return Subject(
        single_prefill_kernel,
        name=name,
        arrays="torch",
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        lse="2",
        causal="bottom-right",
        device="cuda",
    )


def single_prefill_kernel(q, k, v, *, mask=None, causal=False, scale=None, softcap=None, window=None):
    """Call ``single_prefill_with_kv_cache`` for each entry of a batch.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, tq, h, d), (b, tk, h or a divisor, d), (b, tk, h or a divisor, dv).
    mask : torch.Tensor, optional
        Boolean, True = attend, broadcastable to (b, h, tq, tk), and the same for all heads.
    causal : bool
        Bottom-right.
    scale, softcap : float, optional
    window : (left, right), optional
        right is 0 beside causal, and None without.

    Returns
    -------
    output, lse : torch.Tensor
        (b, tq, h, dv) in the dtype of q; (b, tq, h) float32, in base 2.

    Raises
    ------
    NotImplementedError
        For masks and windows that the library does not have.
    """
    import flashinfer  # pyright: ignore[reportMissingImports]
    import torch

    options = {
        "causal": causal,
        "kv_layout": "NHD",
        "sm_scale": scale,
        "logits_soft_cap": softcap,
        "window_left": _left_side(window, causal),
        "return_lse": True,
    }
    masks = [None] * len(q) if mask is None else _mask_of_requests(mask, q, k, causal)
    pairs = [
        flashinfer.single_prefill_with_kv_cache(*request, custom_mask=one, **options)
        for *request, one in zip(q, k, v, masks, strict=True)
    ]
    outputs, lses = zip(*pairs, strict=True)
    return torch.stack(outputs), torch.stack(lses)


def _mask_of_requests(mask, q, k, causal):
    """Return a mask (tq, tk) for each request."""
    import torch

    mask = mask.expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if mask.dtype != torch.bool or not (mask == mask[:, :1]).all():
        msg = "custom_mask is boolean, one for all heads of a request"
        raise NotImplementedError(msg)
    if causal:
        msg = "custom_mask takes the place of causal"
        raise NotImplementedError(msg)
    return mask[:, 0].contiguous()


def _left_side(window, causal):
    if window is None:
        return -1
    left, right = window
    if right not in ((0, None) if causal else (None,)):
        msg = f"a window has a left side only, window_left; got a right side of {right}"
        raise NotImplementedError(msg)
    return -1 if left is None else left
