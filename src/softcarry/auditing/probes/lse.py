"""LSE: is the returned lse ln Σ exp(score), in natural units, and does it merge?

Fed in: equal scores c on n keys, whose lse is c + ln n exactly, with n = 2, 16, 1024 (two keys tell ln 2 from
log2 2 = 1) and |c| up to 8192; the two parts of one call, merged by their lse; a part without keys, merged
with one that has some.

Concluded: the lse is α·c + β·ln n + offset. α = β = 1 is the natural log of the scaled scores. A ratio of
1/ln 2 is base 2 and said by name, as are an lse of unscaled scores, one without its maximum or without its
sum, the mixture m + log2 l, and an offset. A part without keys must be the identity of the merge.

Tolerance: u·(|m| + 1 + 3·ln l) + E_l and the error of the scores (``numerics.bounds.attention_error_bound``);
for a merged output, the bounds of the three calls and, to first order, w_a·w_b·|o_a − o_b| times the two
errors of the lse, for which the factor 2 leaves room.

Public faults of this kind: pytorch#181645 (off by ln 2), sglang#40903 (base 2 taken for base e),
EasyContext#14 (the merge overflows), flash-attention#978 (+inf on empty rows), intel sycl-tla#848 (m + log2 l).
"""

from math import log, sqrt

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._classes import LSE_REMEDIES, lse_class
from softcarry.auditing.probes._lse_units import recognise

_DEPTH = 16
# Powers of two and a number of five bits: exact in every dtype, and so is their product with √d = 4.
_OFFSETS = (1.0, -20.0, 1024.0, -1024.0, 8192.0, -8192.0)


def probe(examination: Examination) -> None:
    """Examine the lse that a kernel returns beside its output.

    Parameters
    ----------
    examination : Examination
    """
    if not examination.can("lse"):
        examination.skip("the lse", "the kernel returns no lse")
        return
    _judge_dtype(examination)
    factor = _unit(examination)
    if factor is None:
        examination.skip("merging by the lse", "it is no log-sum-exp of a known unit")
        return
    for case in (_offsets, _parts, _part_without_keys):
        try:
            case(examination, factor)
        except CaseRefused:
            continue


def _judge_dtype(examination):
    dtype = examination.calling.lse_dtype
    if dtype in ("bfloat16", "float16"):
        examination.fail(
            f"the lse is returned in {dtype}",
            evidence={"dtype of the lse": dtype, "spacing of its numbers at 16": {"bfloat16": 0.125}.get(dtype, 0.015625)},
            remedy="return the lse in float32: the weights of a merge are exponentials of its differences",
        )


def _equal_scores(keys, score):
    """Inputs whose scores are all exactly ``score``."""
    q, k = np.zeros((1, 2, 4, _DEPTH)), np.zeros((1, 2, keys, _DEPTH))
    q[..., 0] = sqrt(_DEPTH)
    k[..., 0] = score
    v = np.broadcast_to(np.eye(keys, _DEPTH), (1, 2, keys, _DEPTH))
    return q, k, v


def _unit(examination):
    """The factor from the kernel's lse to the natural one, or None; what is not 1 is a finding."""
    measured, exact = {}, True
    for keys, score in ((2, 0.0), (16, 0.0), (1024, 0.0), (1, 0.0), (1, 16.0)):
        inputs = _equal_scores(keys, score)
        lse = examination.call(*inputs).lse
        measured[keys, score] = float(lse[0, 0, 0])
        exact &= bool((np.abs(lse - (score + log(keys))) <= examination.bound(*inputs).lse).all())
    two = measured[2, 0.0]
    if exact:
        unit = examination.subject.lse or "e"
        examination.fact("unit of the lse", unit, 1.0, f"2 equal scores 0 give {two:.6g}, 1024 give ln 1024")
        return 1.0
    alpha = (measured[1, 16.0] - measured[1, 0.0]) / 16.0
    beta = (measured[1024, 0.0] - two) / log(512.0)
    found = recognise(alpha, beta, two - beta * log(2.0), depth=_DEPTH)
    examination.fact("unit of the lse", found.unit, 0.9, f"lse = {alpha:.4g}·c + {beta:.4g}·ln n")
    examination.fail(
        f"the lse is {found.description}",
        evidence={
            "lse of 2 equal scores 0": two,
            "expected (ln 2)": log(2.0),
            "ratio": two / log(2.0),
            "lse of 1024 equal scores 0": measured[1024, 0.0],
            "expected (ln 1024)": log(1024.0),
            "lse of one score 16": measured[1, 16.0],
        },
        remedy=_remedy(found, examination.subject.lse),
    )
    return found.factor


