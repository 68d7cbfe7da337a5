"""Calling a subject with float64 NumPy arrays, whatever arrays, layout and keywords it takes itself."""

import warnings
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

import numpy as np

from softcarry.auditing._libraries import (
    dtype_name,
    is_floating,
    libraries_to_try,
    library_of,
    to_float64,
    to_library,
)
from softcarry.auditing.golden import golden_attention
from softcarry.auditing.subject import Subject
from softcarry.errors import SubjectError


class Outcome(NamedTuple):
    """What a call returned.

    Attributes
    ----------
    output : ndarray
        (b, h, tq, dv) float64.
    lse : ndarray or None
        (b, h, tq) float64, natural log if the subject's unit is declared.
    """

    output: np.ndarray
    lse: np.ndarray | None


class MalformedResultError(Exception):
    """A kernel returned something that is no attention output; the message says what."""


class KernelRaisedError(Exception):
    """A kernel raised; the message is its error in one line."""


@dataclass(frozen=True)
class Calling:
    """One way of calling a subject that has worked.

    Attributes
    ----------
    subject : Subject
        Whom.
    dtype, library : str
        What its arrays are.
    returns_lse : bool
        Whether it returns (output, lse).
    lse_tokens_first : bool
        Whether the lse is (b, tq, h).
    output_dtype, lse_dtype : str
        The dtypes of what it returns; "" for no lse.
    causal : str
        The alignment of its causal mask, or "ignored" if the option changes nothing.
    writes_to : tuple of str
        Which of q, k and v it changed in one plain call.
    """

    subject: Subject
    dtype: str
    library: str
    returns_lse: bool = False
    lse_tokens_first: bool = False
    output_dtype: str = ""
    lse_dtype: str = ""
    causal: str = "bottom-right"
    writes_to: tuple[str, ...] = ()

    def __call__(
        self, q, k, v, *, arrange=None, arrange_mask=None, broadcast_mask=True, **options
    ) -> Outcome:
        """Call the kernel with float64 arrays (b, h, t, d) whose values are exact in the dtype.

        Parameters
        ----------
        q, k, v : ndarray
            float64 (b, h, tq, d), (b, h or a divisor, tk, d), (b, h or a divisor, tk, dv).
        arrange : callable, optional
            ``arrange(x)`` puts the kernel's own arrays q, k and v elsewhere in memory, with the same values.
        arrange_mask : callable, optional
            The same for the mask.
        broadcast_mask : bool
            Whether a mask is handed over as (b, h, tq, tk), or in its own shape.
        **options
            Of ``subject.ALIASES``; None and False are not handed over.

        Raises
        ------
        KernelRaisedError
            If the kernel raises.
        MalformedResultError
            If the result has a wrong type, dtype or shape.
        """
        arrays = self._hand_over(q, k, v)
        if arrange is not None:
            arrays = [arrange(x) for x in arrays]
        shape = (*q.shape[:3], k.shape[2]) if broadcast_mask else None
        output, lse = _pair(self._raw(arrays, self._options(options, shape, arrange_mask)))
        b, h, tq, dv = *q.shape[:3], v.shape[-1]
        output = self._swap(_floats(output, "the output", self._layout((b, h, tq, dv))))
        if not self.returns_lse:
            return Outcome(output, None)
        lse = _floats(lse, "the lse", (b, tq, h) if self.lse_tokens_first else (b, h, tq))
        lse = np.swapaxes(lse, 1, 2) if self.lse_tokens_first else lse
        return Outcome(output, lse * log(2.0) if self.subject.lse == "2" else lse)

    def attempt(self, q, k, v, **options):
        """Call the kernel with arrays whose shapes need not fit, and return whatever it returns.

        Raises
        ------
        KernelRaisedError
            If the kernel raises, which is what it should do.
        """
        return self._raw(self._hand_over(q, k, v), self._options(options, None))

    def _hand_over(self, *arrays):
        try:
            return [to_library(self._swap(x), self.library, self.dtype, self.subject.device) for x in arrays]
        except Exception as error:
            raise KernelRaisedError(one_line(error)) from error

    def _options(self, options, mask_shape, arrange_mask=None):
        """Write options under the kernel's own keywords, arrays among them as arrays of its library."""
        given = {}
        for name, value in options.items():
            if value is None or value is False:
                continue
            if name == "mask" and mask_shape is not None:
                value = np.broadcast_to(value, mask_shape)
            if isinstance(value, np.ndarray):
                value = to_library(value, self.library, self.dtype, self.subject.device)
            if name == "mask" and arrange_mask is not None:
                value = arrange_mask(value)
            given[self.subject.keywords[name]] = value
        return given

    def _raw(self, arrays, options):
        try:
            # What a kernel warns of is no evidence; and warnings turned into errors must not change it.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self.subject.kernel(*arrays, **options)
        except (KeyboardInterrupt, GeneratorExit, MalformedResultError):
            raise
        except BaseException as error:  # some bindings raise panics that are no Exception
            raise KernelRaisedError(one_line(error)) from error

    def _layout(self, shape):
        b, h, t, d = shape
        return shape if self.subject.layout == "bhtd" else (b, t, h, d)

    def _swap(self, x):
        return x if self.subject.layout == "bhtd" else np.swapaxes(x, 1, 2)


