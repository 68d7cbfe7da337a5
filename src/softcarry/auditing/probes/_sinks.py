"""Attention sinks: the score of one more key a head, which has weight and no value."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._supports import WIDTH

# Sizes at which the sink weighs about as much as all the keys; exact in every dtype. Keys, then sinks a head.
_CASES = ((16, (2.0, 3.0, 1.0, -2.0)), (700, (6.0, 7.0, 5.0, 6.5)))
_QUERIES = 3
_MOST_BLOCKS = 16


class _Explanation(NamedTuple):
    message: str
    scores: np.ndarray  # the sink that a kernel with this fault would act as, a head
    remedy: str


def examine_sinks(examination: Examination) -> None:
    """Read the weight of the sinks off equal scores of 0: keys have weight 1 / (n + e^sink).

    Parameters
    ----------
    examination : Examination
    """
    for keys, scores in _CASES:
        sinks = np.array(scores)
        heads = len(sinks)
        v = np.zeros((1, heads, keys, WIDTH))
        read = np.linspace(0, keys - 1, min(keys, WIDTH)).astype(int)
        v[:, :, read, np.arange(len(read))] = 1.0
        q, k = np.zeros((1, heads, _QUERIES, WIDTH)), np.zeros((1, heads, keys, WIDTH))
        try:
            output = examination.call(q, k, v, sinks=sinks).output[0, ..., : len(read)]
        except CaseRefused:
            continue
        if not _explained(examination, output, keys, sinks):
            _report(examination, output, keys, sinks)
            return


def _explained(examination, output, keys, sinks):
    """Whether sinks of those scores give that output, within the bound on its error."""
    from softcarry.numerics import attention_error_bound

    scores = np.zeros((1, len(sinks), 1, keys + 1))
    scores[0, :, 0, -1] = sinks
    values = np.zeros((1, len(sinks), keys + 1, 1))
    values[:, :, 0] = 1.0
    bound = attention_error_bound(
        scores,
        np.abs(np.where(np.isneginf(scores), 0.0, scores)),
        values,
        depth=WIDTH,
        model=examination.model,
        output_format=examination.output_format,
    )
    exact = 1.0 / (keys + np.exp(sinks))
    # In float64 the exact answer is rounded as the kernel's is.
    allowed = np.asarray(bound.output)[0] * (2.0 if examination.dtype == "float64" else 1.0)
    return bool((np.abs(output - exact[:, None, None]) <= allowed).all())


def _explanations(sinks) -> Iterator[_Explanation]:
    once = "merge each head's sink once, as a carry m = s, l = 1, o = 0"
    raw = "the sink is a score already: neither scale nor cap it, and exponentiate it like one"
    yield _Explanation("the sinks are accepted and ignored", np.full_like(sinks, -np.inf), once)
    yield _Explanation("the sinks are multiplied by the scale", sinks / math.sqrt(WIDTH), raw)
    yield _Explanation("every sink counts as a score of 0", np.zeros_like(sinks), once)
    yield _Explanation("the sinks are taken in base 2", sinks * math.log(2.0), raw)
    yield _Explanation("the sinks are taken with their sign changed", -sinks, raw)
    yield _Explanation("the sink of head 0 is used in every head", np.full_like(sinks, sinks[0]), once)
    yield _Explanation("the sinks of the heads are reversed", sinks[::-1], once)
    for count in range(2, _MOST_BLOCKS + 1):
        yield _Explanation(
            f"the sink is counted {count} times, as when every key block or split merges it",
            sinks + math.log(count),
            once,
        )


def _report(examination, output, keys, sinks):
    found = next(
        (each for each in _explanations(sinks) if _explained(examination, output, keys, each.scores)),
        _Explanation(
            "the sinks do not weigh e^sink", sinks, "add e^(sink − m) to l, with m the maximum of both"
        ),
    )
    with np.errstate(divide="ignore"):
        seen = 1.0 / output[:, 0, 0] - keys
    examination.fail(
        found.message,
        evidence={
            "call": f"tq = {_QUERIES}, tk = {keys}, q = 0, sinks {sinks.tolist()}",
            "weight of the sink beside n keys of weight 1, a head": seen,
            "expected, e^sink": np.exp(sinks),
        },
        remedy=found.remedy,
    )
