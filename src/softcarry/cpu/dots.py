"""Products of few rows with vectors that are streamed from memory: the innermost loops of decoding.

Both read keys or values where they lie, in the type they lie in, and widen them in registers. `score_keys`
sums along the vectors: lane c of a sum takes the products c, c + 16, c + 32, … (8 apart in float64), and
the lanes are then added in halves, upper half to lower half. `add_values` sums over keys, one after the
other, from the first. So a row's bits depend neither on the registers that the host has nor on the rows
beside it.

Each loop asks for what the loop after it reads, values or the next keys: the processor by itself looks too
few instructions ahead, and follows no stride of thousands of bytes.
"""

from typing import Any, NamedTuple

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from softcarry.cpu.memory import BY_TYPE, element_size, emit_prefetch, prefetch_far, widen
from softcarry.cpu.product import REGISTER
from softcarry.cpu.simd import STRIP, Vector, broadcast, constant, intrinsic

_INT1, _INT32, _INT64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}

_BYTES = 64
"""Of a vector, on every host: one register of AVX-512, two of AVX2."""

_WIDE = REGISTER == _BYTES
ROWS = 4
"""Rows of a tile. Where fewer are left, but more than one, rows of zeros complete it."""
_KEYS = 4 if _WIDE else 1
"""Keys of a tile of several rows."""
_ONE_ROW_KEYS = 4
_COLUMNS = 4 if _WIDE else 1
"""Vectors of columns of a tile."""
_ONE_ROW_COLUMNS = 4
_CHUNK = 16
"""Keys whose values are read one column tile after the other: close enough for rows to be read as a whole."""
_LINE = 64
"""Bytes of a cache line."""


@intrinsic
def dot_lanes(typingctx, like):
    """Lanes of a sum: what rows of queries are padded to with zeros."""
    lanes = _BYTES * 8 // like.bitwidth
    return types.intp(like), lambda context, builder, sig, args: ir.Constant(_INT64, lanes)


def _place(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _indices(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_INT32, len(numbers)), numbers)


def _load(builder: Any, element: Any, address: Any, lanes: int) -> Any:
    kind = ir.VectorType(BY_TYPE[element].memory, lanes)
    return widen(builder, builder.load(_place(builder, address, kind), align=1), element)


def _load_some(builder: Any, element: Any, address: Any, lanes: int, live: Any) -> Any:
    """Load the lanes that a mask tells, 0 for the others, whose memory is not touched."""
    bits = BY_TYPE[element].size * 8
    raw = BY_TYPE[element].memory if bits > 16 else ir.IntType(16)
    kind = ir.VectorType(raw, lanes)
    name = f"llvm.masked.load.v{lanes}{'f' if bits > 16 else 'i'}{bits}.p0"
    signature = ir.FunctionType(kind, [kind.as_pointer(), _INT32, live.type, kind])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    zero = ir.Constant(kind, None)
    loaded = builder.call(function, [_place(builder, address, kind), ir.Constant(_INT32, 1), live, zero])
    return widen(builder, builder.bitcast(loaded, ir.VectorType(BY_TYPE[element].memory, lanes)), element)


def _first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """Return the mask of so many lanes."""
    kind = ir.VectorType(_INT32, lanes)
    count = builder.trunc(count, _INT32)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), count, ir.Constant(_INT32, 0))
    counts = builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _indices([0] * lanes))
    return builder.icmp_signed("<", _indices(list(range(lanes))), counts)


def _fused(builder: Any, kind: Any) -> Any:
    bits = 32 if isinstance(kind.element, ir.FloatType) else 64
    name = f"llvm.fma.v{kind.count}f{bits}"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)


