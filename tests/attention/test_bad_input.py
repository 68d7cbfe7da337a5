"""What attention refuses: by which error, in one line with what to do, before any memory is touched.

That nothing was touched shows in two ways. An output array is full of sevens and must stay so. And the same
calls are made in a process of their own in which queries, keys, values, masks and outputs lie in memory that
may be neither read nor written: a call that looks at an element before it refuses ends that process.
"""

import ctypes
import math
import mmap
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import softcarry as sc
from attention_cases import of_kind
from row_cases import as_kind
from softcarry.errors import DTypeError, OptionError, ShapeError

INF, NAN = math.inf, math.nan
Q, K, V = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 9)
PACKED = ((1, 4, 10, 8), (1, 2, 12, 8), (1, 2, 12, 9))
PAGED = ((2, 4, 5, 8), (6, 2, 3, 8), (6, 2, 3, 9))
TABLE, LENGTHS = [[0, 5, 1], [2, 4, 3]], [7, 9]

# How an array is made: zeros for most, memory that may not be touched in the process of its own.
make = np.zeros


class Given:
    """A call that must be refused: shapes or arrays, options, the error and words of its message."""

    def __init__(self, error, *words, q=Q, k=K, v=V, dtype="float32", **options):
        self.error, self.words, self.options = error, words, options
        self.shapes, self.dtype = (q, k, v), dtype

    def arrays(self):
        return tuple(
            make(shape, self.dtype) if isinstance(shape, tuple) else shape() for shape in self.shapes
        )

    def made(self):
        return {name: value() if callable(value) else value for name, value in self.options.items()}


def mask(*shape, dtype="bool"):
    return lambda: make(shape, dtype)


def packed(error, *words, shapes=PACKED, **options):
    return Given(error, *words, q=shapes[0], k=shapes[1], v=shapes[2], **options)


def paged(error, *words, shapes=PAGED, **options):
    options = {"block_table": TABLE, "kv_lengths": LENGTHS} | options
    return Given(error, *words, q=shapes[0], k=shapes[1], v=shapes[2], **options)


