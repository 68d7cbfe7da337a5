"""Calling a subject: arrays, layouts, keywords, and clear words for what is no attention output."""

import math
import warnings

import numpy as np
import pytest

import oracle
from mutants import TwoPass, plain
from softcarry.auditing._calling import KernelRaisedError, MalformedResultError, one_line, prepare
from softcarry.auditing.subject import Subject
from softcarry.errors import SubjectError


def problem():
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-4, 5, (1, 2, t, 4)) / 4.0 for t in (3, 5, 5))


def close(outcome, expected):
    # Five products and sums of size below 10 in float32 on one side, exact to 1e-15 on the other.
    np.testing.assert_allclose(outcome.output, expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(outcome.lse, expected[1], rtol=0, atol=1e-6)


def test_a_numpy_kernel_is_found_out():
    calling = prepare(Subject(TwoPass()), "float32")
    assert (calling.library, calling.returns_lse, calling.output_dtype) == ("numpy", True, "float32")
    q, k, v = problem()
    mask = np.array([[1, 1, 0, 0, 1], [1, 0, 1, 1, 1], [0, 0, 0, 1, 0]], bool)
    close(calling(q, k, v), oracle.attention(q, k, v))
    close(calling(q, k, v, mask=mask), oracle.attention(q, k, v, mask=mask))
    close(calling(q, k, v, mask=np.where(mask, 0.0, -np.inf)), oracle.attention(q, k, v, mask=mask))
    close(calling(q, k, v, causal=True, scale=0.3), oracle.attention(q, k, v, causal=True, scale=0.3))


def test_a_torch_kernel_is_found_out_and_keeps_its_names():
    import torch

    def kernel(q, k, v, *, attn_mask=None, is_causal=False):
        assert isinstance(q, torch.Tensor)
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=is_causal
        )

    calling = prepare(Subject(kernel), "bfloat16")
    assert (calling.library, calling.returns_lse, calling.output_dtype) == ("torch", False, "bfloat16")
    assert calling.causal == "top-left"
    q, k, v = problem()
    outcome = calling(q, k, v)
    assert outcome.lse is None
    assert outcome.output.shape == (1, 2, 3, 4)


def test_a_jax_kernel_is_found_out():
    import jax
    import jax.numpy as jnp

    def kernel(q, k, v):
        assert isinstance(q, jax.Array)
        return jnp.einsum(
            "bhqk,bhkd->bhqd", jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5), v
        )

    assert prepare(Subject(kernel), "float32").library == "jax"


def test_tokens_before_heads():
    def kernel(q, k, v, *, causal=False):
        assert q.shape[2] == 2
        output, lse = TwoPass()(*(np.swapaxes(x, 1, 2) for x in (q, k, v)), causal=causal)
        return np.swapaxes(output, 1, 2), np.swapaxes(lse, 1, 2)

    calling = prepare(Subject(kernel, layout="bthd"), "float32")
    q, k, v = problem()
    close(calling(q, k, v, causal=True), oracle.attention(q, k, v, causal=True))


def heads_last(q, k, v):
    return np.swapaxes(plain(*(np.swapaxes(x, 1, 2) for x in (q, k, v))), 1, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kernel", "declared", "right"), [(heads_last, "bhtd", "bthd"), (plain, "bthd", "bhtd")]
)
def test_the_other_layout_is_named(kernel, declared, right, dtype):
    assert prepare(Subject(kernel, arrays="numpy", layout=right), dtype).library == "numpy"
    with pytest.raises(SubjectError, match=rf"declare Subject\(kernel, layout='{right}'\)"):
        prepare(Subject(kernel, arrays="numpy", layout=declared), dtype)


@pytest.mark.parametrize("value", [0.0, 1.0, math.nan, math.inf])
def test_a_wrong_kernel_is_not_taken_for_one_of_the_other_layout(value):
    assert prepare(Subject(lambda q, k, v: np.full_like(q, value)), "float32").library == "numpy"


