"""ggml's flash_attn_ext as a subject: the CPU attention of llama.cpp, out of the wheel of xllamacpp.

Observed with ggml 0.26 in xllamacpp 2026.10: Q is float32, the output float32, K and V are of the dtype under
audit; (b, h, t, d) in memory, but the output (b, t, h, d). A mask is always float16 and added, so that
booleans go in as 0 and −inf, and a floating mask that float16 does not hold is refused here. With V in
float16 the output is accumulated in float16, key by key (llama.cpp PR#19376), but for many queries at once.
An empty row has output 0. There is no causal option and no lse. Shapes that do not fit end the process by an
assertion.
"""

import ctypes
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.errors import DTypeError, MissingDependencyError

# enum ggml_type
_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
_THREADS = 2
# Beyond the tensors: the graph, the work buffer of two threads, and alignment.
_SPARE = 1 << 25


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def flash() -> Subject:
    """Return ggml_flash_attn_ext on the CPU.

    Returns
    -------
    Subject

    Raises
    ------
    MissingDependencyError
        If the wheel does not hold the functions.
    """
    name = "ggml-flash"
    _library()
    return Subject(flash_kernel, name=name, arrays="numpy", dtypes=KNOWN[name].dtypes, masks="additive")


def flash_kernel(q, k, v, *, mask=None, scale=None, softcap=None, sinks=None):
    """Build a graph of one ggml_flash_attn_ext and compute it.

    Parameters
    ----------
    q, k, v : ndarray
        (b, h, tq, d), (b, kv_heads, tk, d), (b, kv_heads, tk, dv).
    mask : ndarray, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating.
    scale : float, optional
        Default 1/√d, which is this adapter's: ggml has none.
    softcap : float, optional
    sinks : ndarray, optional
        (h,) scores.

    Returns
    -------
    ndarray
        (b, h, tq, dv) float32. An empty row has output 0.

    Raises
    ------
    DTypeError
        For a floating mask that float16 does not hold.
    """
    ggml = _library()
    b, h, tq, d = q.shape
    shape = (b, tq, h, v.shape[-1])
    half = None if mask is None else _half_mask(mask, (tq, k.shape[2]))
    arrays = [q.astype(np.float32), k, v]
    arrays += [x for x in (half, None if sinks is None else sinks.astype(np.float32)) if x is not None]
    size = 2 * sum(x.nbytes for x in arrays) + 4 * prod(shape) + _SPARE
    context = ggml.ggml_init(_InitParams(size, None, False))
    try:
        tensors = [_tensor(ggml, context, x) for x in arrays]
        node = ggml.ggml_flash_attn_ext(
            context,
            *tensors[:3],
            None if half is None else tensors[3],
            d**-0.5 if scale is None else scale,
            0.0,
            softcap or 0.0,
        )
        if sinks is not None:
            ggml.ggml_flash_attn_ext_add_sinks(node, tensors[-1])
        graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(graph, node)
        status = ggml.ggml_graph_compute_with_ctx(context, graph, _THREADS)
        if status != 0:
            msg = f"ggml_graph_compute_with_ctx returned status {status}"
            raise RuntimeError(msg)
        output = np.empty(shape, np.float32)
        ctypes.memmove(output.ctypes.data, ggml.ggml_get_data(node), output.nbytes)
    finally:
        ggml.ggml_free(context)
    return np.swapaxes(output, 1, 2)


def _half_mask(mask, rows):
    # ggml broadcasts masks over batches and heads, and reads beyond one that has too few rows.
    mask = np.broadcast_to(mask, (*mask.shape[:-2], *rows))
    if mask.dtype == bool:
        return np.where(mask, 0.0, -np.inf).astype(np.float16)
    with np.errstate(over="ignore"):
        half = mask.astype(np.float16)
    if not np.array_equal(half[np.isfinite(half)], mask[np.isfinite(half)]):
        msg = f"ggml's masks are float16, which does not hold these numbers of {mask.dtype.name}"
        raise DTypeError(msg)
    return half


def _tensor(ggml, context, x):
    x = np.ascontiguousarray(x)
    extents = [1] * (4 - x.ndim) + list(x.shape)
    tensor = ggml.ggml_new_tensor_4d(context, _TYPES[x.dtype.name], *reversed(extents))
    ctypes.memmove(ggml.ggml_get_data(tensor), x.ctypes.data, x.nbytes)
    return tensor


@lru_cache(maxsize=1)
def _library():
    """Load the library inside the wheel, without importing the package, and declare what is called."""
    from importlib.util import find_spec

    spec = find_spec("xllamacpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    libraries = [path for folder in folders for path in sorted(Path(folder).glob("*.so"))]
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    declared = {
        "ggml_init": (pointer, [_InitParams]),
        "ggml_free": (None, [pointer]),
        "ggml_new_tensor_4d": (pointer, [pointer, ctypes.c_int, whole, whole, whole, whole]),
        "ggml_get_data": (pointer, [pointer]),
        "ggml_flash_attn_ext": (pointer, [pointer] * 5 + [real] * 3),
        "ggml_flash_attn_ext_add_sinks": (None, [pointer, pointer]),
        "ggml_new_graph": (pointer, [pointer]),
        "ggml_build_forward_expand": (None, [pointer, pointer]),
        "ggml_graph_compute_with_ctx": (ctypes.c_int, [pointer, pointer, ctypes.c_int]),
        "ggml_cpu_init": (None, []),
    }
    for path in libraries:
        library = ctypes.CDLL(str(path))
        if all(hasattr(library, name) for name in declared):
            for name, (result, arguments) in declared.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            library.ggml_cpu_init()
            return library
    msg = "the installed xllamacpp holds no library with ggml_flash_attn_ext"
    raise MissingDependencyError(msg)
