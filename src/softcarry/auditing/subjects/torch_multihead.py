"""torch.nn.MultiheadAttention as subjects, with and without the weights that it can return.

Observed with torch 2.13 on a CPU.

Layout
    The module takes (b, t, h·d) and projects. The projections are left out here, so that it computes
    attention of what it is given: products with the identity would carry a NaN from one head to the others,
    since 0 · NaN is NaN. k and v have the same d.
need_weights=False
    Goes on to scaled_dot_product_attention.
need_weights=True
    The whole score matrix, in the dtype of the inputs.
Masks
    Booleans of the module mean the opposite of softcarry's, True = hidden, and are turned round here. A mask
    over keys alone, (b, 1, 1, tk), and kv_lengths are its key_padding_mask; (tq, tk) stays so; all others are
    (b·h, tq, tk). Floats are added to the scores.
causal
    is_causal is a promise about attn_mask, which has to be given too: the triangle is put top-left, as by
    scaled_dot_product_attention. Beside another mask the two are combined, without the promise.
dropout
    In training mode, from torch's global generator.
Scale
    Always 1/√d. No lse, no grouped heads.
Empty rows
    0 without weights, NaN with them.
"""

from functools import partial

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._lengths import check_lengths

_OPTIONS = ("mask", "causal", "kv_lengths", "dropout")


def without_weights() -> Subject:
    """Return the module with need_weights=False.

    Returns
    -------
    Subject
        Takes mask, causal, kv_lengths and dropout, together too. Returns no lse.
    """
    return _subject("torch-multihead", need_weights=False)


def with_weights() -> Subject:
    """Return the module with need_weights=True, the default of its call.

    Returns
    -------
    Subject
        As of `without_weights`.
    """
    return _subject("torch-multihead-weights", need_weights=True)


def _subject(name, need_weights):
    return Subject(
        partial(multihead_kernel, need_weights=need_weights),
        name=name,
        arrays="torch",
        dtypes=KNOWN[name].dtypes,
        options=_OPTIONS,
        causal="top-left",
    )


def multihead_kernel(q, k, v, *, mask=None, causal=False, kv_lengths=None, dropout=0.0, need_weights=False):
    """Call a ``torch.nn.MultiheadAttention`` without its projections.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, d).
    mask : torch.Tensor, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    causal : bool
        Top-left.
    kv_lengths : torch.Tensor, optional
        (b,) integers.
    dropout : float
    need_weights : bool
        Whether to ask for the weights, which are then thrown away.

    Returns
    -------
    torch.Tensor
        (b, h, tq, d) in the dtype of q. An empty row has output 0, and NaN with weights.
    """
    import torch

    b, h, tq, d = q.shape
    tk = k.shape[2]
    # Its weights are never read, so that they need no memory.
    module = torch.nn.MultiheadAttention(
        h * d, h, dropout=dropout, bias=False, batch_first=True, device="meta", dtype=q.dtype
    ).train(dropout > 0.0)
    padding = None if mask is None or mask.shape != (b, 1, 1, tk) else mask[:, 0, 0]
    over_pairs = None if mask is None or padding is not None else _per_head(mask, b, h, tq, tk)
    if padding is not None and padding.dtype == torch.bool:
        padding = ~padding
    check_lengths(kv_lengths, b, tk)
    if kv_lengths is not None:
        beyond = torch.arange(tk, device=q.device) >= kv_lengths[:, None]
        padding = beyond if padding is None else _hide(padding, beyond)
    promised = causal and over_pairs is None
    if causal:
        after = torch.ones(tq, tk, dtype=torch.bool, device=q.device).triu(1)
        over_pairs = after if promised else _hide(over_pairs, after)
    with _no_projections():
        output, _ = module(
            *(x.transpose(1, 2).flatten(2) for x in (q, k, v)),
            key_padding_mask=padding,
            attn_mask=over_pairs,
            need_weights=need_weights,
            is_causal=promised,
        )
    return output.unflatten(2, (h, d)).transpose(1, 2)


def _no_projections():
    """While this lasts, the products with weights that the module makes give back their input, contiguous."""
    from unittest.mock import patch

    from torch.nn import functional

    return patch.object(functional, "linear", lambda x, _weight, _bias=None: x.contiguous())


def _per_head(mask, b, h, tq, tk):
    """Write a mask in one of the module's two shapes, with its meaning of booleans."""
    import torch

    mask = ~mask if mask.dtype == torch.bool else mask
    return mask if mask.ndim == 2 else mask.expand(b, h, tq, tk).reshape(b * h, tq, tk)


def _hide(mask, hidden):
    """Hide more positions in a mask of the module's."""
    import torch

    return mask | hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, float("-inf"))
