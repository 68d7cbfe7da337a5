"""TAIL says which shapes fail and what they have in common, and is silent about sound kernels."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass
from softcarry.auditing.probes import tail
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, few keys a block": Online(key_block=24),
    "by the lse": LogAddExp(),
    "emulated, one key a block": EmulatedKernel(key_block=1, order="backward"),
    "emulated, lazy in splits": EmulatedKernel(key_block=64, rescale=("lazy", 5.5), splits=3),
    "reference": blocked_attention,
}


@pytest.fixture
def few_shapes(monkeypatch):
    monkeypatch.setattr(tail, "KEYS", (1, 3, 64, 129, 513))
    monkeypatch.setattr(tail, "QUERIES", (33,))
    monkeypatch.setattr(tail, "DEPTHS", (7,))
    monkeypatch.setattr(tail, "VALUE_DEPTHS", (40,))
    monkeypatch.setattr(tail, "RAGGED", ((129, 67),))


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    assert messages(examine(kernel, "TAIL", seed=seed)) == []


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass_in_16_bits(kernel, dtype):
    assert messages(examine(kernel, "TAIL", dtype=dtype)) == []


@pytest.mark.usefixtures("few_shapes")
def test_sound_kernels_pass_in_float64():
    assert messages(examine(blocked_attention, "TAIL", dtype="float64")) == []


@pytest.mark.parametrize("name", ["one pass, few keys a block", "reference"])
def test_sound_kernels_pass_in_all_shapes(name):
    examination = examine(SOUND[name], "TAIL")
    assert messages(examination) == []
    assert examination.calls == len({shape for sweep in tail.sweeps() for shape in sweep.shapes})


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes(path, dtype):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    subject = getattr(torch_sdpa, path)()
    for seed in range(10):
        examination = examine(subject, "TAIL", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.facts["exact_cases"].value["a single key"]


def test_torch_passes_in_all_shapes():
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    assert messages(examine(torch_sdpa.flash(), "TAIL", dtype="bfloat16")) == []


def right(q, k, v, scale=None):
    return TwoPass(lse_dtype=None)(q, k, v, scale=scale)


def padded_keys_counted(q, k, v):
    pad = ((0, 0), (0, 0), (0, -k.shape[2] % 32), (0, 0))
    return right(q, np.pad(k, pad), np.pad(v, pad))


def last_block_dropped(q, k, v):
    n = k.shape[2]
    whole = n - n % 64 if n > 64 else n
    return right(q, k[:, :, :whole], v[:, :, :whole])


def scale_of_the_padded_depth(q, k, v):
    return right(q, k, v, scale=1.0 / math.sqrt(q.shape[3] + -q.shape[3] % 8))


def last_queries_not_written(q, k, v):
    output = right(q, k, v)
    output[:, :, output.shape[2] // 16 * 16 :] = 0.0
    return output


def wrong_odd_widths(q, k, v):
    """The predicate of pytorch#147284."""
    n = k.shape[2]
    wrong = n > 512 and n % 2 == 1 and n % 32 != 31
    return right(q, k, v) * np.float32(1.01 if wrong else 1.0)


def value_depth_of_the_query(q, k, v):
    output = right(q, k, v)
    output[..., q.shape[3] :] = 0.0
    return output


def one_query_sees_the_first_key(q, k, v):
    """A causal mask aligned top-left, left on in decoding (pytorch#144858)."""
    return right(q, k[:, :, :1], v[:, :, :1]) if q.shape[2] == 1 else right(q, k, v)


def deep_heads_cut(q, k, v):
    return right(q[..., :128], k[..., :128], v, scale=1.0 / math.sqrt(q.shape[3]))


