"""Options at the edge of the working type, and arrays that share memory: what is refused, what is right."""

import numpy as np
import pytest

import softcarry as sc
from softcarry.errors import OptionError

LARGE = 1e39
"""Finite in float64, infinite in float32."""


def inputs(tq=3, tk=4, d=8, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((1, 2, tokens, d)).astype(np.float32) for tokens in (tq, tk, tk))


@pytest.mark.parametrize("tq", [1, 40], ids=["few", "many"])
def test_a_table_of_pages_may_share_memory_with_the_output(tq):
    """What was checked is a copy: no write of the kernel can turn it into another address."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((1, 1, tq, 8)).astype(np.float32)
    k, v = rng.standard_normal((2, 4, 1, 7, 8)).astype(np.float32)
    want = sc.attention(q, k, v, block_table=np.array([[1, 2]]), kv_lengths=[14])
    buffer = np.zeros(tq * 8 + 8, np.float32)
    table = buffer.view(np.int64)[:2].reshape(1, 2)
    table[:] = [[1, 2]]
    out = buffer[: tq * 8].reshape(1, 1, tq, 8)
    np.testing.assert_array_equal(sc.attention(q, k, v, block_table=table, kv_lengths=[14], out=out), want)


@pytest.mark.parametrize("name", ["sinks", "alibi"])
def test_numbers_of_heads_may_share_memory_with_the_output(name):
    q, k, v = inputs()
    numbers = np.array([0.5, 0.25], np.float32)
    want = sc.attention(q, k, v, **{name: numbers})
    buffer = np.zeros(48, np.float32)
    buffer[:2] = numbers
    got = sc.attention(q, k, v, **{name: buffer[:2]}, out=buffer.reshape(1, 2, 3, 8))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": LARGE},
        {"scale": 10**400},
        {"softcap": LARGE},
        {"softcap": 1e-46},
        {"alibi": [LARGE, 0.0]},
        {"alibi": [np.nan, 0.0]},
        {"sinks": [LARGE, 0.0]},
        {"sinks": [np.nan, 0.0]},
        {"rescale_threshold": 20.5},
    ],
    ids=str,
)
def test_what_the_working_type_lacks_is_refused(options):
    q, k, v = inputs()
    (name,) = options
    with pytest.raises(OptionError, match=f"^{name} must"):
        sc.attention(q, k, v, **options)


@pytest.mark.parametrize("tq", [1, 40], ids=["few", "many"])
@pytest.mark.parametrize("rows", [True, False], ids=["of each row", "of all rows"])
def test_a_finite_bias_masks_nothing(tq, rows):
    """The lowest float64 is a score like any other, though float32 has none as low: keys weigh the same."""
    q, k, v = inputs(tq=tq)
    lowest = np.finfo(np.float64).min
    bias = np.full((tq if rows else 1, 4), lowest)
    mean = v.astype(np.float64).mean(axis=2, keepdims=True)
    error = np.abs(sc.attention(q, k, v, bias=bias) - mean)
    # Equal terms: four products and sums of float32 values.
    assert (error <= 8 * 2.0**-24 * np.abs(v).sum(axis=2, keepdims=True)).all()
    assert (sc.attention(q, k, v, bias=np.where(np.arange(4) == 1, 0.0, bias)) == v[:, :, 1:2]).all()


@pytest.mark.parametrize("tq", [1, 40], ids=["few", "many"])
def test_the_carry_of_an_infinite_score_is_that_of_the_algebra(tq):
    q, k, v = inputs(tq=tq)
    carry = sc.attention_carry(q, k, v, bias=np.array([0.0, np.inf, 0.0, 0.0]))
    want = sc.Carry.of(np.array([0.0, np.inf], np.float32), np.ones((2, 1), np.float32))
    assert (np.asarray(carry.m) == want.m).all()
    assert np.isnan(carry.l).all()
    assert np.isnan(want.l)
    assert (np.asarray(carry.lse) == np.inf).all()


def test_torch_knows_that_an_output_has_changed():
    torch = pytest.importorskip("torch")
    q = torch.ones(1, 1, 2, 4)
    out = torch.zeros(1, 1, 2, 4)
    before = out._version
    sc.attention(q, q, q, out=out)
    assert out._version > before


def test_a_mask_of_rows_may_not_share_memory_with_what_is_merged_into():
    output = np.arange(16, dtype=np.float32).reshape(4, 4)
    mask = output.view(bool).ravel()[:4]
    other, lse = np.full((4, 4), 5, np.float32), np.zeros(4, np.float32)
    with pytest.raises(OptionError, match="mask"):
        sc.merge_output_into(output, lse, other, lse.copy(), mask=mask)


@pytest.mark.parametrize("name", ["block_table", "kv_lengths", "cu_seqlens"])
def test_lists_that_are_no_arrays_are_refused_by_name(name):
    q, k, v = inputs()
    options = {"block_table": [[0], [0, 1]], "kv_lengths": [[1], [1, 2]], "cu_seqlens": [[0], [1, 2]]}
    extra = {"kv_lengths": [1]} if name == "block_table" else {}
    with pytest.raises(sc.SoftcarryError, match=name):
        sc.attention(q, k, v, **{name: options[name]}, **extra)
