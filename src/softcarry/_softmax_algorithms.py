"""Five ways to a softmax in plain Python, to be read side by side: what each reads and writes, and how often.

Memory here is what grows with the row: the scores, and the probabilities where all of them are written. The
few numbers that an algorithm keeps (m, l, the k best) stand for registers.
"""

import math
from bisect import insort
from typing import NamedTuple

from softcarry._counted_row import CountedRow

Row = CountedRow | list[float]


class Best(NamedTuple):
    """The k largest probabilities of a row.

    Attributes
    ----------
    probabilities : tuple of float
        In descending order. Ties go to the lower index; NaN stands first, −inf among scores last.
    indices : tuple of int
        Where in the row they are.
    """

    probabilities: tuple[float, ...]
    indices: tuple[int, ...]


def unsafe_softmax(scores: Row, out: Row) -> float:
    """Write e^s / Σ e^s to ``out``, as the formula stands: two loads and a store of each score.

    Parameters
    ----------
    scores, out : CountedRow or list of float
        Shape (n,); n = 0 writes nothing.

    Returns
    -------
    float
        l = Σ e^s, relative to no maximum. It is inf once a score is above 709.78, or the sum beyond float64,
        and 0 if all scores are below −745.13 or −inf: every probability is then NaN or 0. A NaN among the
        scores makes all of them NaN; inf makes its own NaN and the others 0.

    References
    ----------
    Milakov and Gimelshein, arXiv:1805.02867, section 2, algorithm 1.

    Examples
    --------
    >>> from softcarry._softmax_algorithms import unsafe_softmax
    >>> out = [0.0, 0.0]
    >>> unsafe_softmax([1000.0, 0.0], out), out
    (inf, [nan, 0.0])
    """
    l = 0.0
    for s in scores:
        l += _exp(s)
    for i, s in enumerate(scores):
        # Python raises where float64 has an answer: 0 / 0 is NaN.
        out[i] = _exp(s) / l if l else math.nan
    return l


def safe_softmax(scores: Row, out: Row) -> float:
    """Write e^(s − m) / Σ e^(s − m) to ``out``, with m found first: three loads and a store of each score.

    Parameters
    ----------
    scores, out : CountedRow or list of float
        Shape (n,); n = 0 writes nothing.

    Returns
    -------
    float
        l, between 1 and n; 0 for a row of nothing but −inf, whose probabilities are 0. NaN or inf among the
        scores makes l and every probability NaN.

    References
    ----------
    Milakov and Gimelshein, arXiv:1805.02867, section 2, algorithm 2.

    Examples
    --------
    >>> from softcarry._softmax_algorithms import safe_softmax
    >>> out = [0.0, 0.0]
    >>> safe_softmax([1000.0, 0.0], out), out
    (1.0, [1.0, 0.0])
    """
    m = -math.inf
    for s in scores:
        m = max(m, s)
    l = 0.0
    for s in scores:
        l += math.exp(s - _shift(m))
    _scale(scores, m, l, out)
    return l


def online_softmax(scores: Row, out: Row) -> float:
    """Write the same as `safe_softmax`, with m and l found in one walk: two loads and a store of each score.

    Whenever the maximum rises, what l holds so far is rescaled to it by e^(m_old − m).

    Parameters
    ----------
    scores, out : CountedRow or list of float
        Shape (n,); n = 0 writes nothing.

    Returns
    -------
    float
        l, and everything else, by the rules of `safe_softmax`.

    References
    ----------
    Milakov and Gimelshein, arXiv:1805.02867, section 3, algorithm 3.

    Examples
    --------
    >>> from softcarry._softmax_algorithms import online_softmax
    >>> out = [0.0] * 4
    >>> round(online_softmax([2.0, 5.0, 1.0, 7.0], out), 4)
    1.1446
    >>> [round(p, 4) for p in out]
    [0.0059, 0.1182, 0.0022, 0.8737]
    """
    m, l = -math.inf, 0.0
    for s in scores:
        m, l = _absorb(m, l, s)
    _scale(scores, m, l, out)
    return l


def safe_softmax_then_topk(scores: Row, out: Row, k: int) -> tuple[Best, float]:
    """Write `safe_softmax` to ``out``, and read it once more for its k largest: four loads and a store.

    Parameters
    ----------
    scores, out : CountedRow or list of float
        Shape (n,).
    k : int
        How many, k ≥ 0; a row of fewer gives all of them.

    Returns
    -------
    best : Best
        The k largest probabilities. Scores whose probabilities round to the same number are a tie, and so
        are all scores of a row with NaN or inf.
    l : float
        By the rules of `safe_softmax`, like the probabilities.

    References
    ----------
    Milakov and Gimelshein, arXiv:1805.02867, section 4.

    Examples
    --------
    >>> from softcarry._softmax_algorithms import safe_softmax_then_topk
    >>> safe_softmax_then_topk([2.0, 5.0, 1.0, 7.0], [0.0] * 4, k=2)[0].indices
    (3, 1)
    """
    l = safe_softmax(scores, out)
    best: list[tuple[float, int]] = []
    for i, p in enumerate(out):
        _keep_best(best, k, p, i)
    return Best(tuple(float(p) for p, _ in best), tuple(i for _, i in best)), l


def online_softmax_topk(scores: Row, k: int) -> tuple[Best, float]:
    """Find m, l and the k largest scores in one walk, and make k probabilities of them: one load a score.

    Parameters
    ----------
    scores : CountedRow or list of float
        Shape (n,); any iterable would do, as it is read once.
    k : int
        How many, k ≥ 0; a row of fewer gives all of them.

    Returns
    -------
    best : Best
        The probabilities of the k largest scores, NaN before inf.
    l : float
        By the rules of `safe_softmax`, like the probabilities.

    References
    ----------
    Milakov and Gimelshein, arXiv:1805.02867, section 4, algorithm 4.

    Examples
    --------
    >>> from softcarry._softmax_algorithms import online_softmax_topk
    >>> best, l = online_softmax_topk([2.0, 5.0, 1.0, 7.0], k=2)
    >>> best.indices, [round(p, 4) for p in best.probabilities]
    ((3, 1), [0.8737, 0.1182])
    """
    m, l = -math.inf, 0.0
    best: list[tuple[float, int]] = []
    for i, s in enumerate(scores):
        m, l = _absorb(m, l, s)
        _keep_best(best, k, s, i)
    return Best(tuple(_probability(s, m, l) for s, _ in best), tuple(i for _, i in best)), l


def _exp(s: float) -> float:
    """e^s, inf where Python would raise."""
    try:
        return math.exp(s)
    except OverflowError:
        return math.inf


def _shift(m: float) -> float:
    """Return m, or 0 where every score so far is −inf: −inf − (−inf) would be NaN."""
    return 0.0 if m == -math.inf else m


def _absorb(m: float, l: float, s: float) -> tuple[float, float]:
    if s > m:
        # The second term is 1, but NaN for inf.
        return s, l * math.exp(m - s) + math.exp(s - s)
    return m, l + math.exp(s - _shift(m))


def _probability(s: float, m: float, l: float) -> float:
    return math.exp(s - _shift(m)) / l if l else 0.0


def _scale(scores: Row, m: float, l: float, out: Row) -> None:
    for i, s in enumerate(scores):
        out[i] = _probability(s, m, l)


def _keep_best(best: list[tuple[float, int]], k: int, number: float, index: int) -> None:
    insort(best, (number, index), key=_rank)
    del best[k:]


def _rank(entry: tuple[float, int]) -> tuple[int, float, int]:
    number, index = entry
    return (0, 0.0, index) if math.isnan(number) else (1, -number, index)
