"""The emulated recurrence, compiled: every row walks its key blocks, then its partial carries are merged."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from softcarry.numerics._rescale import add_to_block, begin_block, round_scalar, update
from softcarry.numerics._rounding import Rounding, round_nearest_even
from softcarry.numerics._scores import dot_products, mask_scores, round_scores

RUNNING = 0
TRUE_MAXIMUM = 1
KNOWN_BOUND = 2


class Recurrence(NamedTuple):
    """The kernel's choices other than formats, as plain numbers.

    Attributes
    ----------
    maximum : int
        Where m comes from: RUNNING, TRUE_MAXIMUM or KNOWN_BOUND.
    threshold : float
        A running maximum moves only when the block's maximum exceeds it by more than this.
    bound : float
        m of a KNOWN_BOUND, a number of the format of m.
    key_block : int
        Keys summarised at once.
    fill : float
        The score of a masked key, unless ``select``.
    select : bool
        Masked keys never enter.
    guard : bool
        The shift is 0 where the maximum is −inf.
    sum_rounded : bool
        l sums the weights after their rounding to the format of P.
    seed : int
        Of stochastic rounding.
    """

    maximum: int
    threshold: float
    bound: float
    key_block: int
    fill: float
    select: bool
    guard: bool
    sum_rounded: bool
    seed: int


class Roundings(NamedTuple):
    """To the formats in which scores, P, block sums, m, l and o are kept; all but ``l`` and ``o`` to nearest even."""

    score: Rounding
    p: Rounding
    block: Rounding
    m: Rounding
    running_sum: Rounding
    o: Rounding


@njit(inline="always")
def _rescale_factor(m, shift):
    return 1.0 if m == shift and not math.isinf(m) else math.exp(m - shift)


@njit(inline="always")
def _shift(m, guard):
    return 0.0 if guard and m == -math.inf else m


@njit(inline="always")
def _round_maximum(x, rounding):
    # −inf says that there is no maximum yet, in every format: E4M3FN has no −inf to round it to.
    return x if rounding.exact or x == -math.inf else round_nearest_even(x, rounding)


@njit
def _maximum(scores, live, select):
    """The largest score and how many keys take part; NaN never wins, it enters through its weight."""
    largest = -math.inf
    count = 0
    for j in range(len(scores)):
        if live[j] or not select:
            count += 1
            if scores[j] > largest:
                largest = scores[j]
    return largest, count


@njit
def _block_sums(scores, live, values, shift, rules, roundings, sums):
    """Fill ``sums`` with Σ p·v and return Σ p, both summed in key order in the block format."""
    total = 0.0
    first = True
    for j in range(len(scores)):
        if rules.select and not live[j]:
            continue
        exact = math.exp(scores[j] - shift)
        weight = exact if roundings.p.exact else round_nearest_even(exact, roundings.p)
        total += weight if rules.sum_rounded else exact
        if not roundings.block.exact:
            total = round_nearest_even(total, roundings.block)
        if first:
            begin_block(sums, weight, values[j], roundings.block)
            first = False
        else:
            add_to_block(sums, weight, values[j], roundings.block)
    return total


@njit
def _walk(scores, live, values, blocks, m, rules, roundings, sums, o, counter):
    """Absorb the blocks with these numbers, in this order; return m and l, leave the running output in ``o``."""
    running_sum = 0.0
    o[:] = 0.0
    for i in range(len(blocks)):
        first = blocks[i] * rules.key_block
        last = min(first + rules.key_block, len(scores))
        largest, count = _maximum(scores[first:last], live[first:last], rules.select)
        if count == 0 and (rules.guard or m > -math.inf):
            continue
        before = m
        if rules.maximum == RUNNING and largest > m + rules.threshold:
            m = _round_maximum(largest, roundings.m)
        shift = _shift(m, rules.guard)
        factor = _rescale_factor(before, shift)
        total = 0.0
        if count > 0:
            total = _block_sums(
                scores[first:last], live[first:last], values[first:last], shift, rules, roundings, sums
            )
        else:
            sums[:] = 0.0
        draw = counter + i * (len(o) + 1)
        running_sum = round_scalar(running_sum * factor + total, roundings.running_sum, rules.seed, draw)
        update(o, factor, sums, 1.0, roundings.o, rules.seed, draw + 1)
    return m, running_sum


@njit
def _row(scores, live, values, blocks, pointer, rules, roundings, sums, part, o, counter):
    """The carry of one row: its splits one after the other, merged in the order of their keys."""
    m = -math.inf
    running_sum = 0.0
    for s in range(len(pointer) - 1):
        start = rules.bound if rules.maximum == KNOWN_BOUND else -math.inf
        own = blocks[pointer[s] : pointer[s + 1]]
        if rules.maximum == TRUE_MAXIMUM:
            for i in range(len(own)):
                first = own[i] * rules.key_block
                last = min(first + rules.key_block, len(scores))
                start = max(start, _maximum(scores[first:last], live[first:last], rules.select)[0])
            start = _round_maximum(start, roundings.m)
        target = o if s == 0 else part
        begun = counter + pointer[s] * (len(o) + 1)
        part_m, part_sum = _walk(scores, live, values, own, start, rules, roundings, sums, target, begun)
        if s == 0:
            m, running_sum = part_m, part_sum
            continue
        before = m
        # Both are numbers of the format of m already.
        m = max(m, part_m)
        shift = _shift(m, rules.guard)
        factor = _rescale_factor(before, shift)
        part_factor = _rescale_factor(part_m, shift)
        draw = counter + (len(blocks) + s) * (len(o) + 1)
        running_sum = round_scalar(
            running_sum * factor + part_sum * part_factor, roundings.running_sum, rules.seed, draw
        )
        update(o, factor, part, part_factor, roundings.o, rules.seed, draw + 1)
    return m, running_sum


@njit(parallel=True, cache=True)
def carries(
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
    score,
    p,
    block,
    m_rounding,
    sum_rounding,
    o_rounding,
    m,
    running_sum,
    o,
):
    """Fill m, the running sum (rows,) and o (rows, dv) with the carry of every row of (batch, heads, tq).

    Parameters
    ----------
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
        The numerical choices.

    A row is computed by one thread from its own data, so the bits do not depend on the number of threads.
    """
    heads, queries = q.shape[1], q.shape[2]
    keys = k.shape[3]
    group = heads // k.shape[1]
    draws = (len(blocks) + len(pointer)) * (o.shape[1] + 1)
    for row in prange(len(m)):
        roundings = Roundings(score, p, block, m_rounding, sum_rounding, o_rounding)
        query = row % queries
        head = row // queries % heads
        batch = row // (queries * heads)
        scores = np.empty(keys)
        live = np.empty(keys, np.bool_)
        sums = np.empty(o.shape[1])
        part = np.empty(o.shape[1])
        visible = min(max(query + keys - queries + 1, 0), keys) if causal else keys
        dot_products(q[batch, head, query], k[batch, head // group], scores[:visible])
        round_scores(scores[:visible], scale, roundings.score)
        mask_scores(
            scores,
            live,
            visible,
            allowed[batch * allowed_step[0] + head * allowed_step[1] + query * allowed_step[2] :],
            allowed_step[3],
            bias[batch * bias_step[0] + head * bias_step[1] + query * bias_step[2] :],
            bias_step[3],
            roundings.score,
            rules.fill,
        )
        values = v[batch, head // group]
        m[row], running_sum[row] = _row(
            scores, live, values, blocks, pointer, rules, roundings, sums, part, o[row], row * draws
        )
