"""EMPTY: what does a row without keys get, and do other rows notice?

Fed in: rows that a boolean mask, an additive mask of −inf, a causal mask with more queries than keys, and a
causal mask beside a boolean one leave without keys; no keys at all (tk = 0, in a process of its own: some
kernels die); rows whose first 4096 keys, or last 4096, are all masked, more than any key block. V is the identity, so
that outputs are the weights of the keys; in the long rows V is random. Rows filled with the lowest finite
number are classified, not judged: they are rows with keys.

Concluded: the class of the output of such rows (ZERO, NAN, MEAN_ALL, MEAN_SUBSET, UNMASKED, GARBAGE) and of their
lse, against the contract: zero and −inf by default (ONNX opset 24 errata, onnx#8068; torch since 2.5). Other
rows must be bitwise what they are when no row is empty. Rows with a masked key block must be finite and
within the master bound of float64 (``numerics.bounds``).

Tolerance: none for classes and neighbours; four roundings for equal weights; the master bound for long rows.

Public faults of this kind: pytorch#103963 and #103749 (NaN rows), onnxruntime#28904 (mean of V from a finite
sentinel), keras#21123 (uniform), mlx#2608 (NaN in the fallback), iree#24175 (NaN), flash-attention#978
(lse +inf), pytorch#134650 (lse 0), flashinfer#4451 (finite lse from a sentinel).
"""

from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseCrashed, CaseRefused, Examination
from softcarry.auditing.probes._classes import LSE_REMEDIES, REMEDIES, lse_class, weights_class

_EMPTY = [1, 4, 5, 7]
_WIDTH = 16
_BLOCK = 4096

_PROMISED = {
    "zero": ("ZERO",),
    "nan": ("NAN",),
    "mean": ("MEAN_ALL", "MEAN_SUBSET"),
    "any": tuple(REMEDIES),
}
_LEAST_SURPRISE = {
    "zero": "0",
    "nan": "NaN",
    "mean": "the mean of V",
    "any": "anything",
}


class _Observation(NamedTuple):
    """What one case showed of its rows without keys."""

    case: str
    rows: list[int]
    kind: str
    output: list[float]
    lse_kind: str | None
    lse: float | None


def probe(examination: Examination) -> None:
    """Examine rows without keys.

    Parameters
    ----------
    examination : Examination
    """
    seen = []
    for case in (_boolean_mask, _additive_mask, _causal, _causal_beside_mask, _no_keys):
        try:
            seen.append(case(examination))
        except CaseRefused:
            continue
    for kind in ("boolean", "additive"):
        try:
            seen.append(_long_rows(examination, kind))
        except CaseRefused:
            continue
    try:
        _lowest_finite_fill(examination)
    except CaseRefused:
        pass
    _judge_outputs(examination, [each for each in seen if each is not None])
    _judge_lse(examination, [each for each in seen if each is not None and each.lse_kind is not None])


def _inputs(examination, queries=8, keys=_WIDTH):
    q, k = (
        examination.round(examination.rng.standard_normal((1, 2, tokens, _WIDTH)))
        for tokens in (queries, keys)
    )
    v = np.broadcast_to(np.eye(keys, _WIDTH), (1, 2, keys, _WIDTH))
    return q, k, v


def _masks(examination, keys=_WIDTH):
    """A random mask in which every row has keys, and the same with some rows emptied."""
    full = examination.rng.random((8, keys)) < 0.6
    full[:, 0] = True
    emptied = full.copy()
    emptied[_EMPTY] = False
    return full, emptied


def _additive(mask, fill=-np.inf):
    return np.where(mask, 0.0, fill)


def _observe(examination, case, rows, outcome, q, k, v, *, kind=None):
    output = outcome.output[:, :, rows]
    if kind is None:
        exact = examination.golden(q, k, v).weights[:, :, rows]
        u = max(examination.format.unit_roundoff, examination.output_format.unit_roundoff)
        kind = weights_class(output[..., : k.shape[2]], exact, u) if k.shape[2] else _constant_class(output)
    lse = None if outcome.lse is None else outcome.lse[:, :, rows]
    return _Observation(
        case,
        list(rows),
        kind,
        [float(x) for x in output[0, 0, 0, :4]],
        None if lse is None else lse_class(lse),
        None if lse is None else float(lse[0, 0, 0]),
    )


