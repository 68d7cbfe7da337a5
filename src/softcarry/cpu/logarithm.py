r"""ln x of vectors of sums.

x = 2^n·z with z in [√½, √2) and s = (z − 1)/(z + 1), so that ln x = n·ln 2 + 2 artanh s, \|s\| ≤ 0.1716: the
series 2s + 2s³/3 + … is cut after s^23, which leaves 2^−66 of ln z. ln 2 is the sum of two numbers, the first
of which has so few bits that its product with n is exact.
"""

from numba import njit

from softcarry.cpu.simd import exponent, fma, significand, splat

_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10


@njit(forceinline=True)
def log(x):
    """Return ln x of float64 lanes that are at least 2^−1022, or NaN, which stays one."""
    z, n = significand(x), exponent(x)
    one = splat(x, 1.0)
    s = (z - one) / (z + one)
    t = s * s
    p = splat(x, 2.0 / 23.0)
    p = fma(p, t, splat(x, 2.0 / 21.0))
    p = fma(p, t, splat(x, 2.0 / 19.0))
    p = fma(p, t, splat(x, 2.0 / 17.0))
    p = fma(p, t, splat(x, 2.0 / 15.0))
    p = fma(p, t, splat(x, 2.0 / 13.0))
    p = fma(p, t, splat(x, 2.0 / 11.0))
    p = fma(p, t, splat(x, 2.0 / 9.0))
    p = fma(p, t, splat(x, 2.0 / 7.0))
    p = fma(p, t, splat(x, 2.0 / 5.0))
    p = fma(p, t, splat(x, 2.0 / 3.0))
    small = fma(n, splat(x, _LN2_LOW), s * t * p)
    # x − x is 0, but NaN where x is, of which the bits of z and n know nothing.
    return fma(n, splat(x, _LN2_HIGH), fma(s, splat(x, 2.0), small)) + (x - x)
