"""``softcarry bench``: tables, JSON, exit statuses by targets met and missed; nothing here is timed."""

import json

import numpy as np
import pytest

from softcarry.benchmarks._cases import Case, Measured
from softcarry.benchmarks._memory import ExtraMemory
from softcarry.benchmarks._rates import Rate
from softcarry.benchmarks._timing import Spread
from softcarry.benchmarks.row_memory import MeasuredMemory
from softcarry.cli import main


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    # What else runs on the machine is not what these tests are about.
    monkeypatch.setattr("softcarry.benchmarks._machine._work", lambda: None)


@pytest.fixture
def options(monkeypatch):
    """Put made-up figures in place of the measurements; returns what they were asked for."""
    asked = []

    def measure(case: Case, read, *, judged, **options) -> Measured:
        asked.append((case.labels, read.threads, judged, options))
        ratio = 3.0 if case.group == "float16" else 100.0
        return Measured(
            case,
            "timed",
            rounds=7,
            seconds=Spread(1e-3, 2.356e-3, 3e-3),
            peer_seconds=Spread(0.2, 0.2345, 0.3),
            read_seconds=Spread(1e-3, 2e-3, 3e-3),
            ratio=Spread(ratio * 0.9, ratio, ratio * 1.1),
            share=Spread(0.8, 0.85, 0.9),
            read_bytes=46_000_000,
            judged=judged,
        )

    def measure_memory(case, *, threads, quick) -> MeasuredMemory:
        asked.append((case.labels, threads, not quick, {}))
        peak = 70_000 if case.library == "softcarry" else 33_000_000
        return MeasuredMemory(case, ExtraMemory(peak, 256), judged=not quick)

    monkeypatch.setattr("softcarry.benchmarks._cases.measure", measure)
    monkeypatch.setattr("softcarry.benchmarks.row_memory.measure_memory", measure_memory)
    return asked


