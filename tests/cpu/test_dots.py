"""Products with streamed vectors: against exact sums, in the documented order, and what must not matter."""

import numpy as np
import pytest
from numba import njit

from softcarry.cpu.dots import ROWS, Coming, add_values, score_keys
from softcarry.cpu.memory import ELEMENTS
from vector_calls import DTYPES, address

NAMES = pytest.mark.parametrize("name", list(DTYPES))
STRIP = 8
LENGTHS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 40, 64, 65, 80, 127, 128, 144, 200)


@njit
def _score(element, like, q, q_row, rows, k, k_token, keys, d, scores, panel):
    score_keys(element, like, q, q_row, rows, k, k_token, keys, d, scores, panel, Coming(k, k_token, d))


@njit
def _add(element, like, terms, rows, v, v_token, keys, dv, totals, row):
    add_values(element, like, terms, rows, v, v_token, keys, dv, totals, row, Coming(v, v_token, dv))


def working(name):
    return np.dtype(np.float64 if name == "float64" else np.float32)


def lanes_of(dtype):
    return 64 // dtype.itemsize


def exact_type(name):
    """A format in which the products of two numbers are exact, or nearly so in float64's case."""
    return np.longdouble if name == "float64" else np.float64


def padded_rows(rows):
    return rows if rows % ROWS == 1 else -(-rows // ROWS) * ROWS


def scored(name, q, k):
    """q kᵀ (rows, keys); the keys lie between NaN."""
    (rows, d), keys, dtype = q.shape, len(k), working(name)
    lanes = lanes_of(dtype)
    padded = np.zeros((padded_rows(rows), -(-d // lanes) * lanes), dtype)
    padded[:rows, :d] = q
    around = np.full((keys + 2, d + 5), np.nan, DTYPES[name])
    around[1:-1, 2 : 2 + d] = k
    view = around[1:-1, 2 : 2 + d]
    scores = np.full((-(-len(padded) // STRIP), keys + 3, STRIP), np.nan, dtype)
    _score(
        ELEMENTS[name],
        dtype.type(0),
        address(padded),
        padded.strides[0],
        rows,
        address(view),
        view.strides[0],
        keys,
        d,
        address(scores),
        scores.strides[0],
    )
    return scores[:, :keys].transpose(0, 2, 1).reshape(-1, keys)[:rows]


def added(name, terms, v, totals, cuts=()):
    """Totals (rows, dv) plus terms (rows, keys) times v (keys, dv), which lies between NaN."""
    (rows, keys), dv, dtype = terms.shape, v.shape[1], working(name)
    lanes = lanes_of(dtype)
    around = np.full((keys + 2, dv + 5), np.nan, DTYPES[name])
    around[1:-1, 2 : 2 + dv] = v
    transposed = np.zeros((keys, STRIP), dtype)
    transposed[:, :rows] = terms.T
    held = np.zeros((STRIP, -(-dv // lanes) * lanes), dtype)
    held[:rows, :dv] = totals
    for first, last in zip((0, *cuts), (*cuts, keys), strict=True):
        view = around[1 + first : 1 + last, 2 : 2 + dv]
        _add(
            ELEMENTS[name],
            dtype.type(0),
            address(transposed[first:]),
            rows,
            address(view),
            view.strides[0],
            last - first,
            dv,
            address(held),
            held.strides[0],
        )
    return held[:rows, :dv].copy()


def drawn(rng, name, *shape):
    return rng.normal(size=shape).astype(DTYPES[name])


def halved(lanes):
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


@NAMES
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 32])
def test_products_of_queries_and_keys(name, rows):
    """A product passes so many roundings as its lane has terms, and one a halving."""
    rng, dtype = np.random.default_rng(rows), working(name)
    wide, u = exact_type(name), np.finfo(dtype).eps / 2
    for d in LENGTHS:
        for keys in (1, 2, 3, 4, 6, 9):
            q, k = rng.normal(size=(rows, d)).astype(dtype), drawn(rng, name, keys, d)
            want = q.astype(wide) @ k.astype(wide).T
            sizes = np.abs(q).astype(wide) @ np.abs(k).astype(wide).T
            roundings = -(-d // lanes_of(dtype)) + np.log2(lanes_of(dtype))
            bound = roundings * u / (1 - roundings * u) * sizes
            assert (np.abs(scored(name, q, k) - want) <= bound * (1 + 2.0**-8)).all(), (d, keys)


@NAMES
def test_the_order_of_a_sum_along_a_vector(name):
    """Powers of two that only the documented lanes and halvings sum up to this: products are exact."""
    rng, dtype = np.random.default_rng(3), working(name)
    lanes = lanes_of(dtype)
    for d in LENGTHS:
        q = np.ldexp(1.0, rng.integers(-14, 14, (5, d))).astype(dtype) * rng.choice([-1, 1], (5, d))
        k = np.ldexp(1.0, rng.integers(-10, 10, (3, d))).astype(DTYPES[name])
        products = (q[:, None] * k[None].astype(dtype)).astype(dtype)
        products = np.pad(products, ((0, 0), (0, 0), (0, -d % lanes))).reshape(5, 3, -1, lanes)
        sums = products[:, :, 0]
        for i in range(1, products.shape[2]):
            sums = sums + products[:, :, i]
        np.testing.assert_array_equal(scored(name, q.astype(dtype), k), halved(sums))


@NAMES
def test_a_row_of_scores_does_not_depend_on_those_beside_it(name):
    rng = np.random.default_rng(4)
    for d in (5, 64, 100):
        q, k = rng.normal(size=(32, d)).astype(working(name)), drawn(rng, name, 11, d)
        together = scored(name, q, k)
        for first, last in ((0, 1), (3, 5), (3, 6), (8, 13), (31, 32)):
            np.testing.assert_array_equal(scored(name, q[first:last], k), together[first:last])


@NAMES
@pytest.mark.parametrize("rows", range(1, 9))
def test_terms_times_values(name, rows):
    """A sum over n keys passes n roundings at most, and starts from what is there."""
    rng, dtype = np.random.default_rng(rows), working(name)
    wide, u = exact_type(name), np.finfo(dtype).eps / 2
    for dv in LENGTHS:
        for keys in (1, 2, 15, 16, 17, 40):
            terms, v = rng.random((rows, keys)).astype(dtype), drawn(rng, name, keys, dv)
            totals = rng.normal(size=(rows, dv)).astype(dtype)
            want = totals + terms.astype(wide) @ v.astype(wide)
            sizes = np.abs(totals) + terms.astype(wide) @ np.abs(v).astype(wide)
            bound = keys * u / (1 - keys * u) * sizes
            assert (np.abs(added(name, terms, v, totals) - want) <= bound * (1 + 2.0**-8)).all(), (dv, keys)


@NAMES
def test_values_are_added_key_after_key(name):
    """Products are exact, so that NumPy's additions round as the fused ones do."""
    rng, dtype = np.random.default_rng(6), working(name)
    for dv in (3, 16, 70):
        terms = np.ldexp(1.0, rng.integers(-12, 1, (8, 50))).astype(dtype)
        v, total = drawn(rng, name, 50, dv), np.zeros((8, dv), dtype)
        got = added(name, terms, v, total)
        for j in range(50):
            total = total + terms[:, j, None] * v[j].astype(dtype)
        np.testing.assert_array_equal(got, total)


@NAMES
def test_neither_rows_nor_runs_of_keys_change_a_total(name):
    rng = np.random.default_rng(5)
    for dv in (5, 64, 100, 130):
        terms, v = rng.random((8, 50)).astype(working(name)), drawn(rng, name, 50, dv)
        totals = np.zeros((8, dv), working(name))
        together = added(name, terms, v, totals)
        for cuts in ((1,), (16,), (7, 20, 49)):
            np.testing.assert_array_equal(added(name, terms, v, totals, cuts), together)
        for first, last in ((0, 1), (2, 5), (1, 6), (7, 8)):
            alone = added(name, terms[first:last], v, totals[first:last])
            np.testing.assert_array_equal(alone, together[first:last])
