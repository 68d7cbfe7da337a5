"""Loads are exact, stores round to nearest even, nothing beyond is touched, and a counter counts.

The four ways from memory to memory (whole blocks, strips, parts of strips, single elements) are different
instructions, so each is tested; NumPy and ml_dtypes say what the conversions are.
"""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from softcarry.cpu.memory import ELEMENTS, claim, transpose
from vector_calls import (
    BLOCKS,
    DTYPES,
    NAMES,
    PARTS,
    SINGLES,
    STREAMED,
    STRIPS,
    address,
    copied,
    copied_partly,
)

WAYS = pytest.mark.parametrize("way", [BLOCKS, STRIPS, PARTS, SINGLES])
HALF = pytest.mark.parametrize("name", ["bfloat16", "float16"])
FLOAT32 = np.dtype(np.float32)
INTEGERS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def bits(array):
    return array.view(INTEGERS[array.dtype.itemsize])


def aligned(count, dtype, offset=0):
    """An array that begins so many bytes after a multiple of 64."""
    memory = np.zeros(count * dtype.itemsize + 128, np.uint8)
    start = -address(memory) % 64 + offset
    return memory[start : start + count * dtype.itemsize].view(dtype)


def every_pattern(name):
    return np.arange(2**16, dtype=np.uint16).view(DTYPES[name])


def converted(x, dtype):
    """What NumPy and ml_dtypes convert it to; both warn of a NaN or an overflow."""
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(dtype)


