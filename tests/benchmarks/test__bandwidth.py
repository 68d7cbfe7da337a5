"""The plain read reads every byte: its checksum is that of the bytes, whatever the length and the threads."""

import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from softcarry.benchmarks import _bandwidth
from softcarry.benchmarks._bandwidth import Reader
from softcarry.errors import OptionError, ShapeError

BLOCK = 2 * 1024 * 8
"""Bytes of the pair of streams that one thread reads at a time."""


def checksum(content: bytes) -> int:
    """Add the 64-bit words in Python's integers, the last one filled up with zeros."""
    content += bytes(-len(content) % 8)
    words = [int.from_bytes(content[i : i + 8], sys.byteorder) for i in range(0, len(content), 8)]
    return sum(words) % 2**64


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, BLOCK - 8, BLOCK, BLOCK + 1, 3 * BLOCK + 4093, 8 * BLOCK])
def test_every_byte_is_read_once(size, threads):
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with Reader(threads) as read:
        assert read(content) == checksum(content.tobytes())


def test_a_changed_byte_anywhere_changes_the_sum():
    content = np.random.default_rng(0).integers(0, 256, 2 * BLOCK + 77, np.uint8)
    with Reader(2) as read:
        before = read(content)
        for place in (0, 8, BLOCK // 2 - 1, BLOCK // 2, BLOCK - 1, BLOCK, 2 * BLOCK, content.size - 1):
            content[place] ^= 1
            assert read(content) != before, place
            content[place] ^= 1
        assert read(content) == before


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16])
def test_any_dtype_and_shape(dtype):
    x = np.random.default_rng(1).standard_normal((13, 1031)).astype(dtype)
    with Reader(2) as read:
        assert read(x) == checksum(x.tobytes())


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_threads_are_those_asked_for(threads, monkeypatch):
    content = np.ones(threads * BLOCK // 8, np.uint64)
    barrier, used = threading.Barrier(threads), set()

    def sum_words(words):
        # No thread can take two shares: each waits until all have one.
        barrier.wait(timeout=30)
        used.add(threading.get_ident())
        return words.sum()

    monkeypatch.setattr(_bandwidth, "_sum_words", sum_words)
    with Reader(threads) as read:
        assert read(content) == content.size
    assert len(used) == threads
    assert threading.get_ident() in used


def test_what_is_no_plain_read_is_refused():
    with Reader(1) as read, pytest.raises(ShapeError, match="contiguous array; got strides"):
        read(np.ones((4, 4))[:, ::2])
    with pytest.raises(OptionError, match="at least 1 thread; got 0"):
        Reader(0)
