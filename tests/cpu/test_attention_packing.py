"""Blocks as the products read them: each element in its place, from any strides and pages, with zeros behind.

What lies between the elements of a source is NaN, which must not arrive; what lies around a target must stay.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from softcarry.cpu.attention_layout import COLUMNS, KEYS, PAGES, VALUES, Heads, Pairs, Problem, sequence_of
from softcarry.cpu.attention_packing import pack_keys, pack_queries, pack_value_rows, pack_values
from softcarry.cpu.memory import ELEMENTS
from vector_calls import DTYPES, NAMES, address

ALL_NAMES = pytest.mark.parametrize("name", list(DTYPES))
WIDTHS = (1, 7, 8, 9, 16, 31, 32, 33, 64, 77)
TOKENS, HEAD = 13, 1
UNTOUCHED = 77.0


@njit
def _queries(element, like, source, token, step, rows, d, scale, target):
    pack_queries(element, like, source, token, step, rows, d, scale, target)


@njit
def _keys(element, like, problem, first, last, target):
    pack_keys(element, like, problem, sequence_of(problem, 0), HEAD, first, last, target)


@njit
def _value_rows(element, like, problem, first, last, row, target):
    pack_value_rows(element, like, problem, sequence_of(problem, 0), HEAD, first, last, row, target)


@njit
def _values(element, like, problem, first, last, panel, target):
    return pack_values(element, like, problem, sequence_of(problem, 0), HEAD, first, last, panel, target)


def working(dtype):
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def lanes_of(dtype):
    return 16 if dtype == np.float64 else 32


def views(x):
    """The same numbers (heads, tokens, d) by other strides, between NaN."""
    heads, tokens, d = x.shape
    around = np.full((heads, tokens + 4, 3 * d + 4), np.nan, x.dtype)
    for token, step in ((1, 1), (1, 3), (1, -1), (-1, 1), (-1, -3)):
        view = around[:, 2 : 2 + tokens, 2 : 2 + d * abs(step) : abs(step)][:, ::token, :: np.sign(step)]
        around[:] = np.nan
        view[:] = x
        yield view
    around = np.full((tokens, heads, d + 3), np.nan, x.dtype)  # tokens before heads, as packed sequences are
    around[:, :, 1 : 1 + d] = x.transpose(1, 0, 2)
    yield around[:, :, 1 : 1 + d].transpose(1, 0, 2)


def problem_of(view, page=0):
    """A call with one sequence, whose keys and values are the view's; and what must stay alive meanwhile.

    Pages are (pages, heads, page, d), and lie in the reverse order; the last one is not full.
    """
    table, page_stride, numbers = np.zeros((1, COLUMNS), np.int64), 0, None
    if page:
        pages = -(-TOKENS // page)
        pool = np.full((pages + 1, view.shape[0], page + 2, view.shape[2]), np.nan, view.dtype)
        numbers = np.arange(pages)[::-1] + 1
        for place, number in enumerate(numbers):
            part = view[:, place * page : (place + 1) * page]
            pool[number, :, : part.shape[1]] = part
        table[0, PAGES], page_stride = address(numbers), pool.strides[0]
        view = pool[0]
    # Part of the way to the first element is the sequence's, and the step from its first head.
    table[0, KEYS] = table[0, VALUES] = 24
    heads = Heads(address(view) - 24, *view.strides)
    none = Pairs(0, 0, 0, 0, 0)
    problem = Problem(
        *(heads, heads, heads, none, none, address(table)),
        *(view.shape[0], 1, view.shape[2], view.shape[2], 0, 0, 0),
        *(page, page_stride, page_stride, 0, 0),
    )
    return problem, (view, table, numbers)


def sources(dtype):
    """Numbers (heads, TOKENS, d) of every width, and the same as calls, by strides and in pages."""
    rng = np.random.default_rng(0)
    for d in WIDTHS:
        x = rng.normal(size=(2, TOKENS, d)).astype(dtype)
        for view in views(x):
            yield x, *problem_of(view)
        for page in (1, 4, 16):
            yield x, *problem_of(x, page)


RANGES = ((0, TOKENS), (5, 12), (4, 8), (TOKENS - 1, TOKENS))


def between(size, dtype):
    """A target, on a boundary of 64 bytes, and all of the memory around it."""
    around = np.full(size + 64, UNTOUCHED, working(dtype))
    start = 16 + -(address(around) // around.itemsize) % 16
    return around[start : start + size], around


def require_rest(target, around):
    """Nothing was written around a target."""
    before = (address(target) - address(around)) // around.itemsize
    assert (np.delete(around, np.s_[before : before + target.size]) == UNTOUCHED).all()


@ALL_NAMES
@pytest.mark.parametrize("d", WIDTHS)
def test_queries_are_transposed_and_scaled(name, d):
    """Rounded once, by the product with the scale; rows that are not there are zeros."""
    dtype = DTYPES[name]
    like, lanes, scale = working(dtype).type(0), lanes_of(dtype), 0.3
    x = np.random.default_rng(d).normal(size=(1, lanes, d)).astype(dtype)
    for view in views(x):
        for rows in (1, 7, 8, 9, lanes - 1, lanes):
            target, around = between(d * lanes, dtype)
            _, token, step = view.strides
            _queries(ELEMENTS[name], like, address(view), token, step, rows, d, scale, address(target))
            want = np.zeros((d, lanes), working(dtype))
            want[:, :rows] = x[0, :rows].T.astype(working(dtype)) * working(dtype).type(scale)
            np.testing.assert_array_equal(target.reshape(d, lanes), want)
            require_rest(target, around)


@ALL_NAMES
def test_keys_lie_one_below_the_other(name):
    dtype = DTYPES[name]
    for x, problem, _ in sources(dtype):
        for first, last in RANGES:
            target, around = between((last - first) * problem.d, dtype)
            _keys(ELEMENTS[name], working(dtype).type(0), problem, first, last, address(target))
            np.testing.assert_array_equal(target.reshape(last - first, -1), x[HEAD, first:last])
            require_rest(target, around)


@ALL_NAMES
def test_rows_of_values_end_with_zeros(name):
    """To the end of their last block; what lies from there to the next row stays."""
    dtype = DTYPES[name]
    for x, problem, _ in sources(dtype):
        dv, width = problem.dv, -(-problem.dv // lanes_of(dtype)) * lanes_of(dtype)
        for first, last in RANGES:
            target, around = between((last - first) * (width + 16), dtype)
            row = (width + 16) * target.itemsize
            _value_rows(ELEMENTS[name], working(dtype).type(0), problem, first, last, row, address(target))
            rows = target.reshape(last - first, -1)
            np.testing.assert_array_equal(rows[:, :dv], x[HEAD, first:last])
            assert (rows[:, dv:width] == 0).all()
            assert (rows[:, width:] == UNTOUCHED).all()
            require_rest(target, around)


def packed_values(problem, dtype, first, last, panel):
    """Values in panels, (panels, panel, lanes), and whether all are finite."""
    lanes = lanes_of(dtype)
    panels = -(-problem.dv // lanes)
    target, around = between(panels * panel * lanes, dtype)
    like = working(dtype).type(0)
    finite = _values(ELEMENTS[NAMES[dtype]], like, problem, first, last, panel, address(target))
    require_rest(target, around)
    return target.reshape(panels, panel, lanes), finite


@ALL_NAMES
def test_values_lie_in_panels_of_columns(name):
    """With zeros in the columns that are not there; rows of the panel that are not there stay."""
    dtype = DTYPES[name]
    for x, problem, _ in sources(dtype):
        for first, last in RANGES:
            count = last - first
            panels, finite = packed_values(problem, dtype, first, last, TOKENS + 2)
            assert finite
            rows = panels[:, :count].transpose(1, 0, 2).reshape(count, -1)
            np.testing.assert_array_equal(rows[:, : problem.dv], x[HEAD, first:last])
            assert (rows[:, problem.dv :] == 0).all()
            assert (panels[:, count:] == UNTOUCHED).all()


@ALL_NAMES
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found_anywhere(name, value):
    """In blocks, strips and single numbers, by any strides; not in a row beside those that are packed."""
    dtype, d = DTYPES[name], lanes_of(DTYPES[name]) + 13
    largest = np.full((2, TOKENS, d), ml_dtypes.finfo(dtype).max, dtype)
    for view in views(largest):
        problem, _alive = problem_of(view)
        assert packed_values(problem, dtype, 0, TOKENS, TOKENS)[1]
        for token in range(3, 6):
            for c in range(d):
                before, view[HEAD, token, c] = view[HEAD, token, c], value
                _, finite = packed_values(problem, dtype, 4, 5, 1)
                assert finite == (token != 4), (token, c)
                view[HEAD, token, c] = before
