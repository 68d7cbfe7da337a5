"""Scores for the emulation, compiled: q·k, scale, bias and mask, rounded to the score format."""

import math

from numba import njit

from softcarry.numerics._rounding import round_nearest_even

# Keys whose scores stay in the first-level cache while the loop over the head dimension passes over them.
_CHUNK = 512


@njit
def dot_products(queries, keys, scores):
    """Fill ``scores`` (rows, tk) with queries (rows, d) times keys (d, tk) in float64.

    Keys are the inner loop, so it vectorises and still adds the d products of a key in order.
    """
    for first in range(0, keys.shape[1], _CHUNK):
        last = min(first + _CHUNK, keys.shape[1])
        for r in range(len(queries)):
            chunk = scores[r, first:last]
            chunk[:] = 0.0
            for c in range(queries.shape[1]):
                x = queries[r, c]
                column = keys[c, first:last]
                for j in range(len(chunk)):
                    chunk[j] += x * column[j]


@njit
def round_scores(scores, scale, rounding):
    """Round the dot products, and again after the multiplication by the scale."""
    for j in range(len(scores)):
        scores[j] = round_nearest_even(round_nearest_even(scores[j], rounding) * scale, rounding)


@njit
def mask_scores(scores, live, visible, allowed, allowed_step, bias, bias_step, rounding, fill):
    """Add ``bias``, mark the keys that may be attended to in ``live``, and put ``fill`` at the others.

    Only the first ``visible`` keys lie before the causal diagonal. A bias of −inf masks, as False does.
    ``allowed`` and ``bias`` are the masks' memory from this row's first key on, with a step of 0 where
    the mask has one value for all keys.
    """
    for j in range(len(scores)):
        shown = j < visible and allowed[j * allowed_step]
        if shown:
            shift = bias[j * bias_step]
            if shift == -math.inf:
                shown = False
            elif shift != 0.0:
                scores[j] = round_nearest_even(scores[j] + shift, rounding)
        if not shown:
            scores[j] = fill
        live[j] = shown
