"""The table against public sources, the lookup, merges across libraries, and real calls of what is here."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import softcarry as sc
from convention_cases import CASES, INF, LN2, NAN, written
from softcarry.errors import OptionError

U = 2.0**-24


def test_the_table_says_what_the_sources_say():
    assert list(sc.conventions) == list(CASES)
    for name, case in CASES.items():
        entry = sc.conventions[name]
        assert entry.name == name
        assert entry.base == case.base
        assert entry.source
        assert entry.versions
        if not entry.output_layout.startswith("..."):
            assert entry.output_layout.replace(" ", "") == case.output
            assert entry.lse_layout.replace(" ", "") == case.lse
        if case.kind == "lse":
            np.testing.assert_equal(entry.empty_written, case.empty)


def test_every_related_name_exists_and_is_another():
    for entry in sc.conventions.values():
        assert entry.name not in entry.related
        assert all(other in sc.conventions for other in entry.related)


def test_lookup():
    assert sc.conventions["Flash_Attn Varlen"] is sc.conventions["flash-attn-varlen"]
    assert "vllm" in sc.conventions
    assert "nothing" not in sc.conventions
    assert sc.conventions.get("nothing") is None
    with pytest.raises(OptionError, match=r"'flashinfr': the closest are flashinfer") as caught:
        sc.conventions["flashinfr"]
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith('"')
    with pytest.raises(OptionError, match=r"'zzz': print\(softcarry.conventions\) lists all"):
        sc.conventions["zzz"]


def test_the_table_is_read_only():
    with pytest.raises(TypeError):
        sc.conventions["mine"] = sc.conventions["vllm"]
    with pytest.raises(AttributeError):
        sc.conventions["vllm"].base = "2"


def test_printing():
    lines = repr(sc.conventions).splitlines()
    assert lines[0].split() == ["name", "base", "output", "lse", "lse", "dtype", "empty"]
    assert [line.split()[0] for line in lines[1:]] == list(sc.conventions)
    rows = sc.conventions.rows()
    assert [row["name"] for row in rows] == list(sc.conventions)
    assert len({tuple(row) for row in rows}) == 1
    markdown = sc.conventions.describe().splitlines()
    assert len(markdown) == len(rows) + 2
    assert len({line.count("|") for line in markdown}) == 1


# Merging: keys split over libraries, each writing in its own way, against the whole in float64.


def attend(scores, values):
    """Return the output and lse of rows (h, t), keys last, in float64 by plain loops; 0 and −inf if empty."""
    output, lse = np.zeros((*scores.shape[:-1], values.shape[-1])), np.full(scores.shape[:-1], -INF)
    for row in np.ndindex(scores.shape[:-1]):
        live = [key for key in range(scores.shape[-1]) if scores[row][key] > -INF]
        if live:
            top = max(scores[row][key] for key in live)
            weights = {key: math.exp(scores[row][key] - top) for key in live}
            total = math.fsum(weights.values())
            lse[row] = top + math.log(total)
            for d in range(values.shape[-1]):
                output[row][d] = math.fsum(weights[key] * values[row][key][d] for key in live) / total
    return output, lse


def as_library(name, output, lse):
    """Return packed rows (h, t) as a library writes them, in float32."""
    case = CASES[name]
    if "b" in case.output:
        output, lse = output[None], lse[None]
    return written(case, SimpleNamespace(output=output, lse=lse, empty=lse == -INF))


def decode_packed(name, output, lse):
    carry = sc.conventions[name].decode(*as_library(name, output, lse))
    if carry.m.ndim == 3:
        carry = sc.Carry(carry.m[0], carry.l[0], carry.o[0], carry.base)
    return carry


@pytest.mark.parametrize(
    "names",
    [
        ("flashinfer", "flash-attn"),
        ("flash-attn", "flashinfer"),
        ("flashinfer", "aten-flash-cpu", "vllm"),
        ("trtllm-gen", "vllm-dcp-base-2", "torch-flex-operator"),
        ("aten-efficient", "jax-nn", "natten", "sglang", "flash-attn-3", "keops"),
    ],
)
def test_carries_of_different_libraries_merge_right(names):
    rng = np.random.default_rng(11)
    scores, values = 4 * rng.standard_normal((3, 7, 48)), rng.standard_normal((3, 7, 48, 5))
    parts = np.array_split(np.arange(48), len(names))
    # Row 0 is empty in the first part, row 1 in the last, row 2 in all: every library's empty value is met.
    scores[:, 0, parts[0]], scores[:, 1, parts[-1]], scores[:, 2] = -INF, -INF, -INF
    carries = [
        decode_packed(name, *attend(scores[..., keys], values[..., keys, :]))
        for name, keys in zip(names, parts, strict=True)
    ]
    merged = sc.Carry.merge(*carries)
    output, lse = attend(scores, values)
    assert np.all(merged.lse[:, 2] == -INF)
    assert np.all(merged.output[:, 2] == 0)
    live = lse > -INF
    # Each part's lse is off by one rounding to float32 and at most three of a change of base, together
    # 4·u·|lse|, and its weights err by as much; merging K parts adds (K + ln K + (2 + ε)K + ε)·u with ε ≤ 2.
    parts_lse = np.stack([attend(scores[..., keys], values[..., keys, :])[1] for keys in parts])
    size = np.max(np.abs(np.where(np.isinf(parts_lse), 0, parts_lse)), axis=0)
    n = len(names)
    relative = U * (4 * size + 5 * n + math.log(n) + 4)
    assert np.all(np.abs(merged.lse[live] - lse[live]) <= (relative + 2 * U * np.abs(lse))[live])
    bound = 2 * relative[..., None] * np.max(np.abs(values), axis=-2)
    assert np.all(np.abs(merged.output - output)[live] <= bound[live])


def test_the_wrong_base_is_seen_by_that_test():
    rng = np.random.default_rng(11)
    scores, values = 4 * rng.standard_normal((3, 7, 48)), rng.standard_normal((3, 7, 48, 5))
    halves = [(scores[..., :24], values[..., :24, :]), (scores[..., 24:], values[..., 24:, :])]
    first = sc.conventions["sglang"].decode(*as_library("flashinfer", *attend(*halves[0])))
    second = decode_packed("vllm", *attend(*halves[1]))
    # The error that a base-2 lse makes under natural log is 10 % and more, not rounding.
    assert np.max(np.abs((first | second).output - attend(scores, values)[0])) > 0.1


def one_row(name, lse, output, **options):
    """Decode a single row of one value."""
    axes = CASES[name].output
    shape = (1,) * (len(axes) - 1)
    return sc.conventions[name].decode(
        np.full((*shape, 1), output, np.float32), np.full(shape, lse, np.float32), **options
    )


@pytest.mark.parametrize("name", ["flash-attn-varlen", "vllm", "flashinfer", "vllm-dcp"])
def test_empty_parts_in_either_order(name):
    empty = one_row(name, -INF, NAN)
    block = one_row(name, 0.25, 3.0)
    assert (empty | empty).lse.item() == -INF
    assert (empty | empty).output.item() == 0
    for merged in (empty | block, block | empty):
        assert (merged.m.item(), merged.output.item()) == (0.25, 3.0)


@pytest.mark.parametrize("lse", [-6e4, -2e30, -3e38, 1e30])
def test_there_is_no_finite_sentinel_where_the_library_has_none(lse):
    carry = one_row("flashinfer", lse, 2.0) | one_row("flashinfer", lse, 4.0)
    # Two equal masses: the mean of the outputs, whatever their size.
    assert carry.output.item() == 3.0


@pytest.mark.parametrize("gap", [20.0, 88.5, 104.0, 711.0, 1e8])
def test_gaps_beyond_the_range_of_exp(gap):
    for first, second in [(0.0, -gap), (gap, 0.0)]:
        carry = one_row("vllm", first, 1.0) | one_row("vllm", second, 3.0)
        share = math.exp(-gap)
        assert abs(carry.output.item() - (1 + 3 * share) / (1 + share)) <= 4 * U
        # m + ln l is rounded to float32 once, and ln l, at most ln 2, once before.
        assert abs(carry.lse.item() - (first + math.log1p(share))) <= U * (abs(first) + 1)


def test_a_common_offset_of_1e8():
    first, second = np.float32(1e8), np.float32(1e8 + 8)
    carry = one_row("flash-attn", first, 1.0) | one_row("flash-attn", second, 0.0)
    assert abs(carry.output.item() - 1 / (1 + math.exp(8))) <= 8 * U / (1 + math.exp(8))


def test_bfloat16_partials_and_float32_partials():
    import ml_dtypes

    output = np.full((1, 1, 2), 1 / 3, np.float32)
    lse = np.zeros((1, 1), np.float32)
    rough = sc.conventions["vllm"].decode(output.astype(ml_dtypes.bfloat16), lse)
    merged = rough | sc.conventions["vllm"].decode(output, lse)
    # Kept as given: the mean of 1/3 in bfloat16 and 1/3 in float32, in float32.
    exact = (float(ml_dtypes.bfloat16(1 / 3)) + float(output[0, 0, 0])) / 2
    assert merged.o.dtype == np.float32
    assert np.all(np.abs(merged.output - exact) <= 2 * U * exact)


def test_155_splits_of_flash_attn_4():
    rng = np.random.default_rng(7)
    scores, values = 3 * rng.standard_normal((2, 3, 155 * 2)), rng.standard_normal((2, 3, 310, 4))
    scores[:, 1, :20] = -INF
    parts = [attend(scores[..., k : k + 2], values[..., k : k + 2, :]) for k in range(0, 310, 2)]
    output, lse = (np.stack([part[i] for part in parts]).astype(np.float32) for i in (0, 1))
    carry = sc.conventions["flash-attn-4-combine-varlen"].decode(
        np.einsum("nhtd->nthd", output), np.einsum("nht->nth", lse)
    )
    whole = sc.merge_ragged(carry, [0, 155])
    exact, exact_lse = attend(scores, values)
    # As above, with K = 155 parts summed pairwise: 8 sums and one rescaling.
    relative = U * (np.abs(exact_lse) + 4 * 12 + math.log(155))
    assert np.all(np.abs(whole.lse[0] - exact_lse) <= relative + 2 * U * np.abs(exact_lse))
    assert np.all(np.abs(whole.output[0] - exact) <= 2 * relative[..., None] * np.max(np.abs(values)))


def test_strided_views_as_vllm_passes_them():
    rng = np.random.default_rng(2)
    # (tokens, heads) memory seen as (heads, tokens), every second token of a buffer; 5 is no multiple of 8.
    buffer, memory = (
        rng.standard_normal((12, 3, 5)).astype(np.float32),
        rng.standard_normal((12, 3)).astype(np.float32),
    )
    carry = sc.conventions["vllm"].decode(buffer[::2], memory[::2].T)
    again = sc.conventions["vllm"].decode(buffer[::2].copy(), memory[::2].T.copy())
    np.testing.assert_array_equal(carry.o, again.o)
    np.testing.assert_array_equal(carry.m, memory[::2].T)


def test_equal_heads_and_tokens_cannot_be_told_apart():
    lse = np.arange(9, dtype=np.float32).reshape(3, 3)
    output = np.zeros((3, 3, 2), np.float32)
    packed, first = (
        sc.conventions["vllm"].decode(output, lse),
        sc.conventions["flashinfer"].decode(output, lse),
    )
    # Both are accepted: which is right is what the name of the convention says.
    np.testing.assert_array_equal(packed.m, first.m.T)


def test_a_sink_after_an_empty_range():
    sink = sc.Carry(
        np.full((1, 1), 0.5, np.float32), np.ones((1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    )
    merged = one_row("flash-attn-varlen", INF, 0.0) | sink
    assert (merged.lse.item(), merged.output.item()) == (0.5, 0.0)


def test_decoding_inside_jax_jit():
    jax = pytest.importorskip("jax")
    output = np.array([[[[1.0, 2.0], [3.0, NAN]]], [[[0.0, 0.0], [NAN, NAN]]]], np.float32)
    lse = np.array([[[0.5], [-INF]], [[INF], [INF]]], np.float32)
    decode = sc.conventions["flash-attn"].decode

    def rows(output, lse):
        carry = decode(output, lse)
        return carry.m, carry.output

    traced, eager = jax.jit(rows)(output, lse), rows(output, lse)
    for left, right in zip(traced, eager, strict=True):
        np.testing.assert_array_equal(np.asarray(left), right)
    # Live, empty, empty, and a NaN that reaches its row.
    np.testing.assert_array_equal(eager[0][..., 0], [[0.5, -INF], [-INF, INF]])
    assert np.all(np.isnan(eager[1][1, 1]))


def test_gradients_pass_through_decode_and_encode():
    torch = pytest.importorskip("torch")
    output, lse = (
        torch.ones(2, 2, 3, requires_grad=True),
        torch.tensor([[0.0, -INF], [INF, 1.0]], requires_grad=True),
    )
    convention = sc.conventions["flash-attn-varlen"]
    again, lse_again = convention.encode(convention.decode(output, lse.T))
    (again.sum() + torch.where(torch.isfinite(lse_again), lse_again, 0.0).sum()).backward()
    live = torch.isfinite(lse)
    assert torch.equal(output.grad[..., 0], live.float())
    assert torch.equal(lse.grad, live.float())


# Real calls. Query 2 has no live key.


def inputs(dtype=np.float32):
    """Return q, k, v of shape (2, 3, n, 16), exact in a dtype, and their scores in float64."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, n, 16)).astype(np.float32).astype(dtype) for n in (5, 9, 9))
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) / 4
    scores[:, :, 2] = -INF
    return q, k, v, scores


