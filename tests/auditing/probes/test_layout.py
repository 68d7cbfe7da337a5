"""LAYOUT names views and mask shapes with wrong values, and is silent about kernels that read strides."""

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.subject import Subject
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
    assert messages(examine(kernel, "LAYOUT", seed=seed, quick=True)) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["two passes", "one pass", "reference"])
def test_sound_kernels_pass_in_other_dtypes(name, dtype):
    assert messages(examine(SOUND[name], "LAYOUT", dtype=dtype, quick=True)) == []


@pytest.mark.parametrize("name", ["one pass", "reference"])
def test_sound_kernels_pass_in_full(name):
    examination = examine(SOUND[name], "LAYOUT")
    assert messages(examination) == examination.skipped == []
    layouts = examination.facts["layouts"].value
    assert len(layouts) == 18
    assert set(layouts.values()) <= {"same bits", "within the bound"}
    assert len(examination.facts["mask layouts"].value) == 22


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_passes(path, dtype):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    examination = examine(getattr(torch_sdpa, path)(), "LAYOUT", dtype=dtype)
    assert messages(examination) == []
    refused = {name for name, kind in examination.facts["layouts"].value.items() if kind == "refused"}
    last = {"q, k, v: every second number of a row", "q, k, v: the last two axes swapped in memory"}
    assert refused == (last if path == "flash" else set())


