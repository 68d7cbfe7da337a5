"""A FlashAttention forward pass in Triton: one program a block of queries, a loop over blocks of keys.

Only `triton_attention` imports this module, after it has chosen between the interpreter and the compiler:
``triton.jit`` asks for that when a kernel is defined.

References
----------
Dao, FlashAttention-2, 2023, algorithm 1: the output is divided by l once, at the end.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def flash_forward(
    q_at,
    k_at,
    v_at,
    mask_at,
    output_at,
    lse_at,
    queries,
    keys,
    group,
    depth,
    value_depth,
    scale_log2,
    causal: tl.constexpr,
    mask_kind: tl.constexpr,
    query_block: tl.constexpr,
    key_block: tl.constexpr,
    depth_block: tl.constexpr,
    value_depth_block: tl.constexpr,
):
    """Attend one block of queries of one head; arrays are contiguous, (b·h, t, d) and (b·h, tq, tk).

    m, l and o are float32; scores are in base 2, so that exp2 is enough. P is rounded to the dtype of v.
    ``mask_kind`` is 0 for none, 1 for booleans (True = attend), 2 for numbers added to the scores.
    """
    head = tl.program_id(1)
    kv_head = head // group
    i = tl.program_id(0) * query_block + tl.arange(0, query_block)
    x = tl.arange(0, depth_block)
    y = tl.arange(0, value_depth_block)
    live_i = i < queries
    q = tl.load(
        q_at + (head * queries + i[:, None]) * depth + x[None, :],
        mask=live_i[:, None] & (x[None, :] < depth),
        other=0.0,
    )
    m = tl.full((query_block,), float("-inf"), tl.float32)
    l = tl.zeros((query_block,), tl.float32)
    o = tl.zeros((query_block, value_depth_block), tl.float32)
    for start in range(0, keys, key_block):
        j = start + tl.arange(0, key_block)
        live_j = j < keys
        k = tl.load(
            k_at + (kv_head * keys + j[:, None]) * depth + x[None, :],
            mask=live_j[:, None] & (x[None, :] < depth),
            other=0.0,
        )
        v = tl.load(
            v_at + (kv_head * keys + j[:, None]) * value_depth + y[None, :],
            mask=live_j[:, None] & (y[None, :] < value_depth),
            other=0.0,
        )
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        seen = live_i[:, None] & live_j[None, :]
        if mask_kind != 0:
            given = tl.load(mask_at + (head * queries + i[:, None]) * keys + j[None, :], mask=seen, other=0)
            if mask_kind == 1:
                seen = seen & (given != 0)
            else:
                s += given.to(tl.float32) * 1.4426950408889634
        if causal:
            seen = seen & (j[None, :] <= i[:, None] + (keys - queries))
        s = tl.where(seen, s, float("-inf"))
        m_next = tl.maximum(m, tl.max(s, 1))
        # A row without keys so far has maximum −inf, from which nothing can be subtracted.
        shift = tl.where(m_next == float("-inf"), 0.0, m_next)
        p = tl.exp2(s - shift[:, None])
        shrink = tl.exp2(m - shift)
        l = l * shrink + tl.sum(p, 1)
        o = o * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_next
    output = tl.where(l[:, None] > 0, o / tl.where(l > 0, l, 1.0)[:, None], tl.where(l == l, 0.0, l)[:, None])
    lse = tl.where(l > 0, (m + tl.log2(l)) * 0.6931471805599453, tl.where(l == l, float("-inf"), l))
    tl.store(
        output_at + (head * queries + i[:, None]) * value_depth + y[None, :],
        output.to(output_at.dtype.element_ty),
        mask=live_i[:, None] & (y[None, :] < value_depth),
    )
    tl.store(lse_at + head * queries + i, lse, mask=live_i)
