"""OpenVINO's scaled_dot_product_attention (opset 13) on the CPU as a subject.

Observed with OpenVINO 2026.4: arrays (b, h, t, d) in float64, float32, bfloat16 and float16. The kernel
computes in the inference precision, which by default is bfloat16 on processors that have it, whatever the
dtype; here it is asked for float32, and a model is compiled for each set of shapes. Masks are boolean,
True = attend, or floating in the dtype of q; beside causal a mask is ignored, as the operator's
specification has it. Causal is aligned top-left. A row without keys is NaN. The operator returns no lse.
"""

from functools import lru_cache

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def sdpa() -> Subject:
    """Return scaled_dot_product_attention of OpenVINO, in float32 inside.

    Returns
    -------
    Subject

    Examples
    --------
    >>> sdpa().causal
    'top-left'
    """
    name = "openvino-sdpa"
    return Subject(sdpa_kernel, name=name, arrays="numpy", dtypes=KNOWN[name].dtypes, causal="top-left")


def sdpa_kernel(q, k, v, *, mask=None, causal=False, scale=None):
    """Compile a model of one operator for these shapes, or take it from before, and run it.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv).
    mask : ndarray, optional
        Boolean, True = attend, or floating in the dtype of q.
    causal : bool
    scale : float, optional

    Returns
    -------
    ndarray
        (b, h, tq, dv) in the dtype of q. An empty row is NaN.
    """
    arrays = [q, k, v] if mask is None else [q, k, v, mask]
    request = _compiled(tuple((x.shape, x.dtype.name) for x in arrays), bool(causal), scale)
    result = request.infer([_tensor(x) for x in arrays], share_inputs=False)[0]
    # Some releases hand bfloat16 to NumPy as 16 bits of another name.
    return np.array(result).view(q.dtype)


@lru_cache(maxsize=512)
def _compiled(signature, causal, scale):
    import openvino  # pyright: ignore[reportMissingImports]
    from openvino import opset13  # pyright: ignore[reportMissingImports]

    parameters = [opset13.parameter(list(shape), _element(dtype)) for shape, dtype in signature]
    q, k, v, *masks = parameters
    element = _element(signature[0][1])
    extra = list(masks)
    if scale is not None:
        # The scale is the fifth input, and takes the fourth along: a scalar 0 is no mask.
        extra = extra or [opset13.constant(np.zeros((), np.float32), element)]
        extra.append(opset13.constant(np.array(scale, np.float64), element))
    node = opset13.scaled_dot_product_attention(q, k, v, *extra, causal=causal)
    model = openvino.Model([node], parameters)
    compiled = _core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled.create_infer_request()


@lru_cache(maxsize=1)
def _core():
    import openvino  # pyright: ignore[reportMissingImports]

    return openvino.Core()


def _element(dtype):
    import openvino  # pyright: ignore[reportMissingImports]

    names = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "bool": "boolean"}
    return getattr(openvino.Type, names[dtype])


def _tensor(x):
    import openvino  # pyright: ignore[reportMissingImports]

    x = np.ascontiguousarray(x)
    if x.dtype.name == "bfloat16":
        return openvino.Tensor(x.view(np.float16), list(x.shape), openvino.Type.bf16)
    return openvino.Tensor(x)
