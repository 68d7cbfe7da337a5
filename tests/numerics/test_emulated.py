"""The emulated kernel against float64 attention; its masks, empty rows, arrays and repr."""

import math
import pickle

import ml_dtypes
import numba
import numpy as np
import pytest

from emulated_inputs import FLOAT64, ORDERS, RULES, U64, bits, problem, scored
from softcarry.errors import OptionError
from softcarry.numerics import EmulatedKernel, FloatFormat

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def attention(q, k, v, *, mask=None, causal=False, scale=None):
    """Two-pass attention in float64: output, lse, scores and Σ weight · |v|."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = np.einsum("bhid,bhjd->bhij", q, k) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        offset = k.shape[2] - q.shape[2]
        hidden = np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + offset
        scores = np.where(hidden, -np.inf, scores)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(highest), 0.0, highest))
    total = weights.sum(axis=-1, keepdims=True)
    safe = np.where(total == 0, 1.0, total)
    with np.errstate(divide="ignore"):
        lse = (highest + np.log(total))[..., 0]
    return weights @ v / safe, lse, scores, weights @ np.abs(v) / safe


# --- all formats float64: attention itself, whatever the rules ---------------------------------------------


def forms_of_mask():
    rng = np.random.default_rng(9)
    keep = rng.random((2, 2, 3, 37)) < 0.6
    keep[..., :9] = False  # whole leading blocks
    keep[0, 0, 1] = False  # a row without keys
    yield {}
    yield {"causal": True}
    yield {"mask": keep}
    yield {"mask": np.where(keep, rng.normal(size=keep.shape), -np.inf), "scale": 0.3}
    yield {"mask": keep[:1, :1, :1], "causal": True}
    yield {"mask": rng.normal(size=37)}


@pytest.mark.parametrize("rescale", RULES, ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("splits", [1, 3, 50])
def test_float64_formats_give_attention(rescale, order, splits):
    q, k, v = problem()
    kernel = EmulatedKernel(**FLOAT64, key_block=4, splits=splits, order=order, rescale=rescale)
    for options in forms_of_mask():
        output, lse = kernel(q, k, v, **options)
        expected, expected_lse, scores, size = attention(q, k, v, **options)
        # One pass, first order: a score errs by (d + 2)u of Σ|q||k| scale, a bias adds one rounding, s − m
        # another u(|s| + |m|), exp 2u; l and o go through tk additions and, an update or merge, four
        # roundings (exp of the factor 2, product, sum). The oracle has the same terms, hence the factor 2.
        magnitude = np.einsum("bhid,bhjd->bhij", abs(q), abs(k).repeat(2, 1)).max() + 4.0
        magnitude += abs(scores[np.isfinite(scores)]).max() + 4.0
        updates = kernel.carry_updates(37) + splits
        relative = 2 * ((5 + 4) * magnitude + 2 + 37 + 4 * updates) * U64
        assert output.dtype == lse.dtype == np.float64
        assert np.all(abs(output - expected) <= (2 * relative + U64) * size)
        empty = np.isneginf(expected_lse)
        assert np.array_equal(empty, np.isneginf(lse))
        error = abs(lse[~empty] - expected_lse[~empty])
        assert np.all(error <= relative + 4 * U64 * (1 + abs(expected_lse[~empty])))


def test_the_bound_above_is_one_that_a_narrow_carry_breaks():
    q, k, v = problem()
    output, _ = EmulatedKernel(**{**FLOAT64, "l_format": "float32"}, key_block=4)(q, k, v)
    assert abs(output - attention(q, k, v)[0]).max() > 2.0**-27


# --- masks and empty rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key_block", [1, 4, 64])
@pytest.mark.parametrize("splits", [1, 3])
def test_empty_rows(key_block, splits):
    q, k, v = problem(dv=4)
    mask = np.ones((3, 37), bool)
    mask[1] = False
    rules = {"key_block": key_block, "splits": splits}
    plain = EmulatedKernel(**rules)(q, k, v)
    results = {
        empty: EmulatedKernel(**rules, empty=empty)(q, k, v, mask=mask) for empty in ("zero", "nan", "mean")
    }
    for output, lse in results.values():
        assert np.all(np.isneginf(lse[:, :, 1]))
        assert bits((output[:, :, ::2], lse[:, :, ::2])) == bits((plain[0][:, :, ::2], plain[1][:, :, ::2]))
    assert np.all(results["zero"][0][:, :, 1] == 0)
    assert np.all(np.isnan(results["nan"][0][:, :, 1]))
    # A mean of 37 numbers, summed in any order, errs by 37u of the mean magnitude.
    mean, size = v.mean(axis=2), abs(v).mean(axis=2)
    assert np.all(abs(results["mean"][0][:, :, 1] - mean) <= 2 * 38 * U64 * size)


@pytest.mark.parametrize("value", [-math.inf, 0.0, math.inf])
@pytest.mark.parametrize("base", ["e", "2"])
def test_lse_of_an_empty_row_and_its_base(value, base):
    inputs = scored(np.array([[1.0, 1.0], [1.0, 1.0]]), np.ones(2))
    mask = np.array([[True, True], [False, False]])
    _, lse = EmulatedKernel(lse_empty=value, lse_base=base)(*inputs, mask=mask, scale=1.0)
    expected = 1 + math.log(2) if base == "e" else math.log2(math.e) + 1
    assert abs(lse[0, 0, 0] - expected) <= 2 * 2.0**-24 * expected  # float32, and what its l and m bring
    assert lse[0, 0, 1] == value


def test_more_queries_than_keys_leaves_the_first_rows_empty():
    q, k, v = (x.astype(np.float32) for x in problem(tq=5, tk=3))
    output, lse = EmulatedKernel(key_block=2)(q, k, v, causal=True)
    assert np.all(output[:, :, :2] == 0)
    assert np.all(np.isneginf(lse[:, :, :2]))
    assert np.all(np.isfinite(lse[:, :, 2:]))
    assert np.array_equal(output[:, :, 2], np.broadcast_to(v[:, :, 0], output[:, :, 2].shape))


@pytest.mark.parametrize("fill", ["-inf", -1e9, float(np.finfo(np.float32).min)])
def test_filled_leading_blocks_leave_no_trace(fill):
    q, k, v = problem()
    mask = np.arange(37) >= 9
    output, lse = EmulatedKernel(key_block=3, fill=fill)(q, k, v, mask=mask)
    expected = EmulatedKernel(key_block=3)(q, k[:, :, 9:], v[:, :, 9:])
    assert bits((output, lse)) == bits(expected)
    assert bits(EmulatedKernel(key_block=3)(q, k, v, mask=mask)) == bits(expected)


def test_a_finite_fill_shows_the_sentinel_fault():
    q, k, v = problem()
    mask = np.zeros(37, bool)
    for options in ({"mask": mask}, {"mask": np.where(mask, 0.0, -np.inf)}):
        output, lse = EmulatedKernel(fill=-1e9)(q, k, v, **options)
        # Equal weights in float32: 37 additions and a division.
        mean, size = v.mean(axis=2, keepdims=True), abs(v).mean(axis=2, keepdims=True)
        assert np.all(abs(output - mean) <= 2 * 39 * 2.0**-24 * size)
        assert np.all(lse == np.float32(-1e9 + math.log(37)))


def test_without_the_guard_a_masked_leading_block_gives_nan():
    q, k, v = problem()
    leading, inner = np.arange(37) >= 9, (np.arange(37) < 9) | (np.arange(37) >= 18)
    for fill in ("select", "-inf"):
        kernel = EmulatedKernel(key_block=9, fill=fill, guard=False)
        assert all(np.all(np.isnan(array)) for array in kernel(q, k, v, mask=leading))
        assert bits(kernel(q, k, v, mask=inner)) == bits(EmulatedKernel(key_block=9)(q, k, v, mask=inner))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("rescale", RULES, ids=str)
def test_nothing_behind_a_mask_reaches_a_result(poison, rescale):
    q, k, v = problem()
    mask = np.random.default_rng(2).random(37) < 0.5
    mask[:8] = False
    kernel = EmulatedKernel(key_block=4, splits=2, rescale=rescale)
    clean = [kernel(q, k, v, mask=mask), kernel(q, k, v, mask=np.where(mask, 0.0, -np.inf))]
    k[:, :, ~mask] = poison
    v[:, :, ~mask] = poison
    poisoned = [kernel(q, k, v, mask=mask), kernel(q, k, v, mask=np.where(mask, 0.0, -np.inf))]
    assert bits(clean[0]) == bits(clean[1]) == bits(poisoned[0]) == bits(poisoned[1])


def test_a_fill_of_minus_infinity_lets_nan_values_through():
    q, k, v = problem()
    v[:, :, 5] = np.nan
    output, lse = EmulatedKernel(fill="-inf")(q, k, v, mask=np.arange(37) != 5)
    assert np.all(np.isnan(output))
    assert np.all(np.isfinite(lse))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rescale", RULES, ids=str)
def test_a_live_nan_or_infinity_reaches_exactly_its_rows(value, rescale):
    scores = np.zeros((3, 20))
    scores[1, 7] = value
    q, k, v = scored(np.zeros((3, 20)), np.arange(20.0))
    kernel = EmulatedKernel(key_block=4, splits=2, rescale=rescale)
    clean = kernel(q, k, v, scale=1.0)
    output, lse = kernel(q, k, v, scale=1.0, mask=scores)
    assert np.isnan(output[0, 0, 1, 0])
    assert not np.isfinite(lse[0, 0, 1])
    assert bits((output[:, :, ::2], lse[:, :, ::2])) == bits((clean[0][:, :, ::2], clean[1][:, :, ::2]))


# --- arrays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("l_format", ["float32", "float64"])
def test_dtypes(dtype, l_format):
    q, k, v = (x.astype(dtype) for x in problem())
    output, lse = EmulatedKernel(l_format=l_format)(q, k, v, causal=True)
    assert output.dtype == dtype
    assert output.shape == (2, 2, 3, 3)
    assert lse.dtype == l_format
    assert lse.shape == (2, 2, 3)


def test_the_output_is_rounded_once():
    # 1 + 2^-8 lies halfway between two bfloat16 numbers; the third key lifts the output above it by less
    # than float32 can see, so by way of float32 it would fall on the even neighbour 1.
    inputs = scored(np.array([[0.0, 0.0, -21.0]]), [1.0, 1.0 + 2.0**-7, 2.0], BFLOAT16)
    output, _ = EmulatedKernel(**FLOAT64)(*inputs, scale=1.0)
    assert float(output.item()) == 1 + 2.0**-7


def test_output_format():
    q, k, v = problem()
    output, _ = EmulatedKernel(output_format="bfloat16")(q, k, v)
    plain, _ = EmulatedKernel()(q, k, v)
    assert output.dtype == np.float64
    # A value is a bfloat16 number if it survives the cast, and the nearest if none lies within half a step.
    assert np.array_equal(output.astype(BFLOAT16).astype(np.float64), output)
    assert np.all(abs(output - plain) <= 2.0**-9 * 2.0 ** np.ceil(np.log2(abs(plain))))


def test_grouped_heads_share_keys_as_if_repeated():
    q, k, v = problem(heads=6, kv_heads=3)
    kernel = EmulatedKernel(key_block=8, l_format="bfloat16")
    assert bits(kernel(q, k, v)) == bits(kernel(q, k.repeat(2, 1), v.repeat(2, 1)))


def test_strides_and_broadcast_masks_do_not_matter():
    q, k, v = problem(heads=2, kv_heads=2)
    mask = np.random.default_rng(6).random((2, 1, 3, 37)) < 0.7
    kernel = EmulatedKernel(key_block=8)
    expected = kernel(q, k, v, mask=mask)
    strided = [np.asfortranarray(x) for x in (q, k, v)]
    for array in strided:
        array.flags.writeable = False
    assert bits(kernel(*strided, mask=np.broadcast_to(mask, (2, 2, 3, 37)))) == bits(expected)
    rows = [kernel(q[:, :, i : i + 1], k, v, mask=mask[:, :, i : i + 1]) for i in range(3)]
    assert bits(np.concatenate(parts, axis=2) for parts in zip(*rows, strict=True)) == bits(expected)


@pytest.mark.parametrize("rounding", ["nearest-even", "stochastic"])
def test_results_do_not_depend_on_the_number_of_threads(rounding):
    inputs = problem(tq=21, tk=150)
    kernel = EmulatedKernel(
        l_format="bfloat16", o_format="float16", key_block=4, splits=3, rounding=rounding, seed=7
    )
    before = numba.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            results.append(kernel(*inputs, causal=True))
    finally:
        numba.set_num_threads(before)
    assert bits(results[0]) == bits(results[1])


@pytest.mark.parametrize("sizes", [{"tk": 0}, {"tq": 0}, {"dv": 0}, {"tk": 1}])
def test_lengths_of_zero_and_one(sizes):
    q, k, v = (x.astype(np.float32) for x in problem(**sizes))
    output, lse = EmulatedKernel(key_block=4, splits=2)(q, k, v, causal=True)
    assert output.shape == (2, 2, q.shape[2], v.shape[3])
    assert lse.shape == (2, 2, q.shape[2])
    if sizes == {"tk": 0}:
        assert np.all(output == 0)
        assert np.all(np.isneginf(lse))
    if sizes == {"tk": 1}:
        assert np.array_equal(output[:, :, -1], np.broadcast_to(v[:, :, 0], (2, 2, 3)))


# --- the kernel as an object -------------------------------------------------------------------------------


def test_attributes_and_the_number_of_updates():
    kernel = EmulatedKernel(key_block=48, splits=3, l_format="bfloat16")
    assert (kernel.key_block, kernel.splits, kernel.l_format.name) == (48, 3, "bfloat16")
    assert kernel.split_starts(260) == [0, 96, 192]
    assert [kernel.carry_updates(n) for n in (0, 1, 144, 145, 260)] == [0, 1, 1, 2, 2]
    assert EmulatedKernel(key_block=1).carry_updates(8192) == 8192


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l_format": "bfloat16", "order": ("permuted", 3), "rescale": ("lazy", 8.0), "seed": 2},
        {"output_format": "E4M3FN", "fill": -1e9, "empty": "mean", "guard": False, "lse_empty": math.inf},
        {"o_format": FloatFormat("mine", 6, 9), "rounding": "up", "l_from": "rounded", "lse_base": "2"},
        {"fill": "-inf", "rescale": "two-pass", "splits": 4, "lse_empty": 0.0},
    ],
)
def test_the_representation_makes_the_same_kernel(options):
    kernel = EmulatedKernel(**options)
    again = eval(repr(kernel), {"EmulatedKernel": EmulatedKernel, "FloatFormat": FloatFormat})
    assert vars(again) == vars(kernel)
    assert vars(pickle.loads(pickle.dumps(kernel))) == vars(kernel)


def test_an_alignment_that_is_not_emulated_is_refused():
    q = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(OptionError, match=r"causal is True \(bottom-right\) or False.*'top-left'"):
        EmulatedKernel()(q, q, q, causal="top-left")
    right, _ = EmulatedKernel()(q, q, q, causal="bottom-right")
    np.testing.assert_array_equal(right, EmulatedKernel()(q, q, q, causal=True)[0])
