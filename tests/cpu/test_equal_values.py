"""Rows whose live keys have one value: found by every way to be live, and no other row is touched."""

import numpy as np
import pytest
from numba import njit

from softcarry.cpu.attention_layout import (
    COLUMNS,
    KEY_COUNT,
    PAGES,
    QUERY_COUNT,
    UNLIMITED,
    Heads,
    Pairs,
    Problem,
    sequence_of,
)
from softcarry.cpu.equal_values import write_common_value
from softcarry.cpu.memory import ELEMENTS
from vector_calls import DTYPES, address

NAMES = pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
NOTHING = Pairs(0, 0, 0, 0, 0)
NEAR = 2.0**-10
"""How far, relative to a value, the output of a row may be from it, as documented."""


@njit
def _write(element, problem, head, query, output, step, run):
    write_common_value(element, problem, sequence_of(problem, 0), head, query, output, step, run)


def written(v, outputs, mask=None, bias=None, left=UNLIMITED, right=UNLIMITED, page=0, shared=True):
    """The outputs (queries, dv) of one head after each row was looked at, in order.

    v is (keys, dv), mask and bias are (queries, keys). `shared` is whether rows share what they find out.
    """
    (keys, dv), (queries, _), element = v.shape, outputs.shape, ELEMENTS[v.dtype.name]
    table, numbers = np.zeros((1, COLUMNS), np.int64), np.arange(keys)[::-1].copy()
    table[0, [QUERY_COUNT, KEY_COUNT, PAGES]] = queries, keys, address(numbers)
    # Pages of one key each lie in the reverse order.
    held = np.ascontiguousarray(v[::-1]) if page else v
    values = Heads(address(held), 0, *held.strides)
    seen = NOTHING if mask is None else Pairs(address(mask), 0, *mask.strides, 0)
    added = NOTHING if bias is None else Pairs(address(bias), 0, *bias.strides, int(bias.dtype == np.float64))
    problem = Problem(
        *(values, values, values, seen, added, address(table)),
        *(1, 1, dv, dv, left, right, 0, page, held.strides[0], held.strides[0], 0, 0),
    )
    got, run = outputs.copy(), np.zeros(2, np.int64)
    for query in range(queries):
        if not shared:
            run[:] = 0
        _write(element, problem, 0, query, address(got[query]), got.strides[1], address(run))
    return got


def expected(v, outputs, live):
    """The same from all pairs (queries, keys) that are live, in float64."""
    want, v = outputs.copy(), np.asarray(v)
    for row, (of_row, output) in enumerate(zip(live, outputs, strict=True)):
        values = v[of_row].astype(np.float64)
        if len(values) and (values == values[0]).all():
            gap = np.abs(output.astype(np.float64) - values[0])
            if (gap <= np.abs(values[0]) * NEAR).all():
                want[row] = v[of_row][0]
    return want


def by_position(queries, keys, left, right):
    """Which keys queries see whose last one stands at the last key."""
    position = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)
    return (key >= position - left) & (key <= position + right)


def near(v, row, queries):
    """Outputs that rounding has moved from a value, by three units."""
    u = float(np.finfo(np.float32).eps) if v.dtype.name != "float64" else 2.0**-52
    return np.repeat((v[row].astype(np.float64) * (1 + 3 * u))[None], queries, axis=0).astype(v.dtype)


@NAMES
def test_random_rows(name):
    """Runs of equal values, by masks, biases, windows and pages; whether or not rows share what they know."""
    rng, replaced = np.random.default_rng(0), 0
    for trial in range(300):
        queries, keys, dv = (int(n) for n in rng.integers(1, (8, 12, 20)))
        kinds = rng.normal(size=(2, dv)).astype(DTYPES[name])
        of_key = np.sort(rng.random(keys) < 0.3).astype(int)
        v = kinds[np.roll(of_key, rng.integers(keys))]
        mask, bias = (
            rng.random((queries, keys)) < 0.6,
            np.where(rng.random((queries, keys)) < 0.3, -np.inf, 0),
        )
        bias = bias.astype(rng.choice([np.float32, np.float64]))
        mask, bias = mask if trial % 2 else None, bias if trial % 3 else None
        left, right = (int(n) for n in rng.choice([0, 1, 3, UNLIMITED], 2))
        live = by_position(queries, keys, left, right)
        live &= True if mask is None else mask
        live &= True if bias is None else bias > -np.inf
        outputs = near(kinds, int(rng.integers(2)), queries)
        want = expected(v, outputs, live)
        replaced += (want != outputs).any()
        for page in (0, 1):
            for shared in (True, False):
                got = written(v, outputs, mask, bias, left, right, page, shared)
                np.testing.assert_array_equal(got, want)
    # In bfloat16 three units of float32 round away.
    assert replaced > 60 or name == "bfloat16"


@NAMES
def test_one_other_number_anywhere_is_seen(name):
    """In strips and single numbers, of contiguous vectors and others; and not where the key is masked."""
    for step in (1, 2):
        v = np.ones((5, 19 * step), DTYPES[name])[:, ::step]
        outputs = (np.ones((1, 19)) * (1 + NEAR / 4)).astype(DTYPES[name])
        outputs[:, -1] = 1
        assert (written(v, outputs) == 1).all()
        for key in range(5):
            for c in range(19):
                for other in (1 + 2.0**-7, np.nan, np.inf):
                    v[key, c] = other
                    near_first = outputs.copy()
                    near_first[0, c] = v[0, c]
                    got, want = (x.astype(np.float64) for x in (written(v, near_first), near_first))
                    np.testing.assert_array_equal(got, want)
                    mask = np.arange(5)[None] != key
                    assert (written(v, outputs, mask) == 1).all()
                    v[key, c] = 1


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_only_outputs_nearly_the_value_are_replaced(name):
    """Else a fault of the row would be hidden: a NaN, or a number off by more than rounding may be."""
    v = np.full((4, 9), -3, DTYPES[name])
    for factor, found in ((1, True), (1 + NEAR, True), (1 - NEAR, True), (1 + 2 * NEAR, False), (-1, False)):
        outputs = v[:1] * DTYPES[name].type(factor)
        assert (written(v, outputs) == (v[:1] if found else outputs)).all()
    for c in range(9):
        outputs = v[:1] * DTYPES[name].type(1 + NEAR / 2)
        outputs[0, c] = np.nan
        np.testing.assert_array_equal(written(v, outputs), outputs)


@NAMES
def test_rows_without_live_keys_stay(name):
    v, outputs = np.ones((3, 5), DTYPES[name]), np.full((2, 5), 1 + 2.0**-11, DTYPES[name])
    np.testing.assert_array_equal(written(v, outputs, np.zeros((2, 3), bool)), outputs)
    np.testing.assert_array_equal(written(v, outputs, bias=np.full((2, 3), -np.inf)), outputs)
    np.testing.assert_array_equal(written(v[:0], outputs), outputs)
    assert (written(v[:1], outputs, left=0, right=0)[1] == 1).all()
    np.testing.assert_array_equal(written(v[:1], outputs, left=0, right=0)[0], outputs[0])
