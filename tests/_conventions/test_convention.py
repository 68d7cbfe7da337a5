"""Decoding and encoding: every entry against rows from plain float64 loops, and what each one refuses."""

import math

import numpy as np
import pytest

import softcarry as sc
from convention_cases import CASES, CU_SEQLENS, DECODABLE, INF, LN2, NAN, options_for, rows_for, written
from softcarry.errors import DTypeError, OptionError, ShapeError

U = 2.0**-24


def library_arrays(name, **options):
    case = CASES[name]
    rows = rows_for(case, **options)
    output, lse = written(case, rows, unnormalised=not sc.conventions[name].normalised)
    return case, rows, output, lse


def as_list(lse):
    return list(lse) if isinstance(lse, tuple) else [lse]


def frozen(*arrays):
    for array in arrays:
        array.flags.writeable = False


def same_bits(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(np.signbit(left), np.signbit(right))


@pytest.mark.parametrize("name", DECODABLE)
def test_decode_gives_the_rows(name):
    case, rows, output, lse = library_arrays(name)
    frozen(output, *as_list(lse))
    carry = sc.conventions[name].decode(output, lse, **options_for(case))
    assert carry.m.shape == rows.m.shape
    assert carry.o.shape == rows.o.shape
    assert carry.base == case.base
    # One rounding to float32 of the lse (of m and l each), then at most 4 more from a change of base and from
    # a logarithm that is exact to an ulp, each of at most |m| + |ln l| + |lse| < 3·(|lse| + ln 9 + 1).
    found, exact = carry.lse[~rows.empty], rows.lse[~rows.empty]
    assert np.all(np.abs(found - exact) <= 15 * U * (np.abs(exact) + math.log(9) + 1))
    # The output is rounded once, for a pair once more by each product, quotient and by l.
    assert np.all(np.abs(carry.output - rows.output) <= 5 * U * np.abs(rows.output))
    assert np.all(carry.m[rows.empty] == -INF)
    assert np.all(carry.l[rows.empty] == 0)
    assert np.all(carry.o[rows.empty] == 0)


@pytest.mark.parametrize("name", DECODABLE)
def test_decode_then_encode_is_lossless(name):
    case, _, output, lse = library_arrays(name)
    convention = sc.conventions[name]
    output[output == output.flat[3]] = -0.0
    if case.kind == "lse":
        lse[(1,) * (lse.ndim - 1) + (0 if lse.shape[-1] == 1 else 1,)] = -0.0
    again, lse_again = convention.encode(
        convention.decode(output, lse, **options_for(case)), **options_for(case)
    )
    for before, after in zip(as_list(lse), as_list(lse_again), strict=True):
        if case.lse == "bhs":
            assert np.all(after[:, :, 3][1] == INF)
            live = ~np.isnan(before[..., :-1])
            before, after = np.where(live, before[..., :-1], 0), np.where(live, after, 0)
        if convention.padding == 32:
            assert after.shape[-1] == 32
            assert np.all(after[..., 7:] == INF)
            after = after[..., :7]
        # Also the empty rows: what the library writes is what comes back.
        same_bits(after, before)
    if name == "pallas-decode":
        # out·(l + ε) and the division back round once each.
        assert np.all(np.abs(again - output) <= 2 * U * np.abs(output))
    else:
        same_bits(again, output)


@pytest.mark.parametrize("name", DECODABLE)
def test_encode_then_decode_keeps_output_and_lse(name):
    case = CASES[name]
    rows = rows_for(case, seed=1)
    carry = sc.Carry(*(array.astype(np.float32) for array in (rows.m, rows.l, rows.o)))
    convention = sc.conventions[name]
    again = convention.decode(*convention.encode(carry, **options_for(case)), **options_for(case))
    m, l, lse, lse_again = (x[~rows.empty] for x in (carry.m, carry.l, carry.lse, again.lse))
    # Base 2 and back: two roundings of m and of log2 l, one of their sum, two of the product with ln 2; and
    # the lse that it is compared with is itself rounded once.
    assert np.all(np.abs(lse_again - lse) <= U * (2 * np.abs(m) + 2 * np.log(l) + 4 * np.abs(lse)))
    assert np.all(np.abs(again.output - carry.output) <= 4 * U * np.abs(carry.output))
    assert np.all(again.m[rows.empty] == -INF)


@pytest.mark.parametrize("name", [name for name in DECODABLE if CASES[name].kind == "lse"])
def test_every_value_read_as_empty_is_the_identity(name):
    case, _, output, lse = library_arrays(name)
    convention = sc.conventions[name]
    values = [*convention.empty, *([] if convention.empty_below is None else [convention.empty_below])]
    assert -INF in values
    for value in values:
        position = tuple(0 for _ in lse.shape)
        first = tuple(0 for _ in range(output.ndim - 1))
        marked, garbage = lse.copy(), output.copy()
        marked[position] = value
        # Where the output decides, it decides for empty; elsewhere it is garbage that must not get through.
        garbage[first] = 0.0 if value in (0.0, INF) else NAN
        carry = convention.decode(garbage, marked, **options_for(case))
        whole = convention.decode(output, lse, **options_for(case))
        row = tuple(0 for _ in carry.m.shape)
        assert (carry.m[row], carry.l[row]) == (-INF, 0.0)
        assert np.all(carry.o[row] == 0)
        for merged in (carry | whole, whole | carry):
            assert merged.m[row] == whole.m[row]
            np.testing.assert_array_equal(merged.output[row], whole.output[row])


@pytest.mark.parametrize(
    "name", [name for name in DECODABLE if len(CASES[name].lse) > 1 and CASES[name].lse != "bhs"]
)
def test_a_transposed_lse_is_refused_with_the_expected_shape(name):
    _, _, output, lse = library_arrays(name)
    wrong = tuple(np.swapaxes(x, 0, -1) for x in as_list(lse))
    expected = as_list(lse)[0].shape
    with pytest.raises(ShapeError) as caught:
        sc.conventions[name].decode(output, wrong if len(wrong) == 2 else wrong[0])
    message = str(caught.value)
    assert f"{expected}" in message
    assert f"got {wrong[0].shape}" in message
    assert name in message
    assert "\n" not in message


def test_the_message_of_a_wrong_lse():
    output, lse = np.zeros((128, 32, 64), np.float32), np.zeros((32, 128), np.float32)
    with pytest.raises(ShapeError) as caught:
        sc.conventions["flashinfer"].decode(output, lse)
    assert str(caught.value) == (
        "lse of flashinfer is (tokens, heads) = (128, 32) for an output of (128, 32, 64); got (32, 128): "
        "transpose it, or use the convention 'flashinfer-states' or 'vllm' or 'sglang'"
    )


@pytest.mark.parametrize(
    "name", [name for name in DECODABLE if not sc.conventions[name].output_layout.startswith("...")]
)
def test_an_output_or_carry_with_other_axes_is_refused(name):
    case, _, output, lse = library_arrays(name)
    with pytest.raises(ShapeError, match=rf"output of {name} is \(.*\); got shape"):
        sc.conventions[name].decode(output[None], lse, **options_for(case))
    carry = sc.Carry.empty((2,) * 6, value_dim=3)
    with pytest.raises(ShapeError, match=rf"a carry for {name} is \(.*\); got shape"):
        sc.conventions[name].encode(carry, **options_for(case))


def test_a_mixed_convention_says_what_to_ask_for():
    convention = sc.conventions["sycl-tla"]
    with pytest.raises(OptionError, match=r"cannot be decoded: .*ask the library for m and l apart"):
        convention.decode(np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 1)))
    with pytest.raises(OptionError, match="cannot be encoded"):
        convention.encode(sc.Carry.empty((1, 1, 1), value_dim=2))


