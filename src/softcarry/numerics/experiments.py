"""Two measurements of a running sum in a narrow format: where it stagnates, and how far a carry reaches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from softcarry.errors import OptionError
from softcarry.numerics._formats import FloatFormat, get_format
from softcarry.numerics.summation_bounds import one_of, whole
from softcarry.numerics.swamping import carry_error

Distribution = Literal["equal", "uniform", "exponential", "lognormal"]
SumOrder = Literal["sequential", "pairwise"]

_ELEMENTS_AT_ONCE = 2**22
_LONGEST = 2**27
_MOST_TERMS = 2**34
# What the predictions call the terms that the measurement draws; for exponential ones there is none.
_PREDICTED_TERMS = {"equal": "equal", "uniform": "uniform", "lognormal": "normal"}


@dataclass(frozen=True)
class SumCurve:
    """Error of a running sum against the number of its terms.

    Attributes
    ----------
    format, distribution, order : str
        The format of the sum, what the terms are, and the order of summation.
    drop_index : int
        2^(t+1) of the format: where a sequential sum of equal terms stops.
    n : tuple of int
        Numbers of terms.
    error : tuple of float
        Relative error of the sum at each n, the mean over the rows; infinity once a row overflows.
    largest : tuple of float
        The largest of the rows.
    rows, seed : int
        How many rows were summed, and the seed of their terms.
    """

    format: str
    distribution: Distribution
    order: SumOrder
    drop_index: int
    n: tuple[int, ...]
    error: tuple[float, ...]
    largest: tuple[float, ...]
    rows: int
    seed: int


@dataclass(frozen=True)
class Envelope:
    """Error of the carry's l against the number of its updates, n/Bc.

    Attributes
    ----------
    format, distribution : str
        The carry format, and what the terms are.
    drop_index : int
        2^(t+1): the number of updates at which the error falls off.
    n : int
        Keys in a row.
    key_block, updates : tuple of int
        Key blocks Bc from n down to 1, and the updates ⌈n/Bc⌉ that each takes.
    error, largest : tuple of float
        Relative error of l, the mean and the largest of the rows.
    predicted : tuple of float or None
        What :func:`softcarry.numerics.carry_error` expects; None for exponential terms.
    rows, seed : int
        How many rows were summed, and the seed of their terms.
    """

    format: str
    distribution: Distribution
    drop_index: int
    n: int
    key_block: tuple[int, ...]
    updates: tuple[int, ...]
    error: tuple[float, ...]
    largest: tuple[float, ...]
    predicted: tuple[float, ...] | None
    rows: int
    seed: int


def softmax_terms(distribution: Distribution, n: int, *, rows: int = 1, seed: int = 0) -> NDArray[np.float64]:
    """Draw rows of terms e^(s − m) as a carry sums them: none negative, none above 1.

    Parameters
    ----------
    distribution : {"equal", "uniform", "exponential", "lognormal"}
        All 1; uniform on [0, 1); exponential; or lognormal, which is what standard normal scores give. The
        last two are divided by the largest of their row.
    n, rows : int
        Terms in a row, and rows; both at least 1.
    seed : int
        A row depends on its number, n, and the seed, and on nothing else.

    Returns
    -------
    ndarray
        Shape (rows, n), float64.

    Raises
    ------
    OptionError
        An unknown distribution, or a number below its least value.

    Examples
    --------
    >>> from softcarry.numerics.experiments import softmax_terms
    >>> softmax_terms("equal", 3).tolist()
    [[1.0, 1.0, 1.0]]
    """
    one_of("distribution", distribution, get_args(Distribution))
    n, rows, seed = _length("n", n), _rows(rows, n), whole("seed", seed, 0)
    return np.stack([_row(distribution, n, row, seed) for row in range(rows)])


def sum_curve(
    fmt: FloatFormat | str,
    *,
    distribution: Distribution = "uniform",
    order: SumOrder = "sequential",
    max_n: int = 65536,
    rows: int = 64,
    seed: int = 0,
) -> SumCurve:
    """Measure the error of a running sum in one format as it grows.

    The terms are rounded to the format before they are summed and compared with their own float64 sum, so
    that the error is that of the summation alone.

    Parameters
    ----------
    fmt : FloatFormat or str
        The format of the sum.
    distribution : {"equal", "uniform", "exponential", "lognormal"}
        What the terms are, see :func:`softmax_terms`.
    order : {"sequential", "pairwise"}
        One accumulator, or a tree.
    max_n : int
        The curve has the powers of 4 from 16, and ends at ``max_n``, which is at least 1.
    rows, seed : int
        How many rows to average over, and the seed of their terms.

    Returns
    -------
    SumCurve
        The curve.

    Raises
    ------
    OptionError
        An unknown format, distribution or order, or a number below its least value.

    References
    ----------
    Higham, The Accuracy of Floating Point Summation, SIAM J. Sci. Comput. 14(4), 1993.

    Examples
    --------
    >>> from softcarry.numerics.experiments import sum_curve
    >>> curve = sum_curve("bfloat16", distribution="equal", max_n=1024, rows=1)
    >>> dict(zip(curve.n, curve.error))
    {16: 0.0, 64: 0.0, 256: 0.0, 1024: 0.75}
    """
    from softcarry.numerics.summation import running_sum

    fmt = get_format(fmt)
    one_of("distribution", distribution, get_args(Distribution))
    one_of("order", order, get_args(SumOrder))
    max_n, rows, seed = _length("max_n", max_n), _rows(rows, max_n), whole("seed", seed, 0)
    lengths = _lengths(max_n)
    mean, largest = [], []
    for n in lengths:
        errors = []
        for terms in _batches(distribution, n, rows, seed):
            exact = fmt.round(terms)
            errors.append(_relative(running_sum(exact, fmt, order), np.sum(exact, axis=-1)))
        mean.append(float(np.mean(np.concatenate(errors))))
        largest.append(float(np.max(np.concatenate(errors))))
    return SumCurve(
        fmt.name, distribution, order, fmt.drop_index, lengths, tuple(mean), tuple(largest), rows, seed
    )


def envelope(
    fmt: FloatFormat | str = "bfloat16",
    *,
    n: int = 8192,
    distribution: Distribution = "lognormal",
    rows: int = 64,
    seed: int = 0,
) -> Envelope:
    """Measure the error of a carry against n/Bc, the number of its updates.

    A key block is summed in float64 and added to l with one rounding to the carry format, as in a kernel
    whose blocks are summed wide and whose carry is narrow.

    Parameters
    ----------
    fmt : FloatFormat or str
        The carry format.
    n : int
        Keys in a row, at least 1.
    distribution : {"equal", "uniform", "exponential", "lognormal"}
        What the terms are, see :func:`softmax_terms`.
    rows, seed : int
        How many rows to average over, and the seed of their terms.

    Returns
    -------
    Envelope
        Key blocks n and then every smaller power of two down to 1.

    Raises
    ------
    OptionError
        An unknown format or distribution, or a number below its least value.

    Examples
    --------
    >>> from softcarry.numerics.experiments import envelope
    >>> carry = envelope("bfloat16", n=1024, distribution="equal", rows=1)
    >>> dict(zip(carry.updates, carry.error))[256], carry.error[-1]
    (0.0, 0.75)
    """
    from softcarry.numerics.summation import running_sum

    fmt = get_format(fmt)
    one_of("distribution", distribution, get_args(Distribution))
    n, rows, seed = _length("n", n), _rows(rows, n), whole("seed", seed, 0)
    blocks = (n, *(2**k for k in reversed(range((n - 1).bit_length()))))
    errors: list[list[NDArray[np.float64]]] = [[] for _ in blocks]
    for terms in _batches(distribution, n, rows, seed):
        exact = np.sum(terms, axis=-1)
        for block, found in zip(blocks, errors, strict=True):
            block_sums = np.add.reduceat(terms, np.arange(0, n, block), axis=-1)
            found.append(_relative(running_sum(block_sums, fmt, "sequential", round_terms=False), exact))
    updates = tuple(-(-n // block) for block in blocks)
    terms_name = _PREDICTED_TERMS.get(distribution)
    return Envelope(
        format=fmt.name,
        distribution=distribution,
        drop_index=fmt.drop_index,
        n=n,
        key_block=blocks,
        updates=updates,
        error=tuple(float(np.mean(np.concatenate(found))) for found in errors),
        largest=tuple(float(np.max(np.concatenate(found))) for found in errors),
        predicted=None
        if terms_name is None
        else tuple(float(carry_error(n, block, fmt, terms=terms_name)) for block in blocks),
        rows=rows,
        seed=seed,
    )


def _row(distribution: Distribution, n: int, row: int, seed: int) -> NDArray[np.float64]:
    # One generator a row: the batches that memory allows must not change the numbers.
    rng = np.random.default_rng([seed, n, row])
    if distribution == "equal":
        return np.ones(n)
    if distribution == "uniform":
        return rng.random(n)
    if distribution == "exponential":
        draws = rng.exponential(size=n)
        return draws / draws.max()
    scores = rng.standard_normal(n)
    return np.exp(scores - scores.max())


def _batches(distribution: Distribution, n: int, rows: int, seed: int) -> Iterator[NDArray[np.float64]]:
    at_once = max(1, _ELEMENTS_AT_ONCE // n)
    for first in range(0, rows, at_once):
        yield np.stack([_row(distribution, n, row, seed) for row in range(first, min(first + at_once, rows))])


def _relative(total: NDArray[np.float64], exact: NDArray[np.float64]) -> NDArray[np.float64]:
    # A format without infinity overflows to NaN, which is no less wrong.
    return np.where(np.isfinite(total), np.abs(total - exact) / exact, np.inf)


def _lengths(max_n: int) -> tuple[int, ...]:
    powers = [4**k for k in range(2, 32) if 4**k < max_n]
    return (*powers, max_n)


def _length(name: str, got: int) -> int:
    length = whole(name, got, 1)
    if length > _LONGEST:
        msg = f"{name} is at most 2**27, a row that memory holds; got {length}: measure a shorter row"
        raise OptionError(msg)
    return length


def _rows(rows: int, n: int) -> int:
    rows = whole("rows", rows, 1)
    if rows * int(n) > _MOST_TERMS:
        msg = f"rows times n is at most 2**34, some minutes of work; got {rows} rows of {n}: take fewer rows"
        raise OptionError(msg)
    return rows
