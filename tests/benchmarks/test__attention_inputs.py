"""Operations are counted over live pairs; copies of queries decide at both ends."""

import ml_dtypes
import numpy as np
import pytest

from softcarry.benchmarks._attention_inputs import Shape, inputs, truth
from softcarry.benchmarks._attention_truth import attention_truth


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 4, 4, 3), (2, 6, 3, 5, 9, 7), (1, 2, 1, 8, 3, 2), (1, 1, 1, 1, 6, 4)]
)
def test_operations_are_four_d_a_live_pair(shape):
    batch, heads, _, tq, tk, d = shape
    live = np.arange(tk) <= np.arange(tq)[:, None] + tk - tq
    assert Shape(*shape).operations() == 4 * d * batch * heads * tq * tk
    assert Shape(*shape).operations(causal=True) == 4 * d * batch * heads * int(live.sum())


def test_causal_is_half_and_the_diagonal():
    shape = Shape.square(1, 8, 2048, 64)
    assert shape.operations() == 4 * 8 * 2048 * 2048 * 64
    assert shape.operations(causal=True) == 4 * 8 * 64 * (2048 * 2049 // 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_keys_and_values_are_one_array_of_the_dtype(dtype):
    shape = Shape(2, 4, 2, 3, 10, 8)
    drawn = inputs(shape, dtype)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert drawn.q.dtype == drawn.kv.dtype == kind
    assert drawn.kv.flags.c_contiguous
    assert (drawn.q.shape, drawn.k.shape, drawn.v.shape) == ((2, 4, 3, 8), (2, 2, 10, 8), (2, 2, 10, 8))
    assert np.shares_memory(drawn.kv, drawn.k)
    assert np.shares_memory(drawn.kv, drawn.v)


def test_copies_stand_on_the_diagonal_and_at_both_ends():
    q, (k, _) = inputs(Shape.square(1, 2, 100, 64), "float32")
    same = (q == k).all(axis=-1)
    assert (same.sum(axis=-1) == 16).all()
    assert same[..., [0, -1]].all()


def test_one_query_has_a_copy_at_either_end():
    q, (k, _) = inputs(Shape(1, 3, 3, 1, 50, 16), "float32")
    places = np.argwhere((q == k).all(axis=-1)[0])
    assert places.tolist() == [[head, place] for head in range(3) for place in (0, 49)]


def test_queries_of_all_heads_of_a_group_have_copies():
    q, (k, _) = inputs(Shape(1, 8, 2, 1, 50, 16), "float32")
    for head in range(8):
        assert (q[0, head] == k[0, head // 4]).all(axis=-1).sum() == 1


def test_truth_is_that_of_the_inputs():
    shape = Shape.square(1, 2, 20, 8)
    q, kv = inputs(shape, "float32")
    for causal in (False, True):
        expected = attention_truth(q, *kv, causal=causal).expected
        assert np.array_equal(truth(shape, "float32", causal=causal).expected, expected)
