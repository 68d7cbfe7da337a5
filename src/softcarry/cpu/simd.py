"""Vectors inside compiled code: a Numba type whose values are LLVM vectors, and arithmetic of their lanes.

A vector is either a *block* (32 float32 or 16 float64) or a *strip* (8 of either). LLVM splits both into the
registers that the host has: 8 float32 at once on AVX2, 16 on AVX-512, 4 on NEON. A block is thus several
registers, whose operations do not wait for each other; and since the number of lanes is the same on every
host, so are the bits of a sum over them.
"""

import operator
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import models, register_model

intrinsic = cast("Callable[[Callable[..., Any]], Any]", extending.intrinsic)
"""Numba's decorator for functions that are written in LLVM IR."""

STRIP = 8
"""Lanes of a strip."""

BLOCK = {types.float32: 32, types.float64: 16}
"""Lanes of a block."""

_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_BITS = {types.float32: ir.IntType(32), types.float64: ir.IntType(64)}
_INT32 = ir.IntType(32)


class Vector(types.Type):
    """The Numba type of a vector of floating-point lanes."""

    def __init__(self, scalar: types.Float, lanes: int) -> None:
        self.scalar = scalar
        self.lanes = lanes
        super().__init__(name=f"Vector({scalar}, {lanes})")

    @property
    def llvm(self) -> Any:
        """The LLVM type."""
        return ir.VectorType(_LLVM[self.scalar], self.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)


def constant(kind: Any, number: float) -> Any:
    """Return the LLVM constant of a vector or scalar type with a number in every lane."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def broadcast(builder: Any, vector: Vector, scalar: Any) -> Any:
    """Return the LLVM vector with a scalar value in every lane."""
    undefined = ir.Constant(vector.llvm, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(first, undefined, constant(ir.VectorType(_INT32, vector.lanes), 0))


@intrinsic
def splat(typingctx, vector, number):
    """Return a vector of the type of ``vector`` with a number, of any real type, in every lane."""

    def generate(context, builder, signature, arguments):
        scalar = context.cast(builder, arguments[1], number, vector.scalar)
        return broadcast(builder, vector, scalar)

    return vector(vector, number), generate


def _define(operation: Any, instruction: str) -> None:
    class Template(AbstractTemplate):
        key = operation

        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    cast("Any", infer_global)(operation)(Template)

    @lower_builtin(operation, Vector, Vector)
    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_operation, _instruction)


@intrinsic
def fma(typingctx, a, b, c):
    """a·b + c, rounded once."""

    def generate(context, builder, signature, arguments):
        name = f"llvm.fma.v{a.lanes}f{a.scalar.bitwidth}"
        kind = ir.FunctionType(a.llvm, [a.llvm] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return a(a, a, a), generate


@intrinsic
def larger(typingctx, x, running):
    """Return the larger of x and a running maximum, lane by lane: where x is NaN, the maximum, NaN or not."""

    def generate(context, builder, signature, arguments):
        x, running = arguments
        return builder.select(builder.fcmp_ordered(">", x, running), x, running)

    return x(x, x), generate


@intrinsic
def where_equal(typingctx, x, y, chosen, other):
    """Return ``chosen`` in the lanes where x = y, and ``other`` elsewhere and where either is NaN."""

    def generate(context, builder, signature, arguments):
        x, y, chosen_, other_ = arguments
        return builder.select(builder.fcmp_ordered("==", x, y), chosen_, other_)

    return chosen(x, x, chosen, chosen), generate


@intrinsic
def where_less(typingctx, x, y, chosen, other):
    """Return ``chosen`` in the lanes where x < y, and ``other`` elsewhere and where either is NaN."""

    def generate(context, builder, signature, arguments):
        x, y, chosen_, other_ = arguments
        return builder.select(builder.fcmp_ordered("<", x, y), chosen_, other_)

    return chosen(x, x, chosen, chosen), generate


@intrinsic
def lane_numbers(typingctx, vector):
    """Return 0, 1, 2, … in the lanes of a vector of the type of ``vector``."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(vector.llvm, [float(lane) for lane in range(vector.lanes)])

    return vector(vector), generate


@intrinsic
def widened(typingctx, strip):
    """Return a strip in float64."""
    wide = Vector(types.float64, strip.lanes)

    def generate(context, builder, signature, arguments):
        return arguments[0] if strip == wide else builder.fpext(arguments[0], wide.llvm)

    return wide(strip), generate


@intrinsic
def narrowed(typingctx, strip, like):
    """Return a strip of float64 rounded to the scalar type of another."""

    def generate(context, builder, signature, arguments):
        return arguments[0] if strip == like else builder.fptrunc(arguments[0], like.llvm)

    return like(strip, like), generate


# The bits of √½, from which the numbers are counted that have one exponent.
_SQRT_HALF = 0x3FE6A09E667F3BCD


def _exponent(builder: Any, bits: Any) -> Any:
    return builder.ashr(builder.sub(bits, constant(bits.type, _SQRT_HALF)), constant(bits.type, 52))


