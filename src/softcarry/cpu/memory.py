"""Between memory and vectors, inside compiled code: element types, loads, stores, a counter for threads.

Memory is addressed by plain integers, and its element type named by a scalar that stands for it (`ELEMENTS`).
What is loaded is converted to the working type, float32 or float64; what is stored is rounded to nearest
even.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types

from softcarry.cpu.simd import BLOCK, STRIP, Vector, broadcast, constant, intrinsic

ELEMENTS = {
    "float32": np.float32(0),
    "float64": np.float64(0),
    "bfloat16": np.uint16(0),
    "float16": np.int16(0),
}
"""A scalar for each element type; compiled code knows the two 16-bit types by integers of their size.

An 8-bit integer stands for bytes, such as booleans, which are only read.
"""

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)


class Element(NamedTuple):
    """An element type in memory: its LLVM type, the type that it is computed in, and its bytes."""

    memory: Any
    working: types.Float
    size: int


BY_TYPE = {
    types.float32: Element(ir.FloatType(), types.float32, 4),
    types.float64: Element(ir.DoubleType(), types.float64, 8),
    types.uint16: Element(ir.IntType(16), types.float32, 2),
    types.int16: Element(ir.HalfType(), types.float32, 2),
    types.int8: Element(ir.IntType(8), types.float32, 1),
}


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Return the LLVM pointer to an LLVM type at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def widen(builder: Any, raw: Any, element: Any) -> Any:
    """Convert what was loaded, a vector or a single element, to the working type; exact."""
    if element == types.uint16:
        wide = _like(raw.type, _INT32)
        return builder.bitcast(
            builder.shl(builder.zext(raw, wide), constant(wide, 16)), _like(raw.type, ir.FloatType())
        )
    if element == types.int16:
        return builder.fpext(raw, _like(raw.type, ir.FloatType()))
    if element == types.int8:
        return builder.uitofp(raw, _like(raw.type, ir.FloatType()))
    return raw


def narrow(builder: Any, lanes: Any, element: Any) -> Any:
    """Round the working type to the element's, to nearest even; a NaN stays one."""
    if element == types.uint16:
        wide = _like(lanes.type, _INT32)
        bits = builder.bitcast(lanes, wide)
        odd = builder.and_(builder.lshr(bits, constant(wide, 16)), constant(wide, 1))
        rounded = builder.add(builder.add(bits, constant(wide, 0x7FFF)), odd)
        # The carry of the addition would turn a NaN with a full payload into −0.
        is_nan = builder.fcmp_unordered("uno", lanes, lanes)
        quiet = builder.or_(bits, constant(wide, 0x400000))
        high = builder.lshr(builder.select(is_nan, quiet, rounded), constant(wide, 16))
        return builder.trunc(high, _like(lanes.type, ir.IntType(16)))
    if element == types.int16:
        return builder.fptrunc(lanes, _like(lanes.type, ir.HalfType()))
    return lanes


def _like(shape: Any, scalar: Any) -> Any:
    return ir.VectorType(scalar, shape.count) if isinstance(shape, ir.VectorType) else scalar


def _loader(lanes_of: Callable[[types.Float], int]) -> Any:
    @intrinsic
    def load(typingctx, element, address):
        what = BY_TYPE[element]
        vector = Vector(what.working, lanes_of(what.working))

        def generate(context, builder, signature, arguments):
            kind = ir.VectorType(what.memory, vector.lanes)
            raw = builder.load(pointer(builder, arguments[1], kind), align=1)
            return widen(builder, raw, element)

        return vector(element, types.intp), generate

    return load


load_block = _loader(BLOCK.__getitem__)
"""``load_block(element, address)``: a block from memory of any alignment."""
load_strip = _loader(lambda working: STRIP)
"""``load_strip(element, address)``: a strip from memory of any alignment."""


@intrinsic
def store(typingctx, element, address, vector):
    """Round a vector to the element type and store it at any alignment."""

    def generate(context, builder, signature, arguments):
        lanes = narrow(builder, arguments[2], element)
        builder.store(lanes, pointer(builder, arguments[1], lanes.type), align=1)
        return context.get_dummy_value()

    return types.void(element, types.intp, vector), generate


