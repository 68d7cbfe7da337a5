r"""2^x and e^x of vectors with lanes at most 0, which is all that a softmax needs.

2^x = 2^n·2^f, with n the nearest integer to x and \|f\| ≤ 1/2; 2^f is a polynomial with value 1 at 0,
minimax in the relative error by Remez's exchange, of degree 6 in float32 and 11 in float64, whose
coefficients were then moved within their last places to where the worst of all float32 x is best: 0.78 units
in the last place. Degree 5 would be off by 2^−21.1, 4 units, before any rounding.
"""

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.core.extending import overload

from softcarry.cpu.scaling import scaled
from softcarry.cpu.simd import Vector, fma, larger, power_of_two, splat

_SINGLE = (
    1.0,
    0.6931471824645996,
    0.24022650718688965,
    0.05550328642129898,
    0.009617872536182404,
    0.001340664690360427,
    0.00015590204566251487,
)
_DOUBLE = (
    1.0,
    0.6931471805599453,
    0.24022650695910097,
    0.055504108664821694,
    0.00961812910760692,
    0.001333355814641232,
    0.0001540353044173605,
    1.5252733834259364e-05,
    1.3215442587918468e-06,
    1.0178060677152204e-07,
    7.072585949269225e-09,
    4.4552178627060067e-10,
)

# log2 e as the sum of two numbers of the format, so that x·log2 e errs by far less than one rounding of it.
_SINGLE_LOG2E = (1.4426950216293335, 1.925963033500011e-08)
_DOUBLE_LOG2E = (1.4426950408889634, 2.0355273740931033e-17)

# Adding 1.5·2^t, t the stored mantissa bits, rounds to the nearest integer and leaves it in the low bits.
_SINGLE_SHIFT, _DOUBLE_SHIFT = 1.5 * 2.0**23, 1.5 * 2.0**52

# Below these x is taken for them; their n makes the power of two exactly 0, and so the result. Down to half
# an exponent above, the result is subnormal, and rounded as it should be.
_SINGLE_LOWEST, _DOUBLE_LOWEST = -127.0, -1023.0
_LN2 = 0.6931471805599453
# For sums with a term of 1: the results are normal numbers, too small to be seen in such a sum.
_SINGLE_LIVE, _DOUBLE_LIVE = -87.0, -708.0

_COMPILED_ONLY = "a vector exists in compiled code only: call this from a function under numba.njit"


@njit(forceinline=True)
def _single_power(f):
    p = fma(splat(f, _SINGLE[6]), f, splat(f, _SINGLE[5]))
    p = fma(p, f, splat(f, _SINGLE[4]))
    p = fma(p, f, splat(f, _SINGLE[3]))
    p = fma(p, f, splat(f, _SINGLE[2]))
    p = fma(p, f, splat(f, _SINGLE[1]))
    return fma(p, f, splat(f, 1.0))


@njit(forceinline=True)
def _double_power(f):
    p = fma(splat(f, _DOUBLE[11]), f, splat(f, _DOUBLE[10]))
    p = fma(p, f, splat(f, _DOUBLE[9]))
    p = fma(p, f, splat(f, _DOUBLE[8]))
    p = fma(p, f, splat(f, _DOUBLE[7]))
    p = fma(p, f, splat(f, _DOUBLE[6]))
    p = fma(p, f, splat(f, _DOUBLE[5]))
    p = fma(p, f, splat(f, _DOUBLE[4]))
    p = fma(p, f, splat(f, _DOUBLE[3]))
    p = fma(p, f, splat(f, _DOUBLE[2]))
    p = fma(p, f, splat(f, _DOUBLE[1]))
    return fma(p, f, splat(f, 1.0))


def exp2(x):
    """2^x of a vector with lanes in [−inf, 0] or NaN; 0 below 2^−126.5 or 2^−1022.5 (float64)."""
    raise TypeError(_COMPILED_ONLY)


def exp(x):
    """e^x of a vector with lanes in [−inf, 0] or NaN; 0 where that is below 2^−126.5 or 2^−1022.5."""
    raise TypeError(_COMPILED_ONLY)


def exp_in_sum(x):
    r"""e^x as `exp`, for a sum of such terms whose largest is 1: log2 e is one number.

    A term is off by another \|x\|·2^−26.2 (2^−56 in float64) of itself, which of a sum of n terms is at most
    ln n·2^−26.2: less than what rounding x − m has cost.
    """
    raise TypeError(_COMPILED_ONLY)


def exp_in_live_sum(x):
    r"""e^x as `exp_in_sum`, for sums in which a term of 1 is sure: below −87 (−708) it is that of −87.

    It is then at most 2^−125, and −inf adds that to a sum of at least 1, whose last place it can't reach. The
    power of two is always a normal number, and the product one instruction of AVX-512.
    """
    raise TypeError(_COMPILED_ONLY)


@overload(exp2, jit_options={"forceinline": True})
def _exp2(x):
    if not isinstance(x, Vector):
        return None
    single = x.scalar == types.float32
    power = _single_power if single else _double_power
    shift = _SINGLE_SHIFT if single else _DOUBLE_SHIFT
    lowest = _SINGLE_LOWEST if single else _DOUBLE_LOWEST

    def implementation(x):
        x = larger(splat(x, lowest), x)
        shifted = x + splat(x, shift)
        f = x - (shifted - splat(x, shift))
        return power(f) * power_of_two(shifted)

    return implementation


def _exponential(in_sum: bool) -> Callable[..., Any]:
    def make(x):
        if not isinstance(x, Vector):
            return None
        single = x.scalar == types.float32
        power = _single_power if single else _double_power
        shift = _SINGLE_SHIFT if single else _DOUBLE_SHIFT
        high, low = _SINGLE_LOG2E if single else _DOUBLE_LOG2E
        lowest = (_SINGLE_LOWEST if single else _DOUBLE_LOWEST) * _LN2

        def implementation(x):
            x = larger(splat(x, lowest), x)
            shifted = fma(x, splat(x, high), splat(x, shift))
            f = fma(x, splat(x, high), splat(x, shift) - shifted)
            if not in_sum:
                f = fma(x, splat(x, low), f)
            return power(f) * power_of_two(shifted)

        return implementation

    return make


@overload(exp_in_live_sum, jit_options={"forceinline": True})
def _exp_in_live_sum(x):
    if not isinstance(x, Vector):
        return None
    single = x.scalar == types.float32
    power = _single_power if single else _double_power
    shift = _SINGLE_SHIFT if single else _DOUBLE_SHIFT
    high = _SINGLE_LOG2E[0] if single else _DOUBLE_LOG2E[0]
    lowest = _SINGLE_LIVE if single else _DOUBLE_LIVE

    def implementation(x):
        x = larger(splat(x, lowest), x)
        shifted = fma(x, splat(x, high), splat(x, shift))
        n = shifted - splat(x, shift)
        f = fma(x, splat(x, high), splat(x, 0.0) - n)
        return scaled(power(f), n, shifted)

    return implementation


overload(exp, jit_options={"forceinline": True})(_exponential(in_sum=False))
overload(exp_in_sum, jit_options={"forceinline": True})(_exponential(in_sum=True))
