"""What the two forms of a merge share: how a merge of one row is called, and what each form has to say."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.blocks._asking import Case, Question, guarded
from softcarry.auditing.blocks._values import LISTS, hand_over, libraries, numbers, parts
from softcarry.errors import SubjectError

# How one row is handed over: m and l with what axes, o with what axes. "each" calls once for every value.
_ROWS = {"rows": ((1,), (1, 2)), "columns": ((1, 1), (1, 2)), "row": ((), (2,)), "each": ((), ())}


def _ways():
    """List what a row may be handed over as: arrays and lists, then one value o at a time as floats."""
    for library in libraries():
        if library == LISTS:
            yield LISTS, "row"
            yield "float", "each"
        else:
            yield from ((library, rows) for rows in _ROWS if rows != "each")


class Merge(ABC):
    """A merge that can be called with two partials of one row, dv = 2.

    Parameters
    ----------
    function : callable

    Attributes
    ----------
    library, rows, dtype : str
        Of what it is handed: arrays or lists, and how a row lies in them.

    Raises
    ------
    SubjectError
        If no kind of arrays gives a result of the right form.
    """

    what = expected = ""
    empty: Any
    plain: Any
    three: tuple[Any, ...]
    dtype = "float64"

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        reasons: dict[str, list[str]] = {}
        for self.library, self.rows in _ways():
            try:
                self(self.plain, self.plain)
            except (KernelRaisedError, MalformedResultError) as error:
                reasons.setdefault(str(error), []).append(f"{self.library} {self.rows}")
                continue
            return
        tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        msg = f"the merge could not be called ({tried}); expected {self.expected}"
        raise SubjectError(msg)

    @property
    def facts(self) -> dict[str, Any]:
        """What was inferred."""
        from softcarry.report.model import Fact

        return {"row layout": Fact(self.rows, 1.0, "the first that a plain call takes")}

    def __call__(self, first: Any, second: Any) -> Any:
        """Merge two partials of one row."""
        if self.rows != "each":
            return self._call(first, second)
        width = len(self._wide(first))
        single = [self._call(self._narrow(first, i), self._narrow(second, i)) for i in range(width)]
        return self._joined(single)

    def _call(self, first, second):
        scalar, wide = _ROWS[self.rows]
        handed = [
            type(part)(
                *(self._hand_over(field, wide if isinstance(field, tuple) else scalar) for field in part)
            )
            for part in (first, second)
        ]
        result = guarded(self.function, *self.arguments(*map(tuple, handed)))
        fields = []
        names = self.what.strip("()").split(", ")
        for name, field, given in zip(names, parts(result, len(names), self.what), first, strict=True):
            values = numbers(field, name)
            shape = wide if isinstance(given, tuple) else scalar
            if values.size != math.prod(shape):
                msg = f"returned {name} of shape {values.shape} where {shape} was expected"
                raise MalformedResultError(msg)
            fields.append(values.reshape(-1) if isinstance(given, tuple) else values.reshape(()))
        return self.join(fields)

    def _hand_over(self, field, shape):
        if self.library == "float":
            return float(np.asarray(field).reshape(()))
        if self.library == "numpy" and shape == ():
            return np.float64(field)
        return hand_over(np.reshape(np.asarray(field, np.float64), shape), self.library)

    def two_rows(self) -> Any:
        """Merge two rows at once, t = dv = 2: a list of two results, or None if it refuses."""
        pairs = self.pairs()
        stacked = []
        for side in (0, 1):
            fields = zip(*(pair[side] for pair in pairs), strict=True)
            stacked.append(tuple(hand_over(np.asarray(field), self._array_library()) for field in fields))
        try:
            result = guarded(self.function, *self.arguments(*stacked))
            names = self.what.strip("()").split(", ")
            fields = [numbers(x, self.what) for x in parts(result, len(names), self.what)]
            return [self.join([field[row] for field in fields]) for row in (0, 1)]
        except (KernelRaisedError, MalformedResultError, TypeError, IndexError):
            return None

    def _array_library(self):
        return self.library if self.library in ("numpy", "torch") else "numpy"

    def pairs(self) -> list[tuple[Any, Any]]:
        """List two pairs of partials, of which the second is the first with sides swapped."""
        low, high = self.levels(0.0, 1.0)
        return [(low, high), (high, low)]

    def _wide(self, part):
        return next(field for field in part if isinstance(field, tuple))

    def _narrow(self, part, index):
        return type(part)(*((field[index],) if isinstance(field, tuple) else field for field in part))

    def _joined(self, single):
        columns = tuple(self._wide(part)[0] for part in single)
        return type(single[0])(*(columns if isinstance(field, tuple) else field for field in single[0]))

    def case(self, first: Any, second: Any, *, agrees: Callable[[Any], bool] | None = None) -> Case:
        """Make a case of two partials, which by default are to give the exact result."""
        right = self.exact(first, second)
        return Case(
            self.pair_written(first, second),
            lambda: self(first, second),
            self.written(right),
            agrees or (lambda came: self.near(came, right, first, second)),
            self.written,
            (first, second),
        )

    def pair_written(self, first: Any, second: Any) -> str:
        """Write a call of two partials."""
        return f"f({self.written(first)}, {self.written(second)})"

    # Each form of a merge says what follows.

    @abstractmethod
    def arguments(self, first: Any, second: Any) -> tuple[Any, ...]:
        """Return the arguments of a call."""

    @abstractmethod
    def exact(self, first: Any, second: Any) -> Any:
        """Return the exact result."""

    @abstractmethod
    def written(self, part: Any) -> str:
        """Write a partial."""

    @abstractmethod
    def join(self, fields: Any) -> Any:
        """Make a partial of what came, one array a field."""

    @abstractmethod
    def near(self, came: Any, right: Any, first: Any, second: Any) -> bool:
        """Whether a result is right within the rounding of that merge."""

    @abstractmethod
    def is_nan(self, part: Any) -> tuple[bool, list[bool]]:
        """Whether the sum, and which values, are NaN."""

    @abstractmethod
    def questions(self) -> list[Question]:
        """List the questions to this function, in order."""

    @abstractmethod
    def levels(self, first: float, second: float) -> tuple[Any, Any]:
        """Two partials of one key each, with those scores and the values (1, 0) and (0, 1)."""

    @abstractmethod
    def nan_cases(self) -> list[tuple[Any, Any]]:
        """Pairs of which one holds NaN."""

    @abstractmethod
    def infinite_cases(self) -> list[tuple[Any, Any]]:
        """Pairs of which one has met a score of +inf."""

    @abstractmethod
    def swallowed(self, part: Any) -> bool:
        """Whether nothing shows that a score was +inf."""
