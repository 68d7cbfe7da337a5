"""flash_attn_func of flash-attn 2 as a subject. It needs a GPU: here it has been exercised with a stand-in.

By the documentation of flash-attn 2.8.

Layout
    q, k, v and the output are (b, t, h, d), on a GPU; grouped heads are taken. One d for all.
Dtypes
    float16 and bfloat16.
lse
    Returned where the probabilities are asked for: (b, h, tq) float32, natural log, +inf for an empty row.
Options
    causal and window, aligned bottom-right since 2.1, softcap, scale and dropout. A window has −1 where
    softcarry has None. There are no masks. kv_lengths go to flash_attn_with_kvcache, which puts the diagonal
    at the end of each length instead of at tk, so they are refused beside causal or a window.
Empty rows
    Output 0.
"""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def flash() -> Subject:
    """Return ``flash_attn.flash_attn_func``, with its lse, on CUDA.

    Returns
    -------
    Subject
        Takes causal, scale, softcap, window, dropout and kv_lengths.
    """
    name = "flash-attn"
    return Subject(
        flash_attn_kernel,
        name=name,
        arrays="torch",
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        lse="e",
        causal="bottom-right",
        device="cuda",
    )


def flash_attn_kernel(
    q, k, v, *, causal=False, scale=None, softcap=None, window=None, dropout=0.0, kv_lengths=None
):
    """Call ``flash_attn_func``, or ``flash_attn_with_kvcache`` for lengths.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, tq, h, d), (b, tk, h or a divisor, d), (b, tk, h or a divisor, d).
    causal : bool
        Bottom-right.
    scale, softcap : float, optional
    window : (left, right), optional
    dropout : float
    kv_lengths : torch.Tensor, optional
        (b,) integers.

    Returns
    -------
    output, lse : torch.Tensor
        (b, tq, h, d) in the dtype of q; (b, h, tq) float32.

    Raises
    ------
    NotImplementedError
        For kv_lengths beside causal, window or dropout.
    """
    import flash_attn  # pyright: ignore[reportMissingImports]

    options = {
        "softmax_scale": scale,
        "causal": causal,
        "window_size": (-1, -1) if window is None else tuple(-1 if side is None else side for side in window),
        "softcap": 0.0 if softcap is None else softcap,
    }
    if kv_lengths is None:
        output, lse, _ = flash_attn.flash_attn_func(
            q, k, v, dropout_p=dropout, return_attn_probs=True, **options
        )
        return output, lse
    if causal or window is not None or dropout:
        msg = "flash_attn_with_kvcache has another diagonal, and no dropout: lengths are called alone"
        raise NotImplementedError(msg)
    return flash_attn.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=kv_lengths.int(), return_softmax_lse=True, **options
    )
