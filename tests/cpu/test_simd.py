"""Arithmetic of lanes against NumPy, the order of sums to the bit, and the registers that the host has."""

import re

import llvmlite.binding
import numpy as np
import pytest
from numba import njit

from softcarry.cpu.memory import load_block, load_strip, store, store_element
from softcarry.cpu.simd import (
    exponent,
    fma,
    folded_maximum,
    folded_sum,
    lane_maximum,
    lane_sum,
    lanes_above,
    larger,
    lowest_bit,
    narrowed,
    power_of_two,
    repeated,
    significand,
    splat,
    where_equal,
    where_less,
    widened,
)
from vector_calls import DTYPES, address

NAN, INF = np.nan, np.inf
SCALARS = pytest.mark.parametrize("dtype", [DTYPES["float32"], DTYPES["float64"]], ids=str)
LANEWISE = (
    *("larger", "+", "-", "*", "/", "fma", "power_of_two", "splat"),
    *("where_less", "where_equal", "repeated"),
)


def lanes_of(dtype):
    return 32 if dtype == np.float32 else 16


@njit
def _lanewise(element, xs, ys, zs, out, span, number):
    x, y, z = load_block(element, xs), load_block(element, ys), load_block(element, zs)
    store(element, out, larger(x, y))
    store(element, out + span, x + y)
    store(element, out + 2 * span, x - y)
    store(element, out + 3 * span, x * y)
    store(element, out + 4 * span, x / y)
    store(element, out + 5 * span, fma(x, y, z))
    store(element, out + 6 * span, power_of_two(x))
    store(element, out + 7 * span, splat(x, number))
    store(element, out + 8 * span, where_less(x, y, z, x))
    store(element, out + 9 * span, where_equal(x, y, z, x))
    store(element, out + 10 * span, repeated(load_strip(element, xs)))
    return lanes_above(x, y)


def lanewise(x, y, z=None, number=0):
    """The results of `LANEWISE` for one block, and in which lanes x is above y."""
    x, y = np.broadcast_arrays(x, y)
    x, y, z = (np.ascontiguousarray(a, x.dtype) for a in (x, y, np.zeros_like(x) if z is None else z))
    assert x.size == y.size == z.size == lanes_of(x.dtype)
    out = np.empty((len(LANEWISE), x.size), x.dtype)
    above = _lanewise(x.dtype.type(0), address(x), address(y), address(z), address(out), x.nbytes, number)
    return dict(zip(LANEWISE, out, strict=True)), above


@njit
def _across(element, source, strip, out):
    block = load_block(element, source)
    store(element, strip, folded_sum(block))
    store(element, strip + 8 * 8, folded_maximum(block))
    store_element(element, out, lane_sum(block))
    store_element(element, out + 8, lane_maximum(block))
    store_element(element, out + 16, lane_sum(load_strip(element, source)))
    store_element(element, out + 24, lane_maximum(load_strip(element, source)))


def across(x):
    """Folded sum and maximum; sum and maximum of the block and of its first strip."""
    strips = np.empty(16, np.float64).view(x.dtype)
    numbers = np.empty(4, np.float64).view(x.dtype)
    _across(x.dtype.type(0), address(x), address(strips), address(numbers))
    step = 8 // x.dtype.itemsize
    return strips[:8], strips[8 * step : 8 * step + 8], *numbers[::step]


def wide(dtype, seed, blocks=1):
    rng = np.random.default_rng(seed)
    x = np.ldexp(
        rng.uniform(-1, 1, blocks * lanes_of(dtype)), rng.integers(-20, 20, blocks * lanes_of(dtype))
    )
    return x.astype(dtype)


@SCALARS
def test_arithmetic_is_that_of_numpy(dtype):
    for seed in range(20):
        x, y = wide(dtype, [seed, 0]), wide(dtype, [seed, 1])
        got, _ = lanewise(x, y, number=seed)
        np.testing.assert_array_equal(got["+"], x + y)
        np.testing.assert_array_equal(got["-"], x - y)
        np.testing.assert_array_equal(got["*"], x * y)
        np.testing.assert_array_equal(got["/"], x / y)
        np.testing.assert_array_equal(got["splat"], np.full(x.size, seed, dtype))


