"""Queries, keys and values as a language model has them, and what attention of them should be."""

from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from softcarry.benchmarks._attention_truth import attention_truth
from softcarry.benchmarks._row_truth import Truth

_COPIES = 16


class Shape(NamedTuple):
    """Sizes of a call of attention; dv is d.

    Attributes
    ----------
    batch, heads, kv_heads, tq, tk, d : int
        Query heads, heads of keys and values, queries, keys, and numbers a vector.
    """

    batch: int
    heads: int
    kv_heads: int
    tq: int
    tk: int
    d: int

    @classmethod
    def square(cls, batch: int, heads: int, tokens: int, d: int) -> "Shape":
        """Return the shape of as many queries as keys, each head with keys of its own."""
        return cls(batch, heads, heads, tokens, tokens, d)

    def operations(self, *, causal: bool = False) -> int:
        """Count the floating-point operations of both products, over the pairs that are attended to.

        A pair of a query and a key takes 2d for its score and 2d for its value. Causality is aligned
        bottom-right.

        Examples
        --------
        >>> shape = Shape.square(1, 1, 3, 10)
        >>> shape.operations() // 40, shape.operations(causal=True) // 40
        (9, 6)
        """
        pairs = self.tq * self.tk
        if causal:
            pairs = sum(min(max(i + self.tk - self.tq + 1, 0), self.tk) for i in range(self.tq))
        return 4 * self.batch * self.heads * self.d * pairs


class Inputs(NamedTuple):
    """Arguments of a call.

    Attributes
    ----------
    q : ndarray (batch, heads, tq, d)
        Queries.
    kv : ndarray (2, batch, kv_heads, tk, d)
        Keys, then values: one array, so that one read passes over both.
    """

    q: "np.ndarray[Any, Any]"
    kv: "np.ndarray[Any, Any]"

    @property
    def k(self) -> "np.ndarray[Any, Any]":
        """Keys."""
        return self.kv[0]

    @property
    def v(self) -> "np.ndarray[Any, Any]":
        """Values."""
        return self.kv[1]


@lru_cache(maxsize=1)
def inputs(shape: Shape, dtype: str) -> Inputs:
    """Draw normal numbers, and let some keys decide: they are copies of queries, which they draw to them.

    The copies stand at places from the first key to the last, and where tq = tk on the diagonal: a kernel
    that drops either end, or is causal by one too few or too many, is seen. The last inputs are kept.
    """
    batch, heads, kv_heads, tq, tk, d = shape
    rng = np.random.default_rng(list(shape))
    q = rng.standard_normal((batch, heads, tq, d), np.float32)
    kv = rng.standard_normal((2, batch, kv_heads, tk, d), np.float32)
    rows = q.reshape(batch, kv_heads, -1, d)
    copies = min(tk, max(2, min(_COPIES, rows.shape[2])))
    places, of = (np.linspace(0, count - 1, copies).astype(np.int64) for count in (tk, rows.shape[2]))
    kv[0][:, :, places] = rows[:, :, of]
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return Inputs(q.astype(kind, copy=False), kv.astype(kind, copy=False))


@lru_cache(maxsize=1)
def truth(shape: Shape, dtype: str, *, causal: bool = False) -> Truth:
    """Return what attention of `inputs` should be; the last answer is kept."""
    q, kv = inputs(shape, dtype)
    return attention_truth(q, *kv, causal=causal)
