"""What a person sees: 80 columns, everything in words, nothing by colour alone."""

import io
import math

import pytest
from rich.console import Console

from softcarry.report.model import Curve, Fact, Finding, Report, Skip, Verdict
from softcarry.report.text import _ratio, _shown, render


def report(name="torch-sdpa-flash", control=False, findings=()):
    dtypes = ["float64", "float32", "bfloat16", "float16"]
    checks = ["EMPTY", "LSE", "RANGE", "GROWTH", "REF", "TAIL"]
    n = tuple(2**k for k in range(6, 17))
    failed = {(f.check, f.dtype) for f in findings}
    return Report(
        subject={"name": name, "dtypes": dtypes, "control": control},
        findings=tuple(findings),
        verdicts=tuple(
            Verdict(check, dtype, "fail" if (check, dtype) in failed else "pass")
            for dtype in dtypes
            for check in checks
        ),
        profile={dtype: {"empty_rows": Fact("ZERO", 1.0, "seen")} for dtype in dtypes},
        curves=tuple(
            Curve("error of a long title on normal scores, bound of the declared carry and more", n,
                  [1e-7 * x for x in n], [1e-5 * x for x in n], check="GROWTH", dtype=dtype)
            for dtype in dtypes
        ),
        skipped=tuple(Skip("EMPTY", "causal mask, tq > tk", "aligned top-left", dtype) for dtype in dtypes),
        environment={
            "softcarry": "0.1",
            "python": "3.11",
            "libraries": {"numpy": "2.4", "torch": "2.13.0+cpu"},
            "system": "Linux x86_64",
            "cpu": "AMD EPYC 7B13",
            "threads": 2,
            "seed": 0,
        },
    )  # fmt: skip


def finding(dtype="float32", severity="error", **evidence):
    return Finding(
        "LSE", severity, "the lse is wrong", evidence or {"lse": 0.0, "rows": [1, 4]}, "mend it", dtype
    )


def shown(reports, *, color=False, width=80):
    system = "truecolor" if color else None
    console = Console(
        file=io.StringIO(), width=width, highlight=False, force_terminal=color, color_system=system
    )
    console.print(render(reports))
    return console.file.getvalue()


def test_a_finding_shows_message_evidence_and_remedy():
    text = shown([report(findings=[finding()])])
    for words in ("FAIL LSE  float32", "the lse is wrong", "rows    1, 4", "lse     0", "remedy  mend it"):
        assert words in text
    assert "torch-sdpa-flash: 1 error" in text


def test_findings_that_differ_in_dtype_only_are_one():
    text = shown([report(findings=[finding("float32"), finding("bfloat16"), finding("float16", "warning")])])
    assert text.count("the lse is wrong") == 2
    assert "FAIL LSE  float32, bfloat16" in text
    assert "warn LSE  float16" in text
    assert "torch-sdpa-flash: 2 errors, 1 warning" in text


def test_what_is_not_known_is_not_shown():
    text = shown([report(findings=[finding(knee=4096, predicted_knee=None, near={"a": None, "b": 2})])])
    assert "knee    4096" in text
    assert "near    b 2" in text
    assert "predicted" not in text
    assert "none" not in text.lower()


def test_of_many_numbers_the_largest_are_shown_and_nested_ones_left_to_the_json():
    ratios = {"normal": 0.1, "positive": 90.0, "huge": math.nan, "equal": 3.0, "outlier": 7.0}
    nested = {kind: {"largest": 1.25, "rms": 0.5} for kind in ratios}
    text = shown([report(findings=[finding(ratios=ratios, errors=nested)])])
    assert "ratios  huge nan, positive 90, outlier 7, …" in text
    assert "errors" not in text
    assert "1.25" not in text


def test_of_many_explanations_two_are_shown():
    explanations = [{"format": name, "key_block": 16} for name in ("bfloat16", "float16", "E5M2")]
    text = shown([report(findings=[finding(explanations=explanations)])])
    assert "format bfloat16, key_block 16; format float16, key_block 16, … (3)" in " ".join(text.split())


def test_verdicts_are_words():
    lines = shown([report(findings=[finding("bfloat16")])]).splitlines()
    row = next(line for line in lines if line.split()[:1] == ["bfloat16"])
    assert row.split() == ["bfloat16", "pass", "FAIL", "pass", "pass", "pass", "pass"]


@pytest.mark.parametrize("names", [["a"], ["softcarry", "control-bfloat16-carry"]])
def test_everything_fits_80_columns(names):
    long = finding(cases=["a case with a long name"] * 9, call="q (1, 2, 4, 16), " * 9)
    text = shown([report(name, findings=[long]) for name in names])
    assert max(len(line) for line in text.splitlines()) <= 80


def test_colour_repeats_words_and_adds_none():
    reports = [report(findings=[finding()]), report("control", control=True, findings=[finding()])]
    plain, coloured = shown(reports), shown(reports, color=True)
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_control_is_labelled_where_it_fails():
    text = shown([report("control", control=True, findings=[finding()])])
    assert "wrong on purpose, not counted" in text
    assert "control: 1 error (a control, not counted)" in text


def test_the_curve_stands_beside_its_ceiling():
    lines = [line.split() for line in shown([report()]).splitlines()]
    assert [
        "n",
        "float64",
        "ceiling",
        "float32",
        "ceiling",
        "bfloat16",
        "ceiling",
        "float16",
        "ceiling",
    ] in lines
    assert any(line[:3] == ["64", "6.4e-6", "0.064%"] for line in lines)
    assert any(line[:3] == ["65536", "0.655%", "65.5%"] for line in lines)


def test_the_profile_is_shown_for_one_subject():
    assert "empty rows" in shown([report()])
    assert "Profile" not in shown([report(), report("b")])


def test_what_was_skipped_is_shown_once_for_all_dtypes():
    text = shown([report(), report("b")])
    assert text.count("aligned top-left") == 1
    assert "torch-sdpa-flash, b" in " ".join(text.split())


def test_cases_with_one_reason_are_counted():
    skips = tuple(Skip("TAIL", f"d = {d}", "needs d = dv", "float32") for d in (1, 7, 40))
    text = shown([Report(subject={"name": "mine", "dtypes": ["float32"]}, skipped=skips)])
    assert "d = 1 and 2 more: needs d = dv" in text


def test_reasons_that_differ_in_numbers_only_are_one():
    skips = tuple(Skip("TAIL", f"d = {d}", f"the kernel raised: {d} > 0", "float32") for d in (1, 7, 40))
    text = shown([Report(subject={"name": "mine", "dtypes": ["float32"]}, skipped=skips)])
    assert "d = 1 and 2 more: the kernel raised: 1 > 0" in text


def test_long_evidence_is_cut():
    text = shown([report(findings=[finding(words="x" * 1000)])])
    assert 230 < text.count("x") < 260
    assert "…" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.94e-7, "3.9e-7"),
        (0.00391, "0.391%"),
        (0.5, "50%"),
        (12.0, "1.2e+01"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_errors_are_short(value, text):
    assert _ratio(value) == text


def test_evidence_is_readable():
    assert _shown([1, 2]) == "1, 2"
    assert _shown(["a b", "c"]) == "a b; c"
    assert _shown(list(range(20))) == "0, 1, 2, 3, 4, 5, 6, 7, … (20)"
    assert _shown({"format": "bfloat16", "key_block": 1.0}) == "format bfloat16, key_block 1"
    assert _shown(True) == "yes"
    assert _shown(None) == ""
    assert _shown(-math.inf) == "−inf"