@SCALARS
def test_a_product_and_a_sum_are_rounded_once(dtype):
    """(1 + u)(1 − u) − 1 is −u², which two roundings would make 0."""
    u = np.finfo(dtype).eps
    x = np.full(lanes_of(dtype), 1 + u, dtype)
    got, _ = lanewise(x, (1 - u) * np.ones_like(x), -np.ones_like(x))
    np.testing.assert_array_equal(got["fma"], np.full(x.size, -(float(u) ** 2), dtype))
    assert (got["*"] == 1).all()


@SCALARS
def test_larger_passes_over_a_nan_in_x_alone(dtype):
    x = np.resize(np.array([1, NAN, -INF, NAN, 5, NAN, INF, 2], dtype), lanes_of(dtype))
    running = np.resize(np.array([2, 3, -INF, -INF, 4, INF, 0, 2], dtype), lanes_of(dtype))
    got, _ = lanewise(x, running)
    np.testing.assert_array_equal(
        got["larger"], np.resize([2, 3, -INF, -INF, 5, INF, INF, 2], lanes_of(dtype))
    )


@SCALARS
def test_lanes_above_counts_nan(dtype):
    """One bit a lane, the first the lowest; a NaN on either side is above."""
    n = lanes_of(dtype)
    bound = np.resize(np.array([0, 1, -INF, INF, -3], dtype), n)
    assert lanewise(bound, bound)[1] == 0
    assert lanewise(np.full(n, -INF, dtype), bound)[1] == 0
    assert lanewise(np.full(n, -0.0, dtype), np.zeros(n, dtype))[1] == 0
    assert lanewise(np.full(n, NAN, dtype), bound)[1] == 2**n - 1
    for lane in range(n):
        for value in (np.nextafter(bound[lane], dtype.type(INF)), dtype.type(NAN)):
            x = bound.copy()
            x[lane] = value
            above = bound[lane] != INF or np.isnan(value)
            assert lanewise(x, bound)[1] == (2**lane if above else 0)
        x = bound.copy()
        x[lane] = NAN
        assert lanewise(bound, x)[1] == 2**lane


@njit
def _lowest_bit(bits):
    return lowest_bit(bits)


def test_the_lowest_bit():
    for bit in range(64):
        for above in (0, 2**63, 2**63 | 2**40):
            assert _lowest_bit(np.uint64((2**bit | above) & -(2**bit))) == bit


@SCALARS
def test_comparisons_of_lanes(dtype):
    """A NaN is neither less nor equal."""
    n = lanes_of(dtype)
    x = np.resize(np.array([1, 2, 3, NAN, 2, INF, -INF, 0.0, 3], dtype), n)
    y = np.resize(np.array([2, 2, 2, 2, NAN, INF, -INF, -0.0, INF], dtype), n)
    got, _ = lanewise(x, y, np.arange(n))
    np.testing.assert_array_equal(got["where_less"], np.where(x < y, np.arange(n), x))
    np.testing.assert_array_equal(got["where_equal"], np.where(x == y, np.arange(n), x))


@njit
def _split(source, out):
    element = np.float64(0)
    x = load_strip(element, source)
    store(element, out, significand(x))
    store(element, out + 64, exponent(x))


def test_significand_and_exponent():
    """About every boundary between exponents, powers of two, and anywhere: x = 2^n·z with z in [√½, √2)."""
    rng = np.random.default_rng(5)
    n = np.arange(-1021, 1024)
    x = np.concatenate(
        [np.ldexp(np.sqrt(0.5), n), np.ldexp(1.0, n), np.ldexp(rng.uniform(0.5, 1, n.size), n)]
    )
    x = np.concatenate([x, np.nextafter(x, 0), np.nextafter(x, INF), [2.0**-1022, np.finfo(np.float64).max]])
    x = x[x >= 2.0**-1022]
    x = np.concatenate([x, np.ones(-x.size % 8)]).reshape(-1, 8)
    for strip in x:
        out = np.empty((2, 8))
        _split(address(np.ascontiguousarray(strip)), address(out))
        z, exponents = out
        np.testing.assert_array_equal(np.ldexp(z, exponents.astype(int)), strip)
        # √½ and √2 are rounded up: the number below each is below it.
        assert (z >= np.sqrt(0.5)).all()
        assert (z < np.nextafter(np.sqrt(2.0), 2)).all()


@njit
def _convert(element, source, wide, narrow):
    x = load_strip(element, source)
    store(np.float64(0), wide, widened(x))
    store(element, narrow, narrowed(load_strip(np.float64(0), wide + 64), x))


