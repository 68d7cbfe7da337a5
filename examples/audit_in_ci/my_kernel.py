"""A small attention kernel, blocked over the keys, to show how an audit is set up."""

import math

import numpy as np


def attention(q, k, v, *, mask=None, causal=False, scale=None):
    """Compute attention key block by key block, carrying m, l and o.

    Parameters
    ----------
    q, k, v : ndarray
        (batch, heads, tq, d), (batch, heads, tk, d), (batch, heads, tk, dv).
    mask : ndarray, optional
        Broadcastable to (batch, heads, tq, tk): boolean, True = attend, or added to the scores.
    causal : bool
        Aligned bottom-right: the last query sees the last key.
    scale : float, optional
        Default 1/√d.

    Returns
    -------
    output, lse : ndarray
        (batch, heads, tq, dv) in the dtype of q, and (batch, heads, tq) float32. An empty row has output 0
        and lse −inf.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        msg = f"shapes that do not fit: q {q.shape}, k {k.shape}, v {v.shape}"
        raise ValueError(msg)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    queries, keys = q.shape[2], k.shape[2]
    m = np.full((*q.shape[:3], 1), -np.inf, np.float32)
    l = np.zeros_like(m)
    o = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for start in range(0, keys, 64):
        block = slice(start, min(start + 64, keys))
        scores = np.float32(scale) * (
            q.astype(np.float32) @ np.swapaxes(k[:, :, block], 2, 3).astype(np.float32)
        )
        if mask is not None:
            part = np.broadcast_to(mask, (*q.shape[:3], keys))[..., block]
            part = np.where(part, 0.0, -np.inf) if part.dtype == bool else part
            scores = np.where(np.isneginf(part), -np.inf, scores + part.astype(np.float32))
        if causal:
            seen = np.arange(keys)[block] <= np.arange(queries)[:, None] + keys - queries
            scores = np.where(seen, scores, -np.inf)
        new = np.maximum(m, scores.max(axis=-1, keepdims=True))
        shift = np.where(np.isneginf(new), 0.0, new)
        terms = np.exp(scores - shift).astype(np.float32)
        kept = np.exp(m - shift)
        l = l * kept + terms.sum(axis=-1, keepdims=True)
        o = o * kept + weigh(terms, v[:, :, block].astype(np.float32), ~np.isneginf(scores))
        m = new
    empty = l == 0.0
    output = np.where(empty, 0.0, o / np.where(empty, 1.0, l))
    with np.errstate(divide="ignore"):
        lse = np.where(empty, -np.inf, m + np.log(l))
    return output.astype(q.dtype), lse[..., 0].astype(np.float32)


def weigh(terms, values, seen):
    """Multiply terms by values; what a row does not see is selected away, since 0 · NaN would be NaN."""
    finite = np.isfinite(values)
    output = terms @ np.where(finite, values, 0.0)
    if not finite.all():
        others = np.where(finite, 0.0, values)
        with np.errstate(invalid="ignore"):
            products = terms[..., None] * others[:, :, None]
        output += np.where(seen[..., None], products, 0.0).sum(axis=3)
    return output
