"""INVAR says on what the bits of a row depend, in which stage, and what goes beyond rounding."""

import itertools

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, plain, scores_of
from softcarry.auditing.probes import invar
from softcarry.cpu import threads
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(key_block=48),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(key_block=64, splits=2),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    assert messages(examine(kernel, "INVAR", seed=seed, quick=True)) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["two passes", "one pass", "reference"])
def test_sound_kernels_pass_in_other_dtypes(name, dtype):
    assert messages(examine(SOUND[name], "INVAR", dtype=dtype, quick=True)) == []


@pytest.mark.parametrize("name", ["one pass", "reference"])
def test_sound_kernels_pass_in_full(name):
    examination = examine(SOUND[name], "INVAR")
    assert messages(examination) == []
    assert [skip.what for skip in examination.skipped] == ["splits"]
    table = examination.facts["invariance"].value
    assert list(table) == [
        "repeated runs",
        "alone or in a batch",
        "neighbours",
        "query chunks",
        "padded keys",
        "threads",
        "splits",
        "key order",
    ]
    assert table["repeated runs"] == {
        "bitwise": True,
        "largest difference": 0.0,
        "bound": None,
        "stage": None,
        "outcome": "same",
    }
    assert table["splits"]["outcome"] == "skipped"
    order = table["key order"]
    assert (order["bitwise"], order["outcome"]) == (False, "within the bound")
    assert 0.0 < order["largest difference"] <= order["bound"]
    assert "l" in order["stage"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes_and_repeats(path, dtype):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    examination = examine(getattr(torch_sdpa, path)(), "INVAR", dtype=dtype, quick=True)
    assert messages(examination) == []
    table = examination.facts["invariance"].value
    assert table["repeated runs"]["bitwise"]
    assert table["alone or in a batch"]["bitwise"]


class Mixed(TwoPass):
    """The right answer, or in some calls that of ``wrong``."""

    def __init__(self, when, wrong):
        super().__init__(lse_dtype=None)
        self.when, self.wrong = when, wrong

    def __call__(self, q, k, v, *, mask=None):
        if self.when(q, k, mask):
            return self.wrong(q, k, v, mask).astype(q.dtype)
        return super().__call__(q, k, v, mask=mask)


def keys_of_the_first_entry(q, k, v, mask):
    """Of batch entry 0, for all (pytorch#139462)."""
    return plain(q, np.broadcast_to(k[:1], k.shape), v)


def without_the_last_key(q, k, v, mask):
    return TwoPass(lse_dtype=None)(
        q, k[:, :, :-1], v[:, :, :-1], mask=None if mask is None else mask[..., :-1]
    )


def without_the_mask(q, k, v, mask):
    return plain(q, k, v)


def mean_of_parts(q, k, v, count):
    """Parts merged without their weights."""
    parts = [slice(i, None, count) for i in range(count)]
    return sum(plain(q, k[:, :, part], v[:, :, part]).astype(np.float32) for part in parts) / np.float32(
        count
    )


def in_splits(q, k, v, *, splits=1):
    return mean_of_parts(q, k, v, splits).astype(q.dtype)


def by_threads(q, k, v):
    return mean_of_parts(q, k, v, threads.get_num_threads()).astype(q.dtype)


TURNS = itertools.count()


def atomic():
    """Adds partial sums in another order at every call, as atomic additions do."""

    def kernel(q, k, v):
        places = np.random.default_rng(next(TURNS)).permutation(k.shape[2])
        return plain(q, k[:, :, places], v[:, :, places])

    return kernel


MUTANTS = {
    "another order at every call": (atomic(), "the same call does not give the same bits twice"),
    "one maximum for all rows": (
        TwoPass(shared_maximum=True, lse_dtype=None),
        "a row depends on its neighbours by more than rounding",
    ),
    "keys of the first batch entry": (
        Mixed(lambda q, k, mask: q.shape[0] > 1, keys_of_the_first_entry),
        "a row depends on the size of the batch by more than rounding",
    ),
    "last key lost from nine queries on": (
        Mixed(lambda q, k, mask: q.shape[2] >= 9, without_the_last_key),
        "a row depends on the chunk of queries that it comes in by more than rounding",
    ),
    "mask ignored in a partial block": (
        Mixed(lambda q, k, mask: mask is not None and k.shape[2] % 64, without_the_mask),
        "a row depends on masked keys after its own by more than rounding",
    ),
    "parts of threads not weighted": (
        by_threads,
        "a row depends on the number of threads by more than rounding",
    ),
    "parts of splits not weighted": (
        in_splits,
        "a row depends on the number of splits by more than rounding",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_named(name):
    kernel, fragment = MUTANTS[name]
    found = examine(kernel, "INVAR").findings
    assert any(fragment in finding.message for finding in found), [f.message for f in found]
    assert all(finding.severity == "error" for finding in found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["one maximum for all rows", "keys of the first batch entry"])
def test_mutants_are_named_in_16_bits(name, dtype):
    kernel, fragment = MUTANTS[name]
    assert any(fragment in message for message in messages(examine(kernel, "INVAR", dtype=dtype)))


class InBatches:
    """Batch-invariant but for one stage, which is summed in another order in a batch."""

    def __init__(self, stage):
        self.stage = stage

    def __call__(self, q, k, v):
        other = self.stage if q.shape[0] > 1 else None
        s = scores_of(q, k, None, False, None)
        if other == "QK":
            half = q.shape[3] // 2
            s = scores_of(q[..., :half], k[..., :half], None, False, q.shape[3] ** -0.5)
            s = s + scores_of(q[..., half:], k[..., half:], None, False, q.shape[3] ** -0.5)
        if other == "merge":
            return self.merged(s, v).astype(q.dtype)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        total = np.add.accumulate(p[..., ::-1] if other == "l" else p, axis=-1)[..., -1:]
        v = v.astype(np.float32)
        o = p[..., ::2] @ v[:, :, ::2] + p[..., 1::2] @ v[:, :, 1::2] if other == "PV" else p @ v
        return (o / total).astype(q.dtype)

    def merged(self, s, v):
        half = s.shape[-1] // 2
        parts, lses = [], []
        for keys in (slice(half), slice(half, None)):
            m = s[..., keys].max(axis=-1, keepdims=True)
            p = np.exp(s[..., keys] - m)
            total = p.sum(axis=-1, keepdims=True)
            parts.append(p @ v[:, :, keys].astype(np.float32) / total)
            lses.append(m + np.log(total))
        lse = np.logaddexp(*lses)
        return sum(np.exp(each - lse) * part for each, part in zip(lses, parts, strict=True))


@pytest.mark.parametrize("stage", ["QK", "l", "PV", "merge"])
def test_the_stage_that_differs_is_isolated_and_a_promise_is_kept_to_the_bit(stage):
    kernel, axis = InBatches(stage), "alone or in a batch"
    examination = examine(kernel, "INVAR")
    assert messages(examination) == []
    entry = examination.facts["invariance"].value[axis]
    assert (entry["bitwise"], entry["outcome"]) == (False, "within the bound")
    assert stage in entry["stage"].split(", ")
    if stage != "merge":
        assert entry["stage"] == stage
    promised = examine(kernel, "INVAR", contract={"invariant": [axis]})
    (message,) = messages(promised)
    assert message.startswith(f"the bits of a row depend on the size of the batch, in {entry['stage']}")
    assert promised.findings[0].severity == "error"


def test_a_batch_invariant_kernel_keeps_its_promise():
    promises = {"invariant": ["alone or in a batch", "neighbours"]}
    assert messages(examine(InBatches(None), "INVAR", contract=promises)) == []


def test_a_promise_can_not_be_judged_where_runs_differ():
    examination = examine(atomic(), "INVAR", contract={"invariant": "neighbours"})
    assert [f.message.split(" (")[0] for f in examination.findings] == [
        "the same call does not give the same bits twice"
    ]
    assert "neighbours, to the bit" in [skip.what for skip in examination.skipped]


def test_what_is_wrong_either_way_is_left_to_other_checks():
    examination = examine(Online(key_block=64, rescale=False), "INVAR", quick=True)
    assert messages(examination) == []
    assert examination.facts["invariance"].value["key order"]["outcome"] == "different"
    assert "key order, by the bound" in [skip.what for skip in examination.skipped]


def test_threads_are_put_back_and_jax_keeps_its_own(monkeypatch):
    jax = pytest.importorskip("jax")
    from softcarry.auditing.subject import Subject

    def kernel(q, k, v):
        s = jax.numpy.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        return jax.nn.softmax(s) @ v

    # Each new shape is compiled, which takes long.
    monkeypatch.setattr(invar, "AXES", {axis: invar.AXES[axis] for axis in ("repeated runs", "threads")})
    before = threads.get_num_threads()
    examination = examine(Subject(kernel, arrays="jax"), "INVAR", quick=True)
    assert messages(examination) == []
    assert {skip.what for skip in examination.skipped} == {"threads"}
    assert threads.get_num_threads() == before
