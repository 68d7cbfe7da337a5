"""``softcarry audit``: the checks, on known subjects and on your own kernel."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from softcarry.cli._console import output, progress, remarks, report_error, write_json
from softcarry.cli._options import AsJson, Whole
from softcarry.cli._status import FINDINGS, NOTHING_FOUND
from softcarry.errors import MissingDependencyError, SoftcarryError, SubjectError

if TYPE_CHECKING:
    from softcarry.auditing import Report, Subject

# One name an option: what follows it may be a subject.
Names = Annotated[list[str] | None, Parameter(consume_multiple=False)]


def audit(
    *subjects: str,
    only: Names = None,
    skip: Names = None,
    dtype: Names = None,
    seed: Annotated[Whole, Parameter(help="Seed of the random inputs.")] = 0,
    fail_on: Literal["error", "warning"] = "error",
    json: AsJson = False,
) -> int:
    """Audit attention kernels, seen only through calls.

    Without SUBJECTS, all known ones that are installed are audited, with a
    control that is wrong on purpose and shows what failure looks like. The
    control does not count in the exit status.

    Parameters
    ----------
    subjects
        A name from "softcarry subjects", or module:function for a kernel of
        your own: kernel(q, k, v, *, mask=None, causal=False, scale=None)
        returning the output or (output, lse), all (batch, heads, tokens,
        dim). Modules are looked for in the current folder, too.
    only
        The checks to run: EMPTY, LSE, RANGE, GROWTH, REF, TAIL. Several may
        be separated by commas.
    skip
        The checks to leave out.
    dtype
        The dtypes to audit, instead of the subject's own: float64, float32,
        bfloat16, float16.
    fail_on
        The least severe finding that makes the exit status 1.
    json
        Write the reports as JSON. Keys: schema, reports; a report is of the
        schema softcarry.report/1, docs/report-schema.json.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.auditing._audit import choose_checks, choose_dtypes

    checks = choose_checks(_joined(only), _joined(skip))
    dtypes = None if dtype is None else choose_dtypes(",".join(dtype))
    with _stdout_kept_for_the_report():
        chosen = _named(subjects) if subjects else _installed(dtypes)
        reports, errors = _audit_all(chosen, checks, dtypes, seed)
    if reports and json:
        write_json({"schema": "softcarry.audit/1", "reports": [report.to_dict() for report in reports]})
    elif reports:
        from softcarry.report.text import render

        output().print(render(reports))
    if errors:
        for error in errors[1:]:
            report_error(str(error))
        raise errors[0]
    return _status(reports, fail_on)


def _joined(names: Sequence[str] | None) -> str | None:
    return None if names is None else ",".join(names)


@contextmanager
def _stdout_kept_for_the_report() -> Iterator[None]:
    """Send to stderr what kernels print, be it from Python or from compiled code."""
    import ctypes

    with redirect_stdout(sys.stderr):
        try:
            kept = os.dup(1)
            os.dup2(2, 1)
        except OSError:  # closed: nothing compiled can write there
            yield
            return
        try:
            yield
        finally:
            # C keeps what it prints to a pipe until later, when stdout is the report's again.
            with suppress(Exception):
                ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)


def _named(names: Sequence[str]) -> "list[Subject]":
    from softcarry.auditing._locate import resolve

    if any(":" in name for name in names) and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return [resolve(name) for name in names]


def _installed(dtypes: tuple[str, ...] | None) -> "list[Subject]":
    """Load the known subjects that can run here and have one of the dtypes; say which can't."""
    from softcarry.auditing.subjects import KNOWN, load_subject

    found = []
    for entry in KNOWN.values():
        if dtypes is not None and not set(dtypes) & set(entry.dtypes):
            continue
        if not entry.available:
            remarks().print(f"{entry.name} is not installed: {entry.install}", soft_wrap=True)
            continue
        try:
            found.append(load_subject(entry.name))
        except MissingDependencyError as error:  # installed, and broken
            remarks().print(str(error), soft_wrap=True)
    if not found:
        msg = f"no known subject is audited in {', '.join(dtypes or ())}; name one to try it all the same"
        raise SubjectError(msg)
    return found


def _audit_all(subjects, checks, dtypes, seed) -> "tuple[list[Report], list[SoftcarryError]]":
    from softcarry.auditing import audit as run_audit

    reports, errors = [], []
    plans = [
        (subject, tuple(d for d in subject.dtypes if dtypes is None or d in dtypes) or dtypes or ())
        for subject in subjects
    ]
    with progress("auditing", sum(len(each) for _, each in plans) * len(checks)) as advance:

        def step(done: int, _total: int, _what: str) -> None:
            if done:
                advance()

        for subject, its_dtypes in plans:
            try:
                report = run_audit(subject, only=checks, seed=seed, dtypes=its_dtypes, progress=step)
            except SoftcarryError as error:
                errors.append(error)
            else:
                reports.append(report)
    return reports, errors


def _status(reports: "Sequence[Report]", fail_on: str) -> int:
    counted = ("error",) if fail_on == "error" else ("error", "warning")
    found = any(
        finding.severity in counted
        for report in reports
        if not report.subject["control"]
        for finding in report.findings
    )
    return FINDINGS if found else NOTHING_FOUND
