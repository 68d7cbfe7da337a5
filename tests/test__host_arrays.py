"""Arrays as compiled code sees them: addresses, strides and names, what is refused and how, and overlaps."""

import itertools
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from softcarry._host_arrays import (
    NUMPY_DTYPES,
    empty_like,
    host_array,
    integers,
    numbers_of,
    overlaps_itself,
    real_array,
    require_writable_output,
    share_memory,
)
from softcarry.errors import DTypeError, OptionError, ShapeError

FLOATS = pytest.mark.parametrize("name", list(NUMPY_DTYPES))


def real_numbers(what, source, dtype):
    return numbers_of(real_array(what, source), dtype)


def message(kind, call, *arguments):
    """The one line that a call raises."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@FLOATS
def test_a_numpy_array_is_described(name):
    base = np.zeros((4, 6, 8), NUMPY_DTYPES[name])
    repeated = np.broadcast_to(base, (3, 4, 6, 8))
    for view in (base, base[1:, ::-2, 3:], base.T, base[:, None], base[0, 0, 0, ...], base[:0], repeated):
        got = host_array("q", view)
        assert got == (view.ctypes.data, view.shape, view.strides, name, "numpy")


@FLOATS
def test_a_torch_tensor_is_described_in_bytes(name):
    torch = pytest.importorskip("torch")
    size, base = NUMPY_DTYPES[name].itemsize, torch.zeros((4, 6, 8), dtype=getattr(torch, name))
    for view in (base, base[1:, ::2, 3:], base.mT, base[:, None].expand(4, 3, 6, 8), base[0, 0, 0], base[:0]):
        strides = tuple(size * n for n in view.stride())
        assert host_array("q", view) == (view.data_ptr(), tuple(view.shape), strides, name, "torch")


def test_every_dtype_has_a_name():
    """Whoever can't take it says so."""
    for dtype in (np.bool_, np.int8, np.uint64, np.complex64, ml_dtypes.float8_e5m2):
        assert host_array("mask", np.zeros(2, dtype)).element == np.dtype(dtype).name
    torch = pytest.importorskip("torch")
    for name in ("bool", "uint8", "int64", "complex64", "float8_e5m2"):
        assert host_array("mask", torch.zeros(2, dtype=getattr(torch, name))).element == name


def test_arrays_elsewhere_or_otherwise_are_refused():
    swapped = np.dtype(np.float32).newbyteorder()
    text = message(DTypeError, host_array, "q", np.zeros(2, swapped))
    assert text == f"q must be in native byte order, got {swapped.str}: convert it by astype"
    assert "masked" in message(DTypeError, host_array, "k", np.ma.masked_array([1.0]))
    with pytest.raises(DTypeError):
        host_array("k", np.zeros((1, 1)).view(np.matrix))
    strict = pytest.importorskip("array_api_strict")
    text = message(DTypeError, host_array, "v", strict.asarray([1.0]))
    assert (
        text == "v must be a NumPy array or torch CPU tensor, got one of array_api_strict: use numpy.asarray"
    )
    for nothing in ([1.0], 1.0, None, "q"):
        with pytest.raises((TypeError, ValueError)):
            host_array("q", nothing)


def test_tensors_that_strides_do_not_describe_are_refused():
    torch = pytest.importorskip("torch")
    text = message(DTypeError, host_array, "q", torch.zeros(2, 2).to_sparse())
    expected = "q must be a strided torch tensor on the CPU, got one "
    assert text == expected + "with layout torch.sparse_coo: convert it first"
    text = message(DTypeError, host_array, "q", torch.zeros(2, device="meta"))
    assert text == expected + "on device meta: convert it first"
    conjugated = torch.zeros(2, dtype=torch.complex64).conj()
    for lazy in (conjugated, conjugated.imag):
        assert "resolve_neg() or resolve_conj()" in message(DTypeError, host_array, "q", lazy)


def test_gradients_are_recorded_nowhere():
    torch = pytest.importorskip("torch")
    recording = torch.zeros(3, requires_grad=True)
    for tensor in (recording, recording * 2):
        text = message(DTypeError, host_array, "v", tensor)
        assert text == "v must not record gradients: call v.detach(), or use torch.no_grad()"
        assert host_array("v", tensor.detach()).shape == (3,)
        with torch.no_grad():
            assert host_array("v", tensor).shape == (3,)


