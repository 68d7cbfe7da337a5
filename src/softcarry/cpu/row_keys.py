"""The largest of 16-bit elements, found without converting them: as integers that stand in their order.

The bits of positive numbers, taken as integers, are in the order of the numbers, and below all of them those
of negative ones, in the reverse order. So the largest integer is the largest number, unless it is negative:
then all are, and the smallest without its sign is. Twice as many 16-bit integers are compared at once as
float32. A NaN of positive sign is above infinity, and so seen; one of negative sign is passed over, beside
positive numbers, or seen.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import models, register_model

from softcarry.cpu.memory import BY_TYPE, pointer, widen
from softcarry.cpu.simd import constant, intrinsic

KEYS = 128
"""How many integers are compared at once."""

_INT64 = ir.IntType(64)


class Keys(types.Type):
    """The Numba type of a vector of 128 integers of a size in bits."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__(name=f"Keys({bits})")

    @property
    def llvm(self) -> Any:
        """The LLVM type."""
        return ir.VectorType(ir.IntType(self.bits), KEYS)


@register_model(Keys)
class _KeysModel(models.PrimitiveModel):
    def __init__(self, manager: Any, keys: Keys) -> None:
        super().__init__(manager, keys, keys.llvm)


def _starting(number: int) -> Any:
    @intrinsic
    def start(typingctx, element):
        keys = Keys(8 * BY_TYPE[element].size)
        lowest = -(2 ** (keys.bits - 1)) if number else -1
        return keys(element), lambda context, builder, sig, args: constant(keys.llvm, lowest)

    return start


lowest_keys = _starting(1)
"""``lowest_keys(element)``: what every integer is at least, with its sign."""
highest_keys = _starting(0)
"""``highest_keys(element)``: what every integer is at most, without a sign."""


def _comparison(compare: str, comparison: str) -> Any:
    @intrinsic
    def chosen(typingctx, element, address, running):
        def generate(context, builder, signature, arguments):
            _, address, running_ = arguments
            keys = builder.load(pointer(builder, address, running.llvm), align=1)
            return builder.select(getattr(builder, compare)(comparison, keys, running_), keys, running_)

        return running(element, types.intp, running), generate

    return chosen


larger_keys = _comparison("icmp_signed", ">")
"""``larger_keys(element, address, running)``: the larger ones of elements in memory and a running maximum."""
smaller_keys = _comparison("icmp_unsigned", "<")
"""``smaller_keys(element, address, running)``: the smaller, without signs: of negative numbers the larger."""


def _reduction(name: str) -> Any:
    @intrinsic
    def reduced(typingctx, element, keys):
        what = BY_TYPE[element]

        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(keys.llvm.element, [keys.llvm])
            full = f"llvm.vector.reduce.{name}.v{KEYS}i{keys.bits}"
            key = builder.call(cgutils.get_or_insert_function(builder.module, kind, full), [arguments[1]])
            return widen(builder, builder.bitcast(key, what.memory), element)

        return what.working(element, keys), generate

    return reduced


largest_key = _reduction("smax")
"""``largest_key(element, keys)``: the number that the largest integer stands for, in the working type."""
smallest_key = _reduction("umin")
"""``smallest_key(element, keys)``: the number that the smallest integer stands for, without signs."""
