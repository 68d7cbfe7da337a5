"""Rows that arrive in blocks: the same answers as from whole rows, read once, with progress."""

import itertools
import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softcarry as sc
from softcarry.errors import DTypeError, OptionError, ShapeError

ROWS = np.random.default_rng(5).normal(size=(3, 4000)).astype(np.float32) * 6
TARGETS = np.array([0, 2047, 3999])


def cut(array, lengths, axis=-1):
    return np.split(array, np.cumsum(lengths)[:-1], axis=axis)


def assert_close_to_whole(stream, rows=ROWS, targets=TARGETS, k=7):
    """Scores and indices to the bit; lse within the roundings of its float32 sums and result."""
    whole = sc.softmax_topk(rows, k)
    assert (stream.topk.indices == whole.indices).all()
    assert (stream.topk.scores == whole.scores).all()
    exact = np.array([math.log(math.fsum(np.exp(row.astype(np.float64)))) for row in rows])
    # A sum of at most 16 + 5 float32 terms in a row, exponentials of 2 ulp, one rounding of the result.
    bound = 2.0**-24 * (np.abs(exact) + 26 + np.log(rows.shape[-1]))
    assert (np.abs(stream.lse - exact) <= bound).all()
    chosen = rows[np.arange(len(rows)), targets].astype(np.float64) - exact
    assert (np.abs(stream.logprobs - chosen) <= bound + 2.0**-24 * np.abs(chosen)).all()


@given(cuts=st.lists(st.integers(0, 4000), max_size=6))
def test_any_blocks_give_the_answers_of_whole_rows(cuts):
    borders = [0, *sorted(cuts), 4000]
    stream = sc.RowStream(k=7, targets=TARGETS)
    for start, stop in itertools.pairwise(borders):
        stream.absorb(ROWS[:, start:stop])
    assert stream.n == 4000
    assert_close_to_whole(stream)


def test_an_iterator_is_read_once_and_blocks_are_let_go():
    alive = []

    def blocks():
        for block in cut(ROWS, [1000, 1, 999, 2000]):
            alive.append(block.copy())
            yield alive.pop()

    calls = []
    stream = sc.RowStream.of(blocks(), k=7, targets=TARGETS, progress=lambda *call: calls.append(call))
    assert_close_to_whole(stream)
    assert calls == [(1000, None), (1001, None), (2000, None), (4000, None)]


def test_an_array_is_cut_and_progress_knows_the_total():
    calls = []
    stream = sc.RowStream.of(
        ROWS, k=7, targets=TARGETS, block=1500, progress=lambda *call: calls.append(call)
    )
    assert_close_to_whole(stream)
    assert calls == [(1500, 4000), (3000, 4000), (4000, 4000)]


def test_any_axis():
    stream = sc.RowStream.of(np.ascontiguousarray(ROWS.T), axis=0, k=7, targets=TARGETS, block=999)
    assert stream.topk.indices.shape == (7, 3)
    np.testing.assert_array_equal(stream.topk.indices.T, sc.softmax_topk(ROWS, 7).indices)
    np.testing.assert_array_equal(stream.logprobs, sc.RowStream.of(ROWS, targets=TARGETS, block=999).logprobs)