def words(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_the_table_has_medians_ratio_target_and_share(options, capsys):
    assert main(["bench", "rows", "--only", "float32", "--threads", "2"]) == 0
    captured = capsys.readouterr()
    lines = words(captured.out)
    assert "float32: 64 x 128256 float32, one-pass read 23.0 GB/s" in captured.out
    line = next(line for line in lines if line[:1] == ["logsumexp"])
    figures = ["2.36", "234", "100.00", "10%", ">=5", ">=70%", "85%", "yes"]
    assert line == ["logsumexp", "torch.logsumexp", *figures]
    # no target, no verdict
    assert next(line for line in lines if line[:1] == ["softmax-out"])[-1] == "85%"
    assert captured.out.count("2 threads on") == 1
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "…" not in captured.out
    assert captured.err == ""
    assert {threads for _, threads, _, _ in options} == {2}


def test_one_missed_target_is_status_1(options, capsys):
    assert main(["bench", "rows"]) == 1
    out = capsys.readouterr().out
    assert [line[-1:] for line in words(out)].count(["NO"]) == 4
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert all(judged for _, _, judged, _ in options)
    assert [labels for labels, *_ in options].count(("memory", "top5")) == 2


def test_quick_judges_nothing(options, capsys):
    assert main(["bench", "rows", "--quick"]) == 0
    assert not any(line[-1:] in (["NO"], ["yes"]) for line in words(capsys.readouterr().out))
    assert not any(judged for _, _, judged, _ in options)
    assert all(options["most"] == 3 for labels, _, _, options in options if labels[0] != "memory")


def test_memory_is_a_table_of_its_own(options, capsys):
    assert main(["bench", "rows", "--only", "memory"]) == 0
    lines = words(capsys.readouterr().out)
    assert ["logsumexp", "softcarry", "0", "68", "<1024", "yes"] in lines
    assert ["top5", "torch", "0", "32226"] in lines
    assert not any(line[:1] == ["float32:"] for line in lines)


def test_too_much_memory_is_status_1(monkeypatch, capsys):
    monkeypatch.setattr(
        "softcarry.benchmarks.row_memory.measure_memory",
        lambda case, **_: MeasuredMemory(case, ExtraMemory(2**21, 0)),
    )
    assert main(["bench", "rows", "--only", "memory/top5"]) == 1
    assert ["top5", "softcarry", "0", "2048", "<1024", "NO"] in words(capsys.readouterr().out)


@pytest.mark.parametrize(("status", "code"), [("skipped", 0), ("wrong", 1)])
@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_skipped_is_no_miss_and_wrong_is_one(status, code, quick, monkeypatch, capsys):
    monkeypatch.setattr(
        "softcarry.benchmarks._cases.measure",
        lambda case, read, *, judged, **_: Measured(case, status, "because of this", judged=judged),
    )
    assert main(["bench", "rows", "--only", "scipy", *quick]) == code
    out = capsys.readouterr().out
    assert ["logsumexp", "scipy", "logsumexp", "-", "-", "-", "-", ">=25", "-", status] in words(out)
    assert f"logsumexp: {status}, because of this" in out
    assert max(map(len, out.splitlines())) <= 80


def test_memory_that_cannot_be_measured_is_no_miss(monkeypatch, capsys):
    monkeypatch.setattr(
        "softcarry.benchmarks.row_memory.measure_memory",
        lambda case, **_: MeasuredMemory(case, ExtraMemory(None, reason="not here")),
    )
    assert main(["bench", "rows", "--only", "memory"]) == 0
    out = capsys.readouterr().out
    assert out.count("memory: skipped, not here") == 1
    assert ["top5", "torch", "-", "-", "skipped"] in words(out)


def test_json_has_the_figures_and_the_machine(options, capsys):
    assert main(["bench", "rows", "--json", "--threads", "3"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["suite"], data["quick"]) == ("softcarry.bench/1", "rows", False)
    assert data["machine"]["threads"] == 3
    assert data["busy_elsewhere"] is None
    cases = {(case["group"], case["name"]): case for case in data["cases"]}
    assert cases["float16", "top5"]["met"] is False
    assert cases["float32", "logsumexp"]["met"] is True
    assert cases["float32", "logsumexp"]["seconds"] == 2.356e-3
    assert [item["beyond_result"] for item in data["memory"]] == [69744, 32999744, 69744, 32999744]


def test_a_busy_machine_is_remarked_on_stderr(options, monkeypatch, capsys):
    readings = iter([(0.0, 0.0, 0.0), (10.0, 25.0, 10.0)])
    monkeypatch.setattr("softcarry.benchmarks._machine._work", lambda: next(readings))
    assert main(["bench", "rows", "--only", "scipy", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["busy_elsewhere"] == 1.5
    assert captured.err.startswith("other processes kept 1.5 processors busy meanwhile")


@pytest.fixture
def rates(monkeypatch):
    monkeypatch.setattr(
        "softcarry.benchmarks._rates.measure_rate",
        lambda case, **_: Rate(case, 12.345, Spread(0.1, 0.25, 0.3), 0.4),
    )


@pytest.mark.parametrize(("suite", "name"), [("sums", "kahan"), ("emulated", "bfloat16-8-splits")])
def test_emulated_additions_have_rates_and_no_verdict(suite, name, rates, capsys):
    assert main(["bench", suite, "--only", name, "--quick"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in words(out) if line and name in line[0].split("/")]
    assert len(lines) > 1
    additions = int(np.prod([int(size) for size in lines[0][0].rsplit("/", 1)[1].split("x")]))
    # the kernel's label is rows x keys x width, and l has an addition too
    additions = additions if suite == "sums" else additions * 65 // 64
    assert lines[0][1:] == ["12.35", "250", "400", f"{additions / 0.25 / 1e6:.0f}"]
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_emulated_additions_in_json(rates, capsys):
    assert main(["bench", "sums", "--quick", "--json", "--threads", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["suite"], data["machine"]["threads"]) == ("softcarry.bench/1", "sums", 1)
    assert data["cases"][0]["name"] == "bfloat16/nearest-even/sequential/64x1024"
    assert data["cases"][0]["additions_a_second"] == 64 * 1024 / 0.25
    assert "memory" not in data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], 'Command "bench" parameter SUITE requires an argument'),
        (
            ["columns"],
            'Invalid value "columns" for SUITE. Choose from: "rows", "attention", "decode", "merge"',
        ),
        (["rows", "--only", "softmaks"], "only takes the name of a case or a group (float32, logsumexp"),
        (["rows", "--only"], 'Command "bench" parameter --only requires at least 1 element'),
        (["rows", "--threads", "0"], "threads is a whole number of at least 1; got 0"),
        (["rows", "--threads", "1.5"], "Invalid value for --threads: expected a whole number"),
        (["sums", "--threads", "-2"], "threads is a whole number of at least 1; got -2"),
        (["sums", "--only", "rows"], "only takes the name of a case or a group (bfloat16"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments, message, options, capsys):
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"softcarry: {message}")
    assert captured.err.count("\n") == 1
    assert options == []
