"""What an audit found: findings, facts, curves, what was skipped, and where it ran."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from softcarry.errors import OptionError

SCHEMA = "softcarry.report/1"

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """The answer to a question that went against the kernel.

    Attributes
    ----------
    check : str
        The check that found it, such as "EMPTY".
    severity : {"error", "warning"}
        An error breaks the contract or an error bound; a warning is within both and worth knowing.
    message : str
        One line: what the kernel does.
    evidence : dict
        The numbers and the input that show it.
    remedy : str
        What to change.
    dtype : str
        The dtype of q, k and v in which it was seen.
    """

    check: str
    severity: Severity
    message: str
    evidence: dict[str, Any]
    remedy: str
    dtype: str


@dataclass(frozen=True)
class Fact:
    """Something inferred about a kernel.

    Attributes
    ----------
    value : object
        None where it can't be told.
    confidence : float
        From 0, a guess, to 1, seen directly.
    evidence : str
        What was observed.
    """

    value: Any
    confidence: float
    evidence: str


@dataclass(frozen=True)
class Curve:
    """A measured error against n, beside the ceiling that was predicted for it.

    Attributes
    ----------
    title : str
        What was measured.
    n : tuple of int
        The abscissae, usually numbers of keys.
    measured, predicted : tuple of float
        One of each for every n; ``predicted`` may be None.
    x_label, y_label : str
        Axis labels.
    check, dtype : str
        Filled in by the examination that records the curve.
    """

    title: str
    n: tuple[int, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...] | None = None
    x_label: str = "keys n"
    y_label: str = "error"
    check: str = ""
    dtype: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", tuple(int(x) for x in self.n))
        object.__setattr__(self, "measured", tuple(float(x) for x in self.measured))
        if self.predicted is not None:
            object.__setattr__(self, "predicted", tuple(float(x) for x in self.predicted))
        lengths = {len(self.n), len(self.measured), len(self.n if self.predicted is None else self.predicted)}
        if len(lengths) > 1:
            msg = f"a curve has as many measured and predicted values as n; got {sorted(lengths)} of them"
            raise OptionError(msg)


@dataclass(frozen=True)
class Skip:
    """Something that was not examined, and why."""

    check: str
    what: str
    reason: str
    dtype: str = ""


@dataclass(frozen=True)
class Verdict:
    """How one check in one dtype ended.

    Attributes
    ----------
    check, dtype : str
        Which.
    outcome : {"pass", "fail", "warn", "skip"}
        The worst of its findings; "skip" if nothing of it could be examined.
    calls : int
        How many times the kernel was called.
    """

    check: str
    dtype: str
    outcome: str
    calls: int = 0


@dataclass(frozen=True)
class Report:
    """What one audit of one subject found.

    Attributes
    ----------
    subject : dict
        Its name, the arrays and layout it was called with, its dtypes, options, whether it returns an lse,
        and whether it is a control.
    findings : tuple of Finding
        What is wrong, in the order of the checks.
    verdicts : tuple of Verdict
        One a check and dtype.
    profile : dict
        For each dtype, the facts by name.
    curves : tuple of Curve
        Errors against n.
    skipped : tuple of Skip
        What was not examined.
    environment : dict
        Versions, machine, threads, seed.

    Examples
    --------
    >>> report = Report(subject={"name": "mine"})
    >>> report.ok, Report.from_json(report.to_json()) == report
    (True, True)
    """

    subject: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    profile: dict[str, dict[str, Fact]] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    skipped: tuple[Skip, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if there is no finding of severity "error"."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Write the report as JSON, by the schema "softcarry.report/1" (docs/report-schema.json).

        Infinities and NaN, which JSON lacks, become the strings "Infinity", "-Infinity" and "NaN". Two audits
        with the same seed on the same machine differ in ``environment.time`` only.

        Parameters
        ----------
        indent : int, optional
            Spaces a level; None for one line.

        Returns
        -------
        str
        """
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_html(self) -> str:
        """Write the report as one self-contained HTML page, as ``softcarry.report.html.render`` does.

        Returns
        -------
        str
        """
        from softcarry.report.html import render

        return render([self])

    def to_dict(self) -> dict[str, Any]:
        """Return what ``to_json`` writes, as plain Python objects that JSON can hold."""
        # The keys are written out, because they are the schema.
        content = {
            "schema": SCHEMA,
            "ok": self.ok,
            "environment": self.environment,
            "subject": self.subject,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "findings": [asdict(finding) for finding in self.findings],
            "profile": {
                dtype: {name: asdict(fact) for name, fact in facts.items()}
                for dtype, facts in self.profile.items()
            },
            "curves": [asdict(curve) for curve in self.curves],
            "skipped": [asdict(skip) for skip in self.skipped],
        }
        return _plain(content)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Read a report back.

        Parameters
        ----------
        text : str
            What ``to_json`` wrote.

        Returns
        -------
        Report

        Raises
        ------
        OptionError
            If the text is not JSON of the schema "softcarry.report/1".
        """
        return cls._from_dict(_parsed(text))

    @classmethod
    def all_from_json(cls, text: str) -> "list[Report]":
        """Read what ``softcarry audit --json`` wrote, or a single report.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Report

        Raises
        ------
        OptionError
            If the text is neither.

        Examples
        --------
        >>> [report.ok for report in Report.all_from_json(Report(subject={"name": "mine"}).to_json())]
        [True]
        """
        content = _parsed(text)
        several = isinstance(content, dict) and content.get("schema") == "softcarry.audit/1"
        return [cls._from_dict(each) for each in (content["reports"] if several else [content])]

    @classmethod
    def _from_dict(cls, content: Any) -> "Report":
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            msg = f"expected a report of schema {SCHEMA!r}; got {schema!r}"
            raise OptionError(msg)
        return cls(
            subject=content["subject"],
            findings=tuple(_build(Finding, entry) for entry in content["findings"]),
            verdicts=tuple(_build(Verdict, entry) for entry in content["verdicts"]),
            profile={
                dtype: {name: _build(Fact, entry) for name, entry in facts.items()}
                for dtype, facts in content["profile"].items()
            },
            curves=tuple(_build(Curve, entry) for entry in content["curves"]),
            skipped=tuple(_build(Skip, entry) for entry in content["skipped"]),
            environment=content["environment"],
        )


def _parsed(text):
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"expected the JSON of a softcarry report; got text that does not parse: {error}"
        raise OptionError(msg) from None


def _build(kind, entry):
    return kind(**{name: entry[name] for name in (f.name for f in fields(kind)) if name in entry})


def _plain(value: Any) -> Any:
    """Turn NumPy scalars, arrays, tuples and non-finite numbers into what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(entry) for entry in value]
    if isinstance(value, (str, bool)) or value is None:
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    return str(value)
