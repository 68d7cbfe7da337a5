"""Inputs and comparisons that the tests of the emulated kernel share."""

import numpy as np

U64 = 2.0**-53
FLOAT64 = dict.fromkeys(
    ("m_format", "l_format", "o_format", "p_format", "score_format", "block_format"), "float64"
)
RULES = ("every-block", "on-growth", "two-pass", ("lazy", 2.5), ("bound", 4.0))
ORDERS = ("forward", "backward", ("permuted", 5))


def scored(scores, values, dtype=np.float64):
    """Inputs (1, 1, tq, ·) whose scores, with scale 1, are the rows of ``scores`` (tq, tk)."""
    tq, tk = scores.shape
    q = np.eye(tq, dtype=dtype)[None, None]
    return q, scores.T.astype(dtype)[None, None], np.asarray(values, dtype=dtype).reshape(1, 1, tk, -1)


def flat(n):
    """Equal scores, and the output is 1 / l."""
    return np.zeros((1, 1, 1, 4)), np.zeros((1, 1, n, 4)), np.eye(n, 1)[None, None]


def bits(result):
    return [array.tobytes() for array in result]


def problem(seed=0, tq=3, tk=37, heads=2, kv_heads=1, d=5, dv=3):
    rng = np.random.default_rng(seed)
    shapes = ((2, heads, tq, d), (2, kv_heads, tk, d), (2, kv_heads, tk, dv))
    return tuple(rng.normal(size=shape) for shape in shapes)
