"""A process that audits, watched from outside: how far it is, how long it takes, how much memory it holds."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from softcarry.auditing._events import Examined, Prepared, Refused, Started
from softcarry.auditing.isolation import cause_of_death

_LOOK = 0.05


class Ended(NamedTuple):
    """How a child ended: where it was, and what was wrong, or None if nothing was."""

    at: Started | None
    message: str | None
    evidence: dict[str, Any]
    remedy: str


class Finished(NamedTuple):
    """A child's last word: all of it is done."""


class WatchedProcess:
    """One process that audits, and writes down what happens.

    Parameters
    ----------
    module : str
        What Python runs there, with two arguments: a file that holds the pickled pair of ``sys.path`` and the
        pickled request, and a file to which it appends pickled events.
    request : object
        What it is told.
    time_limit : float
        Seconds from one event to the next.
    memory_limit : float
        GiB of resident memory of the process and those that it starts.
    quiet : bool
        Drop what it prints; otherwise that goes to stderr.

    Attributes
    ----------
    ended : Ended
        How it ended, once all events have been read.

    Yields
    ------
    Event or Exception
        By iteration, as they come; an exception is what was raised over there.
    """

    def __init__(self, module: str, request: Any, time_limit: float, memory_limit: float, *, quiet: bool):
        self.module, self.request, self.quiet = module, request, quiet
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.ended = Ended(None, None, {}, "")

    def __iter__(self) -> Iterator[Any]:
        path = [entry or os.getcwd() for entry in sys.path]
        with tempfile.TemporaryDirectory(prefix="softcarry-") as folder:
            request, events = Path(folder, "request"), Path(folder, "events")
            request.write_bytes(pickle.dumps((path, pickle.dumps(self.request))))
            events.touch()
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(request), str(events)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if self.quiet else 2,
                stderr=subprocess.DEVNULL if self.quiet else None,
                start_new_session=True,
            )
            try:
                yield from self._watch(process, events)
            finally:
                _end(process)

    def _watch(self, process, events):
        at, since, finished = None, time.monotonic(), False
        with events.open("rb") as stream:
            while True:
                over = process.poll() is not None
                for event in _complete(stream):
                    if isinstance(event, Started):
                        at, since = event, time.monotonic()
                    elif isinstance(event, Examined | Refused | Prepared):
                        at = None
                    if isinstance(event, Finished | Exception):
                        finished = True
                    if not isinstance(event, Finished):
                        yield event
                if over:
                    if not finished:
                        self.ended = _died(at, process.returncode)
                    return
                if time.monotonic() - since > self.time_limit:
                    self.ended = _hung(at, self.time_limit)
                    return
                if _resident(process.pid) > self.memory_limit * 2**30:
                    self.ended = _grew(at, self.memory_limit)
                    return
                time.sleep(_LOOK)


def _died(at, returncode):
    return Ended(
        at,
        f"the process dies, {cause_of_death(returncode)},",
        {"ended": cause_of_death(returncode)},
        "refuse what the kernel can't compute with an exception; a debugger shows where a signal comes from",
    )


def _hung(at, seconds):
    return Ended(
        at,
        f"the process gives no answer within {seconds:g} s",
        {"time limit in s": seconds},
        "look for a lock or an endless loop; a longer limit helps if the kernel is only slow",
    )


def _grew(at, gibibytes):
    return Ended(
        at,
        f"the process takes more than {gibibytes:g} GiB of memory",
        {"memory limit in GiB": gibibytes},
        "look for what is kept from call to call; a higher limit helps if the kernel needs that much",
    )


def _complete(stream):
    """Read the events that are complete by now; the rest of one is read the next time."""
    while True:
        start = stream.tell()
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            stream.seek(start)
            return


def _resident(pid):
    """Bytes of memory of a process and of those it has started."""
    import psutil

    total = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for each in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):  # it may have ended by now
                total += each.memory_info().rss
    return total


def _end(process):
    """End a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