def _constant_class(output):
    if np.isnan(output).any():
        return "NAN"
    return "GARBAGE" if output.any() else "ZERO"


def _boolean_mask(examination):
    return _masked(examination, "boolean mask", lambda mask: mask)


def _additive_mask(examination):
    return _masked(examination, "additive mask of −inf", _additive)


def _masked(examination, case, represent):
    q, k, v = _inputs(examination)
    full, emptied = _masks(examination)
    outcome = examination.call(q, k, v, mask=represent(emptied))
    _compare_neighbours(
        examination, case, outcome, examination.call(q, k, v, mask=represent(full)), emptied.any(axis=1)
    )
    return _observe(examination, case, _EMPTY, outcome, q, k, v)


def _compare_neighbours(examination, case, outcome, alone, live):
    """Rows with keys must not notice that other rows have none."""
    differs = ~_same_bits(outcome.output, alone.output).all(axis=-1)
    if outcome.lse is not None:
        differs |= ~_same_bits(outcome.lse, alone.lse)
    rows = sorted({int(row) for row in np.argwhere(differs & live)[:, -1]})
    if rows:
        row = rows[0]
        examination.fail(
            "rows that have keys change when other rows have none",
            evidence={
                "case": case,
                "rows without keys": _EMPTY,
                "rows that change": rows,
                "output beside them": outcome.output[0, 0, row, :4],
                "output without them": alone.output[0, 0, row, :4],
            },
            remedy="keep m, l and o of a row to itself: an empty row's maximum or NaN has reached its neighbours",
        )


def _same_bits(a, b):
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _causal(examination):
    if not examination.can("causal"):
        return None
    if examination.causal == "top-left":
        examination.skip("causal mask with tq > tk", "aligned top-left, where every row has a key")
        return None
    q, k, v = _inputs(examination, keys=5)
    outcome = examination.call(q, k, v, causal=True)
    return _observe(examination, "causal mask with tq > tk", [0, 1, 2], outcome, q, k, v)


def _causal_beside_mask(examination):
    if not (examination.can("causal") and examination.can("mask")):
        return None
    case = "boolean mask beside a causal one"
    q, k, v = _inputs(examination, queries=_WIDTH)
    mask = np.ones((_WIDTH, _WIDTH), bool)
    mask[:, :4] = False
    outcome = examination.call(q, k, v, mask=mask, causal=True)
    _judge_live_rows(examination, case, outcome, range(4, _WIDTH), q, k, v, mask=mask, causal=True)
    return _observe(examination, case, [0, 1, 2, 3], outcome, q, k, v)


def _no_keys(examination):
    case = "no keys at all (tk = 0)"
    q, k, v = _inputs(examination, queries=4, keys=0)
    try:
        outcome = examination.call_isolated(q, k, v)
    except CaseCrashed as error:
        examination.fail(
            f"the process dies when there are no keys (tk = 0): {error}",
            evidence={"call": f"q {q.shape}, k {k.shape}, v {v.shape}", "process": str(error)},
            remedy="return output 0 and lse −inf before anything is divided by the number of keys",
        )
        return None
    return _observe(examination, case, [0, 1, 2, 3], outcome, q, k, v)


def _long_rows(examination, kind):
    """Rows in which whole key blocks are masked, at the start, at the end, or everywhere."""
    if not examination.can("mask"):
        return None
    case = f"whole key blocks masked, {kind} mask"
    keys = _BLOCK + 256
    rng = examination.rng
    q = examination.round(rng.standard_normal((1, 2, 8, _WIDTH)))
    k, v = (examination.round(rng.standard_normal((1, 2, keys, _WIDTH))) for _ in range(2))
    mask = np.zeros((8, keys), bool)
    mask[0, _BLOCK:] = True
    mask[1, :256] = True
    mask[2, [0, -1]] = True
    mask[4] = True
    mask[5, -1] = True
    mask[6, _BLOCK:] = rng.random(256) < 0.5
    mask[6, -1] = True
    mask[7, 0] = True
    given = mask if kind == "boolean" else _additive(mask)
    outcome = examination.call(q, k, v, mask=given)
    _judge_live_rows(examination, case, outcome, [0, 1, 2, 4, 5, 6, 7], q, k, v, mask=given)
    output = outcome.output[:, :, [3]]
    kind_of_row = _constant_class(output)
    if kind_of_row == "GARBAGE":
        flat = examination.bound(np.zeros_like(q), k, v)
        mean = v.mean(axis=2, keepdims=True)
        kind_of_row = "MEAN_ALL" if (np.abs(output - mean) <= flat.output[:, :, [3]]).all() else "GARBAGE"
    return _observe(examination, case, [3], outcome, q, k, v, kind=kind_of_row)


