"""LSE names each wrong convention, and is silent about sound kernels."""

import math

import ml_dtypes
import numpy as np
import pytest

from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing.golden import golden_attention
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention

LOG2E = 1.0 / math.log(2.0)


def base_two(m, total, _scale):
    return m * LOG2E + np.log2(total)


SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "by the lse": LogAddExp(),
    "emulated": EmulatedKernel(),
    "emulated, lazy rescale": EmulatedKernel(key_block=32, rescale=("lazy", 8.0)),
    "reference": blocked_attention,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    examination = examine(kernel, "LSE", seed=seed)
    assert messages(examination) == []
    assert examination.facts["unit of the lse"].value == "e"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_lse_that_is_not_finite_is_said_to_be_just_that(value):
    examination = examine(TwoPass(lse=lambda m, total, _scale: 0 * m + value), "LSE")
    assert "the lse of 1 equal scores 0 is not finite" in messages(examination)
    assert not any("ln n" in message for message in messages(examination))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_sound_kernels_pass_in_other_dtypes(dtype):
    assert messages(examine(blocked_attention, "LSE", dtype=dtype)) == []


def test_a_declared_base_two_passes():
    examination = examine(TwoPass(lse=base_two), "LSE", lse="2")
    assert messages(examination) == []
    assert examination.facts["unit of the lse"].value == "2"


CONVENTIONS = {
    "in base 2 (log2 of Σ e^s), where natural log was expected": base_two,
    "a mixture of units, m + log2 l": lambda m, total, scale: m + np.log2(total),
    "a mixture of units, m·log2 e + ln l": lambda m, total, scale: m * LOG2E + np.log(total),
    "of unscaled scores in its maximum: √d·m + ln l": lambda m, total, scale: m / scale + np.log(total),
    "multiplied by the scale": lambda m, total, scale: scale * (m + np.log(total)),
    "−lse, its sign changed": lambda m, total, scale: -(m + np.log(total)),
    "only the maximum m, without ln l": lambda m, total, scale: m,
    "only ln l, without the maximum m": lambda m, total, scale: np.log(total),
    "off by the constant 0.6931": lambda m, total, scale: m + np.log(total) + math.log(2.0),
}


@pytest.mark.parametrize(("name", "formula"), CONVENTIONS.items(), ids=range(len(CONVENTIONS)))
def test_wrong_conventions_are_named(name, formula):
    examination = examine(TwoPass(lse=formula), "LSE")
    assert messages(examination)[0] == f"the lse is {name}"


def test_base_two_is_the_only_finding_and_gives_its_ratio():
    examination = examine(TwoPass(lse=base_two), "LSE")
    assert len(examination.findings) == 1
    assert examination.findings[0].evidence["ratio"] == pytest.approx(LOG2E, rel=1e-6)
    assert "Subject(lse='2')" in examination.findings[0].remedy


def test_a_natural_lse_declared_base_two_is_found():
    found = messages(examine(TwoPass(), "LSE", lse="2"))
    assert found == ["the lse is in base e already, though it is declared base 2"]


def test_an_unknown_convention_is_described_by_its_coefficients():
    found = messages(examine(TwoPass(lse=lambda m, total, scale: 3.0 * m + 0.5 * np.log(total)), "LSE"))
    assert found == [
        "the lse is 3·c + 0.5·ln n + 0 for equal scores c on n keys, where c + ln n was expected"
    ]


def test_an_overflowing_sum_is_found():
    examination = examine(TwoPass(lse=lambda m, total, scale: np.log(np.exp(m) * total)), "LSE")
    assert messages(examination) == ["the lse of 16 equal scores 1024 is inf, beyond the bound on its error"]


def test_a_running_sum_that_stops_is_found_and_read_off():
    narrow = EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1)
    examination = examine(narrow, "LSE")
    assert examination.findings[0].message.startswith("the lse of 1024 equal scores 0 is 5.545177")
    assert examination.findings[0].evidence["l that this lse implies"] == pytest.approx(256.0, rel=1e-6)


def test_a_narrow_lse_is_found():
    examination = examine(TwoPass(lse_dtype=ml_dtypes.bfloat16), "LSE")
    assert messages(examination)[0] == "the lse is returned in bfloat16"


def test_an_lse_of_other_scores_than_the_output_is_found_by_merging():
    def lse_of_first_half(q, k, v, *, mask=None):
        output, _ = TwoPass()(q, k, v, mask=mask)
        half = slice(0, max(1, k.shape[2] // 2))
        _, lse = TwoPass()(q, k[:, :, half], v[:, :, half])
        # Equal scores don't show it: twice the sum of half of them.
        return output, lse + np.float32(math.log(k.shape[2] / (half.stop or 1)))

    found = messages(examine(lse_of_first_half, "LSE"))
    assert any(message.startswith("two parts merged by their lse do not give the") for message in found)


@pytest.mark.parametrize(("value", "word"), [(0.0, "0"), (math.inf, "inf"), (math.nan, "nan")])
def test_a_part_without_keys_must_be_the_identity(value, word):
    found = messages(examine(TwoPass(empty_lse=value), "LSE"))
    assert found == [f"a part without keys has weight in a merge: its lse is {word}"]


def test_a_promised_lse_of_empty_rows_is_understood():
    assert messages(examine(TwoPass(empty_lse=math.inf), "LSE", contract={"lse_empty": "+inf"})) == []


def test_a_kernel_without_lse_is_skipped():
    examination = examine(plain, "LSE")
    assert examination.verdict.outcome == "skip"
    assert [each.reason for each in examination.skipped] == ["the kernel returns no lse"]


MUTANTS = {
    f"the lse is {name}": (TwoPass(lse=formula), f"the lse is {name}")
    for name, formula in CONVENTIONS.items()
} | {
    "a part without keys has lse 0": (
        TwoPass(empty_lse=0.0),
        "a part without keys has weight in a merge: its lse is 0",
    ),
    "the lse in bfloat16": (TwoPass(lse_dtype=ml_dtypes.bfloat16), "the lse is returned in bfloat16"),
}
"""Of the faults above, those of the table in docs/audit-mutants.md."""


class Declared(TwoPass):
    """The output with an option, the lse with or without it."""

    def __init__(self, *, forgets):
        super().__init__()
        self.forgets = forgets

    def __call__(self, q, k, v, *, mask=None, softcap=None):
        golden = golden_attention(q, k, v, mask=mask, softcap=softcap)
        kept = {"mask": mask, "softcap": softcap} | dict.fromkeys(self.forgets)
        return golden.output.astype(q.dtype), golden_attention(q, k, v, **kept).lse.astype(np.float32)


@pytest.mark.parametrize("option", ["mask", "softcap"])
def test_an_lse_without_an_option_of_its_output_is_found(option):
    found = messages(examine(Declared(forgets=[option]), "LSE"))
    assert f"the lse does not belong to the output beside {option}" in found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_lse_with_all_options_of_its_output_is_right(dtype):
    for seed in range(10):
        assert messages(examine(Declared(forgets=[]), "LSE", dtype=dtype, seed=seed)) == []
