"""Loading ExecuTorch's operators, and keeping what they log off the terminal."""

import os
import sys
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from softcarry.errors import MissingDependencyError


@lru_cache(maxsize=1)
def load_library():
    """Register the operators of ExecuTorch's language models with torch.

    Raises
    ------
    MissingDependencyError
        If the installed ExecuTorch has no such library.
    """
    import torch

    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = Path(folder, "extension", "llm", "custom_ops", "libcustom_ops_aot_lib.so")
        if library.exists():
            torch.ops.load_library(str(library))
            return
    msg = "the installed executorch holds no libcustom_ops_aot_lib.so"
    raise MissingDependencyError(msg)


@contextmanager
def quiet():
    """Send the process's standard error stream nowhere: ExecuTorch's runtime logs a line for each call."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
