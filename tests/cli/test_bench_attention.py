"""``softcarry bench attention`` and ``decode``: tables, JSON and exit statuses; nothing here is timed."""

import json

import pytest

from softcarry.benchmarks._cases import Case, Measured
from softcarry.benchmarks._limits import Limits
from softcarry.benchmarks._memory import ExtraMemory
from softcarry.benchmarks._timing import Spread
from softcarry.benchmarks.decode_growth import MeasuredGrowth
from softcarry.benchmarks.prefill_memory import MeasuredPrefillMemory
from softcarry.benchmarks.start_up import StartUp
from softcarry.cli import main

MIB = 2**20
SUITES = {
    "attention": [
        *(("forward", name) for name in ("float32", "causal", "bfloat16", "float16", "float64")),
        *(("forward", name) for name in ("wide", "short", "small")),
        ("memory", "prefill"),
        *(("start-up", name) for name in ("prefill", "prefill-bfloat16", "decode")),
    ],
    "decode": [
        *(("decode", name) for name in ("float32", "bthd", "paged", "bfloat16", "one-head")),
        ("doubling", "keys"),
    ],
}


class Made:
    """Made-up figures in place of measurements, and what they were asked for."""

    def __init__(self) -> None:
        self.asked = []
        self.ratio, self.status, self.beyond, self.start, self.doubled = 100.0, "timed", MIB, 1.0, 2.0

    def limits(self, read, multiply, **options) -> Limits:
        self.asked.append(("limits", read.threads, multiply.threads, options))
        return Limits(156e9, 78e9, 23e9, 2**28)

    def case(self, case: Case, read, *, multiply, judged, **options) -> Measured:
        self.asked.append((case.labels, read.threads, multiply.threads, judged, options))
        if self.status != "timed":
            return Measured(case, self.status, "because of this", judged=judged)
        spreads = {
            "seconds": Spread(1e-3, 0.25, 3e-3),
            "peer_seconds": Spread(0.2, 0.2345, 0.3),
            "read_seconds": Spread(1e-3, 2e-3, 3e-3),
            "ratio": Spread(self.ratio * 0.9, self.ratio, self.ratio * 1.1),
            "share": Spread(0.8, 0.91, 0.95),
        }
        return Measured(case, "timed", rounds=7, operations=30_000_000_000, judged=judged, **spreads)

    def memory(self, case, *, threads, judged) -> MeasuredPrefillMemory:
        self.asked.append((case.labels, threads, judged))
        half, whole = (ExtraMemory(beyond + MIB, MIB) for beyond in (self.beyond // 2, self.beyond))
        return MeasuredPrefillMemory(case, half, whole, judged)

    def start_up(self, case, *, threads, judged, times=5) -> StartUp:
        self.asked.append((case.labels, threads, judged, times))
        parts = (Spread.of([seconds]) for seconds in (0.125, self.start - 0.125, self.start))
        return StartUp(case, *parts, judged=judged)

    def growth(self, case, *, judged, **options) -> MeasuredGrowth:
        self.asked.append((case.labels, judged, options))
        if self.status != "timed":
            return MeasuredGrowth(case, self.status, "because of this", judged=judged)
        seconds = tuple(Spread.of([2.0**step / 100.0]) for step in range(4))
        ratios = (Spread.of([2.0]), Spread.of([self.doubled]), Spread(1.8, 2.0, 2.2))
        return MeasuredGrowth(case, "timed", "", seconds, ratios, judged)


@pytest.fixture(autouse=True)
def made(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("softcarry.benchmarks._machine._work", lambda: None)
    made = Made()
    for where, what in (
        ("_limits.measure_limits", made.limits),
        ("_cases.measure", made.case),
        ("prefill_memory.measure_prefill_memory", made.memory),
        ("start_up.measure_start_up", made.start_up),
        ("decode_growth.measure_growth", made.growth),
    ):
        monkeypatch.setattr(f"softcarry.benchmarks.{where}", what)
    return made


def words(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def run(capsys, *arguments) -> tuple[int, str]:
    status = main(["bench", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "…" not in captured.out
    return status, captured.out


@pytest.mark.parametrize("suite", SUITES)
def test_everything_is_measured_once_with_the_threads_asked_for(suite, made, capsys):
    assert run(capsys, suite, "--threads", "3")[0] == 0
    assert made.asked[0] == ("limits", 3, 3, {"budget": 0.5, "least": 5})
    assert [labels for labels, *_ in made.asked[1:]] == SUITES[suite]
    assert all(set(asked[1:3]) <= {3, True} for asked in made.asked[1:] if asked[0][0] != "doubling")


def test_attention_has_a_table_for_each_kind(capsys):
    status, out = run(capsys, "attention")
    lines = words(out)
    assert status == 0
    figures = ["250", "234", "100.00", "10%"]
    assert ["float32", "1x8x2048x64", *figures, ">=1.2", ">=88%", "120", "91%", "yes"] in lines
    assert ["float64", "1x8x2048x64", *figures, "120", "91%"] in lines
    assert ["small", "64x8x64x64", *figures, ">=1", "120", "91%", "yes"] in lines
    assert ["32768", "1", "0.5"] in lines
    assert ["65536", "1", "1.0", "<64", "1.00", "<=2.2", "yes"] in lines
    assert ["prefill-bfloat16", "125", "875", "1000", "<1500", "yes"] in lines
    text = " ".join(out.split())
    assert "limits: 156 GFLOP/s in float32, 78 in float64; one-pass read 23.0 GB/s of 256 MiB" in text
    assert "multiply-adds in registers" in text
    assert "threads on" in text


def test_decode_has_the_layouts_and_the_doubling(capsys):
    status, out = run(capsys, "decode")
    lines = words(out)
    assert status == 0
    figures = ["250", "234", "100.00", "10%"]
    assert ["float32", "32x8x32768x128", "torch", *figures, ">=5", ">=75%", "91%", "yes"] in lines
    assert ["bthd", "32x8x32768x128", "ours", *figures, "91%"] in lines
    assert ["one-head", "1x1x131072x128", "torch", *figures, ">=3", "91%", "yes"] in lines
    assert ["8192", "10"] in lines
    assert ["16384", "20", "2.00", "0%", "<=2.2", "yes"] in lines
    assert ["65536", "80", "2.00", "10%", "<=2.2", "yes"] in lines
    assert "one-pass read 23.0 GB/s" in " ".join(out.split())


@pytest.mark.parametrize(
    ("suite", "field", "value", "misses"),
    [
        ("attention", "ratio", 1.1, 5),
        ("attention", "beyond", 64 * MIB, 1),
        ("attention", "start", 1.5, 3),
        ("decode", "ratio", 4.0, 2),
        ("decode", "doubled", 2.3, 1),
    ],
)
def test_one_missed_target_is_status_1(suite, field, value, misses, made, capsys):
    setattr(made, field, value)
    status, out = run(capsys, suite)
    assert status == 1
    assert [line[-1:] for line in words(out)].count(["NO"]) == misses


@pytest.mark.parametrize("suite", SUITES)
def test_quick_judges_nothing(suite, made, capsys):
    made.ratio, made.beyond, made.start, made.doubled = 0.5, 128 * MIB, 9.0, 4.0
    status, out = run(capsys, suite, "--quick")
    assert status == 0
    assert not any(line[-1:] in (["NO"], ["yes"]) for line in words(out))
    quick = {"budget": 0.1, "least": 3, "most": 3}
    assert made.asked[0][-1] == quick
    for labels, *rest in made.asked[1:]:
        assert True not in [item for item in rest if isinstance(item, bool)]
        assert labels[0] not in ("forward", "decode", "doubling") or rest[-1] == quick
        assert labels[0] != "start-up" or rest[-1] == 1


@pytest.mark.parametrize(("status", "code"), [("skipped", 0), ("wrong", 1)])
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_skipped_is_no_miss_and_wrong_is_one(suite, status, code, quick, made, capsys):
    made.status = status
    found, out = run(capsys, suite, "--only", "float32", *quick)
    assert found == code
    assert next(line for line in words(out) if line[:1] == ["float32"])[-1] == status
    assert f"float32: {status}, because of this" in out


def test_a_wrong_answer_of_a_doubling_is_said(made, capsys):
    made.status = "wrong"
    status, out = run(capsys, "decode", "--only", "doubling")
    assert status == 1
    assert "doubling: wrong, because of this" in out


def test_memory_that_cannot_be_measured_is_no_miss(made, monkeypatch, capsys):
    unknown = ExtraMemory(None, reason="not here")
    monkeypatch.setattr(
        "softcarry.benchmarks.prefill_memory.measure_prefill_memory",
        lambda case, **_: MeasuredPrefillMemory(case, unknown, unknown),
    )
    status, out = run(capsys, "attention", "--only", "memory")
    assert status == 0
    assert ["65536", "-", "-", "<64", "-", "<=2.2", "skipped"] in words(out)
    assert "memory: skipped, not here" in out


@pytest.mark.parametrize(
    ("suite", "word", "titles"),
    [
        ("attention", "forward/causal", ["forward"]),
        ("attention", "memory", ["memory"]),
        ("attention", "start-up/prefill", ["start-up"]),
        ("decode", "one-head", ["decode"]),
        ("decode", "doubling/keys", ["doubling"]),
    ],
)
def test_only_shows_what_was_chosen(suite, word, titles, made, capsys):
    out = run(capsys, suite, "--only", word)[1]
    every = ("forward beside", "memory: a", "start-up: a", "decode of", "doubling the")
    assert [title.split()[0].strip(":") for title in every if title in out] == titles
    assert len(made.asked) == 2
    assert ("ratio, +-" in out) == (titles[0] in ("forward", "decode"))


@pytest.mark.parametrize(
    ("suite", "keys"),
    [("attention", {"cases", "memory", "start_up"}), ("decode", {"cases", "doubling"})],
)
def test_json_has_figures_limits_and_the_machine(suite, keys, made, capsys):
    made.ratio = 1.25
    assert main(["bench", suite, "--json", "--threads", "3"]) == 1
    data = json.loads(capsys.readouterr().out)
    about = {"schema", "suite", "quick", "machine", "busy_elsewhere", "limits"}
    assert data.keys() == about | keys
    assert (data["suite"], data["machine"]["threads"]) == (suite, 3)
    assert data["limits"]["float32_operations_a_second"] == 156e9
    names = [case["name"] for case in data["cases"]]
    assert names == [name for group, name in SUITES[suite] if group in ("forward", "decode")]
    assert data["cases"][0]["met"] is (suite == "attention")
    assert all(item["met"] is True for key in keys - {"cases"} for item in data[key])


def test_a_word_that_fits_nothing_is_wrong_usage(made, capsys):
    for suite in SUITES:
        assert main(["bench", suite, "--only", "logsumexp"]) == 2
        assert "only takes the name of a case or a group" in capsys.readouterr().err
    assert made.asked == []
