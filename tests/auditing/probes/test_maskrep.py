"""MASKREP names how a kernel reads a mask, and is silent about those that read it as it is meant."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.subjects import load_subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, few keys a block": Online(key_block=24),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(),
    "emulated, splits": EmulatedKernel(key_block=64, splits=4, order="backward"),
    "reference": blocked_attention,
}


def attention(s, v, dtype, guard=True):
    """Softmax of scores (float32) times values; ``guard=False`` makes NaN of rows whose maximum is −inf."""
    with np.errstate(all="ignore"):
        m = s.max(axis=-1, keepdims=True)
        p = np.exp(s - (np.where(np.isneginf(m), np.float32(0), m) if guard else m))
        total = p.sum(axis=-1, keepdims=True)
        return (p @ v.astype(np.float32) / np.where(total == 0, 1, total)).astype(dtype)


def raw_scores(q, k):
    return (q.astype(np.float32) @ np.swapaxes(k, -1, -2).astype(np.float32)) / np.float32(
        math.sqrt(q.shape[-1])
    )


def kernel_of(combine, guard=True):
    """Make a kernel of ``combine(scores, mask, scale) -> scores``."""

    def kernel(q, k, v, *, mask=None):
        s = raw_scores(q, k)
        with np.errstate(all="ignore"):
            s = s if mask is None else combine(s, mask, 1.0 / math.sqrt(q.shape[-1]))
        return attention(s.astype(np.float32), v, q.dtype, guard)

    return kernel


def rightly(s, mask):
    return np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask.astype(np.float32)


def only_booleans(change):
    """Read booleans in a wrong way, numbers in the right one."""
    return kernel_of(lambda s, mask, scale: change(s, mask) if mask.dtype == bool else rightly(s, mask))


def only_numbers(change):
    """Read numbers in a wrong way, booleans in the right one."""
    return kernel_of(
        lambda s, mask, scale: (
            rightly(s, mask) if mask.dtype == bool else change(s, mask.astype(np.float32), scale)
        )
    )


def causal_added(q, k, v, *, mask=None, causal=False):
    """Causal masks are the lowest finite number, added: with padding the sum overflows, beyond it it wins."""
    s = raw_scores(q, k)
    with np.errstate(all="ignore"):
        s = s if mask is None else rightly(s, mask)
        if causal:
            tq, tk = s.shape[-2:]
            seen = np.tri(tq, tk, tk - tq, dtype=bool)
            s = s + np.where(seen, np.float32(0), np.finfo(np.float32).min)
    return attention(s, v, q.dtype, guard=False)


def causal_filled(q, k, v, *, mask=None, causal=False):
    """Causal masks set the lowest finite number, which is what padding has too."""
    s = raw_scores(q, k)
    with np.errstate(all="ignore"):
        s = s if mask is None else rightly(s, mask)
        if causal:
            tq, tk = s.shape[-2:]
            s = np.where(np.tri(tq, tk, tk - tq, dtype=bool), s, np.finfo(np.float32).min)
    return attention(s, v, q.dtype)


def causal_overflows(q, k, v, *, mask=None, causal=False):
    """Beside a causal mask, scores and masks are in base 2: the lowest finite number becomes −inf."""
    s = raw_scores(q, k)
    with np.errstate(all="ignore"):
        factor = LOG2E if causal else np.float32(1)
        s = s if mask is None else rightly(s * factor, mask if mask.dtype == bool else mask * factor) / factor
        if causal:
            tq, tk = s.shape[-2:]
            s = np.where(np.tri(tq, tk, tk - tq, dtype=bool), s, -np.inf)
    return attention(s, v, q.dtype, guard=False)


def weights_with_a_floor(q, k, v, *, mask=None):
    """A small number is added to every weight, masked ones too, against a sum of 0."""
    s = raw_scores(q, k) if mask is None else rightly(raw_scores(q, k), mask)
    with np.errstate(all="ignore"):
        m = s.max(axis=-1, keepdims=True)
        p = np.exp(s - np.where(np.isneginf(m), np.float32(0), m)) + np.float32(1e-12)
    return (p @ v.astype(np.float32) / p.sum(axis=-1, keepdims=True)).astype(q.dtype)


BOOLEANS = "a mask of booleans is"
NUMBERS = "a mask of floating 0 and 1, floating whole numbers from −3 to 3 is"
LOG2E = np.float32(1.0 / math.log(2.0))

MUTANTS = {
    "booleans inverted": (
        only_booleans(lambda s, mask: np.where(mask, -np.inf, s)),
        f"{BOOLEANS} inverted: True hides a key",
    ),
    "booleans ignored": (only_booleans(lambda s, mask: s), f"{BOOLEANS} ignored"),
    "booleans added as 0 and 1": (
        only_booleans(lambda s, mask: s + mask.astype(np.float32)),
        f"{BOOLEANS} added to the scores as 0 and 1",
    ),
    "booleans multiplied": (
        only_booleans(lambda s, mask: s * mask),
        f"{BOOLEANS} multiplied with the scores, which leaves masked keys the score 0",
    ),
    "booleans of the first head": (
        only_booleans(lambda s, mask: rightly(s, np.broadcast_to(mask[:1, :1], mask.shape))),
        f"{BOOLEANS} that of the first head for all heads",
    ),
    "0 and 1 taken for booleans": (
        only_numbers(
            lambda s, mask, scale: (
                np.where(mask != 0, s, -np.inf) if set(np.unique(mask)) <= {0.0, 1.0} else s + mask
            )
        ),
        "a mask of floating 0 and 1 is taken for booleans, not added",
    ),
    "all numbers taken for booleans": (
        only_numbers(lambda s, mask, scale: np.where(mask != 0, s, -np.inf)),
        "is taken for booleans, not added",
    ),
    "mask multiplied by the scale": (
        only_numbers(lambda s, mask, scale: s + mask * np.float32(scale)),
        f"{NUMBERS} multiplied by the scale",
    ),
    "mask added to scores in base 2": (
        only_numbers(lambda s, mask, scale: s + mask / LOG2E),
        f"{NUMBERS} added in units of log2, scaled by ln 2",
    ),
    "mask subtracted": (only_numbers(lambda s, mask, scale: s - mask), f"{NUMBERS} subtracted"),
    "mask added twice": (
        only_numbers(lambda s, mask, scale: s + mask + mask),
        f"{NUMBERS} added twice",
    ),
    "−1e4 stands for −∞": (TwoPass(fill=-1e4), "a finite fill of about −10000 stands for −∞"),
    "−1e9 stands for −∞": (TwoPass(fill=-1e9), "a finite fill of about −1e+09 stands for −∞"),
    "−1e30 stands for −∞": (TwoPass(fill=-1e30), "a finite fill of about −1e+30 stands for −∞"),
    "−20 stands for −∞": (TwoPass(fill=-20.0), "hidden keys"),
    "every weight has a floor": (weights_with_a_floor, "hidden keys keep a weight with masks of booleans"),
    "large negative numbers hide keys": (
        only_numbers(lambda s, mask, scale: np.where(mask < -1e3, -np.inf, s + mask)),
        "masks of −1e4 are not added as the numbers they are: keys are hidden that the sum leaves in",
    ),
    "mask overflows by log2 e": (
        kernel_of(lambda s, mask, scale: rightly(s * LOG2E, mask * LOG2E if mask.dtype != bool else mask) /
                  LOG2E, guard=False),
        "rows filled with a finite number are NaN: a mask of the lowest finite number",
    ),
    "the causal mask is a finite fill": (
        causal_filled,
        "beside the causal mask: keys after the diagonal get weight",
    ),
    "the causal mask is a finite fill that is added": (
        causal_added,
        "beside the causal mask: keys after the diagonal get weight",
    ),
    "masks overflow beside a causal one": (
        causal_overflows,
        "beside the causal mask: rows that see only those are NaN",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    dtypes = ("float32", "bfloat16", "float16")
    examination = examine(kernel, "MASKREP", dtype=dtypes[seed % 3], seed=seed)
    assert messages(examination) == []
    assert examination.verdict.outcome == "pass"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_sound_kernels_pass_in_all_dtypes(dtype):
    for kernel in (blocked_attention, load_subject("softcarry-attention")):
        assert messages(examine(kernel, "MASKREP", dtype=dtype)) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["torch-sdpa-flash", "torch-sdpa-math"])
def test_torch_passes(name, dtype):
    pytest.importorskip("torch")
    for seed in range(3):
        examination = examine(load_subject(name), "MASKREP", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.facts["integer masks"].value == "refused"


@pytest.mark.parametrize("name", MUTANTS)
def test_faults_are_named(name):
    kernel, fragment = MUTANTS[name]
    examination = examine(kernel, "MASKREP")
    assert any(fragment in message for message in messages(examination)), messages(examination)
    assert any(finding.severity == "error" for finding in examination.findings)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "name",
    [
        "booleans inverted",
        "booleans multiplied",
        "all numbers taken for booleans",
        "mask multiplied by the scale",
        "mask added to scores in base 2",
        "−1e4 stands for −∞",
        "large negative numbers hide keys",
    ],
)
def test_faults_are_named_in_16_bits(name, dtype):
    """Under the widest bounds."""
    kernel, fragment = MUTANTS[name]
    found = messages(examine(kernel, "MASKREP", dtype=dtype))
    assert any(fragment in message for message in found), found


def test_nothing_else_is_said_of_a_kernel_with_one_fault():
    for name in ("booleans inverted", "booleans multiplied", "mask subtracted", "every weight has a floor"):
        kernel, fragment = MUTANTS[name]
        found = messages(examine(kernel, "MASKREP"))
        assert [message for message in found if fragment not in message] == [], name


def test_classes_of_fully_masked_rows_are_a_fact():
    classes = examine(TwoPass(), "MASKREP").facts["fully masked rows by representation"].value
    assert classes == {
        "booleans": "ZERO",
        "−inf": "ZERO",
        "the lowest finite number": "MEAN_ALL",
        "−1e9": "MEAN_ALL",
        "−1e4": "UNMASKED",
        "sums of two masks of the lowest finite number": "MEAN_SUBSET",
    }


def test_booleans_and_minus_infinity_that_differ_are_a_warning():
    def kernel(q, k, v, *, mask=None):
        s = raw_scores(q, k) if mask is None else rightly(raw_scores(q, k), mask)
        return attention(s, v, q.dtype, guard=mask is None or mask.dtype == bool)

    found = [f for f in examine(kernel, "MASKREP").findings if f.message.startswith("a fully masked row")]
    assert [(f.severity, f.message) for f in found] == [
        ("warning", "a fully masked row gives ZERO with booleans and NAN with −inf")
    ]


def test_an_empty_row_that_is_the_same_nan_everywhere_is_left_to_empty():
    found = messages(examine(TwoPass(guard=False), "MASKREP"))
    assert not any("fully masked" in message for message in found)


def test_minus_1e9_is_minus_infinity_in_float16():
    facts = examine(TwoPass(), "MASKREP", dtype="float16").facts
    assert "−1e9" not in facts["fully masked rows by representation"].value


def test_integer_masks_are_classified():
    def refuses(q, k, v, *, mask=None):
        if mask is not None and mask.dtype.kind == "i":
            msg = "neither booleans nor numbers"
            raise TypeError(msg)
        return TwoPass()(q, k, v, mask=mask)

    def nonsense(q, k, v, *, mask=None):
        if mask is not None and mask.dtype.kind == "i":
            mask = mask.astype(bool) & (np.arange(k.shape[2]) % 2 == 0)
        return TwoPass()(q, k, v, mask=mask)

    def booleans(q, k, v, *, mask=None):
        if mask is not None and mask.dtype.kind == "i":
            mask = mask.astype(bool)
        return TwoPass()(q, k, v, mask=mask)

    def fact(kernel):
        return examine(kernel, "MASKREP").facts["integer masks"].value

    assert (fact(refuses), fact(TwoPass()), fact(booleans)) == ("refused", "added", "taken for booleans")
    assert messages(examine(nonsense, "MASKREP")) == [
        "a mask of integers is neither refused, nor added, nor taken for booleans"
    ]


def test_a_kernel_that_is_inaccurate_everywhere_is_left_to_other_checks():
    narrow = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1)
    examination = examine(narrow, "MASKREP")
    assert messages(examination) == []
    assert any("not by the mask" in skip.reason for skip in examination.skipped)


def test_rows_that_are_not_finite_are_said_to_be():
    def kernel(q, k, v, *, mask=None):
        output, _ = TwoPass()(q, k, v, mask=mask)
        return output if mask is None or mask.dtype != bool else output * np.float32(np.nan)

    assert "a mask of booleans gives rows that have keys no finite output" in messages(
        examine(kernel, "MASKREP")
    )


def test_a_kernel_without_masks_is_skipped():
    examination = examine(plain, "MASKREP")
    assert messages(examination) == []
    assert examination.verdict.outcome == "skip"
    assert [skip.reason for skip in examination.skipped] == ["the kernel takes no mask"]


def test_a_kernel_that_takes_booleans_only_is_examined_with_those():
    def kernel(q, k, v, *, mask=None):
        if mask is not None and mask.dtype != bool:
            msg = "booleans only"
            raise TypeError(msg)
        return TwoPass(fill=-1e4)(q, k, v, mask=mask)

    examination = examine(kernel, "MASKREP")
    assert messages(examination) == [
        "hidden keys get weight over large live scores with masks of booleans: a finite fill of about −10000 "
        "stands for −∞"
    ]
    assert any("booleans only" in skip.reason for skip in examination.skipped)


def test_the_longest_row_of_the_contract_is_kept_to():
    examination = examine(TwoPass(), "MASKREP", contract={"longest_n": 64})
    assert messages(examination) == []
    assert examination.skipped == []


def first_of_the_batch(q, k, v, *, mask=None):
    """An additive mask of batch entry 0 serves all, as in onnxruntime PR#24017."""
    if mask is not None and mask.dtype != bool:
        mask = np.broadcast_to(mask[:1], mask.shape)
    return TwoPass()(q, k, v, mask=mask)


def test_an_additive_mask_is_that_of_its_own_batch_entry():
    assert any("mask" in message for message in messages(examine(first_of_the_batch, "MASKREP")))
