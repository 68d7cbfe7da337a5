"""Where an audit ran: versions, processor, threads."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from softcarry._version import __version__

_LIBRARIES = ("numpy", "numba", "ml_dtypes", "torch", "jax")


def describe_environment() -> dict[str, Any]:
    """Describe what a reader needs to repeat an audit, without the name of the machine or its user.

    Returns
    -------
    dict
        time (UTC), softcarry, python, system, cpu, threads (processors this process may use), libraries
        (versions of those installed) and torch_threads if torch has been imported. Imports nothing.

    Examples
    --------
    >>> sorted(describe_environment())[:3]
    ['cpu', 'libraries', 'python']
    """
    found: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "softcarry": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "threads": _threads(),
        "libraries": {name: number for name in _LIBRARIES if (number := _version_of(name))},
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch_threads"] = torch.get_num_threads()
    return found


def _version_of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _threads():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _processor():
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
