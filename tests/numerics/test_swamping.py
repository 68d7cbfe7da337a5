import math

import numpy as np
import pytest

from softcarry.errors import OptionError, SoftcarryError
from softcarry.numerics._formats import FloatFormat
from softcarry.numerics.swamping import (
    carry_error,
    drop_index,
    envelope_limit,
    participation_number,
    stall_level,
    swamped_weight,
)


def rounded(x, t, mode="nearest-even", uniform=None):
    """Oracle: x > 0 to t stored bits, exponents unbounded."""
    fraction, exponent = np.frexp(x)
    scaled = np.ldexp(fraction, t + 1)
    steps = {
        "nearest-even": lambda: np.rint(scaled),
        "nearest-away": lambda: np.floor(scaled + 0.5),
        "toward-zero": lambda: np.floor(scaled),
        "down": lambda: np.floor(scaled),
        "up": lambda: np.ceil(scaled),
        "stochastic": lambda: np.floor(scaled) + (uniform < scaled - np.floor(scaled)),
    }[mode]()
    return np.ldexp(steps, exponent - t - 1)


def sequential(terms, t, mode="nearest-even", rng=None):
    """Oracle: sums of the rows of (rows, n), rounded after every addition."""
    total = np.zeros(terms.shape[0])
    for term in terms.T:
        total = rounded(total + term, t, mode, None if rng is None else rng.random(total.shape))
    return total


@pytest.mark.parametrize(
    ("name", "index"),
    [("bfloat16", 256), ("float16", 2048), ("TF32", 2048), ("float32", 2**24), ("E4M3", 16), ("E5M2", 8)],
)
def test_drop_index_of_the_formats(name, index):
    assert drop_index(name) == index


@pytest.mark.parametrize(("name", "t"), [("bfloat16", 7), ("E4M3", 3), ("E5M2", 2), ("float16", 10)])
def test_terms_after_the_drop_index_are_lost_and_none_before(name, t):
    index = drop_index(name)
    assert sequential(np.ones((1, index)), t)[0] == index
    assert sequential(np.ones((1, index + 50)), t)[0] == index


@pytest.mark.parametrize("mode", ["nearest-even", "nearest-away", "toward-zero", "down"])
@pytest.mark.parametrize("block", [1, 3, 5, 16, 48, 96, 127])
@pytest.mark.parametrize("t", [2, 3, 7])
def test_stall_level_is_where_a_running_sum_stops(mode, block, t):
    total = 0.0
    while True:
        moved = float(rounded(np.float64(total + block), t, mode))
        if moved == total:
            break
        total = moved
    assert stall_level(FloatFormat("f", 8, t), mode, block) == total


def test_a_power_of_two_block_multiplies_the_level():
    assert stall_level("bfloat16", key_block=64) == 64 * 256
    assert stall_level("bfloat16", "toward-zero", key_block=64) == 64 * 256
    assert stall_level("bfloat16", "nearest-away", key_block=64) == 64 * 512
    assert stall_level("bfloat16", key_block=64, lanes=4) == 4 * 64 * 256


def test_stochastic_and_upward_sums_pass_the_level():
    assert stall_level("E4M3", "stochastic") == stall_level("E4M3", "up") == math.inf
    rng = np.random.default_rng(0)
    assert sequential(np.ones((50, 200)), 3, "stochastic", rng).mean() > 10 * drop_index("E4M3")
    assert sequential(np.ones((1, 200)), 3, "up")[0] >= 200


@pytest.mark.parametrize("block", [1, 8])
def test_envelope_limit_is_the_last_n_inside(block):
    limit = envelope_limit("bfloat16", block)
    assert limit / block < 256 <= (limit + 1) / block


