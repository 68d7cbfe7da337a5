"""Running sums against textbook algorithms in exact rational arithmetic, and the figures of stagnation."""

import math
from fractions import Fraction

import ml_dtypes
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exact_rounding import MODES, round_exactly
from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.numerics import FloatFormat, formats, get_format, running_sum, summation_depth

ORDERS = ("sequential", "pairwise", "blocked", "kahan", "two-level", "carry-stack")


def halves(terms, add):
    """Recursive halving, as a textbook writes it."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return add(halves(terms[:middle], add), halves(terms[middle:], add))


def in_sequence(terms, add):
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def counter(parts, add):
    """A binary counter, one slot for every power of two; then the slots from the youngest to the oldest."""
    slots = {}
    for part in parts:
        level = 0
        while level in slots:
            part = add(slots.pop(level), part)
            level += 1
        slots[level] = part
    total = slots.pop(min(slots))
    for level in sorted(slots):
        total = add(slots[level], total)
    return total


def kahan(terms, add):
    total, correction = terms[0], 0.0
    for term in terms[1:]:
        y = add(term, -correction)
        updated = add(total, y)
        correction = add(add(updated, -total), -y)
        total = updated
    return total


def textbook_sum(terms, fmt, order, block, mode, flush="float32", round_terms=True):
    """The sum of one row, every addition exact and then rounded once."""

    def adder(target):
        def add(a, b):
            finite = math.isfinite(a) and math.isfinite(b)
            return round_exactly(Fraction(a) + Fraction(b) if finite else a + b, target, mode)

        return add

    add = adder(fmt)
    tree = order == "pairwise" or (order == "carry-stack" and block in (None, 1))
    if round_terms or tree:
        terms = [round_exactly(term, fmt, mode) for term in terms]
    begun = [round_exactly(terms[0], fmt, mode), *terms[1:]]
    if order == "sequential":
        return in_sequence(begun, add)
    if order == "pairwise":
        return halves(terms, add)
    if order == "kahan":
        return kahan(begun, add)
    parts = [terms[i : i + (block or 1)] for i in range(0, len(terms), block or 1)]
    parts = [in_sequence([round_exactly(part[0], fmt, mode), *part[1:]], add) for part in parts]
    if order == "carry-stack":
        return counter(parts, add)
    return in_sequence(parts, adder(get_format(flush)) if order == "two-level" else add)


def cases(n):
    """Every order with the blocks that matter for n terms."""
    for order in ORDERS:
        blocks = {"blocked": (1, 3, n), "two-level": (3, 8), "carry-stack": (None, 3, n)}
        for block in blocks.get(order, (None,)):
            yield order, block


def wide_terms(n, seed):
    """Terms of both signs over many binades, which cancel, tie and swamp."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * 2.0 ** rng.integers(-9, 10, n)
    x[::4] = rng.integers(-8, 9, len(x[::4]))
    return x


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "E4M3FN", "E5M2", "float32", "e8m30"])
def test_every_order_is_the_textbook_algorithm(name, mode):
    fmt = get_format(name)
    flush = "float32" if formats["float32"].holds(fmt) else fmt
    for n in (1, 2, 3, 7, 13, 22):
        terms = wide_terms(n, seed=n)
        for order, block in cases(n):
            found = running_sum(terms, fmt, order, block=block, rounding=mode, flush_format=flush)
            expected = textbook_sum(terms.tolist(), fmt, order, block, mode, flush)
            assert found == expected or (math.isnan(found) and math.isnan(expected)), (n, order, block)


@pytest.mark.parametrize(("order", "block"), list(cases(29)))
def test_a_row_does_not_depend_on_the_rows_beside_it(order, block):
    """Row counts around the widths at which the compiled loops change."""
    rows = np.stack([wide_terms(29, seed) for seed in range(70)])
    expected = [textbook_sum(row.tolist(), formats["bfloat16"], order, block, "nearest-even") for row in rows]
    for count in (1, 2, 3, 7, 8, 9, 31, 33, 70):
        np.testing.assert_array_equal(
            running_sum(rows[:count], "bfloat16", order, block=block), expected[:count]
        )


