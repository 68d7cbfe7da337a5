"""Products of small matrices in registers: the innermost loop of attention.

A tile of the result, some rows by two registers of columns, is summed in registers over the inner dimension,
one term after the other: its bits depend neither on the registers that the host has nor on how the result is
cut into tiles. What is in memory is first multiplied by a factor a row where the product is added to it, so
that rescaling a running output costs no pass of its own.

References
----------
K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from softcarry.cpu.memory import element_size
from softcarry.cpu.simd import Vector, broadcast, constant, intrinsic

_INT64 = ir.IntType(64)
_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


def _host() -> tuple[int, int]:
    """Return the bytes of a vector register, and how many rows a tile has at most."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 12
    # Of 16 registers, 12 hold sums, 2 columns and 1 a row.
    return (32, 6) if features.get("avx") else (16, 8)


REGISTER, _MOST_ROWS = _host()
_SOME_ROWS = 4
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


def _tile(rows: int, adding: bool) -> Any:
    """Return the intrinsic for tiles of so many rows.

    Its arguments are addresses, and strides in bytes: a, from one row of a to the next, from one inner index
    to the next; b, from one inner index to the next; c, from one row to the next; how many inner indices;
    and the factors, one a row, of what is in c, if the product is added to it.
    """

    @intrinsic
    def tile(typingctx, like, a, a_row, a_inner, b, b_inner, c, c_row, inner, factors):
        size = like.bitwidth // 8
        vector = Vector(like, REGISTER // size)
        kind, scalar = vector.llvm, _LLVM[like]

        def generate(context, builder, signature, arguments):
            _, a, a_row, a_inner, b, b_inner, c, c_row, inner, factors = arguments
            name = f"llvm.fma.v{vector.lanes}f{like.bitwidth}"
            fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)

            def place(address, kind):
                return builder.inttoptr(address, kind.as_pointer())

            def beyond(address, times, stride):
                stride = ir.Constant(_INT64, stride) if isinstance(stride, int) else stride
                return builder.add(address, builder.mul(stride, ir.Constant(_INT64, times)))

            before = builder.block
            loop, done = (builder.append_basic_block(f"product.{part}") for part in ("loop", "done"))
            rows_of_a = [beyond(a, row, a_row) for row in range(rows)]
            zero, one = ir.Constant(_INT64, 0), ir.Constant(_INT64, 1)
            builder.cbranch(builder.icmp_signed(">", inner, zero), loop, done)

            builder.position_at_end(loop)
            index, offset, right = (builder.phi(_INT64) for _ in range(3))
            sums = [builder.phi(kind) for _ in range(rows * _COLUMNS)]
            columns = [
                builder.load(place(beyond(right, column, REGISTER), kind), align=1)
                for column in range(_COLUMNS)
            ]
            after = []
            for row in range(rows):
                number = builder.load(place(builder.add(rows_of_a[row], offset), scalar), align=1)
                left = broadcast(builder, vector, number)
                for column in range(_COLUMNS):
                    running = sums[row * _COLUMNS + column]
                    after.append(builder.call(fma, [left, columns[column], running]))
            following = builder.add(index, one)
            # −0 is what adds nothing, not even a sign.
            nothing = constant(kind, -0.0)
            for phi, first, next_one in [
                (index, zero, following),
                (offset, zero, builder.add(offset, a_inner)),
                (right, b, builder.add(right, b_inner)),
                *((running, nothing, last) for running, last in zip(sums, after, strict=True)),
            ]:
                phi.add_incoming(first, before)
                phi.add_incoming(next_one, loop)
            builder.cbranch(builder.icmp_signed("<", following, inner), loop, done)

            builder.position_at_end(done)
            totals = [builder.phi(kind) for _ in sums]
            for total, last in zip(totals, after, strict=True):
                total.add_incoming(nothing, before)
                total.add_incoming(last, loop)
            for row in range(rows):
                factor = None
                if adding:
                    number = builder.load(place(beyond(factors, row, size), scalar), align=1)
                    factor = broadcast(builder, vector, number)
                for column in range(_COLUMNS):
                    where = place(beyond(beyond(c, row, c_row), column, REGISTER), kind)
                    total = totals[row * _COLUMNS + column]
                    if factor is not None:
                        total = builder.call(fma, [builder.load(where, align=1), factor, total])
                    builder.store(total, where, align=1)
            return context.get_dummy_value()

        return types.void(like, *(types.intp,) * 9), generate

    return tile


_store_most, _store_some, _store_one = (_tile(rows, False) for rows in (_MOST_ROWS, _SOME_ROWS, 1))
_add_most, _add_some, _add_one = (_tile(rows, True) for rows in (_MOST_ROWS, _SOME_ROWS, 1))


@njit
def store_product(like, a, a_row, a_inner, b, b_inner, c, c_row, rows, inner):
    """Store the product of a, of ``rows`` rows, with one panel of columns of b."""
    row = 0
    while rows - row >= _MOST_ROWS:
        _store_most(like, a + row * a_row, a_row, a_inner, b, b_inner, c + row * c_row, c_row, inner, 0)
        row += _MOST_ROWS
    while rows - row >= _SOME_ROWS:
        _store_some(like, a + row * a_row, a_row, a_inner, b, b_inner, c + row * c_row, c_row, inner, 0)
        row += _SOME_ROWS
    while row < rows:
        _store_one(like, a + row * a_row, a_row, a_inner, b, b_inner, c + row * c_row, c_row, inner, 0)
        row += 1


@njit
def add_product(like, a, a_row, a_inner, b, b_inner, c, c_row, rows, inner, factors):
    """Multiply the rows of one panel of columns of c by their factors, and add the product to them."""
    size = element_size(like)
    row = 0
    while rows - row >= _MOST_ROWS:
        _add_most(
            like,
            a + row * a_row,
            a_row,
            a_inner,
            b,
            b_inner,
            c + row * c_row,
            c_row,
            inner,
            factors + row * size,
        )
        row += _MOST_ROWS
    while rows - row >= _SOME_ROWS:
        _add_some(
            like,
            a + row * a_row,
            a_row,
            a_inner,
            b,
            b_inner,
            c + row * c_row,
            c_row,
            inner,
            factors + row * size,
        )
        row += _SOME_ROWS
    while row < rows:
        _add_one(
            like,
            a + row * a_row,
            a_row,
            a_inner,
            b,
            b_inner,
            c + row * c_row,
            c_row,
            inner,
            factors + row * size,
        )
        row += 1
