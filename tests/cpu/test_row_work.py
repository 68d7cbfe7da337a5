"""How work is cut up does not show: neither the threads, nor the layout, nor stores past the caches."""

import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from row_cases import INF, NAN
from row_oracle import assert_lse, assert_softmax, row_of
from softcarry.cpu import row_work
from softcarry.cpu.row_carries import GATHERED
from softcarry.cpu.row_short import SHORT
from softcarry.cpu.row_sums import CHUNK
from softcarry.cpu.row_work import row_carries_of, top_of_rows, write_softmax
from softcarry.cpu.threads import get_num_threads, set_num_threads
from vector_calls import DTYPES, address, operand_of

# Short rows (in tiles) and longer, of one chunk, one piece, and several; few rows and many.
SHAPES = ((17, 5), (1, SHORT), (9, SHORT + 1), (70, 513), (3, 20000), (1, 70001), (2000, 40), (300, 700))
NAMES = pytest.mark.parametrize("name", DTYPES)
K = 5


@pytest.fixture(autouse=True)
def _number_of_threads():
    before = get_num_threads()
    yield
    set_num_threads(before)


def scores(shape, name, seed=0):
    """Normal scores, with a row that has none, one with a NaN, and one with an infinity."""
    x = np.random.default_rng([seed, *shape]).normal(size=shape) * 9
    if len(x) > 3:
        x[1], x[2, shape[1] // 2], x[3, shape[1] - 1] = -INF, NAN, INF
    return x.astype(DTYPES[name])


def working(x):
    return np.float64 if x.dtype == np.float64 else np.float32


def everything(x):
    """The results of all that works on rows, for rows along the last axis."""
    operand = operand_of(x)
    rows, n = operand.row_count, x.shape[-1]
    k = min(K, n)
    targets = np.stack([np.arange(rows) % n, np.full(rows, n - 1)], axis=1)
    lse, chosen, best = (np.full(s, 7.0, x.dtype) for s in (rows, (rows, 2), (rows, k)))
    m, l = row_carries_of(operand, lse=address(lse), targets=targets, logprobs=address(chosen))
    top = top_of_rows(operand, k, out_element=operand.element, probabilities=address(best), empty=0.0)
    probabilities, logarithms = np.full(x.shape, 7.0, x.dtype), np.full(x.shape, 7.0, x.dtype)
    write_softmax(operand, operand_of(probabilities), logarithms=False, empty=0.0)
    write_softmax(operand, operand_of(logarithms), logarithms=True, empty=NAN)
    flat = [a.reshape(rows, n) for a in (probabilities, logarithms)]
    return {
        "m": m,
        "l": l,
        "lse": lse,
        "chosen": chosen,
        "softmax": flat[0],
        "log_softmax": flat[1],
        **{f"top {field}": getattr(top, field) for field in top._fields},
        "top probabilities": best,
    }


def assert_same(got, want):
    for key, value in want.items():
        a, b = (np.ascontiguousarray(v) for v in (got[key], value))
        with np.errstate(invalid="ignore"):
            nan = np.isnan(b)
            np.testing.assert_array_equal(np.isnan(a), nan, err_msg=key)
        integers = f"u{a.dtype.itemsize}"
        np.testing.assert_array_equal(a.view(integers)[~nan], b.view(integers)[~nan], err_msg=key)


def layouts(x):
    """Views of other memory that equal x (rows, n)."""
    rows, n = x.shape
    wide = np.full((rows, 3 * n + 1), NAN, x.dtype)
    wide[:, 1::3] = x
    backwards = np.ascontiguousarray(x[::-1, ::-1])
    unaligned = np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)
    yield from (np.asfortranarray(x), wide[:, 1::3], backwards[::-1, ::-1], unaligned)
    # Rows in two axes that lie in memory in the other order; the last 8 look like neighbours from their ends.
    for inner in (2, 4):
        if rows % inner == 0:
            parts = x.reshape(rows // inner, inner, n)
            yield np.ascontiguousarray(parts.transpose(1, 0, 2)).transpose(1, 0, 2)
            yield np.ascontiguousarray(parts.transpose(2, 1, 0)).transpose(2, 1, 0)


@NAMES
@pytest.mark.parametrize("shape", SHAPES)
def test_threads_do_not_show(name, shape):
    x = scores(shape, name)
    set_num_threads(1)
    want = everything(x)
    for count in (2, 3, 7):
        set_num_threads(count)
        assert_same(everything(x), want)


@NAMES
@pytest.mark.parametrize("shape", [*SHAPES, (8, 3), (8, 40), (16, SHORT), (8, 150)])
def test_layouts_do_not_show(name, shape):
    """To the bit, whether rows are read in place or gathered first."""
    x = scores(shape, name)
    want = everything(x)
    for view in layouts(x):
        assert_same(everything(view), want)


@NAMES
def test_results_are_right(name):
    """A few rows of each shape by the oracle: the comparisons above would pass if all were wrong alike."""
    for shape in SHAPES:
        x = scores(shape, name)
        got = everything(x)
        lse, probabilities = np.empty(len(x), working(x)), np.empty(shape, working(x))
        wide = "float64" if name == "float64" else "float32"
        row_carries_of(operand_of(x), out_element=wide, lse=address(lse))
        write_softmax(operand_of(x), operand_of(probabilities), logarithms=False, empty=0.0)
        for i in sorted({0, 1, 2, 3, len(x) - 1} & set(range(len(x)))):
            row = row_of(x[i])
            assert_lse(lse[i], row, np.dtype(working(x)))
            assert_softmax(probabilities[i], row, np.dtype(working(x)))
        with np.errstate(invalid="ignore"):
            rounded = {"lse": lse.astype(x.dtype), "softmax": probabilities.astype(x.dtype)}
        assert_same(got, rounded)
        np.testing.assert_array_equal(got["top scores"][0], np.sort(x[0].astype(working(x)))[::-1][:K])


@NAMES
def test_rows_in_a_view_that_repeats_one(name):
    """Strides of 0: the same row seven times, and one score seventy thousand times."""
    x = scores((1, 3000), name)
    want, got = everything(x), everything(np.broadcast_to(x, (7, 3000)))
    for i in range(7):
        assert_same(
            {key: value[i : i + 1] for key, value in got.items() if key != "chosen"},
            {key: value for key, value in want.items() if key != "chosen"},
        )
    flat = everything(np.broadcast_to(x[:, :1], (1, 70000)))
    assert flat["l"][0] == 70000
    np.testing.assert_array_equal(flat["top indices"][0], np.arange(K))


@pytest.mark.parametrize("threads", [1, 2, 5, 64])
@pytest.mark.parametrize("contiguous", [True, False])
def test_how_rows_are_cut(threads, contiguous):
    set_num_threads(threads)
    cuts = {}
    for rows in (1, 2, 7, 64, 5000, 10**6):
        for length in (1, 63, 64, 65, 512, 513, 16384, 16385, 128256, 10**7, 2**31 + 5, 2**40):
            for k in (None, 1, length // 2 + 1):
                most = 4096 if k is None else length // (16 * k)
                work = row_work._cut("float32", "float32", rows, length, contiguous, most, threads)
                used, grid = work.threads, work.grid
                assert (grid.rows, grid.length) == (rows, length)
                assert 1 <= used <= threads
                assert grid.piece % CHUNK == 0
                assert grid.pieces <= 4096
                assert (grid.pieces - 1) * grid.piece < length <= grid.pieces * grid.piece
                assert 1 <= grid.segments <= grid.pieces
                # What is worth threads is cut into enough units for them, if it can be.
                if rows * length >= 2**17 and k is None:
                    possible = min(threads, rows * length // 2**16, grid.pieces * -(-rows // grid.group))
                    assert used == min(possible, grid.units)
                    assert used >= min(2, possible)
                # All lists of the best k together are no larger than the row, nor is one of them short.
                if k is not None and grid.segments > 1:
                    assert grid.segments * k * 16 <= length
                    assert length - (grid.segments - 1) * grid.segment * grid.piece > 0
                    assert grid.segment * grid.piece >= k
                if not contiguous and length > SHORT:
                    assert grid.group * CHUNK * 4 <= GATHERED
            cuts[rows, length] = grid.piece, grid.pieces
    set_num_threads(3)
    for (rows, length), cut in cuts.items():
        grid = row_work._cut("float32", "float32", rows, length, contiguous, 4096, 3).grid
        assert (grid.piece, grid.pieces) == cut


def test_a_row_of_a_hundred_million_scores_has_no_more_pieces_than_4096():
    """A view of one number: 4096 pieces of 16384 would be 67 million."""
    x = np.broadcast_to(np.float32(0.5), (1, 100_000_000))
    m, l = row_carries_of(operand_of(x))
    assert (m[0], l[0]) == (0.5, 100_000_000)
    assert m.base.size <= 4096


BIG = 2**24
# Bytes by which an output misses a multiple of 64: filled up in parts of 7 elements, or by one.
OFFSETS = (0, 4, 8, 20, 32, 36, 60)


def surrounded(shape, dtype, offset):
    """An output so many bytes after a multiple of 64, and the memory around it, of ones."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.full(size + 192, 255, np.uint8)
    start = -address(memory) % 64 + 64 + offset
    memory[start : start + size] = 0
    return memory[start : start + size].view(dtype).reshape(shape), memory[:start], memory[start + size :]


@pytest.mark.parametrize("logarithms", [False, True])
@pytest.mark.parametrize(("source", "target"), [("float32", "float32"), ("float32", "bfloat16")])
def test_stores_past_the_caches_write_the_same(source, target, logarithms):
    """Rows of an odd length begin at every alignment; outputs of one row each are stored plainly."""
    set_num_threads(2)
    size = DTYPES[target].itemsize
    for n in (4099, 128257):
        x = scores((BIG // size // n + 2, n), source)
        want = np.empty(x.shape, DTYPES[target])
        for row, out in zip(x, want, strict=True):
            write_softmax(operand_of(row), operand_of(out), logarithms=logarithms, empty=0.0)
        for offset in [o for o in OFFSETS if o % size == 0] + ([2, 62] if size == 2 else []):
            out, before, after = surrounded(x.shape, DTYPES[target], offset)
            assert out.nbytes >= BIG
            write_softmax(operand_of(x), operand_of(out), logarithms=logarithms, empty=0.0)
            np.testing.assert_array_equal(out.view(f"u{size}"), want.view(f"u{size}"))
            assert (before == 255).all()
            assert (after == 255).all()


UNALIGNED = """
    import sys
    import numpy as np
    sys.path.insert(0, sys.argv[1])
    from softcarry.cpu.row_work import write_softmax
    from vector_calls import operand_of

    x = np.random.default_rng(0).normal(size=(40, 128257)).astype(np.float32)
    want = np.empty(x.shape, np.float32)
    for row, out in zip(x, want):
        write_softmax(operand_of(row), operand_of(out), logarithms=False, empty=0.0)
    memory = np.zeros(x.nbytes + 64, np.uint8)
    for offset in (1, 2, 3):
        begin = -memory.ctypes.data % 64 + offset
        out = memory[begin : begin + x.nbytes].view(np.float32).reshape(x.shape)
        out[...] = 0
        write_softmax(operand_of(x), operand_of(out), logarithms=False, empty=0.0)
        assert np.array_equal(out, want)
    print("written")
"""


def test_stores_past_the_caches_between_elements():
    """An output whose address is no multiple of its elements' size never comes to a multiple of 64."""
    tests = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", textwrap.dedent(UNALIGNED), tests]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


@pytest.mark.parametrize("call", ["carries", "top", "softmax"])
def test_memory_beyond_the_results(call):
    """NumPy's share, which is counted: pieces, lists and results, but nothing of the size of the input."""
    x = scores((64, 128256), "float32")
    out = np.empty(x.shape, np.float32)
    operand, target = operand_of(x), operand_of(out)
    best = np.empty((64, 50), np.float32)

    def work():
        if call == "carries":
            return row_carries_of(operand)
        if call == "top":
            return top_of_rows(operand, 50, out_element="float32", probabilities=address(best), empty=0.0)
        return write_softmax(operand, target, logarithms=False, empty=0.0)

    work()
    tracemalloc.start()
    try:
        result = work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    del result
