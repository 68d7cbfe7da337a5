"""EMPTY: what does a row without keys get, and do other rows notice?

Fed in: rows that a boolean mask, an additive mask of −inf, a causal mask with more queries than keys, and a
causal mask beside a boolean one leave without keys; no keys at all (tk = 0, in a process of its own, as some
kernels die of it); rows whose first 4096 keys, or last 4096, are all masked, which is more than any key
block. V is the identity, so that outputs are the weights of the keys; in the long rows V is random. Rows
filled with the lowest finite number are classified and not judged: they have keys.

Concluded: the class of the output of such rows (ZERO, NAN, MEAN_ALL, MEAN_SUBSET, UNMASKED, GARBAGE) and of
their lse, against the contract: zero and −inf by default (ONNX opset 24 errata, onnx#8068; torch since 2.5).
Other rows must be bitwise what they are when no row is empty. Rows with a masked key block must be finite and
within the master bound of float64.

Tolerance: none for classes and neighbours; four roundings for equal weights; for long rows
``numerics.attention_error_bound``.

Public faults of this kind: pytorch#103963 and #103749 (NaN rows), onnxruntime#28904 (mean of V from a finite
sentinel), keras#21123 (uniform), mlx#2608 (NaN in the fallback), iree#24175 (NaN), flash-attention#978
(lse +inf), pytorch#134650 (lse 0), flashinfer#4451 (finite lse from a sentinel).
"""

from functools import partial

import numpy as np

from softcarry.auditing._calling import Outcome
from softcarry.auditing.examination import CaseCrashed, CaseRefused, Examination
from softcarry.auditing.probes._classes import lse_class, weights_class
from softcarry.auditing.probes._empty_rows import Observation, judge_lse, judge_outputs
from softcarry.auditing.probes._live_rows import compare_neighbours, judge_live_rows

_EMPTY = [1, 4, 5, 7]
_WIDTH = 16
_LONG = 4096


def probe(examination: Examination) -> None:
    """Examine rows without keys.

    Parameters
    ----------
    examination : Examination
    """
    cases = [_causal, _causal_beside_mask, _no_keys]
    if examination.can("kv_lengths"):
        cases.append(_length_of_no_keys)
    if examination.can("mask"):
        cases = [
            partial(_masked, case="boolean mask", represent=lambda mask: mask),
            partial(_masked, case="additive mask of −inf", represent=_additive),
            *cases,
            partial(_long_rows, case="whole key blocks masked by booleans", represent=lambda mask: mask),
            partial(_long_rows, case="whole key blocks masked by −inf", represent=_additive),
            _lowest_finite_fill,
        ]
    else:
        examination.skip("rows emptied by a mask", examination.lacks("mask"))
    seen = []
    for case in cases:
        try:
            seen.append(case(examination))
        except CaseRefused:
            continue
    seen = [observation for observation in seen if observation is not None]
    judge_outputs(examination, seen)
    judge_lse(examination, seen)


def _additive(mask, fill=-np.inf):
    return np.where(mask, 0.0, fill)


def _inputs(examination, queries=8, keys=_WIDTH):
    """Random q and k, and the identity as V: the output is the weights of the keys."""
    q, k = (
        examination.round(examination.rng.standard_normal((1, 2, tokens, _WIDTH)))
        for tokens in (queries, keys)
    )
    return q, k, np.broadcast_to(np.eye(keys, _WIDTH), (1, 2, keys, _WIDTH))


def _masks(examination):
    """Draw a mask in which every row has keys, and the same with some rows emptied."""
    full = examination.rng.random((8, _WIDTH)) < 0.6
    full[:, 0] = True
    emptied = full.copy()
    emptied[_EMPTY] = False
    return full, emptied


def _observe(examination, case, rows, outcome, kind):
    output = outcome.output[:, :, rows]
    lse = None if outcome.lse is None else outcome.lse[:, :, rows]
    return Observation(
        case,
        list(rows),
        kind,
        output[0, 0, 0].tolist(),
        None if lse is None else lse_class(lse),
        None if lse is None else float(lse[0, 0, 0]),
    )


def _weights_kind(examination, rows, outcome, q, k, v):
    unmasked = examination.golden(q, k, v).weights[:, :, rows]
    u = max(examination.format.unit_roundoff, examination.output_format.unit_roundoff)
    return weights_class(outcome.output[:, :, rows, : k.shape[2]], unmasked, u)


def _constant_kind(output):
    if np.isnan(output).any():
        return "NAN"
    return "GARBAGE" if output.any() else "ZERO"


def _masked(examination, case, represent):
    q, k, v = _inputs(examination)
    full, emptied = _masks(examination)
    outcome = examination.call(q, k, v, mask=represent(emptied))
    compare_neighbours(examination, case, outcome, (q, k, v), represent(full), _EMPTY)
    return _observe(examination, case, _EMPTY, outcome, _weights_kind(examination, _EMPTY, outcome, q, k, v))


