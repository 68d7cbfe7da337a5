"""Where a benchmark runs, how many threads it has, and who else was at work meanwhile."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import softcarry as sc
from softcarry.auditing.environment import describe_environment
from softcarry.errors import OptionError
from softcarry.numerics._arguments import whole

_INSTALL = {"torch": "pip install 'softcarry[torch]'", "scipy": "pip install scipy"}
_STATISTICS = Path("/proc/stat")


def missing(libraries: Sequence[str]) -> str:
    """Say which of some libraries are not installed, and the commands that install them; "" if none."""
    absent = [name for name in libraries if find_spec(name) is None]
    return "; ".join(
        f"{name} is not installed: {_INSTALL.get(name, f'pip install {name}')}" for name in absent
    )


def describe_machine(threads: int) -> dict[str, Any]:
    """Describe what a reader needs to repeat a benchmark: as an audit does, with SciPy and the threads.

    Examples
    --------
    >>> describe_machine(2)["threads"]
    2
    """
    found = describe_environment()
    found.pop("torch_threads", None)
    with suppress(PackageNotFoundError):
        found["libraries"]["scipy"] = version("scipy")
    return {**found, "processors": found["threads"], "threads": threads}


@contextmanager
def row_threads(threads: int | None) -> Iterator[int]:
    """Give softcarry's rows and torch, if it is installed, the same number of threads for a while.

    Parameters
    ----------
    threads : int or None
        How many; None takes softcarry's own number.

    Yields
    ------
    int
        The number.

    Raises
    ------
    OptionError
        If it is no whole number of at least 1.
    """
    before = sc.get_num_threads()
    number = before if threads is None else whole("threads", threads, 1)
    torch = None if missing(["torch"]) else import_module("torch")
    torch_before = torch.get_num_threads() if torch else 0
    try:
        sc.set_num_threads(number)
        if torch:
            torch.set_num_threads(number)
        yield number
    finally:
        sc.set_num_threads(before)
        if torch:
            torch.set_num_threads(torch_before)


@contextmanager
def numba_threads(threads: int | None) -> Iterator[int]:
    """Give Numba's loops a number of threads for a while; as `row_threads` otherwise.

    Raises
    ------
    OptionError
        Also if the number is beyond what Numba allowed itself when the process started.
    """
    import numba

    before = numba.get_num_threads()
    number = before if threads is None else whole("threads", threads, 1)
    try:
        numba.set_num_threads(number)
    except ValueError:
        msg = f"threads is within Numba's limit; got {number}: set NUMBA_NUM_THREADS in the environment to it"
        raise OptionError(msg) from None
    try:
        yield number
    finally:
        numba.set_num_threads(before)


class OthersAtWork:
    """How many processors other processes kept busy since this was made.

    The figures of a benchmark on a busy machine say little, so that the command tells. Linux only.
    """

    def __init__(self) -> None:
        self._begin = _work()

    def processors(self) -> float | None:
        """Return the mean number of processors that others used; None where /proc/stat does not tell."""
        if self._begin is None or (now := _work()) is None:
            return None
        elapsed, busy, own = (b - a for a, b in zip(self._begin, now, strict=True))
        return max(0.0, busy - own) / elapsed if elapsed > 0.0 else 0.0


def _work() -> tuple[float, float, float] | None:
    """Return seconds now, seconds of work of all processors, and those of this process and its children."""
    try:
        fields = _STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, fields)
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    return time.monotonic(), (user + nice + system + interrupts + soft + stolen) / ticks, sum(os.times()[:4])
