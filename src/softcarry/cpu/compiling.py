"""The first call of a kernel: compiled code comes from a cache; where it has to be made, a person is told."""

import logging
import threading
from typing import Any

from numba import typeof

PATIENCE = 1.0
"""Seconds of compiling before anything is said."""

logger = logging.getLogger("softcarry")

_told = threading.Event()
_ready: set[tuple[Any, tuple[str, ...]]] = set()


def ready(kernel: Any, elements: tuple[str, ...], arguments: tuple[Any, ...]) -> None:
    """See that a kernel is compiled, or read from the cache, for arguments of these types.

    The types must follow from the names of the element types. If it takes over a second, the logger
    "softcarry" warns, once in the life of the process; without any logging set up, Python writes warnings to
    stderr.
    """
    key = (kernel, elements)
    if key in _ready:
        return
    timer = threading.Timer(PATIENCE, _tell)
    timer.daemon = True
    timer.start()
    try:
        kernel.compile(tuple(typeof(argument) for argument in arguments))
    finally:
        timer.cancel()
    _ready.add(key)


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        logger.warning(
            "softcarry: compiling for this processor, some ten seconds on the first call; "
            "later runs read it from a cache"
        )
