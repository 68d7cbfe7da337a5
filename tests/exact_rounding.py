"""Rounding in exact rational arithmetic: an oracle of integers, which shares no code with the library."""

import math
from fractions import Fraction

MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down")


def round_exactly(value, fmt, mode="nearest-even"):
    """Round a Fraction to a format; a float, +0 for zero. Infinities and NaN come back from floats alone."""
    if isinstance(value, float) and not math.isfinite(value):
        return value if math.isnan(value) or fmt.has_infinity else math.nan
    value = Fraction(value)
    magnitude = abs(value)
    if magnitude == 0:
        return 0.0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    bias = 2 ** (fmt.exponent_bits - 1) - 1
    quantum = Fraction(2) ** (max(exponent, 1 - bias) - fmt.mantissa_bits)
    below, rest = divmod(magnitude, quantum)
    part = rest / quantum
    outward = (mode == "up" and value > 0) or (mode == "down" and value < 0)
    away = {
        "nearest-even": part > Fraction(1, 2) or (part == Fraction(1, 2) and below % 2 == 1),
        "nearest-away": part >= Fraction(1, 2),
        "toward-zero": False,
    }.get(mode, outward and part > 0)
    rounded = (below + int(away)) * quantum
    largest = Fraction(largest_of(fmt))
    if rounded > largest:
        inward = mode == "toward-zero" or (mode in ("up", "down") and not outward)
        overflow = math.inf if fmt.has_infinity else math.nan
        return math.copysign(float(largest) if inward else overflow, 1 if value > 0 else -1)
    return float(rounded) if value > 0 else -float(rounded)


def largest_of(fmt):
    """The largest finite number, written out as the layout says."""
    top = 2**fmt.exponent_bits - 1
    mantissa = 2**fmt.mantissa_bits - 1
    field, steps = (top - 1, mantissa) if fmt.has_infinity else (top, mantissa - 1)
    bias = 2 ** (fmt.exponent_bits - 1) - 1
    return (1 + Fraction(steps, 2**fmt.mantissa_bits)) * Fraction(2) ** (field - bias)
