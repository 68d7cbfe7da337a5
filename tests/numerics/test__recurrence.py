"""The emulated recurrence bit for bit against plain Python, where it stalls, and what its maximum does."""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from emulated_inputs import FLOAT64, ORDERS, RULES, U64, bits, flat, problem, scored
from softcarry.numerics import EmulatedKernel

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# --- bit for bit: the recurrence one step at a time --------------------------------------------------------

FIELDS = {"bfloat16": (7, -126), "float16": (10, -14), "float32": (23, -126), "E5M2": (2, -14)}


def rounded(x, name):
    """Nearest even by exact fractions; magnitudes beyond the format's largest number are not met here."""
    if name == "float64" or x == 0 or not math.isfinite(x):
        return x
    mantissa, least = FIELDS[name]
    quantum = Fraction(2) ** (max(math.frexp(x)[1] - 1, least) - mantissa)
    return float(round(Fraction(x) / quantum) * quantum)


@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", BFLOAT16), ("float16", np.float16), ("float32", np.float32)]
)
def test_the_oracle_rounds_as_numpy_and_ml_dtypes_do(name, dtype):
    for x in np.random.default_rng(1).normal(size=300).astype(np.float32) * np.float32(1e-3):
        assert rounded(float(x), name) == float(np.asarray(x).astype(dtype))


def visited(blocks, order):
    if order == "backward":
        return blocks[::-1]
    if order != "forward":
        return [int(b) for b in np.random.default_rng(order[1]).permutation(len(blocks))]
    return blocks


def one_row(scores, values, *, formats, key_block, splits, order, rescale, l_from="unrounded"):
    """m, l and o of one row of scores (None = masked), one rounding at a time."""
    n, dv = len(scores), len(values[0])
    length = math.ceil(math.ceil(n / splits) / key_block) * key_block
    everything = visited(list(range(math.ceil(n / key_block))), order)
    carry = None
    for start in range(0, n, length):
        blocks = [b for b in everything if start <= b * key_block < start + length]
        part = walk(scores, values, blocks, key_block, formats, rescale, l_from)
        if carry is None:
            carry = part
            continue
        (m, l_sum, o), (part_m, part_l, part_o) = carry, part
        top = max(m, part_m)
        shift = 0.0 if top == -math.inf else top
        a, b = math.exp(m - shift), math.exp(part_m - shift)
        l_sum = rounded(l_sum * a + part_l * b, formats["l"])
        o = [rounded(o[c] * a + part_o[c] * b, formats["o"]) for c in range(dv)]
        carry = top, l_sum, o
    return carry


def walk(scores, values, blocks, key_block, formats, rescale, l_from):
    m, l_sum, o = -math.inf, 0.0, [0.0] * len(values[0])
    kind = rescale if isinstance(rescale, str) else rescale[0]
    if kind == "bound":
        m = rounded(rescale[1], formats["m"])
    for block in blocks:
        keys = range(block * key_block, min((block + 1) * key_block, len(scores)))
        keys = [j for j in keys if scores[j] is not None]
        if not keys:
            continue
        before, largest = m, max(scores[j] for j in keys)
        if kind == "two-pass":
            own = [j for b in blocks for j in range(b * key_block, (b + 1) * key_block) if j < len(scores)]
            m = rounded(max(scores[j] for j in own if scores[j] is not None), formats["m"])
        elif kind != "bound" and largest - before > (rescale[1] if kind == "lazy" else 0.0):
            m = rounded(max(m, largest), formats["m"])
        alpha = math.exp(before - m)
        block_sum, block_o = 0.0, [0.0] * len(o)
        for j in keys:
            exact = math.exp(scores[j] - m)
            weight = rounded(exact, formats["p"])
            block_sum = rounded(block_sum + (exact if l_from == "unrounded" else weight), formats["block"])
            for c in range(len(o)):
                block_o[c] = rounded(block_o[c] + weight * values[j][c], formats["block"])
        l_sum = rounded(l_sum * alpha + block_sum, formats["l"])
        o = [rounded(o[c] * alpha + block_o[c], formats["o"]) for c in range(len(o))]
    return m, l_sum, o


