"""stdout for the report alone: what the functions under test print goes to stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def stdout_kept_for_the_report() -> Iterator[None]:
    """Send to stderr what kernels print, be it from Python or from compiled code."""
    import ctypes

    with redirect_stdout(sys.stderr):
        try:
            kept = os.dup(1)
            os.dup2(2, 1)
        except OSError:  # closed: nothing compiled can write there
            yield
            return
        try:
            yield
        finally:
            # C keeps what it prints to a pipe until later, when stdout is the report's again.
            with suppress(Exception):
                ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
