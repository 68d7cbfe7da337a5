"""What the emulated kernel refuses, in one line and before any work."""

import math

import numpy as np
import pytest

from emulated_inputs import problem
from softcarry.errors import DTypeError, OptionError, ShapeError, SoftcarryError
from softcarry.numerics import EmulatedKernel


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"l_format": "bfloat17"}, "bfloat17"),
        ({"key_block": 0}, "key_block is a whole number of at least 1; got 0"),
        ({"key_block": 2.5}, "key_block"),
        ({"key_block": True}, "key_block"),
        ({"splits": -1}, "splits is a whole number of at least 1; got -1"),
        ({"order": "sideways"}, "order must be"),
        ({"order": ("permuted", 1.5)}, "permuted"),
        ({"rescale": "never"}, "rescale must be"),
        ({"rescale": ("lazy", -1.0)}, "rescale must be"),
        ({"rescale": ("bound", math.inf)}, "rescale must be"),
        ({"rounding": "nearest"}, "'nearest-even'"),
        ({"fill": math.nan}, "fill must be"),
        ({"fill": "zero"}, "fill must be"),
        ({"empty": "garbage"}, "empty is one of 'zero', 'nan', 'mean'"),
        ({"seed": -1}, "seed"),
        ({"l_from": "p"}, "l_from"),
        ({"lse_base": "10"}, "lse_base"),
        ({"lse_empty": "none"}, "lse_empty"),
    ],
    ids=str,
)
def test_bad_options(options, says):
    with pytest.raises(OptionError) as raised:
        EmulatedKernel(**options)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def bad_calls():
    q, k, v = problem()
    yield DTypeError, "int64", (q.astype(int), k, v), {}
    yield DTypeError, "list", (q.tolist(), k, v), {}
    yield DTypeError, "one dtype", (q, k.astype(np.float32), v), {}
    yield ShapeError, "four axes", (q[0], k, v), {}
    yield ShapeError, "k must have q's batch and width", (q, k[..., :4], v), {}
    yield ShapeError, "k must have q's batch and width", (q, k[:1], v), {}
    yield ShapeError, "v must have k's batch, heads and keys", (q, k, v[:, :, :5]), {}
    yield ShapeError, "multiple of the heads", (q, k.repeat(3, 1), v.repeat(3, 1)), {}
    yield ShapeError, "at least 1", (q[..., :0], k[..., :0], v), {}
    yield ShapeError, "mask must broadcast", (q, k, v), {"mask": np.ones((3, 36), bool)}
    yield ShapeError, "mask must broadcast", (q, k, v), {"mask": np.ones((1, 2, 2, 3, 37), bool)}
    yield DTypeError, "mask must be", (q, k, v), {"mask": np.ones((3, 37), int)}
    yield OptionError, "scale must be", (q, k, v), {"scale": math.nan}
    yield OptionError, "scale must be", (q, k, v), {"scale": "8"}


@pytest.mark.parametrize(("kind", "says", "arrays", "options"), list(bad_calls()))
def test_bad_calls(kind, says, arrays, options):
    with pytest.raises(SoftcarryError) as raised:
        EmulatedKernel()(*arrays, **options)
    assert type(raised.value) is kind
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
