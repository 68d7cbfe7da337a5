"""DROP: does dropout drop weights at random, keep their mean, and stay away where it is not asked for?

Question
    Are kept weights divided by 1 − p, after the softmax? Are other weights dropped in every row, head and
    batch entry? Is nothing dropped for p = 0 or by default, and everything for p = 1?
Input
    q = 0, so that all weights are 1/n before dropout. One-hot values show each weight, twice: two columns a
    key. Values of 1 show the sum of a row. p = 0.5 and 0.25 under several seeds; the random numbers are the
    library's own, whose generators are seeded for the call and put back.
Conclusion
    Without dropout and with p = 0 the same bits, and no weight of 0. With p, weights are 0 or 1/(n(1 − p)); a
    fraction near 1 − p is kept; sums have mean 1; both columns of a key agree, or else the output is dropped,
    not the weights. p = 1 gives 0 or an error. The lse is that of no dropout.
Tolerance
    Kept weights: the master bound. Mean and fraction: 4 standard deviations, 4·√(p/((1 − p)N)) of a mean of N
    independent weights, and the bound. Patterns are called the same if all weights of 16 rows, or of three
    heads or two batch entries, agree: more than 500 bits that are even.
Source
    Srivastava et al., Dropout, JMLR 15, 2014, section 10 (scaling in training); the variance of a mean.
Public faults of this kind
    pytorch#124464 (dropout in evaluation too).
"""

import math

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._seeding import seeded

_WIDTH = 64
_KEYS = 32
_SHAPE = (2, 3, 16)  # batch entries, heads, queries
_LONG = 700
_PROBABILITIES = (0.5, 0.25)
_SEEDS = (1, 2, 3)
_DEVIATIONS = 4.0
_OWN = "drop weights after the softmax, and divide those that are kept by 1 − p"


def probe(examination: Examination) -> None:
    """Examine dropout.

    Parameters
    ----------
    examination : Examination
        Fact "dropout repeats under a seed", and at most one finding a kind of fault go to it.
    """
    if not examination.can("dropout"):
        examination.skip("dropout", examination.lacks("dropout"))
        return
    plain = _read(examination)
    if _dropped_unasked(examination, plain):
        return
    if not _zero_is_none(examination, plain):
        return
    try:
        patterns = [_read(examination, dropout=p, seed=_SEEDS[0]) for p in _PROBABILITIES]
    except CaseRefused:
        return
    if not _judge_weights(examination, patterns):
        return
    if _judge_patterns(examination, patterns[0]) and _judge_fraction(examination, patterns):
        _judge_sums(examination)
    _judge_lse(examination, plain, patterns[0])
    _judge_all_dropped(examination)


def _read(examination, *, dropout=None, seed=0, keys=_KEYS, summed=False):
    """Call the kernel with equal scores, and values that are one-hot, each key twice, or all 1."""
    q, k = np.zeros((*_SHAPE, _WIDTH)), np.zeros((*_SHAPE[:2], keys, _WIDTH))
    if summed:
        v = np.ones(k.shape)
    else:
        shown = np.linspace(0, keys - 1, _KEYS).astype(int)
        v = np.zeros(k.shape)
        for half in (0, _KEYS):
            v[:, :, shown, np.arange(_KEYS) + half] = 1.0
    with seeded(seed):
        return examination.call(q, k, v, dropout=dropout)


def _dropped_unasked(examination, plain):
    weights = plain.output
    if np.isnan(weights).any() or (weights != 0.0).all():
        return False
    examination.fail(
        "weights are dropped though no dropout is asked for",
        evidence={
            "fraction of weights that are 0": float((weights == 0.0).mean()),
            "weights of the first row": weights[0, 0, 0, :8],
            "expected": 1.0 / _KEYS,
        },
        remedy="let dropout be 0 by default, and switch it off in evaluation",
    )
    return True


def _zero_is_none(examination, plain):
    try:
        none = _read(examination, dropout=0.0)
    except CaseRefused:
        return True
    if np.array_equal(none.output, plain.output):
        return True
    at = tuple(np.argwhere(none.output != plain.output)[0])
    examination.fail(
        "with dropout of probability 0 the output is another than without",
        evidence={"output": none.output[at], "without dropout": plain.output[at]},
        remedy="drop nothing and rescale by exactly 1 where p = 0",
    )
    return False


def _judge_weights(examination, patterns):
    """Hold the weights under each p to 0 and 1/(n(1 − p)); whether they can be read as dropped or kept."""
    groups: dict[str, dict] = {}
    for p, outcome in zip(_PROBABILITIES, patterns, strict=True):
        message = _fault_of_weights(examination, p, outcome.output)
        if message:
            weights = outcome.output
            groups.setdefault(message, {})[f"p = {p}"] = {
                "weights of the first row": weights[0, 0, 0, :8].tolist(),
                "kept weights that are expected": 1.0 / (_KEYS * (1.0 - p)),
                "fraction kept": float((weights[..., :_KEYS] != 0.0).mean()),
            }
    for message, evidence in groups.items():
        examination.fail(message, evidence={"call": f"tk = {_KEYS}, q = 0"} | evidence, remedy=_OWN)
    return not groups