@intrinsic
def stream(typingctx, element, address, vector):
    """Store past the caches: no line of the output is read first. The address must be a multiple of 64.

    `fence` must follow before another thread reads.
    """

    def generate(context, builder, signature, arguments):
        lanes = narrow(builder, arguments[2], element)
        instruction = builder.store(lanes, pointer(builder, arguments[1], lanes.type), align=64)
        instruction.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INT32, 1)]))
        return context.get_dummy_value()

    return types.void(element, types.intp, vector), generate


@intrinsic
def fence(typingctx):
    """Wait until everything stored so far can be seen by other threads."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def load_integer(typingctx, address):
    """Load a 64-bit integer at any alignment."""

    def generate(context, builder, signature, arguments):
        return builder.load(pointer(builder, arguments[0], _INT64), align=1)

    return types.intp(types.intp), generate


@intrinsic
def load_byte(typingctx, address):
    """Load an 8-bit integer, such as a boolean of an array."""

    def generate(context, builder, signature, arguments):
        raw = builder.load(pointer(builder, arguments[0], ir.IntType(8)))
        return builder.zext(raw, _INT64)

    return types.intp(types.intp), generate


@intrinsic
def load_element(typingctx, element, address):
    """Load one element, converted to the working type."""
    what = BY_TYPE[element]

    def generate(context, builder, signature, arguments):
        raw = builder.load(pointer(builder, arguments[1], what.memory), align=1)
        return widen(builder, raw, element)

    return what.working(element, types.intp), generate


@intrinsic
def store_integer(typingctx, address, number):
    """Store a 64-bit integer."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], pointer(builder, arguments[0], _INT64))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def store_element(typingctx, element, address, number):
    """Round one number of the working type to the element type and store it."""
    what = BY_TYPE[element]

    def generate(context, builder, signature, arguments):
        raw = narrow(builder, arguments[2], element)
        builder.store(raw, pointer(builder, arguments[1], what.memory), align=1)
        return context.get_dummy_value()

    return types.void(element, types.intp, what.working), generate


@intrinsic
def copy_element(typingctx, element, source, destination):
    """Copy one element, bit for bit."""
    kind = ir.IntType(8 * BY_TYPE[element].size)

    def generate(context, builder, signature, arguments):
        raw = builder.load(pointer(builder, arguments[1], kind), align=1)
        builder.store(raw, pointer(builder, arguments[2], kind), align=1)
        return context.get_dummy_value()

    return types.void(element, types.intp, types.intp), generate


@intrinsic
def load_partial(typingctx, element, address, count):
    """Load the first ``count`` lanes of a strip, 0 < count < 8; −inf for the others. Reads nothing beyond."""
    what = BY_TYPE[element]
    vector = Vector(what.working, STRIP)

    def generate(context, builder, signature, arguments):
        _, address, count = arguments
        lanes = constant(vector.llvm, float("-inf"))
        done = builder.append_basic_block("partial.done")
        leaving = []
        for lane in range(STRIP - 1):
            place = builder.add(address, ir.Constant(_INT64, lane * what.size))
            number = widen(builder, builder.load(pointer(builder, place, what.memory), align=1), element)
            lanes = builder.insert_element(lanes, number, ir.Constant(_INT32, lane))
            leaving.append((lanes, builder.block))
            if lane < STRIP - 2:
                following = builder.append_basic_block("partial.lane")
                more = builder.icmp_signed(">", count, ir.Constant(_INT64, lane + 1))
                builder.cbranch(more, following, done)
                builder.position_at_end(following)
            else:
                builder.branch(done)
        builder.position_at_end(done)
        joined = builder.phi(vector.llvm)
        for value, block in leaving:
            joined.add_incoming(value, block)
        return joined

    return vector(element, types.intp, types.intp), generate


@intrinsic
def store_partial(typingctx, element, address, vector, count):
    """Round and store the first ``count`` lanes of a strip, 0 < count < 8; writes nothing beyond."""
    what = BY_TYPE[element]

    def generate(context, builder, signature, arguments):
        _, address, vector, count = arguments
        lanes = narrow(builder, vector, element)
        done = builder.append_basic_block("partial.done")
        for lane in range(STRIP - 1):
            number = builder.extract_element(lanes, ir.Constant(_INT32, lane))
            place = builder.add(address, ir.Constant(_INT64, lane * what.size))
            builder.store(number, pointer(builder, place, what.memory), align=1)
            if lane < STRIP - 2:
                following = builder.append_basic_block("partial.lane")
                more = builder.icmp_signed(">", count, ir.Constant(_INT64, lane + 1))
                builder.cbranch(more, following, done)
                builder.position_at_end(following)
            else:
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(element, types.intp, vector, types.intp), generate