SHAPES = {
    "queries of three axes": Given(ShapeError, "q", "(4, 5, 8)", q=(4, 5, 8)),
    "queries of five axes": Given(ShapeError, "q", q=(1, 2, 4, 5, 8)),
    "keys of two axes": Given(ShapeError, "k", "(7, 8)", k=(7, 8)),
    "values of no axes": Given(ShapeError, "v", "()", v=()),
    "another batch of keys and values": Given(ShapeError, "batch", "2", "3", k=(3, 2, 7, 8), v=(3, 2, 7, 9)),
    "one batch is not broadcast": Given(ShapeError, "batch", k=(1, 2, 7, 8), v=(1, 2, 7, 9)),
    "another batch of values": Given(ShapeError, "v", v=(3, 2, 7, 9)),
    "fewer values than keys": Given(ShapeError, "7", "6", v=(2, 2, 6, 9)),
    "other heads of values": Given(ShapeError, "v", v=(2, 4, 7, 9)),
    "another depth of keys": Given(ShapeError, "8", "9", k=(2, 2, 7, 9)),
    "heads that do not divide": Given(ShapeError, "heads", "4", "3", k=(2, 3, 7, 8), v=(2, 3, 7, 9)),
    "more heads of keys than of queries": Given(
        ShapeError, "heads", "4", "8", k=(2, 8, 7, 8), v=(2, 8, 7, 9)
    ),
    "no heads of keys": Given(ShapeError, "heads", k=(2, 0, 7, 8), v=(2, 0, 7, 9)),
    "depth 0": Given(ShapeError, "512", "0", q=(2, 4, 5, 0), k=(2, 2, 7, 0)),
    "depth 513": Given(ShapeError, "512", "513", q=(2, 4, 5, 513), k=(2, 2, 7, 513)),
    "value depth 0": Given(ShapeError, "512", "0", v=(2, 2, 7, 0)),
    "value depth 513": Given(ShapeError, "512", "513", v=(2, 2, 7, 513)),
    "mask of other keys": Given(ShapeError, "mask", "(2, 4, 5, 7)", mask=mask(5, 6)),
    "mask of other heads": Given(ShapeError, "mask", mask=mask(2, 2, 5, 7)),
    "mask of five axes": Given(ShapeError, "mask", mask=mask(1, 2, 4, 5, 7)),
    "mask of no keys": Given(ShapeError, "mask", mask=mask(5, 0)),
    "bias of other queries": Given(ShapeError, "bias", "(4, 7)", bias=mask(4, 7, dtype="float32")),
    "mask of packed queries for keys": packed(
        ShapeError, "mask", "12", cu_seqlens=([0, 10], [0, 12]), mask=mask(1, 1, 10, 10)
    ),
    "mask of the pages' length": paged(ShapeError, "mask", mask=mask(2, 1, 5, 7)),
    "slopes of the key heads": Given(ShapeError, "alibi", "4", alibi=mask(2, dtype="float32")),
    "slopes of another batch": Given(ShapeError, "alibi", alibi=mask(3, 4, dtype="float32")),
    "slopes of three axes": Given(ShapeError, "alibi", alibi=mask(1, 2, 4, dtype="float32")),
    "one slope": Given(ShapeError, "alibi", alibi=mask(dtype="float32")),
    "sinks of the key heads": Given(ShapeError, "sinks", "4", sinks=mask(2, dtype="float32")),
    "sinks of two axes": Given(ShapeError, "sinks", sinks=mask(2, 4, dtype="float32")),
    "lengths of another batch": Given(ShapeError, "kv_lengths", "2", kv_lengths=[1, 2, 3]),
    "lengths of two axes": Given(ShapeError, "kv_lengths", kv_lengths=[[1], [2]]),
    "one length": Given(ShapeError, "kv_lengths", kv_lengths=3),
    "a table of one axis": paged(ShapeError, "block_table", block_table=[0, 1]),
    "a table of another batch": paged(ShapeError, "block_table", block_table=[[0, 1, 2]]),
    "out of another shape": Given(ShapeError, "out", "(2, 4, 5, 9)", out=mask(2, 4, 5, 8, dtype="float32")),
    "out that would broadcast": Given(ShapeError, "out", out=mask(4, 5, 9, dtype="float32")),
}

DTYPES = {
    **{name: Given(DTypeError, name, dtype=name) for name in ("int32", "int64", "uint8", "bool")},
    **{name: Given(DTypeError, name, dtype=name) for name in ("complex64", "complex128")},
    "float8": Given(DTypeError, "float8_e4m3fn", dtype=ml_dtypes.float8_e4m3fn),
    "objects": Given(DTypeError, "object", k=lambda: np.zeros(K, object)),
    "keys of another dtype": Given(DTypeError, "float32", "float64", k=lambda: make(K, "float64")),
    "values of another dtype": Given(DTypeError, "float32", "float16", v=lambda: make(V, "float16")),
    "queries of another dtype": Given(
        DTypeError, "float32", "bfloat16", q=lambda: make(Q, ml_dtypes.bfloat16)
    ),
    "a float mask": Given(DTypeError, "mask", "bias=", "astype(bool)", mask=mask(5, 7, dtype="float32")),
    "a mask of integers": Given(DTypeError, "mask", "int64", "astype(bool)", mask=mask(5, 7, dtype="int64")),
    "a mask in bfloat16": Given(DTypeError, "mask", "bfloat16", mask=mask(5, 7, dtype=ml_dtypes.bfloat16)),
    "a boolean bias": Given(DTypeError, "bias", "mask=", bias=mask(5, 7)),
    "a bias of integers": Given(DTypeError, "bias", "int32", bias=mask(5, 7, dtype="int32")),
    "a complex bias": Given(DTypeError, "bias", "complex64", bias=mask(5, 7, dtype="complex64")),
    "slopes of integers": Given(DTypeError, "alibi", "int64", alibi=mask(4, dtype="int64")),
    "sinks of booleans": Given(DTypeError, "sinks", "bool", sinks=mask(4)),
    "lengths of floats": Given(DTypeError, "kv_lengths", "float64", kv_lengths=np.array([1.0, 2.0])),
    "lengths of booleans": Given(DTypeError, "kv_lengths", "bool", kv_lengths=np.array([True, False])),
    "cuts of floats": packed(DTypeError, "cu_seqlens", cu_seqlens=np.array([0.0, 12.0])),
    "pages of floats": paged(DTypeError, "block_table", block_table=np.array(TABLE, np.float32)),
    "out of another dtype": Given(DTypeError, "out", "float64", out=mask(2, 4, 5, 9, dtype="float64")),
    "queries in a list": Given(DTypeError, "list", q=lambda: [[[[1.0] * 8]]]),
    "no keys": Given(DTypeError, "None", k=lambda: None),
    "values that are a number": Given(DTypeError, "float", v=lambda: 1.0),
    "out in a list": Given(DTypeError, "list", out=list),
}