@pytest.mark.parametrize("n", [1023, 1024, 1025, 2047, 2049, 4096, 5000])
def test_long_rows_cross_the_tiles_of_the_compiled_loops(n):
    terms = np.random.default_rng(n).standard_normal((3, n))
    for order, block in (
        ("sequential", None),
        ("pairwise", None),
        ("carry-stack", None),
        ("carry-stack", 100),
        ("blocked", 700),
        ("kahan", None),
        ("two-level", 3000),
    ):
        for rows in (terms, np.tile(terms, (8, 1))):
            found = running_sum(rows, "bfloat16", order, block=block)
            expected = [fast_textbook_sum(row, order, block) for row in terms]
            np.testing.assert_array_equal(found, np.tile(expected, len(rows) // 3))


def fast_textbook_sum(row, order, block):
    """bfloat16 to nearest even by ml_dtypes: float32 holds any sum of two of these numbers well enough.

    The sum of two bfloat16 numbers rounded to float32 first is innocuous: 24 >= 2 · 8 + 2.
    """

    def add(a, b):
        return float(ml_dtypes.bfloat16(np.float32(a) + np.float32(b)))

    def add32(a, b):
        return float(np.float32(a) + np.float32(b))

    # Not a plain cast: float64 to bfloat16 by way of float32 rounds twice.
    terms = formats["bfloat16"].round(row).tolist()
    if order == "kahan":
        return kahan(terms, add)
    if order in ("sequential", "pairwise"):
        return {"sequential": in_sequence, "pairwise": halves}[order](terms, add)
    parts = [in_sequence(terms[i : i + (block or 1)], add) for i in range(0, len(terms), block or 1)]
    if order == "carry-stack":
        return counter(parts, add)
    return in_sequence(parts, add32 if order == "two-level" else add)


@given(
    terms=st.lists(
        st.floats(width=32, allow_nan=False, min_value=-(2.0**20), max_value=2.0**20), min_size=1, max_size=40
    ),
    case=st.sampled_from(
        [
            *((order, None) for order in ("sequential", "pairwise", "kahan", "carry-stack")),
            ("blocked", 5),
            ("two-level", 4),
            ("carry-stack", 3),
        ]
    ),
    mode=st.sampled_from(MODES),
    name=st.sampled_from(["bfloat16", "E5M2", "E3M4", "TF32", "e8m30"]),
    round_terms=st.booleans(),
)
def test_any_terms_in_any_order(terms, case, mode, name, round_terms):
    order, block = case
    flush = "e8m40"
    fmt = get_format(name)
    found = running_sum(
        terms, fmt, order, block=block, rounding=mode, flush_format=flush, round_terms=round_terms
    )
    expected = textbook_sum(terms, fmt, order, block, mode, flush, round_terms)
    # The oracle has no sign of zero.
    np.testing.assert_equal(found + 0.0, expected + 0.0)


def test_unrounded_terms_are_added_with_one_rounding():
    # 1 + 3/4 · 2^-7 rounds up at once; its term rounded to bfloat16 first would be a different sum.
    term = 2.0**-8 + 2.0**-40
    assert running_sum([1.0, term], "bfloat16") == 1.0
    assert running_sum([1.0, term], "bfloat16", round_terms=False) == 1.0 + 2.0**-7
    assert running_sum([257.0], "bfloat16", round_terms=False) == 256.0


def test_float64_is_the_arithmetic_of_the_machine():
    terms = np.random.default_rng(0).standard_normal((5, 1000))
    sequential = np.add.accumulate(terms, axis=-1)[:, -1]
    np.testing.assert_array_equal(running_sum(terms, "float64"), sequential)
    found = running_sum(terms.astype(np.float32), "float32")
    np.testing.assert_array_equal(found, np.add.accumulate(terms.astype(np.float32), axis=-1)[:, -1])


def test_a_counter_of_single_terms_is_the_tree_for_powers_of_two():
    terms = np.random.default_rng(1).random((4, 4096))
    for n in (1, 2, 64, 4096):
        np.testing.assert_array_equal(
            running_sum(terms[:, :n], "bfloat16", "carry-stack"),
            running_sum(terms[:, :n], "bfloat16", "pairwise"),
        )
    assert (
        running_sum(terms[:, :100], "bfloat16", "carry-stack")
        != running_sum(terms[:, :100], "bfloat16", "pairwise")
    ).any()


@pytest.mark.parametrize("order", ["pairwise", "carry-stack"])
def test_trees_are_as_deep_as_a_tree(order):
    """Every addition doubles, so a term is multiplied by 2 to the power of its depth."""
    for n in (1, 2, 3, 5, 6, 7, 9, 100, 127, 128, 129):
        leaves = [0] * n
        deepest = {"pairwise": halves, "carry-stack": counter}[order](leaves, lambda a, b: max(a, b) + 1)
        assert deepest == summation_depth(n, order)


@pytest.mark.parametrize("order", ORDERS)
def test_threads_do_not_change_the_bits(order):
    terms = np.random.default_rng(2).random((67, 300))
    block = 7 if order in ("blocked", "two-level") else None
    threads = numba.get_num_threads()
    for rounding in ("nearest-even", "stochastic"):
        found = []
        for count in {1, threads}:
            numba.set_num_threads(count)
            try:
                found.append(running_sum(terms, "bfloat16", order, block=block, rounding=rounding, seed=5))
            finally:
                numba.set_num_threads(threads)
        np.testing.assert_array_equal(found[0], found[-1])


def test_stochastic_sums_depend_on_the_seed_and_the_row_alone():
    terms = np.tile(np.random.default_rng(3).random(500), (64, 1))
    for order in ORDERS:
        block = 9 if order in ("blocked", "two-level") else None
        first = running_sum(terms, "bfloat16", order, block=block, rounding="stochastic", seed=1)
        np.testing.assert_array_equal(
            first[:5], running_sum(terms[:5], "bfloat16", order, block=block, rounding="stochastic", seed=1)
        )
        assert len(set(first)) > 1
        assert (
            first != running_sum(terms, "bfloat16", order, block=block, rounding="stochastic", seed=2)
        ).any()


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked", "two-level", "carry-stack"])
def test_stochastic_sums_are_unbiased(order):
    """Where nearest rounding has long stalled, the mean over many rows is the sum (mean independence).

    Six standard errors of the mean; the spread itself is measured on the rows.
    """
    n, rows = 2000, 4000
    block = 50 if order in ("blocked", "two-level") else None
    terms = np.broadcast_to(np.random.default_rng(4).random(n), (rows, n))
    exact = terms[0].sum()
    sums = running_sum(terms, "bfloat16", order, block=block, rounding="stochastic")
    assert abs(sums.mean() - exact) < 6 * sums.std() / math.sqrt(rows)
    if order == "sequential":
        assert running_sum(terms[0], "bfloat16", order) < 0.6 * exact


def test_the_error_of_a_stochastic_sum_grows_like_the_root_of_n():
    """Slope 0.50 ± 0.02 in log-log (Connolly, Higham and Mary 2021, section 4, has sqrt(n) · u).

    That is for n · u < 1, where the last place of the sum is below the terms; u is 2^-19 here. The root mean
    square over 600 rows has a relative deviation of 1/sqrt(2 · 600), 0.042 in log2; a line through eight
    octaves then has a slope with a deviation of 0.042 / sqrt(42) = 0.0064.
    """
    rng = np.random.default_rng(5)
    octaves = np.arange(7, 15)
    rms = []
    for octave in octaves:
        terms = get_format("e8m18").round(rng.random((600, 2**octave)))
        exact = terms.sum(axis=-1)
        found = running_sum(terms, "e8m18", rounding="stochastic", seed=int(octave))
        rms.append(math.sqrt(np.mean((found / exact - 1.0) ** 2)))
    slope = np.polyfit(octaves, np.log2(rms), 1)[0]
    assert abs(slope - 0.5) < 0.02


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("bfloat16", 256),
        ("float16", 2048),
        ("TF32", 2048),
        ("E4M3", 16),
        ("E4M3FN", 16),
        ("E5M2", 8),
        ("E3M4", 15.5),
    ],
)
def test_equal_terms_stall_at_the_drop_index(name, level):
    fmt = formats[name]
    # E3M4 would stall at 32, which lies beyond its largest number: it overflows first.
    expected = level if fmt.drop_index <= fmt.largest else math.inf
    assert running_sum(np.ones(3 * fmt.drop_index), fmt) == expected
    if expected == level:
        assert level == fmt.drop_index
        assert running_sum(np.ones(fmt.drop_index - 1), fmt) == fmt.drop_index - 1
        assert running_sum(np.ones(3 * fmt.drop_index), fmt, rounding="toward-zero") == level