def assert_lse_of(carry, scores, *, u=U, exponential=0.0):
    found, live = np.asarray(carry.lse), np.arange(5) != 2
    assert np.all(found[:, :, 2] == -INF)
    assert np.all(np.asarray(carry.o)[:, :, 2] == 0)
    exact = np.log(np.sum(np.exp(scores[:, :, live]), axis=-1))
    # Dot products of depth 16, a sum of 9 terms and 8 more roundings, each of at most the size of a score.
    # Terms that err relatively by no more than some number move the lse by no more than that.
    bound = 33 * u * np.max(np.abs(scores[:, :, live])) + exponential
    assert np.max(np.abs(found[:, :, live] - exact)) <= bound


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_torch_flash_on_the_cpu(dtype):
    torch = pytest.importorskip("torch", reason="decodes a real call of torch")
    import ml_dtypes

    rounded = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    *arrays, scores = inputs(rounded)
    q, k, v = (torch.from_numpy(x.astype(np.float64)).to(getattr(torch, dtype)) for x in arrays)
    mask = torch.zeros(5, 9, dtype=q.dtype)
    mask[2] = -INF
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
    assert torch.all(lse[:, :, 2] == 0), "the operator's own empty value"
    convention = sc.conventions["aten-flash-cpu"]
    carry = convention.decode(output, lse)
    # For 16-bit inputs the operator has a coarser exponential (6.4e-5 seen), good enough for their dtype.
    exponential = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 0.0)
    assert_lse_of(carry, scores, u=2.0**-53 if dtype == "float64" else U, exponential=exponential)
    again, lse_again = convention.encode(carry, dtype=output.dtype)
    assert torch.equal(again, output)
    assert torch.equal(lse_again, lse)
    assert lse_again.dtype == lse.dtype


