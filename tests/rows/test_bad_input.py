"""What the row functions refuse: by which error, in one line, before anything is written."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import softcarry as sc
from row_cases import KINDS, as_kind
from softcarry.errors import DTypeError, OptionError, ShapeError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
TARGETS = np.array([0, 1, 2])

CALLS = {
    "logsumexp": sc.logsumexp,
    "softmax": sc.softmax,
    "log_softmax": sc.log_softmax,
    "softmax_topk": functools.partial(sc.softmax_topk, k=1),
    "logprobs": functools.partial(sc.logprobs, top_k=1),
}
CHOOSING = {
    "softmax_topk": lambda x, k, **options: sc.softmax_topk(x, k, **options),
    "logprobs": lambda x, k, **options: sc.logprobs(x, top_k=k, **options),
}
WRITING = {
    "logsumexp": (sc.logsumexp, (3,)),
    "softmax": (sc.softmax, (3, 4)),
    "log_softmax": (sc.log_softmax, (3, 4)),
    "logprobs": (lambda x, **options: sc.logprobs(x, as_targets(x), **options), (3,)),
}


def as_targets(x):
    return torch.from_numpy(TARGETS) if isinstance(x, torch.Tensor) else TARGETS


def refused(error, call, *words):
    """Fail unless the call raises exactly this error, in one line that has the words."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in message
    assert message == message.strip() != ""
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
class TestScores:
    @pytest.mark.parametrize(
        "dtype", ["complex64", "complex128", "object", "U3", "S3", "datetime64[s]", "timedelta64[s]", "V8"]
    )
    def test_dtypes_of_numpy_that_are_no_scores(self, call, dtype):
        refused(DTypeError, lambda: call(np.zeros((3, 4), dtype)))

    def test_the_long_double_is_refused_by_name(self, call):
        if np.dtype(np.longdouble) != np.float64:
            refused(DTypeError, lambda: call(np.zeros((3, 4), np.longdouble)), np.dtype(np.longdouble).name)

    @pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4"])
    def test_formats_of_8_bits_and_less(self, call, name):
        refused(DTypeError, lambda: call(np.zeros((3, 4), getattr(ml_dtypes, name))), name)

    @pytest.mark.parametrize("name", ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2"])
    def test_dtypes_of_torch_that_are_no_scores(self, call, name):
        refused(DTypeError, lambda: call(torch.zeros((3, 4)).to(getattr(torch, name))), name)

    def test_what_is_no_array(self, call):
        for x in ([1.0, 2.0], (1.0, 2.0), 1.0, "scores", range(3), iter([1.0]), memoryview(b"12")):
            refused(DTypeError, lambda x=x: call(x), type(x).__name__)
        refused(DTypeError, lambda: call(None), "None")

    def test_tensors_that_need_a_gradient(self, call):
        x = torch.zeros(3, 4, requires_grad=True)
        with pytest.raises(sc.SoftcarryError, match=r"detach|no_grad") as caught:
            call(x)
        assert "\n" not in str(caught.value)
        with torch.no_grad():
            call(x)
        call(x.detach())

    def test_tensors_that_are_not_in_memory_as_a_plain_array(self, call):
        for x in (torch.zeros(3, 4, device="meta"), torch.eye(4).to_sparse()):
            with pytest.raises(sc.SoftcarryError) as caught:
                call(x)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", KINDS)
    def test_axes_that_are_not_there(self, call, kind):
        for axis in (2, -3, 100, 2**40):
            refused(OptionError, lambda axis=axis: call(as_kind(kind, X), axis=axis), "axis", str(axis))
        for axis in (1.0, "1", None, (0, 1), [0], np.array([0, 1])):
            refused(OptionError, lambda axis=axis: call(as_kind(kind, X), axis=axis), "axis")

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_number_without_axes(self, call, kind):
        for axis in (-1, 0):
            with pytest.raises((OptionError, ShapeError)) as caught:
                call(as_kind(kind, np.zeros((), np.float32)), axis=axis)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", KINDS)
    def test_result_dtypes_that_hold_no_result(self, call, kind):
        x = as_kind(kind, X)
        for dtype in ("int32", "bool", "complex64", "float8_e4m3fn", "no such thing", 7, object):
            refused(DTypeError, lambda dtype=dtype: call(x, dtype=dtype))
        narrow = [X, X.astype(np.float16), X.astype(ml_dtypes.bfloat16)]
        for values in narrow:
            refused(DTypeError, lambda values=values: call(as_kind(kind, values), dtype="float64"), "float64")

    def test_integer_axes_of_numpy_are_taken(self, call):
        call(X, axis=np.int64(1))
        call(X, axis=np.uint8(0))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_topk"])
def test_other_words_for_empty(name):
    for empty in ("none", "", None, 0, "NaN", True):
        refused(OptionError, lambda empty=empty: CALLS[name](X, empty=empty), "empty", "zero", "nan")


@pytest.mark.parametrize("call", CHOOSING.values(), ids=CHOOSING)
@pytest.mark.parametrize("kind", KINDS)
def test_k_that_can_not_be_had(call, kind):
    x = as_kind(kind, X)
    for k in (0, -1, 5, 2**63, 2**70):
        refused(OptionError, lambda k=k: call(x, k), "k", str(k))
    refused(OptionError, lambda: call(x, 4, axis=0), "3", "4")
    for k in (1.0, "1", [1], np.array([1, 2]), True):
        refused(OptionError, lambda k=k: call(x, k), "k")
    refused(OptionError, lambda: call(as_kind(kind, np.zeros((3, 0), np.float32)), 1), "1", "0")
    call(x, np.int64(4))


def test_offsets_that_are_no_index():
    wrong: list[Any] = [-1, 1.0, "0", None, 2**63, 2**63 - 3]
    for offset in wrong:
        refused(OptionError, lambda offset=offset: sc.softmax_topk(X, 2, offset=offset), "offset")


def test_k_is_needed():
    refused(OptionError, lambda: CHOOSING["softmax_topk"](X, None), "k")


@pytest.mark.parametrize("kind", KINDS)
class TestTargets:
    def test_neither_targets_nor_top(self, kind):
        refused(OptionError, lambda: sc.logprobs(as_kind(kind, X)), "targets", "top_k")

    def test_out_of_range(self, kind):
        x = as_kind(kind, X)
        for wrong in (4, -1, 100, 2**40, -(2**40)):
            for place in range(3):
                targets = TARGETS.copy()
                targets[place] = wrong
                call = functools.partial(sc.logprobs, x, as_kind(kind, targets))
                refused(OptionError, call, "targets", str(wrong))
                refused(OptionError, functools.partial(sc.logprobs, x, as_kind(kind, targets[:, None])))
        refused(OptionError, lambda: sc.logprobs(x, as_kind(kind, np.full(4, 3)), axis=0), "3")
        nothing = as_kind(kind, np.zeros((3, 0), np.float32))
        refused(OptionError, lambda: sc.logprobs(nothing, as_kind(kind, TARGETS)))

    def test_one_wrong_target_among_many(self, kind):
        x = as_kind(kind, np.zeros((5000, 3), np.float32))
        targets = np.zeros(5000, np.int64)
        targets[4321] = 3
        refused(OptionError, lambda: sc.logprobs(x, as_kind(kind, targets)), "3")

    def test_of_a_dtype_that_is_no_index(self, kind):
        x = as_kind(kind, X)
        for dtype in ("float32", "float64", "bool", "complex64"):
            refused(DTypeError, lambda dtype=dtype: sc.logprobs(x, as_kind(kind, TARGETS.astype(dtype))))

    def test_that_are_no_integers_at_all(self, kind):
        for targets in ("012", ["0", "1", "2"], [0.0, 1.0, 2.0], {0, 1, 2}, 1.0, True):
            refused(DTypeError, lambda targets=targets: sc.logprobs(as_kind(kind, X), targets))

    def test_of_a_shape_that_fits_no_row(self, kind):
        for shape in ((2,), (4,), (3, 1, 1), (), (4, 2), (1,), (2, 3)):
            targets = as_kind(kind, np.zeros(shape, np.int64))
            refused(ShapeError, lambda targets=targets: sc.logprobs(as_kind(kind, X), targets), str(shape))

    def test_without_values(self, kind):
        targets = torch.zeros(3, dtype=torch.int64, device="meta")
        with pytest.raises(sc.SoftcarryError, match="targets"):
            sc.logprobs(as_kind(kind, X), targets)

    def test_of_unsigned_integers_beyond_int64(self, kind):
        if kind == "numpy":
            targets = np.array([0, 1, 2**63 + 1], np.uint64)
            refused(OptionError, lambda: sc.logprobs(X, targets), str(2**63 + 1))

    def test_out_without_targets(self, kind):
        out = as_kind(kind, np.zeros((3, 2), np.float32))
        with pytest.raises(sc.SoftcarryError, match="out"):
            sc.logprobs(as_kind(kind, X), top_k=2, out=out)
        assert (out == 0).all()


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("kind", KINDS)
class TestOut:
    def check(self, name, kind, error, out, *words, x=None, **options):
        """Fail unless the call is refused and every byte of out is what it was."""
        call, _ = WRITING[name]
        before = out.copy() if isinstance(out, np.ndarray) else None
        given = as_kind(kind, out) if isinstance(out, np.ndarray) else out
        refused(error, lambda: call(as_kind(kind, X) if x is None else x, out=given, **options), *words)
        if before is not None:
            np.testing.assert_array_equal(out, before)

    def test_of_another_shape(self, name, kind):
        _, shape = WRITING[name]
        wrong = [(), (1,), (*shape, 1), (1, *shape), (2, *shape[1:]), (*shape[:-1], 5), (*shape[::-1], 2)]
        for other in wrong:
            self.check(name, kind, ShapeError, np.full(other, 7, np.float32), str(other), str(shape))

    def test_of_another_dtype(self, name, kind):
        _, shape = WRITING[name]
        for dtype in ("float64", "int32", "bool", "complex64"):
            self.check(name, kind, DTypeError, np.ones(shape, dtype), dtype)
        both = np.full(shape, 7, np.float16)
        self.check(name, kind, DTypeError, both, "float16", dtype="float32")

    def test_of_another_kind(self, name, kind):
        _, shape = WRITING[name]
        other = np.zeros(shape, np.float32)
        if kind == "numpy":
            other = torch.from_numpy(other)
            call = functools.partial(WRITING[name][0], X, out=other)
        else:
            call = functools.partial(WRITING[name][0], torch.from_numpy(X), out=other)
        refused(DTypeError, call)
        for wrong in ([0.0] * 3, 1, "out", (other,)):
            refused(DTypeError, lambda wrong=wrong: WRITING[name][0](as_kind(kind, X), out=wrong))

    def test_over_the_scores(self, name, kind):
        _, shape = WRITING[name]
        size = int(np.prod(shape))
        memory = np.arange(64, dtype=np.float32)
        values = memory[20:32].reshape(3, 4)
        for start in (20, 20 - size + 1, 31, 22):
            out = memory[start : start + size].reshape(shape)
            before = memory.copy()
            x, given = as_kind(kind, values), as_kind(kind, out)
            refused(OptionError, lambda x=x, given=given: WRITING[name][0](x, out=given), "out")
            np.testing.assert_array_equal(memory, before)
        for start in (20 - size, 32):
            out = memory[start : start + size].reshape(shape)
            assert WRITING[name][0](as_kind(kind, values), out=as_kind(kind, out)) is not None

    def test_over_narrow_scores_that_share_bytes(self, name, kind):
        _, shape = WRITING[name]
        memory = np.zeros(64, np.float32)
        values = memory.view(np.float16)[30:42].reshape(3, 4)
        out = memory[15 : 15 + int(np.prod(shape))].reshape(shape)
        call = functools.partial(WRITING[name][0], as_kind(kind, values), out=as_kind(kind, out))
        refused(OptionError, call, "out")
        assert not memory.any()

    def test_over_itself(self, name, kind):
        _, shape = WRITING[name]
        point = np.full(1, 7, np.float32)
        out = np.lib.stride_tricks.as_strided(point, shape, (0,) * len(shape))
        given = as_kind(kind, point).expand(shape) if kind == "torch" else out
        refused(OptionError, lambda: WRITING[name][0](as_kind(kind, X), out=given), "out")
        assert point[0] == 7

    def test_over_itself_by_windows(self, name, kind):
        _, shape = WRITING[name]
        memory = np.full(64, 7, np.float32)
        if len(shape) == 2:
            out = np.lib.stride_tricks.as_strided(memory, shape, (8, 4))
            call = functools.partial(WRITING[name][0], as_kind(kind, X), out=as_kind(kind, out))
            refused(OptionError, call, "out")
            assert (memory == 7).all()

    def test_that_may_not_be_written(self, name, kind):
        _, shape = WRITING[name]
        if kind == "numpy":
            out = np.full(shape, 7, np.float32)
            out.flags.writeable = False
            refused(OptionError, lambda: WRITING[name][0](X, out=out), "out")
        else:
            out = torch.full(shape, 7.0, requires_grad=True)
            with pytest.raises(sc.SoftcarryError):
                WRITING[name][0](torch.from_numpy(X), out=out)
        assert (out == 7).all()

    def test_is_untouched_when_something_else_is_refused(self, name, kind):
        _, shape = WRITING[name]
        self.check(name, kind, OptionError, np.full(shape, 7, np.float32), "axis", axis=5)
        bad = X.astype(np.complex64)
        self.check(name, kind, DTypeError, np.full(shape, 7, np.float32), x=as_kind(kind, bad))


def test_wrong_targets_leave_out_untouched():
    out = np.full(3, 7, np.float32)
    refused(OptionError, lambda: sc.logprobs(X, np.array([0, 1, 4]), out=out), "4")
    refused(OptionError, lambda: sc.logprobs(X, TARGETS, top_k=2, out=out), "top_k", "out")
    assert (out == 7).all()


def test_interleaved_but_disjoint_memory_is_taken():
    """Scores and out of every second place: their ranges of memory cross, their elements do not."""
    memory = np.zeros((3, 8), np.float32)
    memory[:, ::2] = X
    assert sc.softmax(memory[:, ::2], out=memory[:, 1::2]) is not None
    np.testing.assert_array_equal(memory[:, ::2], X)
    np.testing.assert_array_equal(memory[:, 1::2], sc.softmax(X))


def test_masked_arrays_are_refused():
    """Their mask would be ignored in silence."""
    masked = np.ma.masked_array(X, X > 2)
    for call in CALLS.values():
        with pytest.raises(DTypeError, match="mask"):
            call(masked)


def test_tensors_that_are_read_negated_are_read_so():
    """The imaginary part of a conjugate keeps the memory as it was, and a bit that says so."""
    x = torch.complex(torch.from_numpy(X), torch.from_numpy(X)).conj().imag
    assert x.is_neg()
    np.testing.assert_array_equal(sc.softmax(x).numpy(), sc.softmax(-X))
    out = torch.zeros(3, 4, dtype=torch.complex64).conj().imag
    with pytest.raises(DTypeError, match=r"neg|bit|conj"):
        sc.softmax(torch.from_numpy(X), out=out)


def test_bytes_in_the_other_order():
    for dtype in (">f8", ">f4", ">f2", "<f4", ">i4"):
        other = X.astype(dtype)
        assert sc.logsumexp(other).dtype.isnative
        np.testing.assert_array_equal(sc.logsumexp(other), sc.logsumexp(other.astype(dtype[1:])))
    np.testing.assert_array_equal(sc.logprobs(X, TARGETS.astype(">i8")), sc.logprobs(X, TARGETS))


def test_scores_that_may_not_be_written_are_read():
    x = X.copy()
    x.flags.writeable = False
    for call in CALLS.values():
        call(x)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", None, 2**40])
def test_numbers_of_threads(count):
    before = sc.get_num_threads()
    refused(OptionError, lambda: sc.set_num_threads(count), "thread")
    assert sc.get_num_threads() == before
