"""The emulated recurrence, compiled: some rows walk their key blocks, and partial carries are merged."""

import math
from typing import NamedTuple

from numba import njit

from softcarry.numerics._rescale import round_scalar, rounded_combination
from softcarry.numerics._rounding import Rounding, round_nearest_even

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
    """To the formats of scores, P, block sums, m, l and o; all but those of l and o to nearest even."""

    score: Rounding
    p: Rounding
    block: Rounding
    m: Rounding
    running_sum: Rounding
    o: Rounding


@njit
def _rescale_factor(m, shift):
    # exp(0) = 1 needs no call; −inf − (−inf) has to come out as NaN.
    return 1.0 if m == shift and not math.isinf(m) else math.exp(m - shift)


@njit
def _shift(m, guard):
    return 0.0 if guard and m == -math.inf else m


@njit
def _round_maximum(x, rounding):
    # −inf says that there is no maximum yet, in every format: E4M3FN has no −inf to round it to.
    return x if x == -math.inf else round_nearest_even(x, rounding)


@njit
def _largest_score(scores, live, select, first, last):
    """Find the largest score and count the keys that take part; NaN enters through its weight only."""
    largest = -math.inf
    count = 0
    for j in range(first, last):
        if live[j] or not select:
            count += 1
            if scores[j] > largest:
                largest = scores[j]
    return largest, count


@njit
def _true_maximum(scores, live, blocks, rules):
    largest = -math.inf
    for block in blocks:
        first = block * rules.key_block
        last = min(first + rules.key_block, len(scores))
        largest = max(largest, _largest_score(scores, live, rules.select, first, last)[0])
    return largest


@njit
def walk(scores, live, values, blocks, rules, roundings, sums, m, running_sum, o, first_draw, draws):
    """Fill m, the running sum and o of some rows of one head with the carry of these blocks, in this order.

    The rows go through a block one after the other, so that its values are read from memory once.
    ``first_draw`` + r · ``draws`` is the first draw of row r.
    """
    width = o.shape[1] + 1
    for r in range(len(m)):
        m[r] = -math.inf
        if rules.maximum == KNOWN_BOUND:
            m[r] = rules.bound
        elif rules.maximum == TRUE_MAXIMUM:
            m[r] = _round_maximum(_true_maximum(scores[r], live[r], blocks, rules), roundings.m)
        running_sum[r] = 0.0
        o[r, :] = 0.0
    for i in range(len(blocks)):
        first = blocks[i] * rules.key_block
        last = min(first + rules.key_block, scores.shape[1])
        for r in range(len(m)):
            before = m[r]
            largest, count = _largest_score(scores[r], live[r], rules.select, first, last)
            if count == 0 and (rules.guard or before > -math.inf):
                continue
            if rules.maximum == RUNNING and largest > before + rules.threshold:
                m[r] = _round_maximum(largest, roundings.m)
            shift = _shift(m[r], rules.guard)
            block_sum = 0.0
            sums[:] = 0.0
            for j in range(first, last):
                if rules.select and not live[r, j]:
                    continue
                exact = math.exp(scores[r, j] - shift)
                weight = round_nearest_even(exact, roundings.p)
                term = weight if rules.sum_rounded else exact
                block_sum = round_nearest_even(block_sum + term, roundings.block)
                rounded_combination(sums, 1.0, values[j], weight, roundings.block, rules.seed, first_draw)
            factor = _rescale_factor(before, shift)
            draw = first_draw + r * draws + i * width
            total = running_sum[r] * factor + block_sum
            running_sum[r] = round_scalar(total, roundings.running_sum, rules.seed, draw)
            rounded_combination(o[r], factor, sums, 1.0, roundings.o, rules.seed, draw + 1)


@njit
def merge(rules, roundings, m, running_sum, o, part_m, part_sum, part_o, first_draw, draws):
    """Merge the partial carries of some rows into theirs."""
    for r in range(len(m)):
        # Both maxima are numbers of the format of m, and so is the larger.
        merged = max(m[r], part_m[r])
        shift = _shift(merged, rules.guard)
        factor, part_factor = _rescale_factor(m[r], shift), _rescale_factor(part_m[r], shift)
        m[r] = merged
        draw = first_draw + r * draws
        total = running_sum[r] * factor + part_sum[r] * part_factor
        running_sum[r] = round_scalar(total, roundings.running_sum, rules.seed, draw)
        rounded_combination(o[r], factor, part_o[r], part_factor, roundings.o, rules.seed, draw + 1)