def test_equal_terms_stall_in_float32():
    assert running_sum(np.ones(2**24 + 1000, np.float32), "float32") == 16_777_216.0


@pytest.mark.parametrize("name", ["bfloat16", "float16", "E4M3", "E5M2"])
def test_rounding_half_away_stalls_an_octave_later(name):
    fmt = formats[name]
    assert running_sum(np.ones(5 * fmt.drop_index), fmt, rounding="nearest-away") == 2 * fmt.drop_index
    assert running_sum(np.ones(3 * fmt.drop_index), fmt, rounding="up") > 2 * fmt.drop_index


@pytest.mark.parametrize(
    ("n", "lost", "half_digit"), [(64, 0.013, 5e-4), (1024, 0.50, 5e-3), (16384, 0.97, 5e-3)]
)
def test_uniform_terms_are_lost_to_a_sequential_sum(n, lost, half_digit):
    """The figures of the seeds, 1.3 %, 50 % and 97 % of one row each: they lie among those of 64 rows."""
    terms = np.random.default_rng(6).random((64, n))
    exact = terms.sum(axis=-1)
    sequential = np.abs(running_sum(terms, "bfloat16") / exact - 1.0)
    assert sequential.min() < lost + half_digit
    assert sequential.max() > lost - half_digit
    if n > 64:
        # Rows differ by what uniform terms sum to, 1/sqrt(3 n), and by where they stall.
        assert sequential.mean() == pytest.approx(lost, abs=0.02)
    for order in ("pairwise", "carry-stack"):
        tree = np.abs(running_sum(terms, "bfloat16", order) / exact - 1.0)
        assert tree.mean() < 0.005
        # The roundings at the top of the tree are all that counts: each is at most u = 0.4 %.
        assert tree.max() < 3 * formats["bfloat16"].unit_roundoff
    assert np.abs(running_sum(terms, "float32") / exact - 1.0).max() < 1e-5