FORMATS = (
    {"m": "float32", "l": "bfloat16", "o": "bfloat16", "p": "float32", "block": "float32"},
    {"m": "float16", "l": "float16", "o": "float16", "p": "float16", "block": "float32"},
    {"m": "bfloat16", "l": "bfloat16", "o": "float16", "p": "bfloat16", "block": "bfloat16"},
    {"m": "float64", "l": "E5M2", "o": "bfloat16", "p": "E5M2", "block": "float64"},
)


@pytest.mark.parametrize("formats", FORMATS, ids=lambda formats: "-".join(formats.values()))
@pytest.mark.parametrize("rescale", RULES, ids=str)
def test_every_bit_of_a_narrow_carry(formats, rescale):
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(2, 31)).astype(np.float32).astype(np.float64)
    values = rng.normal(size=(31, 2)).astype(np.float32).astype(np.float64)
    keep = rng.random((2, 31)) < 0.8
    keep[1, :14] = False
    names = {f"{part}_format": name for part, name in formats.items()}
    cases = itertools.product((1, 6), (1, 3), ORDERS, ("unrounded", "rounded"))
    for key_block, splits, order, l_from in cases:
        rules = {
            "key_block": key_block,
            "splits": splits,
            "order": order,
            "rescale": rescale,
            "l_from": l_from,
        }
        kernel = EmulatedKernel(**names, **rules)
        output, lse = kernel(*scored(scores, values), mask=keep, scale=1.0)
        for row in range(2):
            line = [s if live else None for s, live in zip(scores[row].tolist(), keep[row], strict=True)]
            m, l_sum, o = one_row(line, values.tolist(), formats=formats, **rules)
            assert output[0, 0, row].tolist() == [x / l_sum for x in o], rules
            assert lse[0, 0, row] == np.float32(m + math.log(l_sum)), rules


def test_scores_are_rounded_at_each_step():
    rng = np.random.default_rng(8)
    q, k = rng.normal(size=(1, 1, 1, 7)), rng.normal(size=(1, 1, 9, 7))
    bias = rng.normal(size=(1, 1, 1, 9))
    kernel = EmulatedKernel(score_format="float16", l_format="float64", m_format="float64")
    for j in range(9):
        alone = np.where(np.arange(9) == j, bias, -np.inf)  # one key: lse is its score
        dot = 0.0
        for c in range(7):
            dot += q[0, 0, 0, c] * k[0, 0, j, c]
        steps = float(np.float16(float(np.float16(dot)) * 0.37))
        expected = float(np.float16(steps + bias[0, 0, 0, j]))
        assert kernel(q, k, np.ones((1, 1, 9, 1)), mask=alone, scale=0.37)[1].item() == expected


def test_weights_are_rounded_for_the_values_but_not_for_l():
    inputs = scored(np.array([[0.0, -1.0, -2.0]]), np.ones(3))
    unrounded, _ = EmulatedKernel(p_format="E5M2")(*inputs, scale=1.0)
    rounded_too, _ = EmulatedKernel(p_format="E5M2", l_from="rounded")(*inputs, scale=1.0)
    assert unrounded.item() != 1.0
    assert rounded_too.item() == 1.0


def test_on_growth_has_the_bits_of_every_block():
    inputs = problem(tk=200)
    results = [
        EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=2, rescale=rule)(*inputs)
        for rule in ("every-block", "on-growth", ("lazy", 0.0))
    ]
    assert bits(results[0]) == bits(results[1]) == bits(results[2])


