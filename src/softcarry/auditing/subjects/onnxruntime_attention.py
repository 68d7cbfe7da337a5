"""ONNX Runtime's Attention of the ONNX standard, opset 23 and later, as a subject.

Observed with ONNX Runtime 1.32 on a CPU: arrays (b, h, t, d) in float64, float32 and float16 (bfloat16 is in
the standard and not implemented). A mask is boolean, True = attend, or floating in the dtype of q, and may be
broadcast only in b and h. is_causal is aligned top-left. An empty row has output 0. Scale and softcap are
float32 attributes whatever the dtype. The operator returns no lse. Which opset a call asks for depends on
its options: kv_lengths came with 24, windows with 25.
"""

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._onnx import run
from softcarry.errors import OptionError


def attention() -> Subject:
    """Return the operator Attention of ONNX Runtime.

    Returns
    -------
    Subject

    Examples
    --------
    >>> attention().causal
    'top-left'
    """
    name = "onnxruntime-attention"
    return Subject(attention_kernel, name=name, arrays="numpy", dtypes=KNOWN[name].dtypes, causal="top-left")


def attention_kernel(
    q, k, v, *, mask=None, is_causal=False, scale=None, softcap=None, window=None, kv_lengths=None
):
    """Run a model of one Attention node.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, kv_heads, tk, d), (b, kv_heads, tk, dv).
    mask : ndarray, optional
        Boolean, True = attend, or floating in the dtype of q.
    is_causal : bool
    scale, softcap : float, optional
    window : tuple of (int or None), optional
        left_window_size and right_window_size.
    kv_lengths : ndarray, optional
        (b,) integers: nonpad_kv_seqlen.

    Returns
    -------
    ndarray
        (b, h, tq, dv) in the dtype of q. An empty row has output 0.

    Raises
    ------
    OptionError
        For is_causal or a window beside kv_lengths, whose diagonal then ends at each length.
    """
    if kv_lengths is not None and (is_causal or window is not None):
        msg = "beside nonpad_kv_seqlen the diagonal ends at each length, which is another question"
        raise OptionError(msg)
    attributes: dict[str, int | float] = {"is_causal": int(is_causal)}
    if scale is not None:
        attributes["scale"] = float(scale)
    if softcap is not None:
        attributes["softcap"] = float(softcap)
    if window is not None:
        left, right = (-1 if size is None else int(size) for size in window)
        attributes |= {"left_window_size": left, "right_window_size": right}
    given = {"q": q, "k": k, "v": v, "mask": mask}
    if kv_lengths is not None:
        given |= {"past_key": None, "past_value": None, "lengths": kv_lengths.astype(np.int64)}
    opset = 25 if window is not None else 24 if kv_lengths is not None else 23
    return run("Attention", given, q.dtype.name, opset=opset, attributes=tuple(attributes.items()))
