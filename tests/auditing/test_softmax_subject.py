"""A softmax as a subject: what it is given and what counts is its own, and wrong ones are found."""

import ml_dtypes
import numpy as np
import pytest

import oracle
import softcarry as sc
from examining import examine, messages
from softcarry.auditing._calling import MalformedResultError, prepare
from softcarry.auditing.softmax_subject import softmax_subject
from softcarry.auditing.subject import Subject
from softcarry.errors import OptionError, SubjectError

DTYPES = ("float64", "float32", "bfloat16", "float16")


def sound(x):
    """Safe softmax in float64, rounded once; rows without keys become 0."""
    wide = x.astype(np.float64)
    m = wide.max(axis=-1, keepdims=True, initial=-np.inf)
    terms = np.exp(wide - np.where(np.isneginf(m), 0.0, m))
    total = terms.sum(axis=-1, keepdims=True)
    return (terms / np.where(total == 0.0, 1.0, total)).astype(x.dtype)


def narrow_sum(x):
    terms = np.exp(x.astype(np.float32) - x.max(axis=-1, keepdims=True).astype(np.float32))
    return (terms / np.add.accumulate(terms.astype(x.dtype), axis=-1)[..., -1:].astype(np.float32)).astype(
        x.dtype
    )


def no_maximum(x):
    terms = np.exp(x.astype(np.float32))
    return (terms / terms.sum(axis=-1, keepdims=True)).astype(x.dtype)


def base_2(x):
    return sound(x * x.dtype.type(np.log(2.0)))


def last_key_dropped(x):
    weights = sound(x)
    weights[..., -1] = 0.0
    return weights


def unmasked(x):
    lowest = np.float32(-1e4)
    return sound(np.where(np.isneginf(x), lowest, x.astype(np.float32))).astype(x.dtype)


@pytest.mark.parametrize("kind", ["none", "boolean", "additive"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_around_it_is_attention(dtype, kind):
    rng = np.random.default_rng(1)
    # Scores of up to 8 products of eighths, scaled by 1/2, have at most 7 bits: no dtype rounds them.
    q, k = (rng.integers(-1, 2, (1, 2, t, 8)) / 8.0 for t in (4, 6))
    v = rng.integers(-8, 9, (1, 2, 6, 8)) / 8.0
    mask = rng.random((4, 6)) < 0.6
    mask[:, 0], mask[2] = True, False
    options = {
        "none": {},
        "boolean": {"mask": mask},
        "additive": {"mask": np.where(mask, 0.0, -np.inf)},
    }[kind]
    calling = prepare(softmax_subject(sound, arrays="numpy", dtypes=DTYPES), dtype)
    output = calling(q, k, v, scale=0.5, **options).output
    exact, _ = oracle.attention(q, k, v, scale=0.5, mask=mask if options else None)
    # Six weights, each rounded once, times values of at most 1.
    u = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    assert np.abs(output - exact).max() <= 8 * u
    assert calling.output_dtype == "float64"


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_rounded_once_to_the_dtype(dtype):
    seen = []

    def recording(x):
        seen.append(x)
        return sound(x)

    # One product just above a tie of bfloat16, which float32 on the way would put on the tie.
    score = 1.0 + 2.0**-8 + 2.0**-40
    kernel = softmax_subject(recording, arrays="numpy", dtypes=dtype).kernel
    kernel._weights(np.full((1, 1, 1, 1), score), dtype)
    expected = {
        "float64": score,
        "float32": 1.0 + 2.0**-8,
        "bfloat16": 1.0 + 2.0**-7,
        "float16": 1.0 + 2.0**-8,
    }
    assert float(seen[-1].item()) == expected[dtype]


def test_values_behind_a_mask_do_not_count_unless_the_softmax_weighs_them():
    q, k = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1))
    v = np.array([[[[1.0], [np.nan]]]])
    mask = np.array([[[[True, False]]]])
    assert softmax_subject(sound, arrays="numpy").kernel(q, k, v, mask=mask).item() == 1.0
    leaking = softmax_subject(lambda x: np.full_like(x, 0.5), name="leaking", arrays="numpy")
    assert np.isnan(leaking.kernel(q, k, v, mask=mask).item())
    assert np.isnan(softmax_subject(sound, arrays="numpy").kernel(q, k, v).item())