# --- swamping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_block", [1, 2, 4])
@pytest.mark.parametrize(
    ("l_format", "drop_index"), [("bfloat16", 256), ("float16", 2048), ("E4M3", 16), ("E5M2", 8)]
)
def test_equal_terms_stall_at_the_drop_index(l_format, drop_index, key_block):
    q, k, v = flat(4 * drop_index * key_block)
    output, lse = EmulatedKernel(l_format=l_format, key_block=key_block)(q, k, v)
    assert 1 / output.item() == drop_index * key_block
    assert lse.item() == np.float32(math.log(drop_index * key_block))


def test_equal_values_hide_the_stall():
    n = 4096
    q, k, _ = flat(n)
    kernel = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1)
    output, lse = kernel(q, k, np.ones((1, 1, n, 1)))
    assert output.item() == 1.0  # o and l are both stuck
    assert math.exp(lse.item()) < n / 15


@pytest.mark.parametrize(
    ("rounding", "l_sum"),
    # At 256 a term is half a step: even and truncation stay, away goes on to where it is a quarter. Upwards
    # every term becomes a step, so that l doubles every 128 terms.
    [("nearest-even", 256), ("toward-zero", 256), ("down", 256), ("nearest-away", 512), ("up", 16384)],
)
def test_the_stall_level_tells_the_rounding_mode(rounding, l_sum):
    output, _ = EmulatedKernel(l_format="bfloat16", key_block=1, rounding=rounding)(*flat(1024))
    assert 1 / output.item() == l_sum


def test_splits_and_blocks_delay_the_stall():
    output, _ = EmulatedKernel(l_format="bfloat16", key_block=1, splits=4)(*flat(4096))
    assert 1 / output.item() == 4 * 256


def denominator_error(scores, key_block):
    """Mean over rows of \\|l̂ / l − 1\\| for a bfloat16 carry; the scores come in as a bias."""
    rows, n = scores.shape
    q, k, v = np.zeros((1, 1, rows, 1)), np.zeros((1, 1, n, 1)), np.zeros((1, 1, n, 0))
    kernel = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=key_block)
    _, lse = kernel(q, k, v, mask=scores)
    highest = scores.max(axis=1)
    exact = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    return float(np.mean(abs(np.expm1(lse[0, 0] - exact))))


