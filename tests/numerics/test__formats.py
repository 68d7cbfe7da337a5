"""Every value of every 8- and 16-bit format, and everything next to them, against gfloat and ml_dtypes."""

import math

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from gfloat import Domain, FormatInfo, RoundMode

from softcarry.errors import DTypeError, OptionError
from softcarry.numerics import FloatFormat, formats, get_format

GFLOAT = {
    "bfloat16": gfloat.formats.format_info_bfloat16,
    "float16": gfloat.formats.format_info_binary16,
    "float32": gfloat.formats.format_info_binary32,
    "E5M2": gfloat.formats.format_info_ocp_e5m2,
    "E4M3FN": gfloat.formats.format_info_ocp_e4m3,
}
GFLOAT_MODES = {
    "nearest-even": RoundMode.TiesToEven,
    "nearest-away": RoundMode.TiesToAway,
    "toward-zero": RoundMode.TowardZero,
    "up": RoundMode.TowardPositive,
    "down": RoundMode.TowardNegative,
}
DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "E5M2": ml_dtypes.float8_e5m2,
    "E4M3": ml_dtypes.float8_e4m3,
    "E4M3FN": ml_dtypes.float8_e4m3fn,
    "E3M4": ml_dtypes.float8_e3m4,
}
NAMED = ("bfloat16", "float16", "E4M3", "E4M3FN", "E5M2", "E3M4")
NARROW = (
    *NAMED,
    "e2m1",
    "e2m1fn",
    "e2m3fn",
    "e3m2",
    "e2m5",
    "e6m1",
    "e4m4fn",
    "e5m7",
    "e6m9",
    "e10m4fn",
    "e11m3",
)


def gfloat_format(fmt):
    """gfloat's own description where it has one, else one from the widths."""
    return GFLOAT.get(fmt.name) or FormatInfo(
        fmt.name,
        k=1 + fmt.exponent_bits + fmt.mantissa_bits,
        precision=fmt.mantissa_bits + 1,
        bias=2 ** (fmt.exponent_bits - 1) - 1,
        is_signed=True,
        domain=Domain.Extended if fmt.has_infinity else Domain.Finite,
        has_nz=True,
        num_high_nans=2**fmt.mantissa_bits - 1 if fmt.has_infinity else 1,
        has_subnormals=True,
        is_twos_complement=False,
    )


def gfloat_round(fmt, x, mode, saturate=False, **stochastic):
    with np.errstate(all="ignore"):
        return gfloat.round_ndarray(gfloat_format(fmt), x, mode, saturate, **stochastic)


def codes_of(fmt):
    return np.arange(2**fmt.bits, dtype=np.uint8 if fmt.bits <= 8 else np.uint16)


def everything_around(fmt):
    """All values, the midpoints of neighbours, and the float64 neighbours of both; then what lies beyond."""
    with np.errstate(all="ignore"):
        values = gfloat.decode_ndarray(gfloat_format(fmt), codes_of(fmt).astype(np.int64))
    positive = np.unique(np.abs(values[np.isfinite(values)]))
    largest, step = positive[-1], positive[-1] - positive[-2]
    # The value that would follow the largest, had the format one more, takes part in rounding.
    with np.errstate(over="ignore"):
        points = np.concatenate([positive, [largest + step, largest + 2 * step]])
        points = np.concatenate([points, points[:-1] / 2 + points[1:] / 2])
        near = np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points[1:], 0.0)])
        beyond = [5e-324, positive[1] / 4, 2.5 * largest, 1e300, np.finfo(np.float64).max, math.inf]
    near = np.concatenate([near, np.array(beyond)])
    return np.concatenate([near, -near, [math.nan, 0.0, -0.0]])


def assert_same(got, expected):
    """Bit for bit, except for the payload of NaN."""
    assert got.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    number = ~np.isnan(expected)
    same = got[number].view(np.int64) == np.asarray(expected, np.float64)[number].view(np.int64)
    assert same.all(), (got[number][~same][:3], expected[number][~same][:3])


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", NARROW)
def test_rounding_is_that_of_gfloat(name, saturate):
    fmt = get_format(name)
    x = everything_around(fmt)
    for mode, gfloat_mode in GFLOAT_MODES.items():
        assert_same(fmt.round(x, mode, saturate), gfloat_round(fmt, x, gfloat_mode, saturate))


