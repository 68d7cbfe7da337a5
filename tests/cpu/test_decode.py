"""The kernel for few rows against the dense formula, and what no bit of it may depend on."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import softcarry as sc
from attention_agreement import assert_carry, assert_output, bounds_of
from attention_cases import Case, assert_same_bits, data, within
from attention_oracle import attention_of
from row_cases import DTYPES
from softcarry.cpu import decode, prefill

NAN, INF = np.nan, np.inf
NAMES = pytest.mark.parametrize("dtype", list(DTYPES))


@pytest.fixture(autouse=True)
def no_other_kernel(monkeypatch):
    """Calls that do not come to the kernel under test fail."""
    monkeypatch.setattr(prefill, "attend_queries", None)


def check(case: Case) -> None:
    q, k, v, options = case.build()
    truth = attention_of(q, k, v, **options)
    # Pieces are 2048 keys at least, or so many as are asked for.
    splits = options.get("splits") or 1
    bounds = bounds_of(truth, splits=splits, threshold=options.get("rescale_threshold", 0.0))
    assert_output(sc.attention(q, k, v, **options), truth, bounds)
    carry = sc.attention_carry(q, k, v, **options)
    assert_carry(carry, truth, bounds)


ROWS = [
    *itertools.product((1, 2, 3, 4, 7, 8), (1, 2, 3, 4)),
    *((16, 2), (32, 1), (1, 23), (5, 5), (1, 9)),
]
SHAPES = ((64, 64), (128, 128), (17, 59), (80, 40), (1, 7), (7, 1), (96, 200), (256, 16))
OPTION_SETS = (
    (),
    ("causal",),
    ("top-left", "window"),
    ("window",),
    ("mask",),
    ("bias",),
    ("alibi", "causal"),
    ("softcap", "scale"),
    ("mask", "bias", "alibi", "softcap", "window"),
    ("sinks", "mask", "splits"),
    ("threshold", "splits"),
)


@NAMES
@pytest.mark.parametrize(("group", "tq"), ROWS)
def test_every_number_of_rows(dtype, group, tq):
    """Groups and queries of all sizes, each with other depths, options and lengths."""
    for number, name in enumerate(("plain", "lengths", "paged")):
        at = 7 * group + 3 * tq + 5 * number
        d, dv = SHAPES[at % len(SHAPES)]
        options, tk = OPTION_SETS[at % len(OPTION_SETS)], (5, 127, 128, 300, 515)[at % 5]
        check(Case(2, 2 * group, 2, tq, tk, d, dv, dtype, structure=name, options=options, seed=at))


@NAMES
@pytest.mark.parametrize("options", OPTION_SETS, ids="-".join)
@pytest.mark.parametrize("group", [1, 3, 4, 12])
def test_every_option(dtype, options, group):
    for tq in (1, 2):
        for structure in ("plain", "packed pair", "paged"):
            check(
                Case(2, 2 * group, 2, tq, 260, 40, 72, dtype, structure=structure, options=options, seed=tq)
            )


@NAMES
@pytest.mark.parametrize(
    "layout",
    [
        "tokens before heads",
        "depth outermost",
        "padded",
        "every second",
        "reversed",
        "unaligned",
        "odd strides",
    ],
)
def test_layouts_change_no_bit(dtype, layout):
    """Nor do NaN around what is read, vectors that are copied first, or heads that are taken together."""
    case = Case(2, 12, 4, 2, 300, 40, 24, dtype, options=("causal",), seed=3)
    q, k, v, options = case.build()
    want = sc.attention(q, k, v, **options)
    for layouts in (
        (layout,) * 3,
        ("contiguous", layout, "contiguous"),
        ("contiguous", "contiguous", layout),
    ):
        q, k, v, options = replace(case, layouts=layouts).build()
        assert_same_bits(sc.attention(q, k, v, **options), want)


@NAMES
def test_heads_that_are_taken_together(dtype):
    """Where a token's heads lie side by side and there are units enough: no bit changes."""
    q, k, v = data(
        "normal", np.random.default_rng(8), (2, 16, 1, 16), (2, 8, 2300, 16), (2, 8, 2300, 9), DTYPES[dtype]
    )
    options = {"splits": 18, "causal": True, "alibi": 2.0 ** -np.arange(16.0), "sinks": np.arange(16.0)}
    want = sc.attention_carry(q, k, v, **options)
    k, v = (np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (k, v))
    assert_same_bits(sc.attention_carry(q, k, v, **options), want)
    truth = attention_of(q, k, v, **options)
    assert_carry(want, truth, bounds_of(truth, splits=18))