OPTIONS = {
    "a length beyond the keys": Given(OptionError, "kv_lengths", "8", "7", kv_lengths=[3, 8]),
    "a negative length": Given(OptionError, "kv_lengths", "-1", kv_lengths=[-1, 3]),
    "a length of 2^63": Given(OptionError, "kv_lengths", kv_lengths=np.array([1, 2**63], np.uint64)),
    "a length of -2^63": Given(OptionError, "kv_lengths", kv_lengths=np.array([1, -(2**63)])),
    "a length beyond the pages": paged(OptionError, "kv_lengths", "10", "9", kv_lengths=[10, 1]),
    "a length beyond the packed sequence": packed(
        OptionError, "kv_lengths", cu_seqlens=([0, 5, 10], [0, 4, 12]), kv_lengths=[5, 1]
    ),
    "a page beyond the cache": paged(OptionError, "block_table", "6", block_table=[[0, 6, 1], [2, 4, 3]]),
    "a negative page": paged(OptionError, "block_table", "-1", block_table=[[0, 5, -1], [2, 4, 3]]),
    "a page of 2^40": paged(OptionError, "block_table", block_table=[[0, 5, 1], [2, 4, 2**40]]),
    "pages without lengths": paged(OptionError, "block_table", "kv_lengths", kv_lengths=None),
    "a pair of cuts with pages": paged(
        (OptionError, ShapeError),
        "cu_seqlens",
        cu_seqlens=([0, 2, 10], [0, 2, 10]),
        shapes=(PACKED[0], *PAGED[1:]),
    ),
    "cuts that do not begin at 0": packed(OptionError, "cu_seqlens", cu_seqlens=([1, 10], [0, 12])),
    "cuts that do not end at the queries": packed(
        OptionError, "cu_seqlens", "10", cu_seqlens=([0, 9], [0, 12])
    ),
    "cuts that do not end at the keys": packed(
        OptionError, "cu_seqlens", "12", cu_seqlens=([0, 10], [0, 13])
    ),
    "cuts that decrease": packed(OptionError, "cu_seqlens", cu_seqlens=([0, 6, 4, 10], [0, 1, 2, 12])),
    "cuts of keys that decrease": packed(
        OptionError, "cu_seqlens", cu_seqlens=([0, 4, 6, 10], [0, 9, 2, 12])
    ),
    "negative cuts": packed(OptionError, "cu_seqlens", cu_seqlens=([0, -1, 10], [0, 1, 12])),
    "cuts of more sequences of keys": packed(
        (OptionError, ShapeError), "cu_seqlens", cu_seqlens=([0, 4, 10], [0, 4, 6, 12])
    ),
    "no cuts": packed((OptionError, ShapeError), "cu_seqlens", cu_seqlens=np.zeros(0, np.int64)),
    "one array for other queries and keys": packed(OptionError, "cu_seqlens", cu_seqlens=[0, 4, 10]),
    "cuts of a batch": Given((OptionError, ShapeError), "cu_seqlens", "1", "2", cu_seqlens=([0, 5], [0, 7])),
    "three arrays of cuts": packed(
        (OptionError, ShapeError, DTypeError), "cu_seqlens", cu_seqlens=([0, 10], [0, 12], [0, 12])
    ),
    **{
        f"{name} {value!r}": Given(OptionError, name, **{name: value})
        for name, values in {
            "window": ((-1, 0), (0, -1), (1.5, None), 3, (1,), (1, 2, 3), "12", (True, None)),
            "softcap": (0, 0.0, -1.0, INF, NAN, "1", True),
            "splits": (0, -1, 1.0, "2", True),
            "scale": (INF, -INF, NAN, "1", 1j),
            "causal": ("left", "", "bottom_right", 2, 0.5, "True"),
            "rescale_threshold": (-1.0, -1e-9, 20.5, INF, NAN, "1", None),
        }.items()
        for value in values
    },
}
REFUSED = SHAPES | DTYPES | OPTIONS