@pytest.mark.parametrize("name", ["TF32", "float32", "e8m15", "e5m20", "e11m40", "e6m50"])
def test_wider_formats_round_like_gfloat_on_random_bits(name):
    fmt = get_format(name)
    rng = np.random.default_rng(1)
    anywhere = rng.integers(2**64, size=20000, dtype=np.uint64).view(np.float64)
    # Around the range of the format, and ties, which random bits never hit.
    inside = np.ldexp(rng.standard_normal(20000), rng.integers(-fmt.bias - 20, fmt.bias, 20000))
    ties = fmt.round(inside)
    ties = ties + 0.5 * (np.nextafter(ties, np.inf) - ties) * 2.0 ** (52 - fmt.mantissa_bits)
    x = np.concatenate([anywhere, inside, ties[np.isfinite(ties)]])
    for mode, gfloat_mode in GFLOAT_MODES.items():
        assert_same(fmt.round(x, mode), gfloat_round(fmt, x, gfloat_mode))


@pytest.mark.parametrize("name", ["bfloat16", "E4M3", "E4M3FN", "E5M2", "E3M4", "e2m3fn"])
def test_stochastic_rounding_goes_where_gfloat_goes_for_the_same_random_bits(name):
    from numba import njit

    from softcarry.numerics._rounding import round_any

    @njit
    def round_with(x, rounding, uniforms, out):
        for i in range(x.size):
            out[i] = round_any(x[i], rounding, uniforms[i])

    fmt = get_format(name)
    rng = np.random.default_rng(2)
    bits = 12
    points = everything_around(fmt)
    points = points[np.isfinite(points)]
    # Parts of a quantum that are multiples of 2^-12, so that gfloat's own sum with the random bits is exact.
    below = fmt.round(points, "toward-zero")
    exponent = np.maximum(np.frexp(below)[1] - 1, 1 - fmt.bias)
    quantum = np.ldexp(1.0, np.where(below == 0.0, 1 - fmt.bias, exponent) - fmt.mantissa_bits)
    x = below + np.copysign(rng.integers(2**bits, size=below.size) * 2.0**-bits * quantum, points)
    draws = rng.integers(2**bits, size=x.size)
    expected = gfloat_round(fmt, x, RoundMode.StochasticFastest, srbits=draws, srnumbits=bits)
    # gfloat rounds away if part + b / 2^12 >= 1, we if u < part: the same for u just below 1 - b / 2^12.
    uniforms = (2**bits - draws - 0.5) * 2.0**-bits
    got = np.empty_like(x)
    round_with(x, fmt.rounding("stochastic"), uniforms, got)
    assert_same(got, expected)


