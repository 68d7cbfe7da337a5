"""tanh of vectors, which caps scores."""

from fractions import Fraction

from numba import njit, types
from numba.core.extending import overload

from softcarry.cpu.exponential import exp
from softcarry.cpu.simd import Vector, fma, larger, splat, where_less


def _series(terms: int) -> tuple[float, ...]:
    """Return the coefficients of x, x³, x⁵, … of tanh x, from tanh′ = 1 − tanh²."""
    odd = [Fraction(1)]
    for n in range(1, terms):
        odd.append(-sum((odd[i] * odd[n - 1 - i] for i in range(n)), Fraction(0)) / (2 * n + 1))
    return tuple(float(coefficient) for coefficient in odd)


# Up to here the series is used: the quotient of exponentials loses what is common to its terms.
_SMALL = 0.3
# The terms shrink by 0.3²·4/π² = 0.036 each: 6 leave 2^−28 of the result, 13 leave 2^−60.
_SINGLE, _DOUBLE = _series(6), _series(13)


@njit(forceinline=True)
def _single_series(t):
    p = splat(t, _SINGLE[5])
    p = fma(p, t, splat(t, _SINGLE[4]))
    p = fma(p, t, splat(t, _SINGLE[3]))
    p = fma(p, t, splat(t, _SINGLE[2]))
    return fma(p, t, splat(t, _SINGLE[1]))


@njit(forceinline=True)
def _double_series(t):
    p = splat(t, _DOUBLE[12])
    p = fma(p, t, splat(t, _DOUBLE[11]))
    p = fma(p, t, splat(t, _DOUBLE[10]))
    p = fma(p, t, splat(t, _DOUBLE[9]))
    p = fma(p, t, splat(t, _DOUBLE[8]))
    p = fma(p, t, splat(t, _DOUBLE[7]))
    p = fma(p, t, splat(t, _DOUBLE[6]))
    p = fma(p, t, splat(t, _DOUBLE[5]))
    p = fma(p, t, splat(t, _DOUBLE[4]))
    p = fma(p, t, splat(t, _DOUBLE[3]))
    p = fma(p, t, splat(t, _DOUBLE[2]))
    return fma(p, t, splat(t, _DOUBLE[1]))


def tanh(x):
    """Return tanh x of a vector: ±1 for ±inf, NaN for NaN, x itself where it is tiny, but +0 for −0."""
    raise TypeError("a vector exists in compiled code only: call this from a function under numba.njit")


@overload(tanh, jit_options={"forceinline": True})
def _tanh(x):
    if not isinstance(x, Vector):
        return None
    series = _single_series if x.scalar == types.float32 else _double_series

    def implementation(x):
        one, zero = splat(x, 1.0), splat(x, -0.0)
        magnitude = larger(x, zero - x)
        # tanh |x| = (1 − e^(−2|x|)) / (1 + e^(−2|x|))
        power = exp(zero - (magnitude + magnitude))
        quotient = (one - power) / (one + power)
        quotient = where_less(x, zero, zero - quotient, quotient)
        t = x * x
        small = fma(x * t, series(t), x)
        return where_less(magnitude, splat(x, _SMALL), small, quotient)

    return implementation
