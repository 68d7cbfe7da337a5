"""Running sums kept in a narrow format, in the orders in which sums are made."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from softcarry.errors import OptionError, ShapeError
from softcarry.numerics._floats import as_float_array, as_seed
from softcarry.numerics._formats import FloatFormat, RoundingMode, get_format

Order = Literal["sequential", "pairwise", "blocked", "kahan", "two-level", "carry-stack"]

# Rows summed side by side: enough to hide the latency of an addition, and few enough that each is read in
# long pieces (rows of a power of two of terms all fall into the same sets of the cache).
_WIDEST = 32


def running_sum(
    terms: ArrayLike,
    fmt: str | FloatFormat,
    order: Order = "sequential",
    *,
    block: int | None = None,
    axis: int = -1,
    rounding: RoundingMode = "nearest-even",
    round_terms: bool = True,
    flush_format: str | FloatFormat = "float32",
    seed: int = 0,
) -> Any:
    """Sum terms with every operation rounded to ``fmt``, in a stated order.

    Each addition is the exact sum of its two operands, rounded once: bit for bit what hardware of that
    format and that rounding gives.

    Parameters
    ----------
    terms : array_like, shape (..., n)
        What `FloatFormat.round` takes. Rounded to ``fmt`` first, by the same ``rounding``.
    fmt : str or FloatFormat
        The format of the sum. float64 is the machine's own arithmetic, to nearest even only.
    order : str
        "sequential"
            ŝ ← fl(ŝ + x), term after term ([1]_, section 4.1).
        "pairwise"
            Recursive halving: the sum of the first ⌊n/2⌋ terms plus that of the other ⌈n/2⌉, each made
            the same way ([1]_, section 4.1). For n a power of two these are adjacent pairs.
        "blocked"
            ``block`` terms in sequence, then the block sums in sequence ([1]_, section 4.1; [2]_).
        "kahan"
            Compensated: y = fl(x − c), t = fl(ŝ + y), c = fl(fl(t − ŝ) − y), ŝ = t ([3]_). An infinity
            makes the correction, and so the sum, NaN.
        "two-level"
            ``block`` terms in sequence in ``fmt``, then flushed into a sum kept in ``flush_format``: the
            scheme of [2]_, whose error has no term in n·u.
        "carry-stack"
            One pass that keeps about log2 n partial sums: a binary counter in which the sums of 2^k
            neighbouring blocks (of ``block`` terms in sequence, by default one) wait for an equal to merge
            with; the remaining ones are merged youngest first. Its depth is that of a tree, ⌈log2 n⌉, so
            a kernel that streams its keys can sum pairwise too. For n a power of two and a block of one
            it is "pairwise".
    block : int
        At least 1. Needed by "blocked" and "two-level", allowed for "carry-stack".
    axis : int
        The axis that is summed.
    rounding : str
        A mode of `FloatFormat.round`. "stochastic" goes with any order ([4]_).
    round_terms : bool
        False leaves the terms as they are, so that a wider term is added with one rounding, as a carry
        absorbs the wider sum of a key block. A sum begins with its first term, rounded; so trees of single
        terms do not change.
    flush_format : str or FloatFormat
        The format of the outer sum of "two-level"; other orders do not read it.
    seed : int
        Of stochastic rounding. The draws depend on it, on the row and on the place in the row, not on
        the number of threads.

    Returns
    -------
    ndarray or scalar
        float64 sums, shape (...), exact values of ``fmt`` ("two-level": of ``flush_format``). 0 where n is
        0. NaN and infinities propagate as in IEEE 754; overflow is that of `FloatFormat.round`.

    Raises
    ------
    OptionError
        Unknown order, mode or format; a block that is missing, not wanted or below 1; a rounding that
        float64 cannot emulate: float64 itself other than to nearest even, or more than 50 mantissa bits.
    ShapeError
        ``terms`` is a scalar, or has no such axis.
    DTypeError
        As `FloatFormat.round`.

    References
    ----------
    .. [1] Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, chapter 4.
    .. [2] Blanchard, Higham and Mary, A class of fast and accurate summation algorithms, SIAM J. Sci.
       Comput. 42(3), 2020.
    .. [3] Kahan, Further remarks on reducing truncation errors, Commun. ACM 8(1), 1965; [1]_, algorithm 4.2.
    .. [4] Connolly, Higham and Mary, Stochastic rounding and its probabilistic backward error analysis,
       SIAM J. Sci. Comput. 43(1), 2021.

    Examples
    --------
    Equal terms are lost once the sum has reached 2^(t+1), except to a tree:

    >>> import numpy as np
    >>> from softcarry.numerics import running_sum
    >>> float(running_sum(np.ones(1000), "bfloat16"))
    256.0
    >>> float(running_sum(np.ones(1000), "bfloat16", "pairwise"))
    1000.0
    >>> running_sum(np.ones((2, 1000)), "bfloat16", "two-level", block=64)
    array([1000., 1000.])
    """
    fmt = get_format(fmt)
    flush = get_format(flush_format) if order == "two-level" else fmt
    block = _check_block(order, block)
    to_format, to_flush = fmt.rounding(rounding), flush.rounding(rounding)
    _check_arithmetic(fmt, rounding)
    _check_arithmetic(flush, rounding)
    if not flush.holds(fmt):
        msg = f"flush_format must hold every number of {fmt.name}; got {flush.name}: choose a wider one"
        raise OptionError(msg)
    key = as_seed(seed)
    values, _ = as_float_array(terms)
    if values.ndim == 0 or not -values.ndim <= axis < values.ndim:
        msg = (
            f"running_sum takes terms of shape (..., n) with an axis {axis}; got shape {values.shape}: "
            "add the axis"
        )
        raise ShapeError(msg)
    values = np.moveaxis(values, axis, -1)
    shape, n = values.shape[:-1], values.shape[-1]
    if values.size == 0:
        return np.zeros(shape)[()]

    import numba

    from softcarry.numerics import _sums

    # Rounding twice is innocuous for operands of the format only.
    if not round_terms:
        to_format = to_format._replace(innocuous=False)
    rows = np.ascontiguousarray(values).reshape(-1, n)
    codes = {"kahan": _sums.KAHAN, "pairwise": _sums.HALVING, "carry-stack": _sums.STACK}
    share = -(-len(rows) // numba.get_num_threads())
    # Less than a vector of rows is slower than a row at a time.
    width = min(share, _WIDEST) if share >= 4 else 1
    code = codes.get(order, _sums.BLOCKED)
    sums = _sums.sum_rows(rows, code, min(block or n, n), to_format, to_flush, bool(round_terms), key, width)
    return sums.reshape(shape)[()]


def _check_block(order: str, block: int | None) -> int | None:
    if order not in get_args(Order):
        msg = f"unknown order {order!r}: choose one of {', '.join(get_args(Order))}"
        raise OptionError(msg)
    if order in ("sequential", "pairwise", "kahan") and block is not None:
        msg = f"order {order!r} has no blocks; got block={block!r}: leave it out"
        raise OptionError(msg)
    if order == "carry-stack" and block is None:
        return 1
    blocks = order in ("blocked", "two-level", "carry-stack")
    if blocks and (not isinstance(block, int | np.integer) or block < 1):
        msg = f"order {order!r} needs block=, the number of terms summed at once, at least 1; got {block!r}"
        raise OptionError(msg)
    return None if block is None else int(block)


def _check_arithmetic(fmt: FloatFormat, rounding: str) -> None:
    exact = fmt.exponent_bits == 11 and fmt.mantissa_bits == 52
    if exact and rounding != "nearest-even":
        msg = (
            f"sums in float64 are rounded to nearest even by the machine; got rounding={rounding!r}: use a "
            "narrower format"
        )
        raise OptionError(msg)
    if fmt.mantissa_bits > 50 and not exact:
        msg = (
            f"sums are emulated in float64, for formats to 50 mantissa bits; got {fmt.name} with "
            f"{fmt.mantissa_bits}: use a narrower format, or float64"
        )
        raise OptionError(msg)
