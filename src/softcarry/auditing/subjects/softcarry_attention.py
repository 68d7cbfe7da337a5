"""softcarry's compiled attention as subjects: the output, over NumPy arrays and torch tensors, and the carry.

A floating mask of the audit is handed over as a bias, as `softcarry.attention` takes booleans only for masks.
The carry is declared: terms are not rounded before they meet the values, and are summed a key block at a time.
Undeclared, bounds would allow for rounded terms in 16 bits, and at 65536 keys for a hundred times the error.
"""

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


def carry() -> Subject:
    """Return ``softcarry.attention_carry``, called with NumPy arrays: its m, l and o are audited unrounded.

    Returns
    -------
    Subject
    """
    return _subject("softcarry-attention-carry", carry_kernel, "numpy")


def attention_kernel(q, k, v, *, mask=None, causal=False, scale=None):
    """Call ``softcarry.attention`` for the output and ``softcarry.attention_carry`` for the lse.

    Parameters
    ----------
    q, k, v : array
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv), of NumPy or torch.
    mask : array, optional
        Boolean, True = attend, or floating, added to the scores.
    causal : bool
    scale : float, optional

    Returns
    -------
    output, lse : array
        (b, h, tq, dv) in the dtype of q; (b, h, tq) float32, or float64 for float64. An empty row has
        output 0 and lse −inf.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])
    >>> output, lse = attention_kernel(q, k, v, mask=np.array([False, True]))
    >>> output.item(), lse.item()
    (3.0, 0.0)
    """
    from softcarry._attention import attention, attention_carry

    options = _options(mask, causal, scale)
    return attention(q, k, v, **options), attention_carry(q, k, v, **options).lse


def carry_kernel(q, k, v, *, mask=None, causal=False, scale=None):
    """Call ``softcarry.attention_carry`` and read the output and the lse off the carry.

    Parameters
    ----------
    q, k, v, mask, causal, scale
        As of `attention_kernel`.

    Returns
    -------
    output, lse : array
        (b, h, tq, dv) and (b, h, tq), float32, or float64 for float64, whatever the dtype of q. An empty row
        has output 0 and lse −inf.
    """
    from softcarry._attention import attention_carry

    summary = attention_carry(q, k, v, **_options(mask, causal, scale))
    return summary.output, summary.lse


def _options(mask, causal, scale):
    boolean = mask is not None and "bool" in str(mask.dtype)
    return {
        "mask": mask if boolean else None,
        "bias": None if boolean else mask,
        "causal": causal,
        "scale": scale,
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
        # Of the compiled exponential: cpu/exponential.py states less than 1.
        exp_ulps=2.0,
    )
