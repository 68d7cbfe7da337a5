"""What was seen of rows without keys, held against the contract."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from softcarry.auditing.examination import Examination
from softcarry.auditing.probes._classes import LSE_REMEDIES, REMEDIES

_PROMISED = {
    "zero": ("ZERO",),
    "nan": ("NAN",),
    "mean": ("MEAN_ALL", "MEAN_SUBSET"),
}
_IN_WORDS = {"zero": "0", "nan": "NaN", "mean": "the mean of V"}
_KINDS_IN_WORDS = {
    "ZERO": "0",
    "NAN": "NaN",
    "MEAN_ALL": "the mean of V over all keys",
    "MEAN_SUBSET": "the mean of V over some keys",
    "UNMASKED": "attention without the mask",
    "GARBAGE": "something else than 0, NaN or a mean of V",
    "mixed": "different things in different rows",
}


class Observation(NamedTuple):
    """What one case showed of its rows without keys.

    Attributes
    ----------
    case : str
        How the rows came to have none.
    rows : list of int
        Which rows.
    kind : str
        The class of their output.
    output : list of float
        The first one.
    lse_kind : str or None
        The class of their lse; None if the kernel returns none.
    lse : float or None
        That of the first one.
    """

    case: str
    rows: list[int]
    kind: str
    output: list[float]
    lse_kind: str | None
    lse: float | None


def judge_outputs(examination: Examination, seen: Sequence[Observation]) -> None:
    """Record the class of the outputs, and a finding for each class that the contract does not promise.

    Parameters
    ----------
    examination : Examination
    seen : sequence of Observation
    """
    if not seen:
        return
    examination.fact("empty rows", _common(each.kind for each in seen), 1.0, _listed(seen, "kind"))
    table = [{"case": each.case, "output": each.kind, "lse": each.lse_kind} for each in seen]
    examination.fact("empty row table", table, 1.0, "the classes of the output and of the lse, case by case")
    promised = examination.contract.empty_rows
    if promised == "any":
        return
    for kind in dict.fromkeys(each.kind for each in seen):
        if kind in _PROMISED[promised]:
            continue
        wrong = [each for each in seen if each.kind == kind]
        examination.fail(
            f"rows without keys give {_KINDS_IN_WORDS[kind]}, where {_IN_WORDS[promised]} is promised",
            evidence=_evidence(wrong)
            | {"class": kind, "output": _output(wrong[0]), "promised": _IN_WORDS[promised]},
            remedy=REMEDIES.get(kind, REMEDIES["GARBAGE"]),
        )


def judge_lse(examination: Examination, seen: Sequence[Observation]) -> None:
    """Record the class of the lse, and a finding for each class that the contract does not promise.

    Parameters
    ----------
    examination : Examination
    seen : sequence of Observation
    """
    seen = [each for each in seen if each.lse_kind is not None]
    if not seen:
        return
    examination.fact(
        "lse of empty rows", _common(each.lse_kind for each in seen), 1.0, _listed(seen, "lse_kind")
    )
    promised = examination.contract.lse_empty
    for kind in dict.fromkeys(each.lse_kind for each in seen):
        if promised in (kind, "any"):
            continue
        wrong = [each for each in seen if each.lse_kind == kind]
        value = wrong[0].lse
        said = "not the same in every row" if kind == "mixed" else f"{value:g}"
        examination.fail(
            f"the lse of rows without keys is {said}, not {promised.replace('-', '−')}",
            evidence=_evidence(wrong) | {"lse": value, "promised": promised},
            remedy=LSE_REMEDIES.get(kind or "", LSE_REMEDIES["finite"]),
        )


def _output(wrong: Observation) -> list[float] | str:
    # Numbers of no class may be memory that nobody wrote, other ones in every run.
    return "numbers that are no mean of V" if wrong.kind == "GARBAGE" else wrong.output


def _evidence(wrong: list[Observation]) -> dict[str, Any]:
    return {"cases": [each.case for each in wrong], "rows": wrong[0].rows}


def _common(kinds: Iterable[Any]) -> Any:
    different = list(dict.fromkeys(kinds))
    return different[0] if len(different) == 1 else different


def _listed(seen: Sequence[Observation], field: str) -> str:
    return "; ".join(f"{each.case}: {getattr(each, field)}" for each in seen)
