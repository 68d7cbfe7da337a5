"""Sheets: vectors of several rows, some consecutive elements of each, for rows too short to go one by one.

A sheet is four *lines* of 16 float32 or 8 float64, each a part of its row: a register of AVX-512, two of
AVX2, four of NEON. What is done lane by lane is done to all four rows at once, and their loads, chains of
operations and stores do not wait for each other; what goes across lanes is done to eight rows at once,
which are transposed on the way.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from softcarry.cpu.memory import BY_TYPE, narrow, pointer, widen
from softcarry.cpu.simd import STRIP, Vector, constant, intrinsic

LINE = {types.float32: 16, types.float64: 8}
"""Lanes of a line."""

LINES = 4
"""Lines of a sheet."""

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)


def _sheet(working: types.Float) -> Vector:
    return Vector(working, LINES * LINE[working])


def _shuffled(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(lanes)), lanes))


def _joined(builder: Any, parts: list[Any]) -> Any:
    """Lay vectors of the same type end to end; their number is a power of two."""
    while len(parts) > 1:
        lanes = list(range(2 * parts[0].type.count))
        parts = [_shuffled(builder, parts[i], parts[i + 1], lanes) for i in range(0, len(parts), 2)]
    return parts[0]


def _lines(builder: Any, sheet: Any) -> list[Any]:
    lanes = sheet.type.count // LINES
    undefined = ir.Constant(sheet.type, ir.Undefined)
    return [
        _shuffled(builder, sheet, undefined, list(range(r * lanes, (r + 1) * lanes))) for r in range(LINES)
    ]


def _first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """Return the mask of the first ``count`` lanes."""
    numbers = ir.VectorType(_INT32, lanes)
    undefined = ir.Constant(numbers, ir.Undefined)
    first = builder.insert_element(undefined, builder.trunc(count, _INT32), ir.Constant(_INT32, 0))
    counts = builder.shuffle_vector(first, undefined, constant(numbers, 0))
    return builder.icmp_signed(">", counts, ir.Constant(numbers, list(range(lanes))))


def _masked(builder: Any, operation: str, line: Any, result: Any, arguments: list[Any]) -> Any:
    scalar = {"float": "f32", "double": "f64", "half": "f16", "i16": "i16"}[str(line.element)]
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    name = f"llvm.masked.{operation}.v{line.count}{scalar}.p0"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _places(builder: Any, address: Any, stride: Any, kind: Any) -> list[Any]:
    return [
        pointer(builder, builder.add(address, builder.mul(stride, ir.Constant(_INT64, r))), kind)
        for r in range(LINES)
    ]


@intrinsic
def load_sheet(typingctx, element, address, stride):
    """Load a line from an address, and from each of the next rows, so many bytes apart; of any alignment."""
    what = BY_TYPE[element]
    sheet = _sheet(what.working)

    def generate(context, builder, signature, arguments):
        _, address, stride = arguments
        line = ir.VectorType(what.memory, LINE[what.working])
        lines = [builder.load(place, align=1) for place in _places(builder, address, stride, line)]
        return _joined(builder, [widen(builder, raw, element) for raw in lines])

    return sheet(element, types.intp, types.intp), generate


@intrinsic
def load_sheet_part(typingctx, element, address, stride, count):
    """Load the first ``count`` lanes of each line as `load_sheet` does; −inf for the others, unread."""
    what = BY_TYPE[element]
    sheet = _sheet(what.working)

    def generate(context, builder, signature, arguments):
        _, address, stride, count = arguments
        line = ir.VectorType(what.memory, LINE[what.working])
        mask = _first_lanes(builder, count, line.count)
        nothing = constant(ir.VectorType(sheet.llvm.element, line.count), float("-inf"))
        lines = []
        for place in _places(builder, address, stride, line):
            options = [place, ir.Constant(_INT32, 1), mask, ir.Constant(line, None)]
            raw = _masked(builder, "load", line, line, options)
            lines.append(builder.select(mask, widen(builder, raw, element), nothing))
        return _joined(builder, lines)

    return sheet(element, types.intp, types.intp, types.intp), generate


@intrinsic
def store_sheet(typingctx, element, address, stride, sheet):
    """Round a sheet to the element type and store its lines so many bytes apart, at any alignment."""

    def generate(context, builder, signature, arguments):
        _, address, stride, lanes = arguments
        lines = [narrow(builder, line, element) for line in _lines(builder, lanes)]
        for line, place in zip(lines, _places(builder, address, stride, lines[0].type), strict=True):
            builder.store(line, place, align=1)
        return context.get_dummy_value()

    return types.void(element, types.intp, types.intp, sheet), generate


@intrinsic
def store_sheet_part(typingctx, element, address, stride, sheet, count):
    """Store the first ``count`` lanes of each line as `store_sheet` does."""

    def generate(context, builder, signature, arguments):
        _, address, stride, lanes, count = arguments
        lines = [narrow(builder, line, element) for line in _lines(builder, lanes)]
        mask = _first_lanes(builder, count, lines[0].type.count)
        for line, place in zip(lines, _places(builder, address, stride, lines[0].type), strict=True):
            options = [line, place, ir.Constant(_INT32, 1), mask]
            _masked(builder, "store", line.type, ir.VoidType(), options)
        return context.get_dummy_value()

    return types.void(element, types.intp, types.intp, sheet, types.intp), generate


@intrinsic
def filled_sheet(typingctx, element, number):
    """Return a sheet with a number, a constant, in every lane."""
    sheet = _sheet(BY_TYPE[element].working)

    def generate(context, builder, signature, arguments):
        scalar = context.cast(builder, arguments[1], number, sheet.scalar)
        undefined = ir.Constant(sheet.llvm, ir.Undefined)
        first = builder.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
        return builder.shuffle_vector(first, undefined, constant(ir.VectorType(_INT32, sheet.lanes), 0))

    return sheet(element, number), generate


@intrinsic
def line_lanes(typingctx, element):
    """Lanes of a line of an element's working type, as a constant."""
    lanes = LINE[BY_TYPE[element].working]
    return types.intp(element), lambda context, builder, sig, args: ir.Constant(_INT64, lanes)


