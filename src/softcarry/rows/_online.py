"""Functions of rows of scores."""

import math
from collections.abc import Iterable, Iterator
from typing import Literal

from softcarry.carry._checks import require_base
from softcarry.errors import DTypeError

_TEXT = (str, bytes, bytearray)


def online_normalizer(iterable: Iterable[float], *, base: Literal["e", "2"] = "e") -> tuple[float, float]:
    """Return the maximum m of a row and the sum l of e^(s − m) over its scores, read one at a time.

    The iterable is read exactly once and two numbers are kept, so a generator of any length takes no memory.
    The arithmetic is float64.

    Parameters
    ----------
    iterable : iterable of real numbers
        Python numbers, NumPy scalars, or anything that `float` takes and is no text.
    base : "e" or "2"
        With "2", scores and m are in log2 units and l sums 2^(s − m).

    Returns
    -------
    m, l : float
        (−inf, 0) for no score or none but −inf; (NaN, NaN) if one is NaN; else (inf, NaN) if one is +inf.
        These are the rules of `softcarry.Carry`.

    Raises
    ------
    DTypeError
        If the argument is not iterable, or yields something that is no real number.
    OptionError
        If the base is neither "e" nor "2".

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, Algorithm 3.

    Examples
    --------
    >>> import softcarry as sc
    >>> m, l = sc.online_normalizer(iter([2, 5, 1, 7]))
    >>> m, round(l, 4)
    (7.0, 1.1446)
    """
    exponential = math.exp if require_base(base) == "e" else math.exp2
    m, total = -math.inf, 0.0
    for score in _scores(iterable):
        # Once m is NaN no score is above it, and NaN enters the sum from then on.
        if math.isnan(score):
            m = total = math.nan
        elif score > m:
            total = total * exponential(m - score) + 1.0 if score < math.inf else math.nan
            m = score
        elif score > -math.inf:
            total += exponential(score - m)
    return m, total


def _scores(iterable: Iterable[float]) -> Iterator[float]:
    try:
        if isinstance(iterable, _TEXT):
            raise TypeError
        scores = iter(iterable)
    except TypeError as error:
        msg = f"online_normalizer takes an iterable of real numbers, got {type(iterable).__name__}"
        raise DTypeError(msg) from error
    for score in scores:
        try:
            if isinstance(score, _TEXT) or getattr(score, "shape", ()) != ():
                raise TypeError
            number = float(score)
        except OverflowError as error:
            msg = (
                "online_normalizer computes in float64, the iterable yielded a number beyond its largest: "
                "scale it, or pass infinity"
            )
            raise DTypeError(msg) from error
        except (TypeError, ValueError) as error:
            msg = (
                f"online_normalizer takes real numbers one at a time, the iterable yielded "
                f"{type(score).__name__}: flatten or convert it"
            )
            raise DTypeError(msg) from error
        yield number
