"""HEADMAP reads which head is used for queries, keys and values, and names a wrong map."""

import numpy as np
import pytest

from examining import examine, messages
from kernel_with_options import WithOptions, mutant
from mutants import LogAddExp, Online, TwoPass
from softcarry.auditing.subjects import load_subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "all options": WithOptions(),
    "two passes": TwoPass(),
    "one pass": Online(),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(key_block=64),
}


@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel):
    # Nothing is random here: seeds have nothing to change.
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        assert messages(examine(kernel, "HEADMAP", dtype=dtype)) == []


@pytest.mark.parametrize("seed", range(10))
def test_the_seed_changes_nothing(seed):
    assert messages(examine(WithOptions(), "HEADMAP", seed=seed)) == []


def test_the_reference_passes():
    examination = examine(blocked_attention, "HEADMAP")
    assert messages(examination) == []
    assert examination.skipped == []


def values_by(index):
    """A mutant that gives query head h the value head ``index(h, heads, kv_heads)``."""
    return mutant(values_of_heads=lambda self, x, heads: _taken(x, heads, index))


def keys_by(index):
    return mutant(keys_of_heads=lambda self, x, heads: _taken(x, heads, index))


def _taken(x, heads, index):
    h = np.arange(heads)
    return x[:, np.clip(index(h, heads, x.shape[1]), 0, x.shape[1] - 1)]


def tiled(h, heads, n):
    return h % n


class Both(WithOptions):
    def keys_of_heads(self, x, heads):
        return _taken(x, heads, tiled)

    values_of_heads = keys_of_heads


class OtherBatch(WithOptions):
    """The batch stride of v is that of one head too few, so to say: entries come in the wrong order."""

    def values_of_heads(self, x, heads):
        return super().values_of_heads(x, heads)[::-1]


class MeanOfHeads(WithOptions):
    """Groups of kv heads are averaged, as in the conversion of a checkpoint, where they should be chosen."""

    def values_of_heads(self, x, heads):
        return np.broadcast_to(x.mean(axis=1, keepdims=True), (x.shape[0], heads, *x.shape[2:]))


class QueriesReversed(WithOptions):
    def __call__(self, q, k, v, **options):
        return super().__call__(q[:, ::-1], k, v, **options)


class TiledInDecoding(WithOptions):
    """Right for many queries, wrong for one."""

    def __call__(self, q, k, v):
        return (Both() if q.shape[2] == 1 else super().__call__)(q, k, v)


MUTANTS = {
    "values tiled": (values_by(tiled), "query head h uses value head h mod kv_heads (tiled)"),
    "keys tiled": (keys_by(tiled), "query head h uses key head h mod kv_heads (tiled)"),
    "divided by kv_heads": (values_by(lambda h, heads, n: h // n), "uses value head h // kv_heads, where"),
    "divided by kv_heads, wrapped": (
        values_by(lambda h, heads, n: h // n % n),
        "uses value head (h // kv_heads) mod kv_heads",
    ),
    "collapsed": (values_by(lambda h, heads, n: 0 * h), "every query head uses value head 0"),
    "collapsed to the last": (keys_by(lambda h, heads, n: 0 * h + n - 1), "uses the last key head"),
    "clamped": (values_by(lambda h, heads, n: h), "uses value head min(h, kv_heads − 1)"),
    "reversed": (
        values_by(lambda h, heads, n: n - 1 - h // (heads // n)),
        "the value heads are used in reverse",
    ),
    "modulo the group": (keys_by(lambda h, heads, n: h % (heads // n)), "head h mod (heads // kv_heads)"),
    "queries reversed": (QueriesReversed(), "the query heads are used in reverse"),
    "another batch entry": (OtherBatch(), "the values of another batch entry are used"),
    "heads averaged": (MeanOfHeads(), "the values of several heads or batch entries are mixed"),
    "an irregular map": (
        values_by(lambda h, heads, n: (h // (heads // n) + 1) % n),
        "the value heads are not used as they should be",
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_is_named_once(name, dtype):
    kernel, said = MUTANTS[name]
    found = messages(examine(kernel, "HEADMAP", dtype=dtype))
    assert len(found) == 1
    assert said in found[0]


def test_keys_and_values_are_told_apart():
    found = messages(examine(Both(), "HEADMAP"))
    assert [message.split(" head")[1] for message in found] == [" h uses key", " h uses value"]


def test_a_fault_of_one_query_alone_is_found():
    finding = examine(TiledInDecoding(), "HEADMAP").findings[0]
    assert "tq = 1" in finding.message
    assert all("tq = 1," in call for call in finding.evidence["wrong calls"])
    assert finding.evidence["head used by each query head"][0] == [0, 1, 2, 0, 1, 2]
    assert finding.evidence["expected"] == [0, 0, 1, 1, 2, 2]


def test_a_kernel_that_refuses_grouped_heads_is_examined_without_them():
    examination = examine(TwoPass(), "HEADMAP")
    assert examination.verdict.outcome == "pass"
    assert len(examination.skipped) == 1
    assert "the kernel raised ValueError" in examination.skipped[0].reason
    assert examination.facts["kv heads shared by groups"].value == "refused"
    assert examination.facts["one kv head for all query heads"].value == "taken"


def test_a_kernel_that_refuses_all_heads_but_one_is_skipped():
    def one_head(q, k, v):
        if q.shape[:2] != (1, 2):
            msg = "batch 1 and two heads, please"
            raise ValueError(msg)
        return TwoPass(lse_dtype=None)(q, k, v)

    examination = examine(one_head, "HEADMAP")
    assert examination.verdict.outcome == "skip"
    assert len(examination.skipped) == 3


@pytest.mark.parametrize(
    ("name", "grouped"),
    [("torch-sdpa-flash", "taken"), ("torch-sdpa-math", "refused"), ("softcarry-attention", "taken")],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_real_kernels_repeat(name, grouped, dtype):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    examination = examine(load_subject(name), "HEADMAP", dtype=dtype)
    assert messages(examination) == []
    assert examination.facts["kv heads shared by groups"].value == grouped
