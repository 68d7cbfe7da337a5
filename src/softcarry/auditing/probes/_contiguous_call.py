"""A call with contiguous inputs, to which others with the same values are held."""

from functools import cached_property

import numpy as np

from softcarry.auditing._calling import Outcome
from softcarry.auditing.arrangements import Arranger, contiguous
from softcarry.auditing.probes._differences import Difference, difference

BATCH, HEADS, KEYS, DEPTH = 2, 3, 641, 32
QUERIES = (33, 1)


def problem(examination, queries):
    """Draw q, k and v, all rows of normal data.

    Parameters
    ----------
    examination : Examination
        Gives the generator and the rounding.
    queries : int

    Returns
    -------
    q, k, v : ndarray
        (2, 3, t, 32) float64, exact in the dtype.
    """
    return tuple(
        examination.round(examination.rng.standard_normal((BATCH, HEADS, tokens, DEPTH)))
        for tokens in (queries, KEYS, KEYS)
    )


class Call:
    """A call with contiguous inputs, and how far others with the same values are from it.

    Parameters
    ----------
    examination : Examination
    q, k, v : ndarray
        float64 (b, h, t, d).
    **options
        Of ``examination.call``.
    """

    def __init__(self, examination, q, k, v, **options):
        self.examination = examination
        self.inputs = q, k, v
        self.options = options
        self.watch = Arranger(contiguous)
        self.outcome = examination.call(q, k, v, **options, arrange=self.watch)

    @cached_property
    def bound(self):
        """The bound on the error of this call."""
        return self.examination.bound(*self.inputs, **self.options)

    @cached_property
    def accurate(self) -> bool:
        """Whether this call is within its bound: if not, nothing can be said about others but their bits."""
        doubled = 2.0 if self.examination.dtype == "float64" else 1.0
        error = np.abs(self.outcome.output - self.examination.golden(*self.inputs, **self.options).output)
        return bool((error <= doubled * self.bound.output).all())

    def compare(self, other: Outcome) -> tuple[str, Difference]:
        """Say how an outcome stands to this one.

        Returns
        -------
        str
            "same bits", "within the bound", "wrong" or, as this call is beyond its own bound, "not judged".
        Difference
        """
        found = difference(
            self.outcome, other, lambda: Outcome(2.0 * self.bound.output, 2.0 * self.bound.lse)
        )
        if found.bitwise:
            return "same bits", found
        if found.excess <= 1.0:
            return "within the bound", found
        return ("wrong" if self.accurate else "not judged"), found
