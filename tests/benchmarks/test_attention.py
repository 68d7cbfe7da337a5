"""Every case of attention: both calls compute the same, from the same bytes, and a wrong result is seen."""

import ml_dtypes
import numpy as np
import pytest

import softcarry as sc
from softcarry.benchmarks import _attention_inputs, attention, decode
from softcarry.benchmarks._attention_inputs import Shape
from softcarry.benchmarks.attention import attention_cases
from softcarry.benchmarks.decode import decode_cases

SMALL = {
    attention: {
        "LONG": Shape.square(1, 2, 72, 64),
        "WIDE": Shape.square(1, 2, 72, 128),
        "SHORT": Shape.square(1, 3, 40, 128),
        "SMALL": Shape.square(5, 2, 24, 64),
    },
    decode: {"GROUPED": Shape(1, 8, 2, 1, 160, 128), "ONE_HEAD": Shape(1, 1, 1, 1, 320, 128)},
}
NAMES = [(listed, case.name) for listed in (attention_cases, decode_cases) for case in listed()]
every_case = pytest.mark.parametrize(("listed", "name"), NAMES, ids=[name for _, name in NAMES])


def forget():
    _attention_inputs.inputs.cache_clear()
    _attention_inputs.truth.cache_clear()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for module, shapes in SMALL.items():
        for name, shape in shapes.items():
            monkeypatch.setattr(module, name, shape)
    forget()
    yield
    forget()


def find(listed, name):
    return next(case for case in listed() if case.name == name)


def plain(result) -> np.ndarray:
    return result.astype(np.float64) if isinstance(result, np.ndarray) else result.double().numpy()


@every_case
def test_our_result_is_right_and_the_peer_s_is_the_same(listed, name):
    case = find(listed, name)
    calls = case.build()
    assert calls.disagreement() == ""
    ours, theirs = plain(calls.ours()), plain(calls.peer())
    # Outputs are means of values below 6: one rounding each to their dtype, and one of P to it in torch's,
    # each weight by u at most; float32 sums of at most 320 terms.
    u = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.dtype]
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 6 * (4 * u + 320 * 8 * min(u, 2.0**-24))
    assert np.ptp(ours) > 0.1


@every_case
def test_shape_dtype_and_traffic_are_those_named(listed, name):
    case = find(listed, name)
    calls = case.build()
    if listed is attention_cases:
        batch, heads, tokens, d = case.shape
        kv_heads, tq = heads, tokens
    else:
        heads, kv_heads, tokens, d = case.shape
        batch, tq = 1, 1
    assert calls.buffer.shape == (2, batch, kv_heads, tokens, d)
    assert calls.buffer.dtype == np.dtype(ml_dtypes.bfloat16 if case.dtype == "bfloat16" else case.dtype)
    size = calls.buffer.itemsize
    assert calls.traffic == size * batch * d * (2 * kv_heads * tokens + 2 * heads * tq)
    pairs = tokens * (tokens + 1) // 2 if name == "causal" else tokens * tokens
    assert calls.operations == (4 * batch * heads * pairs * d if listed is attention_cases else 0)


@every_case
def test_a_wrong_result_is_seen(listed, name, monkeypatch):
    right = sc.attention

    def wrong(*args, **options):
        result = np.array(right(*args, **options))
        flat = result.reshape(-1)
        largest = int(np.argmax(np.abs(flat.astype(np.float64))))
        # Sixteen units of bfloat16, which no dtype here may confuse.
        flat[largest] = flat[largest] * np.asarray(1 - 2.0**-4).astype(flat.dtype)
        return result

    monkeypatch.setattr(sc, "attention", wrong)
    assert find(listed, name).build().disagreement().startswith("output[")


@every_case
@pytest.mark.parametrize("kept", [slice(1, None), slice(None, -1)], ids=["first", "last"])
def test_a_key_left_out_at_either_end_is_seen(listed, name, kept, monkeypatch):
    right = sc.attention

    def wrong(q, k, v, *, causal=False, kv_lengths=None, block_table=None):
        if block_table is not None:
            k, v = (x[block_table[0]].swapaxes(0, 1).reshape(1, x.shape[1], -1, x.shape[3]) for x in (k, v))
        return right(q, k[:, :, kept], v[:, :, kept], causal="top-left" if causal else False)

    monkeypatch.setattr(sc, "attention", wrong)
    assert find(listed, name).build().disagreement() != ""


def test_layouts_are_what_they_are_called(monkeypatch):
    calls = []
    right = sc.attention

    def recorded(q, k, v, **options):
        calls.append((k, v, options))
        return right(q, k, v, **options)

    monkeypatch.setattr(sc, "attention", recorded)
    for name in ("bthd", "paged", "float32"):
        assert find(decode_cases, name).build().disagreement() == ""
    (first, _, none), (paged, paged_v, options), (plain_k, plain_v, _) = calls
    assert none == {}
    assert np.array_equal(first, plain_k)
    assert first.swapaxes(1, 2).flags.c_contiguous
    assert not first.flags.c_contiguous
    table = options["block_table"][0]
    assert options["kv_lengths"].tolist() == [160]
    assert sorted(table.tolist()) == list(range(10)) != table.tolist()
    for pages, whole in ((paged, plain_k), (paged_v, plain_v)):
        assert pages.shape == (10, 2, 16, 128)
        assert np.array_equal(np.concatenate(list(pages[table]), axis=1), whole[0])


def test_the_targets_are_those_of_the_design(monkeypatch):
    forward = {case.name: (case.target, case.share_target) for case in attention_cases()}
    assert forward == {
        "float32": (1.2, 0.88),
        "causal": (1.35, None),
        "bfloat16": (1.15, None),
        "float16": (2.2, None),
        "float64": (None, None),
        "wide": (1.2, 0.88),
        "short": (1.0, None),
        "small": (1.0, None),
    }
    one = {case.name: (case.target, case.share_target) for case in decode_cases()}
    assert one == {
        "float32": (5.0, 0.75),
        "bthd": (None, None),
        "paged": (None, None),
        "bfloat16": (18.0, 0.75),
        "one-head": (3.0, None),
    }
    monkeypatch.undo()
    assert {case.name: case.shape for case in attention_cases()} == {
        **dict.fromkeys(("float32", "causal", "bfloat16", "float16", "float64"), (1, 8, 2048, 64)),
        "wide": (1, 8, 2048, 128),
        "short": (1, 32, 128, 128),
        "small": (64, 8, 64, 64),
    }
    shapes = {case.name: case.shape for case in decode_cases()}
    assert shapes.pop("one-head") == (1, 1, 131072, 128)
    assert set(shapes.values()) == {(32, 8, 32768, 128)}


@pytest.mark.parametrize("listed", [attention_cases, decode_cases])
def test_quick_has_the_same_cases_on_fewer_tokens(listed):
    cases, quick = listed(), listed(quick=True)
    assert [case.labels for case in quick] == [case.labels for case in cases]
    assert quick[0].shape[2] < cases[0].shape[2]
    assert quick[0].build().disagreement() == ""
