"""The ground under every array function: whose arrays they are, which dtype they take, and what is refused.

NumPy, torch, JAX, array-api-strict and every other array-API library come in through `array_namespace`;
nothing here imports a library that the caller has not imported already.
"""

import contextlib
import re
import sys
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

from softcarry.errors import DTypeError, ShapeError

Array: TypeAlias = Any
Namespace: TypeAlias = Any
DType: TypeAlias = Any

# The 4-, 6- and 8-bit formats of ml_dtypes, torch and JAX carry a suffix: float8_e4m3fn.
_FLOATING = re.compile(r"bfloat16|float(16|32|64)|float[468]_\w+")


def dtype_name(dtype: DType) -> str:
    """Return the bare name of a dtype: "float32" for NumPy's, torch's, JAX's and array-api-strict's.

    Examples
    --------
    >>> import numpy as np
    >>> dtype_name(np.dtype(">f4"))
    'float32'
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[-1]


def array_namespace(*arrays: Array | None) -> Namespace:
    """Return the array-API namespace that all arrays share; ``None`` among them is passed over.

    Raises
    ------
    DTypeError
        If an argument is no array, or two arrays belong to different libraries.

    Examples
    --------
    >>> import numpy as np
    >>> array_namespace(np.zeros(2), None).__name__
    'array_api_compat.numpy'
    """
    present = [array for array in arrays if array is not None]
    if not present:
        msg = "expected an array of NumPy, torch, JAX or another array-API library, got None"
        raise DTypeError(msg)
    for array in present:
        if not (hasattr(array, "dtype") and hasattr(array, "shape")):
            msg = (
                f"expected an array of NumPy, torch, JAX or another array-API library, got "
                f"{type(array).__name__}: wrap it, for example in numpy.asarray"
            )
            raise DTypeError(msg)
        if isinstance(array, np.ma.MaskedArray):
            msg = "expected a plain array, got a masked one: fill it first, scores with −inf, values with 0"
            raise DTypeError(msg)
        if isinstance(array, np.matrix):
            msg = "expected a plain array, got a numpy.matrix, which never loses an axis: use numpy.asarray"
            raise DTypeError(msg)
    try:
        return array_api_compat.array_namespace(*present)
    except TypeError as error:
        libraries = sorted({type(array).__module__.partition(".")[0] for array in present})
        msg = (
            f"expected arrays of one array-API library, got {' and '.join(libraries)}: "
            f"convert them to one library first"
        )
        raise DTypeError(msg) from error


def namespace_of_dtype(dtype: DType) -> Namespace:
    """Return the array-API namespace that a dtype belongs to.

    Raises
    ------
    DTypeError
        If no known library defines the object.
    """
    kind = dtype if isinstance(dtype, type) else type(dtype)
    library = (getattr(dtype, "__module__", None) or kind.__module__).partition(".")[0]
    if library == "torch":
        import array_api_compat.torch as xp
    elif library in ("jax", "array_api_strict"):
        xp = sys.modules["jax.numpy" if library == "jax" else library]
    elif isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        import array_api_compat.numpy as xp
    else:
        msg = f"expected an array or a dtype of NumPy, torch, JAX or array-api-strict, got {dtype!r}"
        raise DTypeError(msg)
    return xp


def require_floating(what: str, dtype: DType) -> None:
    """Refuse every dtype but the real floating-point ones of at most 64 bits.

    Parameters
    ----------
    what : str
        What the message calls the array.
    dtype : dtype
        A dtype of any library.

    Raises
    ------
    DTypeError
        For integers, booleans, complex numbers, NumPy's long double and everything else.
    """
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        dtype = np.dtype(dtype)
    name = dtype_name(dtype)
    if not _FLOATING.fullmatch(name):
        msg = (
            f"{what} must be real floating point (float64, float32, float16 or bfloat16), got {name}: "
            f"convert first, for example to float32"
        )
        raise DTypeError(msg)


def working_dtype(xp: Namespace, *dtypes: DType) -> DType:
    """Return the dtype in which m, l and o are kept: float64 if any input is float64, else float32."""
    return xp.float64 if any(dtype_name(dtype) == "float64" for dtype in dtypes) else xp.float32


def convert(xp: Namespace, array: Array, dtype: DType) -> Array:
    """Return the array in a dtype of its namespace, itself if it has that dtype."""
    if array.dtype == dtype:
        return array
    # NumPy reductions to a point give a scalar, which its astype refuses; torch's asarray would detach.
    return xp.astype(np.asarray(array) if isinstance(array, np.generic) else array, dtype)


def options_of(like: Array | DType) -> tuple[Namespace, dict[str, Any]]:
    """Return the namespace of an array or dtype, and the dtype and device that a carry like it has.

    Raises
    ------
    DTypeError
        If it is neither, or not real floating point.
    """
    if isinstance(like, type | np.dtype) or not hasattr(like, "shape"):
        xp, dtype, device = namespace_of_dtype(like), like, None
    else:
        xp, dtype, device = array_namespace(like), like.dtype, array_api_compat.device(like)
    require_floating("like", dtype)
    return xp, {"dtype": working_dtype(xp, dtype), "device": device}


def select(xp: Namespace, condition: Array, chosen: Array | float, other: Array | float) -> Array:
    """Return ``xp.where(condition, chosen, other)``, where one of the two may be a Python float.

    The float takes the dtype and device of the other; NumPy before 2.0 would make the result float64.
    """
    # A NumPy scalar of float64 is a float too, hence no isinstance.
    like: Array = other if type(chosen) is float else chosen
    options = {"dtype": like.dtype, "device": array_api_compat.device(like)}
    if type(chosen) is float:
        chosen = xp.full((), chosen, **options)
    elif type(other) is float:
        other = xp.full((), other, **options)
    return xp.where(condition, chosen, other)


def known(condition: Array) -> bool | None:
    """Return the truth of a boolean array of shape (), or None while a tracer stands in for its value.

    JAX under ``jit``, ``grad`` or ``vmap``, torch under ``vmap`` or ``torch.compile`` and torch's meta
    tensors hold no value; checks of values are passed over there.
    """
    if "torch" in sys.modules and sys.modules["torch"].compiler.is_compiling():
        return None
    try:
        return bool(condition)
    except (TypeError, RuntimeError):
        return None


def quiet(xp: Namespace) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which NumPy does not warn of infinities and NaN that the carry's rules ask for.

    Only libraries that compute by NumPy need it, and torch.compile cannot trace ``numpy.errstate``.
    """
    if xp.__name__.endswith("torch") or xp.__name__.startswith("jax"):
        return contextlib.nullcontext()
    return np.errstate(all="ignore")


def matmul(xp: Namespace, left: Array, right: Array) -> Array:
    """Return the matrix product in the full precision of the inputs.

    On accelerators JAX multiplies float32 matrices in fewer bits unless told otherwise.
    """
    if xp.__name__.startswith("jax"):
        return xp.matmul(left, right, precision="highest")
    return xp.matmul(left, right)


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that shapes broadcast to, or None if they do not broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def require_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as a tuple.

    Raises
    ------
    ShapeError
        If a length is negative or no integer.
    """
    lengths = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in lengths):
        msg = f"a shape is a non-negative integer or a tuple of them, got {shape!r}"
        raise ShapeError(msg)
    return tuple(int(n) for n in lengths)
