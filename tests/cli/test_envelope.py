"""``softcarry envelope``: the cliff in a table, in a figure and in JSON."""

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict

import pytest

from softcarry.cli import main
from softcarry.numerics import experiments


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_table_marks_the_cliff(capsys):
    assert main(["envelope", "--rows", "8"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("Error of a bfloat16 carry over 8192 keys, lognormal terms")
    marked = [line for line in lines if "<- drop index 256" in line]
    assert [line.split()[:2] for line in marked] == [["32", "256"]]
    assert lines[[line.split()[:2] for line in lines].index(["1", "8192"])].split()[2] in (
        "71%",
        "72%",
        "73%",
    )
    assert max(map(len, lines)) <= 80


def test_a_row_that_stays_below_the_drop_index_has_no_cliff(capsys):
    assert main(["envelope", "--n", "128", "--rows", "1", "--distribution", "exponential"]) == 0
    out = capsys.readouterr().out
    assert "drop index" not in out
    assert "predicted" not in out


def test_exact_sums_have_no_bars(capsys):
    assert main(["envelope", "--n", "64", "--rows", "1", "--distribution", "equal"]) == 0
    out = capsys.readouterr().out
    assert "█" not in out
    assert [line.split()[2] for line in out.splitlines() if line.split()[:1] == ["64"]] == ["0"]


def test_json_is_the_measurement_and_the_figure_is_written(tmp_path, capsys):
    path = tmp_path / "envelope.svg"
    words = ["--n", "300", "--format", "float16", "--distribution", "uniform", "--rows", "2", "--seed", "1"]
    assert main(["envelope", *words, "--json", "--svg", str(path)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data.pop("schema") == "softcarry.envelope/1"
    expected = experiments.envelope("float16", n=300, distribution="uniform", rows=2, seed=1)
    assert data == json.loads(json.dumps(asdict(expected)))
    assert ET.parse(path).getroot().tag.endswith("svg")


def test_a_figure_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiments, "envelope", None)
    assert main(["envelope", "--svg", str(tmp_path / "no" / "where.svg")]) == 2
    assert capsys.readouterr().err == f"softcarry: {tmp_path / 'no'}: no such folder, create it first\n"
    assert main(["envelope", "--svg", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"softcarry: {tmp_path}: is a directory, give the name of a file\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "-8"], "n is a whole number of at least 1; got -8"),
        (["--n", "1e9"], "n is at most 2**27"),
        (["--format", "fp8"], "unknown format 'fp8'"),
        (["--distribution", "normal"], 'Invalid value "normal" for --distribution'),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, message, capsys):
    assert main(["envelope", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"softcarry: {message}")
    assert captured.err.count("\n") == 1
