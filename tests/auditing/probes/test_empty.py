"""EMPTY names each fault of rows without keys, and is silent about sound kernels."""

import math

import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, kill_process, plain, refuse_no_keys
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, one key a block": Online(key_block=7),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(),
    "emulated, splits": EmulatedKernel(key_block=64, splits=4),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    examination = examine(kernel, "EMPTY", seed=seed)
    assert messages(examination) == []
    assert examination.facts["empty rows"].value == "ZERO"
    assert examination.facts["lse of empty rows"].value == "-inf"
    assert examination.verdict.outcome == "pass"
    assert examination.calls >= 9


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_sound_kernels_pass_in_other_dtypes(dtype):
    assert messages(examine(blocked_attention, "EMPTY", dtype=dtype)) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_kernel_that_adds_in_any_order_is_not_blamed_for_its_bits(seed):
    rng = np.random.default_rng(seed)

    def kernel(q, k, v, *, mask=None, causal=False, scale=None):
        order = rng.permutation(k.shape[2])
        if causal:
            lower = np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
            mask = lower if mask is None else mask & lower
        mask = None if mask is None else mask[..., order]
        return blocked_attention(q, k[:, :, order], v[:, :, order], mask=mask, scale=scale)

    assert messages(examine(kernel, "EMPTY", seed=seed)) == []


OUTPUTS = {
    "NaN": [TwoPass(guard=False), TwoPass(empty_output=math.nan), EmulatedKernel(empty="nan")],
    "the mean of V over all keys": [
        TwoPass(fill=-1e30),
        EmulatedKernel(empty="mean"),
        EmulatedKernel(fill=-1e30),
    ],
    "attention without the mask": [TwoPass(ignore_mask_of_empty_rows=True)],
    "something else than 0, NaN or a mean of V": [TwoPass(empty_output=7.0)],
}


@pytest.mark.parametrize(
    ("kind", "kernel"), [(kind, kernel) for kind, kernels in OUTPUTS.items() for kernel in kernels]
)
def test_wrong_outputs_are_named(kind, kernel):
    examination = examine(kernel, "EMPTY")
    found = [
        f for f in examination.findings if f.message == f"rows without keys give {kind}, where 0 is promised"
    ]
    assert len(found) == 1, messages(examination)
    assert found[0].severity == "error"
    assert found[0].evidence["rows"] == [1, 4, 5, 7]
    assert "boolean mask" in found[0].evidence["cases"]


def test_a_mean_over_the_keys_of_one_block_is_told_from_the_mean_of_all():
    def first_half(q, k, v, *, mask=None):
        output, _ = TwoPass()(q, k, v, mask=mask)
        if mask is not None:
            empty = ~mask.any(axis=-1) if mask.dtype == bool else np.isneginf(mask).all(axis=-1)
            output[empty] = v[:, :, : v.shape[2] // 2].mean(axis=2, dtype=np.float32)[0, 0]
        return output

    examination = examine(first_half, "EMPTY")
    message = "rows without keys give the mean of V over some keys, where 0 is promised"
    assert message in messages(examination)
    assert [f.evidence["class"] for f in examination.findings if f.message == message] == ["MEAN_SUBSET"]


def test_rows_that_differ_are_said_to_differ():
    def every_other(q, k, v, *, mask=None):
        output, lse = TwoPass()(q, k, v, mask=mask)
        lse[:, :, ::2] = np.where(np.isneginf(lse[:, :, ::2]), 0, lse[:, :, ::2])
        return output, lse

    assert "the lse of rows without keys is not the same in every row, not −inf" in messages(
        examine(every_other, "EMPTY")
    )


@pytest.mark.parametrize(
    ("value", "word"), [(0.0, "0"), (math.inf, "inf"), (math.nan, "nan"), (-49993.0, "-49993")]
)
def test_wrong_lse_is_named_by_its_value(value, word):
    examination = examine(TwoPass(empty_lse=value), "EMPTY")
    assert messages(examination) == [f"the lse of rows without keys is {word}, not −inf"]
    finding = examination.findings[0]
    assert finding.evidence["rows"] == [1, 4, 5, 7]
    assert len(finding.evidence["cases"]) == 7
    assert "−inf where l = 0" in finding.remedy or "finite fill" in finding.remedy


@pytest.mark.parametrize("key_block", [16, 128, 1024])
def test_nan_behind_a_masked_key_block_is_found(key_block):
    found = messages(examine(Online(guard=False, key_block=key_block), "EMPTY"))
    assert "rows that have keys are not finite (whole key blocks masked by booleans)" in found
    assert "rows that have keys are not finite (whole key blocks masked by −inf)" in found


def test_neighbours_that_notice_an_empty_row_are_found():
    examination = examine(TwoPass(shared_maximum=True), "EMPTY")
    found = [f for f in examination.findings if f.message.startswith("rows that have keys change")]
    assert found
    assert not set(found[0].evidence["rows that change"]) & {1, 4, 5, 7}


def test_a_mask_ignored_beside_a_causal_one_is_found():
    def forgets(q, k, v, *, mask=None, causal=False):
        return TwoPass()(q, k, v, mask=None if causal else mask, causal=causal)

    assert "rows that have keys are wrong (boolean mask beside a causal one)" in messages(
        examine(forgets, "EMPTY")
    )


def test_a_causal_mask_that_is_off_by_one_is_found():
    def strict(q, k, v, *, causal=False):
        tq, tk = q.shape[2], k.shape[2]
        mask = np.tri(tq, tk, tk - tq - 1, dtype=bool) if causal else None
        return TwoPass()(q, k, v, mask=mask)

    assert "rows that have keys are wrong (causal mask with tq > tk)" in messages(examine(strict, "EMPTY"))


def test_a_kernel_that_is_inaccurate_on_few_keys_is_left_to_other_checks():
    # P in bfloat16: over thousands of equal weights its errors cancel, over a few keys they do not.
    examination = examine(EmulatedKernel(p_format="bfloat16"), "EMPTY")
    assert messages(examination) == []
    assert any("beyond their error bound already" in each.reason for each in examination.skipped)


def test_a_kernel_that_is_inaccurate_everywhere_is_left_to_other_checks():
    narrow = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1)
    examination = examine(narrow, "EMPTY")
    assert messages(examination) == []
    assert any("beyond their error bound already" in each.reason for each in examination.skipped)


