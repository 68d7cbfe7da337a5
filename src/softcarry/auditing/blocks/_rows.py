"""Functions of rows: what arrays they take, and the rows that a softmax and a top-k are asked about."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.blocks._asking import NotApplicableError, guarded
from softcarry.auditing.blocks._values import LISTS, hand_over, libraries
from softcarry.errors import SubjectError

SIZES = (
    *range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257,
    511, 513, 545, 577, 767, 769, 1023, 1025,
)  # fmt: skip
"""Lengths of rows: powers of two, their neighbours, and the odd widths of pytorch#147284."""

LARGE = ([1000.0], [1000.0, 0.0], [1000.0, 1000.0], [0.0, 2000.0])
LOW = ([-1000.0], [-1000.0, -1000.0])
MASKED = ([-math.inf, 0.0], [0.0, -math.inf], [-math.inf, 0.0, 1.0], [-math.inf, -math.inf, 0.0])
SENTINELS = ([-1e5, -math.inf], [-1e10, -math.inf], [-1e31, -math.inf])
ALL_MASKED = ([-math.inf], [-math.inf, -math.inf])
WITH_NAN = ([math.nan], [math.nan, 0.0], [0.0, math.nan], [1.0, math.nan, 0.0])
WITH_INFINITY = ([math.inf, 0.0], [0.0, math.inf])
NARROW = (("bfloat16", 272), ("bfloat16", 512), ("float16", 2304), ("float16", 4096))
"""16-bit formats, and lengths beyond those at which a sum of ones in them stops: 256 and 2048."""


class RowFunction(ABC):
    """A function whose first argument is a row of scores, or several.

    Parameters
    ----------
    function : callable
    empty : {"any", "zero"}
        What a row of −inf alone may give.

    Attributes
    ----------
    library, dtype : str
        Of what it is handed.
    flat : bool
        Whether it takes one row, of shape (n,); else it takes (1, n).

    Raises
    ------
    SubjectError
        If no kind of arrays gives a result of the right form.
    """

    what = expected = ""
    dtype = "float64"

    def __init__(self, function: Callable[..., Any], *, empty: str = "any"):
        self.function = function
        self.empty = empty
        reasons: dict[str, list[str]] = {}
        for self.library in libraries():
            for self.flat in (True, False):
                try:
                    self.first_call()
                except (KernelRaisedError, MalformedResultError) as error:
                    axes = "(n,)" if self.flat else "(1, n)"
                    reasons.setdefault(str(error), []).append(f"{self.library} {axes}")
                else:
                    return
        tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        msg = f"the {self.what} could not be called ({tried}); expected {self.expected}"
        raise SubjectError(msg)

    @abstractmethod
    def first_call(self) -> None:
        """Make the plain call that says whether these arrays are taken."""

    def call(self, values: Any, *arguments: Any, dtype: str = "float64") -> Any:
        """Call the function with one row (n,) or with what has more axes; return what it returns."""
        values = np.asarray(values, np.float64)
        if values.ndim == 1 and not self.flat:
            values = values[None]
        return guarded(self.function, hand_over(values, self.library, dtype), *arguments)

    def narrow(self, run: Callable[[], Any], dtype: str) -> Any:
        """Run a call in another dtype, which a function need not take."""
        if self.library == LISTS:
            msg = f"lists of floats are not {dtype}"
            raise NotApplicableError(msg)
        try:
            return run()
        except (KernelRaisedError, MalformedResultError) as error:
            msg = f"arrays of {dtype}: {error}"
            raise NotApplicableError(msg) from None


def sized(row: Sequence[float]) -> float:
    """Return the largest magnitude of the finite scores of a row, as it enters a tolerance.

    Rounded scores differ by less than that where they weigh anything: it is cut at 4000.
    """
    return min(max((abs(s) for s in row if math.isfinite(s)), default=0.0), 4000.0)


def tail_rows() -> list[list[float]]:
    """Rows of every length of ``SIZES``, of zeros with a last score of 1."""
    return [[0.0] * (n - 1) + [1.0] for n in SIZES]
