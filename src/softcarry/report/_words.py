"""Values in words: what every report says in the same way."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softcarry.report.model import Report

_NOT_IN_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# What a terminal takes for an order, and what XML and HTML have no place for: control characters, halves of
# surrogate pairs, and the two that are no characters.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def as_written(reports: Sequence["Report"]) -> list["Report"]:
    """Return the reports as they are after a way through JSON, so that both look the same in a page.

    Parameters
    ----------
    reports : sequence of Report

    Returns
    -------
    list of Report
        Evidence and facts hold plain numbers, words, lists and dicts; NaN and infinities are numbers. What
        can't be printed is the replacement character, U+FFFD.
    """
    return [_revived(report) for report in reports]


def _revived(report):
    content = _printable(json.loads(report.to_json(indent=None)))
    report = type(report).from_json(json.dumps(content))
    return replace(
        report,
        findings=tuple(replace(each, evidence=_numbers(each.evidence)) for each in report.findings),
        profile={
            dtype: {name: replace(fact, value=_numbers(fact.value)) for name, fact in facts.items()}
            for dtype, facts in report.profile.items()
        },
    )


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_printable(name): _printable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return _UNPRINTABLE.sub("\ufffd", value) if isinstance(value, str) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return _NOT_IN_JSON.get(value, value) if isinstance(value, str) else value


def by_dtype(entries: Iterable[Any], key: Callable[[Any], Any]) -> list[tuple[list[Any], list[str]]]:
    """Group entries that differ only in dtype.

    Parameters
    ----------
    entries : iterable
        Findings, skips or verdicts: they have a ``dtype``.
    key : callable
        What must be equal.

    Returns
    -------
    list of (list, list of str)
        The entries of each group and its dtypes, in order of first appearance.
    """
    groups: dict[Any, list[Any]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return [(group, list(dict.fromkeys(each.dtype for each in group))) for group in groups.values()]


def shown(value: Any, most: int = 8) -> str:
    """Write a value of evidence or of a profile for a reader.

    Parameters
    ----------
    value : object
        What JSON holds.
    most : int
        Of a longer list, so many items are written.

    Returns
    -------
    str
        Empty if nothing is known.

    Examples
    --------
    >>> shown({"format": "bfloat16", "key_block": 16.0}), shown([1, 2]), shown(None)
    ('format bfloat16, key_block 16', '1, 2', '')
    """
    if isinstance(value, dict):
        return _entries(value)
    if isinstance(value, (list, tuple)):
        if any(isinstance(each, dict) for each in value):
            most = min(most, 2)
        separator = "; " if any(isinstance(each, (str, dict, list, tuple)) for each in value) else ", "
        words = [shown(each) or "none" for each in value[:most]]
        return separator.join(words) + (f", … ({len(value)})" if len(value) > most else "")
    if value is None:  # nothing was found out, and nothing is said
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}".replace("-inf", "−inf")
    return str(value)


def _entries(value: dict[Any, Any], most: int = 3) -> str:
    """Write the entries that are known: of many numbers the largest three, of others the first three.

    A mapping inside a mapping is for readers of the JSON.
    """
    known = [(name, each) for name, each in value.items() if not isinstance(each, dict) and shown(each)]
    chosen = known
    if len(known) > most and all(type(each) in (int, float) for _, each in known):
        chosen = sorted(known, key=lambda entry: -math.inf if math.isnan(entry[1]) else -entry[1])
    left_out = ", …" if len(known) > most else ""
    return ", ".join(f"{name} {shown(each)}" for name, each in chosen[:most]) + left_out


def cut(text: str, limit: int = 240) -> str:
    """Cut what would fill the screen; the JSON has all of it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def named(name: Any) -> str:
    """Write the name of a piece of evidence or of a fact as words."""
    return str(name).replace("_", " ")


def ratio(error: float) -> str:
    """Write a relative error in six characters: 0.39%, 4.1e-7."""
    if not math.isfinite(error) or error == 0.0:
        return f"{error:.0f}"
    if error >= 1e-4:
        return f"{100.0 * error:.3g}%" if error < 10.0 else f"{error:.1e}"
    mantissa, _, exponent = f"{error:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def counted(report: "Report") -> str:
    """Say how many findings a report has: "2 errors, 1 warning", or "nothing found".

    A control, which is wrong on purpose, is said to be one.
    """
    counts = {kind: sum(f.severity == kind for f in report.findings) for kind in ("error", "warning")}
    words = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items() if count]
    said = ", ".join(words) or "nothing found"
    return said + (" (a control, not counted)" if report.subject.get("control") else "")