def _judge_live_rows(examination, case, outcome, rows, q, k, v, **options):
    """Rows with keys: finite, and within the master bound of the exact answer."""
    rows = list(rows)
    golden, bound = examination.golden(q, k, v, **options), examination.bound(q, k, v, **options)
    output, exact = outcome.output[:, :, rows], golden.output[:, :, rows]
    error = np.abs(output - exact)
    # Written so that NaN, for which every comparison is false, is wrong.
    wrong = ~(error <= bound.output[:, :, rows])
    if not wrong.any():
        return
    batch, head, row, column = np.argwhere(wrong)[0]
    lost = ~np.isfinite(output).all(axis=(0, 1, 3))
    evidence = {
        "case": case,
        "rows": [rows[i] for i in np.flatnonzero(wrong.any(axis=(0, 1, 3)))],
        "output": output[batch, head, row, column],
        "exact": exact[batch, head, row, column],
        "bound": bound.output[:, :, rows][batch, head, row, column],
    }
    if lost.any():
        evidence["rows that are not finite"] = [rows[i] for i in np.flatnonzero(lost)]
        examination.fail(
            f"rows that have keys are not finite once others of their keys are masked ({case})",
            evidence=evidence,
            remedy=(
                "where the running maximum is still −inf after a block, shift by 0: −inf − (−inf) is NaN "
                "and stays in the carry"
            ),
        )
    else:
        examination.fail(
            f"rows that have keys are wrong once others of their keys are masked ({case})",
            evidence=evidence,
            remedy="give masked keys weight exactly 0, and rescale l and o by the same factor in every block",
        )


def _lowest_finite_fill(examination):
    if not examination.can("mask"):
        return
    q, k, v = _inputs(examination)
    _, emptied = _masks(examination)
    outcome = examination.call(q, k, v, mask=_additive(emptied, -examination.format.largest))
    observed = _observe(examination, "", _EMPTY, outcome, q, k, v)
    examination.fact(
        "rows filled with the lowest finite number",
        observed.kind,
        1.0,
        f"weights {observed.output} …, lse {observed.lse}; classified only: such rows have keys",
    )


def _judge_outputs(examination, seen):
    if not seen:
        if not examination.findings:
            examination.skip("rows without keys", "the kernel takes no mask, and none of its rows can be emptied")
        return
    examination.fact("empty rows", _common(each.kind for each in seen), 1.0, _cases(seen, "kind"))
    promised = examination.contract.empty_rows
    for kind in dict.fromkeys(each.kind for each in seen):
        if kind in _PROMISED[promised] or promised == "any":
            continue
        wrong = [each for each in seen if each.kind == kind]
        examination.fail(
            f"rows without keys give {kind}, where {_LEAST_SURPRISE[promised]} is promised",
            evidence={
                "cases": [each.case for each in wrong],
                "rows": wrong[0].rows,
                "output": wrong[0].output,
            },
            remedy=REMEDIES.get(kind, REMEDIES["GARBAGE"]),
        )


def _judge_lse(examination, seen):
    if not seen:
        return
    examination.fact("lse of empty rows", _common(each.lse_kind for each in seen), 1.0, _cases(seen, "lse_kind"))
    promised = examination.contract.lse_empty
    for kind in dict.fromkeys(each.lse_kind for each in seen):
        if promised in (kind, "any"):
            continue
        wrong = [each for each in seen if each.lse_kind == kind]
        value = wrong[0].lse
        examination.fail(
            f"the lse of rows without keys is {value:g}, not {promised.replace('-', '−')}",
            evidence={
                "cases": [each.case for each in wrong],
                "rows": wrong[0].rows,
                "lse": value,
                "promised": promised,
            },
            remedy=LSE_REMEDIES.get(kind, LSE_REMEDIES["finite"]),
        )


def _common(kinds):
    kinds = list(dict.fromkeys(kinds))
    return kinds[0] if len(kinds) == 1 else kinds


def _cases(seen, field):
    return "; ".join(f"{each.case}: {getattr(each, field)}" for each in seen)