def test_the_flex_attention_operator_of_torch():
    torch = pytest.importorskip("torch", reason="decodes a real call of torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    operator = pytest.importorskip("torch._higher_order_ops.flex_attention").flex_attention
    *arrays, scores = inputs()
    mask = flex.create_block_mask(lambda b, h, i, j: i != 2, None, None, 5, 9, device="cpu", BLOCK_SIZE=16)
    output, lse2, *_ = operator(
        *map(torch.from_numpy, arrays), lambda score, b, h, i, j: score, mask.as_tuple(), 0.25, {}
    )
    assert_lse_of(sc.conventions["torch-flex-operator"].decode(output, lse2), scores)
    # The API multiplies by ln 2, and nothing else.
    assert_lse_of(sc.conventions["torch-flex"].decode(output, lse2 * LN2), scores)


def test_jax_dot_product_attention():
    jax = pytest.importorskip("jax", reason="decodes a real call of JAX")
    *arrays, scores = inputs()
    q, k, v = (jax.numpy.asarray(np.swapaxes(x, 1, 2)) for x in arrays)
    mask = jax.numpy.ones((1, 1, 5, 9), bool).at[:, :, 2].set(False)
    output, lse = jax.nn.dot_product_attention(q, k, v, mask=mask, return_residual=True)
    assert np.all(np.asarray(output[:, 2]) != 0), "an empty row gets a mean of the values"
    convention = sc.conventions["jax-nn"]
    assert_lse_of(convention.decode(output, lse), scores)
    half = [x.astype(jax.numpy.bfloat16) for x in (q, k, v)]
    output, lse = jax.nn.dot_product_attention(*half, mask=mask, return_residual=True)
    carry = convention.decode(output, lse)
    assert np.all(np.isneginf(np.asarray(carry.m)) == (np.arange(5) == 2))
    _, lse_again = convention.encode(carry, dtype=output.dtype)
    assert lse_again.dtype == lse.dtype
    live = np.arange(5) != 2
    np.testing.assert_array_equal(np.asarray(lse_again)[:, live], np.asarray(lse)[:, live])


def test_pallas_decode():
    jax = pytest.importorskip("jax", reason="decodes a real call of JAX")
    library = pytest.importorskip("jax.experimental.pallas.ops.gpu.decode_attention")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 16)).astype(np.float32) for n in (16, 32, 32))
    output, (l, m) = library.mqa(
        *map(jax.numpy.asarray, (q, k, v)),
        kv_seq_len=jax.numpy.asarray([0, 20]),
        k_splits=1,
        block_k=16,
        interpret=True,
        return_residuals=True,
    )
    carry = sc.conventions["pallas-decode"].decode(output, (l, m))
    scores = np.einsum("bhd,bkd->hbk", q.astype(float), k.astype(float))[..., :20] / 4
    exact, exact_lse = attend(scores, np.broadcast_to(v.astype(float)[:, :20], (16, 2, 20, 16)))
    assert np.all(np.isneginf(np.asarray(carry.lse[:, 0])))
    assert np.all(np.asarray(carry.output[:, 0]) == 0)
    # Depth 16, 20 keys in two blocks and a rescaling: (16 + 20 + 8)·u of a score; twice that for the output.
    bound = 44 * U * np.max(np.abs(scores))
    assert np.max(np.abs(np.asarray(carry.lse[:, 1]) - exact_lse[:, 1])) <= bound
    assert np.max(np.abs(np.asarray(carry.output[:, 1]) - exact[:, 1])) <= 2 * bound * np.max(np.abs(v))
