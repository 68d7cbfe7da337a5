"""All rows of an emulated attention: tiles of rows, compiled, and the threads that share them out."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from numba import njit

from softcarry.numerics._recurrence import merge, walk
from softcarry.numerics._scores import dot_products, mask_scores, round_scores

# Rows that share one reading of the keys and values from memory.
_TILE = 8


@njit(cache=True, nogil=True)
def carries(
    first_tile,
    last_tile,
    tile,
    q,
    k,
    v,
    allowed,
    allowed_step,
    bias,
    bias_step,
    causal,
    scale,
    blocks,
    pointer,
    rules,
    roundings,
    m,
    running_sum,
    o,
):
    """Fill m, the running sum (b·h, tq) and o (b·h, tq, dv) with the carries of some tiles of rows.

    A tile is up to ``tile`` query rows of one head. A row's bits depend on its own data only.

    Parameters
    ----------
    first_tile, last_tile, tile : int
        The range of tiles, and their size.
    q, v : float64 arrays, C order
        (b, h, tq, d) and (b, kv_heads, tk, dv).
    k : float64 array, C order
        (b, kv_heads, d, tk): keys last, so that the dot products vectorise over keys.
    allowed, bias : one-dimensional arrays, bool and float64
        A boolean and an additive mask; the index of (batch, head, query, key) is its inner product with
        ``allowed_step`` or ``bias_step``.
    blocks, pointer : int64 arrays
        Block numbers in visiting order; those of split s are ``blocks[pointer[s]:pointer[s + 1]]``.
    rules : Recurrence
    roundings : Roundings
    """
    heads, queries = q.shape[1], q.shape[2]
    keys, width = k.shape[3], o.shape[2] + 1
    tiles = -(-queries // tile)
    # Every update and merge of a row has as many draws as there are numbers in l and o.
    draws = (len(blocks) + len(pointer)) * width
    scores = np.empty((tile, keys))
    live = np.empty((tile, keys), np.bool_)
    sums = np.empty(width - 1)
    part_m, part_sum, part_o = np.empty(tile), np.empty(tile), np.empty((tile, width - 1))
    for t in range(first_tile, last_tile):
        batch, head = t // tiles // heads, t // tiles % heads
        group = head // (heads // k.shape[1])
        start = t % tiles * tile
        rows = min(tile, queries - start)
        stop = start + rows
        dot_products(q[batch, head, start:stop], k[batch, group], scores)
        for r in range(rows):
            at = (batch, head, start + r)
            visible = min(max(at[2] + keys - queries + 1, 0), keys) if causal else keys
            round_scores(scores[r], scale, roundings.score)
            mask_scores(
                scores[r],
                live[r],
                visible,
                allowed[at[0] * allowed_step[0] + at[1] * allowed_step[1] + at[2] * allowed_step[2] :],
                allowed_step[3],
                bias[at[0] * bias_step[0] + at[1] * bias_step[1] + at[2] * bias_step[2] :],
                bias_step[3],
                roundings.score,
                rules.fill,
            )
        head_m = m[t // tiles, start:stop]
        head_sum = running_sum[t // tiles, start:stop]
        head_o = o[t // tiles, start:stop]
        draw = (t // tiles * queries + start) * draws
        for s in range(len(pointer) - 1):
            own = blocks[pointer[s] : pointer[s + 1]]
            into = (head_m, head_sum, head_o) if s == 0 else (part_m[:rows], part_sum[:rows], part_o[:rows])
            walk(
                scores[:rows],
                live[:rows],
                v[batch, group],
                own,
                rules,
                roundings,
                sums,
                into[0],
                into[1],
                into[2],
                draw,
                draws,
            )
            draw += len(own) * width
            if s > 0:
                merge(rules, roundings, head_m, head_sum, head_o, into[0], into[1], into[2], draw, draws)
                draw += width


def all_carries(arrays, causal, blocks, pointer, rules, roundings):
    """Compute m and the running sum (b·h, tq) and o (b·h, tq, dv) of every row in Numba's number of threads.

    The threads are Python's, with the interpreter lock released: with ``parallel=True`` the loop took 1.7
    times as long to compile, and under Numba's OpenMP layer a forked child that runs it is killed.
    """
    batch, heads, queries, _ = arrays.q.shape
    m = np.empty((batch * heads, queries))
    running_sum = np.empty_like(m)
    o = np.empty((batch * heads, queries, arrays.v.shape[3]))
    workers = numba.get_num_threads()
    tile = max(1, min(_TILE, queries, -(-batch * heads * queries // workers)))
    tiles = batch * heads * -(-queries // tile)

    def run(first, last):
        carries(
            first,
            last,
            tile,
            arrays.q,
            arrays.k,
            arrays.v,
            arrays.allowed,
            arrays.allowed_step,
            arrays.bias,
            arrays.bias_step,
            causal,
            arrays.scale,
            blocks,
            pointer,
            rules,
            roundings,
            m,
            running_sum,
            o,
        )

    bounds = [tiles * i // workers for i in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(run, *part) for part in itertools.pairwise(bounds) if part[0] < part[1]]:
            done.result()
    return m, running_sum, o