def test_a_list_of_two_arrays_is_a_pair():
    q, k, v = problem()
    close(prepare(Subject(lambda *x: list(TwoPass()(*x))), "float32")(q, k, v), oracle.attention(q, k, v))


def test_an_lse_declared_base_two_is_converted():
    kernel = TwoPass(lse=lambda m, total, scale: (m + np.log(total)) / math.log(2.0))
    q, k, v = problem()
    close(prepare(Subject(kernel, lse="2"), "float32")(q, k, v), oracle.attention(q, k, v))


@pytest.mark.parametrize("rule", ["bottom-right", "top-left"])
def test_the_alignment_of_a_causal_mask_is_read_off(rule):
    def kernel(q, k, v, *, causal=False):
        tq, tk = q.shape[2], k.shape[2]
        mask = np.tri(tq, tk, tk - tq if rule == "bottom-right" else 0, dtype=bool) if causal else None
        return TwoPass()(q, k, v, mask=mask)

    assert prepare(Subject(kernel), "float32").causal == rule
    assert prepare(Subject(kernel, causal="top-left"), "float32").causal == "top-left"


def test_a_causal_option_that_changes_nothing_is_noticed():
    def kernel(q, k, v, *, causal=False):
        return plain(q, k, v)

    assert prepare(Subject(kernel), "float32").causal == "ignored"


def test_warnings_of_a_kernel_are_not_its_errors():
    def kernel(q, k, v):
        warnings.warn("slow path", UserWarning, stacklevel=2)
        return plain(q, k, v) + 0.0 * np.log(np.zeros(1, np.float32))[0].clip(-1)

    assert prepare(Subject(kernel), "float32").library == "numpy"


def raises(q, k, v):
    msg = "no kernel image\nfor this device"
    raise RuntimeError(msg)


BAD = {
    "raises": (raises, "RuntimeError: no kernel image"),
    "takes two arguments": (lambda q, k: q, "TypeError"),
    "wrong shape": (lambda q, k, v: plain(q, k, v)[0], r"shape \(2, 64, 32\) where \(1, 2, 64, 32\)"),
    "weights in place of the output": (lambda q, k, v: q @ np.swapaxes(k, -1, -2), r"\(1, 2, 64, 64\)"),
    "nothing": (lambda q, k, v: None, "of type NoneType"),
    "a list": (lambda q, k, v: plain(q, k, v).tolist(), "of type list"),
    "integers": (lambda q, k, v: plain(q, k, v).astype(np.int32), "dtype int32"),
    "three results": (lambda q, k, v: (plain(q, k, v),) * 3, "a tuple of 3"),
    "an lse of wrong shape": (
        lambda q, k, v: (plain(q, k, v), np.zeros((1, 64), np.float32)),
        "the lse has shape",
    ),
    "panics": (lambda q, k, v: (_ for _ in ()).throw(SystemExit(3)), "SystemExit: 3"),
}


@pytest.mark.parametrize(("kernel", "words"), BAD.values(), ids=BAD)
def test_bad_subjects_are_refused_in_one_line(kernel, words):
    with pytest.raises(SubjectError, match=words) as caught:
        prepare(Subject(kernel, name="bad", arrays="numpy"), "float32")
    message = str(caught.value)
    assert "\n" not in message
    assert "subject 'bad'" in message
    assert "expected kernel(q, k, v)" in message


def test_an_undeclared_kernel_that_fails_names_every_library():
    with pytest.raises(SubjectError) as caught:
        prepare(Subject(raises), "float32")
    assert all(f"{library} arrays" in str(caught.value) for library in ("torch", "numpy", "jax"))


def test_a_reason_that_every_library_gives_is_given_once():
    with pytest.raises(SubjectError) as caught:
        prepare(Subject(lambda q, k, v: None), "float32")
    message = str(caught.value)
    assert message.count("NoneType") == 1
    assert all(f"{library} arrays" in message for library in ("torch", "numpy", "jax"))


