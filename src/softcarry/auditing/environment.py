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
# Libraries of subjects, named where they are in use: the module, and the distribution if it has another name.
_IN_USE = {
    "scipy": "scipy",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "mlx": "mlx",
    "xllamacpp": "xllamacpp",
    "tinygrad": "tinygrad",
    "executorch": "executorch",
    "tract": "tract",
    "keras": "keras",
    "tensorflow": "tensorflow_cpu",
    "triton": "triton",
    "flash_attn": "flash_attn",
    "flashinfer": "flashinfer-python",
    "xformers": "xformers",
}


def describe_environment() -> dict[str, Any]:
    """Describe what a reader needs to repeat an audit, without the name of the machine or its user.

    Returns
    -------
    dict
        time (UTC), softcarry, python, system, cpu, threads (processors this process may use), libraries
        (versions of those installed, and of a subject's once it is imported) and torch_threads if torch has
        been imported. Imports nothing.

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
        "libraries": {name: number for name in _named() if (number := _version_of(name))},
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch_threads"] = torch.get_num_threads()
    return found


def _named():
    return (*_LIBRARIES, *(package for module, package in _IN_USE.items() if module in sys.modules))


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
