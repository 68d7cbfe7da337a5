"""jax.nn.dot_product_attention as a subject.

Observed with jax 0.10.2 on a CPU.

Layout
    q, k, v and the output are (b, t, h, d), and so is the lse: (b, tq, h). Grouped heads are taken.
Dtypes
    Scores in float32, P rounded to the dtype of the inputs, and so is the lse, which is natural log. float16
    is refused on a CPU when jitted (it asks for F16_F16_F32 products), so it is not audited.
Masks
    Booleans, True = attend, are its mask, floats its bias. What is masked gets −0.7 times the largest
    float32.
causal, window
    Aligned top-left. kv_lengths are its key_value_seq_lengths.
Empty rows
    The mean of all values of that head, and an lse of about −2.4e38; NaN if additive −inf emptied them.

The call is jitted, as its users do: without it every new shape compiles a dozen small functions.
"""

from functools import lru_cache

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def dot_product() -> Subject:
    """Return ``jax.nn.dot_product_attention``, with its residual.

    Returns
    -------
    Subject
        Takes mask, causal, scale, window and kv_lengths, together too.
    """
    name = "jax-dot-product"
    return Subject(
        dot_product_kernel,
        name=name,
        arrays="jax",
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        lse="e",
        causal="top-left",
    )


def dot_product_kernel(q, k, v, *, mask=None, causal=False, scale=None, window=None, kv_lengths=None):
    """Call ``jax.nn.dot_product_attention`` under ``jax.jit``.

    Parameters
    ----------
    q, k, v : jax.Array
        (b, tq, h, d), (b, tk, h or a divisor, d), (b, tk, h or a divisor, d).
    mask : jax.Array, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    causal : bool
        Top-left.
    scale : float, optional
    window : (left, right), optional
    kv_lengths : jax.Array, optional
        (b,) integers.

    Returns
    -------
    output, lse : jax.Array
        (b, tq, h, d) and (b, tq, h), both in the dtype of q.
    """
    boolean = mask is not None and mask.dtype == bool
    if window is not None:
        # No key is further away than this.
        window = tuple(q.shape[1] + k.shape[1] if side is None else side for side in window)
    return _jitted()(
        q,
        k,
        v,
        bias=None if boolean else mask,
        mask=mask if boolean else None,
        scale=scale,
        is_causal=causal,
        local_window_size=window,
        key_value_seq_lengths=None if kv_lengths is None else kv_lengths.astype("int32"),
        return_residual=True,
    )


@lru_cache(maxsize=1)
def _jitted():
    import jax

    return jax.jit(
        jax.nn.dot_product_attention, static_argnames=("is_causal", "local_window_size", "return_residual")
    )