def _spreader(first: int) -> Any:
    @intrinsic
    def spread(typingctx, strip):
        sheet = _sheet(strip.scalar)

        def generate(context, builder, signature, arguments):
            lanes = [first + lane // LINE[strip.scalar] for lane in range(sheet.lanes)]
            return _shuffled(builder, arguments[0], ir.Constant(strip.llvm, ir.Undefined), lanes)

        return sheet(strip), generate

    return spread


spread_low = _spreader(0)
"""``spread_low(strip)``: a sheet with each of the first four lanes all along a line."""
spread_high = _spreader(LINES)
"""``spread_high(strip)``: likewise of the last four lanes."""


def _reducer(combine: Callable[..., Any]) -> Any:
    @intrinsic
    def reduce(typingctx, low, high):
        strip = Vector(low.scalar, STRIP)

        def generate(context, builder, signature, arguments):
            rows = [line for sheet in arguments for line in _lines(builder, sheet)]

            def halves(line: Any) -> Any:
                half = line.type.count // 2
                parts = [list(range(start, start + half)) for start in (0, half)]
                undefined = ir.Constant(line.type, ir.Undefined)
                return combine(builder, *(_shuffled(builder, line, undefined, part) for part in parts))

            while rows[0].type.count > STRIP:
                rows = [halves(row) for row in rows]

            def combined(a: Any, b: Any, first: list[int], second: list[int]) -> Any:
                parts = (_shuffled(builder, a, b, lanes) for lanes in (first, second))
                return combine(builder, *parts)

            # Halves of two rows, then quarters of four, then single lanes of eight, one shuffle of AVX each;
            # the rows are taken in the order that leaves row r in lane r.
            low_halves, high_halves = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
            fours = [combined(rows[r], rows[r + 4], low_halves, high_halves) for r in range(4)]
            even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
            twos = [combined(fours[r], fours[r + 1], even, odd) for r in (0, 2)]
            return combined(twos[0], twos[1], even, odd)

        return strip(low, high), generate

    return reduce


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _sum(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


line_maxima = _reducer(_larger)
"""``line_maxima(low, high)``: the strip of the maxima of the eight lines of two sheets, none of them NaN."""
line_sums = _reducer(_sum)
"""``line_sums(low, high)``: the strip of the sums of the eight lines of two sheets."""


@intrinsic
def prefetch_to_write(typingctx, address):
    """Ask for the cache line at an address, which need not be valid, to be made ready for a store."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        where = builder.inttoptr(arguments[0], byte)
        builder.call(function, [where, *(ir.Constant(_INT32, option) for option in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def where_above(typingctx, x, y, chosen, other):
    """Return ``chosen`` in the lanes where x > y, and ``other`` elsewhere and where either is NaN."""

    def generate(context, builder, signature, arguments):
        x, y, chosen_, other_ = arguments
        return builder.select(builder.fcmp_ordered(">", x, y), chosen_, other_)

    return chosen(x, x, chosen, chosen), generate
