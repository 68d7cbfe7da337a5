"""A softmax alone as a subject: between exact scores and an exact product, so that every error is its own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softcarry.auditing._calling import MalformedResultError
from softcarry.auditing._libraries import dtype_name, libraries_to_try, library_of, to_float64, to_library
from softcarry.auditing.golden import golden_attention, weigh
from softcarry.auditing.subject import ARRAYS, Subject
from softcarry.errors import OptionError, ShapeError, SubjectError


def softmax_subject(
    function: Callable[[Any], Any],
    *,
    name: str = "",
    arrays: str | None = None,
    dtypes: Iterable[str] = ("float32",),
    control: bool = False,
    device: str = "",
) -> Subject:
    """Wrap a softmax of rows into an attention kernel, to be audited as one.

    Scores are computed in float64 and rounded once to the dtype under audit, masks are selected to −inf or
    added before that, and the weights are multiplied with the values in float64. So all deviation beyond that
    one rounding, which the declared carry allows for, comes from the softmax.

    Parameters
    ----------
    function : callable
        ``function(x)``: x is (..., n) scores in the dtype under audit, −inf where masked; returns the
        weights, of the same shape. It normalises the last axis.
    name : str, optional
        Default: the function's own name.
    arrays : {"torch", "numpy", "jax"}, optional
        The library whose arrays the function takes. By default they are tried.
    dtypes : iterable of str
        The dtypes to audit: "float64", "float32", "bfloat16" (in NumPy that of ml_dtypes), "float16".
    control : bool
        True for a softmax that is known to be wrong.
    device : str
        Where torch or JAX put the scores; "" is their own default.

    Returns
    -------
    Subject
        It takes NumPy arrays and the options mask and scale, and returns float64 outputs and no lse. A call
        whose scores overflow the dtype raises, as it asks nothing of the softmax.

    Raises
    ------
    SubjectError
        If the function can't be called.
    OptionError
        If another argument is none of the above.

    Examples
    --------
    >>> def halves(x):
    ...     return np.full_like(x, 0.5)
    >>> subject = softmax_subject(halves, arrays="numpy")
    >>> subject.kernel(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])).item()
    2.0
    """
    if not callable(function) or isinstance(function, type):
        msg = f"a softmax is a callable function(x) of scores (..., n); got {function!r:.60}"
        raise SubjectError(msg)
    if arrays is not None and arrays not in ARRAYS:
        msg = f"arrays of a softmax is None or one of {', '.join(ARRAYS)}; got {arrays!r}"
        raise OptionError(msg)
    if device and arrays not in ("torch", "jax"):
        msg = f"a device goes with arrays='torch' or 'jax'; got device {device!r} and arrays={arrays!r}"
        raise OptionError(msg)
    from softcarry.numerics import CarryModel

    def carry(dtype):
        wide = "float64" if dtype == "float64" else "float32"
        narrow = dtype if dtype in ("bfloat16", "float16") else None
        return CarryModel(l_format=wide, o_format=wide, p_format=narrow, score_format=dtype)

    kernel = AttentionOfSoftmax(function, arrays, device)
    dtypes = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)
    plain = Subject(kernel, name=name or getattr(function, "__name__", ""), arrays="numpy", dtypes=dtypes)
    return Subject(
        kernel,
        name=plain.name,
        arrays="numpy",
        dtypes=plain.dtypes,
        options=("mask", "scale"),
        control=control,
        carry={dtype: carry(dtype) for dtype in plain.dtypes},
    )


@dataclass
class AttentionOfSoftmax:
    """Attention whose softmax is somebody's function and whose every other step is exact.

    Parameters
    ----------
    function : callable
        ``function(x) -> p``, both (..., n).
    arrays : {"torch", "numpy", "jax"}, optional
        Whose arrays the function takes; None tries them at the first call.
    device : str
        Where torch or JAX put the scores.
    """

    function: Callable[[Any], Any]
    arrays: str | None = None
    device: str = ""
    _found: dict[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, q, k, v, *, mask=None, scale=None):
        """Return float64 outputs (b, h, tq, dv).

        Parameters
        ----------
        q, k, v : ndarray
            (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv), all of the dtype under audit.
        mask : ndarray, optional
            Boolean, True = attend, or floating, added to the scores.
        scale : float, optional
            Default 1/√d.

        Raises
        ------
        ShapeError
            If q and k differ in batch or heads.
        SubjectError
            If a finite score overflows the dtype.
        MalformedResultError
            If the function returns no array of floats, or one of another shape.
        """
        if q.shape[:2] != k.shape[:2]:
            msg = f"expected q and k with the same batch and heads; got {q.shape} and {k.shape}"
            raise ShapeError(msg)
        mask = np.asarray(mask, np.float64) if mask is not None and mask.dtype != bool else mask
        values = v.astype(np.float64)
        # One column of values: only the scores are wanted.
        exact = golden_attention(q, k, values[..., :1], mask=mask, scale=scale).scores
        weights = self._weights(exact, dtype_name(q))
        # What a softmax gives a masked key counts, but for 0: 0 times NaN would be no fault of its own.
        return weigh(weights, values, attended=~(np.isneginf(exact) & (weights == 0.0)))

    def _weights(self, exact, dtype):
        from softcarry.numerics import get_format

        scores = np.asarray(get_format(dtype).round(exact), np.float64)
        if np.any(np.isinf(scores) & np.isfinite(exact)):
            msg = f"a score of {np.abs(exact[np.isfinite(exact)]).max():g} overflows {dtype}"
            raise SubjectError(msg)
        weights = self._call(scores, dtype)
        if library_of(weights) is None or dtype_name(weights) not in ("float64", *_NARROWER):
            kind = dtype_name(weights) if library_of(weights) else type(weights).__name__
            msg = f"the softmax returned {kind} where an array of floats was expected"
            raise MalformedResultError(msg)
        if tuple(weights.shape) != exact.shape:
            msg = f"the softmax returned shape {tuple(weights.shape)} for scores of shape {exact.shape}"
            raise MalformedResultError(msg)
        return to_float64(weights)

    def _call(self, scores, dtype):
        library = self.arrays or self._found.get(dtype)
        if library is not None:
            return self.function(to_library(scores, library, dtype, self.device))
        cause: Exception | None = None
        for library in libraries_to_try():
            try:
                weights = self.function(to_library(scores, library, dtype))
            except Exception as error:
                cause = error
                continue
            if library_of(weights) == library:
                self._found[dtype] = library
                return weights
        msg = f"the softmax takes no {dtype} arrays of {', '.join(libraries_to_try())}"
        raise SubjectError(msg) from cause


_NARROWER = ("float32", "bfloat16", "float16")
