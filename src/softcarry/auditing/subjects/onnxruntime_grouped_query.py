"""ONNX Runtime's GroupQueryAttention (com.microsoft) as a subject.

Observed with ONNX Runtime 1.32 on a CPU: q, k and v are packed (b, t, h · d), in float32 and float16, and the
operator is causal always: the queries are the last tokens of a cache, so that the mask is bottom-right and
tq ≤ tk. What is asked without causal is therefore computed as decoding does it, each query an entry of the
batch of its own, whose past is all keys but the last. With causal, tq = tk is a prompt; a longer past is
taken for one entry of the batch at a time, which is all that the operator allows. The attention bias is
added to the scores; booleans go in as 0 and −inf. The operator returns no lse.
"""

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._onnx import run
from softcarry.auditing.subjects.onnxruntime_multi_head import additive, packed, unpacked
from softcarry.errors import OptionError, ShapeError


def grouped_query() -> Subject:
    """Return the operator GroupQueryAttention of ONNX Runtime.

    Returns
    -------
    Subject

    Examples
    --------
    >>> grouped_query().causal
    'bottom-right'
    """
    name = "onnxruntime-gqa"
    return Subject(
        grouped_query_kernel,
        name=name,
        arrays="numpy",
        dtypes=KNOWN[name].dtypes,
        causal="bottom-right",
        masks="additive",
    )


def grouped_query_kernel(
    q, k, v, *, mask=None, causal=False, scale=None, softcap=None, window=None, sinks=None
):
    """Run a model of one GroupQueryAttention node: with causal and a past, once an entry of the batch.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, kv_heads, tk, d), (b, kv_heads, tk, d).
    mask : ndarray, optional
        (b, h, tq, tk): boolean, True = attend, or floating in the dtype of q.
    causal : bool
    scale, softcap : float, optional
        0 is read as the default scale, and as no softcap.
    window : tuple of (int or None), optional
        (left, 0 or None), with causal only: local_window_size is left + 1.
    sinks : ndarray, optional
        (h,) scores: head_sink.

    Returns
    -------
    ndarray
        (b, h, tq, d) in the dtype of q.

    Raises
    ------
    ShapeError
        For causal with more queries than keys.
    OptionError
        For a window without causal, or one to the right.
    """
    b, h, tq, d = q.shape
    tk = k.shape[2]
    attributes = {"num_heads": h, "kv_num_heads": k.shape[1]}
    if scale is not None:
        attributes["scale"] = float(scale)
    if softcap is not None:
        attributes["softcap"] = float(softcap)
    if window is not None:
        left, right = window
        if not causal or right not in (None, 0):
            msg = f"GroupQueryAttention has windows to the left, and only with causal; got {window}"
            raise OptionError(msg)
        attributes["local_window_size"] = -1 if left is None else int(left) + 1
    bias = additive(mask, q.dtype)
    if not causal:
        q = np.swapaxes(q, 1, 2).reshape(b * tq, h, 1, d)
        k, v = (np.repeat(x, tq, axis=0) for x in (k, v))
        bias = None if bias is None else np.swapaxes(bias, 1, 2).reshape(b * tq, h, 1, tk)
        y = _node(q, k, v, bias, sinks, attributes)
        return np.swapaxes(y.reshape(b, tq, h, d), 1, 2)
    if tq > tk:
        msg = f"GroupQueryAttention has no more queries than keys; got {tq} and {tk}"
        raise ShapeError(msg)
    if tq in (1, tk):
        return _node(q, k, v, bias, sinks, attributes)
    entries = [slice(i, i + 1) for i in range(b)]
    parts = [_node(q[i], k[i], v[i], None if bias is None else bias[i], sinks, attributes) for i in entries]
    return np.concatenate(parts)


def _node(q, k, v, bias, sinks, attributes):
    b, h, tq, _ = q.shape
    tk = k.shape[2]
    past = tk - tq
    given = {
        "q": packed(q),
        "k": packed(k[:, :, past:]),
        "v": packed(v[:, :, past:]),
        "past_key": k[:, :, :past],
        "past_value": v[:, :, :past],
        "last": np.full(b, tk - 1, np.int32),
        "total": np.array(tk, np.int32),
        "cosines": None,
        "sines": None,
        "positions": None,
        "attention_bias": bias,
        "head_sink": None if sinks is None else sinks.astype(q.dtype),
    }
    y = run(
        "GroupQueryAttention",
        given,
        q.dtype.name,
        opset=17,
        domain="com.microsoft",
        attributes=tuple(attributes.items()),
        outputs=("y", "present_key", "present_value"),
    )
    return unpacked(y, h)
