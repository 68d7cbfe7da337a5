"""An audit in a process of its own, under limits of time and memory.

A kernel that kills its process, hangs, or takes all the memory is a finding and not the end of the run: the
process writes down every event of the audit as it happens, the parent looks on, notes where it ended, and
goes on with the next check in a new process. Run as a module, this file is the child.
"""

import pickle
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from softcarry.auditing._audit import check_seed_and_progress, make_plan
from softcarry.auditing._collecting import Collector, Progress
from softcarry.auditing._events import Plan, run
from softcarry.auditing._locate import resolve
from softcarry.auditing._selection import choose_dtypes
from softcarry.auditing._watched_process import Finished, WatchedProcess
from softcarry.auditing.contract import Contract
from softcarry.auditing.subject import Subject
from softcarry.errors import OptionError, SoftcarryError, SubjectError
from softcarry.report.model import Report

MOST_PROCESSES = 6
"""How often a subject may end its process before what is left of its audit is given up."""


class _Request(NamedTuple):
    """What the child is told: where modules are looked for, the subject, and what to do."""

    target: "str | bytes"
    plan: Plan | None
    choice: Mapping[str, Any]
    contract: Contract
    seed: int
    quick: bool
    device: str


class _Planned(NamedTuple):
    """The child's first word: what will be done."""

    plan: Plan


def audit_in_process(
    kernel: Subject | str | Any,
    *,
    contract: Contract | Mapping[str, Any] | str | Path | None = None,
    only: Iterable[str] | str | None = None,
    skip: Iterable[str] | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    dtypes: Iterable[str] | str | None = None,
    quick: bool = False,
    time_limit: float = 300.0,
    memory_limit: float = 8.0,
    device: str = "",
    quiet: bool = False,
) -> Report:
    """Audit a kernel in a process of its own.

    Parameters
    ----------
    kernel : Subject or callable or str
        A name or "module:function" is loaded over there; anything else travels by cloudpickle.
    contract, only, skip, seed, progress, dtypes, quick
        As for ``audit``. Dtypes that the subject does not list are tried too.
    time_limit : float
        Seconds for one check in one dtype, compilation and the start of the process included.
    memory_limit : float
        GiB of resident memory of the process and those that it starts.
    device : str
        Where torch's or JAX's arrays are put, such as "cuda"; "" leaves it to the subject.
    quiet : bool
        Drop what the kernel prints; by default it goes to stderr.

    Returns
    -------
    Report
        A process that died, hung or grew beyond the limit is a finding of RUN, an error; its check is skipped
        with that reason, and the others are made in a new process.

    Raises
    ------
    SubjectError
        If the kernel can't be found or gives no attention output in any dtype.
    OptionError
        If another argument lies outside what is known.

    Examples
    --------
    >>> report = audit_in_process("softcarry", only="HEADMAP", dtypes="float32")  # doctest: +SKIP
    >>> report.ok  # doctest: +SKIP
    True
    """
    check_seed_and_progress(seed, progress)
    for name, value, unit in (("time_limit", time_limit, "seconds"), ("memory_limit", memory_limit, "GiB")):
        if not value > 0:
            msg = f"{name} is a number above 0, in {unit}; got {value!r}"
            raise OptionError(msg)
    promises = Contract.of(contract)
    make_plan(Subject(max), promises, only=only, skip=skip)  # refuses wrong names before a process is started
    choice = {"only": only, "skip": skip, "dtypes": None if dtypes is None else choose_dtypes(dtypes)}
    target = kernel if isinstance(kernel, str) else _pickled(resolve(kernel))
    request = _Request(target, None, choice, promises, seed, bool(quick), device)
    collector = Collector([], promises, seed, progress)
    for _ in range(MOST_PROCESSES):
        child = WatchedProcess("softcarry.auditing.sandbox", request, time_limit, memory_limit, quiet=quiet)
        for event in child:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, _Planned):
                collector.plan = collector.plan or event.plan
            else:
                collector.take(event)
        if child.ended.message is None:
            break
        if not collector.plan:
            msg = f"the subject could not be loaded: {child.ended.message}"
            raise SubjectError(msg)
        _note(collector, child.ended)
        if not collector.left:
            break
        request = request._replace(plan=list(collector.left))
    for dtype, check in collector.left:
        collector.give_up(dtype, check, f"the subject had ended {MOST_PROCESSES} processes by then")
    return collector.report()


def _pickled(subject):
    import cloudpickle

    try:
        return cloudpickle.dumps(subject)
    except Exception as error:
        msg = (
            f"subject {subject.name!r} can't be sent to another process ({type(error).__name__}: {error}); "
            "name it as module:function, or call softcarry.audit, which stays in this one"
        )
        raise SubjectError(msg) from None


def _note(collector, ended):
    at = ended.at
    dtype = at.dtype if at else collector.left[0][0]
    check = at.check if at else ""
    where = f"during {check}" if check else "in the first plain call"
    collector.break_off(
        dtype,
        check,
        f"{ended.message} {where}",
        evidence={"check": check or "the first plain call", **ended.evidence},
        remedy=ended.remedy,
    )


def _main(request, answer):
    _die_with_the_parent()
    path, content = pickle.loads(Path(request).read_bytes())
    sys.path[:] = path
    with open(answer, "ab") as stream:

        def say(event):
            # One write an event, so that a reader sees whole ones, or the beginning of one.
            stream.write(pickle.dumps(event))
            stream.flush()

        try:
            _audit(pickle.loads(content), say)
        except SoftcarryError as error:
            say(type(error)(str(error)))
        except Exception:  # a fault of the audit, which must not pass for one of the kernel
            say(RuntimeError(traceback.format_exc()))
        else:
            say(Finished())


def _die_with_the_parent():
    """Ask Linux to end this process with the one that watches it: nobody else keeps its limits."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _subject(target):
    if isinstance(target, str):
        return resolve(target)
    try:
        return pickle.loads(target)
    except Exception as error:
        msg = (
            f"the subject can't be rebuilt in another process ({type(error).__name__}: {error}); "
            "name it as module:function from the folder that holds it"
        )
        raise SubjectError(msg) from None


def _audit(request, say):
    from dataclasses import replace

    subject = _subject(request.target)
    if request.device:
        subject = replace(subject, device=request.device)
    plan = request.plan or make_plan(subject, request.contract, **request.choice)
    say(_Planned(plan))
    for event in run(subject, plan, contract=request.contract, seed=request.seed, quick=request.quick):
        say(event)


if __name__ == "__main__":
    # Through the package, so that what is pickled here belongs to a module that the parent knows too.
    from softcarry.auditing import sandbox

    sandbox._main(*sys.argv[1:])
