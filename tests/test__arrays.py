"""The ground: namespaces, dtypes, selection without promotion, truth without tracing."""

import ml_dtypes
import numpy as np
import pytest

from _namespaces import NAMES, library
from softcarry import _arrays
from softcarry.errors import DTypeError, ShapeError


@pytest.mark.parametrize("name", NAMES)
def test_the_namespace_of_an_array_and_of_its_dtype(name):
    lib = library(name)
    array = lib.array(np.zeros(2, np.float32))
    xp = _arrays.array_namespace(array, None, array)
    assert name in xp.__name__
    assert _arrays.namespace_of_dtype(lib.xp.float32).__name__ == xp.__name__
    if name != "jax":  # whose arrays have NumPy's dtypes
        assert _arrays.namespace_of_dtype(array.dtype).__name__ == xp.__name__
    assert _arrays.dtype_name(array.dtype) == _arrays.dtype_name(lib.xp.float32) == "float32"


def test_dtypes_of_every_origin():
    for dtype in (
        np.float32,
        np.dtype("f2"),
        np.dtype(">f8"),
        ml_dtypes.bfloat16,
        np.dtype(ml_dtypes.float8_e5m2),
    ):
        _arrays.require_floating("x", dtype)
    for dtype in (
        np.int8,
        np.bool_,
        np.complex64,
        np.longdouble,
        np.dtype("M8[s]"),
        np.dtype("U3"),
        ml_dtypes.int4,
    ):
        with pytest.raises(DTypeError, match="x must be real floating point"):
            _arrays.require_floating("x", dtype)
    assert _arrays.working_dtype(np, ml_dtypes.bfloat16, np.float32) is np.float32
    assert _arrays.working_dtype(np, np.float16, np.dtype(">f8")) is np.float64


@pytest.mark.parametrize("value", [np.float64(1.0), np.float32(1.0), np.array(1.0, np.float32)])
def test_select_keeps_the_dtype_of_points_and_scalars(value):
    """A NumPy float64 scalar is a Python float too, and must not be taken for the number to fill in."""
    chosen = _arrays.select(np, np.bool_(True), 0.0, value)
    other = _arrays.select(np, np.bool_(True), value, 0.0)
    assert chosen.dtype == other.dtype == value.dtype
    assert (chosen, other) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_select_fills_in_a_float(name):
    lib = library(name)
    array = lib.array(np.float32([1, 2]))
    chosen = lib.numpy(_arrays.select(lib.xp, array > 1.5, array, -0.0))
    assert chosen.dtype == np.float32
    assert np.signbit(chosen).tolist() == [True, False]


def test_known_is_none_where_values_are_not_there():
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    seen = []
    jax.jit(lambda x: seen.append(_arrays.known(jax.numpy.all(x > 0))) or x)(jax.numpy.ones(2))
    torch.vmap(lambda x: seen.append(_arrays.known((x > 0).all())) or x)(torch.ones(2, 3))
    seen.append(_arrays.known(torch.ones(2, device="meta").all()))
    assert seen == [None, None, None]
    assert _arrays.known(jax.numpy.all(jax.numpy.ones(2) > 0)) is True
    assert _arrays.known(np.bool_(False)) is False


def test_convert_returns_what_needs_no_conversion():
    x = np.zeros(3, np.float32)
    assert _arrays.convert(np, x, np.float32) is x
    assert _arrays.convert(np, np.float64(2.5), np.float32).dtype == np.float32
    torch = pytest.importorskip("torch")
    y = torch.zeros(2, requires_grad=True)
    xp = _arrays.array_namespace(y)
    assert _arrays.convert(xp, y, torch.float64).requires_grad


def test_shapes():
    assert _arrays.require_shape(3) == (3,)
    assert _arrays.require_shape([2, np.int64(4)]) == (2, 4)
    for bad in (-1, (2, -3), 1.5, True, ("2",), None):
        with pytest.raises(ShapeError, match="non-negative"):
            _arrays.require_shape(bad)
    assert _arrays.broadcast_shape((2, 1), (3,)) == (2, 3)
    assert _arrays.broadcast_shape((2,), (3,)) is None
