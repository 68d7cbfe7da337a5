"""A kernel's output beside the golden one and the bound that error analysis gives for it."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from softcarry.auditing.golden import Golden


@dataclass(frozen=True)
class Comparison:
    """The output of one call against the golden output.

    Attributes
    ----------
    golden : Golden
        The exact answer.
    output : ndarray
        (b, h, tq, dv) float64, what the kernel returned.
    weight : ndarray
        (b, h, tq, dv) float64: w = Σ p|v|, the size against which the error of a weighted mean is measured.
    bound : ndarray
        (b, h, tq, dv) float64, the largest error that the kernel's declared carry allows.
    likely : ndarray or None
        (b, h, tq, dv) float64, what the error stays below if rounding errors are random: the statistical form
        of the bound, which a sum that has stopped does not obey.
    """

    golden: Golden
    output: np.ndarray
    weight: np.ndarray
    bound: np.ndarray
    likely: np.ndarray | None = None

    @cached_property
    def error(self):
        """Output minus golden output; infinite where one of them is not finite and they are not the same."""
        with np.errstate(invalid="ignore"):
            same = (self.output == self.golden.output) | (
                np.isnan(self.output) & np.isnan(self.golden.output)
            )
            difference = self.output - self.golden.output
        return np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))

    @cached_property
    def exceeded(self):
        """Where the error is beyond the bound, or the output is not finite and should be (bool)."""
        return (np.abs(self.error) > self.bound) | np.isinf(self.error)

    @cached_property
    def relative(self):
        """|error| / w; 0 where w is 0 and the error too."""
        return _divide(np.abs(self.error), self.weight)

    @cached_property
    def relative_bound(self):
        """The bound over w."""
        return _divide(self.bound, self.weight)

    def worst(self, axes=None):
        """Return the largest |error| / bound over some axes, or over all."""
        return _divide(np.abs(self.error), self.bound).max(axis=axes, initial=0.0)

    def worst_likely(self):
        """|error| / likely, element by element; ``statistical`` must have been asked for."""
        return _divide(np.abs(self.error), np.asarray(self.likely))


def _divide(error, size):
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0.0, 0.0, error / size)
    return np.where(np.isinf(error), np.inf, ratio)


def compare(examination, q, k, v, output, *, depth=None, magnitudes=None, statistical=False):
    """Put an output beside the golden one and the master bound of the kernel's declared carry.

    Parameters
    ----------
    examination : Examination
        Whose ``model``, dtype and output format the bound is for.
    q, k, v : ndarray
        The inputs of the call, float64 (b, h, t, d); scale 1/√d, no mask.
    output : ndarray
        (b, h, tq, dv) float64.
    depth : int, optional
        How many products of a score are rounded or added inexactly; default d. Products with zero, and sums
        with zero, are exact in every order.
    magnitudes : ndarray, optional
        Scale · Σ|q||k| for every score, as far as its rounding errors may differ between the keys of a row;
        default: all of it.
    statistical : bool
        Fill in ``likely`` too.

    Returns
    -------
    Comparison

    References
    ----------
    ``softcarry.numerics.attention_error_bound`` has the bound and its sources. The golden output is
    float64 itself: where the kernel is too, the errors of both count, hence twice the bound.

    Examples
    --------
    >>> from softcarry.auditing import Examination, Subject
    >>> def mean_of_values(q, k, v):
    ...     return np.broadcast_to(v.mean(axis=2, keepdims=True), q.shape[:3] + v.shape[-1:])
    >>> examination = Examination(Subject(mean_of_values, arrays="numpy"), "float32", check="REF")
    >>> q, k, v = np.ones((1, 1, 1, 4)), np.ones((1, 1, 2, 4)), np.array([[[[1.0], [3.0]]]])
    >>> bool(compare(examination, q, k, v, examination.call(q, k, v).output).exceeded.any())
    False
    """
    golden = examination.golden(q, k, v)
    if magnitudes is None:
        with np.errstate(over="ignore"):
            magnitudes = np.abs(q) @ np.swapaxes(np.abs(k), -1, -2) / math.sqrt(q.shape[-1])
    depth = q.shape[-1] if depth is None else depth
    bound = _bound(examination, golden, magnitudes, v, depth, statistical=False)
    likely = _bound(examination, golden, magnitudes, v, depth, statistical=True) if statistical else None
    return Comparison(golden, output, golden.weights @ np.abs(v), bound, likely)


def _bound(examination, golden, magnitudes, v, depth, *, statistical):
    from softcarry.numerics import attention_error_bound

    bound = attention_error_bound(
        golden.scores,
        magnitudes,
        v,
        depth=depth,
        model=examination.model,
        output_format=examination.output_format,
        statistical=statistical,
    )
    return np.asarray(bound.output) * (2.0 if examination.dtype == "float64" else 1.0)
