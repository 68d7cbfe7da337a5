"""A-priori bounds on the rounding error of sums, merges and the lse.

Every bound is relative to the sum of the terms' magnitudes, Σ|x|; for the non-negative terms of l that is
the sum itself. u is the unit roundoff 2^−(t+1) of the format; directed and stochastic rounding err by up to
2u (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 2.2; Connolly, Higham
and Mary, SISC 43(1), 2021).
"""

import math

import numpy as np

from softcarry.errors import OptionError
from softcarry.numerics._arguments import one_of, positive, whole
from softcarry.numerics._formats import FloatFormat, get_format

ORDERS = ("sequential", "pairwise", "blocked", "kahan", "two-level", "carry-stack")
ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "stochastic")


def _roundoff(fmt: str | FloatFormat, rounding: str = "nearest-even") -> float:
    """Return the largest relative error of one rounding: u to nearest, 2u in every other mode."""
    one_of("rounding", rounding, ROUNDINGS)
    u = get_format(fmt).unit_roundoff
    return u if rounding in ("nearest-even", "nearest-away") else 2.0 * u


def gamma(n, u: float):
    """γ_n = n·u / (1 − n·u), the relative error of n roundings in a row; inf where n·u ≥ 1.

    Parameters
    ----------
    n : int or array of int
        How many roundings.
    u : float
        The unit roundoff.

    Returns
    -------
    float or ndarray
        The bound, of the shape of ``n``. It says nothing beyond n·u < 1, and is inf there: exactly where a
        sequential sum of equal terms has reached its drop index.

    Raises
    ------
    OptionError
        If n is negative or NaN.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, lemma 3.1.

    Examples
    --------
    >>> gamma(1, 0.25)
    0.3333333333333333
    >>> gamma(256, 2.0**-8)
    inf
    """
    count = np.asarray(n, np.float64)
    if not np.all(count >= 0):
        msg = f"gamma takes a number of roundings that is 0 or more; got {n!r}"
        raise OptionError(msg)
    nu = count * u
    bound = np.where(nu < 1.0, nu / np.where(nu < 1.0, 1.0 - nu, 1.0), np.inf)
    return bound if bound.ndim else float(bound)


def probabilistic_gamma(n, u: float, lambda_: float = 1.0):
    """exp(λ√n·u + n·u²/(1 − u)) − 1, the relative error of n roundings whose errors have mean zero.

    Parameters
    ----------
    n : int or array of int
        How many roundings in a row.
    u : float
        The unit roundoff.
    lambda_ : float
        λ. If the rounding errors have mean zero and do not depend in the mean on those before (the model of
        rounding to nearest), one product of n errors obeys the bound with a probability of at least
        1 − 2·exp(−λ²(1 − u)²/2), and all n terms of a sum together with at least 1 − 2n·exp(−λ²(1 − u)²/2).
        λ = 1 promises nothing by this formula and is what is seen in practice; λ = 6 leaves 3e-8 a term.

    Returns
    -------
    float or ndarray
        The bound, of the shape of ``n``. Where a sum stagnates it is **invalid**: every lost term is an error
        of the same sign. Stochastic rounding meets the model unconditionally; with errors of up to 2u it
        needs 2λ for the same probability, while its standard deviation is at most u a rounding, so that λ
        then also counts standard deviations.

    Raises
    ------
    OptionError
        If n is negative or NaN, or λ not positive.

    References
    ----------
    Higham and Mary, A new approach to probabilistic rounding error analysis, SISC 41(5), 2019, A2815-A2835;
    Ipsen and Zhou, arXiv:1906.10465; Connolly, Higham and Mary, Stochastic rounding and its probabilistic
    backward error analysis, SISC 43(1), 2021, A566-A585.

    Examples
    --------
    >>> round(probabilistic_gamma(400, 2.0**-11), 5)
    0.00991
    """
    count = np.asarray(n, np.float64)
    if not np.all(count >= 0):
        msg = f"probabilistic_gamma takes a number of roundings that is 0 or more; got {n!r}"
        raise OptionError(msg)
    exponent = positive("lambda_", lambda_) * np.sqrt(count) * u + count * u * u / (1.0 - u)
    # Beyond this the exponential overflows, which is the same as no bound.
    bound = np.where(exponent < 700.0, np.expm1(np.minimum(exponent, 700.0)), np.inf)
    return bound if bound.ndim else float(bound)