WRONG = {
    "padded keys counted": (padded_keys_counted, ["every n that is not a multiple of 32"]),
    "last block dropped": (last_block_dropped, ["every n from 65 that is not a multiple of 64"]),
    "scale of the padded depth": (scale_of_the_padded_depth, ["every d that is not a multiple of 8"]),
    "last queries not written": (last_queries_not_written, ["every tq that is not a multiple of 16"]),
    "odd widths": (wrong_odd_widths, ["every n from 513 that is odd and not 31 modulo 32"]),
    "value depth of the query": (value_depth_of_the_query, ["every dv above 64"]),
    "deep heads cut": (deep_heads_cut, ["every d above 128"]),
    "one query": (one_query_sees_the_first_key, ["every n above 1", "tq = 1"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_pattern_of_failing_shapes_is_named(name):
    kernel, patterns = WRONG[name]
    examination = examine(kernel, "TAIL")
    assert [f.evidence["pattern"] for f in examination.findings] == patterns
    assert all(f.severity == "error" for f in examination.findings)
    assert all(f.message.startswith(f"wrong for {f.evidence['pattern']}") for f in examination.findings)


@pytest.mark.parametrize("name", ["padded keys counted", "last block dropped", "scale of the padded depth"])
def test_the_pattern_is_named_in_16_bits(name):
    """Under bfloat16's bound, the widest."""
    kernel, patterns = WRONG[name]
    assert [f.evidence["pattern"] for f in examine(kernel, "TAIL", dtype="bfloat16").findings] == patterns


@pytest.mark.usefixtures("few_shapes")
def test_a_single_key_that_does_not_come_back_is_a_warning_within_the_bound():
    """P is normalised by a reciprocal: 3 · (1/3) is 1 in float32, v · p · (1/p) need not be v."""

    def sloppy(q, k, v):
        s = q @ np.swapaxes(k, -1, -2) / np.float32(math.sqrt(q.shape[3]))
        p = np.exp(s - s.max(axis=-1, keepdims=True)) / np.float32(3.0)
        return p @ v * (np.float32(1.0) / p.sum(axis=-1, keepdims=True))

    examination = examine(sloppy, "TAIL")
    assert [f.severity for f in examination.findings] == ["warning"]
    assert messages(examination)[0].startswith("a single key does not come back bit for bit at q (")
    assert examination.facts["exact_cases"].value == {
        "a single key": False,
        "the mean of integers over 2^k keys": False,
    }


@pytest.mark.usefixtures("few_shapes")
def test_a_mean_of_integers_is_exact_with_the_pair_and_not_by_the_lse():
    mean = "the mean of integers over 2^k keys"
    assert examine(Online(), "TAIL").facts["exact_cases"].value == {"a single key": True, mean: True}
    assert examine(LogAddExp(), "TAIL").facts["exact_cases"].value == {"a single key": True, mean: False}


@pytest.mark.usefixtures("few_shapes")
def test_a_single_key_beyond_the_bound_is_an_error():
    examination = examine(
        lambda q, k, v: right(q, k, v) * np.float32(1.001 if k.shape[2] == 1 else 1.0), "TAIL"
    )
    assert [(f.severity, f.evidence["pattern"]) for f in examination.findings] == [("error", "n = 1")]


@pytest.mark.usefixtures("few_shapes")
def test_a_declared_narrow_carry_is_not_held_to_exactness():
    kernel = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1)
    examination = examine(kernel, "TAIL", contract={"carry_format": "bfloat16"})
    assert messages(examination) == []
    assert set(examination.facts["exact_cases"].value.values()) == {None}


@pytest.mark.usefixtures("few_shapes")
def test_a_kernel_that_is_wrong_for_plain_shapes_is_sent_to_ref():
    examination = examine(lambda q, k, v: 0 * right(q, k, v), "TAIL")
    assert len(examination.findings) == 1
    assert "wrong for 32 queries and 64 keys already" in messages(examination)[0]


@pytest.mark.usefixtures("few_shapes")
def test_an_output_that_is_not_finite_is_said_to_be():
    def kernel(q, k, v):
        return right(q, k, v) * np.float32(np.nan if k.shape[2] == 129 else 1.0)

    assert messages(examine(kernel, "TAIL")) == [
        "wrong for n = 129: no finite output at q (32, 64), k (129, 64)"
    ]


@pytest.mark.usefixtures("few_shapes")
def test_shapes_that_are_refused_are_neither_failing_nor_passing():
    def kernel(q, k, v):
        if v.shape[3] != q.shape[3] or q.shape[3] % 2:
            msg = "one even head size, please"
            raise ValueError(msg)
        return right(q, k, v)

    examination = examine(kernel, "TAIL")
    assert messages(examination) == []
    assert len(examination.skipped) == 2


def test_a_quick_sweep_keeps_the_kinds_of_size():
    full, quick = tail.sweeps(), tail.sweeps(quick=True)
    shapes = {shape for sweep in quick for shape in sweep.shapes}
    assert 4 * len(shapes) < len({shape for sweep in full for shape in sweep.shapes})
    assert shapes <= {shape for sweep in full for shape in sweep.shapes}
    for sweep in quick:
        assert sweep.sizes, sweep.name
    kept = {size for sweep in quick for size in sweep.sizes if sweep.name == "n"}
    assert {1, 7, 64, 129, 513} <= kept


MUTANTS = {name: (kernel, f"wrong for {patterns[0]}") for name, (kernel, patterns) in WRONG.items()}
"""The faults above, for the table in docs/audit-mutants.md."""
