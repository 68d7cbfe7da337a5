"""One audit: what runs, what is recorded, and that a seed repeats it."""

import json
from pathlib import Path

import numpy as np
import pytest

import softcarry as sc
from json_schema import violations
from mutants import TwoPass, plain
from softcarry.auditing import _events
from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.probes import CHECKS, load_probe
from softcarry.errors import OptionError, SubjectError

# That of the table of checks in the documentation: by how many public faults each would have caught.
ORDER = [
    "EMPTY", "MASKREP", "TAIL", "RANGE", "GROWTH", "LSE", "POISON", "CAUSAL", "GRAD", "REF", "SCALE",
    "LAYOUT", "INVAR", "FPRINT", "HEADMAP", "HARNESS", "NONFIN", "ARGS", "DROP",
]  # fmt: skip
SCHEMA_FILE = json.loads(Path(__file__, "../../../docs/report-schema.json").resolve().read_text())


@pytest.fixture
def probes(monkeypatch):
    """Stand-ins for all probes: a dict check -> function(examination) that a test fills."""
    table = {}
    monkeypatch.setattr(_events, "load_probe", lambda check: table.get(check, lambda examination: None))
    return table


def test_every_check_has_a_probe_with_a_docstring():
    assert list(CHECKS) == [check for check in ORDER if check in CHECKS]
    for check in CHECKS:
        probe = load_probe(check)
        assert callable(probe)
        assert __import__(probe.__module__, fromlist=["x"]).__doc__


def test_a_bare_kernel_is_audited_and_the_report_follows_the_schema():
    report = sc.audit(TwoPass(), only="LSE")
    assert report.ok
    assert [(v.check, v.dtype, v.outcome) for v in report.verdicts] == [("LSE", "float32", "pass")]
    assert report.subject["arrays"] == "numpy"
    assert report.subject["returns_lse"] is True
    content = json.loads(report.to_json())
    assert violations(content, SCHEMA_FILE) == []


def test_the_same_seed_gives_the_same_report():
    kernel = TwoPass(empty_lse=0.0)

    def content(seed):
        report = json.loads(sc.audit(kernel, only="LSE", seed=seed).to_json())
        report["environment"].pop("time")
        return report

    assert content(0) == content(0)
    assert content(0) != content(1)


def test_checks_run_in_order_in_every_dtype_and_progress_counts_them(probes):
    ran, steps = [], []
    for check in CHECKS:
        probes[check] = lambda examination: ran.append((examination.dtype, examination.check))
    sc.audit(plain, only="ref,EMPTY", dtypes="float32, bfloat16", progress=lambda *step: steps.append(step))
    assert ran == [(dtype, check) for dtype in ("float32", "bfloat16") for check in ("EMPTY", "REF")]
    assert [step[:2] for step in steps] == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert steps[1][2] == "plain float32 REF"


def test_what_a_probe_records_reaches_the_report(probes):
    def first(examination):
        examination.fail("bad", evidence={}, remedy="mend")
        examination.fact("size", 1, 1.0, "seen")
        examination.skip("part", "reason")
        raise CaseRefused

    def second(examination):
        examination.fact("shape", 2, 1.0, "seen")

    probes.update(EMPTY=first, LSE=second)
    report = sc.audit(plain, only=["EMPTY", "LSE"])
    assert not report.ok
    assert set(report.profile["float32"]) == {"size", "shape"}
    assert [v.outcome for v in report.verdicts] == ["fail", "pass"]
    assert report.skipped[0].what == "part"


@pytest.mark.usefixtures("probes")
def test_a_kernel_that_writes_to_its_inputs_is_found_out():
    def in_place(q, k, v):
        q *= np.float32(q.shape[-1] ** -0.5)
        return plain(q, k, v)

    fact = sc.audit(in_place).profile["float32"]["inputs written to"]
    assert fact.value == ["q"]
    assert "inputs written to" not in sc.audit(plain).profile["float32"]


def test_a_fault_of_a_probe_is_not_hidden(probes):
    def broken(examination):
        raise ZeroDivisionError

    probes.update(EMPTY=broken)
    with pytest.raises(ZeroDivisionError):
        sc.audit(plain, only="EMPTY")


