"""The master bound covers what kernels do, and no more than that."""

import math

import numpy as np
import pytest

from softcarry.errors import OptionError, ShapeError
from softcarry.numerics.attention_bounds import CarryModel, attention_error_bound

MANTISSA = {"float32": 23, "bfloat16": 7, "float16": 10}


def exact(q, k, v, scale):
    """Oracle: two passes in float64, whose own error is 2^-29 of float32's."""
    scores = scale * (q @ k.swapaxes(-1, -2))
    magnitudes = abs(scale) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2))
    m = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - m)
    l = p.sum(axis=-1, keepdims=True)
    return (p / l) @ v, (m + np.log(l))[..., 0], scores, magnitudes


def inputs(kind, seed, rows, n, d):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((1, 2, count, d)) for count in (rows, n, n))
    if kind == "positive":
        q, k, v = np.abs(q), np.abs(k), rng.random(v.shape)
    elif kind == "outlier":
        q[..., 0] *= 20
        k[..., 0] *= 20
        v[..., -1] *= 100
    elif kind == "large":
        q, k = 8 * q, 8 * k
    elif kind == "repeated maximum":
        k[:, :, ::3] = k[:, :, :1]
        q, v = 2 * q, np.abs(v)
    elif kind == "growing":
        q[:], q[..., 0] = 0, np.sqrt(d)
        k[..., 0] = np.linspace(-20, 20, n)
    elif kind == "tiny":
        v = v * 1e-40
    elif kind == "flat":
        q, v = 0 * q, np.sign(v)
    return q, k, v


KINDS = ["normal", "positive", "outlier", "large", "repeated maximum", "growing", "tiny", "flat"]
SHAPES = [(1, 4, 64), (3, 1, 64), (17, 7, 64), (129, 64, 32), (600, 128, 16)]


def to_float32(*arrays):
    return (np.asarray(x, np.float32).astype(np.float64) for x in arrays)


def covered(output, bound):
    """Largest error in units of the bound; below 1 where the bound holds."""
    return float(np.max(output / np.where(bound == 0, 5e-324, bound), initial=0.0))


def flushes_subnormal_products(torch, dtype):
    """Whether torch's matrix product loses subnormal numbers, as AMX and AVX-512's of bfloat16 do."""
    subnormal = torch.full((64, 64), 1e-40).to(getattr(torch, dtype))
    return bool((subnormal != 0).all()) and not (torch.ones_like(subnormal) @ subnormal).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", list(MANTISSA))
def test_torch_stays_within_the_bound(dtype, kind):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if kind == "tiny" and flushes_subnormal_products(torch, dtype):
        pytest.skip(f"torch's {dtype} products take subnormal numbers for 0 on this processor; bounds do not")
    worst, worst_lse = 0.0, 0.0
    for seed, (n, d, rows) in enumerate(SHAPES):
        tensors = [
            torch.tensor(x.astype(np.float32)).to(getattr(torch, dtype))
            for x in inputs(kind, seed, rows, n, d)
        ]
        q, k, v = (x.double().numpy() for x in tensors)
        output, lse, scores, magnitudes = exact(q, k, v, d**-0.5)
        model = CarryModel(p_format=None if dtype == "float32" else dtype)
        bound = attention_error_bound(scores, magnitudes, v, depth=d, model=model, output_format=dtype)
        flash, flash_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *tensors, 0.0, False, scale=d**-0.5
        )
        with sdpa_kernel(SDPBackend.MATH):
            plain = torch.nn.functional.scaled_dot_product_attention(*tensors, scale=d**-0.5)
        for found in (flash, plain):
            worst = max(worst, covered(np.abs(found.double().numpy() - output), bound.output))
        worst_lse = max(worst_lse, covered(np.abs(flash_lse.double().numpy() - lse), bound.lse))
    assert worst <= 1.0
    assert worst_lse <= 1.0


