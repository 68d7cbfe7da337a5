"""POISON: does anything that a row must not see reach its output or its lse?

Question
    A masked key has weight 0, and 0 · NaN is NaN. Recycled pages, padding and other requests hold anything.
Input
    NaN, both infinities, the largest finite number (at most 1e30) with both signs, and the smallest
    subnormal number, put into K and, apart from that, into V: at keys that a boolean mask hides (single ones,
    and more than a key block at the start and at the end), that a causal mask hides, that lie beyond
    kv_lengths, and in another head of another batch entry. All at once; one kind after the other where that
    changes anything. 1100 keys and 8 queries, 600 and 80 with the causal mask.
Conclusion
    What gets through from where, K and V apart. What gets through an additive mask of −inf is a fact and no
    finding: a NaN score plus −inf is NaN.
Tolerance
    None: output and lse of the rows that do not attend to those keys are bit for bit those of the same call
    without the poison. For a kernel that does not repeat its bits, they are finite where those are.
Source
    The output is independent of masked values (pytorch#101967); masked values are selected away, never
    multiplied by zero.
Public faults of this kind
    vllm#641 (NaN beyond the context), vllm#43961 (0 · x in recycled pages), flash-attention#1745 (NaN in
    cache padding), cudnn-frontend#624 (unwritten rows of V), onnxruntime#20521, pytorch#101967; torch's CPU
    paths let NaN through a mask.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes._bits import differing_rows, repeats
from softcarry.auditing.probes._hiding import behind_additive_mask, behind_masks, in_other_heads

_REMEDIES = {
    "K": "select masked scores away before the maximum is taken: NaN − inf and inf − inf are NaN",
    "V": "select values of weight 0 away, or write zeros over them, before P·V: 0 · NaN and 0 · inf are NaN",
    "finite": "give masked keys the score −inf, so that their weight is exactly 0 and not merely small",
    "hidden": "apply that mask, aligned as declared; see CAUSAL for its geometry and MASKREP for its reading",
    "head": "index K and V by batch entry and head; nothing of a row may be shared over them",
}


class Leak(NamedTuple):
    """What got through in one call: the poison, and the first row that noticed.

    Attributes
    ----------
    poison : list of str
        The values, in words.
    evidence : dict
        The row, and what it held without and with the poison.
    """

    poison: list[str]
    evidence: dict


def probe(examination: Examination) -> None:
    """Put poison where it must not be seen.

    Parameters
    ----------
    examination : Examination
        Fact ``poison through an additive mask``, and at most one error for each of NaN or infinities and
        finite numbers, in K and V, behind masks and in other heads.
    """
    if examination.contract.masked_values == "any":
        examination.skip("values behind masks and lengths", "the contract's masked_values is 'any'")
        return
    found: dict[tuple[str, bool], dict[str, Leak]] = {}
    for hiding in behind_masks(examination):
        for operand, finite, leak in _leaks(examination, hiding):
            found.setdefault((operand, finite), {}).setdefault(hiding.name, leak)
    for (operand, finite), leaks in found.items():
        _report_masked(examination, operand, finite, leaks)
    for operand, leaks in _by_operand(_leaks(examination, in_other_heads(examination))).items():
        names = [name for leak in leaks for name in leak.poison]
        examination.fail(
            f"{_listed(names)} in {operand} of one head reach other heads or batch entries",
            evidence=leaks[0].evidence,
            remedy=_REMEDIES["head"],
        )
    if examination.can("mask") and not examination.quick:
        _classify_additive(examination)


def poisons(examination: Examination) -> dict[str, list[float]]:
    """Return the values that are put where no row may see them, by name.

    Examples
    --------
    >>> from softcarry.auditing import Subject
    >>> float16 = Examination(Subject(lambda q, k, v: v, arrays="numpy"), "float16", check="POISON")
    >>> poisons(float16)["large numbers"]
    [65504.0, -65504.0]
    """
    fmt = examination.format
    large = float(examination.round(min(1e30, fmt.largest)))
    return {
        "NaN": [np.nan],
        "infinities": [np.inf, -np.inf],
        "large numbers": [large, -large],
        "subnormal numbers": [fmt.smallest_subnormal],
    }


def _leaks(examination, hiding, judged=True):
    """List (operand, whether it is finite, the leak) of what got through, at most one of each."""
    try:
        clean = examination.call(*hiding.inputs, **hiding.options)
        if judged and _take_part(examination, hiding, clean):
            return []
        leaks = [
            (operand, finite, leak)
            for operand in ("K", "V")
            for finite, leak in _leaks_of(examination, hiding, operand, clean)
        ]
        if not leaks or repeats(examination, clean, *hiding.inputs, **hiding.options):
            return leaks
        examination.skip(f"bits behind {hiding.name}", "the kernel does not give the same bits twice")
        return [
            (operand, finite, leak)
            for operand in ("K", "V")
            for finite, leak in _leaks_of(examination, hiding, operand, None)
        ]
    except CaseRefused:
        return []


def _take_part(examination, hiding, clean):
    """Whether ordinary numbers at the hidden keys change the output: then those are not hidden at all."""
    tolerance = 2.0 * examination.bound(*hiding.inputs, **hiding.options).output
    # 64 shows at a weight of 1/600, too; as a key it might overflow.
    for operand, value in (("V", 64.0), ("K", 1.0)):
        given = _with_values(hiding, operand, [value])
        changes = np.abs(examination.call(*given, **hiding.options).output - clean.output)
        seen = (changes > tolerance).any(axis=-1) & hiding.rows
        if seen.any() and repeats(examination, clean, *hiding.inputs, **hiding.options):
            at = tuple(int(x) for x in np.argwhere(seen)[0])
            masked = bool(hiding.options)
            examination.fail(
                f"keys behind {hiding.name} take part in the output"
                if masked
                else f"ordinary numbers in {operand} of one head change {hiding.name}",
                evidence={
                    "changed": f"{operand} is {value:g} at the hidden keys",
                    "batch, head, row": at,
                    "largest change": changes[at].max(),
                    "rows that change": f"{int(seen.sum())} of {int(hiding.rows.sum())}",
                },
                remedy=_REMEDIES["hidden" if masked else "head"],
            )
            return True
    return False


def _leaks_of(examination, hiding, operand, clean):
    """List (whether it is finite, the leak): all values at once, and one kind after another if that shows."""
    values = poisons(examination)
    together = None
    try:
        together = _changed(examination, hiding, operand, clean, list(chain(*values.values())))
        if together is None:
            return []
    except CaseRefused:  # one of them, perhaps: a score that overflows
        pass
    alone = {}
    for name, kind in values.items():
        try:
            evidence = _changed(examination, hiding, operand, clean, kind)
        except CaseRefused:
            continue
        if evidence is not None:
            alone[name] = evidence
    leaks = []
    for finite in (False, True):
        names = [name for name in alone if np.isfinite(values[name][0]) == finite]
        if names:
            leaks.append((finite, Leak(names, alone[names[0]])))
    if not leaks and together is not None:
        leaks.append((False, Leak(["NaN, infinities and numbers together"], together)))
    return leaks


def _by_operand(leaks):
    found: dict[str, list[Leak]] = {}
    for operand, _, leak in leaks:
        found.setdefault(operand, []).append(leak)
    return found


def _with_values(hiding, operand, values):
    """Return q, k and v with values at the hidden keys of K or V, one after the other."""
    q, k, v = hiding.inputs
    poisoned = (k if operand == "K" else v).copy()
    for place in np.argwhere(hiding.keys.any(axis=-1)):
        at = tuple(place)
        keys = np.flatnonzero(hiding.keys[at])
        poisoned[at][keys] = np.resize(values, keys.size)[:, None]
    return (q, poisoned, v) if operand == "K" else (q, k, poisoned)


def _changed(examination, hiding, operand, clean, values):
    """Call with values at the hidden keys, one after the other; return evidence if a row notices, or None.

    Without the outcome ``clean`` of the call without them, a row notices by what is not finite.
    """
    outcome = examination.call(*_with_values(hiding, operand, values), **hiding.options)
    lost = ~np.isfinite(outcome.output).all(axis=-1)
    differs = hiding.rows & (lost if clean is None else differing_rows(outcome, clean))
    if not differs.any():
        return None
    batch, head, row = first = tuple(int(x) for x in np.argwhere(differs)[0])
    evidence = {
        "where": hiding.name,
        "rows that change": f"{int(differs.sum())} of {int(hiding.rows.sum())}",
        "first row": {"batch": batch, "head": head, "row": row},
        "poisoned keys of its head": np.flatnonzero(hiding.keys[batch, head])[:8],
        "output with poison": outcome.output[first][:4],
    }
    if clean is not None:
        evidence["output without poison"] = clean.output[first][:4]
    if outcome.lse is not None:
        evidence["lse with poison"] = outcome.lse[first]
        evidence |= {} if clean is None else {"lse without poison": clean.lse[first]}
    return evidence


def _report_masked(examination, operand, finite, leaks):
    first = next(iter(leaks.values()))
    names = list(dict.fromkeys(name for leak in leaks.values() for name in leak.poison))
    examination.fail(
        f"{_listed(names)} in {operand} behind {_listed(list(leaks))} "
        + ("change the output" if finite else "reach the output"),
        evidence=first.evidence | {"what gets through": {name: leak.poison for name, leak in leaks.items()}},
        remedy=_REMEDIES["finite" if finite else operand],
    )


def _listed(names):
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _classify_additive(examination):
    hiding = behind_additive_mask(examination)
    through = {"K": [], "V": []}
    for operand, _, leak in _leaks(examination, hiding, judged=False):
        through[operand] += leak.poison
    examination.fact(
        "poison through an additive mask",
        through,
        1.0,
        "what changed rows when it was put at keys to whose scores −inf was added; no finding, as NaN − inf "
        "is NaN",
    )
