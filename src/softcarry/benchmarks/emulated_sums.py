"""Emulated additions a second of ``running_sum``, for every order of summation and some formats.

An addition is one term absorbed: rounded to the format, added, and the sum rounded; Kahan's four operations
count as one.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from softcarry.benchmarks._rates import RateCase
from softcarry.numerics import running_sum

_FORMATS = ("bfloat16", "float16", "float32")
_ORDERS = (
    ("sequential", None),
    ("pairwise", None),
    ("carry-stack", None),
    ("carry-stack", 64),
    ("blocked", 64),
    ("two-level", 64),
    ("kahan", None),
)
# An odd length takes the paths of remainders; a single long row can't be shared out over threads.
_SHAPES = ((64, 16384), (64, 16383), (1, 2**22))


def sum_cases(*, quick: bool = False) -> list[RateCase]:
    """List every case; with ``quick`` the rows are 16 times shorter.

    Examples
    --------
    >>> sum_cases(quick=True)[0].labels
    ('bfloat16', 'nearest-even', 'sequential', '64x1024')
    """
    return [case for rows, n in _SHAPES for case in _cases(rows, n // 16 if quick else n)]


def _cases(rows: int, n: int) -> Iterator[RateCase]:
    terms = np.random.default_rng(0).random((rows, n))
    kinds: list[tuple[str, str, str, int | None]] = [
        (fmt, "nearest-even", order, block) for fmt in _FORMATS for order, block in _ORDERS
    ]
    for mode in ("stochastic", "up"):
        kinds += [("bfloat16", mode, order, None) for order in ("sequential", "pairwise")]
    for fmt, rounding, order, block in kinds:
        options = {"rounding": rounding, "block": block}
        yield RateCase(
            (fmt, rounding, order if block is None else f"{order}-{block}", f"{rows}x{n}"),
            terms.size,
            partial(running_sum, terms[:, :8], fmt, order, **options),
            partial(running_sum, terms, fmt, order, **options),
        )