def _sum_lanes(builder: Any, vectors: list[Any], size: int) -> tuple[Any, list[int]]:
    """Return the vector that holds the sums of the lanes of vectors, at most as many as lanes, and where.

    Two vectors at a time are folded in halves into one, until their lanes are single numbers; a vector that
    is alone is folded with itself.
    """
    lanes = vectors[0].type.count
    # The lanes of a vector, and which of the vectors a lane belongs to.
    level = [(vector, [number] * lanes) for number, vector in enumerate(vectors)]
    span = lanes
    while span > 1:
        half = span // 2
        # Lanes are moved within 16 bytes where they can be, which costs less.
        chunk = lanes if span * size > 16 else 16 // size
        low = [
            which * lanes + group + lane
            for start in range(0, lanes, chunk)
            for which in range(2)
            for group in range(start, start + chunk, span)
            for lane in range(half)
        ]
        folded = []
        for first, *second in (level[i : i + 2] for i in range(0, len(level), 2)):
            other, other_owners = second[0] if second else (first[0], [-1] * lanes)
            owners = [(first[1] + other_owners)[lane] for lane in low]
            parts = [
                builder.shuffle_vector(first[0], other, _indices([lane + move for lane in low]))
                for move in (0, half)
            ]
            folded.append((builder.fadd(*parts), owners))
        level, span = folded, half
    ((sums, owners),) = level
    return sums, [owners.index(number) for number in range(len(vectors))]


