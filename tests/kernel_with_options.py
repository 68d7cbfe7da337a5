"""A sound NumPy kernel that takes every option but dropout, one method a step, for mutants to override."""

import math

import numpy as np


class WithOptions:
    """Two passes over the whole row, in float32 (float64 for float64); grouped heads are repeated."""

    def __call__(
        self,
        q,
        k,
        v,
        *,
        mask=None,
        causal=False,
        scale=None,
        softcap=None,
        window=None,
        kv_lengths=None,
        sinks=None,
    ):
        working = np.float64 if q.dtype == np.float64 else np.float32
        queries, keys, values = (x.astype(working) for x in (q, k, v))
        keys, values = self.keys_of_heads(keys, q.shape[1]), self.values_of_heads(values, q.shape[1])
        products = queries @ np.swapaxes(keys, -1, -2)
        seen = self.seen(q, k, causal, window, kv_lengths)
        scores = self.masked(products, q.shape[-1], scale, softcap, mask, seen)
        with np.errstate(all="ignore"):
            m = scores.max(axis=-1, keepdims=True, initial=-np.inf)
            m = np.where(np.isneginf(m), 0, m)
            p = np.exp(scores - m)
            total = p.sum(axis=-1, keepdims=True)
            if sinks is not None:
                total = total + self.sink_terms(sinks.astype(working), m, q)
            output = p @ values / np.where(total == 0, 1, total)
        return output.astype(q.dtype)

    def keys_of_heads(self, x, heads):
        return np.repeat(x, heads // x.shape[1], axis=1)

    def values_of_heads(self, x, heads):
        return np.repeat(x, heads // x.shape[1], axis=1)

    def masked(self, products, d, scale, softcap, mask, seen):
        scores = self.biased(self.capped(self.scaled(products, d, scale), softcap), mask, scale)
        return np.where(seen, scores, -np.inf)

    def scaled(self, products, d, scale):
        return products * products.dtype.type(1.0 / math.sqrt(d) if scale is None else scale)

    def capped(self, scores, softcap):
        return scores if softcap is None else softcap * np.tanh(scores / softcap)

    def biased(self, scores, mask, scale):
        if mask is None:
            return scores
        return np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(scores.dtype)

    def seen(self, q, k, causal, window, kv_lengths):
        after = self.after(q.shape[2], k.shape[2])
        seen = np.ones((q.shape[0], 1, *after.shape), bool)
        if causal:
            seen &= self.causal(after)
        if window is not None:
            seen &= self.window(after, *window)
        if kv_lengths is not None:
            seen &= self.lengths(np.arange(k.shape[2]), kv_lengths[:, None, None, None])
        return seen

    def after(self, tq, tk):
        """How far key j lies after query i."""
        return np.arange(tk)[None, :] - np.arange(tq)[:, None] - (tk - tq)

    def causal(self, after):
        return after <= 0

    def window(self, after, left, right):
        return (after >= (-np.inf if left is None else -left)) & (
            after <= (np.inf if right is None else right)
        )

    def lengths(self, key, length):
        return key < length

    def sink_terms(self, sinks, m, q):
        return np.exp(sinks[None, :, None, None] - m)


def mutant(**steps):
    """The kernel with some of its methods replaced; a function given takes self first."""
    return type("Mutant", (WithOptions,), steps)()
