"""tinygrad's Tensor.scaled_dot_product_attention on its CPU device as a subject.

Observed with tinygrad 0.14: arrays (b, h, t, d) in float32 and float16; scores are float32 and are then
rounded to the dtype of q before the softmax. A mask is boolean, True = attend, or floating, added, and not
both a mask and is_causal. Causal is aligned top-left. A row without keys is NaN. There is no scale and no
lse. The CPU device compiles C with clang, a few seconds for each new set of shapes; its own cache keeps the
results.
"""

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.errors import MissingDependencyError

_DEVICE = "CPU"


def sdpa() -> Subject:
    """Return Tensor.scaled_dot_product_attention.

    Returns
    -------
    Subject

    Raises
    ------
    MissingDependencyError
        If there is no clang.
    """
    import os
    from shutil import which

    compiler = os.environ.get("CC", "clang")
    if which(compiler) is None:
        msg = f"tinygrad's CPU device compiles with {compiler}, which is not there: install clang"
        raise MissingDependencyError(msg)
    name = "tinygrad-sdpa"
    return Subject(
        sdpa_kernel,
        name=name,
        arrays="numpy",
        dtypes=KNOWN[name].dtypes,
        causal="top-left",
    )


def sdpa_kernel(q, k, v, *, attn_mask=None, is_causal=False):
    """Call the method on tensors of the CPU device.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, kv_heads, tk, d), (b, kv_heads, tk, dv).
    attn_mask : ndarray, optional
        Boolean, True = attend, or floating in the dtype of q.
    is_causal : bool

    Returns
    -------
    ndarray
        (b, h, tq, dv) in the dtype of q. An empty row is NaN.
    """
    from tinygrad import Tensor  # pyright: ignore[reportMissingImports]

    def tensor(x):
        return Tensor(np.ascontiguousarray(x), device=_DEVICE)

    result = tensor(q).scaled_dot_product_attention(
        tensor(k),
        tensor(v),
        attn_mask=None if attn_mask is None else tensor(attn_mask),
        is_causal=is_causal,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return result.numpy()
