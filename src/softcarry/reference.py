"""softcarry's reference kernel: attention by key blocks, made of ``Carry.of`` and ``merge`` and nothing else.

It is written to be read and checked, in the arrays of any array-API library; the fast kernels are held to it.
"""

import math

import array_api_compat

from softcarry._arrays import (
    Array,
    array_namespace,
    broadcast_shape,
    convert,
    dtype_name,
    matmul,
    quiet,
    require_floating,
    select,
    working_dtype,
)
from softcarry.carry import Carry
from softcarry.errors import DTypeError, OptionError, ShapeError


def blocked_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    causal: bool | str = False,
    scale: float | None = None,
    key_block: int = 128,
) -> tuple[Array, Array]:
    """Return the attention output and its lse, one key block after another.

    Parameters
    ----------
    q : array (b, h, tq, d)
        float64, float32, bfloat16 or float16, of any array-API library.
    k : array (b, kv_heads, tk, d)
        h is a multiple of kv_heads; query heads h/kv_heads·i and the following share key head i. tk may be 0.
    v : array (b, kv_heads, tk, dv)
    mask : array, optional
        Broadcastable to (b, h, tq, tk). Boolean: True attends, and whatever lies behind False, NaN included,
        is selected away. Floating: added to the scores; −inf masks the key unless its score is NaN.
    causal : bool or {"bottom-right", "top-left"}
        True means bottom-right: the last query sees the last key, and with tq > tk the first rows are empty.
    scale : float, optional
        Factor of the scores, 1/√d by default.
    key_block : int
        Bc, how many keys are summarised at once. It changes the result by rounding only.

    Returns
    -------
    output : array (b, h, tq, dv)
        In the dtype of q. 0 in an empty row.
    lse : array (b, h, tq)
        float32, or float64 if an input is float64. −inf in an empty row.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        For shapes that do not fit, integers, arrays of two libraries, or an unknown option, before any work.

    Notes
    -----
    Scores, P and the carry are kept in float32 (float64 for float64), and the output is rounded once. A live
    NaN, or a score of +inf, makes its own row NaN and no other: see the table of `softcarry.Carry`.

    References
    ----------
    Dao, Fu, Ermon, Rudra and Ré, FlashAttention, NeurIPS 2022, section 3.1; Rabe and Staats,
    arXiv:2112.05682, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from softcarry.reference import blocked_attention
    >>> q, k = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 3, 4))
    >>> v = np.array([[[[1.0], [2.0], [6.0]]]])
    >>> output, lse = blocked_attention(q, k, v, causal=True, key_block=2)
    >>> output.ravel().tolist(), lse.round(4).ravel().tolist()
    ([1.5, 3.0], [0.6931, 1.0986])
    """
    xp = array_namespace(q, k, v, mask)
    _require_attention_shapes(q, k, v)
    alignment = _alignment(causal)
    _require_key_block(key_block)
    (b, h, tq, d), tk = q.shape, k.shape[2]
    if mask is not None:
        mask = _full_mask(xp, mask, (b, h, tq, tk))
    scale = 1.0 / math.sqrt(d) if scale is None else _finite(scale)
    dtype = working_dtype(xp, *(x.dtype for x in (q, k, v)))
    queries = convert(xp, q, dtype)
    keys, values = (_per_query_head(xp, convert(xp, x, dtype), h) for x in (k, v))

    carry = Carry.empty((b, h, tq), value_dim=v.shape[3], like=queries)
    for start in range(0, tk, key_block):
        block = slice(start, min(start + key_block, tk))
        with quiet(xp):
            scores = scale * matmul(xp, queries, xp.matrix_transpose(keys[:, :, block, :]))
            if mask is not None:
                part = mask[..., block]
                scores = (
                    select(xp, part, scores, -math.inf)
                    if _is_boolean(part)
                    else scores + convert(xp, part, dtype)
                )
            if alignment is not None:
                rule = _causal_rule(xp, q, block, tk, alignment)
                scores = select(xp, rule, scores, -math.inf)
        carry = carry.merge(Carry.of(scores, xp.expand_dims(values[:, :, block, :], axis=2)))
    return convert(xp, carry.output, q.dtype), carry.lse


def _require_attention_shapes(q, k, v):
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array is None:
            msg = f"{name} must be an array (batch, heads, tokens, dim), got None"
            raise DTypeError(msg)
        require_floating(name, array.dtype)
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        msg = f"q, k and v are (batch, heads, tokens, dim), {shapes}: add the axes that are missing"
        raise ShapeError(msg)
    fits = q.shape[0] == k.shape[0] == v.shape[0] and q.shape[3] == k.shape[3]
    if not (fits and k.shape[1:3] == v.shape[1:3]):
        msg = f"q (b, h, tq, d), k (b, kv_heads, tk, d) and v (b, kv_heads, tk, dv) must fit, {shapes}"
        raise ShapeError(msg)
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        msg = f"the heads of q must be a multiple of those of k and v, {shapes}"
        raise ShapeError(msg)
    if q.shape[3] == 0:
        msg = f"the head dimension d must be at least 1, {shapes}"
        raise ShapeError(msg)


def _alignment(causal):
    if causal is False:
        return None
    if causal is True:
        return "bottom-right"
    if causal in ("bottom-right", "top-left"):
        return causal
    msg = f'causal must be a boolean, "bottom-right" or "top-left", got {causal!r}'
    raise OptionError(msg)


def _finite(scale):
    try:
        number = float(scale)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        msg = f"scale must be a finite number, or None for 1/sqrt(d), got {scale!r}"
        raise OptionError(msg)
    return number


def _require_key_block(key_block):
    if isinstance(key_block, bool) or not isinstance(key_block, int) or key_block < 1:
        msg = f"key_block must be an integer of at least 1, got {key_block!r}"
        raise OptionError(msg)


def _is_boolean(array):
    return dtype_name(array.dtype) == "bool"


def _full_mask(xp, mask, shape):
    if not _is_boolean(mask):
        try:
            require_floating("mask", mask.dtype)
        except DTypeError:
            msg = f"mask must be boolean (True attends) or floating (added), got {dtype_name(mask.dtype)}"
            raise DTypeError(msg) from None
    if broadcast_shape(tuple(mask.shape), shape) != shape:
        msg = f"mask must broadcast to (b, h, tq, tk) = {shape}, got {tuple(mask.shape)}"
        raise ShapeError(msg)
    return xp.broadcast_to(mask, shape)


def _per_query_head(xp, array, heads):
    """Give every query head its keys or values."""
    group = heads // array.shape[1]
    return array if group == 1 else xp.repeat(array, group, axis=1)


def _causal_rule(xp, q, block, tk, alignment):
    """Return the causal mask (tq, Bc) of one key block, True where a query may attend."""
    tq = q.shape[2]
    device = array_api_compat.device(q)
    shift = tk - tq if alignment == "bottom-right" else 0
    last = xp.arange(tq, device=device) + shift
    return xp.arange(block.start, block.stop, device=device)[None, :] <= last[:, None]
