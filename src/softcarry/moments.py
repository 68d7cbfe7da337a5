"""Count, mean and sum of squared deviations: another statistic that merges as the carry does."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softcarry._arrays import (
    Array,
    DType,
    array_namespace,
    convert,
    options_of,
    quiet,
    require_floating,
    require_shape,
    working_dtype,
)
from softcarry.errors import OptionError, ShapeError


@dataclass(frozen=True, eq=False)
class Moments:
    """The count, the mean and the sum of squared deviations from the mean of a set of numbers.

    Moments of disjoint sets are merged anywhere and in any order, with the empty moments as the identity.

    Parameters
    ----------
    count : int
        How many numbers, the same for every row. A Python integer, so it is exact at any size.
    mean, m2 : float, or array (...,)
        The mean and Σ (x − mean)² of every row; 0 and 0 where count is 0. Arrays are kept in float32, or
        float64 if one of them is float64, and narrower formats are converted to float32. Python floats are
        float64.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        If mean and m2 differ in shape or library or are not real floating point, or count is no integer from
        0 on.

    Notes
    -----
    A NaN makes the mean and m2 of its row NaN. An infinity makes the mean infinite or NaN, and m2 NaN; so do
    finite numbers whose sum overflows. No row touches another. Merging with empty moments changes no bit
    whatever they hold; two moments commute to the bit.

    Rounding. With u the unit roundoff, n numbers and K merges in any grouping, to first order, the mean is
    within (n + 4·K)·u·max|x| and m2 within (n + 8 + 6·K)·u·m2 + 2·K·(n + 4·K)·u·max|x|·√(n·m2). Under a
    common offset the error of m2 grows as the offset does, where that of Σ x² − n·mean² grows as its square.

    References
    ----------
    Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance: Analysis and Recommendations, The
    American Statistician 37(3), 1983, 242-247: equation 1.7 (two passes, corrected) and section 2 (the
    merge).

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> a, b = sc.Moments.of(np.array([1.0, 2.0])), sc.Moments.of(np.array([3.0, 6.0]))
    >>> both = a | b
    >>> both.count, float(both.mean), float(both.m2), float(both.variance())
    (4, 3.0, 14.0, 3.5)
    """

    count: int
    mean: Array
    m2: Array

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not hasattr(self.count, "__index__") or self.count < 0:
            msg = f"count must be an integer from 0 on, got {self.count!r}: count is one number for all rows"
            raise OptionError(msg)
        fields: dict[str, Any] = {
            name: np.float64(value) if isinstance(value, int | float) else value
            for name, value in (("mean", self.mean), ("m2", self.m2))
        }
        xp = array_namespace(*fields.values())
        for name, array in fields.items():
            require_floating(name, array.dtype)
        if fields["mean"].shape != fields["m2"].shape:
            shapes = " and ".join(f"{name} {tuple(array.shape)}" for name, array in fields.items())
            msg = f"mean and m2 must have one shape, got {shapes}"
            raise ShapeError(msg)
        dtype = working_dtype(xp, *(array.dtype for array in fields.values()))
        for name, array in fields.items():
            object.__setattr__(self, name, convert(xp, array, dtype))
        object.__setattr__(self, "count", operator.index(self.count))

    @classmethod
    def empty(cls, shape: int | tuple[int, ...] = (), *, like: Array | DType | None = None) -> "Moments":
        """Return the moments of no numbers.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the mean.
        like : array or dtype, optional
            Library, device and dtype, as in `softcarry.Carry.empty`. NumPy's float64 by default.

        Raises
        ------
        ShapeError, DTypeError

        Examples
        --------
        >>> import softcarry as sc
        >>> sc.Moments.empty().count
        0
        """
        xp, options = options_of(np.float64 if like is None else like)
        zeros = xp.zeros(require_shape(shape), **options)
        return cls(0, zeros, zeros)

    @classmethod
    def of(cls, x: Array, axis: int | tuple[int, ...] | None = -1) -> "Moments":
        """Return the moments of numbers along one or more axes.

        Parameters
        ----------
        x : array, sequence of floats, or float
            Real floating point; an array of any array-API library. A float is one number.
        axis : int, tuple of int, or None
            What is reduced; None for all axes.

        Raises
        ------
        ShapeError, DTypeError
            If an axis does not exist or comes twice, a sequence is ragged, or x is not real floating point.

        Examples
        --------
        >>> import softcarry as sc
        >>> float(sc.Moments.of([1.0, 2.0, 6.0]).mean)
        3.0
        """
        if isinstance(x, float) and not isinstance(x, np.generic):
            return cls(1, x, 0.0 if math.isfinite(x) else math.nan)
        if isinstance(x, list | tuple):
            x = _array_of(x)
        xp = array_namespace(x)
        require_floating("x", x.dtype)
        x = convert(xp, x, working_dtype(xp, x.dtype))
        axes = _axes(tuple(x.shape), axis)
        count = math.prod(x.shape[a] for a in axes)
        if count == 0:
            return cls.empty(tuple(n for a, n in enumerate(x.shape) if a not in axes), like=x)
        with quiet(xp):
            first = xp.sum(x, axis=axes, keepdims=True) / count
            deviation = x - first
            # The deviations from a rounded mean do not sum to 0; their sum corrects both the mean and m2.
            rest = xp.sum(deviation, axis=axes) / count
            m2 = xp.sum(deviation * deviation, axis=axes) - rest * rest * count
            return cls(count, xp.squeeze(first, axis=axes) + rest, xp.maximum(m2, xp.zeros_like(m2)))

    def merge(self, *others: "Moments") -> "Moments":
        """Combine with the moments of any number of disjoint sets, left to right; ``a | b`` merges two.

        Raises
        ------
        ShapeError, DTypeError, OptionError
            If an argument is no Moments, shapes differ, or they belong to two libraries.

        Examples
        --------
        >>> import softcarry as sc
        >>> float(sc.Moments.of(1.0).merge(sc.Moments.of(2.0), sc.Moments.of(6.0)).m2)
        14.0
        """
        for other in others:
            _require_mergeable(self, other)
        total = self
        for other in others:
            total = _merge_two(total, other)
        return total

    def __or__(self, other: "Moments") -> "Moments":
        return self.merge(other) if isinstance(other, Moments) else NotImplemented

    def variance(self, ddof: int = 0) -> Array:
        """Return m2 / (count − ddof); NaN where that divides by 0 or less.

        Parameters
        ----------
        ddof : int
            0 for the variance of the numbers themselves, 1 for the unbiased estimate from a sample.

        Raises
        ------
        OptionError
            If ddof is no number.

        Examples
        --------
        >>> import softcarry as sc
        >>> float(sc.Moments.of([1.0, 2.0, 6.0]).variance(ddof=1))
        7.0
        """
        if not isinstance(ddof, int | float | np.number):
            msg = f"ddof must be a number, such as 0 or 1, got {ddof!r}"
            raise OptionError(msg)
        degrees = self.count - ddof
        return self.m2 / degrees if degrees > 0 else self.m2 * math.nan

    def std(self, ddof: int = 0) -> Array:
        """Return the square root of `variance`."""
        return self.variance(ddof) ** 0.5


def _array_of(numbers: Sequence[Any]) -> np.ndarray:
    try:
        return np.asarray(numbers)
    except ValueError as error:
        msg = "x must be numbers in rows of one length, got a ragged sequence: make the rows equal"
        raise ShapeError(msg) from error


def _axes(shape: tuple[int, ...], axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return axes counted from 0, rising."""
    count = len(shape)
    if axis is None:
        return tuple(range(count))
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(a, int | np.integer) and not isinstance(a, bool) for a in axes):
        msg = f"axis must be an integer, a tuple of them or None, got {axis!r}: None takes all axes"
        raise ShapeError(msg)
    if not all(-count <= a < count for a in axes):
        msg = f"axis {axis} does not exist in x of shape {shape}, which has {count}: pass None for all"
        raise ShapeError(msg)
    chosen = tuple(sorted({int(a) % count for a in axes}))
    if len(chosen) < len(axes):
        msg = f"axis {axis} names an axis twice: name it once"
        raise ShapeError(msg)
    return chosen


