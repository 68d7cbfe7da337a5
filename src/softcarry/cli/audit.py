"""``softcarry audit``: the checks, on known subjects and on your own kernel."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from softcarry.cli._console import progress, remarks, report_error
from softcarry.cli._options import AsJson, Flag, Whole
from softcarry.cli._report_output import Format, check_files, write_reports
from softcarry.cli._status import FINDINGS, NOTHING_FOUND
from softcarry.cli._stdout import stdout_kept_for_the_report
from softcarry.errors import MissingDependencyError, OptionError, SoftcarryError, SubjectError

if TYPE_CHECKING:
    from softcarry.report.model import Report

# One name an option: what follows it may be a subject.
Names = Annotated[list[str] | None, Parameter(consume_multiple=False)]
Files = Annotated[list[Path] | None, Parameter(consume_multiple=False)]


def audit(
    *subjects: str,
    only: Names = None,
    skip: Names = None,
    dtype: Names = None,
    quick: Flag = False,
    contract: Path | None = None,
    baseline: Path | None = None,
    seed: Annotated[Whole, Parameter(help="Seed of the random inputs.")] = 0,
    device: Annotated[str, Parameter(show_default=False)] = "",
    time_limit: float = 300.0,
    memory_limit: float = 8.0,
    same_process: Flag = False,
    fail_on: Literal["error", "warning"] = "error",
    exit_zero: Flag = False,
    output: Files = None,
    kind: Annotated[Format, Parameter(name="--format")] = "text",
    json: AsJson = False,
) -> int:
    """Audit attention kernels, seen only through calls.

    Without SUBJECTS, all known ones that are installed are audited, with a
    control that is wrong on purpose and shows what failure looks like. The
    control does not count in the exit status.

    Each subject is audited in a process of its own: one that crashes, hangs
    or takes all the memory is a finding, and the others are audited all the
    same.

    Parameters
    ----------
    subjects
        A name from "softcarry subjects", or module:function for a kernel of
        your own: kernel(q, k, v, *, mask=None, causal=False, scale=None)
        returning the output or (output, lse), all (batch, heads, tokens,
        dim). Modules are looked for in the current folder, too.
    only
        The checks to run: EMPTY, MASKREP, TAIL, RANGE, GROWTH, LSE, POISON,
        CAUSAL, GRAD, REF, SCALE, LAYOUT, INVAR, FPRINT, HEADMAP, HARNESS,
        NONFIN, ARGS, DROP. Several may be separated by commas.
    skip
        The checks to leave out.
    dtype
        The dtypes to audit, instead of the subject's own: float64, float32,
        bfloat16, float16.
    quick
        Fewer and shorter inputs: seconds a subject; rare faults are missed.
    contract
        A TOML file of what the kernel promises: empty_rows, lse_empty,
        carry_format, causal, masked_values, invariant, dtypes, options,
        longest_n.
    baseline
        A JSON report of an earlier audit, to compare with: what changed is
        a warning.
    device
        Where torch's or JAX's arrays are put: cuda, mps, xpu.
    time_limit
        Seconds for one check in one dtype.
    memory_limit
        GiB of memory for a subject.
    same_process
        Call the kernels in this process, without limits, as a debugger
        wants it.
    fail_on
        The least severe finding that makes the exit status 1.
    exit_zero
        Exit with 0 in spite of findings.
    output
        Write the reports to this file too: .html, .json, .md, .xml (JUnit),
        .sarif or .txt. May be given several times.
    kind
        What goes to stdout.
    json
        The same as --format json. Keys: schema, reports; a report is of the
        schema softcarry.report/1, docs/report-schema.json.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.auditing._selection import choose_checks, choose_dtypes
    from softcarry.auditing.contract import Contract

    run = _Run(
        checks=choose_checks(_joined(only), _joined(skip)),
        dtypes=None if dtype is None else choose_dtypes(",".join(dtype)),
        same_process=same_process,
        options={"contract": Contract.of(contract), "seed": seed, "quick": quick},
        limits={"time_limit": time_limit, "memory_limit": memory_limit, "device": device},
    )
    earlier = [] if baseline is None else _earlier(baseline)
    files = output or []
    check_files(files)
    with stdout_kept_for_the_report():
        reports, errors = run.all(subjects)
    if earlier:
        reports = [_compared(report, earlier) for report in reports]
    if reports:
        write_reports(reports, "json" if json else kind, files)
    if errors:
        for error in errors[1:]:
            report_error(str(error))
        raise errors[0]
    return NOTHING_FOUND if exit_zero else _status(reports, fail_on)


