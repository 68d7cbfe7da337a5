"""Where a running sum stops, and which format explains it, on sums that are emulated here."""

import math

import ml_dtypes
import numpy as np
import pytest

from softcarry.auditing.stall import explain_stall, find_stall

LENGTHS = np.array([64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192])
KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def running(terms, kind, block):
    """A sum over blocks, each exact, added to a running sum of that type; the last axis is summed."""
    blocks = np.add.reduceat(terms, np.arange(0, terms.shape[-1], block), axis=-1)
    total = np.zeros(terms.shape[:-1], kind)
    for part in np.moveaxis(blocks, -1, 0):
        # Values of a 16-bit format and float32 sums of them: the cast from float32 is the only rounding.
        total = (total.astype(np.float32) + part.astype(np.float32)).astype(kind)
    return total.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "block"), [("bfloat16", 1), ("bfloat16", 8), ("float16", 1), ("float16", 2)]
)
def test_equal_terms_stop_at_the_drop_index_times_the_block(name, block):
    kept = [running(np.ones(n), KINDS[name], block) / n for n in LENGTHS]
    stall = find_stall(LENGTHS, kept, "l", floor=1e-6)
    assert stall is not None
    assert (stall.kind, stall.part) == ("stops", "l")
    assert stall.keys == block * 2 ** {"bfloat16": 8, "float16": 11}[name]


@pytest.mark.parametrize(
    ("name", "block"), [("bfloat16", 1), ("bfloat16", 16), ("float16", 1), ("float16", 2)]
)
def test_the_format_is_told_by_the_random_walk_before(name, block):
    rng = np.random.default_rng(0)
    errors = []
    for n in LENGTHS:
        terms = np.exp(rng.standard_normal((24, n)))
        errors.append(np.sqrt(np.mean((running(terms, KINDS[name], block) / terms.sum(axis=-1) - 1.0) ** 2)))
    keys = block * 2 ** {"bfloat16": 8, "float16": 11}[name]
    found = explain_stall(keys, LENGTHS, errors, output_roundoff=2.0**-24)
    assert found[0]["format"] == name
    assert found[0]["key_block"] == block
    assert all(entry["updates"] * entry["key_block"] == keys for entry in found)


def test_formats_with_less_than_one_key_a_block_are_left_out():
    found = explain_stall(256, LENGTHS, np.full(LENGTHS.size, 1e-3), output_roundoff=2.0**-24)
    assert {entry["format"] for entry in found} == {"bfloat16", "E4M3", "E5M2"}


def test_an_overflow_has_no_level():
    kept = np.where(LENGTHS > 2000, np.inf, 1.0)
    stall = find_stall(LENGTHS, kept, "o", floor=1e-6)
    assert stall is not None
    assert stall.kind == "overflows"
    assert math.isclose(stall.keys, math.sqrt(1536 * 2048))


def test_a_sum_that_rounds_at_random_does_not_stop():
    rng = np.random.default_rng(1)
    kept = np.where(LENGTHS > 1000, 1.0 + 1e-2 * rng.standard_normal(LENGTHS.size), 1.0)
    stall = find_stall(LENGTHS, kept, "l", floor=1e-6)
    assert stall is not None
    assert stall.kind == "leaves"


def test_a_sum_that_loses_nothing_is_none():
    assert find_stall(LENGTHS, np.ones(LENGTHS.size), "l", floor=1e-6) is None
