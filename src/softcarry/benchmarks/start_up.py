"""Seconds from nothing to the first result, in a fresh process, with the compiled kernel in the cache."""

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

from softcarry.benchmarks._timing import Spread
from softcarry.errors import SoftcarryError

TARGET = 1.5
"""Seconds that the import and the first call may take together."""

_TIME_LIMIT = 300.0

_PROGRAM = """
import json, sys, time
begin = time.perf_counter()
import softcarry as sc
import numpy as np
imported = time.perf_counter()
tq, tk, dtype = json.loads(sys.argv[1])
if dtype == "bfloat16":
    from ml_dtypes import bfloat16 as dtype
q, k = np.ones((1, 1, tq, 64), dtype), np.ones((1, 1, tk, 64), dtype)
ready = time.perf_counter()
sc.attention(q, k, k)
done = time.perf_counter()
print(json.dumps([imported - begin, done - ready]))
"""


class StartUpCase(NamedTuple):
    """A first call on a small problem.

    Attributes
    ----------
    name : str
        What tells it from the others.
    queries, keys : int
        Tokens of one head.
    dtype : str
        The dtype.
    """

    name: str
    queries: int
    keys: int
    dtype: str = "float32"

    @property
    def labels(self) -> tuple[str, ...]:
        """The group and the name."""
        return "start-up", self.name


class StartUp(NamedTuple):
    """What came of it.

    Attributes
    ----------
    case : StartUpCase
        The case.
    importing, calling, together : Spread
        Seconds of the import of softcarry and NumPy, of the first call, and their sum.
    judged : bool
        Whether the target counts.
    """

    case: StartUpCase
    importing: Spread
    calling: Spread
    together: Spread
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the median of both together is within the target; None if that does not count."""
        return self.together.median < TARGET if self.judged else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; seconds are medians."""
        return {
            "name": self.case.name,
            "dtype": self.case.dtype,
            "queries": self.case.queries,
            "keys": self.case.keys,
            "import_seconds": self.importing.median,
            "first_call_seconds": self.calling.median,
            "seconds": self.together.median,
            "target": TARGET,
            "met": self.met,
        }


def start_up_cases() -> list[StartUpCase]:
    """List the cases: many queries, and one.

    Examples
    --------
    >>> [case.name for case in start_up_cases()]
    ['prefill', 'prefill-bfloat16', 'decode']
    """
    return [
        StartUpCase("prefill", 64, 64),
        StartUpCase("prefill-bfloat16", 64, 64, "bfloat16"),
        StartUpCase("decode", 1, 256),
    ]


def measure_start_up(case: StartUpCase, *, threads: int, times: int = 5, judged: bool = True) -> StartUp:
    """Time the first call in so many fresh processes, after one that sees to it that the cache is filled.

    Parameters
    ----------
    case : StartUpCase
        The case.
    threads : int
        Threads of the kernel.
    times : int
        Processes that count.
    judged : bool
        Whether the target counts.

    Returns
    -------
    StartUp
        Seconds.

    Raises
    ------
    SoftcarryError
        If a process fails; the message is the last that it said.
    """
    found = [_first_call(case, threads) for _ in range(times + 1)][1:]
    importing, calling = zip(*found, strict=True)
    together = Spread.of([sum(pair) for pair in found])
    return StartUp(case, Spread.of(importing), Spread.of(calling), together, judged)


def _first_call(case: StartUpCase, threads: int) -> tuple[float, float]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "SOFTCARRY_NUM_THREADS": str(threads)}
    arguments = json.dumps([case.queries, case.keys, case.dtype])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        msg = f"the process of start-up/{case.name} failed: {said}"
        raise SoftcarryError(msg)
    importing, calling = json.loads(done.stdout)
    return importing, calling
