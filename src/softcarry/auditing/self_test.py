"""Whether what the audit itself relies on holds on this machine: arithmetic, rounding, the golden answer."""

import math
from functools import cache

import numpy as np

from softcarry.auditing._libraries import numpy_dtype
from softcarry.auditing.golden import golden_attention


def arithmetic_faults() -> list[str]:
    """List what is not IEEE 754 arithmetic, rounded to nearest even, in this thread now.

    A library or a kernel can change it for everybody: by a flag that flushes subnormal numbers to zero, which
    compilers set when a library is loaded (gcc's -ffast-math does), or by another rounding direction.

    Returns
    -------
    list of str

    Examples
    --------
    >>> arithmetic_faults()
    []
    """
    found = []
    for dtype, t, smallest in ((np.float64, 52, -1074), (np.float32, 23, -149)):
        one, tie = np.ones(1, dtype), np.full(1, 2.0 ** -(t + 1), dtype)
        more = tie * dtype(1.5)
        to_nearest = one + tie == one and one + more > one and -one - tie == -one and -one - more < -one
        if not to_nearest:
            found.append(f"{dtype.__name__} sums are not rounded to nearest even")
        # Of the bits, and not of the number: a comparison may take a subnormal number for zero, too.
        tiny = np.full(1, 1, np.uint64 if t == 52 else np.uint32).view(dtype)
        normal = np.full(1, 2.0 ** (smallest + t), dtype)
        if not (tiny * one).view(np.uint8).any() or not (normal * dtype(0.5)).view(np.uint8).any():
            found.append(f"{dtype.__name__} subnormal numbers are flushed to zero")
    return found


@cache
def rounding_faults() -> tuple[str, ...]:
    """Compare the rounding to bfloat16 and float16 with ml_dtypes and NumPy, bit pattern by bit pattern.

    All 65,536 numbers, the middles between neighbours, and the next numbers on both sides of the middles.
    Checked once a process.

    Returns
    -------
    tuple of str
        One a format that differs, with the first number.

    Examples
    --------
    >>> rounding_faults()
    ()
    """
    from softcarry.numerics._formats import get_format

    found = []
    # ml_dtypes rounds to bfloat16 from float32; a float64 would be rounded twice.
    for name, wide in (("bfloat16", np.float32), ("float16", np.float64)):
        dtype = numpy_dtype(name)
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
            finite = np.unique(numbers[np.isfinite(numbers)])
            beyond = 2.0 * finite[-1] - finite[-2]
            steps = np.concatenate([[-beyond], finite, [beyond]])
            middles = (0.5 * (steps[:-1] + steps[1:])).astype(wide)
            above, below = (np.nextafter(middles, wide(end)) for end in (np.inf, -np.inf))
            x = np.concatenate([numbers.astype(wide), middles, above, below])
            wanted = x.astype(dtype).astype(np.float64)
            rounded = np.asarray(get_format(name).round(x.astype(np.float64)), np.float64)
        differ = (rounded != wanted) & ~(np.isnan(rounded) & np.isnan(wanted))
        if differ.any():
            at = int(np.argmax(differ))
            found.append(f"{name}: {float(x[at])!r} is rounded to {rounded[at]!r}, not to {wanted[at]!r}")
    return tuple(found)


@cache
def golden_faults() -> tuple[str, ...]:
    """Compare the golden answer with sums in another order, of ``math.fsum``, keys backwards.

    Returns
    -------
    tuple of str
        What is beyond the bound of float64.

    Examples
    --------
    >>> golden_faults()
    ()
    """
    from softcarry.numerics import CarryModel, attention_error_bound

    rng = np.random.default_rng(20)
    q, k, v = (rng.standard_normal((1, 1, t, 8)) for t in (3, 300, 300))
    golden = golden_attention(q, k, v)
    wide = "float64"
    bound = attention_error_bound(
        golden.scores,
        np.abs(q) @ np.swapaxes(np.abs(k), -1, -2) / math.sqrt(8),
        v,
        depth=8,
        model=CarryModel(wide, wide, score_format=wide, exp_ulps=2.0),
        output_format=wide,
        lse_format=wide,
    )
    found = []
    for row in range(3):
        output, lse = _summed_otherwise(q[0, 0, row], k[0, 0], v[0, 0])
        if not (np.abs(output - golden.output[0, 0, row]) <= bound.output[0, 0, row]).all():
            found.append("the golden output is beyond the bound of float64")
        if not abs(lse - golden.lse[0, 0, row]) <= bound.lse[0, 0, row]:
            found.append("the golden lse is beyond the bound of float64")
    return tuple(dict.fromkeys(found))


def _summed_otherwise(query, keys, values):
    scale = 1.0 / math.sqrt(len(query))
    scores = [scale * math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys[::-1]]
    largest = max(scores)
    terms = [math.exp(score - largest) for score in scores]
    total = math.fsum(terms)
    columns = values[::-1].T
    output = [math.fsum(p * x for p, x in zip(terms, column, strict=True)) / total for column in columns]
    return np.array(output), largest + math.log(total)
