"""Exact conversion between float64 NumPy arrays and the arrays of a library, in the dtypes under audit.

Every value handed over is exact in the target dtype, so no conversion here rounds. bfloat16 travels as bits:
NumPy knows it through ml_dtypes only, and torch does not convert it to NumPy at all.
"""

import sys
from importlib.util import find_spec

import numpy as np

from softcarry.auditing.subject import ARRAYS, DTYPES


def libraries_to_try():
    """List array libraries in the order in which an undeclared kernel is tried with them.

    The order is torch, numpy, jax; but a library that is not imported yet comes after those that are, because
    a kernel written for it has usually imported it, and importing torch takes seconds. One that is not
    installed is left out.
    """
    ready = [name for name in ARRAYS if name == "numpy" or name in sys.modules]
    return ready + [name for name in ARRAYS if name not in ready and find_spec(name) is not None]


def to_library(x, library, dtype, device=""):
    """Hand a NumPy array to ``library``: floats as ``dtype``, booleans as booleans.

    Parameters
    ----------
    x : ndarray
        float64, every value exact in ``dtype``; bool; or integers, which stay what they are.
    library : {"torch", "numpy", "jax"}
    dtype : str
    device : str
        Where torch or JAX puts the array; "" is their own default.

    Returns
    -------
    array
        Contiguous, its own memory.
    """
    x = np.asarray(x)
    narrow = np.array(x, dtype=numpy_dtype(dtype) if x.dtype.kind == "f" else x.dtype, order="C")
    if library == "numpy":
        return narrow
    if library == "torch":
        import torch

        if narrow.dtype.name == "bfloat16":
            handed = torch.from_numpy(narrow.view(np.int16)).view(torch.bfloat16)
        else:
            handed = torch.from_numpy(narrow)
        return handed.to(device) if device else handed
    import jax

    handed = jax.device_put(narrow, jax.devices(device)[0]) if device else jax.numpy.asarray(narrow)
    # Without x64 JAX keeps integers in 32 bits, which are enough for lengths.
    if narrow.dtype.kind not in "iu" and handed.dtype != narrow.dtype:
        msg = f"jax turns {dtype} into {handed.dtype}; set jax_enable_x64 to audit {dtype}"
        raise TypeError(msg)
    return handed


def library_of(x):
    """Return the library that an array belongs to, or None."""
    if isinstance(x, np.ndarray):
        return "numpy"
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    return None


def dtype_name(x):
    """Return the name of an array's dtype, the same in every library."""
    return str(x.dtype).removeprefix("torch.")


def is_floating(x):
    """Whether the dtype is one of those under audit."""
    return dtype_name(x) in DTYPES


def to_float64(x):
    """Return the values of an array of any of the libraries, exactly."""
    if library_of(x) == "torch":
        x = x.detach().cpu().resolve_conj().contiguous()
        if dtype_name(x) == "bfloat16":
            import torch

            x = x.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        else:
            x = x.numpy()
    with np.errstate(invalid="ignore"):  # of a signalling NaN, which memory that nobody wrote may hold
        return np.asarray(x).astype(np.float64)


def numpy_dtype(dtype):
    """Return the NumPy dtype of that name."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)
