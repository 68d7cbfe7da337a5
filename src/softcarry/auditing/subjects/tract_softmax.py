"""tract's Softmax, through an ONNX model, as a subject.

Observed with tract 0.23.9: float64, float32 and float16, one model for all shapes. A row whose scores are all
−inf becomes NaN. Releases before the mend of tract PR#2586 keep the row sum of float16 in float16, where it
stops at 2048.
"""

import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from softcarry.auditing.softmax_subject import softmax_subject
from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def softmax() -> Subject:
    """Return the softmax of tract.

    Returns
    -------
    Subject

    Examples
    --------
    >>> softmax().name
    'tract-softmax'
    """
    name = "tract-softmax"
    return softmax_subject(row_softmax, name=name, arrays="numpy", dtypes=KNOWN[name].dtypes)


def row_softmax(x):
    """Run the model on rows.

    Parameters
    ----------
    x : ndarray
        (..., n) float64, float32 or float16.

    Returns
    -------
    ndarray
        (..., n) of the same dtype.
    """
    if x.size == 0:
        return x
    rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]))
    return _model(x.dtype.name).run([rows])[0].to_numpy().reshape(x.shape)


@lru_cache(maxsize=4)
def _model(dtype):
    import tract  # pyright: ignore[reportMissingImports]

    from softcarry.auditing.subjects._onnx import one_node_model

    content = one_node_model("Softmax", (("x", dtype, 2),), dtype, opset=13, attributes=(("axis", -1),))
    with tempfile.TemporaryDirectory(prefix="softcarry-") as folder:
        path = Path(folder, "softmax.onnx")
        path.write_bytes(content)
        return tract.onnx().load(path).into_model().into_runnable()