@intrinsic
def transpose(typingctx, element, source, stride, out_element, target, out_stride):
    """Copy an 8 × 8 matrix to its transpose; the rows of both are contiguous, their strides in bytes."""
    what = BY_TYPE[element]

    def generate(context, builder, signature, arguments):
        _, source, stride, _, target, out_stride = arguments
        raw = ir.VectorType(what.memory, STRIP)
        rows = []
        for r in range(STRIP):
            place = builder.add(source, builder.mul(stride, ir.Constant(_INT64, r)))
            rows.append(widen(builder, builder.load(pointer(builder, place, raw), align=1), element))
        # Pairs of numbers, then pairs of pairs within 4 lanes, one instruction of AVX each, and then
        # the halves.
        pairs = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        fours = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        halves = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]

        def mixed(a, b, lanes):
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, STRIP), lanes))

        rows = [mixed(rows[r], rows[r + 1], lanes) for r in (0, 2, 4, 6) for lanes in pairs]
        rows = [mixed(rows[r], rows[r + 2], lanes) for r in (0, 1, 4, 5) for lanes in fours]
        rows = [mixed(rows[r], rows[r + 4], lanes) for lanes in halves for r in range(4)]
        for r in range(STRIP):
            place = builder.add(target, builder.mul(out_stride, ir.Constant(_INT64, r)))
            lanes = narrow(builder, rows[r], out_element)
            builder.store(lanes, pointer(builder, place, lanes.type), align=1)
        return context.get_dummy_value()

    integers = (types.intp, types.intp)
    return types.void(element, *integers, out_element, *integers), generate


@intrinsic
def element_size(typingctx, element):
    """Bytes of an element in memory, as a constant."""
    size = BY_TYPE[element].size
    return types.intp(element), lambda context, builder, sig, args: ir.Constant(_INT64, size)


@intrinsic
def block_lanes(typingctx, element):
    """Lanes of a block of an element's working type, as a constant."""
    lanes = BLOCK[BY_TYPE[element].working]
    return types.intp(element), lambda context, builder, sig, args: ir.Constant(_INT64, lanes)


def _broadcaster(lanes_of: Callable[[types.Float], int]) -> Any:
    @intrinsic
    def filled(typingctx, element, number):
        working = BY_TYPE[element].working
        vector = Vector(working, lanes_of(working))

        def generate(context, builder, signature, arguments):
            return broadcast(builder, vector, context.cast(builder, arguments[1], number, working))

        return vector(element, number), generate

    return filled


filled_block = _broadcaster(BLOCK.__getitem__)
"""``filled_block(element, number)``: a block with a number in every lane."""
filled_strip = _broadcaster(lambda working: STRIP)
"""``filled_strip(element, number)``: a strip with a number in every lane."""


@intrinsic
def claim(typingctx, counter):
    """Add 1 to the 64-bit integer at an address, seen by all threads, and return what it was."""

    def generate(context, builder, signature, arguments):
        place = pointer(builder, arguments[0], _INT64)
        return builder.atomic_rmw("add", place, ir.Constant(_INT64, 1), "seq_cst")

    return types.intp(types.intp), generate


@njit
def keep(array):
    """Keep an array until here: Numba gives its memory back after the last use of its name."""
    return array.size


def emit_prefetch(builder: Any, address: Any, locality: int) -> None:
    """Write the instruction that asks for a cache line: 3 for the first-level cache, 2 for the second."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    where = builder.inttoptr(address, byte)
    builder.call(function, [where, *(ir.Constant(_INT32, option) for option in (0, locality, 1))])


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at an address, which need not be valid, to be read soon."""

    def generate(context, builder, signature, arguments):
        emit_prefetch(builder, arguments[0], 3)
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def prefetch_far(typingctx, address):
    """Ask as `prefetch` does, but for the second-level cache only."""

    def generate(context, builder, signature, arguments):
        emit_prefetch(builder, arguments[0], 2)
        return context.get_dummy_value()

    return types.void(types.intp), generate