def test_wrong_kinds_of_arguments():
    output, lse = np.zeros((4, 2, 3), np.float32), np.zeros((4, 2), np.float32)
    flashinfer, old = sc.conventions["flashinfer"], sc.conventions["flash-attn-varlen-before-2.6"]
    with pytest.raises(OptionError, match=r"gives a pair and no lse, got ndarray: .*\(output, \(l, m\)\)"):
        sc.conventions["pallas-decode"].decode(output, lse)
    with pytest.raises(OptionError, match="lse of flashinfer is one array, got 2 arrays"):
        flashinfer.decode(output, (lse, lse))
    with pytest.raises(DTypeError, match="lse of flashinfer must be real floating point"):
        flashinfer.decode(output, lse.astype(np.int32))
    with pytest.raises(DTypeError, match="lse of flashinfer is float32; got float16, which has lost digits"):
        flashinfer.decode(output, lse.astype(np.float16))
    with pytest.raises(DTypeError, match=r"empty is a boolean array.*got int64"):
        flashinfer.decode(output, lse, empty=np.zeros((4, 2), int))
    with pytest.raises(ShapeError, match=r"empty has the shape of the lse, \(4, 2\); got \(2, 4\)"):
        flashinfer.decode(output, lse, empty=np.zeros((2, 4), bool))
    with pytest.raises(OptionError, match="leave cu_seqlens out"):
        flashinfer.decode(output, lse, cu_seqlens=[0, 4])
    with pytest.raises(OptionError, match=r"keeps its lse per sequence, .*: pass cu_seqlens"):
        old.decode(output, lse[None])
    with pytest.raises(
        ShapeError, match=r"\(batch, heads, positions in a sequence\) = \(1, 2, 4\) or longer"
    ):
        old.decode(output, np.zeros((1, 2, 3), np.float32), cu_seqlens=[0, 4])
    with pytest.raises(OptionError, match="needs an o"):
        flashinfer.encode(sc.Carry.empty((2, 4)))
    with pytest.raises(OptionError, match="encode takes a Carry, got tuple: make one"):
        flashinfer.encode((output, lse))
    for missing in ((None, lse), (output, None)):
        with pytest.raises(DTypeError, match=r"expected an array .*got None"):
            flashinfer.decode(*missing)
    with pytest.raises(DTypeError, match="got None"):
        sc.conventions["pallas-decode"].decode(output, (None, lse))
    with pytest.raises(DTypeError, match=r"dtype must be real floating point .*got int32"):
        flashinfer.encode(flashinfer.decode(output, lse), dtype=np.int32)
    with pytest.raises(DTypeError, match="dtype must be one of numpy, the carry's library, got 'half-float'"):
        flashinfer.encode(flashinfer.decode(output, lse), dtype="half-float")


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_dtype_of_another_library_is_refused_by_name(name):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    one = torch.zeros if name == "torch" else jax.numpy.zeros
    carry = sc.conventions["flashinfer"].decode(one((4, 2, 3)), one((4, 2)))
    dtype = jax.numpy.float16 if name == "torch" else torch.float16
    with pytest.raises(DTypeError, match=f"dtype must be one of {name}, the carry's library"):
        sc.conventions["flashinfer"].encode(carry, dtype=dtype)