def test_a_tree_keeps_what_a_sequential_sum_loses():
    """6e-4 against 97 % at 16384 terms, a factor of 1510, was measured on one row: it lies among these."""
    terms = np.random.default_rng(7).random((64, 16384))
    exact = terms.sum(axis=-1)
    tree = np.abs(running_sum(terms, "bfloat16", "pairwise") / exact - 1.0)
    sequential = np.abs(running_sum(terms, "bfloat16") / exact - 1.0)
    assert tree.min() < 6e-4 < tree.max()
    factor = sequential / tree
    assert factor.min() > 100
    assert factor.min() < 1510 < factor.max()


def test_flushing_and_compensation_do_not_see_n():
    terms = np.random.default_rng(8).random((16, 20000))
    exact = terms.sum(axis=-1)
    u = formats["bfloat16"].unit_roundoff
    two_level = np.abs(running_sum(terms, "bfloat16", "two-level", block=8) / exact - 1.0)
    # Blanchard, Higham and Mary 2020: block · u to first order, here with the rounding of the terms.
    assert two_level.max() < 8 * u
    compensated = np.abs(running_sum(terms, "bfloat16", "kahan") / exact - 1.0)
    # Higham, theorem 4.8 in this form: 2u + O(n u²); here n u² is 0.3, so the constant of the claim is
    # that the sum has not stalled, where a plain one has lost 98 %.
    assert compensated.max() < 2 * u + 20000 * u * u
    assert np.abs(running_sum(terms, "bfloat16") / exact - 1.0).min() > 0.9


def test_shapes_axes_and_dtypes():
    x = np.random.default_rng(9).standard_normal((3, 4, 5))
    rounded = formats["float16"].round(x)
    expected = np.zeros((3, 5))
    for i in range(4):
        expected = formats["float16"].round(expected + rounded[:, i])
    np.testing.assert_array_equal(running_sum(x, "float16", axis=1), expected)
    np.testing.assert_array_equal(running_sum(x, "float16", axis=-2), expected)
    assert running_sum(x, "float16").shape == (3, 4)
    assert type(running_sum(x[0, 0], "float16")) is np.float64
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        found = running_sum(x.astype(dtype), "float16")
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, running_sum(x.astype(dtype).astype(np.float64), "float16"))
    np.testing.assert_array_equal(
        running_sum(x[::2, ::-1], "float16"), running_sum(x[::2, ::-1].copy(), "float16")
    )
    assert running_sum([1, 2, 3], "float16") == 6.0
    assert running_sum([0.1], "bfloat16") == formats["bfloat16"].round(0.1)