def test_stochastic_rounding_has_the_exact_probability():
    fmt = formats["bfloat16"]
    n = 200_000
    for x in (1.0 + 0.3 * 2.0**-7, -1.0 - 0.9 * 2.0**-7, 0.25 * fmt.smallest_subnormal):
        low, high = fmt.round(x, "down"), fmt.round(x, "up")
        found = fmt.round(np.full(n, x), "stochastic", rng=7)
        assert set(np.unique(found)) == {low, high}
        p = (x - low) / (high - low)
        # Five standard deviations of a binomial count.
        assert abs((found == high).mean() - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_stochastic_rounding_is_reproducible_and_needs_a_source():
    fmt = formats["float16"]
    x = np.random.default_rng(0).standard_normal(1000)
    first = fmt.round(x, "stochastic", rng=3)
    np.testing.assert_array_equal(first, fmt.round(x, "stochastic", rng=3))
    assert (first != fmt.round(x, "stochastic", rng=4)).any()
    generator = np.random.default_rng(3)
    drawn = fmt.round(x, "stochastic", rng=generator)
    assert (drawn != fmt.round(x, "stochastic", rng=generator)).any()
    exact = fmt.round(x)
    np.testing.assert_array_equal(fmt.round(exact, "stochastic", rng=5), exact)
    for wrong in (None, -1, 2**64, 0.5, "seed"):
        with pytest.raises(OptionError, match="stochastic rounding needs rng"):
            fmt.round(x, "stochastic", rng=wrong)


def float32_sample():
    """Every bfloat16 value and midpoint with its float32 neighbours, and random low halves of every one."""
    high = np.arange(2**16, dtype=np.uint32) << 16
    low = np.random.default_rng(0).integers(2**16, size=(2**16, 8), dtype=np.uint32)
    low[:, :5] = [0, 1, 0x7FFF, 0x8000, 0x8001]
    low[:, 5] = 0xFFFF
    return (high[:, None] | low).reshape(-1).view(np.float32)


@pytest.mark.parametrize("name", NAMED)
def test_float32_rounds_as_ml_dtypes_casts_it(name):
    fmt = get_format(name)
    x = float32_sample()
    with np.errstate(all="ignore"):
        expected = x.astype(DTYPES[name]).astype(np.float64)
    got = fmt.round(x)
    assert got.dtype == np.float32
    with np.errstate(all="ignore"):
        assert_same(got.astype(np.float64), expected)


def test_float64_is_rounded_once_where_a_cast_by_way_of_float32_rounds_twice():
    above_midpoint = 1.0 + 2.0**-8 + 2.0**-40
    assert float(np.float64(above_midpoint).astype(ml_dtypes.bfloat16)) == 1.0
    assert formats["bfloat16"].round(above_midpoint) == 1.0 + 2.0**-7
    below_midpoint = 1.0 + 3 * 2.0**-8 - 2.0**-40
    assert formats["bfloat16"].round(below_midpoint) == 1.0 + 2.0**-7


def test_float32_and_float64_are_those_of_numpy():
    rng = np.random.default_rng(3)
    x = rng.integers(2**64, size=200_000, dtype=np.uint64).view(np.float64)
    x = np.concatenate([x, np.ldexp(rng.standard_normal(200_000), rng.integers(-150, 128, 200_000))])
    # float32 drops 29 bits; with 28 of them cleared, every other number of these is a midpoint.
    x[::2] = (x[::2].view(np.uint64) & np.uint64(2**64 - 2**28)).view(np.float64)
    with np.errstate(all="ignore"):
        assert_same(formats["float32"].round(x), x.astype(np.float32).astype(np.float64))
    for mode in GFLOAT_MODES:
        assert_same(formats["float64"].round(x, mode), x)


def test_tf32_keeps_ten_bits_over_the_range_of_float32():
    rng = np.random.default_rng(4)
    bits = rng.integers(2**32, size=200_000, dtype=np.uint64)
    bits[::3] &= 0xFFFFF000  # ties
    x = bits.astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    patterns = x.view(np.uint32).astype(np.uint64)
    # The textbook way on the bits of a float32, which carries into the exponent, and to infinity.
    expected = (patterns + 0xFFF + (patterns >> np.uint64(13) & np.uint64(1))) & np.uint64(0xFFFFE000)
    expected = expected.astype(np.uint32).view(np.float32)
    assert_same(formats["TF32"].round(x).astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("name", NAMED)
def test_decode_and_encode_are_the_views_of_the_dtype(name):
    fmt = get_format(name)
    codes = codes_of(fmt)
    with np.errstate(all="ignore"):
        expected = codes.view(DTYPES[name]).astype(np.float64)
    values = fmt.decode(codes)
    assert_same(values, expected)
    encoded = fmt.encode(values)
    assert encoded.dtype == codes.dtype
    number = ~np.isnan(values)
    np.testing.assert_array_equal(encoded[number], codes[number])
    assert np.isnan(fmt.decode(encoded[~number])).all()
    np.testing.assert_array_equal(np.signbit(fmt.decode(encoded)), np.signbit(values))


@pytest.mark.parametrize("name", ["e2m1", "e2m1fn", "e6m9", "e10m4fn", "e11m3"])
def test_decode_and_encode_of_any_widths_invert_each_other(name):
    fmt = get_format(name)
    codes = codes_of(fmt)
    with np.errstate(all="ignore"):
        assert_same(fmt.decode(codes), gfloat.decode_ndarray(gfloat_format(fmt), codes.astype(np.int64)))
    number = ~np.isnan(fmt.decode(codes))
    np.testing.assert_array_equal(fmt.encode(fmt.decode(codes))[number], codes[number])


def test_decode_and_encode_of_float32_and_float64_are_numpys_views():
    rng = np.random.default_rng(5)
    for dtype, word in ((np.float32, np.uint32), (np.float64, np.uint64)):
        codes = rng.integers(2 ** (8 * np.dtype(word).itemsize), size=10_000, dtype=word)
        values = codes.view(dtype)
        fmt = get_format(np.dtype(dtype).name)
        number = ~np.isnan(values)
        assert_same(fmt.decode(codes)[number], values[number].astype(np.float64))
        np.testing.assert_array_equal(fmt.encode(values)[number], codes[number])
        assert fmt.encode(values).dtype == word


def test_encode_and_decode_refuse_what_has_no_code():
    for wrong in (257.0, 1e40):
        with pytest.raises(OptionError, match=r"numbers of bfloat16.*round first"):
            formats["bfloat16"].encode([1.0, wrong])
    with pytest.raises(OptionError, match="numbers of E4M3FN; got inf"):
        formats["E4M3FN"].encode([math.inf])
    with pytest.raises(DTypeError, match="integer codes"):
        formats["bfloat16"].decode([1.0])
    for wrong in ([-1], [2**16]):
        with pytest.raises(OptionError, match="a code of bfloat16"):
            formats["bfloat16"].decode(wrong)


def test_what_comes_in_decides_what_comes_out():
    fmt = formats["bfloat16"]
    x = np.linspace(-3, 3, 24).reshape(2, 3, 4)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        got = fmt.round(x.astype(dtype)[:, ::2])
        assert got.shape == (2, 2, 4)
        assert got.dtype == (np.float32 if dtype == np.float32 else np.float64)
        np.testing.assert_array_equal(got, fmt.round(x.astype(dtype).astype(np.float64)[:, ::2]))
    # float32 does not hold this one, so its rounding must not come back as float32.
    assert get_format("e11m7").round(x.astype(np.float32)).dtype == np.float64
    assert get_format("e8m7fn").round(np.float32(1.0)).dtype == np.float64
    for scalar in (1.1, 1, np.float16(1.0), ml_dtypes.bfloat16(1.0), np.array(1.0)):
        assert type(fmt.round(scalar)) is np.float64
    assert type(fmt.round(np.float32(1.1))) is np.float32
    assert fmt.round([]).shape == (0,)
    assert fmt.round(np.zeros((3, 0), np.float32)).dtype == np.float32
    np.testing.assert_array_equal(fmt.round([1, 257, -259]), [1.0, 256.0, -260.0])


def test_torch_tensors_are_taken_and_bfloat16_ones_refused_with_advice():
    import torch

    x = torch.tensor([0.1, 0.2])
    np.testing.assert_array_equal(formats["float16"].round(x), formats["float16"].round(x.numpy()))
    with pytest.raises(DTypeError, match=r"Tensor.*as float32, detached"):
        formats["float16"].round(x.bfloat16())
    with pytest.raises(DTypeError, match="detached"):
        formats["float16"].round(x.requires_grad_())


@pytest.mark.parametrize(
    "wrong", [[True], [1j], ["a"], [None], 2**70, [2**53 + 1], [[1.0], [1.0, 2.0]], np.longdouble(1)]
)
def test_what_float64_does_not_hold_is_refused(wrong):
    with pytest.raises(DTypeError, match="expected"):
        formats["float16"].round(wrong)


def test_an_unknown_mode_lists_the_known_ones():
    for wrong in ("rne", "Nearest-even", None, ["up"]):
        with pytest.raises(
            OptionError, match="nearest-even, nearest-away, toward-zero, up, down, stochastic"
        ):
            formats["float16"].round(1.0, wrong)


def test_modes_are_those_of_the_compiled_code():
    from typing import get_args

    from softcarry.numerics._formats import RoundingMode
    from softcarry.numerics._rounding import MODES

    assert get_args(RoundingMode) == tuple(MODES)


def test_rounding_is_cached():
    assert formats["float16"].rounding("up") is FloatFormat("float16", 5, 10).rounding("up", False)


def test_the_table_is_read_only_and_finds_names_in_any_case():
    assert list(formats) == [
        "float64",
        "float32",
        "TF32",
        "float16",
        "bfloat16",
        "E5M2",
        "E4M3",
        "E4M3FN",
        "E3M4",
    ]
    assert len(formats) == 9
    assert formats["e4m3fn"] is formats["E4M3FN"] is get_format("E4m3fN")
    assert "tf32" in formats
    assert "bf16" not in formats
    assert 3 not in formats
    assert formats.get("bf16") is None
    with pytest.raises(TypeError):
        formats["bf16"] = formats["bfloat16"]


def test_importing_the_module_leaves_the_table_in_place():
    import importlib

    import softcarry.numerics

    importlib.import_module("softcarry.numerics._formats")
    assert softcarry.numerics.formats is formats


def test_get_format_takes_names_widths_and_formats():
    own = FloatFormat("own", 6, 9)
    assert get_format(own) is own
    assert get_format("e5m10") is formats["float16"]
    assert get_format("E8M10") is formats["TF32"]
    assert get_format("e4m3") is formats["E4M3"]
    assert get_format("e4m3FN") is formats["E4M3FN"]
    assert get_format("e6m9") == FloatFormat("E6M9", 6, 9)
    assert get_format("e3m2fn") == FloatFormat("E3M2FN", 3, 2, has_infinity=False)


@pytest.mark.parametrize("wrong", ["bf16", "", "e5", "m10", "e5m10fnuz", 16, None, np.float16])
def test_an_unknown_format_lists_the_names_and_the_form(wrong):
    with pytest.raises(OptionError, match=r"choose one of float64, float32.*any widths as e5m10") as info:
        get_format(wrong)
    assert "\n" not in str(info.value)
    assert str(info.value).startswith("unknown format")


@pytest.mark.parametrize(
    ("widths", "infinity"),
    [((1, 3), True), ((12, 3), True), ((5, 0), True), ((5, 53), True), ((11, 3), False), ((5.0, 10), True)],
)
def test_widths_that_float64_cannot_emulate_are_refused(widths, infinity):
    with pytest.raises(OptionError, match=f"got {widths[0]} and {widths[1]}"):
        FloatFormat("wide", *widths, has_infinity=infinity)


@pytest.mark.parametrize(
    ("name", "largest", "smallest_normal", "smallest_subnormal", "drop_index"),
    [
        ("bfloat16", 3.3895313892515355e38, 2.0**-126, 2.0**-133, 256),
        ("float16", 65504.0, 2.0**-14, 2.0**-24, 2048),
        ("TF32", 3.4011621342146535e38, 2.0**-126, 2.0**-136, 2048),
        ("float32", 3.4028234663852886e38, 2.0**-126, 2.0**-149, 16777216),
        ("float64", np.finfo(np.float64).max, 2.0**-1022, 2.0**-1074, 2**53),
        ("E4M3", 240.0, 2.0**-6, 2.0**-9, 16),
        ("E4M3FN", 448.0, 2.0**-6, 2.0**-9, 16),
        ("E5M2", 57344.0, 2.0**-14, 2.0**-16, 8),
        ("E3M4", 15.5, 2.0**-2, 2.0**-6, 32),
    ],
)
def test_derived_numbers(name, largest, smallest_normal, smallest_subnormal, drop_index):
    fmt = formats[name]
    assert fmt.largest == largest
    assert fmt.smallest_normal == smallest_normal
    assert fmt.smallest_subnormal == smallest_subnormal
    assert fmt.drop_index == drop_index
    assert fmt.unit_roundoff == 1.0 / drop_index


def test_a_format_holds_another_if_it_has_all_its_numbers():
    for outer in NARROW[:11]:
        for inner in NARROW[:11]:
            a, b = get_format(outer), get_format(inner)
            values = b.decode(codes_of(b))
            values = values[np.isfinite(values)]
            assert a.holds(b) == bool(np.all(a.round(values) == values)), (outer, inner)


def test_formats_load_no_compiler():
    import subprocess
    import sys

    code = (
        "import sys; from softcarry.numerics import formats; formats['E4M3']; print('numba' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