def _fault_of_weights(examination, p, output):
    weights, again = output[..., :_KEYS], output[..., _KEYS:]
    if not np.isfinite(output).all():
        return "with dropout the output is not finite"
    if ((weights == 0.0) != (again == 0.0)).any():
        return "elements of the output are dropped, not weights"
    kept = weights != 0.0
    if kept.all():
        return "the dropout option is accepted and ignored"
    tolerance = _relative_bound(examination)

    def are(wanted):
        difference = np.abs(weights - np.broadcast_to(wanted, weights.shape))
        return bool((difference <= tolerance * np.abs(wanted))[kept].all())

    if are(1.0 / (_KEYS * (1.0 - p))):
        return ""
    if are(1.0 / _KEYS):
        return "kept weights are not divided by 1 − p"
    if are(1.0 / np.maximum(kept.sum(axis=-1, keepdims=True), 1)):
        return "kept weights are normalised again: dropout comes before the softmax"
    if are(1.0 / (_KEYS * p)):
        return "kept weights are divided by p: p is taken for the probability of keeping"
    if are((1.0 - p) / _KEYS):
        return "kept weights are multiplied by 1 − p"
    if are(1.0 / (_KEYS * (1.0 - p) ** 2)):
        return "kept weights are divided by 1 − p twice"
    return "kept weights are not 1/(n(1 − p))"


def _judge_fraction(examination, patterns):
    """Hold the fraction of weights that is dropped to p; whether it is right."""
    for p, outcome in zip(_PROBABILITIES, patterns, strict=True):
        kept = outcome.output[..., :_KEYS] != 0.0
        allowed = _DEVIATIONS * math.sqrt(p * (1.0 - p) / kept.size)
        if abs(kept.mean() - (1.0 - p)) > allowed:
            examination.fail(
                "the fraction of weights that is dropped is not p",
                evidence={
                    "p": p,
                    "fraction dropped": 1.0 - kept.mean(),
                    "weights": kept.size,
                    "four standard deviations": allowed,
                },
                remedy="drop a weight where a uniform random number in [0, 1) is below p",
            )
            return False
    return True


def _relative_bound(examination):
    """Bound on the relative error of a weight 1/n, and of its division by 1 − p in the output's format."""
    shape = 1, 1, 1, _WIDTH
    q, k, v = np.zeros(shape), np.zeros((1, 1, _KEYS, _WIDTH)), np.eye(_KEYS, _WIDTH)[None, None]
    bound = examination.bound(q, k, v).output[0, 0, 0, 0] * _KEYS
    return float(bound) + 2.0 * examination.output_format.unit_roundoff


def _judge_patterns(examination, outcome):
    """Look for patterns that repeat; whether the weights of one call can be taken for independent."""
    kept = outcome.output[..., :_KEYS] != 0.0
    same = [
        what
        for what, pairs in (
            ("row", kept[:, :, 1:] == kept[:, :, :1]),
            ("head", kept[:, 1:] == kept[:, :1]),
            ("batch entry", kept[1:] == kept[:1]),
        )
        if pairs.all()
    ]
    if same:
        examination.fail(
            f"the same weights are dropped in every {' and '.join(same)}",
            evidence={"kept in the first row": kept[0, 0, 0], "kept in the second": kept[0, 0, 1]},
            remedy="draw a random number for every weight, not one for all of them",
        )
        return False
    again, other = (
        _read(examination, dropout=_PROBABILITIES[0], seed=seed).output[..., :_KEYS] != 0.0
        for seed in _SEEDS[:2]
    )
    repeats = bool((again == kept).all())
    examination.fact("dropout repeats under a seed", repeats, 1.0, "two calls after seeding, of one pattern")
    if repeats and (other == kept).all():
        examination.warn(
            "the same weights are dropped whatever the seed",
            evidence={"seeds": list(_SEEDS[:2]), "kept in the first row": kept[0, 0, 0]},
            remedy="draw from the library's own generator, and advance it in every call",
        )
    return True


def _judge_sums(examination):
    """With values of 1 the outputs of all rows have mean 1."""
    seeds = _SEEDS[:1] if examination.quick else _SEEDS
    for p in _PROBABILITIES:
        for seed in seeds:
            output = _read(examination, dropout=p, seed=seed, keys=_LONG, summed=True).output[..., 0]
            allowed = _DEVIATIONS * math.sqrt(p / ((1.0 - p) * output.size * _LONG)) + _relative_bound(
                examination
            )
            if abs(output.mean() - 1.0) <= allowed:
                continue
            examination.fail(
                "dropout does not keep the mean of the output",
                evidence={
                    "call": f"tk = {_LONG}, v = 1, p = {p}",
                    "mean": output.mean(),
                    "expected": 1.0,
                    "four standard deviations": allowed,
                },
                remedy=_OWN,
            )
            return


def _judge_lse(examination, plain, dropped):
    if plain.lse is None:
        return
    if not np.array_equal(plain.lse, dropped.lse):
        examination.fail(
            "the lse changes under dropout",
            evidence={"lse": dropped.lse[0, 0, :4], "without dropout": plain.lse[0, 0, :4]},
            remedy="sum l before weights are dropped: the lse is that of the scores",
        )


def _judge_all_dropped(examination):
    try:
        output = _read(examination, dropout=1.0).output
    except CaseRefused:
        return
    if not (output == 0.0).all():
        kind = "NaN" if np.isnan(output).any() else "infinite" if np.isinf(output).any() else "not 0"
        examination.fail(
            f"with dropout of probability 1 the output is {kind}",
            evidence={"output": output[0, 0, 0, :4]},
            remedy="write 0 where p = 1, or refuse it: 1/(1 − p) is infinite, and 0 · ∞ is NaN",
        )
