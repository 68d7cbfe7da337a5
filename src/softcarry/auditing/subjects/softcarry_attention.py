"""softcarry's compiled attention as subjects: of NumPy and of torch, of few queries and of many.

Most calls of the audit have few queries, which go the way of decoding; for the other way more queries are put
before them. A floating mask is handed over as a bias: ``softcarry.attention`` takes only booleans as masks.

The carry is declared: terms are not rounded before they meet the values, and are summed key block by key
block. Undeclared, bounds would allow for rounded terms in 16 bits, and for sums of all keys one by one.
"""

import numpy as np

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def numpy_attention() -> Subject:
    """Return ``softcarry.attention``, called with NumPy arrays.

    Returns
    -------
    Subject

    Examples
    --------
    >>> numpy_attention().arrays
    'numpy'
    """
    return _subject("softcarry-attention", attention_kernel, "numpy")


def torch_attention() -> Subject:
    """Return ``softcarry.attention``, called with torch tensors.

    Returns
    -------
    Subject
    """
    return _subject("softcarry-attention-torch", attention_kernel, "torch")


def prefill() -> Subject:
    """Return ``softcarry.attention_carry`` of many queries, called with NumPy arrays.

    Returns
    -------
    Subject
        Its output is o / l, in the dtype of o: 16-bit inputs are held to a bound without a 16-bit rounding.
    """
    return _subject("softcarry-attention-prefill", prefill_kernel, "numpy")


def attention_kernel(
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
    splits=None,
):
    """Call ``softcarry.attention`` for the output and ``softcarry.attention_carry`` for the lse.

    Parameters
    ----------
    q, k, v : array
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv), of NumPy or torch.
    mask : array, optional
        (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    causal : bool
    scale, softcap : float, optional
    window : (left, right), optional
    kv_lengths : integers (b,), optional
    sinks : array (h,), optional
    splits : int, optional
        As of ``softcarry.attention``.

    Returns
    -------
    output, lse : array
        (b, h, tq, dv) in the dtype of q; (b, h, tq) float32, or float64 for float64. An empty row has
        output 0 and lse −inf.

    Examples
    --------
    >>> q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])
    >>> output, lse = attention_kernel(q, k, v, mask=np.array([[[[False, True]]]]))
    >>> output.item(), lse.item()
    (3.0, 0.0)
    """
    from softcarry._attention import attention, attention_carry

    options = _options(mask, causal, scale, softcap, window, kv_lengths, sinks, splits)
    return attention(q, k, v, **options), attention_carry(q, k, v, **options).lse


def prefill_kernel(
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
    splits=None,
):
    """Call ``softcarry.attention_carry`` with more queries before those given, and read off what is theirs.

    Parameters
    ----------
    q, k, v, mask, causal, scale, softcap, window, kv_lengths, sinks, splits
        As of `attention_kernel`, of NumPy.

    Returns
    -------
    output, lse : ndarray
        (b, h, tq, dv) and (b, h, tq), float32, or float64 for float64, whatever the dtype of q. An empty row
        has output 0 and lse −inf.

    Examples
    --------
    >>> q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])
    >>> output, lse = prefill_kernel(q, k, v, mask=np.array([[[[False, True]]]]))
    >>> output.item(), lse.item()
    (3.0, 0.0)
    """
    from softcarry._attention import attention_carry
    from softcarry.cpu.decode import MOST_ROWS

    whole = (*q.shape[:3], k.shape[2])
    q = _behind(q, MOST_ROWS, 0.0)
    if mask is not None:
        mask = np.broadcast_to(mask, whole)
        mask = _behind(mask, MOST_ROWS, False if mask.dtype == bool else -np.inf)
    options = _options(mask, causal, scale, softcap, window, kv_lengths, sinks, splits)
    carry = attention_carry(q, k, v, **options)
    return carry.output[:, :, MOST_ROWS:], carry.lse[:, :, MOST_ROWS:]


def _behind(rows, count, fill):
    """Put as many rows before others on the third axis."""
    before = np.full((*rows.shape[:2], count, rows.shape[3]), fill, rows.dtype)
    return np.concatenate([before, rows], axis=2)


def _options(mask, causal, scale, softcap, window, kv_lengths, sinks, splits):
    boolean = mask is not None and "bool" in str(mask.dtype)
    return {
        "mask": mask if boolean else None,
        "bias": None if boolean else mask,
        "causal": causal,
        "scale": scale,
        "softcap": softcap,
        "window": window,
        "kv_lengths": kv_lengths,
        "sinks": sinks,
        "splits": splits,
    }


def _subject(name, kernel, arrays):
    return Subject(
        kernel,
        name=name,
        arrays=arrays,
        dtypes=KNOWN[name].dtypes,
        lse="e",
        carry={dtype: _carry_model(dtype) for dtype in KNOWN[name].dtypes},
        causal="bottom-right",
    )


def _carry_model(dtype):
    from softcarry.cpu.attention_layout import KEY_BLOCK
    from softcarry.numerics import CarryModel

    working = "float64" if dtype == "float64" else "float32"
    return CarryModel(
        l_format=working,
        o_format=working,
        p_format=None,
        score_format=working,
        key_block=KEY_BLOCK,
        # cpu/exponential.py states less than 1 for its own.
        exp_ulps=2.0,
    )