@NAMES
@pytest.mark.parametrize("page", [1, 3, 16, 100, 128])
def test_pages_change_no_bit(dtype, page):
    rng = np.random.default_rng(page)
    q, k, v = data("normal", rng, (1, 6, 2, 40), (1, 2, 300, 40), (1, 2, 300, 24), DTYPES[dtype])
    pages = -(-300 // page)
    numbers = rng.permutation(pages + 2)[:pages]
    caches = []
    for x in (k, v):
        cache = np.full((pages + 2, 2, page, x.shape[3]), NAN, x.dtype)
        for j in range(300):
            cache[numbers[j // page], :, j % page] = x[0, :, j]
        caches.append(cache)
    paged = {"block_table": numbers[None], "kv_lengths": np.array([300])}
    for options in ({}, {"window": (70, 3)}, {"causal": True, "splits": 2}):
        assert_same_bits(
            sc.attention_carry(q, *caches, **paged, **options), sc.attention_carry(q, k, v, **options)
        )


@NAMES
def test_a_row_does_not_depend_on_those_beside_it(dtype):
    """Heads of a group, queries of a head, and sequences of a batch, one by one."""
    q, k, v = data(
        "normal", np.random.default_rng(1), (2, 14, 2, 40), (2, 2, 300, 40), (2, 2, 300, 24), DTYPES[dtype]
    )
    mask = np.random.default_rng(2).random((2, 14, 2, 300)) < 0.5
    mask[:, :, 1, :129] = False
    for options in ({}, {"mask": mask}):
        together = sc.attention(q, k, v, **options)
        for b, h, i in itertools.product(range(2), range(14), range(2)):
            kv = np.s_[b : b + 1, h // 7 : h // 7 + 1]
            row = np.s_[b : b + 1, h : h + 1, i : i + 1]
            own = {name: value[row] for name, value in options.items()}
            assert_same_bits(sc.attention(q[row], k[kv], v[kv], **own), together[row])


@NAMES
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("heads", [2, 6, 22])
def test_what_is_not_finite_reaches_the_rows_that_attend_to_it(dtype, value, heads):
    """In a value and in a key. A mask hides it from some rows of each panel: those keep their bits."""
    rng = np.random.default_rng(heads)
    q, k, v = data("normal", rng, (1, heads, 1, 40), (1, 1, 300, 40), (1, 1, 300, 40), DTYPES[dtype])
    mask = np.ones((1, heads, 1, 300), bool)
    mask[:, ::2, :, 200] = False
    clean = sc.attention(q, k, v, mask=mask)
    spoilt = v.copy()
    spoilt[0, 0, 200, 39] = value
    got = sc.attention(q, k, spoilt, mask=mask)
    assert_same_bits(got[:, ::2], clean[:, ::2])
    assert_same_bits(got[:, 1::2, :, :39], clean[:, 1::2, :, :39])
    assert not np.isfinite(got[:, 1::2, :, 39].astype(np.float64)).any()
    keys = k.copy()
    keys[0, 0, 200] = NAN
    got = sc.attention(q, keys, v, mask=mask)
    assert_same_bits(got[:, ::2], clean[:, ::2])
    assert np.isnan(got[:, 1::2].astype(np.float64)).all()


@NAMES
def test_values_hidden_by_position(dtype):
    """Each query sees one key more; the last key's value is NaN, and reaches the last query alone."""
    q, k, v = data(
        "normal", np.random.default_rng(4), (1, 3, 4, 16), (1, 1, 131, 16), (1, 1, 131, 16), DTYPES[dtype]
    )
    clean = sc.attention(q, k, v, causal=True)
    v[0, 0, 130] = NAN
    got = sc.attention(q, k, v, causal=True)
    assert_same_bits(got[:, :, :3], clean[:, :, :3])
    assert np.isnan(got[:, :, 3].astype(np.float64)).all()


@NAMES
@pytest.mark.parametrize("dv", [1, 7, 16, 33])
def test_nothing_is_read_or_written_beyond(dtype, dv):
    """NaN on all sides of the keys and values, and what surrounds the output stays as it is."""
    q, k, v = data(
        "normal", np.random.default_rng(dv), (2, 3, 1, 9), (2, 1, 77, 9), (2, 1, 77, dv), DTYPES[dtype]
    )
    want = sc.attention(q, k, v)
    frames = [within(x, tuple(n + 2 for n in x.shape), np.s_[1:-1, 1:-1, 1:-1, 1:-1]) for x in (q, k, v)]
    out = np.full((2, 3, 3, dv + 2), 7, DTYPES[dtype])
    sc.attention(*frames, out=out[:, :, 1:2, 1:-1])
    assert_same_bits(np.ascontiguousarray(out[:, :, 1:2, 1:-1]), want)
    out[:, :, 1:2, 1:-1] = 7
    assert (out == 7).all()


@NAMES
def test_neither_threads_nor_repetition_change_a_bit(dtype):
    q, k, v = data(
        "normal", np.random.default_rng(6), (1, 8, 1, 64), (1, 4, 6000, 64), (1, 4, 6000, 64), DTYPES[dtype]
    )
    before = sc.get_num_threads()
    try:
        sc.set_num_threads(1)
        want = sc.attention(q, k, v)
        for threads in (2, 3, 2):
            sc.set_num_threads(threads)
            assert_same_bits(sc.attention(q, k, v), want)
    finally:
        sc.set_num_threads(before)


@NAMES
def test_pieces_merge_to_the_whole(dtype):
    q, k, v = data(
        "growing", np.random.default_rng(7), (1, 4, 2, 16), (1, 2, 1500, 16), (1, 2, 1500, 16), DTYPES[dtype]
    )
    truth = attention_of(q, k, v, causal=True)
    for splits in (1, 2, 5, 12, 1000):
        bounds = bounds_of(truth, splits=splits)
        assert_output(sc.attention(q, k, v, causal=True, splits=splits), truth, bounds)


def test_rows_that_are_too_many_go_elsewhere():
    assert decode.MOST_ROWS == 32
    x = np.zeros((1, 1, 33, 8), np.float32)
    with pytest.raises((AttributeError, TypeError)):
        sc.attention(x, x, x)
