"""Where rows lie, how their work is cut up, and the copies that make scattered rows contiguous."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.row_layout import SIZES, Grid, gather, row_address, row_addresses, scatter
from vector_calls import DTYPES, NAMES, address, operand_of


@st.composite
def views(draw):
    """Rows along the last axis, whose strides are anything: negative, 0, overlapping, between elements."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = [*draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)), draw(st.integers(1, 12))]
    strides = [draw(st.integers(-40, 40)) for _ in shape]
    low = sum(min(0, stride * (n - 1)) for n, stride in zip(shape, strides, strict=True))
    high = sum(max(0, stride * (n - 1)) for n, stride in zip(shape, strides, strict=True))
    memory = np.random.default_rng(draw(st.integers(0, 99))).integers(
        1, 100, high - low + dtype.itemsize, dtype=np.uint8
    )
    return np.ndarray(shape, dtype, memory, -low, strides)


@st.composite
def memories(draw):
    """Memory full of anything, and a view of it whose rows are either axis, backwards or with gaps."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    steps = [draw(st.sampled_from([1, -1, 2, -3])) for _ in range(2)]
    lengths = [draw(st.integers(1, 9)) * abs(step) for step in steps]
    memory = np.empty(lengths, dtype)
    raw = np.random.default_rng(draw(st.integers(0, 99))).bytes(memory.nbytes)
    memory[...] = np.frombuffer(raw, dtype).reshape(lengths)
    view = memory[:: steps[0], :: steps[1]]
    return memory, view.T if draw(st.booleans()) else view


def part_of(draw, n):
    first = draw(st.integers(0, n - 1))
    return first, draw(st.integers(first + 1, n))


def raw(array):
    """The bytes of the elements, which a NaN does not hide."""
    return np.ascontiguousarray(array).view(np.uint8)


@given(views())
def test_the_address_of_every_row(x):
    rows = operand_of(x).rows
    indices = list(np.ndindex(x.shape[:-1]))
    # NumPy's own arithmetic of addresses.
    want = [address(x[(*index, slice(None))]) for index in indices]
    assert [row_address(rows, row) for row in range(len(indices))] == want
    for first in range(len(want) + 1):
        assert row_addresses(rows, first, len(want)).tolist() == want[first:]


@given(views(), st.data())
def test_gathered_rows_are_those_of_the_view(x, data):
    rows, flat = operand_of(x).rows, x.reshape(-1, x.shape[-1])
    first_row, last_row = part_of(data.draw, len(flat))
    first, last = part_of(data.draw, x.shape[-1])
    buffer = np.zeros((last_row - first_row, last - first), x.dtype)
    addresses = row_addresses(rows, first_row, last_row)
    gather(ELEMENTS[NAMES[x.dtype]], rows, addresses, first, last - first, address(buffer))
    np.testing.assert_array_equal(raw(buffer), raw(flat[first_row:last_row, first:last]))


@given(memories(), st.data())
def test_scattered_rows_go_where_they_belong_and_nowhere_else(memory_and_view, data):
    memory, x = memory_and_view
    rows = operand_of(x).rows
    first_row, last_row = part_of(data.draw, len(x))
    first, last = part_of(data.draw, x.shape[1])
    buffer = np.arange((last_row - first_row) * (last - first)).astype(x.dtype)
    buffer = buffer.reshape(last_row - first_row, last - first)
    addresses, want = row_addresses(rows, first_row, last_row), memory.copy()
    scatter(ELEMENTS[NAMES[x.dtype]], rows, addresses, first, last - first, address(buffer))
    got = memory.copy()
    memory[...] = want
    x[first_row:last_row, first:last] = buffer
    np.testing.assert_array_equal(raw(got), raw(memory))


@pytest.mark.parametrize("name", DTYPES)
def test_contiguous_rows(name):
    x = np.zeros((4, 6), DTYPES[name])
    assert SIZES[name] == x.itemsize
    assert operand_of(x).contiguous
    assert operand_of(x[::-2, 1:5]).contiguous
    assert operand_of(np.broadcast_to(x[0], (3, 6))).contiguous
    for view in (x.T, x[:, ::2], x[:, ::-1], np.broadcast_to(x[:, :1], (4, 6))):
        assert not operand_of(view).contiguous


@given(st.integers(1, 30), st.integers(1, 300), st.integers(1, 50), st.integers(1, 9), st.integers(1, 9))
def test_a_grid_holds_every_element_once(rows, length, piece, group, segment):
    """Unit by unit, with the arithmetic that its fields are documented to mean."""
    pieces = -(-length // piece)
    grid = Grid(rows, length, piece, pieces, group, segment)
    seen = np.zeros((rows, length), int)
    for unit in range(grid.units):
        first_row = unit // grid.segments * group
        first = unit % grid.segments * segment * piece
        block = seen[first_row : first_row + group, first : first + segment * piece]
        assert block.size
        block += 1
    assert (seen == 1).all()


def test_a_grid_by_hand():
    """10 rows of 100: 7 pieces of 15 in 3 segments of up to 3, rows in 3 groups of up to 4."""
    grid = Grid(10, 100, 15, 7, 4, 3)
    assert (grid.segments, grid.units) == (3, 9)
    assert (Grid(1, 1, 512, 1, 32768, 1).segments, Grid(1, 1, 512, 1, 32768, 1).units) == (1, 1)