def _merge_two(a: Moments, b: Moments) -> Moments:
    a, b = _as_wide(a, b), _as_wide(b, a)
    if b.count == 0 or a.count == 0:
        return a if b.count == 0 else b
    xp = array_namespace(a.mean)
    count = a.count + b.count
    with quiet(xp):
        # The step starts at the mean of the larger set, which a small one moves little; at the larger mean
        # where the sets are equally large, so that two sets commute to the bit.
        if a.count == b.count:
            start, end = xp.maximum(a.mean, b.mean), xp.minimum(a.mean, b.mean)
        else:
            start, end = (a.mean, b.mean) if a.count > b.count else (b.mean, a.mean)
        step = end - start
        mean = start + step * (min(a.count, b.count) / count)
        return Moments(count, mean, a.m2 + b.m2 + step * step * (a.count * b.count / count))


def _as_wide(moments: Moments, other: Moments) -> Moments:
    """Return moments in float64 if either is; itself where that changes nothing."""
    xp = array_namespace(moments.mean)
    dtype = working_dtype(xp, moments.mean.dtype, other.mean.dtype)
    return Moments(moments.count, convert(xp, moments.mean, dtype), convert(xp, moments.m2, dtype))


def _require_mergeable(moments: Moments, other: Any) -> None:
    if not isinstance(other, Moments):
        msg = f"merge takes Moments, got {type(other).__name__}: make them with Moments.of"
        raise OptionError(msg)
    array_namespace(moments.mean, other.mean)
    shapes = tuple(moments.mean.shape), tuple(other.mean.shape)
    if shapes[0] != shapes[1]:
        msg = f"Moments to merge must have one shape, got mean {shapes[0]} and {shapes[1]}"
        raise ShapeError(msg)
