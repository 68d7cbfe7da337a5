"""A binary counter of partial carries: one pass over a stream, with the depth of a tree."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from softcarry.errors import OptionError

T = TypeVar("T")


def _merge_by_method(older: Any, newer: Any) -> Any:
    return older.merge(newer)


class CarryStack(Generic[T]):
    """Merge a stream of carries pairwise, keeping no more than log2 n + 1 of them.

    Merging each new carry into a running one passes the first through n − 1 merges, and in a narrow carry
    format the sum stagnates. Here a carry of 2^k pushed ones waits for an equal to merge with, as the bits of
    a binary counter do, so that no carry passes through more than ⌈log2 n⌉ merges. A kernel that streams its
    key blocks can do the same: it is the answer to "a flash kernel cannot sum pairwise".

    Parameters
    ----------
    merge : callable, optional
        ``merge(older, newer)`` of two carries, by default ``older.merge(newer)``: that of `Carry`, `Moments`
        and whatever else has such a method. It has to be associative, up to rounding; it is given neighbours
        only, the older first, so it need not commute. It must leave its arguments as they are.

    Raises
    ------
    OptionError
        ``merge`` is not callable.

    Notes
    -----
    Carries are kept as they come: empty ones, NaN and infinities are the business of ``merge``, which also
    raises what it raises when two do not fit together; the stack is then as it was.

    The order of the merges is that of `softcarry.numerics.running_sum` with ``order="carry-stack"``.

    References
    ----------
    Pairwise summation: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section
    4.1. The counter is how merge sort keeps its runs bottom up: Knuth, The Art of Computer Programming 3, 2nd
    ed., 1998, section 5.2.4, and the binomial heap of Vuillemin, Commun. ACM 21(4), 1978.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> stack = sc.CarryStack()
    >>> for block in np.split(np.arange(12.0), 6):
    ...     stack.push(sc.Carry.of(block))
    >>> len(stack), stack.count, round(float(stack.total().lse), 4)
    (2, 6, 11.4587)

    Numbers in a format are merged by a rounded sum:

    >>> bfloat16 = sc.numerics.formats["bfloat16"]
    >>> ones = sc.CarryStack(lambda a, b: bfloat16.round(a + b))
    >>> for _ in range(1000):
    ...     ones.push(1.0)
    >>> float(ones.total())
    1000.0
    """

    def __init__(self, merge: Callable[[T, T], T] | None = None) -> None:
        if merge is not None and not callable(merge):
            kind = type(merge).__name__
            msg = f"merge must be a function of two carries; got {kind}: pass merge(older, newer)"
            raise OptionError(msg)
        self._merge: Callable[[Any, Any], Any] = _merge_by_method if merge is None else merge
        self._partials: list[T] = []
        self._count = 0

    @property
    def count(self) -> int:
        """How many carries were pushed."""
        return self._count

    def __len__(self) -> int:
        """How many partial carries are kept: the ones among the binary digits of `count`."""
        return len(self._partials)

    def push(self, carry: T) -> None:
        """Add the next carry of the stream.

        Parameters
        ----------
        carry : Carry, Moments, or what the stack's merge takes
            Kept by reference until it is merged.
        """
        merged = carry
        # As many partials have an equal as the counter has ones at its end.
        equals = ((self._count + 1) & -(self._count + 1)).bit_length() - 1
        for partial in reversed(self._partials[len(self._partials) - equals :]):
            merged = self._merge(partial, merged)
        self._partials[len(self._partials) - equals :] = [merged]
        self._count += 1

    def total(self) -> T:
        """Merge what is kept, the youngest first, and leave the stack as it is.

        Returns
        -------
        Carry, Moments, or what the stack's merge returns
            The merge of everything pushed so far; more may be pushed after it.

        Raises
        ------
        OptionError
            Nothing was pushed: only the caller knows the shape of an empty carry.
        """
        if not self._partials:
            msg = "total needs at least one carry; got an empty stack: push Carry.empty(shape) first"
            raise OptionError(msg)
        merged = self._partials[-1]
        for partial in reversed(self._partials[:-1]):
            merged = self._merge(partial, merged)
        return merged