# Whether the rows known to be empty are marked, and what that makes of each ambiguous value.
@pytest.mark.parametrize(
    ("name", "value", "output_row", "read_as"),
    [
        ("aten-flash-cpu", 0.0, 0.0, "empty"),
        ("aten-flash-cpu", 0.0, 0.5, "live"),
        ("flash-attn", INF, 0.0, "empty"),
        ("flash-attn", INF, 7.0, "empty"),
        ("flash-attn", INF, NAN, "NaN"),
        ("flash-attn", NAN, NAN, "NaN"),
        ("flash-attn-3", INF, 0.0, "NaN"),
        ("natten", NAN, NAN, "empty"),
        ("flashinfer", -6e4, 0.5, "live"),
        ("flashinfer-sentinel", -6e4, 0.5, "empty"),
    ],
)
def test_ambiguous_values(name, value, output_row, read_as):
    axes = len(CASES[name].output)
    output = np.full((1,) * (axes - 1) + (2,), output_row, np.float32)
    lse = np.full((1,) * (axes - 1), value, np.float32)
    carry = sc.conventions[name].decode(output, lse)
    row = "empty" if carry.m.item() == -INF else "NaN" if np.isnan(carry.output).all() else "live"
    assert row == read_as
    mark = np.ones_like(lse, dtype=bool)
    assert sc.conventions[name].decode(output, lse, empty=mark).m.item() == -INF
    kept = sc.conventions[name].decode(output, lse, empty=~mark)
    assert kept.m.item() == value or (math.isnan(kept.m.item()) and math.isnan(value))


@pytest.mark.parametrize(
    ("name", "l", "m"),
    [("pallas-decode", 0.0, 0.5), ("pallas-decode-unnormalised", 64.0, -2.4e38), ("keops-pair", NAN, -INF)],
)
def test_an_empty_pair_is_the_identity_whatever_its_output_holds(name, l, m):
    convention = sc.conventions[name]
    pair = tuple(np.full((1, 1), {"l": l, "m": m}[which], np.float32) for which in CASES[name].kind)
    output = np.full((1, 1, 2), NAN, np.float32)
    pair = tuple(x[..., None] for x in pair) if name == "keops-pair" else pair
    carry = convention.decode(output, pair)
    assert (carry.m.item(), carry.l.item()) == (-INF, 0.0)
    assert np.all(carry.o == 0)
    _, pair_again = convention.encode(carry)
    assert sorted(x.item() for x in pair_again) == sorted([0.0, CASES[name].empty])


def test_a_mark_of_empty_rows_follows_packed_sequences():
    _, _, output, lse = library_arrays("flash-attn-varlen-before-2.6")
    empty = np.zeros(lse.shape, bool)
    empty[1, :, 1] = True
    carry = sc.conventions["flash-attn-varlen-before-2.6"].decode(
        output, lse, empty=empty, cu_seqlens=CU_SEQLENS
    )
    assert np.all((carry.m == -INF) == (np.arange(7) == 5))


