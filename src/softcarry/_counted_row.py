"""A row that counts how often each of its numbers is read and written, and in how many passes."""

import numbers
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, overload

from softcarry.errors import DTypeError, ShapeError


@dataclass(frozen=True)
class Pass:
    """One walk over the row, from its start towards its end.

    Attributes
    ----------
    name : str
        What the walk is for; empty where nobody said.
    loads, stores : int
        How many elements were read and written during it, counted each time.
    """

    name: str
    loads: int
    stores: int


class Ledger:
    """What the rows that share it have been asked for.

    A pass begins with the first access, with every iteration over a row, and when an access goes back to a
    lower index than the one before. Rows walked in step, as by ``zip``, share a pass.

    Attributes
    ----------
    held : int
        How many loaded numbers were alive at once, at most. A copy such as ``list(row)`` holds all of them.
        A number that was computed from a loaded one, or packed into an array, is not seen here: only a look
        at the memory of the process finds such a copy (`tracemalloc`).
    """

    def __init__(self) -> None:
        self.held = 0
        self._alive = 0
        self._loads: list[int] = []
        self._stores: list[int] = []
        self._index = 0
        self._touched: set[int] = set()

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes so far, without names."""
        return tuple(Pass("", loads, stores) for loads, stores in zip(self._loads, self._stores, strict=True))

    def _begin(self, row: "CountedRow") -> None:
        in_step = self._loads and self._index == 0 and id(row) not in self._touched
        if not in_step:
            self._open()

    def _open(self) -> None:
        self._loads.append(0)
        self._stores.append(0)
        self._index = 0
        self._touched.clear()

    def _count(self, row: "CountedRow", index: int, *, store: bool = False) -> None:
        if not self._loads or index < self._index:
            self._open()
        self._index = index
        self._touched.add(id(row))
        (self._stores if store else self._loads)[-1] += 1


class _Loaded(float):
    """A number that tells its ledger for how long it is kept; arithmetic on it gives plain floats."""

    __slots__ = ("_ledger",)

    def __new__(cls, value: float, ledger: Ledger) -> "_Loaded":
        self = super().__new__(cls, value)
        self._ledger = ledger
        ledger._alive += 1
        ledger.held = max(ledger.held, ledger._alive)
        return self

    def __del__(self) -> None:
        self._ledger._alive -= 1


def _real(number: Any) -> Any:
    # NumPy's complex numbers become floats by themselves, with a warning.
    if isinstance(number, numbers.Complex) and not isinstance(number, numbers.Real):
        msg = "must be real number, not complex"
        raise TypeError(msg)
    return number


class CountedRow:
    """A row of float64 numbers that counts how often each of them is read and written.

    Iterating, indexing and slicing count a load for every element that they give; assigning to an index
    counts a store. ``len`` counts nothing. There is no other way in but `peek`.

    Parameters
    ----------
    values : iterable of real numbers
        Shape (n,), n ≥ 0: −inf, inf and NaN are kept as they are.

    Attributes
    ----------
    loads, stores : list of int
        For each element, how often it was read and written.
    ledger : Ledger
        The counts in passes, shared with the rows that `blank` made from this one.

    Raises
    ------
    DTypeError
        If the values are no real numbers.
    ShapeError
        If they are an array of no axis or several.

    Examples
    --------
    >>> from softcarry._counted_row import CountedRow
    >>> row = CountedRow([2, 5, 1, 7])
    >>> max(row), sum(row[1:])
    (7.0, 13.0)
    >>> row.loads, row.ledger.passes
    ([1, 2, 2, 2], (Pass(name='', loads=4, stores=0), Pass(name='', loads=3, stores=0)))
    """

    __reversed__ = None

    def __init__(self, values: Iterable[float]) -> None:
        if getattr(values, "ndim", 1) != 1:
            msg = f"a counted row has shape (n,); got shape {getattr(values, 'shape', None)}; pass one row"
            raise ShapeError(msg)
        try:
            if isinstance(values, str | bytes | bytearray):
                raise TypeError
            self._values = array("d", map(_real, values))
        except (TypeError, ValueError, OverflowError) as error:
            cause = f" ({error})" if str(error) else ""
            msg = f"a counted row takes real numbers; got {type(values).__name__}{cause}; pass floats"
            raise DTypeError(msg) from error
        self.loads = [0] * len(self._values)
        self.stores = [0] * len(self._values)
        self.ledger = Ledger()

    def blank(self) -> "CountedRow":
        """Make a row of as many zeros, to be written to, that counts in the same ledger."""
        row = CountedRow([0.0] * len(self))
        row.ledger = self.ledger
        return row

    def peek(self) -> tuple[float, ...]:
        """Return the numbers without counting: for a look at the result once the run is over."""
        return tuple(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        self.ledger._begin(self)
        for index in range(len(self)):
            yield self._load(index)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, slice):
            return [self._load(i) for i in range(len(self))[index]]
        return self._load(range(len(self))[index])

    def __setitem__(self, index: int, value: float) -> None:
        place = range(len(self))[index]
        self._values[place] = value
        self.ledger._count(self, place, store=True)
        self.stores[place] += 1

    def _load(self, place: int) -> float:
        self.ledger._count(self, place)
        self.loads[place] += 1
        return _Loaded(self._values[place], self.ledger)