def summation_depth(n: int, order: str = "sequential", block: int | None = None) -> int:
    """How many additions a term of a sum passes through at most, for the orders that are trees.

    Parameters
    ----------
    n : int
        Number of terms.
    order : {"sequential", "pairwise", "blocked", "carry-stack"}
        Sequential: n − 1. Pairwise: ⌈log2 n⌉. Blocked: ``block`` terms in sequence, then the blocks in
        sequence, B + ⌈n/B⌉ − 2. Carry stack: blocks in sequence, kept in a binary counter whose equal
        neighbours are merged at once, and merged smallest first at the end. A term of the partial at level
        k_i has seen k_i merges and sees r − i + 1 more of the r partials left (r − 1 for the smallest); since
        the levels are distinct that is at most ⌊log2 m⌋ + 1, and ⌊log2 m⌋ if m is a power of two: the
        ⌈log2 m⌉ of a tree over the m = ⌈n/B⌉ blocks, from a sum that reads its terms once.
    block : int, optional
        B. Needed by "blocked"; 1 by default in "carry-stack".

    Returns
    -------
    int
        The depth; 0 for no term or one.

    Raises
    ------
    OptionError
        If an argument is none of the above.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, sections 4.1 and 4.2. The
    depth of the carry stack is derived here.

    Examples
    --------
    >>> [summation_depth(1000, order, 10) for order in ("sequential", "pairwise", "blocked", "carry-stack")]
    [999, 10, 108, 16]
    """
    n = whole("n", n, 0)
    one_of("order", order, ("sequential", "pairwise", "blocked", "carry-stack"))
    if order == "blocked" and block is None:
        msg = "order='blocked' needs block=, the number of terms that are summed at once; got None"
        raise OptionError(msg)
    size = 1 if block is None else whole("block", block, 1)
    if n <= 1:
        return 0
    if order == "sequential":
        return n - 1
    if order == "pairwise":
        return (n - 1).bit_length()
    size = min(size, n)
    blocks = -(-n // size)
    return size - 1 + (blocks - 1 if order == "blocked" else (blocks - 1).bit_length())


def summation_bound(
    n: int,
    fmt: str | FloatFormat,
    order: str = "sequential",
    *,
    block: int | None = None,
    flush_format: str | FloatFormat = "float32",
    rounding: str = "nearest-even",
    probabilistic: bool = False,
    lambda_: float = 1.0,
) -> float:
    r"""Bound on the relative error \|ŝ − s\| / Σ\|x\| of a sum of n terms kept in a format.

    Parameters
    ----------
    n : int
        Number of terms, exact in ``fmt``. A sum that rounds its first term too (a carry that absorbs the
        wider sum of its first key block) has one rounding more: ask for n + 1.
    fmt : str or FloatFormat
        The format of the running sum.
    order : {"sequential", "pairwise", "blocked", "carry-stack", "kahan", "two-level"}
        The first four are γ of their ``summation_depth``. "kahan" is 2u + 2n·u² (each step rounds
        y = x − c, which errs by u(\|x\| + u\|s\|) to first order, and c itself is left over at the end; the
        factor 2 on the second-order term covers the higher ones). "two-level" adds ``block`` terms in
        ``fmt`` and flushes them to a sum in ``flush_format``: γ_{B+1}(u) + γ_{⌈n/B⌉}(u_flush), in which
        the low format does not see n; one of the B + 1 roundings is that of the result to ``fmt``.
    block : int, optional
        Terms in a block, for "blocked", "carry-stack" and "two-level".
    flush_format : str or FloatFormat
        The wide format of "two-level".
    rounding : str
        Rounding mode of FloatFormat. u becomes 2u unless it is to nearest.
    probabilistic : bool
        Use ``probabilistic_gamma`` in place of γ: λ√depth·u. "kahan" has no such form and keeps its own.
        For stochastic rounding the u of the formula stays u, and λ counts standard deviations.
    lambda_ : float
        λ of ``probabilistic_gamma``.

    Returns
    -------
    float
        The bound. inf where the formula does not hold: depth·u ≥ 1. For the probabilistic one too when
        rounding to nearest, since the errors of a sum that has stopped moving are not random.

    Raises
    ------
    OptionError
        If an argument is none of the above, or ``probabilistic`` is asked for a directed rounding, whose
        errors do not have mean zero.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 4.2 (γ of the depth)
    and 4.3 (compensated summation); Kahan, Further remarks on reducing truncation errors, CACM 8(1), 1965;
    Blanchard, Higham and Mary, A class of fast and accurate summation algorithms, SISC 42(3), 2020 (blocks
    summed fast, block sums summed accurately: B·u + O(u²), whatever n is); Higham and Mary 2019 and
    Connolly, Higham and Mary 2021 as in ``probabilistic_gamma``.

    Examples
    --------
    >>> round(summation_bound(65, "bfloat16"), 4)
    0.3333
    >>> round(summation_bound(65, "bfloat16", "pairwise"), 4)
    0.0281
    >>> round(summation_bound(10**6, "bfloat16", "two-level", block=4), 4)
    0.035
    """
    n = whole("n", n, 0)
    one_of("order", order, ORDERS)
    worst = _roundoff(fmt, rounding)
    if probabilistic and rounding not in ("nearest-even", "nearest-away", "stochastic"):
        msg = (
            "the probabilistic bound is for rounding errors of mean zero, to nearest or stochastic; "
            f"got rounding={rounding!r}, for which only the worst case holds"
        )
        raise OptionError(msg)
    if order == "two-level" and block is None:
        msg = "order='two-level' needs block=, the number of terms between two flushes; got None"
        raise OptionError(msg)

    def grown(depth, worst_u, typical_u):
        if not probabilistic:
            return float(gamma(depth, worst_u))
        if rounding != "stochastic" and depth * worst_u >= 1.0:
            return math.inf
        return float(probabilistic_gamma(depth, typical_u, lambda_))

    u = get_format(fmt).unit_roundoff
    wide = get_format(flush_format).unit_roundoff
    if n <= 1:
        return 0.0
    if order == "kahan":
        return 2.0 * worst + 2.0 * n * worst * worst
    if order == "two-level":
        size = min(whole("block", block, 1), n)
        return grown(size + 1, worst, u) + grown(-(-n // size), wide, wide)
    return grown(summation_depth(n, order, block), worst, u)


def merge_bound(
    splits: int,
    fmt: str | FloatFormat = "float32",
    *,
    order: str = "sequential",
    exp_format: str | FloatFormat | None = None,
    exp_ulps: float = 2.0,
    rounding: str = "nearest-even",
) -> float:
    r"""Bound on the relative error that merging the carries of s key splits adds to l and to o.

    A merge multiplies by exp(m_split − m) and adds: on the way of one split through h merges there are h
    products, h sums, h exponentials of ``exp_ulps`` ulp (an ulp is at most 2u) and h rounded differences
    of maxima, each of which weighs at most u·x·e^(−x) < u of the whole: γ_{3h}(u) + γ_{2·exp_ulps·h}(u_exp).

    Parameters
    ----------
    splits : int
        s, how many carries are merged.
    fmt : str or FloatFormat
        The format in which they are merged.
    order : {"sequential", "pairwise"}
        h is s − 1, or ⌈log2 s⌉ for a tree.
    exp_format : str or FloatFormat, optional
        The format of the exponentials, u_exp; None for ``fmt``.
    exp_ulps : float
        Error of the exponential in units in the last place of ``exp_format``.
    rounding : str
        Rounding mode of the products and sums. u becomes 2u unless it is to nearest.

    Returns
    -------
    float
        The bound relative to l, and to Σ exp(s − m)\|v\| for o. 0 for one split.

    Raises
    ------
    OptionError
        If an argument is none of the above.

    References
    ----------
    The merge is section 3.1 of Milakov and Gimelshein, arXiv:1805.02867, 2018; the count is made here,
    with γ of Higham 2002, lemma 3.1.

    Examples
    --------
    >>> merge_bound(1)
    0.0
    >>> merge_bound(8) < 1e-5
    True
    """
    one_of("order", order, ("sequential", "pairwise"))
    depth = summation_depth(whole("splits", splits, 1), order)
    if depth == 0:
        return 0.0
    exponentials = gamma(
        2.0 * positive("exp_ulps", exp_ulps) * depth,
        get_format(fmt if exp_format is None else exp_format).unit_roundoff,
    )
    return float(gamma(3 * depth, _roundoff(fmt, rounding)) + exponentials)


def lse_bound(m, l, summation_error=0.0, fmt: str | FloatFormat = "float32"):
    r"""Bound on \|lse − ref\| for lse = m + ln l: u·(\|m\| + 1 + 3\|ln l\|) − ln(1 − E_l).

    The last addition errs by u(\|m\| + \|ln l\|), a logarithm of one ulp by 2u\|ln l\|, and a relative
    error E_l of l moves ln l by at most −ln(1 − E_l); the 1 leaves room for l's own rounding to ``fmt``.

    Parameters
    ----------
    m, l : float or ndarray
        The carry's maximum and sum; they broadcast.
    summation_error : float or ndarray
        E_l, for example a ``summation_bound``.
    fmt : str or FloatFormat
        The format in which the logarithm is taken and the lse is returned.

    Returns
    -------
    float or ndarray
        The bound; 0 for an empty carry (m = −inf, l = 0), whose lse is exactly −inf; inf if E_l ≥ 1; NaN
        or inf if m or l is.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 2.2 (the model of
    arithmetic); the count is made here.

    Examples
    --------
    >>> lse_bound(0.0, 1.0) == 2.0**-24
    True
    >>> lse_bound(float("-inf"), 0.0)
    0.0
    """
    maximum, total = np.asarray(m, np.float64), np.asarray(l, np.float64)
    error = np.asarray(summation_error, np.float64)
    u = get_format(fmt).unit_roundoff
    empty = (total == 0.0) & np.isneginf(maximum)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.abs(np.log(np.where(empty, 1.0, total)))
    grown = np.where(error < 1.0, -np.log1p(-np.where(error < 1.0, error, 0.0)), np.inf)
    bound = u * (np.abs(np.where(empty, 0.0, maximum)) + 1.0 + 3.0 * logarithm) + grown
    bound = np.where(empty, 0.0, bound)
    return bound if bound.ndim else float(bound)
