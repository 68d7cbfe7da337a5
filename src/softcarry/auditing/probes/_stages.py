"""Which part of a kernel makes two calls differ: the scores, the sum l, the product with V, or a merge.

Each problem leaves one stage free to round differently, and makes the others exact in every order.
"""

import math

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.probes._differences import same_outcome
from softcarry.auditing.problems import one_hot_values, reading_size, spread_positions

DEPTH = 64
_DEAD = -1024.0  # exp is 0 in every format, and the score is exact in every dtype


def differing_stages(examination, variation) -> str | None:
    """Name the stages in which the two calls of a variation differ, when each is isolated.

    Parameters
    ----------
    examination : Examination
    variation : Variation

    Returns
    -------
    str or None
        Of "QK", "l", "PV" and "merge", separated by commas; None if they differ in no stage alone.
    """
    found = []
    for stage, problem in STAGES.items():
        one, other = variation.pair(*problem(examination, variation.shape))
        try:
            same = same_outcome(one.outcome(examination), other.outcome(examination))
        except CaseRefused:
            continue
        if not same:
            found.append(stage)
    return ", ".join(found) or None


def scores_free(examination, shape):
    """Two neighbouring keys with weight and one-hot V: a sum of two terms does not depend on their order."""
    rng = examination.rng
    q, k, v = _controlled(shape, np.full(shape.keys, _DEAD))
    q[..., 1:] = examination.round(rng.standard_normal(q[..., 1:].shape))
    # Another place in every head: how a product is summed may depend on where in a block it lies.
    for group in np.ndindex(*shape[:2]):
        first = rng.integers(shape.keys - 1)
        live = (*group, slice(first, first + 2))
        k[live] = examination.round(rng.standard_normal(k[live].shape))
        k[live][:, 0] = 0.0
        v[live][:, :2] = np.eye(2)
    return q, k, v


def sum_free(examination, shape):
    """Exact scores of many sizes and one-hot V: o is one term, and l the sum of all."""
    scores = -examination.rng.integers(0, 33, shape.keys) / 8.0
    q, k, v = _controlled(shape, scores)
    positions = spread_positions(examination.rng, shape.keys, DEPTH)
    v[...] = one_hot_values(positions, shape.keys, reading_size(shape.keys))
    return q, k, v


def product_free(examination, shape):
    """Equal scores 0 and random V: every term of l is 1, and l is exact."""
    q, k, v = _controlled(shape, np.zeros(shape.keys))
    v[...] = examination.round(examination.rng.standard_normal(v.shape))
    return 0.0 * q, k, v


def merge_free(examination, shape):
    """Two keys with weight, the first and the last, with exact scores and one-hot V: only merges round."""
    rng, groups = examination.rng, shape[:2]
    q, k, v = _controlled(shape, np.full(shape.keys, _DEAD))
    k[:, :, 0, 0], k[:, :, -1, 0] = 0.0, -rng.integers(1, 25, groups) / 8.0
    # Many numbers of 7 bits, as one product may come out the same by chance.
    v[:, :, 0, ::2], v[:, :, -1, 1::2] = rng.integers(65, 128, (2, *groups, DEPTH // 2))
    return q, k, v


STAGES = {"QK": scores_free, "l": sum_free, "PV": product_free, "merge": merge_free}
"""The stages, each with the problem in which only it can differ."""


def _controlled(shape, scores):
    """Return q and k whose products are exactly ``scores`` for every query, and V = 0."""
    q = np.zeros((*shape[:3], DEPTH))
    k = np.zeros((*shape[:2], shape.keys, DEPTH))
    q[..., 0] = math.sqrt(DEPTH)
    k[..., 0] = scores
    return q, k, np.zeros_like(k)
