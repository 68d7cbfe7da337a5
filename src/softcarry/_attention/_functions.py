"""Exact softmax attention on a CPU: the output, or the carry behind it."""

from softcarry._arrays import Array
from softcarry._attention._computing import computed_carry, computed_output
from softcarry.carry import Carry


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    alibi: Array | None = None,
    sinks: Array | None = None,
    kv_lengths: Array | None = None,
    cu_seqlens: Array | tuple[Array, Array] | None = None,
    block_table: Array | None = None,
    splits: int | None = None,
    rescale_threshold: float = 0.0,
    out: Array | None = None,
) -> Array:
    r"""Return softmax(q·kᵀ·scale)·v, exactly, without storing the scores.

    Arrays are NumPy's or torch's on the CPU, of any strides, and only read: memory laid out as (batch,
    tokens, heads, d) is passed as a transposed view. The score of a pair is q·k·scale; then capped; then the
    bias is added; then ALiBi's; what is masked is then selected away, whatever it holds.

    Parameters
    ----------
    q : array (batch, heads, tq, d)
        float64, float32, bfloat16 or float16; d from 1 to 512. Any length may be 0 but d and dv.
    k, v : array (batch, kv_heads, tk, d), (batch, kv_heads, tk, dv)
        Of the dtype and library of q; dv from 1 to 512. heads is a multiple of kv_heads: query head h takes
        head h // (heads // kv_heads).
    scale : float, optional
        1/√d by default.
    causal : bool or {"bottom-right", "top-left"}
        True is "bottom-right": query i stands at key i + tk − tq, so that the last sees the last key.
        "top-left": query i stands at key i. A query sees no key after the one that it stands at.
    window : (left, right), optional
        A query sees as many keys before and after the one that it stands at; None for no limit on a side.
    mask : boolean array, optional
        Broadcast to (batch, heads, tq, tk); True attends.
    bias : array, optional
        Floating point, broadcast likewise; added to the scores. −inf masks.
    softcap : float, optional
        Scores s become softcap·tanh(s / softcap).
    alibi : array (heads,) or (batch, heads), optional
        Slopes: slope·\|distance\| from the key that the query stands at is subtracted.
    sinks : array (heads,), optional
        Scores of one more key a head, whose value is 0: the carry (m = sink, l = 1, o = 0), merged once.
        Finite, or −inf for none.
    kv_lengths : integers (batch,), optional
        How many keys of each sequence there are; what lies beyond is not read. They take the place of tk in
        all of the above.
    cu_seqlens : integers (n + 1,), or a pair of such, optional
        For batch 1: where each of n packed sequences begins on the token axes, and the last ends; a pair
        where queries and keys differ. Queries see keys of their own sequence, and positions count within it.
        Masks and biases cover all tokens, (1, heads, tq, tk); alibi may be (n, heads), kv_lengths is (n,).
    block_table : integers (batch, pages), optional
        The numbers of the pages that hold the keys of each sequence: k and v are then (number of pages,
        kv_heads, page size, d or dv). kv_lengths is required. tk is pages times page size for masks and
        biases. With cu_seqlens, one array, the queries are packed.
    splits : int, optional
        Into how many pieces the keys are cut, which are summarised apart and merged in order, at most. By
        default it follows from the shapes. For the same splits results are the same to the bit.
    rescale_threshold : float
        m moves, and l and o are rescaled, only where a score exceeds m by more, in natural log units. Terms
        then reach e^threshold in place of 1; relative errors stay those of float32. At most 20.
    out : array (batch, heads, tq, dv), optional
        Written and returned; of the dtype and library of q, of any strides in which no two elements share
        memory, apart from q, k, v, mask and bias.

    Returns
    -------
    array (batch, heads, tq, dv)
        Of the dtype and library of q. 0 in a row that sees no key, but for a sink or not. A NaN, or
        infinity, of a key or value that a row sees reaches that row, and no other; an infinite value becomes
        NaN where its term underflows. o overflows where l·\|v\| does, though the output might not.

    Raises
    ------
    DTypeError, ShapeError, OptionError
        Before anything is read: for integers and other dtypes, shapes that do not fit, a mask that is not
        boolean, lengths, pages or options out of range, tensors that record gradients.

    See Also
    --------
    attention_carry : The carries, from which lse and merges follow.

    Notes
    -----
    m, l and o are float32, float64 for float64, until one final rounding; the terms are not rounded before
    they meet the values. A row's bits depend neither on the number of threads nor on other rows or
    sequences. A row that sees one key is its value to the bit.

    References
    ----------
    Dao, FlashAttention-2, arXiv:2307.08691, 2023. Press, Smith and Lewis, Train Short, Test Long (ALiBi),
    arXiv:2108.12409, 2021. Xiao et al., Efficient Streaming Language Models with Attention Sinks,
    arXiv:2309.17453, 2023. Kwon et al., PagedAttention, arXiv:2309.06180, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> q, k = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 2, 4), np.float32)
    >>> v = np.array([[[[1.0], [3.0]]]], np.float32)
    >>> sc.attention(q, k, v, causal=True)[0, 0, :, 0].tolist()
    [1.0, 2.0]
    """
    return computed_output(
        q,
        k,
        v,
        out,
        scale=scale,
        causal=causal,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        alibi=alibi,
        sinks=sinks,
        kv_lengths=kv_lengths,
        cu_seqlens=cu_seqlens,
        block_table=block_table,
        splits=splits,
        rescale_threshold=rescale_threshold,
    )


def attention_carry(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    alibi: Array | None = None,
    sinks: Array | None = None,
    kv_lengths: Array | None = None,
    cu_seqlens: Array | tuple[Array, Array] | None = None,
    block_table: Array | None = None,
    splits: int | None = None,
    rescale_threshold: float = 0.0,
) -> Carry:
    """Return the carries of attention: m, l and the unnormalised output o of every query.

    Parameters
    ----------
    q, k, v : array (batch, heads, tq, d), (batch, kv_heads, tk, d), (batch, kv_heads, tk, dv)
        As of `attention`, and so is every option.
    rescale_threshold : float
        m may lie below the largest score of a row by as much.

    Returns
    -------
    Carry
        m and l (batch, heads, tq), o (batch, heads, tq, dv), float32, or float64 for float64, of the library
        of q, in base e; ``output`` and ``lse`` follow. A row that sees no key, and has no sink, is empty:
        m = −inf, l = 0, o = 0. With a score of +inf m is +inf and l NaN; otherwise a NaN score makes both
        NaN.

    Raises
    ------
    DTypeError, ShapeError, OptionError
        As `attention` does.

    Examples
    --------
    The keys in two halves, merged:

    >>> import numpy as np
    >>> import softcarry as sc
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.normal(size=(1, 2, 6, 8)) for _ in range(3))
    >>> halves = [sc.attention_carry(q, k[:, :, keys], v[:, :, keys]) for keys in (slice(4), slice(4, 6))]
    >>> bool(np.allclose((halves[0] | halves[1]).output, sc.attention(q, k, v), rtol=1e-14))
    True
    """
    return computed_carry(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        alibi=alibi,
        sinks=sinks,
        kv_lengths=kv_lengths,
        cu_seqlens=cu_seqlens,
        block_table=block_table,
        splits=splits,
        rescale_threshold=rescale_threshold,
    )