@intrinsic
def significand(typingctx, x):
    """Return z in [√½, √2) for float64 x = 2^n·z."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], ir.VectorType(ir.IntType(64), x.lanes))
        raised = builder.shl(_exponent(builder, bits), constant(bits.type, 52))
        return builder.bitcast(builder.sub(bits, raised), x.llvm)

    return x(x), generate


@intrinsic
def exponent(typingctx, x):
    """Return n for float64 x = 2^n·z with z in [√½, √2)."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], ir.VectorType(ir.IntType(64), x.lanes))
        # 1.5·2^52 holds an integer in its low bits; few processors convert one of 64 bits.
        shift = 1.5 * 2.0**52
        held = builder.add(_exponent(builder, bits), builder.bitcast(constant(x.llvm, shift), bits.type))
        return builder.fsub(builder.bitcast(held, x.llvm), constant(x.llvm, shift))

    return x(x), generate


@intrinsic
def power_of_two(typingctx, shifted):
    """2^n from n + 1.5·2^t, t the stored mantissa bits, whose low bits hold n; any bits give some number."""
    bits, bias = (23, 127) if shifted.scalar == types.float32 else (52, 1023)

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(_BITS[shifted.scalar], shifted.lanes)
        raised = builder.add(builder.bitcast(arguments[0], kind), constant(kind, bias))
        return builder.bitcast(builder.shl(raised, constant(kind, bits)), shifted.llvm)

    return shifted(shifted), generate


@intrinsic
def lanes_above(typingctx, x, bound):
    """Return a bit for each lane of x that is above that of ``bound``, or NaN; lane 0 is the lowest bit."""

    def generate(context, builder, signature, arguments):
        mask = builder.fcmp_unordered(">", *arguments)
        return builder.zext(builder.bitcast(mask, ir.IntType(x.lanes)), ir.IntType(64))

    return types.uint64(x, x), generate


@intrinsic
def ones(typingctx, bits):
    """Return how many bits are set."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.intp(types.uint64), generate


def _flip_negative(builder: Any, bits: Any) -> Any:
    """Turn around the order of negative numbers, which their bits have the wrong way."""
    sign = builder.ashr(bits, ir.Constant(bits.type, bits.type.width - 1))
    return builder.xor(bits, builder.lshr(sign, ir.Constant(bits.type, 1)))


@intrinsic
def to_key(typingctx, x):
    """Return the integer that counts floating-point numbers in their order; neighbours differ by 1."""

    def generate(context, builder, signature, arguments):
        key = _flip_negative(builder, builder.bitcast(arguments[0], _BITS[x]))
        return key if key.type == ir.IntType(64) else builder.sext(key, ir.IntType(64))

    return types.intp(x), generate


@intrinsic
def from_key(typingctx, like, key):
    """Return the number of the type of ``like`` that an integer counts."""

    def generate(context, builder, signature, arguments):
        bits = arguments[1] if like == types.float64 else builder.trunc(arguments[1], _INT32)
        return builder.bitcast(_flip_negative(builder, bits), _LLVM[like])

    return like(like, types.intp), generate


@intrinsic
def lowest_bit(typingctx, bits):
    """Return the number of the lowest bit that is set; there must be one."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.intp(types.uint64), generate


@intrinsic
def repeated(typingctx, strip):
    """Return the block that a strip fills by being repeated."""
    block = Vector(strip.scalar, BLOCK[strip.scalar])

    def generate(context, builder, signature, arguments):
        lanes = ir.Constant(ir.VectorType(_INT32, block.lanes), [lane % STRIP for lane in range(block.lanes)])
        return builder.shuffle_vector(arguments[0], ir.Constant(strip.llvm, ir.Undefined), lanes)

    return block(strip), generate


def _fold(builder: Any, lanes: Any, count: int, combine: Callable[[Any, Any], Any], until: int) -> Any:
    """Combine the two halves until so many lanes are left: a tree whose shape no host changes."""
    while count > until:
        count //= 2
        low, high = (
            ir.Constant(ir.VectorType(_INT32, count), list(range(start, start + count)))
            for start in (0, count)
        )
        undefined = ir.Constant(lanes.type, ir.Undefined)
        lanes = combine(
            builder.shuffle_vector(lanes, undefined, low), builder.shuffle_vector(lanes, undefined, high)
        )
    return lanes


def _maximum(builder: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def folded_sum(typingctx, block):
    """Return the strip of the sums of a block's lanes that are 8 apart."""

    def generate(context, builder, signature, arguments):
        return _fold(builder, arguments[0], block.lanes, builder.fadd, STRIP)

    return Vector(block.scalar, STRIP)(block), generate


@intrinsic
def folded_maximum(typingctx, block):
    """Return the strip of the maxima of a block's lanes that are 8 apart; there must be no NaN."""

    def generate(context, builder, signature, arguments):
        return _fold(builder, arguments[0], block.lanes, _maximum(builder), STRIP)

    return Vector(block.scalar, STRIP)(block), generate


@intrinsic
def lane_sum(typingctx, vector):
    """Return the sum of all lanes."""

    def generate(context, builder, signature, arguments):
        one = _fold(builder, arguments[0], vector.lanes, builder.fadd, 1)
        return builder.extract_element(one, ir.Constant(_INT32, 0))

    return vector.scalar(vector), generate


@intrinsic
def lane_maximum(typingctx, vector):
    """Return the largest lane; there must be no NaN."""

    def generate(context, builder, signature, arguments):
        one = _fold(builder, arguments[0], vector.lanes, _maximum(builder), 1)
        return builder.extract_element(one, ir.Constant(_INT32, 0))

    return vector.scalar(vector), generate
