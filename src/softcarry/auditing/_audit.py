"""One audit: every check, in every dtype of a subject, collected into a report."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from softcarry.auditing._collecting import Collector, Progress
from softcarry.auditing._events import Plan, run
from softcarry.auditing._locate import resolve
from softcarry.auditing._selection import choose_checks, choose_dtypes
from softcarry.auditing.contract import Contract
from softcarry.auditing.subject import Subject
from softcarry.errors import OptionError
from softcarry.report.model import Report


def audit(
    kernel: Callable[..., Any] | Subject | str,
    *,
    contract: Contract | Mapping[str, Any] | str | Path | None = None,
    only: Iterable[str] | str | None = None,
    skip: Iterable[str] | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    dtypes: Iterable[str] | str | None = None,
    quick: bool = False,
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
    contract : Contract or mapping or path, optional
        What the kernel is held to; a path is that of a TOML file. By default empty rows give output 0 and
        lse −inf, the carry is float32, and nothing else is promised.
    only, skip : iterable of str or str, optional
        Names of the checks to run, or to leave out; one string may hold several, separated by commas.
    seed : int
        Seeds the random inputs: the same seed gives the same report.
    progress : callable, optional
        Called as ``progress(done, total, what)`` before each check and once at the end.
    dtypes : iterable of str or str, optional
        Dtypes of q, k and v, instead of the subject's own and those of the contract.
    quick : bool
        Fewer and shorter inputs a check: seconds instead of half a minute, and rare faults are missed.

    Returns
    -------
    Report
        ``report.ok`` is True if no finding is an error. A dtype that the kernel refuses is in
        ``report.skipped``.

    Raises
    ------
    SubjectError
        If the kernel can't be found, or raises on a plain call, or returns no attention output, in every
        dtype.
    OptionError
        If another argument lies outside what is known.

    Notes
    -----
    The kernel is called in this process: where it may crash or hang, ``auditing.audit_in_process`` audits it
    in one of its own, as ``softcarry audit`` does.

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
    plan = make_plan(subject, promises, only=only, skip=skip, dtypes=dtypes)
    check_seed_and_progress(seed, progress)
    collector = Collector(plan, promises, seed, progress)
    for event in run(subject, plan, contract=promises, seed=seed, quick=bool(quick)):
        collector.take(event)
    return collector.report()


def make_plan(subject: Subject, contract: Contract, *, only=None, skip=None, dtypes=None) -> Plan:
    """List the pairs (dtype, check) of an audit.

    Parameters
    ----------
    subject : Subject
    contract : Contract
        Its dtypes are audited beside the subject's own.
    only, skip, dtypes : iterable of str or str, optional
        As for ``audit``.

    Returns
    -------
    list of (str, str)

    Raises
    ------
    OptionError
        For a name that is none, or if nothing is left.

    Examples
    --------
    >>> make_plan(Subject(max), Contract(dtypes="bfloat16"), only="LSE")
    [('float32', 'LSE'), ('bfloat16', 'LSE')]
    """
    checks = choose_checks(only, skip)
    own = tuple(dict.fromkeys((*subject.dtypes, *contract.dtypes)))
    chosen = own if dtypes is None else choose_dtypes(dtypes)
    return [(dtype, check) for dtype in chosen for check in checks]


def check_seed_and_progress(seed: int, progress: Progress | None) -> None:
    """Refuse what is no seed, or no function that can be told how far an audit is."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        msg = f"seed is an integer of at least 0; got {seed!r}"
        raise OptionError(msg)
    if progress is not None and not callable(progress):
        msg = f"progress is a function (done, total, what), or None; got {type(progress).__name__}"
        raise OptionError(msg)
