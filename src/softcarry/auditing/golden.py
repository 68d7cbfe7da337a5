"""The golden reference: attention in float64, in two plain passes, with nothing in common with any kernel."""

from typing import NamedTuple

import numpy as np

_CHUNK = 64


class Golden(NamedTuple):
    """What exact attention gives, up to float64 rounding.

    Attributes
    ----------
    output : ndarray
        (b, h, tq, dv) float64; 0 on empty rows.
    lse : ndarray
        (b, h, tq) float64, natural log; −inf on empty rows.
    scores : ndarray
        (b, h, tq, tk) float64, after scale and mask; −inf where masked.
    weights : ndarray
        (b, h, tq, tk) float64; exactly 0 where masked, and everywhere on empty rows.
    """

    output: np.ndarray
    lse: np.ndarray
    scores: np.ndarray
    weights: np.ndarray


def causal_mask(queries, keys, alignment="bottom-right"):
    """Return the boolean mask (tq, tk) of causal attention, True where a query may attend.

    Parameters
    ----------
    queries, keys : int
        tq and tk.
    alignment : {"bottom-right", "top-left"}
        Bottom-right lets the last query see the last key, so with tq > tk the first tq − tk rows are empty.
        Top-left lets query i see keys 0 to i.

    Returns
    -------
    ndarray
        (tq, tk) bool.

    Examples
    --------
    >>> causal_mask(2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    >>> causal_mask(2, 3, "top-left").astype(int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    shift = keys - queries if alignment == "bottom-right" else 0
    return np.arange(keys)[None, :] <= np.arange(queries)[:, None] + shift


def golden_attention(
    q,
    k,
    v,
    *,
    mask=None,
    causal: bool | str = False,
    scale=None,
    softcap=None,
    window=None,
    kv_lengths=None,
    sinks=None,
    alignment="bottom-right",
) -> Golden:
    """Compute attention in float64: scores, their maximum, their exponentials, one division.

    Parameters
    ----------
    q : ndarray
        (b, h, tq, d).
    k : ndarray
        (b, h, tk, d); tk may be 0.
    v : ndarray
        (b, h, tk, dv).
    mask : ndarray, optional
        Broadcastable to (b, h, tq, tk). Boolean: True attends, and what lies behind False is selected away,
        NaN included. Floating: added to the scores.
    causal : bool or {"bottom-right", "top-left"}
        True means bottom-right.
    scale : float, optional
        Default 1/√d.
    softcap : float, optional
        c: scores become c · tanh(s / c), before masks.
    window : tuple of (int or None), optional
        (left, right): keys from left before to right after the diagonal are seen, both included; None is no
        limit on that side.
    kv_lengths : ndarray, optional
        (b,) integers: keys at or beyond are not seen. The diagonal stays that of tk.
    sinks : ndarray, optional
        (h,): scores of one more key a head, without a value.
    alignment : {"bottom-right", "top-left"}
        Of the diagonal of a window.

    Returns
    -------
    Golden
        A row without keys has output 0 and lse −inf. A live NaN or +inf score gives NaN in its row, and
        nowhere else; NaN in a value reaches the rows that attend to that key.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 27.1 (why the maximum goes first)
    and 4.2 (pairwise sums).

    Examples
    --------
    >>> q = np.zeros((1, 1, 1, 4)); k = np.zeros((1, 1, 2, 4)); v = np.array([[[[1.0], [3.0]]]])
    >>> golden = golden_attention(q, k, v)
    >>> float(golden.output.item()), round(float(golden.lse.item()), 4)
    (2.0, 0.6931)
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    with np.errstate(all="ignore"):
        scores = scale * np.matmul(q, np.swapaxes(k, -1, -2))
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if mask is not None:
            mask = np.asarray(mask)
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        if causal:
            rule = causal_mask(q.shape[-2], k.shape[-2], "bottom-right" if causal is True else causal)
            scores = np.where(rule, scores, -np.inf)
        if window is not None:
            rule = _window_mask(q.shape[-2], k.shape[-2], window, alignment)
            scores = np.where(rule, scores, -np.inf)
        if kv_lengths is not None:
            seen = np.arange(k.shape[-2]) < np.asarray(kv_lengths)[:, None, None, None]
            scores = np.where(seen, scores, -np.inf)
        largest = scores.max(axis=-1, initial=-np.inf, keepdims=True)
        if sinks is not None:
            sinks = np.asarray(sinks, np.float64)[:, None, None]
            largest = np.maximum(largest, sinks)
        shift = np.where(np.isneginf(largest), 0.0, largest)
        terms = np.exp(scores - shift)
        total = terms.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks - shift)
        lse = np.where(total == 0.0, -np.inf, shift + np.log(total))
        weights = terms / np.where(total == 0.0, 1.0, total)
        return Golden(weigh(weights, v, attended=~np.isneginf(scores)), lse[..., 0], scores, weights)


def _window_mask(queries, keys, window, alignment):
    shift = keys - queries if alignment == "bottom-right" else 0
    after = np.arange(keys)[None, :] - np.arange(queries)[:, None] - shift
    left, right = window
    return (after >= (-np.inf if left is None else -left)) & (after <= (np.inf if right is None else right))


def weigh(weights, values, attended):
    """Multiply weights by values; a value that is not finite counts only in rows that attend to its key.

    Parameters
    ----------
    weights : ndarray
        (b, h, tq, tk) float64.
    values : ndarray
        (b, h, tk, dv) float64.
    attended : ndarray
        (b, h, tq, tk) bool.

    Returns
    -------
    ndarray
        (b, h, tq, dv) float64, summed pairwise.

    Examples
    --------
    >>> values = np.array([[[[1.0], [np.nan]]]])
    >>> weigh(np.array([[[[1.0, 0.0]]]]), values, np.array([[[[True, False]]]])).item()
    1.0
    """
    finite = np.isfinite(values)
    output = _products(weights, np.where(finite, values, 0.0))
    for index in np.argwhere(~finite.all(axis=-1)):
        *group, key = index
        at = tuple(group)
        columns = ~finite[(*at, key)]
        terms = weights[(*at, slice(None), key)][:, None] * values[(*at, key)][columns]
        output[at][:, columns] += np.where(attended[(*at, slice(None), key)][:, None], terms, 0.0)
    return output


def _products(weights, values):
    """Multiply weights by values, keys in chunks whose sums are added pairwise.

    A matrix library may sum all keys one after the other, which errs by more than a float64 kernel that is
    summed key block by key block: then the audit would blame the kernel.
    """
    keys = weights.shape[-1]
    if keys <= _CHUNK:
        return np.matmul(weights, values)
    half = keys // 2
    upper = _products(weights[..., half:], values[..., half:, :])
    return _products(weights[..., :half], values[..., :half, :]) + upper