def test_integers_of_every_origin():
    torch = pytest.importorskip("torch")
    for source in (
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], np.int32),
        np.array([[1, 3], [2, 4]], np.uint8).T,
        np.array([[1, 2], [3, 4]], ">i2"),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[1, 3], [2, 4]], dtype=torch.int16).T,
        torch.tensor([[1, 2], [3, 4]], dtype=torch.uint64),
    ):
        got = integers("lengths", source)
        assert got.dtype == np.int64
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, [[1, 2], [3, 4]])
    assert integers("lengths", []).dtype == np.int64
    assert integers("lengths", 5) == 5


def test_what_is_no_integer_is_refused():
    torch = pytest.importorskip("torch")
    cases = {"float64": [1.0], "bool": np.array([True]), "float16": np.zeros(0, np.float16)}
    cases |= {
        "float32": torch.zeros(1),
        "bfloat16": torch.zeros(1).bfloat16(),
        "complex64": torch.zeros(1) + 0j,
    }
    for name, source in cases.items():
        text = message(DTypeError, integers, "lengths", source)
        assert text == f"lengths must hold integers, got {name}: convert it, for example to int64"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@FLOATS
def test_real_numbers_of_every_origin(name, dtype):
    """Exactly if the dtype has them, and rounded to nearest even otherwise."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(NUMPY_DTYPES[name])
    wide = x.astype(np.float64)
    tensor = torch.tensor(wide).to(getattr(torch, name))
    for source in (x, x.T, tensor, tensor.mT, tensor.clone().requires_grad_(False)):
        got = real_numbers("sinks", source, np.dtype(dtype))
        assert got.dtype == dtype
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, (wide if got.shape == wide.shape else wide.T).astype(dtype))
    np.testing.assert_array_equal(real_numbers("sinks", wide.tolist(), np.dtype(dtype)), wide.astype(dtype))


def test_what_is_no_real_number_is_refused():
    torch = pytest.importorskip("torch")
    cases = {
        "int64": np.array([1]),
        "bool": [True],
        "complex128": [1j],
        "longdouble": np.zeros(1, np.longdouble),
    }
    cases |= {"int32": torch.zeros(1).int(), "complex64": torch.zeros(1, dtype=torch.complex64)}
    for name, source in cases.items():
        name = np.dtype(name).name
        text = message(DTypeError, real_numbers, "sinks", source, np.dtype(np.float32))
        expected = "sinks must hold real floating-point numbers, got "
        assert text == f"{expected}{name}: convert it, for example to float32"


def test_new_arrays_are_of_the_library():
    torch = pytest.importorskip("torch")
    for name, dtype in NUMPY_DTYPES.items():
        got = empty_like(np.zeros(1), (2, 3), name)
        assert (got.shape, got.dtype, got.flags.c_contiguous) == ((2, 3), dtype, True)
        tensor = empty_like(torch.zeros(1), (2, 3), name)
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (
            (2, 3),
            getattr(torch, name),
            True,
        )


def places(view):
    """The bytes of each element, by counting."""
    size, start = view.itemsize, view.__array_interface__["data"][0]
    for index in itertools.product(*map(range, view.shape)):
        first = start + sum(n * stride for n, stride in zip(index, view.strides, strict=True))
        yield range(first, first + size)


def drawn_views(count):
    """Arrays of up to three axes in 400 bytes, by any strides."""
    memory, rng = np.zeros(400, np.uint8), np.random.default_rng(0)
    while count:
        axes = rng.integers(0, 4)
        shape, strides = rng.integers(0, 4, axes), rng.choice([-16, -8, -4, -2, 0, 4, 4, 8, 12, 16, 32], axes)
        offset = 200 + 2 * int(rng.integers(-6, 7))
        yield np.ndarray(tuple(map(int, shape)), np.float32, memory, offset, tuple(map(int, strides)))
        count -= 1


def test_arrays_that_overlap_themselves():
    """None is missed; and what indexing and transposing make of a plain array is none."""
    found = 0
    for view in drawn_views(3000):
        counted = [byte for place in places(view) for byte in place]
        overlapping = len(set(counted)) < len(counted)
        assert overlaps_itself(view) or not overlapping, (view.shape, view.strides)
        found += overlapping
    assert found > 200
    base = np.zeros((4, 6, 8), np.float32)
    for view in (base, base.T, base[::2, ::-3, 1::3], base[:, :0], base[:, None], base[0, 0, 0, ...]):
        assert not overlaps_itself(view)
    for view in (np.broadcast_to(base, (2, 4, 6, 8)), np.lib.stride_tricks.sliding_window_view(base, 3, 2)):
        assert overlaps_itself(view)


def test_arrays_that_share_memory():
    """As counted byte by byte."""
    views = list(drawn_views(400))
    shared = 0
    for a, b in itertools.pairwise(views):
        common = {n for place in places(a) for n in place} & {n for place in places(b) for n in place}
        assert share_memory(a, b) == bool(common)
        shared += bool(common)
    assert 30 < shared < 370
    x = np.zeros((4, 8))
    assert not share_memory(x[:, ::2], x[:, 1::2])
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(x)
    assert share_memory(x, t)
    assert share_memory(t[1:, 3], x[2])
    assert not share_memory(t[:, ::2], t[:, 1::2])
    assert not share_memory(t.bfloat16(), t)


def test_what_is_too_hard_to_tell_is_shared():
    """The example of NumPy's documentation, which takes a minute to search; its memory is not touched."""
    memory = np.zeros(192163377, np.int8)
    a = np.ndarray((1049, 1049, 1049), np.int8, memory, 0, (36674, 61119, 85569))
    b = np.ndarray((1049, 1049, 1), np.int8, memory, 64023025, (12223, 12224, 1))
    assert share_memory(a, b)


