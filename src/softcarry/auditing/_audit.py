"""One audit: every check, in every dtype of a subject, collected into a report."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from threadpoolctl import threadpool_limits

from softcarry.auditing._calling import prepare
from softcarry.auditing._locate import resolve
from softcarry.auditing.contract import Contract
from softcarry.auditing.environment import describe_environment
from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.probes import CHECKS, load_probe
from softcarry.auditing.subject import DTYPES, Subject
from softcarry.errors import OptionError
from softcarry.report.model import Fact, Report

Progress = Callable[[int, int, str], None]


def audit(
    kernel: Callable[..., Any] | Subject | str,
    *,
    contract: Contract | Mapping[str, Any] | None = None,
    only: Iterable[str] | str | None = None,
    skip: Iterable[str] | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    dtypes: Iterable[str] | str | None = None,
) -> Report:
    """Say what is right and wrong about an attention kernel, from calls alone.

    Parameters
    ----------
    kernel : callable or Subject or str
        ``kernel(q, k, v, *, mask=None, causal=False, scale=None)`` returning the output, or (output, lse):
        q is (b, h, tq, d), k is (b, h, tk, d), v is (b, h, tk, dv), the output (b, h, tq, dv), the lse
        (b, h, tq). Which options it takes is read from its signature (``attn_mask`` and ``is_causal`` are
        understood); what it lacks is skipped, not failed. A ``Subject`` says what can't be found out. A
        string names a known subject ("torch-sdpa-flash") or a callable ("module:function").

        A bare callable is tried with torch, then NumPy, then JAX arrays, by one small plain call, and
        audited with the first that works. Libraries that are imported already go first; another is
        imported only when none of those works.
    contract : Contract or mapping, optional
        What the kernel is held to. By default empty rows give output 0 and lse −inf, the carry is float32.
    only, skip : iterable of str or str, optional
        Names of the checks to run, or to leave out; one string may hold several, separated by commas.
    seed : int
        Seeds the random inputs: the same seed gives the same report.
    progress : callable, optional
        Called as ``progress(done, total, what)`` before each check and once at the end.
    dtypes : iterable of str or str, optional
        Dtypes of q, k and v, instead of the subject's own.

    Returns
    -------
    Report
        ``report.ok`` is True if no finding is an error.

    Raises
    ------
    SubjectError
        If the kernel can't be found, raises on a plain call, or returns no attention output.
    OptionError
        If another argument lies outside what is known.

    Examples
    --------
    >>> import numpy as np
    >>> def averages(q, k, v, *, mask=None):
    ...     weights = np.full(q.shape[:3] + k.shape[2:3], 1.0 / k.shape[2])
    ...     return (weights @ v).astype(q.dtype)
    >>> report = audit(averages, only="EMPTY")
    >>> report.ok, report.findings[0].check
    (False, 'EMPTY')
    """
    subject = resolve(kernel)
    promises = Contract.of(contract)
    checks = choose_checks(only, skip)
    chosen = subject.dtypes if dtypes is None else choose_dtypes(dtypes)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        msg = f"seed is an integer of at least 0; got {seed!r}"
        raise OptionError(msg)
    if progress is not None and not callable(progress):
        msg = f"progress is a function (done, total, what), or None; got {type(progress).__name__}"
        raise OptionError(msg)
    examinations: list[Examination] = []
    total = len(chosen) * len(checks)
    # The matrices are small, and BLAS threads that wait for one another on a busy machine by spinning made an
    # audit take three times as long as one thread does. torch's own threads are not touched.
    with threadpool_limits(1, user_api="blas"):
        for dtype in chosen:
            calling = prepare(subject, dtype)
            for check in checks:
                if progress is not None:
                    progress(len(examinations), total, f"{subject.name} {dtype} {check}")
                examination = Examination(
                    subject, dtype, check=check, contract=promises, seed=seed, calling=calling
                )
                with suppress(CaseRefused):  # the examination has noted it
                    load_probe(check)(examination)
                examinations.append(examination)
    if progress is not None:
        progress(total, total, subject.name)
    return _collect(subject, promises, seed, examinations)


def choose_checks(
    only: Iterable[str] | str | None = None, skip: Iterable[str] | str | None = None
) -> tuple[str, ...]:
    """Return the checks to run, in their own order.

    Parameters
    ----------
    only, skip : iterable of str or str, optional
        Names in any case; one string may hold several, separated by commas.

    Returns
    -------
    tuple of str

    Raises
    ------
    OptionError
        For a name that is no check, or if nothing is left.

    Examples
    --------
    >>> choose_checks("lse,EMPTY")
    ('EMPTY', 'LSE')
    """
    wanted = tuple(CHECKS) if only is None else _choose("check", only, CHECKS)
    unwanted = () if skip is None else _choose("check", skip, CHECKS)
    checks = tuple(name for name in CHECKS if name in wanted and name not in unwanted)
    if not checks:
        msg = f"no check is left to run; the checks are {', '.join(CHECKS)}"
        raise OptionError(msg)
    return checks


def choose_dtypes(names: Iterable[str] | str) -> tuple[str, ...]:
    """Return the dtypes of those names, each once.

    Parameters
    ----------
    names : iterable of str or str
        In any case; one string may hold several, separated by commas.

    Returns
    -------
    tuple of str

    Raises
    ------
    OptionError
        For a name that is no dtype that can be audited.

    Examples
    --------
    >>> choose_dtypes("float32,bfloat16")
    ('float32', 'bfloat16')
    """
    chosen = _choose("dtype", names, DTYPES)
    if not chosen:
        msg = f"no dtype is left to audit; the dtypes are {', '.join(DTYPES)}"
        raise OptionError(msg)
    return chosen


def _choose(what, names, known):
    if not isinstance(names, Iterable):
        names = (names,)
    given = names.split(",") if isinstance(names, str) else list(names)
    by_folded = {name.casefold(): name for name in known}
    chosen = []
    for name in given:
        folded = str(name).strip().casefold()
        if folded not in by_folded:
            close = get_close_matches(folded, by_folded, n=1)
            hint = f"; did you mean {by_folded[close[0]]!r}?" if close else ""
            msg = f"a {what} is one of {', '.join(known)}; got {name!r}{hint}"
            raise OptionError(msg)
        chosen.append(by_folded[folded])
    return tuple(dict.fromkeys(chosen))


def _collect(subject, contract, seed, examinations):
    callings = {examination.dtype: examination.calling for examination in examinations}
    profile = {dtype: {} for dtype in callings}
    for examination in examinations:
        profile[examination.dtype].update(examination.facts)
    for dtype, calling in callings.items():
        if calling.writes_to:
            evidence = "the arrays handed to one plain call held other numbers after it"
            profile[dtype]["inputs written to"] = Fact(list(calling.writes_to), 1.0, evidence)
    first = next(iter(callings.values()))
    return Report(
        subject={
            "name": subject.name,
            "arrays": first.library,
            "layout": subject.layout,
            "dtypes": list(callings),
            "output_dtypes": {dtype: calling.output_dtype for dtype, calling in callings.items()},
            "options": subject.keywords,
            "returns_lse": first.returns_lse,
            "lse_unit": subject.lse,
            "causal": contract.causal or first.causal,
            "control": subject.control,
        },
        findings=tuple(finding for each in examinations for finding in each.findings),
        verdicts=tuple(each.verdict for each in examinations),
        profile=profile,
        curves=tuple(curve for each in examinations for curve in each.curves),
        skipped=tuple(entry for each in examinations for entry in each.skipped),
        environment=describe_environment() | {"seed": seed, "contract": asdict(contract)},
    )
