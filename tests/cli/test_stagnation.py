"""``softcarry stagnation``: the table, the figure, JSON, and what is refused."""

import json
import math
import xml.etree.ElementTree as ET

import pytest

from softcarry.cli import main
from softcarry.numerics.experiments import sum_curve


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_table_shows_the_drop_index_and_both_orders(capsys):
    assert main(["stagnation", "--rows", "4"]) == 0
    captured = capsys.readouterr()
    lines = [line.split() for line in captured.out.splitlines()]
    sequential = next(line for line in lines if line[:1] == ["bfloat16"])
    tree = lines[lines.index(sequential) + 1]
    assert sequential[1:3] == ["256", "sequential"]
    assert sequential[4:8] == ["50%", "88%", "97%", "99%"] or sequential[4:8] == ["50%", "87%", "97%", "99%"]
    assert tree[0] == "pairwise"
    assert all(float(word.rstrip("%")) < 0.5 for word in tree[1:6])
    assert max(map(len, captured.out.splitlines())) <= 80
    assert captured.err == ""


def test_one_table_for_each_distribution(capsys):
    words = ["--distribution", "equal", "uniform", "--format", "E4M3", "--max-n", "256", "--rows", "1"]
    assert main(["stagnation", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("Relative error of running sums") == 2
    # A tree of 256 equal terms overflows E4M3, whose largest number is 240.
    assert out.split("uniform terms")[0].split()[-1] != "inf"
    assert " inf " in out


def test_json_is_the_curves_and_the_figure_is_written(tmp_path, capsys):
    path = tmp_path / "sums.svg"
    words = ["--format", "bfloat16", "--max-n", "1e3", "--rows", "2", "--seed", "3"]
    assert main(["stagnation", *words, "--json", "--svg", str(path)]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["schema"] == "softcarry.stagnation/1"
    assert [curve["order"] for curve in data["curves"]] == ["sequential", "pairwise"]
    expected = sum_curve("bfloat16", max_n=1000, rows=2, seed=3)
    assert tuple(data["curves"][0]["error"]) == expected.error
    assert tuple(data["curves"][0]["n"]) == (16, 64, 256, 1000)
    assert captured.err == f"wrote {path}\n"
    assert ET.parse(path).getroot().tag.endswith("svg")


def test_overflow_in_json_is_a_string_that_float_reads(capsys):
    words = ["--distribution", "equal", "--format", "E4M3", "--max-n", "256", "--rows", "1", "--json"]
    assert main(["stagnation", *words]) == 0
    last = json.loads(capsys.readouterr().out)["curves"][1]["error"][-1]
    assert last == "Infinity"
    assert float(last) == math.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "half"], "unknown format 'half'"),
        (["--format"], 'Command "stagnation" parameter --format requires at least 1 element'),
        (["--distribution", "cauchy"], 'Invalid value "cauchy" for --distribution. Choose from: "equal"'),
        (["--max-n", "-16"], "max_n is a whole number of at least 1; got -16"),
        (["--rows", "0"], "rows is a whole number of at least 1; got 0"),
        (["--seed", "-1"], "seed is a whole number of at least 0; got -1"),
        (["--format", "e1m3"], "a FloatFormat with infinity has 2 to 11 exponent bits"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, message, capsys):
    assert main(["stagnation", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"softcarry: {message}")
    assert captured.err.count("\n") == 1
