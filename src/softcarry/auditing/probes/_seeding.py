"""The libraries' own random generators, seeded for one call and then put back."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore what they held.

    A kernel that keeps a generator of its own, or takes a key as JAX does, is not reached.

    Parameters
    ----------
    seed : int

    Examples
    --------
    >>> with seeded(3):
    ...     one = random.random()
    >>> with seeded(3):
    ...     one == random.random()
    True
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - kernels use it
    host = torch.get_rng_state() if torch else None
    devices = torch.cuda.get_rng_state_all() if torch and torch.cuda.is_initialized() else []
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        if torch:
            torch.manual_seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(host)
            if devices:
                torch.cuda.set_rng_state_all(devices)
