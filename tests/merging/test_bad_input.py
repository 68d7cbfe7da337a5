"""What merges refuse: by which error, in one line, before anything is written."""

import ml_dtypes
import numpy as np
import pytest
import torch

from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.merging import merge_output_into, merge_outputs, merge_outputs_ragged

O, S = np.ones((2, 3, 4), np.float32), np.zeros((2, 3), np.float32)
T, U = torch.ones(2, 3, 4), torch.zeros(2, 3)


def readonly(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def refused(call, *arguments, error, match, **options):
    with pytest.raises(error, match=match) as caught:
        call(*arguments, **options)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("outputs", "lses", "error", "match"),
    [
        ([], [], ShapeError, "at least one; got 0 and 0"),
        (O[:0], S[:0], ShapeError, "at least one partial, got none"),
        (list(O), list(S)[:1], ShapeError, "as many outputs as lses, and at least one; got 2 and 1"),
        (list(O), S[:1], ShapeError, "got 2 and 1"),
        (O, S.T, ShapeError, r"has an lse \(n, ...\), got \(2, 3, 4\) and \(3, 2\): transpose"),
        (O, S[..., None], ShapeError, r"got \(2, 3, 4\) and \(2, 3, 1\)"),
        (O[0, 0], np.float32(0), ShapeError, r"got \(4,\) and \(\)"),
        ([np.float32(1)], [np.float32(0)], ShapeError, r"got \(\) and \(\)"),
        (list(O), S[0], ShapeError, "got 2 and 3"),
        ([O[0], O[1, :2]], list(S), ShapeError, r"one shape, got \(3, 4\) and \(2, 4\)"),
        (list(O), [S[0], S[1, :2]], ShapeError, r"got \(3, 4\) and \(2,\)"),
        (list(O), np.float32(0), ShapeError, "lses must be a sequence of arrays, or stacked"),
        ([O[0], O[1].astype("f8")], list(S), DTypeError, "one dtype, got float32 and float64: convert one"),
        (O, S.astype("f8"), DTypeError, "lse of an output of float32 must be float32, got float64"),
        (O.astype("f8"), S, DTypeError, "lse of an output of float64 must be float64, got float32"),
        (O.astype("f2"), S.astype("f2"), DTypeError, "float16 must be float32, got float16"),
        (O.astype(ml_dtypes.bfloat16), S.astype("i4"), DTypeError, "lses must hold float64, .*, got int32"),
        (O.astype("i8"), S, DTypeError, "outputs must hold float64, float32, float16 or bfloat16, got int64"),
        (O.astype("c8"), S, DTypeError, "got complex64"),
        (O.astype(np.longdouble), S, DTypeError, "outputs must hold"),
        (O.astype(ml_dtypes.float8_e5m2), S, DTypeError, "outputs must hold"),
        (T.to(torch.float8_e5m2), U, DTypeError, "outputs must hold"),
        (T.to(torch.complex64), U, DTypeError, "outputs must hold"),
        ([None], [None], DTypeError, "got None"),
        ("ab", "cd", DTypeError, "got str"),
        (T, S, DTypeError, "one array-API library, got numpy and torch"),
        (list(O), [U[0], S[1]], DTypeError, "got numpy and torch"),
        (T.clone().requires_grad_(), U, DTypeError, "outputs must not record gradients"),
        (T, U.clone().requires_grad_(), DTypeError, "lses must not record gradients"),
        (
            T.to("meta"),
            U,
            DTypeError,
            "outputs must be a strided torch tensor on the CPU, got one on device meta",
        ),
        (T.to_sparse(), U, DTypeError, "outputs must be a strided torch tensor on the CPU"),
        (np.ma.masked_array(O), S, DTypeError, "plain array, got a masked one"),
    ],
)
def test_partials(outputs, lses, error, match):
    for call, more in ((merge_outputs, ()), (merge_outputs_ragged, ([0, 2],))):
        if call is merge_outputs_ragged and match == "at least one partial, got none":
            continue
        refused(call, outputs, lses, *more, error=error, match=match)


def test_arrays_of_other_libraries():
    jax = pytest.importorskip("jax.numpy")
    refused(
        *(merge_outputs, jax.ones((2, 3, 4)), jax.zeros((2, 3))),
        error=DTypeError,
        match="outputs must be NumPy arrays or torch CPU tensors, got jax.*'s: use numpy.asarray",
    )


@pytest.mark.parametrize("base", ["10", 10, None, 2.0])
def test_bases(base):
    refused(merge_outputs, O, S, base=base, error=OptionError, match='base must be "e" or "2"')
    refused(merge_output_into, O[0], S[0], O[1], S[1], base=base, error=OptionError, match="base must be")


@pytest.mark.parametrize(
    ("indptr", "error", "match"),
    [
        ([0, 1], OptionError, "from 0 to 2, the length of axis 0, got 0 to 1"),
        ([1, 2], OptionError, "got 1 to 2"),
        ([0, 2, 1, 2], OptionError, "must not decrease, group 1 has length -1"),
        ([], ShapeError, "got \\(0,\\): begin it with 0"),
        ([[0, 2]], ShapeError, "must have shape"),
        ([0.0, 2.0], DTypeError, "must hold integers, got float64"),
    ],
)
def test_indptr(indptr, error, match):
    refused(merge_outputs_ragged, O, S, indptr, error=error, match=match)


