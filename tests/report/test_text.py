"""What a person sees: 80 columns, everything in words, nothing by colour alone."""

import io
import math

import pytest
from rich.console import Console

from report_examples import HOSTILE, full_report
from softcarry.report._words import ratio
from softcarry.report._words import shown as in_words
from softcarry.report.model import Curve, Fact, Finding, Report, Skip, Verdict
from softcarry.report.text import render


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
    text = " ".join(shown([report(findings=[finding()])]).split())
    for words in ("FAIL LSE float32 the lse is wrong", "lse 0 rows 1, 4 remedy mend it"):
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
    assert "knee 4096 near b 2" in " ".join(text.split())
    assert "predicted" not in text
    assert "none" not in text.lower()


def test_of_many_numbers_the_largest_are_shown_and_nested_ones_left_to_the_json():
    ratios = {"normal": 0.1, "positive": 90.0, "huge": math.nan, "equal": 3.0, "outlier": 7.0}
    nested = {kind: {"largest": 1.25, "rms": 0.5} for kind in ratios}
    text = " ".join(shown([report(findings=[finding(ratios=ratios, errors=nested)])]).split())
    assert "ratios huge nan, positive 90, outlier 7, …" in text
    assert "errors" not in text
    assert "1.25" not in text


def test_of_many_explanations_two_are_shown():
    explanations = [{"format": name, "key_block": 16} for name in ("bfloat16", "float16", "E5M2")]
    text = shown([report(findings=[finding(explanations=explanations)])])
    assert "format bfloat16, key_block 16; format float16, key_block 16, … (3)" in " ".join(text.split())


def test_verdicts_of_one_subject_are_words_by_check_and_dtype():
    lines = [line.split() for line in shown([report(findings=[finding("bfloat16")])]).splitlines()]
    assert ["torch-sdpa-flash", "float64", "float32", "bfloat16", "float16"] in lines
    assert ["LSE", "pass", "pass", "FAIL", "pass"] in lines
    assert ["EMPTY", "pass", "pass", "pass", "pass"] in lines


def test_verdicts_of_many_subjects_are_marks_under_names_written_downwards():
    reports = [report(findings=[finding("bfloat16")]), full_report("other")]
    lines = [line.rstrip() for line in shown(reports).splitlines()]
    top = lines.index("torch-sdpa-flash . F . . . .")
    header = lines[top - 7 : top]
    columns = ["".join(line.ljust(80)[at] for line in header).strip() for at in range(17, 17 + 2 * 20, 2)]
    assert columns[:7] == ["EMPTY", "LSE", "RANGE", "GROWTH", "REF", "TAIL", "MASKREP"]
    assert lines[top + 1].split() == ["other", *"FFFF.FFFFFFFwFFFFF-"]
    assert lines[top + 2].startswith(". pass   F fail   w warning   - not examined")


def test_nineteen_checks_fit_80_columns():
    for reports in ([full_report(HOSTILE)], [full_report(f"a-subject-with-a-name-{i}") for i in range(12)]):
        text = shown(reports)
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "fingerprint" not in text
        assert "0f0f" not in text


def test_the_kind_of_fault_is_told_once_a_check():
    other = Finding("LSE", "error", "another", {}, "r", "float32")
    text = " ".join(shown([report(findings=[finding(), other])]).split())
    assert text.count("kind of fault") == 1
    assert "Base 2 is handed out for base e" in text
    assert "Like pytorch#181645, pytorch#134650, flashinfer#4451." in text


def test_invariances_are_shown_by_axis_and_dtype():
    lines = [line.split("  ") for line in shown([full_report()]).splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["neighbours", "within the bound", "within the bound", "within the bound"] in rows


def test_a_name_with_brackets_is_no_markup():
    assert "[red]mine[/red]" in shown([full_report("[red]mine[/red]")]).splitlines()[3]


def test_no_name_gives_orders_to_the_terminal():
    text = shown([full_report("a\x1b[2J\x9b\rb\x07")])
    assert "a\ufffd[2J\ufffd\ufffdb\ufffd" in text
    assert not set("\x1b\x9b\r\x07") & set(text)


def test_a_report_from_json_reads_the_same():
    reports = [report(findings=[finding(ratio=math.inf, list=[math.nan])])]
    assert shown([Report.from_json(each.to_json()) for each in reports]) == shown(reports)


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
    assert ratio(value) == text


def test_evidence_is_readable():
    assert in_words([1, 2]) == "1, 2"
    assert in_words(["a b", "c"]) == "a b; c"
    assert in_words([[0], [0, 1]]) == "0; 0, 1"
    assert in_words(list(range(20))) == "0, 1, 2, 3, 4, 5, 6, 7, … (20)"
    assert in_words({"format": "bfloat16", "key_block": 1.0}) == "format bfloat16, key_block 1"
    assert in_words(True) == "yes"
    assert in_words(None) == ""
    assert in_words(-math.inf) == "−inf"