@pytest.mark.parametrize("block", [1, 2, 16, 64])
@pytest.mark.parametrize("updates", [1, 100, 255, 256, 257, 1024])
def test_predicted_error_of_equal_terms_is_exact(block, updates):
    total = sequential(np.full((1, updates), float(block)), 7)[0]
    expected = 1.0 - total / (updates * block)
    # Both are quotients of whole numbers below 2^53: they differ by the rounding of a few divisions.
    assert carry_error(updates * block, block, "bfloat16") == pytest.approx(expected, abs=8 * 2.0**-53)


def softmax_terms(rng, rows, n, sd):
    scores = sd * rng.standard_normal((rows, n))
    return np.exp(scores - scores.max(axis=1, keepdims=True))


@pytest.mark.parametrize("updates", [16, 64, 128, 256, 512, 1024, 2048, 8192])
@pytest.mark.parametrize(("terms", "sd"), [("uniform", 1.0), ("normal", 0.5), ("normal", 1.0)])
def test_predicted_error_lies_among_the_errors_of_rows(terms, sd, updates):
    rng, n, rows = np.random.default_rng(updates), 8192, 80
    x = rng.random((rows, n)) if terms == "uniform" else softmax_terms(rng, rows, n, sd)
    total = sequential(x.reshape(rows, updates, -1).sum(axis=2), 7)
    errors = np.abs(total / x.sum(axis=1) - 1.0)
    low, high = np.quantile(errors, [0.05, 0.95])
    assert low <= carry_error(n, n // updates, "bfloat16", terms=terms, sd=sd) <= high


@pytest.mark.parametrize(("block", "published"), [(32, 0.023), (8, 0.38), (1, 0.73)])
def test_published_errors_of_a_bfloat16_carry_are_those_of_normal_scores(block, published):
    """The seed's figures at n = 8192: among the errors of rows, and the prediction with them."""
    x = softmax_terms(np.random.default_rng(5), 200, 8192, 1.0)
    errors = np.abs(sequential(x.reshape(200, -1, block).sum(axis=2), 7) / x.sum(axis=1) - 1.0)
    low, high = np.quantile(errors, [0.01, 0.99])
    assert low <= published <= high
    assert low <= carry_error(8192, block, "bfloat16", terms="normal") <= high


def test_published_errors_of_uniform_terms():
    # 50 % at 1024 and 97 % at 16384, to the digits given.
    errors = carry_error([1024, 16384], 1, "bfloat16", terms="uniform")
    assert np.round(errors, 2).tolist() == [0.5, 0.97]


def test_prediction_is_flat_inside_the_envelope_and_climbs_outside():
    blocks = 2 ** np.arange(14)
    errors = carry_error(8192, blocks, "bfloat16", terms="uniform")
    updates = 8192 // blocks
    # Without drift the error is that of at most 256 roundings of mean zero, √256·u, and u = 2^−8.
    assert np.all(errors[updates <= 256] < math.sqrt(256) * 2.0**-8)
    assert np.all(np.diff(errors[updates >= 512][::-1]) > 0)
    assert errors[0] > 0.9


def test_stochastic_rounding_grows_as_the_square_root_and_then_levels_off():
    """Up to 1/u updates it is √n·u; from there each lost term pays a whole step with probability a/q."""
    uniform = carry_error([64, 256], 1, "bfloat16", terms="uniform", rounding="stochastic")
    assert uniform[1] / uniform[0] == pytest.approx(2.0, rel=0.05)
    # The variance of an update is q·a − a², so at l = n·a = 2^K that of the sum is Σ_e 2^e·2u·2^e − n·a²
    # = 2u/3·l² − n·a².
    n, u = 2**18, 2.0**-8
    assert carry_error(n, 1, "bfloat16", rounding="stochastic") == pytest.approx(
        math.sqrt(2 * u / 3), rel=1 / n / (2 * u / 3)
    )


def test_predicted_error_of_stochastic_rounding_is_that_of_rows():
    rng = np.random.default_rng(1)
    total = sequential(np.ones((400, 1024)), 7, "stochastic", rng)
    squares = (total / 1024 - 1.0) ** 2
    # The mean of 400 squares lies within four standard errors of what it estimates.
    assert abs(carry_error(1024, 1, "bfloat16", rounding="stochastic") ** 2 - squares.mean()) < (
        4 * squares.std() / 20
    )


def test_directed_rounding_drifts():
    down = carry_error(200, 1, "bfloat16", terms="uniform", rounding="toward-zero")
    assert down > 10 * carry_error(200, 1, "bfloat16", terms="uniform")


def test_a_sum_beyond_the_largest_number_is_infinite_and_none_is_zero():
    assert carry_error(2**20, 2**10, "E4M3") == math.inf
    assert carry_error(10**6, 1, "bfloat16", rounding="up") > 1.0
    assert carry_error(0, 1, "bfloat16") == 0.0


def test_shapes_of_the_prediction():
    assert isinstance(carry_error(64, 1, "bfloat16"), float)
    assert carry_error([[64], [128]], [1, 2, 4], "bfloat16").shape == (2, 3)


def test_participation_number():
    assert participation_number(np.ones(7)) == 7.0
    assert participation_number([0.0, 3.0, 0.0]) == 1.0
    # Squares of 1e300 overflow, and of 1e−300 underflow, unless the scale is taken out.
    assert participation_number([1e300, 1e300]) == participation_number([1e-300, 1e-300]) == 2.0
    assert participation_number(np.zeros(4)) == participation_number(np.zeros(0)) == 0.0
    assert participation_number([-math.inf, -math.inf], scores=True) == 0.0
    assert math.isnan(participation_number([math.nan, 1.0]))
    assert math.isnan(participation_number([math.inf, 1.0], scores=True))
    assert participation_number(np.ones((3, 5)), axis=0).tolist() == [3.0] * 5
    scores = np.random.default_rng(0).standard_normal(64)
    p = np.exp(scores)
    # Sums of 64 and divisions in float64 on both sides.
    assert participation_number(scores + 1e3, scores=True) == pytest.approx(
        p.sum() ** 2 / (p**2).sum(), rel=1e3 * 2.0**-50
    )


def test_swamped_weight_is_what_a_stalled_sum_loses():
    # One term of 256 and then ones: in bfloat16 every one of them is lost.
    p = np.concatenate([[256.0], np.ones(100)])
    assert sequential(p[None], 7)[0] == 256.0
    assert swamped_weight(p, "bfloat16") == pytest.approx(100 / 356, abs=2.0**-52)
    assert swamped_weight(p, "float16") == 0.0
    assert swamped_weight(np.zeros(3), "bfloat16") == 0.0
    assert math.isnan(swamped_weight([math.nan, 1.0], "bfloat16"))
    assert swamped_weight(np.zeros((2, 600)), "bfloat16", scores=True).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: drop_index("bf16"), "unknown format 'bf16'"),
        (lambda: stall_level("bfloat16", "nearest"), "rounding is one of .* got 'nearest'"),
        (lambda: stall_level("bfloat16", key_block=0), "key_block is a whole number of at least 1; got 0"),
        (lambda: stall_level("bfloat16", lanes=1.5), "lanes is a whole number of at least 1; got 1.5"),
        (lambda: carry_error(-1, 1), "n is a whole number of at least 0; got -1"),
        (
            lambda: carry_error(8, 1, terms="gauss"),
            "terms is one of 'equal', 'uniform', 'normal'; got 'gauss'",
        ),
        (lambda: carry_error(8, 1, sd=0.0), "sd is a finite number above 0; got 0.0"),
        (lambda: participation_number([-1.0, 2.0]), "weights are 0 or more; got -1.0; pass scores=True"),
        (lambda: participation_number(1.0), "got a scalar"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(SoftcarryError, match=message) as caught:
        call()
    assert isinstance(caught.value, OptionError)
    assert "\n" not in str(caught.value)