@pytest.mark.parametrize("dtype", list(MANTISSA))
def test_torch_stays_within_the_bound_over_16384_keys(dtype):
    torch = pytest.importorskip("torch")
    for kind in ("normal", "positive"):
        tensors = [torch.tensor(x).to(getattr(torch, dtype)) for x in inputs(kind, 3, 2, 16384, 64)]
        q, k, v = (x.double().numpy() for x in tensors)
        output, _, scores, magnitudes = exact(q, k, v, 0.125)
        model = CarryModel(p_format=None if dtype == "float32" else dtype)
        found = torch.nn.functional.scaled_dot_product_attention(*tensors, scale=0.125).double().numpy()
        for statistical in (False, True):
            bound = attention_error_bound(
                scores, magnitudes, v, depth=64, model=model, output_format=dtype, statistical=statistical
            )
            assert covered(np.abs(found - output), bound.output) <= 1.0


def rounded(x, t):
    """Oracle: x to t stored bits, exponents unbounded."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(fraction, t + 1)), exponent - t - 1)


def blocked(q, k, v, scale, key_block, *, carry=23, p_bits=23, splits=1, backward=False, forget=False):
    """A kernel in float32 whose carry is rounded to ``carry`` stored bits after every update.

    ``forget`` leaves out the rescale.
    """
    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))
    n = k.shape[-2]
    partials = []
    for keys in np.array_split(np.arange(n), splits):
        m = np.full((*q.shape[:-1], 1), -np.inf, np.float32)
        l, o = np.zeros_like(m), np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
        starts = range(0, len(keys), key_block)
        for start in reversed(starts) if backward else starts:
            part = keys[start : start + key_block]
            s = (q @ k[:, :, part].swapaxes(-1, -2)) * np.float32(scale)
            new = np.maximum(m, s.max(axis=-1, keepdims=True))
            factor = np.exp(m - new)
            if forget:
                factor = np.where(np.isneginf(m), np.float32(0), np.float32(1))
            p = np.exp(s - new)
            l = l * factor + p.sum(axis=-1, keepdims=True)
            o = o * factor + rounded(p, p_bits).astype(np.float32) @ v[:, :, part]
            l, o, m = rounded(l, carry).astype(np.float32), rounded(o, carry).astype(np.float32), new
        partials.append((m, l, o))
    m, l, o = partials[0]
    for other, l_other, o_other in partials[1:]:
        new = np.maximum(m, other)
        a, b = np.exp(m - new), np.exp(other - new)
        l, o, m = l * a + l_other * b, o * a + o_other * b, new
        l, o = rounded(l, carry).astype(np.float32), rounded(o, carry).astype(np.float32)
    return (o / l).astype(np.float64), (m + np.log(l))[..., 0].astype(np.float64)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tiny"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (CarryModel(), {"key_block": 1}),
        (CarryModel(key_block=16), {"key_block": 16}),
        (CarryModel(key_block=16), {"key_block": 16, "backward": True}),
        (CarryModel(key_block=16, splits=3), {"key_block": 16, "splits": 3}),
        (CarryModel(p_format="float16", key_block=32), {"key_block": 32, "p_bits": 10}),
        (CarryModel("bfloat16", "bfloat16", key_block=32), {"key_block": 32, "carry": 7}),
        (
            CarryModel("float16", "float16", "bfloat16", key_block=8, splits=2),
            {"key_block": 8, "carry": 10, "p_bits": 7, "splits": 2},
        ),
    ],
)
def test_blocked_kernels_with_declared_carries_stay_within_the_bound(kind, model, options):
    for seed, (n, d, rows) in enumerate([(16, 4, 16), (65, 16, 16), (200, 64, 8)]):
        q, k, v = to_float32(*inputs(kind, seed, rows, n, d))
        output, lse, scores, magnitudes = exact(q, k, v, d**-0.5)
        bound = attention_error_bound(scores, magnitudes, v, depth=d, model=model)
        found, found_lse = blocked(q, k, v, d**-0.5, **options)
        assert covered(np.abs(found - output), bound.output) <= 1.0
        assert covered(np.abs(found_lse - lse), bound.lse) <= 1.0


def test_a_narrower_carry_than_declared_is_outside_the_bound():
    q, k, v = to_float32(*inputs("positive", 0, 16, 512, 64))
    output, _, scores, magnitudes = exact(q, k, v, 0.125)
    found, _ = blocked(q, k, v, 0.125, 8, carry=7)
    assert covered(np.abs(found - output), attention_error_bound(scores, magnitudes, v, depth=64).output) > 10


def test_two_passes_in_float32_stay_within_the_bound():
    for kind in ("normal", "positive", "large", "outlier"):
        q, k, v = to_float32(*inputs(kind, 2, 4, 4096, 64))
        output, _, scores, magnitudes = exact(q, k, v, 0.125)
        s = (q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)) * np.float32(0.125)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        found = (p / p.sum(axis=-1, keepdims=True)) @ v.astype(np.float32)
        bound = attention_error_bound(scores, magnitudes, v, depth=64).output
        assert covered(np.abs(found - output), bound) <= 1.0


@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize("n", [64, 256, 1024])
def test_wrong_kernels_are_outside_the_bound(n, kind):
    q, k, v = to_float32(*inputs(kind, 7, 32, n, 64))
    output, _, scores, magnitudes = exact(q, k, v, 0.125)
    bound = attention_error_bound(scores, magnitudes, v, depth=64).output
    shuffled = v[:, :, np.random.default_rng(0).permutation(n)]
    wrong = {
        "last key dropped": exact(q, k[:, :, :-1], v[:, :, :-1], 0.125)[0],
        "zeros": np.zeros_like(output),
        "keys shuffled": exact(q, k, shuffled, 0.125)[0],
        "rescale forgotten": blocked(q, k, v, 0.125, 16, forget=True)[0],
    }
    for name, found in wrong.items():
        assert covered(np.abs(found - output), bound) > 5, name
        assert np.mean(np.abs(found - output) > bound) > 0.5, name


def test_the_bound_of_float32_is_small_in_units_of_the_weighted_values():
    q, k, v = to_float32(*inputs("normal", 0, 32, 1024, 64))
    _, lse, scores, magnitudes = exact(q, k, v, 0.125)
    w = np.exp(scores - lse[..., None]) @ np.abs(v)
    bound = attention_error_bound(scores, magnitudes, v, depth=64).output
    # 1024·2^−24 = 6e-5 for o, as much times |o|/w for l, and 68·2^−24 times a score's magnitude of about 5.
    assert np.all((6e-5 * w < bound) & (bound < 2e-4 * w))


def test_statistical_bound_tells_a_dropped_key_where_the_worst_case_cannot():
    q, k, v = to_float32(*inputs("normal", 7, 4, 16384, 64))
    output, _, scores, magnitudes = exact(q, k, v, 0.125)
    dropped = exact(q, k[:, :, :-1], v[:, :, :-1], 0.125)[0]
    worst = attention_error_bound(scores, magnitudes, v, depth=64).output
    likely = attention_error_bound(scores, magnitudes, v, depth=64, statistical=True).output
    # λ√n·u against n·u: 6·128 against 16384 roundings, and terms that both have.
    assert np.all((likely < worst / 5) & (likely > worst * 6 / 128 / 2))
    assert np.mean(np.abs(dropped - output) > likely) > 3 * np.mean(np.abs(dropped - output) > worst)
    good, _ = blocked(q, k, v, 0.125, 64)
    assert covered(np.abs(good - output), likely) <= 1.0


def test_no_bound_for_a_carry_that_stagnates():
    scores, v = np.zeros((1, 1, 2, 600)), np.ones((1, 1, 600, 3))
    for statistical in (False, True):
        bound = attention_error_bound(
            scores, 0 * scores, v, depth=1, model=CarryModel("bfloat16"), statistical=statistical
        )
        assert np.all(np.isinf(bound.output))
        assert np.all(np.isinf(bound.lse))
    # In blocks of 64 there are 10 updates.
    bound = attention_error_bound(scores, 0 * scores, v, depth=1, model=CarryModel("bfloat16", key_block=64))
    assert np.all(bound.lse < 0.05)


def test_a_better_known_kernel_has_a_smaller_bound():
    q, k, v = to_float32(*inputs("normal", 1, 8, 2048, 32))
    _, _, scores, magnitudes = exact(q, k, v, 32**-0.5)

    def bound(**model):
        return attention_error_bound(scores, magnitudes, v, depth=32, model=CarryModel(**model)).output

    assert np.all(bound(key_block=64) < bound(key_block=8))
    assert np.all(bound(key_block=8) < bound())
    assert np.all(bound(order="carry-stack") < bound())
    assert np.all(bound() < bound(p_format="float16"))
    assert np.all(bound(p_format="float16") < bound(p_format="bfloat16"))
    double = bound(l_format="float64", o_format="float64", score_format="float64")
    assert np.all(double > 1e-30)
    scores64 = CarryModel(score_format="float64")
    assert scores64.working_format.name == "float64"
    strict = attention_error_bound(
        scores,
        magnitudes,
        v,
        depth=32,
        model=CarryModel("float64", "float64", None, "float64"),
        output_format="float64",
        lse_format="float64",
    )
    # Every term scales with u, 2^−29 between the two formats, but for the constants of single roundings.
    assert np.all(strict.output < 2.0**-28 * bound())
    assert np.all(strict.lse < 1e-11)


def test_masked_keys_do_not_count():
    rng = np.random.default_rng(0)
    q, k, v = to_float32(*inputs("normal", 0, 6, 40, 8))
    _, _, scores, magnitudes = exact(q, k, v, 8**-0.5)
    mask = rng.random(scores.shape) < 0.5
    mask[..., 0] = True
    mask[:, :, 2] = False
    masked = np.where(mask, scores, -np.inf)
    poisoned = np.where(mask, magnitudes, np.nan)
    bound = attention_error_bound(masked, poisoned, v, depth=8)
    assert np.all(bound.output[:, :, 2] == 0)
    assert np.all(bound.lse[:, :, 2] == 0)
    assert np.all(np.isfinite(bound.output))
    row = mask[0, 0, 0]
    alone = attention_error_bound(
        scores[:1, :1, :1, row], magnitudes[:1, :1, :1, row], v[:1, :1, row], depth=8
    )
    # The same terms added up in another order, in float64.
    assert np.allclose(alone.output[0, 0, 0], bound.output[0, 0, 0], rtol=1e-9, atol=0)


def test_nothing_is_claimed_of_live_values_that_are_not_finite():
    scores = np.zeros((1, 1, 4, 3))
    scores[0, 0, 0, 1], scores[0, 0, 1, 1], scores[0, 0, 2, 1] = np.nan, np.inf, -np.inf
    values = np.ones((1, 1, 3, 2))
    values[0, 0, 1, 1] = np.inf
    bound = attention_error_bound(scores, np.abs(np.nan_to_num(scores)), values, depth=1)
    assert np.isinf(bound.lse[0, 0]).tolist() == [True, True, False, False]
    # Row 2 masks the infinite value; row 3 meets it in one column.
    assert np.isinf(bound.output[0, 0]).tolist() == [[True] * 2, [True] * 2, [False] * 2, [False, True]]


def test_nothing_is_claimed_where_a_format_may_overflow():
    scores = np.zeros((1, 1, 1, 64))
    model = CarryModel(o_format="float16", key_block=64)
    for size, finite in ((1000.0, True), (2000.0, False)):
        bound = attention_error_bound(scores, scores, np.full((1, 1, 64, 1), size), depth=1, model=model)
        assert np.isfinite(bound.output).all() == finite
    large = np.full((1, 1, 64, 1), 65500.0)
    assert np.isinf(
        attention_error_bound(scores, scores, large, depth=1, output_format="float16").output
    ).all()
    low = CarryModel(score_format="float16")
    high_scores = np.full_like(scores, 7e4)
    assert np.isinf(attention_error_bound(high_scores, high_scores, large, depth=1, model=low).lse).all()


def test_hopeless_scores_give_the_trivial_bound_and_no_nan():
    scores = np.array([[[[0.0, 1e30]]]])
    values = np.array([[[[1.0], [3.0]]]])
    bound = attention_error_bound(scores, scores, values, depth=4)
    # The output is a mean of 1 and 3, and the exact one is 3; the score is off by 8·2^−24 of itself at most.
    assert 2.0 <= bound.output.item() <= 6.001
    assert 1e30 * 2.0**-24 < bound.lse.item() < 1e30 * 2.0**-19


def test_a_cancelled_score_may_be_anything_even_where_its_weight_underflows():
    scores = np.array([[[[0.0, -2000.0]]]])
    magnitudes = np.array([[[[0.0, 1e12]]]])
    bound = attention_error_bound(scores, magnitudes, np.array([[[[1.0], [3.0]]]]), depth=64)
    # 1e12·68·2^−24 = 4e6 is the error of the second score, which may so become the larger one.
    assert bound.output.item() >= 2.0
    assert 3e6 < bound.lse.item() < 6e6


def test_scores_that_are_off_by_more_than_one_are_covered():
    q, k, v = to_float32(*inputs("normal", 0, 64, 50, 16))
    q, k = q * 4096, k * 4096
    output, lse, scores, magnitudes = exact(q, k, v, 0.25)
    bound = attention_error_bound(scores, magnitudes, v, depth=16)
    found, found_lse = blocked(q, k, v, 0.25, 8)
    assert magnitudes.max() * 2.0**-24 > 1.0
    assert covered(np.abs(found - output), bound.output) <= 1.0
    assert covered(np.abs(found_lse - lse), bound.lse) <= 1.0


def test_heads_may_share_values_and_rows_may_have_no_keys():
    q, k, v = to_float32(*inputs("normal", 0, 3, 10, 4))
    _, _, scores, magnitudes = exact(q, k, v, 0.5)
    grouped = attention_error_bound(
        np.repeat(scores, 3, axis=1), np.repeat(magnitudes, 3, axis=1), v, depth=4
    ).output
    plain = attention_error_bound(scores, magnitudes, v, depth=4).output
    assert np.array_equal(grouped, np.repeat(plain, 3, axis=1))
    none = attention_error_bound(
        np.zeros((1, 2, 3, 0)), np.zeros((1, 2, 3, 0)), np.zeros((1, 1, 0, 5)), depth=4
    )
    assert none.output.shape == (1, 2, 3, 5)
    assert not none.output.any()
    assert not none.lse.any()


def test_rounding_the_scaled_query_widens_the_bound():
    q, k, v = to_float32(*inputs("normal", 0, 3, 50, 16))
    _, _, scores, magnitudes = exact(q, k, v, 0.25)
    plain = attention_error_bound(scores, magnitudes, v, depth=16)
    rounding = attention_error_bound(scores, magnitudes, v, depth=16, input_format="bfloat16")
    scaled = rounded(q * 0.2, 7)
    found, _, _, _ = exact(scaled, k, v, 1.0)
    truth, _, other, sizes = exact(q, k, v, 0.2)
    bound = attention_error_bound(other, sizes, v, depth=16, input_format="bfloat16").output
    assert np.all(rounding.output > plain.output)
    assert 0.01 < covered(np.abs(found - truth), bound) <= 1.0


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (((2, 3, 4), (2, 3, 5), (2, 4, 1)), {}, ShapeError, "scores and score_magnitudes are"),
        (((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 5, 1)), {}, ShapeError, "values are"),
        (((1, 3, 3, 4), (1, 3, 3, 4), (1, 2, 4, 1)), {}, ShapeError, "h a multiple of kv_heads"),
        (((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 4, 1)), {"depth": -1}, OptionError, "depth is a whole number"),
        (
            ((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 4, 1)),
            {"lambda_": math.nan, "statistical": True},
            OptionError,
            "lambda_",
        ),
        (
            ((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 4, 1)),
            {"output_format": "half"},
            OptionError,
            "unknown format",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, options, error, message):
    with pytest.raises(error, match=message) as caught:
        attention_error_bound(*(np.zeros(shape) for shape in arguments), **{"depth": 4, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l_format": "bf16"}, "unknown format 'bf16'"),
        ({"p_format": "fp8"}, "unknown format 'fp8'"),
        ({"key_block": 0}, "key_block is a whole number of at least 1; got 0"),
        ({"splits": -2}, "splits is a whole number of at least 1; got -2"),
        ({"order": "two-level"}, "order is one of"),
        ({"exp_ulps": 0}, "exp_ulps is a finite number above 0; got 0"),
    ],
)
def test_bad_models_are_refused_in_one_line(options, message):
    with pytest.raises(OptionError, match=message) as caught:
        CarryModel(**options)
    assert "\n" not in str(caught.value)
