"""Emulated additions a second of ``EmulatedKernel``, and how long its first call takes.

An addition is one rounded update of l or of one column of o. With a key block of one key, every key updates
the carry, and the additions inside the block are not counted; with a longer block those are the ones counted.
"""

from functools import partial
from typing import Any

import numpy as np

from softcarry.benchmarks._rates import RateCase
from softcarry.numerics import EmulatedKernel

_CARRIES: dict[str, dict[str, Any]] = {
    "bfloat16": {"l_format": "bfloat16", "o_format": "bfloat16"},
    "float16": {"l_format": "float16", "o_format": "float16"},
    "float32": {},
    "bfloat16-8-splits": {"l_format": "bfloat16", "o_format": "bfloat16", "splits": 8},
    "bfloat16-stochastic": {"l_format": "bfloat16", "o_format": "bfloat16", "rounding": "stochastic"},
}
_ROWS, _KEYS, _WIDTH = 64, 16384, 64


def kernel_cases(*, quick: bool = False) -> list[RateCase]:
    """List every case; with ``quick`` there are 16 times fewer keys.

    Examples
    --------
    >>> kernel_cases(quick=True)[0].labels
    ('bfloat16', 'key-block-1', '64x1024x64')
    """
    keys = _KEYS // 16 if quick else _KEYS
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(1, 1, tokens, _WIDTH)) for tokens in (_ROWS, keys, keys)]
    small = [array[:, :, :1] for array in inputs]
    cases = []
    for name, options in _CARRIES.items():
        for key_block in (1, 128):
            kernel = EmulatedKernel(key_block=key_block, **options)
            labels = (name, f"key-block-{key_block}", f"{_ROWS}x{keys}x{_WIDTH}")
            additions = _ROWS * keys * (_WIDTH + 1)
            cases.append(RateCase(labels, additions, partial(kernel, *small), partial(kernel, *inputs)))
    return cases
