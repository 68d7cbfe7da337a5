"""Numbers of a format to bit patterns and back, exactly."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softcarry.errors import DTypeError, OptionError

if TYPE_CHECKING:
    from softcarry.numerics._formats import FloatFormat


def encode(fmt: "FloatFormat", values: NDArray[np.float64]) -> NDArray[Any]:
    """Give the codes of float64 ``values`` that the format holds, as `FloatFormat.encode` promises."""
    t = fmt.mantissa_bits
    outside = ~((fmt.round(values) == values) | np.isnan(values))
    if outside.any():
        first = float(values[outside][0])
        msg = f"encode takes numbers of {fmt.name}; got {first!r}, which is not one: round first"
        raise OptionError(msg)
    magnitude = np.abs(values)
    finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
    # frexp gives a fraction in [1/2, 1). Subnormal numbers, and 0, have the exponent of the smallest normal.
    exponent = np.where(finite < fmt.smallest_normal, 1 - fmt.bias, np.frexp(finite)[1] - 1)
    steps = np.ldexp(finite, t - exponent).astype(np.uint64)
    # A normal number has 2^t or more steps, which carry 1 into the exponent field.
    codes = ((exponent + (fmt.bias - 1)).astype(np.uint64) << np.uint64(t)) + steps
    infinity = (2**fmt.exponent_bits - 1) << t
    not_a_number = infinity + (2 ** (t - 1) if fmt.has_infinity else 2**t - 1)
    codes = np.where(np.isinf(magnitude), np.uint64(infinity), codes)
    codes = np.where(np.isnan(magnitude), np.uint64(not_a_number), codes)
    codes |= np.signbit(values).astype(np.uint64) << np.uint64(fmt.bits - 1)
    return codes.astype(np.min_scalar_type(2**fmt.bits - 1))


def decode(fmt: "FloatFormat", codes: NDArray[Any]) -> NDArray[np.float64]:
    """Give the float64 values of ``codes``, as `FloatFormat.decode` promises."""
    if codes.dtype.kind not in "iu":
        msg = f"decode takes integer codes; got dtype {codes.dtype}: pass the bit patterns as integers"
        raise DTypeError(msg)
    t = fmt.mantissa_bits
    patterns = codes.astype(np.uint64)
    sign = patterns >> np.uint64(fmt.bits - 1)
    if (codes < 0).any() or (sign > 1).any():
        span = f"{codes.min()} to {codes.max()}"
        msg = f"a code of {fmt.name} lies in 0 to 2**{fmt.bits} - 1; got {span}: mask it"
        raise OptionError(msg)
    mantissa = (patterns & np.uint64(2**t - 1)).astype(np.float64)
    field = ((patterns >> np.uint64(t)) & np.uint64(2**fmt.exponent_bits - 1)).astype(np.int64)
    top = field == 2**fmt.exponent_bits - 1
    if fmt.has_infinity:
        special = np.where(mantissa == 0.0, np.inf, np.nan)
    else:
        special = np.full(codes.shape, np.nan)
        top &= mantissa == 2.0**t - 1.0
    steps = mantissa + np.where(field > 0, 2.0**t, 0.0)
    # What is special takes no part in the scaling: in the widest format it would overflow.
    exponent = np.where(top, 1, np.maximum(field, 1)) - fmt.bias - t
    magnitude = np.where(top, special, np.ldexp(steps, exponent))
    return np.where(sign == 1, -magnitude, magnitude)
