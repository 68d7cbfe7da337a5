"""LSE: is the returned lse ln Σ exp(score), in natural units, and does it merge?

Fed in: equal scores c on n keys, whose lse is c + ln n exactly, with n up to 1024 (two keys tell ln 2 from
log2 2 = 1) and |c| up to 8192; the two parts of one call, merged by their lse; a part without keys, merged
with one that has some.

Concluded: the lse is α·c + β·ln n + offset. α = β = 1 is the natural log of the scaled scores. A ratio of
1/ln 2 is base 2 and said by name, as are an lse of unscaled scores, one without its maximum or without its
sum, the mixture m + log2 l, and an offset. A part without keys must be the identity of the merge.

Tolerance: u·(|m| + 1 + 3·ln l) + E_l and the error of the scores (``numerics.attention_error_bound``);
for a merged output, the bounds of the three calls and, to first order, w_a·w_b·|o_a − o_b| times the two
errors of the lse, for which the factor 2 leaves room.

Public faults of this kind: pytorch#181645 (off by ln 2), sglang#40903 (base 2 taken for base e),
EasyContext#14 (the merge overflows), flash-attention#978 (+inf on empty rows), sycl-tla#848 (m + log2 l).
"""

from math import isfinite, log, sqrt

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._classes import LSE_REMEDIES, lse_class
from softcarry.auditing.probes._lse_units import NATURAL, recognise

_DEPTH = 16
_SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
# Powers of two and a number of five bits: exact in every dtype, and so is their product with √d = 4.
_KNOWN = ((1024, 0.0), (16, 1.0), (16, -20.0), (16, 1024.0), (16, -1024.0), (16, 8192.0), (16, -8192.0))


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
    for case in (_known_scores, _parts, _part_without_keys, _with_options):
        try:
            case(examination, factor)
        except CaseRefused:
            continue


def _judge_dtype(examination):
    dtype = examination.calling.lse_dtype
    if dtype in ("bfloat16", "float16"):
        examination.fail(
            f"the lse is returned in {dtype}",
            evidence={"dtype of the lse": dtype, "spacing of its numbers at 16": 16.0 * _SPACING[dtype]},
            remedy="return the lse in float32: the weights of a merge are exponentials of its differences",
        )


def _equal_scores(keys, score):
    """Return inputs whose scores are all exactly ``score``."""
    q, k = np.zeros((1, 2, 4, _DEPTH)), np.zeros((1, 2, keys, _DEPTH))
    q[..., 0] = sqrt(_DEPTH)
    k[..., 0] = score
    v = np.broadcast_to(np.eye(keys, _DEPTH), (1, 2, keys, _DEPTH))
    return q, k, v


def _unit(examination):
    """Find the factor from the kernel's lse to the natural one, or None; what is not 1 is a finding."""
    measured = {}
    for keys, score in ((1, 0.0), (1, 16.0), (2, 0.0), (16, 0.0)):
        lse = float(examination.call(*_equal_scores(keys, score)).lse[0, 0, 0])
        if not isfinite(lse):
            examination.fail(
                f"the lse of {keys} equal scores {score:g} is not finite",
                evidence={"lse": lse, "expected": score + log(keys)},
                remedy="return m + ln l, with m the maximum of the row and l > 0 wherever the row has keys",
            )
            return None
        measured[keys, score] = lse
    two = measured[2, 0.0]
    alpha = (measured[1, 16.0] - measured[1, 0.0]) / 16.0
    beta = (measured[16, 0.0] - two) / log(8.0)
    found = recognise(alpha, beta, two - beta * log(2.0), depth=_DEPTH)
    if found is NATURAL:
        unit = examination.subject.lse or "e"
        examination.fact("unit of the lse", unit, 1.0, f"the lse of 2 equal scores 0 is {two:.6g}")
        return 1.0
    examination.fact("unit of the lse", found.unit, 0.9, f"lse = {alpha:.4g}·c + {beta:.4g}·ln n")
    examination.fail(
        f"the lse is {found.description}",
        evidence={
            "lse of 2 equal scores 0": two,
            "expected (ln 2)": log(2.0),
            "ratio": two / log(2.0),
            "lse of 16 equal scores 0": measured[16, 0.0],
            "expected (ln 16)": log(16.0),
            "lse of one score 16": measured[1, 16.0],
        },
        remedy=_remedy(found, examination.subject.lse),
    )
    return found.factor


def _remedy(found, declared):
    if found.unit == "2":
        return "multiply it by ln 2 before it is returned, or declare it by Subject(lse='2')"
    if found.unit == "e" and declared == "2":
        return "declare Subject(lse='e')"
    return "return m + ln l with m the maximum of the scaled scores and both terms in natural units"