def fresh(**changes):
    """An out that fits, with some of its two replaced."""
    pair = {"output": np.full((3, 4), 7, np.float32), "lse": np.full(3, 7, np.float32)} | changes
    return pair["output"], pair["lse"]


@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        (O[0], OptionError, r"out must be a pair \(output, lse\), got ndarray"),
        ((O[0],), OptionError, "out must be a pair"),
        (fresh(output=[1.0]), DTypeError, r"out\[0\] must be a NumPy array, as the partials are, got list"),
        (
            fresh(output=torch.ones(3, 4)),
            DTypeError,
            "must be a NumPy array, as the partials are, got Tensor",
        ),
        (fresh(output=np.ma.ones((3, 4), "f4")), DTypeError, "got MaskedArray"),
        (fresh(output=np.ones((3, 5), "f4")), ShapeError, r"out\[0\] must have shape \(3, 4\), got \(3, 5\)"),
        (fresh(lse=np.ones((1, 3), "f4")), ShapeError, r"out\[1\] must have shape \(3,\), got \(1, 3\)"),
        (fresh(output=np.ones((3, 4))), DTypeError, r"out\[0\] must have dtype float32, got float64"),
        (fresh(output=np.ones((3, 4), ">f4")), DTypeError, r"out\[0\] must have dtype float32"),
        (fresh(lse=np.ones(3, "f2")), DTypeError, r"out\[1\] must have dtype float32, got float16"),
        (fresh(output=readonly(O[0])), OptionError, r"out\[0\] must be writable, got a read-only array"),
        (fresh(lse=np.broadcast_to(S[0, :1], 3)), OptionError, r"out\[1\] must be writable"),
        (
            fresh(lse=np.lib.stride_tricks.as_strided(S[0].copy(), (3,), (0,))),
            OptionError,
            "some that share it",
        ),
        (fresh(output=O[1]), OptionError, r"out\[0\] must not overlap outputs"),
        (fresh(lse=S[1]), OptionError, r"out\[1\] must not overlap lses"),
        (fresh(lse=O[1, 0, :3]), OptionError, r"out\[1\] must not overlap outputs"),
    ],
)
def test_out(out, error, match):
    before = O.copy(), S.copy()
    refused(merge_outputs, O, S, out=out, error=error, match=match)
    assert (before[0] == O).all()
    assert (before[1] == S).all()
    for array in out if isinstance(out, tuple) else ():
        assert len(np.unique(np.asarray(array))) == 1


def test_the_two_of_out_apart():
    room = np.ones(12, np.float32)
    refused(
        *(merge_outputs, O, S),
        out=(room.reshape(3, 4), room[:3]),
        error=OptionError,
        match="must not overlap",
    )


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"output": readonly(O[0])}, OptionError, "output must be writable, got a read-only array: copy it"),
        ({"lse": readonly(S[0])}, OptionError, "lse must be writable"),
        ({"output": np.broadcast_to(O[0, :1], (3, 4))}, OptionError, "output must be writable"),
        ({"output": O[0].astype(">f4")}, DTypeError, "one dtype|must have dtype"),
        ({"output": O[0].tolist()}, DTypeError, "got list"),
        ({"output": torch.ones(3, 4)}, DTypeError, "got numpy and torch"),
        ({"other": O[0, :2]}, ShapeError, "one shape"),
        ({"other_lse": S[0, :2]}, ShapeError, r"has an lse \(...\), got \(3, 4\) and \(2,\)"),
        ({"mask": np.ones(3)}, DTypeError, "mask must be boolean, got float64: compare it"),
        ({"mask": np.ones(3, "u1")}, DTypeError, "mask must be boolean, got uint8"),
        ({"mask": [True] * 3}, DTypeError, "got list"),
        (
            {"mask": np.ones(2, bool)},
            ShapeError,
            r"mask must broadcast to the shape \(3,\) of the lse, got \(2,\)",
        ),
        ({"mask": np.ones((1, 3), bool)}, ShapeError, r"got \(1, 3\): give it an axis of length 1"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, DTypeError, "got numpy and torch"),
    ],
)
def test_in_place(changes, error, match):
    given = {"output": O[0] * 7, "lse": S[0] + 7, "other": O[1], "other_lse": S[1], "mask": None} | changes
    before = {name: np.asarray(array).copy() for name, array in given.items()}
    mask = given.pop("mask")
    refused(merge_output_into, *given.values(), mask=mask, error=error, match=match)
    for name, array in given.items():
        np.testing.assert_array_equal(np.asarray(array), before[name])


def test_in_place_apart():
    a, s = np.ones((3, 4), np.float32), np.ones(3, np.float32)
    refused(merge_output_into, a, s, a, S[0], error=OptionError, match="output must not overlap other,")
    refused(merge_output_into, a, s, a[::-1], S[0], error=OptionError, match="output must not overlap other,")
    refused(merge_output_into, a, s, O[0], s, error=OptionError, match="lse must not overlap other_lse")
    refused(merge_output_into, a, a[:, 0], O[0], S[0], error=OptionError, match="output must not overlap lse")


def test_in_place_without_gradients_only():
    leaf = torch.ones(3, 4, requires_grad=True)
    for call in (
        lambda: merge_output_into(leaf, U[0], T[1], U[1]),
        lambda: merge_output_into(T[0], U[0], leaf, U[1]),
    ):
        refused(call, error=DTypeError, match="must not record gradients")
    with torch.no_grad():
        refused(
            merge_output_into, leaf, U[0], T[1], U[1], error=DTypeError, match="output must be plain memory"
        )
