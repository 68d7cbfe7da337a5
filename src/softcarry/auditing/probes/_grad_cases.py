"""The calls of which GRAD takes gradients."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from softcarry.auditing._call_words import describe_call
from softcarry.auditing.score_control import score_control


@dataclass(frozen=True)
class GradientCase:
    """One call and the cotangent of its output or lse.

    Attributes
    ----------
    name : str
    q, k, v, cotangent : ndarray
        float64, exact in the dtype of the kernel and in that of its output.
    options : dict
        mask, causal and scale.
    of : {"output", "lse"}
    """

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cotangent: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)
    of: str = "output"

    @property
    def call(self):
        """The shapes and options in one line."""
        return describe_call(self.q, self.k, self.v, **self.options)


def cases(examination):
    """Yield the cases, the plainest first.

    Parameters
    ----------
    examination : Examination
        Gives the generator, the rounding and the options that the kernel takes.

    Yields
    ------
    GradientCase
    """
    draw = _Drawing(examination)
    yield draw.case("49 tokens of depth 32", 49, 49, 32)
    if not examination.quick:
        yield draw.case("ragged tails", 67, 613, 40)
        yield draw.case("one query", 1, 129, 7)
    yield _equal_keys(draw)
    yield _near_one_hot(draw)
    yield _large_scores(draw)
    yield draw.case("shared heads of k and v", 5, 33, 16, heads=4, kv_heads=2)
    for option in ("mask", "causal", "scale"):
        if not examination.can(option):
            examination.skip(f"gradients with {option}", examination.lacks(option))
    if examination.can("mask"):
        yield from _masked_cases(examination, draw)
    if examination.can("causal"):
        yield draw.case("causal", 33, 33, 16, causal=True)
        yield draw.case("causal, more keys than queries", 19, 150, 16, causal=True)
    if examination.can("causal") and examination.can("mask"):
        mask, _ = _masks(examination.rng, 19, 65)
        mask[:, 0] = True
        yield draw.case("causal and masked", 19, 65, 16, mask=mask, causal=True)
    if examination.can("scale"):
        yield draw.case("scale 0.5", 9, 65, 16, scale=0.5)
    if examination.can("lse"):
        yield draw.lse_case("lse", 17, 129, 16)


def small_case(examination, *, emptied):
    """Draw a case of few tokens, with or without empty rows, for a double backward pass."""
    draw = _Drawing(examination)
    if emptied:
        _, mask = _masks(examination.rng, 7, 33)
        return draw.case("rows without keys", 7, 33, 8, mask=mask)
    return draw.case("small", 7, 33, 8)


class _Drawing:
    """Draws inputs that are exact in the dtypes of the kernel."""

    def __init__(self, examination):
        self.examination = examination

    def normal(self, *shape):
        return self.examination.round(self.examination.rng.standard_normal(shape))

    def inputs(self, queries, keys, depth, *, heads=2, kv_heads=2):
        q = self.normal(1, heads, queries, depth)
        k, v = (self.normal(1, kv_heads, keys, depth) for _ in range(2))
        # A mean of values that is far from 0 keeps D away from 0, which would hide that it is forgotten.
        return q, k, self.examination.round(v + 0.5)

    def cotangent(self, q, v):
        drawn = self.normal(*q.shape[:3], v.shape[3])
        return self.examination.output_format.round(self.examination.round(drawn + 0.25))

    def case(self, name, queries, keys, depth, *, heads=2, kv_heads=2, **options):
        q, k, v = self.inputs(queries, keys, depth, heads=heads, kv_heads=kv_heads)
        return GradientCase(name, q, k, v, self.cotangent(q, v), options)

    def lse_case(self, name, queries, keys, depth):
        q, k, v = self.inputs(queries, keys, depth)
        cotangent = self.examination.rng.integers(-8, 9, q.shape[:3]) / 4.0
        return GradientCase(name, q, k, v, cotangent, of="lse")


def _masked_cases(examination, draw):
    full, emptied = _masks(examination.rng, 19, 129 if examination.quick else 613)
    case = draw.case("boolean mask", *full.shape, 16, mask=full)
    yield case
    if examination.contract.empty_rows == "zero":
        yield replace(case, name="rows without keys", options={"mask": emptied})
    full, _ = _masks(examination.rng, 19, 65)
    yield draw.case("additive mask", *full.shape, 16, mask=np.where(full, 0.0, -np.inf))


def _masks(rng, queries, keys):
    """Draw a mask that leaves every row keys, two of them late ones only, and one with empty rows."""
    full = rng.random((queries, keys)) < 0.6
    full[:, 5] = True
    full[:2] = False
    full[0, -3:], full[1, :2] = True, True
    emptied = full.copy()
    emptied[[3, 4, queries - 1]] = False
    return full, emptied


def _equal_keys(draw):
    """All keys equal: dQ is scale · k · Σ dS = 0."""
    q, k, v = draw.inputs(9, 70, 16)
    k = np.broadcast_to(k[:, :, :1], k.shape).copy()
    return GradientCase("equal keys", q, k, v, draw.cotangent(q, v))


def _near_one_hot(draw):
    """In row i one key is i + 4 ahead of the others, which are equal but for a little."""
    rows, keys = 16, 130
    scores = draw.examination.rng.integers(-4, 5, (1, 2, rows, keys)) / 8.0
    hot = draw.examination.rng.integers(0, keys, rows)
    scores[..., np.arange(rows), hot] = 4.0 + np.arange(rows)
    return _with_scores(draw, "near one-hot rows", scores)


def _large_scores(draw):
    """Scores up to 2^13 of both signs: exponentials that are not shifted overflow, and most weights are 0."""
    rows, keys = 16, 130
    scores = 2.0 ** draw.examination.rng.integers(0, 14, (1, 2, rows, keys))
    return _with_scores(draw, "large scores", scores * draw.examination.rng.choice([-1.0, 1.0], scores.shape))


def _with_scores(draw, name, scores):
    q, k = score_control(scores, 16)
    _, _, v = draw.inputs(1, scores.shape[-1], 16)
    return GradientCase(name, q, k, v, draw.cotangent(q, v))