def test_a_later_call_may_raise_or_go_wrong():
    def kernel(q, k, v):
        if k.shape[2] == 5:
            raise ValueError
        return plain(q, k, v)[:, :, :64] if k.shape[2] == 64 else np.zeros((1, 1), np.float32)

    calling = prepare(Subject(kernel), "float32")
    q, k, v = problem()
    with pytest.raises(KernelRaisedError, match="ValueError"):
        calling(q, k, v)
    with pytest.raises(MalformedResultError, match=r"shape \(1, 1\) where \(1, 2, 3, 4\)"):
        calling(q, k[:, :, :4], v[:, :, :4])


def test_a_later_call_may_return_more():
    def kernel(q, k, v):
        return plain(q, k, v) if k.shape[2] == 64 else (plain(q, k, v),) * 3

    with pytest.raises(MalformedResultError, match="a tuple of 3"):
        prepare(Subject(kernel), "float32")(*problem())


def test_interrupting_is_not_the_kernels_error():
    def kernel(q, k, v):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(Subject(kernel), "float32")


def test_long_errors_are_cut():
    assert len(one_line(ValueError("x" * 1000))) == 160
    assert one_line(ValueError()) == "ValueError"


def test_every_option_goes_under_the_kernels_own_keyword():
    seen = {}

    def kernel(
        q, k, v, *, logits_soft_cap=None, window_size=None, kv_lengths=None, dropout_p=0.0, sinks=None
    ):
        seen.update(cap=logits_soft_cap, window=window_size, lengths=kv_lengths, p=dropout_p, sinks=sinks)
        return plain(q, k, v)

    calling = prepare(Subject(kernel, arrays="numpy"), "float16")
    calling(
        *problem(),
        softcap=2.0,
        window=(3, None),
        kv_lengths=np.array([4]),
        dropout=0.25,
        sinks=np.array([0.5, 1.0]),
    )
    assert (seen["cap"], seen["window"], seen["p"]) == (2.0, (3, None), 0.25)
    assert seen["lengths"].dtype.kind == "i"
    assert seen["sinks"].dtype == np.float16
    calling(*problem(), softcap=None, window=None)
    assert (seen["cap"], seen["window"]) == (None, None)


def test_arrays_may_be_arranged_and_masks_keep_their_shape():
    seen = {}

    def kernel(q, k, v, *, mask=None):
        seen.update(strides=q.strides, mask=np.shape(mask))
        return plain(q, k, v)

    calling = prepare(Subject(kernel, arrays="numpy"), "float32")
    q, k, v = problem()
    mask = np.ones((1, 1, 1, 5), bool)
    calling(q, k, v, mask=mask)
    whole = dict(seen)
    calling(q, k, v, mask=mask, broadcast_mask=False, arrange=np.asfortranarray)
    assert whole["mask"] == (1, 2, 3, 5)
    assert seen["mask"] == (1, 1, 1, 5)
    assert seen["strides"] != whole["strides"]


def test_shapes_that_do_not_fit_can_be_attempted():
    calling = prepare(Subject(TwoPass(), arrays="numpy"), "float32")
    q, k, v = problem()
    with pytest.raises(KernelRaisedError, match="ValueError"):
        calling.attempt(q, k[:, :, :4], v)
    output, lse = calling.attempt(q[:, :1], k, v)
    assert output.shape == (1, 2, 3, 4)
    assert lse.shape == (1, 2, 3)


def test_a_mask_may_lie_elsewhere_in_memory_too():
    seen = []

    def kernel(q, k, v, mask=None):
        seen.append(None if mask is None else mask.strides)
        return plain(q, k, v)

    q, k, v = problem()
    mask = np.ones((3, k.shape[2]), bool)
    prepare(Subject(kernel, arrays="numpy"), "float32")(
        q, k, v, mask=mask, broadcast_mask=False, arrange_mask=np.asfortranarray
    )
    assert seen == [None, (1, 3)]


def test_an_exception_whose_text_can_not_be_had_is_named_by_its_type():
    class OddError(Exception):
        def __str__(self):
            raise RuntimeError

    assert one_line(OddError()) == "OddError"