@SCALARS
def test_strips_between_formats(dtype):
    """To float64 exactly, and from it rounded to nearest even."""
    x = np.array([1.1, -3.7, 2.0**-140, INF, -INF, NAN, -0.0, 1e30], dtype)
    wide, narrow = np.zeros((2, 8)), np.zeros(8, dtype)
    wide[1] = [1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 1e300, -INF, NAN, 2.0**-150, -0.1]
    _convert(dtype.type(0), address(x), address(wide), address(narrow))
    np.testing.assert_array_equal(wide[0], x.astype(np.float64))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(narrow, wide[1].astype(dtype))


@SCALARS
def test_a_strip_repeated(dtype):
    x = wide(dtype, 3)
    np.testing.assert_array_equal(lanewise(x, x)[0]["repeated"], np.resize(x[:8], x.size))


@SCALARS
def test_power_of_two_reads_the_low_bits(dtype):
    shift, lowest = (1.5 * 2**23, -126) if dtype == np.float32 else (1.5 * 2**52, -1022)
    for first in range(lowest, 1, lanes_of(dtype)):
        n = np.arange(first, first + lanes_of(dtype))
        n = np.minimum(n, 0)
        x = (n + shift).astype(dtype)
        got, _ = lanewise(x, x)
        np.testing.assert_array_equal(got["power_of_two"], np.ldexp(dtype.type(1), n))
    got, _ = lanewise(np.full(lanes_of(dtype), shift + lowest - 1, dtype), x)
    np.testing.assert_array_equal(got["power_of_two"], 0)


def halved(lanes, until):
    """The documented tree: the upper half of the lanes is added to the lower half."""
    lanes = lanes.copy()
    while lanes.size > until:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes


@SCALARS
def test_sums_over_lanes_have_one_order(dtype):
    """To the bit, on data where other orders give other sums."""
    differs = 0
    for seed in range(50):
        x = wide(dtype, seed)
        folded, _, total, _, of_strip, _ = across(x)
        np.testing.assert_array_equal(folded, halved(x, 8))
        assert total == halved(x, 1)[0]
        assert of_strip == halved(x[:8], 1)[0]
        differs += total != np.add.accumulate(x)[-1]
    assert differs > 25


@SCALARS
def test_maxima_over_lanes(dtype):
    n = lanes_of(dtype)
    for lane in range(n):
        x = wide(dtype, [lane, 7])
        x[lane] = 2.0**30
        _, folded, _, largest, _, of_strip = across(x)
        np.testing.assert_array_equal(folded, x.reshape(-1, 8).max(axis=0))
        assert largest == 2.0**30
        assert of_strip == x[:8].max()
    empty = np.full(n, -INF, dtype)
    assert across(empty)[3] == -INF
    empty[n - 1] = INF
    assert across(empty)[3] == INF
    assert np.isnan(across(empty)[2])


def registers():
    """What the host computes with: a pattern of assembly, and the widest register's lanes of float32."""
    features = llvmlite.binding.get_host_cpu_features()
    processor = llvmlite.binding.get_process_triple().split("-")[0]
    if processor in ("aarch64", "arm64"):
        return r"\bfmla(\.4s|\s+v\d+\.4s)", (4,)
    if features.get("avx512f"):
        return r"\bvfmadd\d+ps\s.*%([yz])mm", (16, 8)
    if features.get("avx2") and features.get("fma"):
        return r"\bvfmadd\d+ps\s.*%(y)mm", (8,)
    return None


def test_a_block_fills_the_registers_of_the_host():
    """32 float32 lanes are 4 registers of AVX2: one instruction each, none for single lanes."""
    known = registers()
    if known is None:
        pytest.skip("neither AVX2, AVX-512 nor NEON: what instructions to expect is not known")

    @njit
    def multiply_add(source):
        element = np.float32(0)
        x = load_block(element, source)
        store(element, source, fma(x, load_block(element, source + 128), load_block(element, source + 256)))

    multiply_add(address(np.ones(96, np.float32)))
    (assembly,) = multiply_add.inspect_asm().values()
    pattern, widths = known
    found = len(re.findall(pattern, assembly))
    assert found in [32 // lanes for lanes in widths], assembly
    assert not re.search(r"\bvfmadd\d+ss|call\w*\s+\w*fma", assembly)