def _known_scores(examination, factor):
    """Equal scores, many or large: the lse is c + ln n, of which m carries c, and l is n."""
    for keys, score in _KNOWN:
        inputs = _equal_scores(keys, score)
        try:
            lse = factor * examination.call(*inputs).lse
        except CaseRefused:
            continue
        expected, bound = score + log(keys), examination.bound(*inputs).lse
        # Written so that NaN, for which every comparison is false, is wrong.
        wrong = ~(np.abs(lse - expected) <= bound)
        if not wrong.any():
            continue
        at = tuple(np.argwhere(wrong)[0])
        with np.errstate(over="ignore"):
            running_sum = float(np.exp(lse[at] - score))
        examination.fail(
            f"the lse of {keys} equal scores {score:g} is {lse[at]:.7g}, beyond the bound on its error",
            evidence={
                "expected": expected,
                "lse": lse[at],
                "bound on the error": bound[at],
                "l that this lse implies": running_sum,
            },
            remedy="keep m and l in float32 and return m + ln l: l must neither overflow nor stop growing",
        )
        return


def _random(examination, keys):
    rng = examination.rng
    q = examination.round(rng.standard_normal((1, 2, 8, _DEPTH)))
    k, v = (examination.round(rng.standard_normal((1, 2, keys, _DEPTH))) for _ in range(2))
    return q, k, v


def _with_options(examination, factor):
    """Ask for the lse of the very scores that the output is made of: capped, masked, in a window."""
    inputs = _random(examination, 16)
    bias = examination.round(examination.rng.standard_normal((8, 16)))
    options = {"mask": bias, "softcap": 0.5, "window": (3, 1), "causal": True, "scale": 0.5}
    for name, value in options.items():
        if not examination.can(name):
            continue
        try:
            outcome = examination.call(*inputs, **{name: value})
        except CaseRefused:
            continue
        golden = examination.golden(*inputs, **{name: value})
        bound = examination.bound(*inputs, **{name: value})
        right = np.abs(outcome.output - golden.output) <= bound.output
        live = np.isfinite(golden.lse) & right.all(axis=-1)
        with np.errstate(invalid="ignore"):
            wrong = live & ~(np.abs(factor * outcome.lse - golden.lse) <= bound.lse)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            examination.fail(
                f"the lse does not belong to the output beside {name}",
                evidence={
                    "call": f"{name} {value}" if name != "mask" else "additive mask",
                    "row": list(at),
                    "lse": float(factor * outcome.lse[at]),
                    "expected": float(golden.lse[at]),
                    "without it": float(examination.golden(*inputs).lse[at]),
                },
                remedy="take m and l of the very scores that are exponentiated: scaled, capped, masked",
            )


def _parts(examination, factor):
    """Two parts of the keys, merged by their lse, are the whole."""
    q, k, v = _random(examination, 96)
    k[:, :, 40:] *= 2.0
    outcomes, bounds = [], []
    for span in (slice(0, 96), slice(0, 40), slice(40, 96)):
        inputs = q, k[:, :, span], v[:, :, span]
        outcomes.append(examination.call(*inputs))
        bounds.append(examination.bound(*inputs))
        if not (np.abs(outcomes[-1].output - examination.golden(*inputs).output) <= bounds[-1].output).all():
            examination.skip(
                "merging two parts by the lse", "the outputs are beyond their error bound already"
            )
            return
    outputs, lses = [each.output for each in outcomes], [factor * each.lse for each in outcomes]
    with np.errstate(all="ignore"):
        lse = np.logaddexp(lses[1], lses[2])
        first, second = (np.exp(part - lse)[..., None] for part in lses[1:])
        output = first * outputs[1] + second * outputs[2]
        moved = first * second * np.abs(outputs[1] - outputs[2]) * (bounds[1].lse + bounds[2].lse)[..., None]
        allowed = bounds[0].output + first * bounds[1].output + second * bounds[2].output + 2.0 * moved
    lse_allowed = bounds[0].lse + np.maximum(bounds[1].lse, bounds[2].lse)
    for what, merged, whole, limit in (
        ("lse", lse, lses[0], lse_allowed),
        ("output", output, outputs[0], allowed),
    ):
        wrong = ~(np.abs(merged - whole) <= limit)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            examination.fail(
                f"two parts merged by their lse do not give the {what} of the whole",
                evidence={
                    "keys": "96, in parts of 40 and 56",
                    "wrong elements": f"{int(wrong.sum())} of {wrong.size}",
                    "merged": merged[at],
                    "whole": whole[at],
                    "bound on the difference": limit[at],
                },
                remedy="return the lse of exactly the scores that weigh the output, scale and mask included",
            )
            return


def _part_without_keys(examination, factor):
    """Merge a part without keys: it is the identity, of weight 0."""
    promised = examination.contract.lse_empty
    if promised == "any" or not examination.can("mask"):
        reason = "the contract leaves its lse open" if promised == "any" else examination.lacks("mask")
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
            f"a part without keys has weight in a merge: its lse is {empty[at]:g}",
            evidence={"lse of the empty part": empty[at], "lse of the other": live[at], "weight": weight[at]},
            remedy=LSE_REMEDIES.get(kind, LSE_REMEDIES["finite"]),
        )