@pytest.mark.parametrize("order", ORDERS)
def test_no_terms_and_no_rows(order):
    block = 4 if order in ("blocked", "two-level") else None
    assert running_sum([], "bfloat16", order, block=block) == 0.0
    np.testing.assert_array_equal(running_sum(np.zeros((2, 0)), "bfloat16", order, block=block), [0.0, 0.0])
    assert running_sum(np.zeros((0, 3)), "bfloat16", order, block=block).shape == (0,)


@pytest.mark.parametrize("order", ORDERS)
def test_infinities_nan_overflow_and_signed_zeros(order):
    block = 2 if order in ("blocked", "two-level") else None

    def total(*terms, fmt="float16", **options):
        options.setdefault("flush_format", fmt)
        return running_sum(terms, fmt, order, block=block, **options)

    assert math.isnan(total(1.0, math.nan, 2.0))
    assert math.isnan(total(math.inf, -math.inf))
    # An infinity makes Kahan's correction NaN at the next term.
    assert (
        math.isnan(total(math.inf, 1.0, 1.0)) if order == "kahan" else total(math.inf, 1.0, 1.0) == math.inf
    )
    assert total(1.0, -math.inf) == -math.inf
    assert total(60000.0, 60000.0) == math.inf
    assert total(60000.0, 60000.0, rounding="down") == 65504.0
    assert math.isnan(total(400.0, 400.0, fmt="E4M3FN"))
    assert math.copysign(1.0, total(-0.0, -0.0, -0.0)) == -1.0
    # Kahan's x - c is a difference of zeros, which is -0 when rounding down.
    expected = -1.0 if order == "kahan" else 1.0
    assert math.copysign(1.0, total(0.0, 0.0, 0.0, rounding="down")) == expected
    assert math.copysign(1.0, total(1.0, -1.0)) == 1.0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("bf16",), {}, "unknown format 'bf16'"),
        (
            ("bfloat16", "reverse"),
            {},
            "choose one of sequential, pairwise, blocked, kahan, two-level, carry-stack",
        ),
        (("bfloat16", "blocked"), {}, "order 'blocked' needs block=.*got None"),
        (("bfloat16", "two-level"), {"block": 0}, "order 'two-level' needs block=.*got 0"),
        (("bfloat16", "carry-stack"), {"block": 1.5}, "needs block=.*got 1.5"),
        (("bfloat16", "pairwise"), {"block": 8}, "order 'pairwise' has no blocks; got block=8"),
        (("bfloat16",), {"rounding": "half-up"}, "unknown rounding mode 'half-up'"),
        (("bfloat16",), {"seed": -1}, "needs seed"),
        (
            ("float64",),
            {"rounding": "up"},
            "float64 are rounded to nearest even by the machine; got rounding='up'",
        ),
        (("e8m51",), {}, "to 50 mantissa bits; got E8M51 with 51"),
        (
            ("bfloat16", "two-level"),
            {"block": 4, "flush_format": "float16"},
            "must hold every number of bfloat16; got float16",
        ),
        (
            ("bfloat16", "two-level"),
            {"block": 4, "flush_format": "float64", "rounding": "down"},
            "by the machine",
        ),
    ],
)
def test_bad_options_say_what_is_wanted(arguments, options, message):
    with pytest.raises(OptionError, match=message) as info:
        running_sum([1.0, 2.0], *arguments, **options)
    assert "\n" not in str(info.value)


def test_bad_terms_say_what_is_wanted():
    with pytest.raises(ShapeError, match=r"shape \(\.\.\., n\) with an axis -1; got shape \(\)"):
        running_sum(1.0, "bfloat16")
    with pytest.raises(ShapeError, match=r"axis 2; got shape \(3, 4\)"):
        running_sum(np.zeros((3, 4)), "bfloat16", axis=2)
    with pytest.raises(DTypeError, match="got dtype complex128"):
        running_sum([1j], "bfloat16")
    assert running_sum(np.zeros(3), FloatFormat("own", 8, 7)) == 0.0