def test_a_nan_in_one_column_of_values_leaves_the_others_as_they_are_to_the_bit():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, t, 8)).astype(np.float32) for t in (3, 200, 200))
    kernel = softmax_subject(sound, arrays="numpy").kernel
    plain = kernel(q, k, v)
    v[0, 0, 77, 2] = np.nan
    poisoned = kernel(q, k, v)
    assert np.isnan(poisoned[..., 2]).all()
    assert np.array_equal(np.delete(poisoned, 2, axis=-1), np.delete(plain, 2, axis=-1))


def test_a_score_that_overflows_the_dtype_is_not_asked_of_the_softmax():
    subject = softmax_subject(sound, arrays="numpy", dtypes="float16")
    q = np.full((1, 1, 1, 1), 300.0, np.float16)
    with pytest.raises(SubjectError, match="a score of 90000 overflows float16"):
        subject.kernel(q, q, q, scale=1.0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x[..., :1], r"returned shape \(1, 1, 1, 1\) for scores of shape \(1, 1, 1, 2\)"),
        (lambda x: [1.0], "returned list where an array of floats"),
        (lambda x: x > 0, "returned bool where an array of floats"),
    ],
)
def test_what_is_no_array_of_weights_is_named(returned, message):
    kernel = softmax_subject(returned, name="wrong", arrays="numpy").kernel
    x = np.ones((1, 1, 2, 1), np.float32)
    with pytest.raises(MalformedResultError, match=message):
        kernel(x[:, :, :1], x, x)


def test_a_shape_that_changes_with_the_length_is_a_finding():
    def squeezed(x):
        return sound(x)[..., 0] if x.shape[-1] == 1 else sound(x)

    examination = examine(softmax_subject(squeezed, arrays="numpy"), "TAIL")
    assert any("malformed result: the softmax returned shape" in message for message in messages(examination))


def test_the_library_is_found_by_trying():
    torch = pytest.importorskip("torch")

    def of_torch(x):
        return torch.softmax(x, dim=-1)

    subject = softmax_subject(of_torch, dtypes=("float32", "bfloat16"))
    q = np.ones((1, 1, 2, 4), ml_dtypes.bfloat16)
    assert subject.name == "of_torch"
    assert np.array_equal(subject.kernel(q, q, q), np.ones((1, 1, 2, 4)))


def test_what_no_library_takes_is_said():
    def refuses(x):
        raise TypeError

    q = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(SubjectError, match="takes no float32 arrays of"):
        softmax_subject(refuses).kernel(q, q, q)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"function": 3}, SubjectError, "is a callable function"),
        ({"function": Subject}, SubjectError, "is a callable function"),
        ({"function": sound, "arrays": "mlx"}, OptionError, "one of torch, numpy, jax"),
        ({"function": sound, "device": "cuda"}, OptionError, "a device goes with arrays='torch' or 'jax'"),
        ({"function": sound, "dtypes": "int8"}, OptionError, "a dtype"),
    ],
)
def test_other_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        softmax_subject(**arguments)


@pytest.mark.parametrize("check", ["EMPTY", "TAIL", "RANGE", "REF"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [sound, sc.softmax], ids=["plain", "softcarry"])
def test_sound_softmaxes_are_clean(function, dtype, check):
    examination = examine(softmax_subject(function, arrays="numpy", dtypes=dtype), check, dtype=dtype)
    assert messages(examination) == []
    assert examination.calls


WRONG = {
    "no maximum": (no_maximum, "RANGE", "float32", "equal scores of"),
    "base 2": (base_2, "REF", "float32", "times the bound"),
    "last key dropped": (last_key_dropped, "TAIL", "float32", "wrong for"),
    "finite fill": (unmasked, "EMPTY", "float32", "where 0 is promised"),
    "narrow sum": (narrow_sum, "GROWTH", "bfloat16", "the running sum l stops at 256 keys"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_softmax_is_found(name, monkeypatch):
    function, check, dtype, message = WRONG[name]
    if check == "GROWTH":  # the sum stops long before
        monkeypatch.setattr(
            "softcarry.auditing.probes.growth.LENGTHS", (64, 96, 128, 192, 256, 384, 512, 1024)
        )
    examination = examine(softmax_subject(function, arrays="numpy", dtypes=dtype), check, dtype=dtype)
    assert any(message in found for found in messages(examination)), messages(examination)


def test_shapes_that_do_not_fit_are_refused_here_and_are_no_fault_of_the_softmax():
    examination = examine(softmax_subject(sc.softmax, arrays="numpy"), "ARGS", isolate=True)
    assert examination.findings == []
    assert examination.calls > 0