def test_padding_is_cut_whatever_it_holds():
    _, rows, output, lse = library_arrays("aten-efficient")
    for name, length in [("aten-efficient", 7), ("aten-efficient", 32), ("xformers", 11)]:
        source = output if name == "aten-efficient" else np.swapaxes(output, 1, 2)
        for fill in (INF, NAN, 0.0, -INF):
            padded = np.full((*lse.shape[:2], length), fill, np.float32)
            padded[..., :7] = np.where(rows.empty, -INF, lse)
            carry = sc.conventions[name].decode(source, padded)
            np.testing.assert_array_equal(carry.m, np.where(rows.empty, -INF, lse))
    with pytest.raises(ShapeError, match=r"= \(2, 3, 7\) or up to a multiple of 32 for"):
        sc.conventions["aten-efficient"].decode(output, np.zeros((2, 3, 31), np.float32))
    with pytest.raises(ShapeError):
        sc.conventions["xformers"].decode(np.swapaxes(output, 1, 2), np.zeros((2, 3, 6), np.float32))


def test_16_bit_outputs_come_back_to_the_bit():
    import ml_dtypes

    rng = np.random.default_rng(3)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        output = rng.standard_normal((6, 2, 5)).astype(np.float32).astype(dtype)
        lse = rng.standard_normal((6, 2)).astype(np.float32)
        carry = sc.conventions["flashinfer"].decode(output, lse)
        assert carry.o.dtype == np.float32
        again, lse_again = sc.conventions["flashinfer"].encode(carry, dtype=np.dtype(dtype))
        assert again.dtype == dtype
        np.testing.assert_array_equal(again.view(np.uint16), output.view(np.uint16))
        same_bits(lse_again, lse)
    # A 16-bit lse is refused where the library gives float32, and kept where the library rounds it itself.
    output, lse = output[None], lse[None].astype(np.float16)
    again = sc.conventions["jax-nn"].encode(
        sc.conventions["jax-nn"].decode(output, lse), dtype=np.dtype(np.float16)
    )
    same_bits(again[0], output)
    same_bits(again[1], lse)


def test_float64_stays_float64_where_the_library_has_it():
    output, lse = np.full((1, 1, 2, 3), 1 / 3), np.full((1, 1, 2), 1 / 7)
    again, lse_again = sc.conventions["aten-flash-cpu"].encode(
        sc.conventions["aten-flash-cpu"].decode(output, lse)
    )
    same_bits(again, output)
    same_bits(lse_again, lse)
    assert (
        sc.conventions["torch-flex"].encode(sc.conventions["torch-flex"].decode(output, lse))[1].dtype
        == np.float32
    )


@pytest.mark.parametrize("library", ["torch", "jax.numpy", "array_api_strict"])
@pytest.mark.parametrize(
    "name", ["flashinfer-states", "aten-efficient", "flash-attn-varlen-before-2.6", "keops-pair", "jax-nn"]
)
def test_other_array_libraries_agree_with_numpy(library, name):
    xp = pytest.importorskip(library)
    case, _, output, lse = library_arrays(name)
    options = options_for(case)
    convention = sc.conventions[name]
    expected = convention.decode(output, lse, **options)
    foreign = [xp.asarray(x) for x in as_list(lse)]
    carry = convention.decode(
        xp.asarray(output), tuple(foreign) if len(foreign) == 2 else foreign[0], **options
    )
    for field in "mlo":
        np.testing.assert_array_equal(np.asarray(getattr(carry, field)), getattr(expected, field))
    again, lse_again = convention.encode(carry, **options)
    wanted, lse_wanted = convention.encode(expected, **options)
    for got, want in zip([again, *as_list(lse_again)], [wanted, *as_list(lse_wanted)], strict=True):
        assert type(got) is type(foreign[0])
        np.testing.assert_array_equal(np.asarray(got), want)


def test_a_carry_of_either_base_is_written_in_the_base_of_the_library():
    scores = np.random.default_rng(5).standard_normal((3, 7, 9))
    values = np.random.default_rng(6).standard_normal((3, 7, 9, 2))
    natural, binary = sc.Carry.of(scores, values), sc.Carry.of(scores / LN2, values, base="2")
    exact = np.log(np.sum(np.exp(scores), axis=-1))
    for carry in (natural, binary):
        _, lse2 = sc.conventions["flashinfer"].encode(carry)
        _, lse = sc.conventions["vllm"].encode(carry)
        # float64 within, one rounding to float32 at the end; twice its bound covers what float64 adds.
        assert np.all(np.abs(lse2.T * LN2 - exact) <= 2 * U * np.abs(exact) + 1e-12)
        assert np.all(np.abs(lse - exact) <= 2 * U * np.abs(exact) + 1e-12)


def test_decoding_makes_views_where_it_can():
    output = np.zeros((1, 4, 3, 5), np.float32)
    from softcarry._conventions import layouts

    assert np.shares_memory(layouts.to_canonical(np, output, "b t h d"), output)
    lse = np.asfortranarray(np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))[:, ::2]
    carry = sc.conventions["vllm"].decode(np.zeros((4, 3, 5), np.float32), lse)
    np.testing.assert_array_equal(carry.m, lse)
