"""Questions to a function: each is a fault by name, with inputs from the smallest to the largest."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError, one_line
from softcarry.report.model import Finding, Severity, Skip, Verdict


class NotApplicableError(Exception):
    """The function does not take this kind of input, which is its right; the message says what."""


class Case(NamedTuple):
    """One input, and what is right about it.

    Attributes
    ----------
    given : str
        The input, as a reader would type it.
    run : callable
        ``run()`` calls the function and returns what it gave, as numbers.
    right : str
        The right value, or what is right about it.
    agrees : callable
        ``agrees(came)`` is True if that is within what rounding explains.
    shown : callable
        ``shown(came)`` writes what came.
    arguments : object
        The input itself.
    """

    given: str
    run: Callable[[], Any]
    right: str
    agrees: Callable[[Any], bool]
    shown: Callable[[Any], str]
    arguments: Any = None


class Failure(NamedTuple):
    """The first case that went wrong: ``came`` is None if the function raised, ``shown`` says how."""

    case: Case
    came: Any
    shown: str


@dataclass(frozen=True)
class Question:
    """One fault that a function may have.

    Parameters
    ----------
    name : str
        The name of the fault.
    message : str or callable
        What the function does, in one line; a callable makes it of the ``Failure``.
    remedy : str
        What to change.
    source : str
        Where the fault is known from.
    cases : iterable of Case
        From the smallest to the largest, so that the first that fails is the one to look at.
    severity : {"error", "warning"}
    after : tuple of str
        Faults of which this one would be a mere consequence: where one was found, this is not asked.
    """

    name: str
    message: str | Callable[[Failure], str]
    remedy: str
    source: str
    cases: Iterable[Case]
    severity: Severity = "error"
    after: tuple[str, ...] = ()


class Answers(NamedTuple):
    """What came of the questions: one verdict each, and what was found or left out."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    skipped: tuple[Skip, ...]


def guarded(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function that may do anything; its errors become ``KernelRaisedError``, its warnings nothing."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function(*arguments, **options)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # some bindings raise panics that are no Exception
        raise KernelRaisedError(one_line(error)) from error


def ask(questions: Sequence[Question], dtype: str) -> Answers:
    """Ask every question, in order; report the first failing case of each.

    Parameters
    ----------
    questions : sequence of Question
    dtype : str
        The dtype in which the function is called, for the report.

    Returns
    -------
    Answers
    """
    findings, verdicts, skipped = [], [], []
    found: set[str] = set()
    for question in questions:
        causes = [name for name in question.after if name in found]
        if causes:
            skipped.append(Skip(question.name, "the question", f"{causes[0]} would decide it", dtype))
            verdicts.append(Verdict(question.name, dtype, "skip"))
            continue
        failure, calls, reason = _first_failure(question)
        if failure is not None:
            found.add(question.name)
            findings.append(_finding(question, failure, dtype))
        elif reason:
            skipped.append(Skip(question.name, "an input", reason, dtype))
        outcome = "pass" if calls else "skip"
        if failure is not None:
            outcome = "fail" if question.severity == "error" else "warn"
        verdicts.append(Verdict(question.name, dtype, outcome, calls))
    return Answers(tuple(findings), tuple(verdicts), tuple(skipped))


def _first_failure(question):
    calls, reason = 0, ""
    for case in question.cases:
        try:
            came = case.run()
        except NotApplicableError as refusal:
            reason = reason or str(refusal)
            continue
        except KernelRaisedError as error:
            return Failure(case, None, f"raised {error}"), calls + 1, reason
        except MalformedResultError as error:
            return Failure(case, None, str(error)), calls + 1, reason
        calls += 1
        if not case.agrees(came):
            return Failure(case, came, case.shown(came)), calls, reason
    return None, calls, reason


def _finding(question, failure, dtype):
    message = question.message if isinstance(question.message, str) else question.message(failure)
    return Finding(
        check=question.name,
        severity=question.severity,
        message=message,
        evidence={
            "input": failure.case.given,
            "came": failure.shown,
            "right": failure.case.right,
            "source": question.source,
        },
        remedy=question.remedy,
        dtype=dtype,
    )
