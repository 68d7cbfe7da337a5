"""MLX's fast.scaled_dot_product_attention on the CPU as a subject.

Observed with MLX 0.32: arrays (b, h, t, d) in float32, bfloat16 and float16; on a CPU the function is a graph
of plain operations with a softmax in float32. It takes one mask: boolean, True = attend, or floating, added,
or the word "causal". Causal is aligned bottom-right, but with more queries than keys the mask wraps around.
An empty row is the mean of V behind booleans, whose fill is the lowest finite number, and NaN behind −inf.
The function has no default scale, so that 1/√d is this adapter's, and returns no lse.
"""

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.errors import OptionError


def sdpa() -> Subject:
    """Return mlx.core.fast.scaled_dot_product_attention.

    Returns
    -------
    Subject

    Examples
    --------
    >>> sdpa().causal
    'bottom-right'
    """
    name = "mlx-sdpa"
    return Subject(sdpa_kernel, name=name, arrays="numpy", dtypes=KNOWN[name].dtypes, causal="bottom-right")


def sdpa_kernel(q, k, v, *, mask=None, causal=False, scale=None, sinks=None):
    """Call the function on the CPU.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, kv_heads, tk, d), (b, kv_heads, tk, dv).
    mask : ndarray, optional
        Boolean, True = attend, or floating in the dtype of q.
    causal : bool
    scale : float, optional
        Default 1/√d.
    sinks : ndarray, optional
        (h,) scores.

    Returns
    -------
    ndarray
        (b, h, tq, dv) in the dtype of q.

    Raises
    ------
    OptionError
        For a mask beside causal: the function takes one of them.
    """
    import mlx.core as mx  # pyright: ignore[reportMissingImports]

    if causal and mask is not None:
        msg = "mlx takes a mask or causal, not both"
        raise OptionError(msg)
    given = "causal" if causal else None if mask is None else mx.array(mask)
    sinks = None if sinks is None else mx.array(sinks.astype(q.dtype))
    with mx.stream(mx.cpu):
        y = mx.fast.scaled_dot_product_attention(
            mx.array(q),
            mx.array(k),
            mx.array(v),
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            mask=given,
            sinks=sinks,
        )
        # float32 holds the values of both 16-bit dtypes, and NumPy does not read MLX's bfloat16.
        return np.array(y.astype(mx.float32)).astype(q.dtype)
