"""How often softmax touches memory: the algorithms run over rows that count loads and stores.

The few numbers that an algorithm keeps are not counted; ``held`` of the rows' ledger shows that they are few.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from softcarry._counted_row import CountedRow, Pass
from softcarry._softmax_algorithms import (
    Best,
    online_softmax,
    online_softmax_topk,
    safe_softmax,
    safe_softmax_then_topk,
    unsafe_softmax,
)
from softcarry.errors import OptionError, ShapeError
from softcarry.numerics._arguments import whole


@dataclass(frozen=True)
class Accesses:
    """What one algorithm loaded and stored on one row.

    Attributes
    ----------
    algorithm : str
        Its name.
    n : int
        The number of scores.
    passes : tuple of Pass
        Its walks over the row, in order.
    held : int
        How many loaded numbers were alive at once, at most.
    l : float
        The sum that the probabilities were divided by.
    probabilities : tuple of float
        All n of them; of a top-k, the k largest in descending order.
    indices : tuple of int or None
        Where the probabilities of a top-k stand in the row.
    """

    algorithm: str
    n: int
    passes: tuple[Pass, ...]
    held: int
    l: float
    probabilities: tuple[float, ...]
    indices: tuple[int, ...] | None

    @property
    def loads(self) -> int:
        """Over all passes."""
        return sum(one.loads for one in self.passes)

    @property
    def stores(self) -> int:
        """Over all passes; the k results of a top-k are not among them, as they do not grow with the row."""
        return sum(one.stores for one in self.passes)

    @property
    def accesses(self) -> int:
        """Loads and stores together."""
        return self.loads + self.stores

    @property
    def per_element(self) -> float:
        """Loads and stores together, for each score of the row."""
        return self.accesses / self.n


def count_softmax(
    algorithm: Callable[[CountedRow, CountedRow], float | tuple[Best, float]],
    scores: Iterable[float],
    *,
    name: str,
    passes: Sequence[str] | None = None,
) -> Accesses:
    """Run an algorithm on a counted row and say what it loaded and stored.

    Parameters
    ----------
    algorithm : callable
        Takes the scores and a row to write probabilities to; returns l, or the k best and l.
    scores : iterable of real numbers
        Shape (n,), n ≥ 1; −inf, inf and NaN as the algorithm takes them.
    name : str
        What to call it.
    passes : sequence of str, optional
        What to call its passes.

    Returns
    -------
    Accesses
        The counts, and the result.

    Raises
    ------
    ShapeError
        If there is no score, since counts are for each score.
    DTypeError
        If the scores are no real numbers.
    OptionError
        If the names of the passes are not as many as the passes that were counted.

    Examples
    --------
    >>> from softcarry._softmax_algorithms import online_softmax
    >>> from softcarry.memory_passes import count_softmax
    >>> count_softmax(online_softmax, [2, 5, 1, 7], name="online").per_element
    3.0
    """
    row = CountedRow(scores)
    if not len(row):
        msg = "accesses are counted for each score; got a row without any; pass at least one score"
        raise ShapeError(msg)
    out = row.blank()
    result = algorithm(row, out)
    counted = row.ledger.passes
    names = [""] * len(counted) if passes is None else list(passes)
    if len(names) != len(counted):
        msg = f"passes names each pass of {name}; got {len(names)} names for {len(counted)} passes"
        raise OptionError(msg)
    best, l = result if isinstance(result, tuple) else (None, result)
    return Accesses(
        algorithm=name,
        n=len(row),
        passes=tuple(Pass(word, p.loads, p.stores) for word, p in zip(names, counted, strict=True)),
        held=row.ledger.held,
        l=l,
        probabilities=out.peek() if best is None else best.probabilities,
        indices=None if best is None else best.indices,
    )


def count_accesses(
    scores: Iterable[float], *, k: int = 5, progress: Callable[[int, int], None] | None = None
) -> tuple[Accesses, ...]:
    """Count the loads and stores of unsafe, safe and online softmax, and of top-k after and within it.

    Parameters
    ----------
    scores : iterable of real numbers
        Shape (n,), n ≥ 1. −inf is a masked key, with probability 0. NaN or inf makes every probability NaN;
        `unsafe_softmax` has rules of its own.
    k : int
        How many probabilities the top-k algorithms find, 1 to n.
    progress : callable, optional
        Called after each algorithm with how many are done, and how many there are.

    Returns
    -------
    tuple of Accesses
        "unsafe softmax", "safe softmax", "online softmax", "safe, then top-k" and "online with top-k", in
        this order: 3, 4, 3, 5 and 1 accesses a score, for every row and every k.

    Raises
    ------
    ShapeError
        If there is no score, or the scores are not one row.
    DTypeError
        If the scores are no real numbers.
    OptionError
        If k is no whole number from 1 to n.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, sections 2-4.

    Examples
    --------
    >>> from softcarry.memory_passes import count_accesses
    >>> [run.per_element for run in count_accesses([2, 5, 1, 7], k=2)]
    [3.0, 4.0, 3.0, 5.0, 1.0]
    """
    row = CountedRow(scores).peek()
    k = whole("k", k, 1)
    if row and k > len(row):
        msg = f"k is at most the number of scores, {len(row)}; got {k}; ask for fewer, or give more scores"
        raise OptionError(msg)
    algorithms = (
        ("unsafe softmax", ("sum", "scale"), unsafe_softmax),
        ("safe softmax", ("max", "sum", "scale"), safe_softmax),
        ("online softmax", ("max, sum", "scale"), online_softmax),
        (
            "safe, then top-k",
            ("max", "sum", "scale", "k best"),
            lambda scores, out: safe_softmax_then_topk(scores, out, k),
        ),
        ("online with top-k", ("max, sum, k best",), lambda scores, _out: online_softmax_topk(scores, k)),
    )
    runs = []
    for name, passes, algorithm in algorithms:
        runs.append(count_softmax(algorithm, row, name=name, passes=passes))
        if progress is not None:
            progress(len(runs), len(algorithms))
    return tuple(runs)