def _remedy(found, declared):
    if found.unit == "2":
        return "multiply it by ln 2 before it is returned, or declare Subject(lse='2') and convert where it is merged"
    if found.unit == "e" and declared == "2":
        return "declare Subject(lse='e')"
    return "return m + ln l with m the maximum of the scaled scores and both terms in natural units"


def _offsets(examination, factor):
    """Equal scores of large magnitude: m carries all of it, ln l none."""
    worst = None
    for score in _OFFSETS:
        inputs = _equal_scores(16, score)
        try:
            lse = factor * examination.call(*inputs).lse
        except CaseRefused:
            continue
        error = np.abs(lse - (score + log(16.0)))
        bound = examination.bound(*inputs).lse
        # Written so that NaN, for which every comparison is false, is wrong.
        wrong = ~(error <= bound)
        if wrong.any() and worst is None:
            at = tuple(np.argwhere(wrong)[0])
            worst = {
                "score c": score,
                "keys": 16,
                "lse": lse[at],
                "expected (c + ln 16)": score + log(16.0),
                "bound on the error": bound[at],
            }
    if worst is not None:
        examination.fail(
            f"the lse of equal scores c = {worst['score c']:g} is {worst['lse']:g}, beyond its error bound",
            evidence=worst,
            remedy="keep m in float32 and add ln l to it last: the lse is m + ln l, not ln of a sum that may overflow",
        )


def _random(examination, keys):
    rng = examination.rng
    q = examination.round(rng.standard_normal((1, 2, 8, _DEPTH)))
    k, v = (examination.round(rng.standard_normal((1, 2, keys, _DEPTH))) for _ in range(2))
    return q, k, v


def _parts(examination, factor):
    """Two parts of the keys, merged by their lse, are the whole."""
    q, k, v = _random(examination, 96)
    k[:, :, 40:] *= 2.0
    keys = {"whole": slice(0, 96), "first": slice(0, 40), "second": slice(40, 96)}
    lse, output, bound = {}, {}, {}
    for part, span in keys.items():
        outcome = examination.call(q, k[:, :, span], v[:, :, span])
        lse[part], output[part] = factor * outcome.lse, outcome.output
        bound[part] = examination.bound(q, k[:, :, span], v[:, :, span])
    with np.errstate(all="ignore"):
        merged_lse = np.logaddexp(lse["first"], lse["second"])
        weight = {part: np.exp(lse[part] - merged_lse)[..., None] for part in ("first", "second")}
        merged = sum(weight[part] * output[part] for part in weight)
        both = bound["first"].lse + bound["second"].lse
        moved = np.abs(output["first"] - output["second"]) * weight["first"] * weight["second"]
        allowed = bound["whole"].output + sum(weight[part] * bound[part].output for part in weight)
        allowed = allowed + 2.0 * moved * both[..., None]
    lse_allowed = bound["whole"].lse + np.maximum(bound["first"].lse, bound["second"].lse)
    for what, found, expected, limit in (
        ("output", merged, output["whole"], allowed),
        ("lse", merged_lse, lse["whole"], lse_allowed),
    ):
        wrong = ~(np.abs(found - expected) <= limit)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            examination.fail(
                f"two parts merged by their lse do not give the {what} of the whole",
                evidence={
                    "keys": "96, in parts of 40 and 56",
                    "wrong elements": f"{int(wrong.sum())} of {wrong.size}",
                    "merged": found[at],
                    "whole": expected[at],
                    "bound on the difference": limit[at],
                },
                remedy="return the lse of exactly the scores that weigh the output, scale and mask included",
            )
            return


def _part_without_keys(examination, factor):
    """A part without keys is the identity: its weight in a merge is 0."""
    promised = examination.contract.lse_empty
    if promised == "any" or not examination.can("mask"):
        reason = "the contract leaves its lse open" if promised == "any" else "the kernel takes no mask"
        examination.skip("merging a part without keys", reason)
        return
    q, k, v = _random(examination, 16)
    empty = factor * examination.call(q, k, v, mask=np.zeros((8, 16), bool)).lse
    live = factor * examination.call(q, k, v, mask=np.ones((8, 16), bool)).lse
    kind = lse_class(empty)
    if kind == promised:
        empty = np.full_like(empty, -np.inf)  # a reader who knows the contract takes it for empty
    with np.errstate(all="ignore"):
        weight = np.exp(empty - np.logaddexp(empty, live))
    wrong = ~(weight == 0.0)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        examination.fail(
            f"a part without keys is no identity of the merge: its lse {empty[at]:g} gives it weight {weight[at]:.3g}",
            evidence={"lse of the empty part": empty[at], "lse of the other": live[at], "weight": weight[at]},
            remedy=LSE_REMEDIES.get(kind, LSE_REMEDIES["finite"]),
        )