def test_the_envelope_of_the_seeds():
    """A bfloat16 carry at n = 8192: flat, 2.3 % at n/Bc = 256, 38 % at 1024, 73 % at 8192 in the seeds.

    Standard normal scores reproduce the last two. The figures are means over rows of one sample of scores;
    at 256, where the cliff begins, they depend most on the sample.
    """
    scores = np.random.default_rng(0).normal(size=(32, 8192))
    updates = (1, 8, 32, 256, 1024, 8192)
    error = {n: denominator_error(scores, 8192 // n) for n in updates}
    # Up to 32 updates the error is a few roundings of 2^-8 each, partly cancelling.
    assert max(error[1], error[8], error[32]) < 2 * 2.0**-8
    assert 0.01 < error[256] < 0.08
    assert 0.33 < error[1024] < 0.46
    assert 0.68 < error[8192] < 0.78


def test_the_envelope_of_uniform_terms():
    """Uniform terms of mean 1/2: l stalls where half a step exceeds every block's sum.

    With one key a block that is 256 of 4096, an error of 15/16; with 8 keys a block 2048 of 4096.
    """
    scores = np.log(np.random.default_rng(0).uniform(size=(32, 8192)))
    error = {n: denominator_error(scores, 8192 // n) for n in (1, 32, 256, 1024, 8192)}
    assert max(error[1], error[32], error[256]) < 3 * 2.0**-8
    assert abs(error[1024] - 1 / 2) < 0.02
    assert abs(error[8192] - 15 / 16) < 0.01


def test_stochastic_rounding_does_not_stall():
    n, rows = 4096, 64
    q, k, v = np.zeros((1, 1, rows, 1)), np.zeros((1, 1, n, 1)), np.eye(n, 1)[None, None]
    kernel = EmulatedKernel(l_format="bfloat16", key_block=1, rounding="stochastic", seed=4)
    output, _ = kernel(q, k, v)
    l_sums = 1 / output[0, 0, :, 0]
    # Where a step is q a term of 1 adds q with probability 1/q: mean 1, variance q − 1. Steps of 2, 4, 8, 16
    # last while l passes 256, 512, 1024, 2048 numbers, so the variance of l is about 39680.
    deviation = math.sqrt(256 * 1 + 512 * 3 + 1024 * 7 + 2048 * 15)
    assert abs(l_sums.mean() - n) < 5 * deviation / math.sqrt(rows)
    assert 0.5 * deviation < l_sums.std() < 2 * deviation
    # Rows draw numbers of their own: independent ones correlate by 1/√48 or so, shifted copies by nearly 1.
    for lag in range(1, 17):
        assert abs(np.corrcoef(l_sums[lag:], l_sums[:-lag])[0, 1]) < 4 / math.sqrt(48), lag
    assert bits(kernel(q, k, v)) == bits(kernel(q, k, v))
    other = EmulatedKernel(l_format="bfloat16", key_block=1, rounding="stochastic", seed=5)
    assert bits(other(q, k, v)) != bits(kernel(q, k, v))


# --- the maximum -------------------------------------------------------------------------------------------


def test_no_subtraction_overflows_where_a_maximum_does_not():
    inputs = scored(np.full((1, 8), 100.0), np.arange(8.0))
    output, lse = EmulatedKernel(rescale=("bound", 0.0))(*inputs, scale=1.0)
    assert np.isnan(output.item())
    assert lse.item() == np.inf
    assert EmulatedKernel()(*inputs, scale=1.0)[0].item() == 3.5


def test_a_loose_bound_underflows_every_term():
    inputs = scored(np.zeros((1, 8)), np.arange(8.0))
    output, lse = EmulatedKernel(rescale=("bound", 200.0))(*inputs, scale=1.0)
    assert output.item() == 0
    assert lse.item() == -np.inf
    wide, _ = EmulatedKernel(**FLOAT64, rescale=("bound", 200.0))(*inputs, scale=1.0)
    assert abs(wide.item() - 3.5) <= 2 * (8 + 2) * U64 * 3.5  # o and l: 8 additions, product, division


def test_a_lazy_maximum_may_overflow_the_weights():
    scores = np.array([[0.0, 11.5, 11.5]])  # e^11.5 = 98716 > 65504
    inputs = scored(scores, np.arange(3.0))
    rules = {"p_format": "float16", "key_block": 1}
    assert not np.isfinite(EmulatedKernel(**rules, rescale=("lazy", 12.0))(*inputs, scale=1.0)[0].item())
    assert np.isfinite(EmulatedKernel(**rules, rescale=("lazy", 8.0))(*inputs, scale=1.0)[0].item())


def test_a_lazy_maximum_moves_only_beyond_its_threshold():
    # m is seen through l: relative to the stale maximum 0 the second weight is e^2, which bfloat16 rounds.
    inputs = scored(np.array([[0.0, 2.0]]), np.ones(2))
    for threshold, l_sum, m in ((2.0, 1 + math.exp(2), 0.0), (1.99, 1 + math.exp(-2), 2.0)):
        kernel = EmulatedKernel(l_format="bfloat16", key_block=1, rescale=("lazy", threshold))
        _, lse = kernel(*inputs, scale=1.0)
        assert lse.item() == np.float32(m + math.log(rounded(l_sum, "bfloat16")))


def test_a_maximum_beyond_its_format_loses_the_row():
    inputs = scored(np.full((1, 4), 1e5), np.arange(4.0))
    output, lse = EmulatedKernel(m_format="float16", empty="nan")(*inputs, scale=1.0)
    assert np.isnan(output.item())
    assert np.isnan(lse.item()) or np.isinf(lse.item())
