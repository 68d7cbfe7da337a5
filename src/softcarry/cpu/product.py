"""Products of small matrices in registers: the innermost loop of attention.

A panel is a matrix whose rows are vector blocks, one below the other. A tile of the result, some rows by two
registers of columns, is summed in registers over the inner dimension, one term after the other: its bits
depend neither on the registers that the host has nor on how the result is cut into tiles. What is in memory
is first multiplied by a factor a row where the product is added to it, so that rescaling a running output
costs no pass of its own.

References
----------
K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
"""

from typing import Any, NamedTuple

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from softcarry.cpu.memory import element_size
from softcarry.cpu.simd import BLOCK, Vector, broadcast, constant, intrinsic

_INT64 = ir.IntType(64)
_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


def _host() -> tuple[int, tuple[int, int, int], tuple[int, int, int]]:
    """Return the bytes of a vector register, and the rows of tiles that are stored, and of those added."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, (12, 8, 4), (8, 4, 4)
    # Of 16 registers, 12 hold sums, 2 columns and 1 a row.
    return (32, (6, 4, 4), (6, 4, 4)) if features.get("avx") else (16, (8, 4, 4), (8, 4, 4))


REGISTER, _STORED_ROWS, _ADDED_ROWS = _host()
PANEL = BLOCK[types.float32] * 4
"""Bytes from one row of a panel to the next: those of a vector block, of either type."""
_COLUMNS = 2
"""Registers of columns of a tile."""


@intrinsic
def panel_columns(typingctx, like):
    """Return the columns of a tile for numbers of a type, as a constant."""
    columns = _COLUMNS * REGISTER * 8 // like.bitwidth
    return types.intp(like), lambda context, builder, sig, args: ir.Constant(_INT64, columns)


def padded_columns(bits: int, columns: int) -> int:
    """Return the number of columns, of numbers of so many bits, that whole tiles and blocks cover."""
    panel = max(_COLUMNS * REGISTER * 8 // bits, 1024 // bits)
    return -(-columns // panel) * panel


_UNROLLED = 4
"""Inner indices of one round of the loop: addresses are then constants beyond a base."""


class _Strides(NamedTuple):
    """Strides of a product in bytes; None for one that is an argument."""

    a_row: int | None
    a_inner: int
    c_row: int | None


def _tile(rows: int, adding: bool) -> Any:
    """Return the intrinsic for tiles of so many rows.

    Its arguments are addresses of a, b and c, the stride between the rows of a, or of c if the product is
    added to it, how many inner indices, and the factors, one a row, of what is in c. a, if the product is
    stored, is contiguous along the inner index, else along the rows; everything else is in panels.
    """

    @intrinsic
    def tile(typingctx, like, a, b, c, stride, inner, factors):
        size = like.bitwidth // 8
        vector = Vector(like, REGISTER // size)
        kind, scalar = vector.llvm, _LLVM[like]
        known = _Strides(size, PANEL, None) if adding else _Strides(None, size, PANEL)

        def generate(context, builder, signature, arguments):
            _, a, b, c, stride, inner, factors = arguments
            name = f"llvm.fma.v{vector.lanes}f{like.bitwidth}"
            fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)

            def place(address, kind):
                return builder.inttoptr(address, kind.as_pointer())

            def beyond(address, times, by):
                by = stride if by is None else ir.Constant(_INT64, by)
                return builder.add(address, builder.mul(by, ir.Constant(_INT64, times)))

            # An address may be a base and once or twice a stride at no cost: three rows share a base. Where
            # the stride is known, one serves all.
            together = rows if adding else 3

            def terms(bases, b, sums):
                """Add the terms of one inner index to the sums."""
                columns = [
                    builder.load(place(beyond(b, n, REGISTER), kind), align=1) for n in range(_COLUMNS)
                ]
                after = []
                for row in range(rows):
                    at = beyond(bases[row // together], row % together, known.a_row)
                    number = builder.load(place(at, scalar), align=1)
                    left = broadcast(builder, vector, number)
                    for column in range(_COLUMNS):
                        running = sums[row * _COLUMNS + column]
                        after.append(builder.call(fma, [left, columns[column], running]))
                return after

            def summed(label, count, unrolled, bases, b, sums):
                """Add the terms of ``count`` rounds of so many inner indices, one after the other."""
                before = builder.block
                loop, done = (
                    builder.append_basic_block(f"product.{label}.{part}") for part in ("loop", "done")
                )
                zero, one = ir.Constant(_INT64, 0), ir.Constant(_INT64, 1)
                builder.cbranch(builder.icmp_signed(">", count, zero), loop, done)
                builder.position_at_end(loop)
                index, b_place = builder.phi(_INT64), builder.phi(_INT64)
                places = [builder.phi(_INT64) for _ in bases]
                running = [builder.phi(kind) for _ in sums]
                after = running
                for step in range(unrolled):
                    stepped = [beyond(one_place, step, known.a_inner) for one_place in places]
                    after = terms(stepped, beyond(b_place, step, PANEL), after)
                following = builder.add(index, one)
                last = [
                    following,
                    beyond(b_place, unrolled, PANEL),
                    *(beyond(one_place, unrolled, known.a_inner) for one_place in places),
                    *after,
                ]
                first = [zero, b, *bases, *sums]
                for phi, start, end in zip([index, b_place, *places, *running], first, last, strict=True):
                    phi.add_incoming(start, before)
                    phi.add_incoming(end, loop)
                builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
                builder.position_at_end(done)
                results = []
                for start, end in zip(first[1:], last[1:], strict=True):
                    result = builder.phi(start.type)
                    result.add_incoming(start, before)
                    result.add_incoming(end, loop)
                    results.append(result)
                return results[1 : 1 + len(bases)], results[0], results[1 + len(bases) :]

            # −0 is what adds nothing, not even a sign.
            sums = [constant(kind, -0.0)] * (rows * _COLUMNS)
            whole = builder.sdiv(inner, ir.Constant(_INT64, _UNROLLED))
            rest = builder.srem(inner, ir.Constant(_INT64, _UNROLLED))
            bases = [beyond(a, row, known.a_row) for row in range(0, rows, together)]
            bases, b, sums = summed("unrolled", whole, _UNROLLED, bases, b, sums)
            _, _, sums = summed("rest", rest, 1, bases, b, sums)
            for row in range(rows):
                factor = None
                if adding:
                    number = builder.load(place(beyond(factors, row, size), scalar), align=1)
                    factor = broadcast(builder, vector, number)
                for column in range(_COLUMNS):
                    where = place(beyond(beyond(c, row, known.c_row), column, REGISTER), kind)
                    total = sums[row * _COLUMNS + column]
                    if factor is not None:
                        total = builder.call(fma, [builder.load(where, align=1), factor, total])
                    builder.store(total, where, align=1)
            return context.get_dummy_value()

        return types.void(like, *(types.intp,) * 6), generate

    return tile


_store_most, _store_more, _store_four, _store_one = (_tile(rows, False) for rows in (*_STORED_ROWS, 1))
_add_most, _add_more, _add_four, _add_one = (_tile(rows, True) for rows in (*_ADDED_ROWS, 1))


@njit(forceinline=True)
def _next_rows(left, most, more):
    """Return the rows of the next tile, such that none is left for a smaller one than four if that can be."""
    if left >= most and (left == most or left - most >= 4):
        return most
    return more if left >= more else min(left, 4)


@njit
def store_product(like, a, a_row, b, c, rows, inner):
    """Store the product of a, of ``rows`` rows that are contiguous along ``inner``, and a panel b.

    It is stored in a panel c; a_row is the stride between the rows of a.
    """
    most, more, four = _STORED_ROWS
    while rows > 0:
        tile = _next_rows(rows, most, more)
        if tile == most:
            _store_most(like, a, b, c, a_row, inner, 0)
        elif tile == more:
            _store_more(like, a, b, c, a_row, inner, 0)
        elif tile == four:
            _store_four(like, a, b, c, a_row, inner, 0)
        else:
            tile = 1
            _store_one(like, a, b, c, a_row, inner, 0)
        a, c, rows = a + tile * a_row, c + tile * PANEL, rows - tile


@njit
def add_product(like, a, b, c, c_row, rows, inner, factors):
    """Multiply rows of c by their factors, and add the product of a panel a, transposed, and a panel b.

    c_row is the stride between the rows of c.
    """
    size = element_size(like)
    most, more, four = _ADDED_ROWS
    while rows > 0:
        tile = _next_rows(rows, most, more)
        if tile == most:
            _add_most(like, a, b, c, c_row, inner, factors)
        elif tile == more:
            _add_more(like, a, b, c, c_row, inner, factors)
        elif tile == four:
            _add_four(like, a, b, c, c_row, inner, factors)
        else:
            tile = 1
            _add_one(like, a, b, c, c_row, inner, factors)
        a, c, rows = a + tile * size, c + tile * c_row, rows - tile
        factors += tile * size
