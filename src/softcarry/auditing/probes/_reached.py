"""What a NaN or an infinity in Q, K or V must reach, and what it did reach."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from softcarry.auditing.examination import Examination

_MESSAGES = {
    "swallowed": "{what} does not reach the output{beside}",
    "lse": "{what} does not reach the lse{beside}",
    "changed": "{what} comes out as another non-finite number{beside}",
    "weight": "{what} makes scores of −inf that are not weight 0",
    "spread": "{what} reaches {names}",
    "infinity to NaN": "{what} comes out as NaN{beside}",
    "weight 0 to NaN": "{what} makes NaN of rows in which its score is −inf{beside}",
    "limit": "{what} gives the value of the key whose score is +inf{beside}",
}

_NO_RULE = ("infinity to NaN", "weight 0 to NaN", "limit")

_KEEP = (
    "repair empty rows by their l = 0, not by replacing NaN; take minima and maxima that keep NaN, and do "
    "not clamp scores or values"
)
_DOCUMENT = "say so in the documentation, or "
_REMEDIES = {
    "swallowed": _KEEP,
    "lse": _KEEP,
    "changed": "carry infinities through as they are: no clamp, no factor that may be 0 or negative",
    "weight": "a score of −inf has weight exactly 0: exp(−inf − m), with m from the other keys",
    "spread": "keep the maximum, the sums and any scale factor to one row and one column",
    "infinity to NaN": _DOCUMENT + "avoid split products of values: inf − inf and 0 · inf are NaN",
    "weight 0 to NaN": _DOCUMENT + "avoid split products of scores: inf − inf and 0 · inf are NaN",
    "limit": _DOCUMENT + "let inf − inf be NaN, as softmax elsewhere does",
}


class Case:
    """One call with some elements set, and what depends on them.

    Parameters
    ----------
    operand : str
        "Q", "K", "V", or "both infinities in V".
    inputs : tuple of ndarray
        q, k and v with the elements set.
    options : dict
        Of the call.
    changed : ndarray
        Which elements of the operand were set (bool).
    values : dict
        (batch, head) to the name of what was set there.
    places : tuple
        The keys of ``values``.
    """

    def __init__(self, operand, inputs, options: Mapping[str, Any], changed, values, places):
        self.operand, self.inputs, self.options = operand, inputs, options
        self.changed, self.values, self.places = changed, values, places

    @cached_property
    def dependent(self):
        """Which outputs (b, h, tq, dv) and which lse (b, h, tq), bool, depend on what was set: without masks.

        Masks only take rows away, and what they take away is POISON's matter.
        """
        q, _, v = self.inputs
        output = np.zeros((*q.shape[:3], v.shape[3]), bool)
        if self.operand == "Q":
            output |= self.changed.any(axis=-1)[..., None]
        elif self.operand == "K":
            output |= self.changed.any(axis=(-2, -1))[..., None, None]
        else:
            return output | self.changed.any(axis=-2)[..., None, :], np.zeros(q.shape[:3], bool)
        return output, output.any(axis=-1)

    def described(self):
        """Say what was set where."""
        return {
            self.values[(b, h)]: f"{self.operand[-1]}[{b}, {h}, {t}, {d}]" for b, h, t, d in self._first()
        }

    def _first(self):
        seen = {}
        for place in np.argwhere(self.changed):
            seen.setdefault(tuple(place[:2]), tuple(int(x) for x in place))
        return seen.values()

    def spread_to(self, differs):
        """Say what the elements that change have in common with those that were set."""
        heads = set(map(tuple, np.argwhere(differs)[:, :2].tolist()))
        if heads - set(self.places):
            return "other heads or batch entries"
        return "other rows" if self.operand == "Q" else "other columns"

    @property
    def beside(self):
        """Which mask was there, for a message."""
        if "mask" in self.options:
            return " beside a boolean mask"
        return " beside a causal mask" if "causal" in self.options else ""


def judge_dependent(examination: Examination, case: Case, outcome, seen: dict, *, accurate: bool) -> None:
    """Hold the class of every output that depends on what was set to that of float64.

    Parameters
    ----------
    examination : Examination
    case : Case
    outcome : Outcome
    seen : dict
        (kind, operand, how) to a list of evidence; what is found is added.
    accurate : bool
        Whether finite values are held to their bound.
    """
    with np.errstate(all="ignore"):
        golden = examination.golden(*case.inputs, **case.options)
        bound = examination.bound(*case.inputs, **case.options).output
    exact, output = golden.output, outcome.output
    for place in case.places:
        name = case.values[place]
        scores = golden.scores[place]
        attended = _attended(case, place, scores)
        kinds = _kinds(exact[place], output[place], bound[place])
        if case.operand in "QK" and name != "NaN":
            kinds = _split_limit(examination, case, place, scores, output[place], kinds)
        for kind, wrong in kinds.items():
            if kind == "weight" and not accurate:
                continue
            wrong = wrong & case.dependent[0][place] & attended[:, None]
            if wrong.any():
                row, column = (int(x) for x in np.argwhere(wrong)[0])
                seen.setdefault((kind, case.operand, name), []).append(
                    {
                        "set": case.described()[name] + case.beside,
                        "row, column": (row, column),
                        "output": output[place][row, column],
                        "float64": exact[place][row, column],
                        "elements": int(wrong.sum()),
                        "beside": case.beside,
                    }
                )
        if outcome.lse is not None and case.operand in "QK":
            lost = np.isnan(golden.lse)[place] & np.isfinite(outcome.lse[place]) & attended
            if lost.any() and not np.isfinite(output[place][lost]).any():
                row = int(np.argmax(lost))
                seen.setdefault(("lse", case.operand, name), []).append(
                    {"set": case.described()[name] + case.beside, "row": row, "lse": outcome.lse[place][row]}
                )


def _attended(case, place, scores):
    """Which rows (tq,) attend to the key that was set; for Q, those that have keys."""
    if case.operand == "Q":
        return np.any(~np.isneginf(scores), axis=-1)
    q, k, _ = case.inputs
    keys = np.flatnonzero(case.changed[place].any(axis=-1))
    allowed = np.ones((q.shape[2], k.shape[2]), bool)
    if "mask" in case.options:
        allowed = case.options["mask"][place]
    if "causal" in case.options:
        # A score of −inf is either hidden or live; the other keys tell nothing, the diagonal does.
        allowed = _causal_support(case, scores)
    return np.all(allowed[:, keys], axis=-1)


def _causal_support(case, scores):
    queries, keys = scores.shape
    first = int(np.flatnonzero(~np.isneginf(scores[0]))[-1]) if (~np.isneginf(scores[0])).any() else -1
    return np.arange(keys)[None, :] <= np.arange(queries)[:, None] + first


def _kinds(exact, output, bound):
    """Which elements (tq, dv) went wrong in which way."""
    finite, number = np.isfinite(exact), np.isfinite(output)
    with np.errstate(invalid="ignore"):
        return {
            "swallowed": ~finite & number,
            "changed": (np.isinf(exact) & np.isinf(output) & (exact != output))
            | (np.isnan(exact) & np.isinf(output)),
            "infinity to NaN": np.isinf(exact) & np.isnan(output),
            "weight 0 to NaN": finite & ~number,
            "weight": finite & number & ~(np.abs(output - exact) <= bound),
        }


def _split_limit(examination, case, place, scores, output, kinds):
    """Take the mean of the values whose score is +inf out of what was swallowed: it is the limit."""
    b, h = place
    reached = np.isposinf(scores)
    q, k, v = (x[b : b + 1, h : h + 1] for x in case.inputs)
    zero, plain = np.zeros_like(q), np.zeros_like(k)
    limit = examination.golden(zero, plain, v, mask=reached).output[0, 0]
    bound = examination.bound(zero, plain, v, mask=reached).output[0, 0]
    near = ~np.any(np.abs(output - limit) > bound, axis=-1, keepdims=True)
    right = kinds["swallowed"] & near
    return {**kinds, "limit": right, "swallowed": kinds["swallowed"] & ~right}


def report(examination: Examination, seen: dict) -> None:
    """Turn what was seen into findings, one for each kind of fault and operand.

    Parameters
    ----------
    examination : Examination
    seen : dict
        As ``judge_dependent`` fills it.
    """
    merged: dict[tuple[str, str], dict[str, list]] = {}
    for (kind, operand, how), cases in seen.items():
        # Where it spread to is the same fault for one infinity and for two.
        what = operand[-1] if kind == "spread" else operand
        merged.setdefault((kind, what), {}).setdefault(how, []).extend(cases)
    for (kind, operand), cases in merged.items():
        every = [case for listed in cases.values() for case in listed]
        everywhere = {case.get("beside", "") for case in every}
        beside = everywhere.pop() if len(everywhere) == 1 else ""
        names = ", ".join(cases)
        what = f"{names} in {operand}" if operand in ("Q", "K", "V") else operand
        if kind == "spread":
            what = f"a NaN or infinity in {operand[-1]}"
        message = _MESSAGES[kind].format(what=what, beside=beside, names=names)
        record = examination.warn if kind in _NO_RULE else examination.fail
        evidence = {name: value for name, value in every[0].items() if name != "beside"}
        record(message, evidence=evidence, remedy=_REMEDIES[kind])