def prepare(subject: Subject, dtype: str) -> Calling:
    """Find a way of calling a subject, by one small plain call.

    Parameters
    ----------
    subject : Subject
    dtype : str

    Returns
    -------
    Calling

    Raises
    ------
    SubjectError
        If the call raises or returns no attention output, with every kind of array that was tried.
    """
    libraries = [subject.arrays] if subject.arrays else libraries_to_try()
    if subject.device:  # NumPy's arrays stay in the memory of the processor
        libraries = [library for library in libraries if library != "numpy"]
    reasons: dict[str, list[str]] = {}
    cause = None
    for library in libraries:
        try:
            calling = _first_call(subject, dtype, library)
            return replace(calling, causal=subject.causal or _alignment(calling))
        except (KernelRaisedError, MalformedResultError) as error:
            reasons.setdefault(str(error), []).append(library)
            cause = error
    tried = "; ".join(f"{' arrays, '.join(names)} arrays: {reason}" for reason, names in reasons.items())
    msg = (
        f"subject {subject.name!r} gave no attention output for q, k, v of shape "
        f"{_layout_shape(subject)} in {dtype} ({tried}); "
        f"expected kernel(q, k, v) -> output or (output, lse)"
    )
    raise SubjectError(msg) from cause


# b, h, t, d of the first call: sizes that every kernel takes, all different so that no axis can be mistaken.
_PLAIN = (1, 2, 64, 32)


def _layout_shape(subject):
    b, h, t, d = _PLAIN
    return _PLAIN if subject.layout == "bhtd" else (b, t, h, d)


def _first_call(subject, dtype, library):
    calling = Calling(subject, dtype, library)
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-8, 9, _PLAIN) / 8.0 for _ in range(3))
    arrays = calling._hand_over(q, k, v)
    output, lse = _pair(calling._raw(arrays, {}))
    if subject.arrays is None and library_of(output) not in (library, None):
        msg = f"returned {type(output).__module__.split('.')[0]}.{type(output).__name__}"
        raise MalformedResultError(msg)
    values = calling._swap(_floats(output, "the output", calling._layout(_PLAIN)))
    _check_layout(subject.layout, values, q, k, v)
    b, h, t, _ = _PLAIN
    shape = tuple(getattr(lse, "shape", ()))
    if lse is not None and shape != (b, t, h):
        _floats(lse, "the lse", (b, h, t))
    return Calling(
        subject,
        dtype,
        library,
        returns_lse=lse is not None,
        lse_tokens_first=shape == (b, t, h),
        output_dtype=dtype_name(output),
        lse_dtype="" if lse is None else dtype_name(lse),
        writes_to=tuple(
            name
            for name, given, x in zip("qkv", arrays, (q, k, v), strict=True)
            if not np.array_equal(calling._swap(to_float64(given)), x)
        ),
    )


def _pair(result):
    """Return the output and the lse, or None, out of what a kernel returned."""
    if isinstance(result, list) and all(library_of(x) for x in result):
        result = tuple(result)
    pair = result if isinstance(result, tuple) else (result, None)
    if len(pair) != 2:
        msg = f"returned a tuple of {len(pair)} where an output or (output, lse) was expected"
        raise MalformedResultError(msg)
    return pair


def _check_layout(declared, output, q, k, v):
    """Refuse a kernel that takes the axes in the other order, of which every later call would go wrong."""
    other = np.swapaxes(golden_attention(*(np.swapaxes(x, 1, 2) for x in (q, k, v))).output, 1, 2)
    error_of_other = np.abs(output - other).max()
    # The two answers are far apart, so that no rounding error of a kernel takes it for its opposite.
    error = np.abs(output - golden_attention(q, k, v).output).max()
    if np.isfinite(error) and error_of_other <= 0.1 * error:
        right = "bthd" if declared == "bhtd" else "bhtd"
        msg = f"the output is that of layout {right!r}: declare Subject(kernel, layout={right!r})"
        raise MalformedResultError(msg)


def _alignment(calling):
    """Read the alignment of a causal mask off one call: with equal scores, the keys of row 0 have weight.

    Whatever can't be read is left at softcarry's own rule, so that a check can say what is wrong.
    """
    if "causal" not in calling.subject.keywords:
        return "bottom-right"
    queries, keys = 3, 5
    q, k = np.zeros((1, 1, queries, 8)), np.zeros((1, 1, keys, 8))
    try:
        output, _ = calling(q, k, np.eye(keys, 8)[None, None], causal=True)
    except (KernelRaisedError, MalformedResultError):
        return "bottom-right"
    # Keys hidden by a finite fill may keep a little weight.
    weights = output[0, 0, :, :keys]
    seen = np.count_nonzero(weights > 0.5 * weights.max(axis=-1, keepdims=True), axis=-1).tolist()
    return {(1, 2, 3): "top-left", (keys, keys, keys): "ignored"}.get(tuple(seen), "bottom-right")


def _floats(x, what, shape):
    """Return the values of an array as float64, after a look at its type, dtype and shape."""
    if library_of(x) is None:
        msg = f"{what} is of type {type(x).__name__}, not an array"
        raise MalformedResultError(msg)
    if not is_floating(x):
        msg = f"{what} has dtype {dtype_name(x)} where a floating dtype was expected"
        raise MalformedResultError(msg)
    if tuple(x.shape) != tuple(shape):
        msg = f"{what} has shape {tuple(x.shape)} where {tuple(shape)} was expected"
        raise MalformedResultError(msg)
    return to_float64(x)


def one_line(error: BaseException, limit: int = 160) -> str:
    """Write an exception in one line: its type and the first line of its text."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:  # an exception of somebody's own, whose text can't be had
        lines = []
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