def assert_same_but_nan(got, want):
    """The same to the bit; a NaN for a NaN, whatever its payload."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(want)[~nan])


@WAYS
@HALF
def test_loads_of_every_16_bit_number_are_exact(name, way):
    x = every_pattern(name)
    assert_same_but_nan(copied(x, FLOAT32, way), converted(x, FLOAT32))


@WAYS
@HALF
def test_stores_give_back_every_16_bit_number(name, way):
    """With ±0, subnormal numbers and infinities."""
    x = every_pattern(name)
    assert_same_but_nan(copied(converted(x, FLOAT32), DTYPES[name], way), x)


def around_bfloat16():
    """For every pattern the numbers that share its upper half: itself, ties, and what is next to them."""
    high = np.arange(2**16, dtype=np.uint32)[:, None] << 16
    low = np.array([0, 1, 2, 0x4000, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0x8002, 0xC000, 0xFFFE, 0xFFFF])
    return (high | low.astype(np.uint32)).ravel().view(np.float32)


def around_float16():
    """Every number and tie of float16 and the float32 numbers next to them; those beyond the largest too."""
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = finite[:-1] + np.diff(finite) / 2
    beyond = [65504.0, 65519.0, 65520.0, 65521.0, 65536.0, 1e5, 2.0**31, 3e38, np.inf]
    small = np.ldexp(np.float32(1), np.arange(-149, -24))
    x = np.concatenate([finite, ties, np.array(beyond, np.float32), small, 1.5 * small]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(0))])
    nan = np.array([0x7F800001, 0x7FFFFFFF, 0x7FC00000, 0x7F802000, 0x7F801FFF], np.uint32).view(np.float32)
    x = np.concatenate([x, -x, nan, np.negative(nan)])
    return np.concatenate([x, np.zeros(-x.size % 32, np.float32)])


@WAYS
def test_stores_round_to_the_nearest_bfloat16(way):
    x = around_bfloat16()
    assert_same_but_nan(copied(x, DTYPES["bfloat16"], way), converted(x, ml_dtypes.bfloat16))


@WAYS
def test_stores_round_to_the_nearest_float16(way):
    x = around_float16()
    assert_same_but_nan(copied(x, DTYPES["float16"], way), converted(x, np.float16))


def test_ties_go_to_even():
    """By hand: 1 + 2^-8 and 1 + 3·2^-8 lie between bfloat16 numbers, 1 + 2^-11 between float16 numbers."""
    x = np.zeros(32, np.float32)
    x[:4] = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 2.0**-134]
    got = copied(x, DTYPES["bfloat16"], BLOCKS).astype(np.float64)
    np.testing.assert_array_equal(got[:4], [1, 1 + 2.0**-6, -1, 0])
    x[:4] = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 65520, 2.0**-25]
    got = copied(x, DTYPES["float16"], BLOCKS).astype(np.float64)
    np.testing.assert_array_equal(got[:4], [1, 1 + 2.0**-9, np.inf, 0])


@WAYS
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wide_numbers_are_copied_to_the_bit(name, way):
    """A NaN with its payload, too: nothing converts it."""
    dtype = DTYPES[name]
    raw = np.random.default_rng(0).integers(2**64, size=1024, dtype=np.uint64)
    x = raw.view(dtype)
    np.testing.assert_array_equal(bits(copied(x, dtype, way)), bits(x))


@WAYS
@pytest.mark.parametrize("name", DTYPES)
def test_any_alignment(name, way):
    """Down to odd addresses, of source and destination."""
    dtype = DTYPES[name]
    values = np.random.default_rng(1).normal(size=96).astype(dtype)
    working = np.dtype(np.float64 if name == "float64" else np.float32)
    for offset in (*range(9), 31, 63):
        source, target = aligned(96, dtype, offset), aligned(96, working, 63 - offset)
        source[...] = values
        assert_same_but_nan(copied(source, working, way, target), values.astype(working))


@pytest.mark.parametrize("name", DTYPES)
def test_what_streams_past_the_caches_arrives(name):
    dtype = DTYPES[name]
    working = np.dtype(np.float64 if name == "float64" else np.float32)
    x = np.random.default_rng(2).normal(size=4096).astype(working)
    got = copied(x, dtype, STREAMED, aligned(x.size, dtype))
    assert_same_but_nan(got, x.astype(dtype))


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("name", DTYPES)
def test_a_part_of_a_strip(name, count):
    """Lanes beyond it load as −inf, which no sum of exponentials sees, and are not stored."""
    dtype = DTYPES[name]
    working = np.dtype(np.float64 if name == "float64" else np.float32)
    x = np.arange(1, 9).astype(dtype)
    lanes, stored = copied_partly(x, working, count)
    np.testing.assert_array_equal(lanes[:count], x[:count].astype(working))
    np.testing.assert_array_equal(lanes[count:], np.full(8 - count, -np.inf))
    np.testing.assert_array_equal(stored[:count], x[:count].astype(working))
    np.testing.assert_array_equal(stored[count:], np.full(stored.size - count, 77.0))


@njit
def _transpose(element, source, stride, out_element, target, out_stride):
    transpose(element, source, stride, out_element, target, out_stride)


def transposed(x, y):
    """Write the transpose of x, rows of 8 in order, to y, and nothing else."""
    elements = ELEMENTS[NAMES[x.dtype]], ELEMENTS[NAMES[y.dtype]]
    _transpose(elements[0], address(x), x.strides[0], elements[1], address(y), y.strides[0])


# To a tile, which is of the working format, and from it.
@pytest.mark.parametrize(
    ("source", "target"),
    [(name, "float32") for name in DTYPES if name != "float64"] + [("float64", "float64")],
)
def test_a_matrix_of_8_by_8_is_transposed(source, target):
    rows = np.arange(1, 1 + 30 * 11).reshape(30, 11).astype(DTYPES[source])
    for view in (rows[:8, 1:9], rows[3:26:3, :8], rows[28:4:-3, 2:10], np.broadcast_to(rows[5, :8], (8, 8))):
        memory = np.full((20, 13), 500, DTYPES[target])
        for out in (memory[:8, 2:10], memory[19:3:-2, 5:13]):
            memory[...] = 500
            want = memory.copy()
            transposed(view, out)
            got = memory.copy()
            memory[...] = want
            out[...] = view.T.astype(DTYPES[target])
            np.testing.assert_array_equal(got, memory)


@pytest.mark.parametrize("target", ["bfloat16", "float16"])
def test_a_transpose_rounds_like_a_store(target):
    x = np.random.default_rng(3).normal(size=(8, 8)).astype(np.float32)
    got = np.empty((8, 8), DTYPES[target])
    transposed(x, got)
    np.testing.assert_array_equal(got, x.T.astype(DTYPES[target]))


GUARDED = """
    import ctypes, mmap, sys
    import numpy as np
    sys.path.insert(0, sys.argv[1])
    from vector_calls import BLOCKS, DTYPES, PARTS, SINGLES, STRIPS, copied, copied_partly
    import softcarry as sc

    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def within(count, dtype, at_end):
        "An array with a page on either side that nobody may touch, at its end or its beginning."
        span = -(-count * dtype.itemsize // page) * page
        memory = np.frombuffer(mmap.mmap(-1, span + 2 * page), np.uint8)
        for guard in (0, page + span):
            if libc.mprotect(memory.ctypes.data + guard, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        begin = page + (span - count * dtype.itemsize if at_end else 0)
        return memory[begin : begin + count * dtype.itemsize].view(dtype)

    if sys.argv[2] == "beyond":
        print(within(8, DTYPES["float32"], True).base[-1])
    rng = np.random.default_rng(0)
    for at_end in (True, False):
        for name, dtype in DTYPES.items():
            working = DTYPES["float64" if name == "float64" else "float32"]
            for way in (BLOCKS, STRIPS, PARTS, SINGLES):
                copied(within(64, dtype, at_end), working, way, within(64, working, at_end))
            for count in range(1, 8):
                copied_partly(within(count, dtype, at_end), working, count)
        # In tiles and along rows; whole and parts of strips, blocks and chunks.
        for rows, n in ((1, 1), (9, 5), (9, 8), (16, 67), (1, 128), (3, 505), (1, 512), (2, 513), (1, 1029)):
            x, out = (within(rows * n, DTYPES["float32"], at_end).reshape(rows, n) for _ in range(2))
            x[...] = rng.normal(size=x.shape)
            sc.softmax(x, out=out)
            sc.log_softmax(x, out=out)
            sc.softmax_topk(x, 1 + n // 2)
            assert np.isfinite(sc.logsumexp(x)).all()
    print("nothing touched")
"""


def run_guarded(what):
    tests = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", textwrap.dedent(GUARDED), tests, what]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_pages_around_an_array_are_not_touched():
    """By vectors or by whole kernels: reading beyond would end the process, as the next test shows."""
    done = run_guarded("not beyond")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "nothing touched"


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_the_pages_around_an_array_do_guard_it():
    done = run_guarded("beyond")
    assert done.returncode < 0


@njit(nogil=True)
def claim_until(counter, end, mine):
    count = 0
    number = claim(counter)
    while number < end:
        mine[count] = number
        count += 1
        number = claim(counter)
    return count


def test_several_threads_claim_every_number_once():
    counter, end, callers = np.zeros(1, np.int64), 400_000, 4
    lists = np.empty((callers, end), np.int64)
    claim_until(address(counter), 0, lists[0])
    counter[0] = 0
    together = Barrier(callers)

    def call(mine):
        together.wait()
        return mine[: claim_until(address(counter), end, mine)]

    with ThreadPoolExecutor(callers) as threads:
        claimed = list(threads.map(call, lists))
    np.testing.assert_array_equal(np.sort(np.concatenate(claimed)), np.arange(end))
    assert counter[0] == end + callers
    assert all((np.diff(mine) > 0).all() for mine in claimed)