def message_of(error, call, *words):
    """Fail unless the call raises one of the errors, in one line that has the words."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) in (error if isinstance(error, tuple) else (error,))
    assert "\n" not in message
    assert message == message.strip() != ""
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_both_functions_refuse_and_leave_out_as_it_was(case):
    arrays, options = case.arrays(), case.made()
    out = np.full((*np.shape(arrays[0])[:3], *np.shape(arrays[2])[3:]), 7.0, np.float32)
    with_out = options if "out" in options else options | {"out": out}
    message = message_of(case.error, lambda: sc.attention(*arrays, **with_out), *case.words)
    assert (out == 7.0).all()
    if "out" not in options:
        assert message_of(case.error, lambda: sc.attention_carry(*arrays, **options), *case.words) == message


# torch has names of its own for a few dtypes; what is no array of NumPy stays what it is.
SKIPPED_BY_TORCH = ("float8", "objects", "out in a list", "a length of 2^63")


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in SKIPPED_BY_TORCH])
def test_tensors_are_refused_alike(name):
    case = REFUSED[name]
    arrays = [as_kind("torch", x) if isinstance(x, np.ndarray) else x for x in case.arrays()]
    options = of_kind("torch", case.made())
    # A remedy may be spelled for the library, mask.bool() for mask.astype(bool).
    words = [word for word in case.words if word != "astype(bool)"]
    message_of(case.error, lambda: sc.attention(*arrays, **options), *words)


def test_the_remedy_for_a_mask_of_zeros_and_ones_stands_first_for_both_libraries():
    q, k, v = (np.zeros(shape, np.float32) for shape in (Q, K, V))
    ones = np.ones((5, 7), np.float32)
    message_of(DTypeError, lambda: sc.attention(q, k, v, mask=ones), "mask", "float32", "bias=", "bool")
    given = [torch.from_numpy(x) for x in (q, k, v)]
    message_of(DTypeError, lambda: sc.attention(*given, mask=torch.from_numpy(ones)), "mask", "bias=", "bool")


class TestLibraries:
    def test_arrays_of_two_libraries(self):
        q, k, v = (np.zeros(shape, np.float32) for shape in (Q, K, V))
        for given in ((torch.from_numpy(q), k, v), (q, torch.from_numpy(k), v), (q, k, torch.from_numpy(v))):
            message_of(DTypeError, lambda given=given: sc.attention(*given), "numpy", "torch")
            message_of(DTypeError, lambda given=given: sc.attention_carry(*given), "numpy", "torch")

    def test_out_of_another_library(self):
        q, k, v = (np.zeros(shape, np.float32) for shape in (Q, K, V))
        out = np.full((2, 4, 5, 9), 7.0, np.float32)
        message_of(DTypeError, lambda: sc.attention(q, k, v, out=torch.from_numpy(out)), "out")
        given = [torch.from_numpy(x) for x in (q, k, v)]
        message_of(DTypeError, lambda: sc.attention(*given, out=out), "out")
        assert (out == 7.0).all()

    @pytest.mark.parametrize("position", range(3))
    def test_tensors_that_need_a_gradient(self, position):
        given = [torch.zeros(shape) for shape in (Q, K, V)]
        given[position].requires_grad_()
        for call in (sc.attention, sc.attention_carry):
            message = message_of(DTypeError, lambda call=call: call(*given))
            assert "detach" in message or "no_grad" in message
            with torch.no_grad():
                call(*given)
            call(*(x.detach() for x in given))

    @pytest.mark.parametrize("position", range(3))
    def test_tensors_that_lie_elsewhere(self, position):
        given = [torch.zeros(shape) for shape in (Q, K, V)]
        given[position] = torch.zeros(given[position].shape, device="meta")
        message_of(DTypeError, lambda: sc.attention(*given), "meta")
        given[position] = torch.zeros(given[position].shape).to_sparse()
        message_of(DTypeError, lambda: sc.attention(*given))

    def test_masked_arrays_and_matrices(self):
        q, k, v = (np.zeros(shape, np.float32) for shape in (Q, K, V))
        masked = np.ma.masked_array(k, mask=np.ones(K, bool))
        message_of(DTypeError, lambda: sc.attention(q, masked, v), "mask")

    def test_options_that_do_not_exist(self):
        q, k, v = (np.zeros(shape, np.float32) for shape in (Q, K, V))
        with pytest.raises(TypeError):
            sc.attention(q, k, v, attn_mask=None)  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError):
            sc.attention(q, k, v, None)  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError):
            sc.attention_carry(q, k, v, out=None)  # pyright: ignore[reportCallIssue]


def test_numbers_of_numpy_are_taken_as_options():
    q, k, v = (np.ones(shape, np.float32) for shape in (Q, K, V))
    want = sc.attention(q, k, v, scale=0.5, softcap=2.0, splits=2, window=(1, 2), rescale_threshold=1.0)
    got = sc.attention(
        *(q, k, v),
        scale=np.float32(0.5),
        softcap=np.float64(2.0),
        splits=np.int64(2),
        window=(np.int32(1), np.uint8(2)),
        rescale_threshold=np.float32(1.0),
    )
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(sc.attention(q, k, v, causal=np.True_), sc.attention(q, k, v, causal=True))


def forbidden(shape, dtype):
    """An array over memory that may be neither read nor written, in place of `make`."""
    dtype = np.dtype(dtype)
    size = max(1, math.prod(shape)) * dtype.itemsize
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages)
    array = np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(np.frombuffer(memory, np.uint8).ctypes.data)
    if libc.mprotect(address, ctypes.c_size_t(pages), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    _KEPT.append(memory)
    return array


_KEPT: list = []


def refuse_all_in_memory_that_may_not_be_touched() -> int:
    """Make every call that must be refused on forbidden memory; return how many there were."""
    global make
    make = forbidden
    for name, case in REFUSED.items():
        arrays, options = case.arrays(), case.made()
        if "out" not in options:
            options["out"] = forbidden((*np.shape(arrays[0])[:3], *np.shape(arrays[2])[3:]), "float32")
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        try:
            sc.attention(*arrays, **options)
        except case.error:
            continue
        msg = f"{name} was not refused"
        raise AssertionError(msg)
    return len(REFUSED)


def touch_forbidden_memory() -> None:
    sys.stdout.write(str(forbidden((4,), "float32").sum()))


def run_here(call: str):
    code = f"import test_bad_input; print('refused', test_bad_input.{call}())"
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(os.name != "posix", reason="memory is protected by mprotect here")
class TestMemoryThatMayNotBeTouched:
    def test_everything_is_refused_before_it_is_read(self):
        done = run_here("refuse_all_in_memory_that_may_not_be_touched")
        last = done.stdout.splitlines()[-1:]
        assert done.returncode == 0, (last, done.stderr[-2000:])
        assert last == [f"refused {len(REFUSED)}"]

    def test_reading_it_would_end_the_process(self):
        assert run_here("touch_forbidden_memory").returncode < 0
