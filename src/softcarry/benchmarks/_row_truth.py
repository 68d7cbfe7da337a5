"""What the functions of rows should return, in plain float64 NumPy, and how far a sound one may be off.

The bounds hold for any kernel that subtracts the maximum first, adds in an order no deeper than blocks of √n
(2√n − 2 additions a term), and rounds once to the dtype of the result. With u the unit roundoff of the
working format, to first order and with one u to spare for the rest:

- the subtraction s − m errs by u|s − m|, its product with log2(e) by 2u|s − m|, 2^x by one ulp, 2u: a term
  e^(s − m) is off by at most (3|s − m| + 3)u of itself;
- l is off by E_l, the mean of that over the terms, plus γ of the depth (`summation_bound`);
- the lse, m + ln l, by `lse_bound`; a log-probability, (s − m) − ln l, by that bound with s − m for m and one
  more u|s − m| for the subtraction; a probability by its term's error, E_l and 2u for the division.

Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, sections 2.2, 3.1 and 4.2.
"""

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from softcarry.numerics import lse_bound, summation_bound

_WORKING = "float32"


class Truth(NamedTuple):
    """What is expected, and how far from it a result may be, both float64 and of the result's shape."""

    expected: "np.ndarray[Any, Any]"
    bound: "np.ndarray[Any, Any]"

    def at(self, indices: "np.ndarray[Any, Any]") -> "Truth":
        """Return the truth at places along the last axis: one a row, or several with an axis of their own."""
        several = indices if indices.ndim == self.expected.ndim else indices[..., None]
        parts = (np.take_along_axis(part, several, -1).reshape(indices.shape) for part in self)
        return Truth(*parts)


class RowTruth:
    """The exact answers for rows of finite scores, at least one a row.

    Parameters
    ----------
    x : ndarray
        Scores (..., n) in float32, float16 or bfloat16, whose working format is float32.
    """

    def __init__(self, x: "np.ndarray[Any, Any]") -> None:
        self.dtype = x.dtype
        self._information = ml_dtypes.finfo(x.dtype)
        self._u = 2.0**-24
        scores = x.astype(np.float64)
        self._scores = scores
        self._m = scores.max(axis=-1, keepdims=True)
        self._difference = scores - self._m
        self._terms = np.exp(self._difference)
        self._l = self._terms.sum(axis=-1, keepdims=True)
        weighted = (self._terms * (3.0 * np.abs(self._difference) + 3.0)).sum(axis=-1, keepdims=True)
        depth = summation_bound(x.shape[-1], _WORKING, "blocked", block=max(1, math.isqrt(x.shape[-1])))
        self._l_error = self._u * weighted / self._l + depth

    def logsumexp(self) -> Truth:
        """Of one a row."""
        expected = self._m + np.log(self._l)
        truth = self._rounded(expected, lse_bound(self._m, self._l, self._l_error, _WORKING))
        return Truth(truth.expected[..., 0], truth.bound[..., 0])

    def softmax(self) -> Truth:
        """Of the shape of the scores."""
        expected = self._terms / self._l
        own = (3.0 * np.abs(self._difference) + 3.0 + 2.0) * self._u
        return self._rounded(expected, expected * (own + self._l_error))

    def log_softmax(self) -> Truth:
        """Of the shape of the scores."""
        expected = self._difference - np.log(self._l)
        own = lse_bound(self._difference, self._l, self._l_error, _WORKING)
        return self._rounded(expected, own + self._u * np.abs(self._difference))

    def top_indices(self, k: int) -> "np.ndarray[Any, Any]":
        """Of the k highest scores of a row, highest first, ties to the lower index."""
        rows = self._scores.reshape(-1, self._scores.shape[-1])
        found = np.empty((len(rows), k), np.int64)
        for row, scores in enumerate(rows):
            candidates = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
            found[row] = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
        return found.reshape(*self._scores.shape[:-1], k)

    def _rounded(self, expected: Any, bound: Any) -> Truth:
        """Add the one rounding to the dtype of the result, and the flush of subnormal results to 0."""
        wide = self.dtype == np.float32
        u = 0.0 if wide else float(self._information.eps) / 2.0
        # Half the spacing of the subnormal numbers, or all that a working format flushes.
        floor = max(2.0**-126, float(self._information.smallest_subnormal) / 2.0)
        return Truth(expected, bound + u * (np.abs(expected) + bound) + floor)


def disagreement(name: str, got: Any, truth: Truth) -> str:
    """Say how a result differs from the truth by more than the bound; "" if it does not."""
    result = np.asarray(got).astype(np.float64)
    if result.shape != truth.expected.shape:
        return f"{name} has shape {result.shape}, expected {truth.expected.shape}"
    error = np.abs(result - truth.expected)
    bad = ~(error <= truth.bound)
    if not bad.any():
        return ""
    worst = np.unravel_index(np.argmax(np.where(bad, np.nan_to_num(error, nan=np.inf), -1.0)), bad.shape)
    place = tuple(int(index) for index in worst)
    return (
        f"{name}{list(place)} is {result[place]:g}, expected {truth.expected[place]:g} "
        f"within {float(np.broadcast_to(truth.bound, bad.shape)[place]):.2g}"
    )