@pytest.mark.parametrize(
    ("contract", "kernel", "passes"),
    [
        ({"empty_rows": "nan", "lse_empty": "any"}, TwoPass(empty_output=math.nan), True),
        ({"empty_rows": "nan"}, TwoPass(), False),
        ({"empty_rows": "mean", "lse_empty": "any"}, EmulatedKernel(empty="mean"), True),
        ({"empty_rows": "any", "lse_empty": "0"}, TwoPass(empty_output=7.0, empty_lse=0.0), True),
        ({"lse_empty": "+inf"}, TwoPass(empty_lse=math.inf), True),
    ],
)
def test_the_contract_decides(contract, kernel, passes):
    assert (messages(examine(kernel, "EMPTY", contract=contract)) == []) is passes


def test_a_top_left_kernel_is_not_blamed_for_its_causal_rule():
    def top_left(q, k, v, *, is_causal=False):
        rule = np.tri(q.shape[2], k.shape[2], dtype=bool) if is_causal else None
        return TwoPass()(q, k, v, mask=rule)

    examination = examine(top_left, "EMPTY")
    assert examination.causal == "top-left"
    assert messages(examination) == []


def test_a_causal_option_that_changes_nothing_is_the_only_finding():
    def kernel(q, k, v, *, mask=None, causal=False):
        return TwoPass()(q, k, v, mask=mask)

    assert messages(examine(kernel, "EMPTY")) == ["the causal option is accepted and changes nothing"]


def test_options_that_a_kernel_lacks_are_skipped():
    examination = examine(plain, "EMPTY")
    assert messages(examination) == []
    assert examination.facts["empty rows"].evidence == "no keys at all (tk = 0): ZERO"
    assert [each.reason for each in examination.skipped] == ["the kernel takes no mask"]


def test_a_process_that_dies_is_a_finding():
    examination = examine(TwoPass(on_no_keys=kill_process), "EMPTY", isolate=True)
    assert messages(examination) == ["the process dies when there are no keys (tk = 0): killed by SIGFPE"]


def test_a_kernel_may_refuse_to_have_no_keys():
    examination = examine(TwoPass(on_no_keys=refuse_no_keys), "EMPTY")
    assert messages(examination) == []
    assert any("need at least one key" in each.reason for each in examination.skipped)


def test_rows_of_the_lowest_finite_number_are_only_classified():
    examination = examine(TwoPass(), "EMPTY")
    assert examination.facts["rows filled with the lowest finite number"].value == "MEAN_ALL"


def test_a_table_says_what_each_case_got():
    table = examine(TwoPass(empty_lse=0.0), "EMPTY").facts["empty row table"].value
    assert {"case": "boolean mask", "output": "ZERO", "lse": "0"} in table
    assert len(table) == len({row["case"] for row in table}) == 7
    without_lse = examine(lambda q, k, v, *, mask=None: TwoPass()(q, k, v, mask=mask)[0], "EMPTY")
    assert {row["lse"] for row in without_lse.facts["empty row table"].value} == {None}


MUTANTS = {
    "NaN in rows without keys": (TwoPass(guard=False), "rows without keys give NaN, where 0 is promised"),
    "the mean of V in rows without keys": (
        TwoPass(fill=-1e30),
        "rows without keys give the mean of V over all keys, where 0 is promised",
    ),
    "something else in rows without keys": (
        TwoPass(empty_output=7.0),
        "rows without keys give something else than 0, NaN or a mean of V",
    ),
    "the mask ignored in rows that it empties": (
        TwoPass(ignore_mask_of_empty_rows=True),
        "rows without keys give attention without the mask",
    ),
    "lse 0 in rows without keys": (
        TwoPass(empty_lse=0.0),
        "the lse of rows without keys is 0, not −inf",
    ),
    "lse +inf in rows without keys": (
        TwoPass(empty_lse=math.inf),
        "the lse of rows without keys is inf, not −inf",
    ),
    "NaN after a masked key block": (Online(guard=False), "rows that have keys are not finite"),
    "one maximum for all rows": (TwoPass(shared_maximum=True), "rows that have keys change"),
}
"""Of the faults above, those of the table in docs/audit-mutants.md."""


class Lengths:
    """A sound kernel, but for what a sequence of length 0 gets."""

    def __init__(self, whole_if_empty):
        self.whole_if_empty = whole_if_empty

    def __call__(self, q, k, v, *, kv_lengths=None):
        if kv_lengths is None:
            return TwoPass()(q, k, v)
        lengths = np.where((kv_lengths == 0) & self.whole_if_empty, k.shape[2], kv_lengths)
        mask = np.arange(k.shape[2]) < lengths[:, None, None, None]
        return TwoPass()(q, k, v, mask=np.broadcast_to(mask, (*q.shape[:3], k.shape[2])))


def test_a_length_of_0_leaves_empty_rows():
    assert messages(examine(Lengths(whole_if_empty=False), "EMPTY")) == []
    found = messages(examine(Lengths(whole_if_empty=True), "EMPTY"))
    assert "rows without keys give attention without the mask, where 0 is promised" in found