def checked(out, **changed):
    arguments = {"shape": (2, 3), "element": "float32", "library": "numpy", "inputs": {}} | changed
    return require_writable_output(out, *arguments.values())


def test_an_output_that_can_be_written_is_described():
    torch = pytest.importorskip("torch")
    x = np.zeros((4, 6), np.float32)
    for out in (x[:2, :3], x[::2, ::-2], x.T[:2, :3]):
        assert checked(out, inputs={"q": np.zeros(3)}) == host_array("out", out)
    tensor = torch.zeros(3, 2).mT
    assert checked(tensor, library="torch", inputs={"q": torch.zeros(3)}) == host_array("out", tensor)


def test_an_output_that_does_not_fit_is_refused():
    torch = pytest.importorskip("torch")

    def text(kind, out, **changed):
        return message(kind, lambda: checked(out, **changed))

    x = np.zeros((2, 3), np.float32)
    expected = "out must hold float32 of numpy, as q does, got "
    assert text(DTypeError, x.astype(np.float16)) == expected + "float16 of numpy"
    assert text(DTypeError, torch.zeros(2, 3)) == expected + "float32 of torch"
    assert text(ShapeError, x.T) == "out must have shape (2, 3), got (3, 2)"
    wide = np.broadcast_to(x[:1], (2, 3)).copy()
    wide.flags.writeable = False
    assert text(OptionError, wide) == "out must be writable, got a read-only array: pass a copy"
    repeated = np.lib.stride_tricks.as_strided(x, (2, 3), (0, 4))
    assert text(OptionError, repeated).startswith(
        "out must have a place for each element, got strides (0, 4) bytes"
    )
    expanded = torch.zeros(1, 3).expand(2, 3)
    assert text(OptionError, expanded, library="torch").endswith("(0, 4) bytes: pass a copy")
    inputs = {"q": np.zeros(3), "k": x[1, 1:]}
    assert text(OptionError, x, inputs=inputs) == "out must not overlap k: pass an array of its own"


def test_torch_is_not_imported_to_find_out():
    code = (
        "import sys, numpy as np\n"
        "from softcarry import _host_arrays as h\n"
        "h.host_array('q', np.zeros(2)), h.integers('n', [1]), h.share_memory(np.zeros(1), np.zeros(1))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