def test_a_memory_mapped_file_larger_than_what_is_held(tmp_path):
    path = tmp_path / "scores.npy"
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(2, 3_000_000))
    mapped[...] = np.arange(3_000_000, dtype=np.float32)[None] % 1013 / 100
    mapped[1] -= 3
    mapped.flush()
    read = np.load(path, mmap_mode="r")
    sc.RowStream.of(read[:, :100], k=3)
    tracemalloc.start()
    stream = sc.RowStream.of(read, k=3, block=100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20  # the file holds 24 MB
    assert stream.topk.indices.tolist() == [[1012, 2025, 3038]] * 2
    one = math.fsum(math.exp(float(np.float32(j) / np.float32(100))) for j in range(1013))
    rest = math.fsum(math.exp(float(np.float32(j) / np.float32(100))) for j in range(3_000_000 % 1013))
    exact = math.log(one * (3_000_000 // 1013) + rest)
    assert abs(stream.lse[0] - exact) <= 2.0**-24 * (exact + 26 + math.log(3e6))


def test_torch_tensors_give_tensors_and_bfloat16_is_kept_wide():
    rows = torch.tensor(ROWS).bfloat16()
    stream = sc.RowStream.of(rows, k=2, targets=torch.tensor(TARGETS), block=1024)
    assert stream.lse.dtype == stream.carry.m.dtype == stream.logprobs.dtype == torch.float32
    assert stream.topk.probabilities.dtype == torch.bfloat16
    exact = torch.logsumexp(rows.double(), -1)
    assert ((stream.lse - exact).abs() <= 2.0**-24 * (exact.abs() + 26 + math.log(4000))).all()


def test_the_carry_gives_the_softmax_in_a_second_reading():
    stream = sc.RowStream.of(ROWS, block=700)
    weights = np.concatenate([stream.carry.weights(block) for block in cut(ROWS, [700, 3300])], axis=-1)
    np.testing.assert_allclose(weights, sc.softmax(ROWS), rtol=30 * 2.0**-24, atol=2.0**-126)


def test_rows_without_live_scores_and_nothing_at_all():
    stream = sc.RowStream(k=2).absorb(np.full((2, 3), -np.inf, np.float32))
    assert stream.lse.tolist() == [-math.inf] * 2
    assert stream.topk.indices.tolist() == [[0, 1]] * 2
    stream.absorb(np.array([[1.0], [np.nan]], np.float32))
    assert stream.lse[0] == 1.0
    assert math.isnan(stream.lse[1])
    assert stream.topk.indices.tolist() == [[3, 0]] * 2
    nothing = sc.RowStream().absorb(np.empty((2, 0)))
    assert (nothing.n, nothing.lse.tolist(), nothing.carry.l.tolist()) == (0, [-math.inf] * 2, [0.0] * 2)
    assert sc.RowStream(k=3).absorb(np.empty((0, 5))).n == 5


def test_fewer_scores_than_k_so_far():
    stream = sc.RowStream(k=5).absorb(np.array([1.0, 3.0]))
    assert stream.topk.indices.tolist() == [1, 0]
    stream.absorb(np.array([2.0]))
    assert stream.topk.indices.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: sc.RowStream(k=0), OptionError, "k must be an integer from 1"),
        (lambda: sc.RowStream(targets=-1), OptionError, "targets must be from 0 on, got -1"),
        (lambda: sc.RowStream(targets=1.5), DTypeError, "targets must be integers"),
        (lambda: sc.RowStream().absorb(1.0), DTypeError, "expected an array"),
        (lambda: sc.RowStream(targets=TARGETS).absorb(ROWS[0]), ShapeError, r"rows of the targets, \(3,\)"),
        (lambda: sc.RowStream().absorb(ROWS).absorb(ROWS[:2]), ShapeError, r"same rows, \(3,\), got \(2,\)"),
        (
            lambda: sc.RowStream().absorb(ROWS).absorb(ROWS.astype(float)),
            DTypeError,
            "of one library and dtype",
        ),
        (
            lambda: sc.RowStream().absorb(ROWS).absorb(torch.tensor(ROWS)),
            DTypeError,
            "of one library and dtype",
        ),
        (lambda: sc.RowStream().absorb(ROWS, axis=2), OptionError, "axis must be from -2 to 1"),
        (lambda: sc.RowStream.of(ROWS, block=0), OptionError, "must be at least 1"),
        (lambda: sc.RowStream.of([ROWS], block=5), OptionError, "leave it out"),
        (lambda: sc.RowStream.of(3.0), DTypeError, "blocks must be an array, or an iterable"),
        (lambda: sc.RowStream().absorb(ROWS).topk, OptionError, "made without k="),
        (lambda: sc.RowStream(k=1).topk, OptionError, "no score has been absorbed"),
        (lambda: sc.RowStream().absorb(ROWS).logprobs, OptionError, "made without targets="),
        (lambda: sc.RowStream().lse, OptionError, "no block has been absorbed"),
        (lambda: sc.RowStream().carry, OptionError, "no block has been absorbed"),
        (lambda: sc.RowStream(targets=TARGETS).logprobs, OptionError, "no block has been absorbed"),
        (
            lambda: sc.RowStream(targets=TARGETS).absorb(ROWS[:, :100]).logprobs,
            OptionError,
            "among the 100 scores absorbed, got 2047: absorb more",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_refused_block_changes_nothing():
    stream = sc.RowStream(k=2, targets=TARGETS[:1]).absorb(ROWS[:1])
    before = stream.n, stream.lse.copy(), stream.topk.indices.copy()
    for bad in (ROWS[:2], ROWS[:1].astype(ml_dtypes.bfloat16), ROWS[:1] + 1j):
        with pytest.raises((ShapeError, DTypeError)):
            stream.absorb(bad)
    assert stream.n == before[0]
    np.testing.assert_array_equal(stream.lse, before[1])
    np.testing.assert_array_equal(stream.topk.indices, before[2])
