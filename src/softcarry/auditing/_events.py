"""What an audit says while it runs, one event after another.

Events are plain data that pickle, so that they are the same whether the audit runs here or in a process of
its own, and so that what came before a crash is kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from threadpoolctl import threadpool_limits

from softcarry.auditing._calling import prepare
from softcarry.auditing.contract import Contract
from softcarry.auditing.environment import describe_environment
from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes import load_probe
from softcarry.auditing.subject import Subject
from softcarry.errors import SubjectError
from softcarry.report.model import Curve, Fact, Finding, Skip, Verdict

Plan = Sequence[tuple[str, str]]
"""Pairs (dtype, check), those of a dtype one after the other."""


@dataclass(frozen=True)
class Introduced:
    """Who is audited, and where: what a report's ``subject`` and ``environment`` say of all dtypes.

    It comes first, and again after the first call, which may have imported a library.
    """

    subject: dict[str, Any]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Started:
    """A check begins in a dtype; with no check, the plain call that shows how the kernel is called."""

    dtype: str
    check: str = ""


@dataclass(frozen=True)
class Prepared:
    """A plain call in a dtype has worked: what ``Calling`` found out by it."""

    dtype: str
    library: str
    output_dtype: str
    returns_lse: bool
    causal: str
    writes_to: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The plain call in a dtype gave no attention output."""

    dtype: str
    reason: str


@dataclass(frozen=True)
class Examined:
    """A check has ended in a dtype."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skip, ...] = ()
    curves: tuple[Curve, ...] = ()
    facts: dict[str, Fact] | None = None


Event = Introduced | Started | Prepared | Refused | Examined


def run(
    subject: Subject, plan: Plan, *, contract: Contract, seed: int = 0, quick: bool = False
) -> Iterator[Event]:
    """Examine a subject by every check of a plan, and say what happens.

    Parameters
    ----------
    subject : Subject
    plan : sequence of (str, str)
        dtype and check.
    contract : Contract
    seed : int
    quick : bool

    Yields
    ------
    Event
    """
    dtype, calling, called = None, None, False
    yield _introduce(subject)
    # The matrices are small, and BLAS threads that wait for one another on a busy machine by spinning made an
    # audit take three times as long as one thread does. torch's own threads are not touched.
    with threadpool_limits(1, user_api="blas"):
        for wanted, check in plan:
            if wanted != dtype:
                dtype = wanted
                yield Started(wanted)
                try:
                    calling = prepare(subject, wanted)
                except SubjectError as error:
                    calling = None
                    yield Refused(wanted, str(error))
                    continue
                yield _prepared(calling)
                if not called:
                    called = True
                    yield _introduce(subject)
            if calling is None:
                continue
            yield Started(wanted, check)
            examination = Examination(
                subject,
                wanted,
                check=check,
                contract=contract,
                seed=seed,
                calling=calling,
                quick=quick,
                first_dtype=wanted == plan[0][0],
            )
            yield _examine(examination)


# What a dtype's own rounding, range and code path decide: asked in every dtype, in a quick audit too.
_OF_EVERY_DTYPE = ("EMPTY", "MASKREP", "TAIL", "RANGE", "GROWTH", "LSE", "REF", "NONFIN")


def _examine(examination):
    if examination.quick and not examination.first_dtype and examination.check not in _OF_EVERY_DTYPE:
        examination.skip("all of it", "asked in the first dtype only in a quick audit")
        return _examined(examination)
    with suppress(CaseRefused):  # the examination has noted it
        load_probe(examination.check)(examination)
    return _examined(examination)


def _examined(examination):
    return Examined(
        examination.verdict,
        tuple(examination.findings),
        tuple(examination.skipped),
        tuple(examination.curves),
        examination.facts,
    )


def _prepared(calling):
    return Prepared(
        calling.dtype,
        calling.library,
        calling.output_dtype,
        calling.returns_lse,
        calling.causal,
        calling.writes_to,
    )


def _introduce(subject):
    described = {
        "name": subject.name,
        "layout": subject.layout,
        "options": dict(subject.keywords),
        "lse_unit": subject.lse,
        "control": subject.control,
    }
    if subject.source is not None:
        described["source"] = subject.source
    return Introduced(described, describe_environment())