def _causal(examination):
    case, rows = "causal mask with tq > tk", [0, 1, 2]
    if examination.causal == "ignored":
        examination.fail(
            "the causal option is accepted and changes nothing",
            evidence={"call": "q (1, 1, 3, 8), k (1, 1, 5, 8), causal", "keys with weight": [5, 5, 5]},
            remedy="mask keys beyond the query, or leave the option out of the signature",
        )
    if not examination.can("causal"):
        return None
    if examination.causal == "top-left":
        examination.skip(case, "aligned top-left, where every row has a key")
        return None
    q, k, v = _inputs(examination, keys=5)
    outcome = examination.call(q, k, v, causal=True)
    judge_live_rows(examination, case, outcome, [3, 4, 5, 6, 7], q, k, v, causal=True)
    return _observe(examination, case, rows, outcome, _weights_kind(examination, rows, outcome, q, k, v))


def _causal_beside_mask(examination):
    if not (examination.can("causal") and examination.can("mask")):
        return None
    case, rows = "boolean mask beside a causal one", [0, 1, 2, 3]
    q, k, v = _inputs(examination, queries=_WIDTH)
    mask = np.ones((_WIDTH, _WIDTH), bool)
    mask[:, :4] = False
    outcome = examination.call(q, k, v, mask=mask, causal=True)
    judge_live_rows(examination, case, outcome, list(range(4, _WIDTH)), q, k, v, mask=mask, causal=True)
    return _observe(examination, case, rows, outcome, _weights_kind(examination, rows, outcome, q, k, v))


def _no_keys(examination):
    case, rows = "no keys at all (tk = 0)", [0, 1, 2, 3]
    q, k, v = _inputs(examination, queries=4, keys=0)
    try:
        outcome = examination.call_isolated(q, k, v)
    except CaseCrashed as error:
        examination.fail(
            f"the process dies when there are no keys (tk = 0): {error}",
            evidence={"call": f"q {q.shape}, k {k.shape}, v {v.shape}", "rows": rows},
            remedy="return output 0 and lse −inf before anything is divided by the number of keys",
        )
        return None
    kind = _constant_kind(outcome.output)
    if examination.contract.empty_rows == "mean" and kind != "GARBAGE":
        return None  # there is no mean of no values
    return _observe(examination, case, rows, outcome, kind)


def _length_of_no_keys(examination):
    """One sequence of the batch has no keys: its rows are empty, and those of the other are as ever."""
    case, rows = "a length of 0 (kv_lengths)", [0, 1, 2, 3]
    q, k, v = (np.repeat(x, 2, axis=0) for x in _inputs(examination, queries=4))
    lengths = np.array([0, 5])
    try:
        outcome = examination.call_isolated(q, k, v, kv_lengths=lengths)
    except CaseCrashed as error:
        examination.fail(
            f"the process dies when a sequence has no keys (kv_lengths 0): {error}",
            evidence={"call": f"q {q.shape}, k {k.shape}, v {v.shape}, kv_lengths {lengths.tolist()}"},
            remedy="return output 0 and lse −inf before anything is divided by the number of keys",
        )
        return None
    first = Outcome(outcome.output[:1], None if outcome.lse is None else outcome.lse[:1])
    kind = _weights_kind(examination, rows, first, q[:1], k[:1], v[:1])
    return _observe(examination, case, rows, first, kind)


def _long_rows(examination, case, represent):
    """Rows in which whole key blocks are masked: at the start, at the end, on both sides, everywhere."""
    keys, rng = _LONG + 256, examination.rng
    q = examination.round(rng.standard_normal((1, 2, 8, _WIDTH)))
    k, v = (examination.round(rng.standard_normal((1, 2, keys, _WIDTH))) for _ in range(2))
    mask = np.zeros((8, keys), bool)
    mask[0, _LONG:] = True
    mask[1, :256] = True
    mask[2, [0, -1]] = True
    mask[4] = True
    mask[5, -1] = True
    mask[6, _LONG:] = rng.random(256) < 0.5
    mask[6, _LONG] = True
    mask[7, keys // 2] = True
    given = represent(mask)
    outcome = examination.call(q, k, v, mask=given)
    judge_live_rows(examination, case, outcome, [0, 1, 2, 4, 5, 6, 7], q, k, v, mask=given)
    output = outcome.output[:, :, [3]]
    kind = _constant_kind(output)
    if kind == "GARBAGE":
        equal = examination.bound(np.zeros_like(q), k, v).output[:, :, [3]]
        kind = "MEAN_ALL" if (np.abs(output - v.mean(axis=2, keepdims=True)) <= equal).all() else kind
    return _observe(examination, case, [3], outcome, kind)


def _lowest_finite_fill(examination):
    q, k, v = _inputs(examination)
    _, emptied = _masks(examination)
    outcome = examination.call(q, k, v, mask=_additive(emptied, -examination.format.largest))
    seen = _observe(examination, "", _EMPTY, outcome, _weights_kind(examination, _EMPTY, outcome, q, k, v))
    examination.fact(
        "rows filled with the lowest finite number",
        seen.kind,
        1.0,
        f"weights {seen.output[:4]} …, lse {seen.lse}; classified only, as such rows have keys",
    )