def test_torchs_flash_operator_itself_reads_beside_a_view_of_other_last_stride():
    """Observed with torch 2.13: only the public function looks at the last stride."""
    torch = pytest.importorskip("torch")

    def operator(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    examination = examine(Subject(operator, arrays="torch", causal="top-left"), "LAYOUT")
    wrong = {name for name, kind in examination.facts["layouts"].value.items() if kind == "wrong"}
    assert wrong == {"q, k, v: every second number of a row", "q, k, v: the last two axes swapped in memory"}
    assert [f.message for f in examination.findings] == [
        "reads memory beside the view where q, k and v are not plain in memory: "
        "every second number of a row; the last two axes swapped in memory"
    ]


def test_jax_has_masks_but_no_strides():
    jax = pytest.importorskip("jax")

    def kernel(q, k, v, mask=None):
        s = jax.numpy.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        return jax.nn.softmax(s if mask is None else jax.numpy.where(mask, s, -jax.numpy.inf)) @ v

    examination = examine(Subject(kernel, arrays="jax"), "LAYOUT", quick=True)
    assert messages(examination) == []
    assert examination.skipped[0].what == "views of q, k and v"
    assert set(examination.facts["mask layouts"].value.values()) <= {"same bits", "within the bound"}


def root(x):
    while x.base is not None:
        x = x.base
    return x


def as_if_contiguous(x):
    """What a kernel reads that starts where an array starts and knows nothing of strides."""
    memory = root(x)
    start = (x.ctypes.data - memory.ctypes.data) // x.itemsize
    return np.resize(memory.ravel()[start:], x.shape)


class Faulty(TwoPass):
    """Reads its inputs by ``read``, and its mask by ``read_mask`` for an output of shape (b, h, tq, tk)."""

    def __init__(self, read=lambda q, k, v: (q, k, v), read_mask=lambda mask, shape: mask):
        super().__init__(lse_dtype=None)
        self.read, self.read_mask = read, read_mask

    def __call__(self, q, k, v, *, mask=None):
        if mask is not None:
            mask = self.read_mask(mask, (*q.shape[:3], k.shape[2]))
        return super().__call__(*self.read(q, k, v), mask=mask)


def strides_ignored(q, k, v):
    return tuple(as_if_contiguous(x) for x in (q, k, v))


def last_stride_ignored(q, k, v):
    """As torch's flash operator does."""

    def read(x):
        memory = root(x).ravel()
        start = (x.ctypes.data - memory.ctypes.data) // x.itemsize
        steps = [stride // x.itemsize for stride in x.strides[:3]] + [1]
        places = start + sum(
            np.multiply.outer(step * np.arange(n), 1).reshape([-1 if i == axis else 1 for i in range(4)])
            for axis, (step, n) in enumerate(zip(steps, x.shape, strict=True))
        )
        return memory[np.clip(places, 0, memory.size - 1)]

    return read(q), read(k), read(v)


def strides_of_k_for_v(q, k, v):
    return q, k, v if k.strides == v.strides else as_if_contiguous(v)


def expanded_heads_ignored(q, k, v):
    """Takes an expanded head for a step through memory, and wraps."""
    return q, k, as_if_contiguous(v) if 0 in v.strides[:2] else v


def rows_padded_by_what_follows(q, k, v):
    """Reads rows to a multiple of 40 and multiplies what lies there by 0 (cudnn-frontend#624)."""
    memory = root(v)
    if memory.shape[-1] > v.shape[-1] and memory.ndim == 4:
        pad = memory[..., v.shape[-1] :].sum()
        return q, k, v + 0 * pad
    return q, k, v


def blocks_in_turn(mask, shape):
    """A mask [B,1,S,T] indexed by b·H + h (onnxruntime#24017)."""
    if mask.ndim < 4:
        return mask
    return np.resize(mask, (*shape[:2], *mask.shape[2:])) if mask.shape[:2] != shape[:2] else mask


def first_batch(mask, shape):
    return mask[:1] if mask.ndim == 4 and mask.shape[1] == 1 else mask


def one_row_not_broadcast(mask, shape):
    """A mask [B,1,1,K] for which no row but the first is masked (jax#28974)."""
    if mask.ndim == 4 and mask.shape[2] == 1:
        mask = np.broadcast_to(mask, (*mask.shape[:2], shape[2], shape[3])).copy()
        mask[:, :, 1:] = True if mask.dtype == bool else 0
    return mask


def mask_strides_ignored(mask, shape):
    return as_if_contiguous(mask) if mask.ndim == 4 else mask


def scaled_in_place(q, k, v):
    output = plain(q, k, v)
    q *= q.dtype.type(0.5)
    return output


def gaps_zeroed(q, k, v):
    """Pads rows in place, in memory that belongs to somebody else."""
    output = plain(q, k, v)
    for x in (k, v):
        memory = root(x)
        if memory.ndim == 4 and memory.shape[-1] == x.shape[-1] + 8:
            memory[..., x.shape[-1] :] = 0
    return output


MUTANTS = {
    "strides ignored": (Faulty(strides_ignored), "where q, k and v are not plain in memory"),
    "last stride ignored": (
        Faulty(last_stride_ignored),
        "not plain in memory: every second number of a row; the last two axes swapped in memory",
    ),
    "strides of k taken for v": (Faulty(strides_of_k_for_v), "where v is not plain in memory"),
    "expanded heads ignored": (
        Faulty(expanded_heads_ignored),
        "k and v are not plain in memory: stride 0 over the heads",
    ),
    "gaps between rows read": (
        Faulty(rows_padded_by_what_follows),
        "reads memory beside the view where v is not plain in memory: gaps between rows",
    ),
    "mask blocks in turn": (
        Faulty(read_mask=blocks_in_turn),
        "the mask is read on as if it had all heads",
    ),
    "mask of the first batch entry": (
        Faulty(read_mask=first_batch),
        "every batch entry takes the mask of the first",
    ),
    "mask row not broadcast": (Faulty(read_mask=one_row_not_broadcast), "mask [1,1,1,T]"),
    "mask strides ignored": (Faulty(read_mask=mask_strides_ignored), "with gaps between rows"),
    "q scaled in place": (scaled_in_place, "the kernel writes to q"),
    "gaps zeroed": (gaps_zeroed, "the kernel writes to k and v"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_named(name):
    kernel, fragment = MUTANTS[name]
    found = examine(kernel, "LAYOUT").findings
    assert any(fragment in finding.message for finding in found), [f.message for f in found]
    assert len(found) == 1
    assert found[0].severity == "error"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mutants_are_named_in_other_dtypes(dtype):
    for name in ("strides ignored", "mask blocks in turn", "q scaled in place"):
        kernel, _ = MUTANTS[name]
        assert examine(kernel, "LAYOUT", dtype=dtype).findings, name


def test_mutants_are_named_in_float64():
    def kernel(q, k, v):
        return blocked_attention(*strides_ignored(q, k, v))

    assert len(examine(kernel, "LAYOUT", dtype="float64", quick=True).findings) == 1


def test_axes_in_the_other_order_are_arranged_too():
    def tokens_first(q, k, v):
        return plain(*(x.swapaxes(1, 2) for x in strides_ignored(q, k, v))).swapaxes(1, 2)

    def sound(q, k, v):
        return plain(*(x.swapaxes(1, 2) for x in (q, k, v))).swapaxes(1, 2)

    assert messages(examine(sound, "LAYOUT", layout="bthd")) == []
    assert "not plain in memory" in messages(examine(tokens_first, "LAYOUT", layout="bthd"))[0]


def test_a_kernel_that_refuses_views_passes():
    def picky(q, k, v):
        if not all(x.flags.c_contiguous for x in (q, k, v)):
            msg = "inputs must be contiguous"
            raise ValueError(msg)
        return plain(q, k, v)

    examination = examine(picky, "LAYOUT")
    assert messages(examination) == []
    assert examination.verdict.outcome == "pass"
    assert "inputs must be contiguous" in examination.skipped[0].reason
    kinds = examination.facts["layouts"].value
    assert kinds["q, k, v: gaps between rows"] == "refused"
    assert kinds["q, k, v: an odd offset"] == "same bits"


def test_what_is_wrong_everywhere_is_not_judged():
    def halved(q, k, v):
        return plain(*strides_ignored(q, k, v)) * np.float32(0.5)

    examination = examine(halved, "LAYOUT")
    assert messages(examination) == []
    assert "contiguous inputs are beyond the error bound already" in [s.reason for s in examination.skipped]