def _dots(rows: int, keys: int) -> Any:
    """Return the intrinsic that stores the products of rows of queries with keys.

    Its arguments are addresses, and strides in bytes: q and from one row to the next; k and from one key to
    the next; the number of the last key, which stands for those beyond; the length of the vectors; and where
    the product of row 0 and key 0 goes. Those of the next row lie beside it, of the next key a strip on.
    """

    @intrinsic
    def dots(typingctx, element, like, q, q_row, k, k_token, last, d, scores):
        size, element_bytes = like.bitwidth // 8, BY_TYPE[element].size
        vector = Vector(like, _BYTES // size)
        kind, lanes = vector.llvm, vector.lanes

        def generate(context, builder, signature, arguments):
            _, _, q, q_row, k, k_token, last, d, scores = arguments
            fma = _fused(builder, kind)
            zero, many = ir.Constant(_INT64, 0), ir.Constant(_INT64, lanes)
            rows_of_q = [builder.add(q, builder.mul(q_row, ir.Constant(_INT64, row))) for row in range(rows)]
            key_places = []
            for key in range(keys):
                number = ir.Constant(_INT64, key)
                number = builder.select(builder.icmp_signed("<", number, last), number, last)
                key_places.append(builder.add(k, builder.mul(number, k_token)))
            nothing = constant(kind, -0.0)

            def products(sums, at, load):
                at_q = builder.mul(at, ir.Constant(_INT64, size))
                at_k = builder.mul(at, ir.Constant(_INT64, element_bytes))
                columns = [load(builder.add(place, at_k)) for place in key_places]
                after = []
                for row in range(rows):
                    left = builder.load(_place(builder, builder.add(rows_of_q[row], at_q), kind), align=1)
                    after += [
                        builder.call(fma, [left, columns[key], sums[row * keys + key]]) for key in range(keys)
                    ]
                return after

            before = builder.block
            loop, rest, tail, done = (
                builder.append_basic_block(f"dots.{part}") for part in ("loop", "rest", "tail", "done")
            )
            whole = builder.sub(d, builder.srem(d, many))
            builder.cbranch(builder.icmp_signed(">", whole, zero), loop, rest)

            builder.position_at_end(loop)
            at = builder.phi(_INT64)
            sums = [builder.phi(kind) for _ in range(rows * keys)]
            after = products(sums, at, lambda place: _load(builder, element, place, lanes))
            following = builder.add(at, many)
            for phi, first, then in [
                (at, zero, following),
                *zip(sums, [nothing] * len(sums), after, strict=True),
            ]:
                phi.add_incoming(first, before)
                phi.add_incoming(then, loop)
            builder.cbranch(builder.icmp_signed("<", following, whole), loop, rest)

            builder.position_at_end(rest)
            so_far = [builder.phi(kind) for _ in sums]
            for total, then in zip(so_far, after, strict=True):
                total.add_incoming(nothing, before)
                total.add_incoming(then, loop)
            left_over = builder.sub(d, whole)
            builder.cbranch(builder.icmp_signed(">", left_over, zero), tail, done)

            builder.position_at_end(tail)
            live = _first_lanes(builder, left_over, lanes)
            ended = products(so_far, whole, lambda place: _load_some(builder, element, place, lanes, live))
            builder.branch(done)

            builder.position_at_end(done)
            totals = [builder.phi(kind) for _ in sums]
            for total, early, late in zip(totals, so_far, ended, strict=True):
                total.add_incoming(early, rest)
                total.add_incoming(late, tail)
            at_once = min(rows, lanes // keys)
            for row in range(0, rows, at_once):
                summed, places = _sum_lanes(builder, totals[row * keys : (row + at_once) * keys], size)
                for key in range(keys):
                    of_key = builder.shuffle_vector(summed, summed, _indices(places[key::keys]))
                    where = builder.add(scores, ir.Constant(_INT64, (key * STRIP + row) * size))
                    builder.store(of_key, _place(builder, where, of_key.type), align=1)
            return context.get_dummy_value()

        return types.void(element, like, *(types.intp,) * 7), generate

    return dots


def _sums(rows: int, columns: int, masked: bool = False) -> Any:
    """Return the intrinsic that adds terms times values, key after key, to a tile of running totals.

    Its arguments are addresses, and strides in bytes: the term of row 0 and key 0, those of the next row
    beside it, those of the next key a strip on; v and from one key to the next; how many keys; the totals and
    from one row of them to the next; if the tile is masked, how many columns there are; and what is asked for
    meanwhile, and from one key to the next.
    """

    @intrinsic
    def sums_of(
        typingctx, element, like, terms, v, v_token, keys, totals, totals_row, live_lanes, wanted, step
    ):
        size, element_bytes = like.bitwidth // 8, BY_TYPE[element].size
        vector = Vector(like, _BYTES // size)
        kind, lanes = vector.llvm, vector.lanes

        def generate(context, builder, signature, arguments):
            _, _, terms, v, v_token, keys, totals, totals_row, live_lanes, wanted, step = arguments
            fma = _fused(builder, kind)
            zero, one = ir.Constant(_INT64, 0), ir.Constant(_INT64, 1)
            places = []
            for row in range(rows):
                start = builder.add(totals, builder.mul(totals_row, ir.Constant(_INT64, row)))
                places += [
                    _place(builder, builder.add(start, ir.Constant(_INT64, column * _BYTES)), kind)
                    for column in range(columns)
                ]
            firsts = [builder.load(place, align=1) for place in places]
            live = _first_lanes(builder, live_lanes, lanes) if masked else None

            before = builder.block
            loop, done = (builder.append_basic_block(f"sums.{part}") for part in ("loop", "done"))
            builder.cbranch(builder.icmp_signed(">", keys, zero), loop, done)

            builder.position_at_end(loop)
            index, left, right, ahead = (builder.phi(_INT64) for _ in range(4))
            sums = [builder.phi(kind) for _ in firsts]
            values = []
            for column in range(columns):
                at = builder.add(right, ir.Constant(_INT64, column * lanes * element_bytes))
                if masked:
                    values.append(_load_some(builder, element, at, lanes, live))
                else:
                    values.append(_load(builder, element, at, lanes))
            for line in range(0, columns * lanes * element_bytes, _LINE):
                emit_prefetch(builder, builder.add(ahead, ir.Constant(_INT64, line)), 2)
            after = []
            for row in range(rows):
                at = builder.add(left, ir.Constant(_INT64, row * size))
                term = broadcast(builder, vector, builder.load(_place(builder, at, _LLVM[like]), align=1))
                after += [
                    builder.call(fma, [term, values[column], sums[row * columns + column]])
                    for column in range(columns)
                ]
            following = builder.add(index, one)
            for phi, first, then in [
                (index, zero, following),
                (left, terms, builder.add(left, ir.Constant(_INT64, STRIP * size))),
                (right, v, builder.add(right, v_token)),
                (ahead, wanted, builder.add(ahead, step)),
                *zip(sums, firsts, after, strict=True),
            ]:
                phi.add_incoming(first, before)
                phi.add_incoming(then, loop)
            builder.cbranch(builder.icmp_signed("<", following, keys), loop, done)

            builder.position_at_end(done)
            last = [builder.phi(kind) for _ in sums]
            for total, place, first, then in zip(last, places, firsts, after, strict=True):
                total.add_incoming(first, before)
                total.add_incoming(then, loop)
                builder.store(total, place, align=1)
            return context.get_dummy_value()

        return types.void(element, like, *(types.intp,) * 9), generate

    return sums_of


_dots_most, _dots_one = _dots(ROWS, _KEYS), _dots(1, _ONE_ROW_KEYS)
_sums_most, _sums_one = _sums(ROWS, _COLUMNS), _sums(1, _ONE_ROW_COLUMNS)
_last_sums_most, _last_sums_one = _sums(ROWS, 1, masked=True), _sums(1, 1, masked=True)


class Coming(NamedTuple):
    """Vectors, one a key, that will be read soon."""

    address: int
    token: int
    """Stride from one key to the next."""
    size: int
    """Bytes of a vector."""


@njit
def score_keys(element, like, q, q_row, rows, k, k_token, keys, d, scores, panel, coming):
    """Store the products of rows of queries with consecutive keys, transposed, in panels of a strip of rows.

    Rows of q are padded with zeros to whole vectors of `dot_lanes`, and more than one to a multiple of
    `ROWS`. ``panel`` is the stride from one panel to the next; each has room for 3 keys more. ``coming`` is
    the `Coming` that is asked for meanwhile.
    """
    size = element_size(like)
    for j in range(0, keys, 4):
        place = k + j * k_token
        last = keys - 1 - j
        for i in range(min(4, keys - j)):
            for line in range(0, coming.size, _LINE):
                prefetch_far(coming.address + (j + i) * coming.token + line)
        for row in range(0, rows, ROWS):
            target = scores + row // STRIP * panel + (j * STRIP + row % STRIP) * size
            left = q + row * q_row
            if rows - row == 1:
                _dots_one(element, like, left, q_row, place, k_token, last, d, target)
                continue
            for i in range(0, 4, _KEYS):
                key = min(i, last)
                _dots_most(
                    element,
                    like,
                    left,
                    q_row,
                    place + key * k_token,
                    k_token,
                    last - key,
                    d,
                    target + i * STRIP * size,
                )


@njit
def _add_chunk(element, like, terms, rows, v, v_token, keys, dv, totals, totals_row, wanted, step):
    size, value_size = element_size(like), element_size(element)
    lanes = dot_lanes(like)
    most, one = _COLUMNS * lanes, _ONE_ROW_COLUMNS * lanes
    for start in range(0, dv, one):
        stop = min(dv, start + one)
        for row in range(0, rows, ROWS):
            left = terms + row * size
            column = start
            while column < stop:
                right, live = v + column * value_size, min(lanes, stop - column)
                place = totals + row * totals_row + column * size
                width, ahead = lanes, wanted + column * value_size
                if rows - row == 1:
                    if stop - column == one:
                        width = one
                        _sums_one(
                            element, like, left, right, v_token, keys, place, totals_row, live, ahead, step
                        )
                    else:
                        _last_sums_one(
                            element, like, left, right, v_token, keys, place, totals_row, live, ahead, step
                        )
                elif stop - column >= most:
                    width = most
                    _sums_most(
                        element, like, left, right, v_token, keys, place, totals_row, live, ahead, step
                    )
                else:
                    _last_sums_most(
                        element, like, left, right, v_token, keys, place, totals_row, live, ahead, step
                    )
                column += width


@njit
def add_values(element, like, terms, rows, v, v_token, keys, dv, totals, totals_row, coming):
    """Add terms times values to the running totals of at most a strip of rows, key after key.

    More than one row are taken to be a multiple of `ROWS`. ``coming`` is the `Coming` that is asked for
    meanwhile.
    """
    for first in range(0, keys, _CHUNK):
        chunk = min(_CHUNK, keys - first)
        left, right = terms + first * STRIP * element_size(like), v + first * v_token
        wanted, step = coming.address + first * coming.token, coming.token
        _add_chunk(element, like, left, rows, right, v_token, chunk, dv, totals, totals_row, wanted, step)