def test_skip_leaves_checks_out(probes):
    report = sc.audit(plain, skip=("TAIL", "growth"))
    assert [v.check for v in report.verdicts] == [c for c in CHECKS if c not in ("TAIL", "GROWTH")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"only": "EMTPY"}, ("TAIL, RANGE", "'EMTPY'", "did you mean 'EMPTY'?")),
        ({"only": "LSE", "skip": "LSE"}, ("no check is left",)),
        ({"only": 3}, ("check", "TAIL, RANGE", "got 3")),
        ({"dtypes": "float8"}, ("dtype", "bfloat16", "'float8'")),
        ({"dtypes": ()}, ("no dtype is left", "bfloat16")),
        ({"dtypes": 3}, ("dtype", "bfloat16", "got 3")),
        ({"progress": 3}, ("progress", "int")),
        ({"seed": -1}, ("seed", "-1")),
        ({"seed": 0.5}, ("seed", "0.5")),
        ({"contract": {"lse": "-inf"}}, ("lse_empty", "'lse'")),
    ],
)
def test_unknown_arguments_are_refused_before_any_call(arguments, words):
    def never(q, k, v):
        raise AssertionError

    with pytest.raises(OptionError) as caught:
        sc.audit(never, **arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_subject_that_can_not_run_is_an_error_not_a_finding():
    with pytest.raises(SubjectError, match="gave no attention output"):
        sc.audit(lambda q, k, v: np.zeros(3), only="LSE")
    with pytest.raises(SubjectError, match="a subject is a callable"):
        sc.audit(3.0)


def takes_float32_only(q, k, v):
    if q.dtype != np.float32:
        msg = "float32 only"
        raise TypeError(msg)
    return plain(q, k, v)


@pytest.mark.usefixtures("probes")
def test_a_dtype_that_is_refused_is_skipped_and_said():
    report = sc.audit(takes_float32_only, only="LSE", dtypes="float16,float32")
    assert report.subject["dtypes"] == ["float32"]
    assert [(v.dtype, v.outcome) for v in report.verdicts] == [("float32", "pass")]
    (skip,) = report.skipped
    assert (skip.what, skip.dtype) == ("float16 as a whole", "float16")
    assert "TypeError: float32 only" in skip.reason
    with pytest.raises(SubjectError, match="float32 only"):
        sc.audit(takes_float32_only, only="LSE", dtypes="float16")


@pytest.mark.usefixtures("probes")
def test_dtypes_and_options_that_are_promised_and_missing_are_findings():
    contract = {"dtypes": ["float32", "float16"], "options": ["mask", "causal"]}
    report = sc.audit(takes_float32_only, only="LSE", contract=contract)
    found = {finding.message: finding for finding in report.findings}
    assert set(found) == {
        "float16 is promised, and the kernel does not take it",
        "the contract promises mask, causal, and the kernel has no such option",
    }
    assert {finding.check for finding in found.values()} == {"CONTRACT"}
    outcomes = {v.dtype: v.outcome for v in report.verdicts if v.check == "CONTRACT"}
    assert outcomes == {"float32": "fail", "float16": "fail"}
    kept = sc.audit(TwoPass(), only="LSE", contract={"dtypes": ["float16"], "options": ["mask"]})
    assert kept.ok
    assert [(v.check, v.dtype) for v in kept.verdicts][:2] == [
        ("CONTRACT", "float32"),
        ("CONTRACT", "float16"),
    ]


def test_no_row_is_longer_than_the_contract_says():
    longest = []

    def kernel(q, k, v):
        longest.append(k.shape[2])
        return plain(q, k, v)

    sc.audit(kernel, only=["GROWTH", "TAIL"], contract={"longest_n": 300})
    assert max(longest) <= 300


def test_the_source_of_a_kernel_in_the_current_folder_is_named(monkeypatch):
    folder = Path(__file__).parent
    monkeypatch.chdir(folder)
    source = sc.audit(takes_float32_only, only="LSE").subject["source"]
    assert source["file"] == "test__audit.py"
    assert Path(__file__).read_text().splitlines()[source["line"] - 1].startswith("def takes_float32_only")
    monkeypatch.chdir(folder.parent.parent / "src")
    assert "source" not in sc.audit(takes_float32_only, only="LSE").subject


def test_a_quick_audit_asks_some_checks_in_the_first_dtype_only(probes):
    ran = []
    for check in CHECKS:
        probes[check] = lambda examination: ran.append((examination.dtype, examination.check))
    arguments = {"only": "LSE,CAUSAL", "dtypes": "float32,float16"}
    report = sc.audit(plain, quick=True, **arguments)
    assert ran == [("float32", "LSE"), ("float32", "CAUSAL"), ("float16", "LSE")]
    (skip,) = [skip for skip in report.skipped if skip.check == "CAUSAL"]
    assert (skip.dtype, skip.reason) == ("float16", "asked in the first dtype only in a quick audit")
    ran.clear()
    sc.audit(plain, **arguments)
    assert len(ran) == 4
