"""The counter of partial carries: its order, its depth, and what it makes of carries, moments and numbers."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import softcarry as sc
from softcarry.errors import OptionError, ShapeError
from softcarry.numerics import formats, running_sum


@dataclass(frozen=True)
class Span:
    """A piece of the stream, which merges with its right neighbour only and knows how deep it lies."""

    start: int
    stop: int
    depth: int = 0

    def merge(self, other):
        assert self.stop == other.start
        return Span(self.start, other.stop, max(self.depth, other.depth) + 1)


@given(st.integers(1, 3000))
def test_the_stack_is_as_deep_as_a_tree_and_holds_the_ones_of_the_count(n):
    stack = sc.CarryStack()
    for i in range(n):
        stack.push(Span(i, i + 1))
        assert len(stack) == (i + 1).bit_count() <= math.log2(i + 1) + 1
    total = stack.total()
    assert (total.start, total.stop) == (0, n)
    assert total.depth == (n - 1).bit_length()
    assert stack.count == n


def test_a_total_may_be_taken_at_any_time():
    stack = sc.CarryStack()
    for i in range(40):
        stack.push(Span(i, i + 1))
        kept = len(stack)
        for _ in range(2):
            assert stack.total().stop == i + 1
        assert (len(stack), stack.count) == (kept, i + 1)


def test_a_merge_may_be_given():
    words = sc.CarryStack(lambda older, newer: older + newer)
    for letter in "online softmax":
        words.push(letter)
    assert words.total() == "online softmax"


@pytest.mark.parametrize("n", [1, 2, 3, 100, 1023, 1024])
def test_numbers_of_a_format_are_summed_as_running_sum_does(n):
    fmt = formats["bfloat16"]
    terms = fmt.round(np.random.default_rng(n).random(n))
    stack = sc.CarryStack(lambda older, newer: fmt.round(older + newer))
    for term in terms:
        stack.push(term)
    assert stack.total() == running_sum(terms, fmt, "carry-stack")


def test_carries_of_key_blocks_make_the_carry_of_the_row():
    rng = np.random.default_rng(0)
    scores, values = 4 * rng.standard_normal((3, 77)), rng.standard_normal((3, 77, 5))
    scores[1, :20] = -np.inf
    stack = sc.CarryStack()
    for start in range(0, 77, 7):
        block = slice(start, start + 7)
        stack.push(sc.Carry.of(scores[:, block], values[:, block]))
    found = stack.total()
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact = np.einsum("rn,rnd->rd", weights, values) / weights.sum(axis=-1)[:, None]
    assert len(stack) == 3
    # float64 sums of 77 terms, each with an exponential of error 2u or so, and at most 4 merges of 11 blocks.
    bound = (
        (77 + 4 * 8)
        * 2.0**-53
        * np.einsum("rn,rnd->rd", weights, abs(values))
        / weights.sum(axis=-1)[:, None]
    )
    assert (abs(found.output - exact) <= 2 * bound).all()
    np.testing.assert_array_equal(found.m, scores.max(axis=-1))


def test_an_empty_carry_is_the_identity_anywhere_in_the_stream():
    scores = np.array([[2.0, 5.0, 1.0, 7.0]])
    stack = sc.CarryStack()
    for piece in (scores[:, :0], scores[:, :2], scores[:, :0], scores[:, 2:], scores[:, :0]):
        stack.push(sc.Carry.of(piece))
    assert float(stack.total().m[0]) == 7.0
    assert round(float(stack.total().l[0]), 4) == 1.1446


def test_moments_of_pieces_make_the_moments_of_the_stream():
    x = 1e4 + np.random.default_rng(1).standard_normal(1000)
    stack = sc.CarryStack()
    for piece in np.array_split(x, 37):
        stack.push(sc.Moments.of(piece))
    found = stack.total()
    assert found.count == 1000
    # The bounds that Moments states, for 1000 numbers and 36 merges.
    u, offset = 2.0**-53, abs(x).max()
    m2 = ((x - math.fsum(x) / 1000) ** 2).sum()
    assert abs(float(found.mean) - math.fsum(x) / 1000) <= (1000 + 4 * 36) * u * offset
    spread = (1000 + 8 + 6 * 36) * u * m2 + 2 * 36 * (1000 + 4 * 36) * u * offset * math.sqrt(1000 * m2)
    assert abs(float(found.m2) - m2) <= 2 * spread


def test_a_carry_that_does_not_fit_leaves_the_stack_as_it_was():
    stack = sc.CarryStack()
    for _ in range(3):
        stack.push(sc.Carry.of(np.zeros((2, 4))))
    with pytest.raises(ShapeError):
        stack.push(sc.Carry.of(np.zeros((3, 4))))
    assert (len(stack), stack.count) == (2, 3)
    assert float(stack.total().l[0]) == 12.0


def test_an_empty_stack_has_no_total_and_a_merge_is_a_function():
    with pytest.raises(OptionError, match=r"at least one carry; got an empty stack: push Carry\.empty"):
        sc.CarryStack().total()
    with pytest.raises(OptionError, match="function of two carries; got str"):
        sc.CarryStack("merge")
