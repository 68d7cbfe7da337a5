"""ONNX Runtime's MultiHeadAttention (com.microsoft) as a subject.

Observed with ONNX Runtime 1.32 on a CPU: q, k and v are packed (b, t, h · d), in float32 and float16; calls
without a mask go through a fused kernel in float32. An attention bias (b or 1, h or 1, tq, tk) is added to
the scores; booleans go in as 0 and −inf. A row without keys is NaN behind a bias, and is computed as if
nothing were masked behind lengths, whose fill is −10000. ``unidirectional`` is meant for tq = tk: with other
sizes it is top-left, but for the last row, which sees all keys. The operator returns no lse.
"""

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._onnx import run


def multi_head() -> Subject:
    """Return the operator MultiHeadAttention of ONNX Runtime.

    Returns
    -------
    Subject

    Examples
    --------
    >>> multi_head().name
    'onnxruntime-mha'
    """
    name = "onnxruntime-mha"
    return Subject(
        multi_head_kernel,
        name=name,
        arrays="numpy",
        dtypes=KNOWN[name].dtypes,
        causal="top-left",
        masks="additive",
    )


def multi_head_kernel(q, k, v, *, mask=None, causal=False, scale=None, kv_lengths=None):
    """Run a model of one MultiHeadAttention node.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv).
    mask : ndarray, optional
        (b or 1, h or 1, tq, tk): boolean, True = attend, or floating in the dtype of q.
    causal : bool
    scale : float, optional
        0 is read as the default.
    kv_lengths : ndarray, optional
        (b,) integers: key_padding_mask as lengths.

    Returns
    -------
    ndarray
        (b, h, tq, dv) in the dtype of q. An empty row is NaN.
    """
    heads = q.shape[1]
    attributes = {"num_heads": heads, "unidirectional": int(causal)}
    if scale is not None:
        attributes["scale"] = float(scale)
    lengths = None if kv_lengths is None else kv_lengths.astype(np.int32)
    given = {"q": packed(q), "k": packed(k), "v": packed(v), "bias": None, "lengths": lengths}
    given["attention_bias"] = additive(mask, q.dtype)
    y = run(
        "MultiHeadAttention",
        given,
        q.dtype.name,
        opset=17,
        domain="com.microsoft",
        attributes=tuple(attributes.items()),
    )
    return unpacked(y, heads)


def packed(x):
    """Turn (b, h, t, d) into (b, t, h · d)."""
    b, h, t, d = x.shape
    return np.swapaxes(x, 1, 2).reshape(b, t, h * d)


def unpacked(x, heads):
    """Turn (b, t, h · d) into (b, h, t, d)."""
    b, t, width = x.shape
    return np.swapaxes(x.reshape(b, t, heads, width // heads), 1, 2)


def additive(mask, dtype):
    """Turn a boolean mask into 0 and −inf; any other, and None, is what it was."""
    if mask is None or mask.dtype != bool:
        return mask
    return np.where(mask, 0.0, -np.inf).astype(dtype)