@dataclass(frozen=True)
class _Run:
    """What to ask of every subject, and where to call it."""

    checks: tuple[str, ...]
    dtypes: tuple[str, ...] | None
    same_process: bool
    options: dict[str, Any]
    limits: dict[str, Any]

    def all(self, names: Sequence[str]) -> "tuple[list[Report], list[SoftcarryError]]":
        """Audit the subjects of these names, or all that are installed: reports, and what could not run."""
        if any(":" in name for name in names) and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        plans = [(name, self._dtypes_of(name)) for name in names or self._installed()]
        reports, errors = [], []
        with progress(
            "auditing", sum(len(each or ("own",)) for _, each in plans) * len(self.checks)
        ) as advance:
            for name, dtypes in plans:
                try:
                    reports.append(self._audit(name, dtypes, advance))
                except SoftcarryError as error:
                    if not names and isinstance(error, MissingDependencyError):  # installed, and broken
                        remarks().print(str(error), soft_wrap=True)
                    else:
                        errors.append(error)
        return reports, errors

    def _audit(self, name, dtypes, advance):
        from softcarry.auditing import audit as audit_here
        from softcarry.auditing import audit_in_process

        before = 0

        def step(done: int, _total: int, what: str) -> None:
            nonlocal before
            advance(f"auditing {what}", done - before)
            before = done

        asked = {"only": self.checks, "dtypes": dtypes, "progress": step, **self.options}
        if self.same_process:
            return audit_here(_resolved(name, self.limits["device"]), **asked)
        return audit_in_process(name, **asked, **self.limits, quiet=":" not in name)

    def _dtypes_of(self, name):
        """Choose the dtypes that a known subject has of those that are asked for, or all of these."""
        from softcarry.auditing.subjects import KNOWN

        own = KNOWN[name].dtypes if name in KNOWN else ()
        return tuple(d for d in own if self.dtypes is None or d in self.dtypes) or self.dtypes

    def _installed(self):
        """List the known subjects that can run here and have one of the dtypes; say which can't."""
        from softcarry.auditing.subjects import KNOWN

        found, slow, missing = [], [], {}
        for entry in KNOWN.values():
            if self.dtypes and entry.dtypes and not set(self.dtypes) & set(entry.dtypes):
                continue
            if entry.slow and entry.available:
                slow.append(entry.name)
            elif entry.available:
                found.append(entry.name)
            else:
                missing.setdefault(entry.install, []).append(entry.name)
        for command, names in missing.items():
            remarks().print(f"not installed: {', '.join(names)} ({command})", soft_wrap=True)
        if slow:
            remarks().print(f"left out, as they take minutes: {', '.join(slow)}; name them", soft_wrap=True)
        if not found:
            asked = ", ".join(self.dtypes or ())
            msg = f"no known subject is audited in {asked}; name one to try it all the same"
            raise SubjectError(msg)
        return found


def _resolved(name, device):
    from softcarry.auditing._locate import resolve

    subject = resolve(name)
    return replace(subject, device=device) if device else subject


def _joined(names: Sequence[str] | None) -> str | None:
    return None if names is None else ",".join(names)


def _earlier(path: Path) -> "list[Report]":
    from softcarry.report.model import Report

    try:
        return Report.all_from_json(path.read_text(encoding="utf-8"))
    except OptionError as error:
        msg = f"the baseline {path}: {error}"
        raise OptionError(msg) from None


def _compared(report: "Report", earlier: "Sequence[Report]") -> "Report":
    """Add to a report what has changed since the one of the same subject, or since the only one."""
    from softcarry.auditing.baseline import compare_with_baseline

    name = report.subject["name"]
    same = [each for each in earlier if each.subject["name"] == name] or (
        earlier if len(earlier) == 1 else []
    )
    if not same:
        remarks().print(f"the baseline has no report of {name}", soft_wrap=True)
        return report
    return replace(report, findings=(*report.findings, *compare_with_baseline(report, same[0])))


def _status(reports: "Sequence[Report]", fail_on: str) -> int:
    counted = ("error",) if fail_on == "error" else ("error", "warning")
    found = any(
        finding.severity in counted
        for report in reports
        if not report.subject["control"]
        for finding in report.findings
    )
    return FINDINGS if found else NOTHING_FOUND
