"""Rounding one float64 to a narrower binary format, compiled: the innermost step of every emulation here.

A finite x lies in the binade of 2^e = 2^floor(log2|x|); with t stored mantissa bits its neighbours in the
format are multiples of the quantum 2^(max(e, e_min) - t). The binade is read from the bit pattern: a
logarithm is wrong next to powers of two. What a mode does is written as numbers in a `Rounding`, so that the
loops have selections instead of branches, and vectorise.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from softcarry.numerics._formats import FloatFormat

NEAREST_EVEN = 0
NEAREST_AWAY = 1
TOWARD_ZERO = 2
UP = 3
DOWN = 4
STOCHASTIC = 5

MODES = {
    "nearest-even": NEAREST_EVEN,
    "nearest-away": NEAREST_AWAY,
    "toward-zero": TOWARD_ZERO,
    "up": UP,
    "down": DOWN,
    "stochastic": STOCHASTIC,
}

_EXPONENT_BITS = np.int64(0x7FF0000000000000)
_LARGEST_FLOAT64 = np.finfo(np.float64).max


class Rounding(NamedTuple):
    """What a compiled loop needs to know of a format and a mode, as plain numbers.

    Attributes
    ----------
    mode : int
        One of the constants of this module.
    smallest_normal : float
        2^e_min.
    steps : float
        2^t, the number of steps in a binade.
    threshold_positive, threshold_negative : float
        The part of a quantum that a magnitude must exceed to be rounded away from zero: 1/2 to nearest, and
        0 (always) or 1 (never) in the directed modes. Stochastic rounding draws it.
    even_ties, away_ties : bool
        Whether a part that is the threshold is rounded to the even neighbour, or away from zero.
    dropped_bits : numpy.uint64
        52 − t, how many mantissa bits of a float64 the format does not keep.
    below_half : numpy.uint64
        Half a quantum less one, in units of float64's last bit; 0 when no bit is dropped.
    odd : numpy.uint64
        1, or 0 when no bit is dropped: selects the last kept bit, which decides a tie.
    kept : numpy.uint64
        The mask of the bits kept.
    subnormal_shifter : float
        2^(e_min + 52 − t): float64 numbers of that binade are spaced like the format's subnormal numbers.
    largest : float
        The largest finite value.
    overflow : float
        What infinity becomes: inf, NaN, or ``largest`` when saturating.
    overflow_positive, overflow_negative : float
        The magnitude that a finite number beyond ``largest`` gets, which in a mode that rounds it towards
        zero is ``largest`` (IEEE 754-2019, section 7.4).
    exact : bool
        True for float64, whose rounding is the identity.
    innocuous : bool
        True if `round_nearest_even` of the float64 sum of two numbers of the format is their exact sum
        rounded by ``mode`` (see `rounded_sum`).
    """

    mode: int
    smallest_normal: float
    steps: float
    threshold_positive: float
    threshold_negative: float
    even_ties: bool
    away_ties: bool
    dropped_bits: np.uint64
    below_half: np.uint64
    odd: np.uint64
    kept: np.uint64
    subnormal_shifter: float
    largest: float
    overflow: float
    overflow_positive: float
    overflow_negative: float
    exact: bool
    innocuous: bool


@lru_cache(maxsize=1024)
def rounding_to(fmt: "FloatFormat", mode: str, saturate: bool) -> Rounding:
    """Write a format and one of `MODES` as numbers."""
    dropped_bits = 52 - fmt.mantissa_bits
    exact = fmt.mantissa_bits == 52 and fmt.exponent_bits == 11 and not saturate
    overflow = fmt.largest if saturate else math.inf if fmt.has_infinity else math.nan
    nearest = mode in ("nearest-even", "nearest-away")
    stochastic = mode == "stochastic"
    return Rounding(
        mode=MODES[mode],
        smallest_normal=fmt.smallest_normal,
        steps=2.0**fmt.mantissa_bits,
        threshold_positive=0.5 if nearest else 0.0 if mode == "up" else 1.0,
        threshold_negative=0.5 if nearest else 0.0 if mode == "down" else 1.0,
        even_ties=mode == "nearest-even",
        away_ties=mode == "nearest-away",
        dropped_bits=np.uint64(dropped_bits),
        below_half=np.uint64(max(2**dropped_bits // 2 - 1, 0)),
        odd=np.uint64(min(dropped_bits, 1)),
        kept=np.uint64(2**64 - 2**dropped_bits),
        subnormal_shifter=math.ldexp(fmt.smallest_normal, dropped_bits),
        largest=fmt.largest,
        overflow=overflow,
        overflow_positive=overflow if nearest or stochastic or mode == "up" else fmt.largest,
        overflow_negative=overflow if nearest or stochastic or mode == "down" else fmt.largest,
        exact=exact,
        # Figueroa's condition 53 >= 2p + 2 with p = t + 1. In float64 the sum itself is the rounding.
        innocuous=mode == "nearest-even" and (fmt.mantissa_bits <= 24 or exact),
    )


@njit
def binade(x, smallest_normal):
    """Find the power of two at or below abs(x), but never below ``smallest_normal``."""
    power = np.int64(np.float64(x).view(np.int64) & _EXPONENT_BITS).view(np.float64)
    return max(power, smallest_normal)


@njit
def round_nearest_even(x, rounding):
    """Round to nearest, ties to even, whatever ``rounding.mode``: the same as `round_any`, in fewer steps.

    Adding half a quantum to the bit pattern and clearing the bits that are not kept rounds a normal number,
    the carry running into the exponent where it should; adding and subtracting the shifter lets float64's
    own rounding do it for a subnormal one. Integers have a latency of one cycle, which is what a sequential
    sum waits for.
    """
    magnitude = abs(x)
    # Unsigned, because two's complement has no vector shift before AVX-512.
    bits = np.float64(magnitude).view(np.uint64)
    tie_breaker = (bits >> rounding.dropped_bits) & rounding.odd
    normal = np.uint64((bits + rounding.below_half + tie_breaker) & rounding.kept).view(np.float64)
    subnormal = (magnitude + rounding.subnormal_shifter) - rounding.subnormal_shifter
    rounded = subnormal if magnitude < rounding.smallest_normal else normal
    rounded = rounding.overflow if rounded > rounding.largest else rounded
    # The bits of NaN were rounded too, and may even have become those of a number.
    rounded = x if x != x else rounded
    return math.copysign(rounded, x)


@njit(error_model="numpy")
def round_any(x, rounding, uniform):
    """Round by ``rounding.mode``; ``uniform`` in [0, 1) is used by stochastic rounding only.

    Scaling by a power of two is exact, so every mode is a choice between two neighbouring integers.
    """
    magnitude = abs(x)
    power = binade(x, rounding.smallest_normal)
    scaled = magnitude / power * rounding.steps
    below = np.floor(scaled)
    part = scaled - below
    threshold = rounding.threshold_positive if x > 0.0 else rounding.threshold_negative
    threshold = uniform if rounding.mode == STOCHASTIC else threshold
    odd = np.floor(0.5 * below) != 0.5 * below
    tie = rounding.away_ties | (rounding.even_ties & odd)
    away = (part > threshold) | ((part == threshold) & tie)
    rounded = (below + (1.0 if away else 0.0)) / rounding.steps * power
    overflow = rounding.overflow_positive if x > 0.0 else rounding.overflow_negative
    rounded = overflow if rounded > rounding.largest else rounded
    # Infinity over its binade was NaN, and NaN is.
    rounded = rounding.overflow if magnitude == math.inf else rounded
    return math.copysign(rounded, x)


@njit
def sum_to_odd(a, b):
    """Add two float64 numbers, rounding to odd: an inexact sum is the neighbour with an odd last bit.

    A number that was rounded to odd remembers on which side of everything coarser the exact sum lies, so
    rounding it again, in any mode, to a format at least two bits narrower rounds the exact sum (Boldo and
    Melquiond, IEEE Trans. Computers 57(4), 2008). The error of the sum is TwoSum's (Knuth; Møller 1965).
    """
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    bits = np.float64(total).view(np.int64)
    # Towards the error: bit patterns of one sign are ordered like magnitudes. NaN is neither side.
    outward = error > 0.0 if total > 0.0 else error < 0.0
    inward = error < 0.0 if total > 0.0 else error > 0.0
    step = 1 if outward else -1 if inward else 0
    odd = np.int64(bits + (0 if bits & 1 else step)).view(np.float64)
    # A sum that overflows float64 is inexact as well; its error was NaN.
    finite = abs(a) < math.inf and abs(b) < math.inf
    return math.copysign(_LARGEST_FLOAT64, total) if finite and abs(total) == math.inf else odd


@njit
def rounded_sum(a, b, rounding, uniform):
    """Round the exact a + b once, by ``rounding.mode``, for at most 50 mantissa bits.

    Forming a + b in float64 and rounding again would round twice. Where ``rounding.innocuous`` that does no
    harm: to nearest even it is right if 53 >= 2p + 2 for the precision p = t + 1 of a and b (Figueroa, SIGNUM
    Newsletter 30(3), 1995). It is never right in directed or stochastic rounding, where a term far below the
    last place of float64 still counts.
    """
    total = sum_to_odd(a, b)
    # A difference of equal numbers is −0 when rounding down (IEEE 754-2019, section 6.3).
    negative = rounding.mode == DOWN and total == 0.0 and math.copysign(1.0, a) != math.copysign(1.0, b)
    return -0.0 if negative else round_any(total, rounding, uniform)


@njit
def scramble(seed, counter):
    """Make 64 random bits of a seed and a counter: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = np.uint64(seed) + np.uint64(counter) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit
def uniform(seed, counter):
    """Make a number in [0, 1), a multiple of 2^-53, of a seed and a counter.

    Counting instead of keeping a state makes the draw of an element independent of how the work is
    split over threads.
    """
    return np.float64(scramble(seed, counter) >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def round_all(x, rounding, seed, out):
    """Round every element of the one-dimensional ``x`` into ``out``; element i uses draw i of ``seed``."""
    if rounding.mode == NEAREST_EVEN:
        for i in range(x.size):
            out[i] = round_nearest_even(x[i], rounding)
    else:
        for i in range(x.size):
            draw = uniform(seed, i) if rounding.mode == STOCHASTIC else 0.0
            out[i] = round_any(np.float64(x[i]), rounding, draw)
