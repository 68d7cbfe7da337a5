"""ONNX models of one node, and ONNX Runtime sessions of them, kept by what they are made of."""

from functools import lru_cache

import numpy as np

# The newest that the ONNX Runtime of a year ago reads.
_IR_VERSION = 10


def one_node_model(operator, inputs, output_dtype, *, opset, domain="", attributes=(), outputs=("y",)):
    """Return a serialised model of one node with open shapes.

    Parameters
    ----------
    operator : str
    inputs : tuple of (str, str, int)
        Name, dtype and number of axes of each input; a name "" leaves an optional input out.
    output_dtype : str
        Of every output.
    opset : int
        Of the default domain.
    domain : str
        Of the operator.
    attributes : tuple of (str, object)
    outputs : tuple of str

    Returns
    -------
    bytes
    """
    from onnx import helper  # pyright: ignore[reportMissingImports]

    def value(name, dtype, axes):
        # Open sizes have names: tract takes no others.
        shape = None if axes is None else [f"{name}_{axis}" for axis in range(axes)]
        return helper.make_tensor_value_info(name, _element(dtype), shape)

    names = [name for name, _, _ in inputs]
    node = helper.make_node(operator, names, list(outputs), domain=domain, **dict(attributes))
    graph = helper.make_graph(
        [node],
        operator,
        [value(*each) for each in inputs if each[0]],
        [value(name, output_dtype, None) for name in outputs],
    )
    versions = [helper.make_opsetid("", opset)]
    if domain:
        versions.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=versions, ir_version=_IR_VERSION)
    return model.SerializeToString()


def run(operator, given, output_dtype, **node):
    """Run one node in ONNX Runtime on the CPU, and return its first output.

    Parameters
    ----------
    operator : str
    given : dict of str to (ndarray or None)
        The inputs in the operator's order; None leaves an optional one out.
    output_dtype : str
    **node
        ``opset``, ``domain``, ``attributes`` and ``outputs`` of `one_node_model`.

    Returns
    -------
    ndarray
    """
    inputs = tuple(("", "", 0) if x is None else (name, x.dtype.name, x.ndim) for name, x in given.items())
    session = _session(operator, inputs, output_dtype, **node)
    feeds = {name: np.ascontiguousarray(x) for name, x in given.items() if x is not None}
    return session.run(None, feeds)[0]


@lru_cache(maxsize=256)
def _session(operator, inputs, output_dtype, **node):
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses is raised too
    model = one_node_model(operator, inputs, output_dtype, **node)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _element(dtype):
    from onnx import TensorProto, helper  # pyright: ignore[reportMissingImports]

    return TensorProto.BFLOAT16 if dtype == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
