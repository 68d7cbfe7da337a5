"""Views hold the values that they should, in memory that is NaN beside them."""

import ml_dtypes
import numpy as np
import pytest

from softcarry.auditing.arrangements import ARRANGEMENTS, Arranger, contiguous, expanded, pitched

SHAPE = (2, 3, 5, 7)
BY_NAME = {arrangement.name: arrangement for arrangement in ARRANGEMENTS}


def numbers(dtype):
    return np.arange(1, 211).reshape(SHAPE).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.float64])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_numpy_view_has_the_values_and_nan_beside_it(name, dtype):
    x = numbers(dtype)
    view, buffer = BY_NAME[name].place(x)
    np.testing.assert_array_equal(view, x)
    assert view.dtype == x.dtype
    assert np.shares_memory(view, buffer)
    assert buffer.flags.c_contiguous
    assert np.isnan(buffer.astype(np.float64)).sum() == buffer.size - x.size


@pytest.mark.parametrize("name", [name for name in BY_NAME if "torch" in BY_NAME[name].libraries])
def test_a_torch_view_has_the_values_and_nan_beside_it(name):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.arange(1, 211).reshape(SHAPE).to(dtype)
        view, buffer = BY_NAME[name].place(x)
        assert torch.equal(view, x)
        assert view.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
        assert buffer.is_contiguous()
        assert int(buffer.isnan().sum()) == buffer.numel() - x.numel()


def test_views_differ_from_one_another_and_from_contiguous_memory():
    x = numbers(np.float32)
    seen = {}
    for arrangement in ARRANGEMENTS:
        view, buffer = arrangement.place(x)
        start = view.ctypes.data - buffer.ctypes.data
        seen[arrangement.name] = view.strides, start
    assert len(set(seen.values())) == len(ARRANGEMENTS)
    plain = [name for name, (strides, _) in seen.items() if strides == x.strides]
    assert plain == ["an odd offset"]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_expanded_views_have_stride_0(axes):
    torch = pytest.importorskip("torch")
    x = numbers(np.float32)
    for axis in axes:
        x = np.ascontiguousarray(np.broadcast_to(np.take(x, [0], axis), SHAPE))
    view, buffer = expanded(*axes)(x)
    np.testing.assert_array_equal(view, x)
    assert [view.strides[axis] for axis in axes] == [0] * len(axes)
    assert buffer.size == x.size // np.prod([SHAPE[axis] for axis in axes])
    handed = expanded(*axes)(torch.from_numpy(x)).view
    assert torch.equal(handed, torch.from_numpy(x))
    assert [handed.stride(axis) for axis in axes] == [0] * len(axes)


def test_booleans_have_true_beside_them():
    view, buffer = pitched(np.zeros(SHAPE, bool))
    assert not view.any()
    assert buffer.sum() == 8 * 2 * 3 * 5


def test_only_what_is_named_is_arranged():
    arranger = Arranger(pitched, "k")
    q, k, v = (arranger(numbers(np.float32)) for _ in range(3))
    assert [x.flags.c_contiguous for x in (q, k, v)] == [True, False, True]
    assert arranger.written() == ()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_writing_to_a_view_or_beside_it_is_seen(library):
    for beside in (False, True):
        arranger = Arranger(pitched)
        handed = numbers(np.float32)
        if library == "torch":
            handed = pytest.importorskip("torch").from_numpy(handed)
        q, _, v = (arranger(handed) for _ in range(3))
        if beside:
            base = v.base if library == "numpy" else v._base
            base[..., -1] = 0.0
        else:
            q[0, 0, 0, 0] = 0.0
        assert arranger.written() == (("v",) if beside else ("q",))


def test_contiguous_arrays_are_watched_too():
    arranger = Arranger(contiguous)
    x = numbers(np.float32)
    assert arranger(x) is x
    x[...] = np.nan
    assert arranger.written() == ("q",)
