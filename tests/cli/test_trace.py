"""``softcarry trace``: what a person reads, what a program reads, and what is refused."""

import json
import math

import pytest

from softcarry.cli import main
from softcarry.trace import recurrence


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def cells(out):
    """The words of each line of the table."""
    lines = out.splitlines()
    start = next(k for k, line in enumerate(lines) if line.strip().startswith("─")) + 1
    end = next(k for k, line in enumerate(lines) if k > start and not line.strip())
    return [line.split() for line in lines[start:end]]


def test_the_row_of_the_book(capsys):
    assert main(["trace", "2", "5", "1", "7"]) == 0
    out = capsys.readouterr().out
    assert [line[:6] for line in cells(out)] == [
        ["1", "2", "2", "0", "1", "1"],
        ["2", "5", "5", "0.0498", "1.0498", "1.0498"],
        ["3", "1", "5", "1", "1.0681", "1.0681"],
        ["4", "7", "7", "0.1353", "1.1446", "1.1446"],
    ]
    assert "maximum rises: rescale by e^-2" in out
    assert "lse = m + ln l = 7.1350" in out
    assert "weights 0.0059 0.1182 0.0022 0.8737" in out


@pytest.mark.parametrize("words", [["-1", "-2"], ["--", "-1", "-2"], ["-1", "-2", "-inf"], ["-1.0", "-2e0"]])
def test_negative_scores_are_scores(words, capsys):
    assert main(["trace", *words]) == 0
    assert "m = -1   l = 1.3679" in capsys.readouterr().out


def test_nan_and_infinities_are_scores(capsys):
    assert main(["trace", "1", "-inf", "nan", "inf", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [step["scores"] for step in data["steps"]] == [[1.0], ["-Infinity"], ["NaN"], ["Infinity"]]
    assert data["final"]["lse"] == "NaN"
    assert math.isnan(float(data["final"]["lse"]))


def test_json_is_the_trace(capsys):
    arguments = ["2", "5", "1", "7", "--block", "2", "--values", "[[1, 0], [0, 1], [1, 1], [0, 0]]"]
    assert main(["trace", *arguments, "--form", "normalised", "--format", "float16", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["schema", "steps", "final", "block", "format", "form"]
    assert data.pop("schema") == "softcarry.trace/1"
    row = recurrence(
        [2, 5, 1, 7], [[1, 0], [0, 1], [1, 1], [0, 0]], block=2, fmt="float16", form="normalised"
    )
    assert data == json.loads(json.dumps(row.to_dict()))


def test_values_may_be_negative_and_add_a_column(capsys):
    assert main(["trace", "0", "0", "--values", "-1", "-2"]) == 0
    out = capsys.readouterr().out
    assert "output -1.5000" in out
    # The remarks have no room beside the running output, and follow the table.
    assert out.splitlines()[1].split()[-1] == "o"
    assert "\nkey 1: starts from empty\n" in out


def test_a_wide_terminal_has_room_for_remarks_beside_the_output(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["trace", "0", "1", "--values", "1", "2", "--format", "bfloat16"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["error", "o", "note"]


def test_a_narrow_format_shows_the_error_and_says_what_is_lost(capsys):
    assert main(["trace", *["0"] * 258, "--format", "bfloat16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("256  257  0.39%" in " ".join(x.split()).replace(" ", "  ") for x in lines)
    assert any("lost" in line for line in lines)


def test_lines_fit_80_columns(capsys):
    for words in (["300", "1e5", "-inf", "3", "--format", "float16"], [*map(str, range(40)), "--block", "7"]):
        assert main(["trace", *words]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "trace needs at least one score; got none; try: softcarry trace 2 5 1 7"),
        (["--values", "1", "2"], "trace needs at least one score; got none (scores stand before --values)"),
        (["1", "two"], 'Invalid value for SCORES: unable to convert "two" into float'),
        (["1", "--block", "0"], "block is a whole number of at least 1; got 0"),
        (["1", "--format", "bf16"], "unknown format 'bf16': choose one of float64, float32"),
        (["1", "2", "--values", "1", "2", "3"], "values must be one for each of the 2 scores"),
        (["1", "2", "--values", "[[1], [1, 2]]"], "values must be numbers in rows of one length"),
        (["1", "2", "--values", '["a", "b"]'], "values must be real numbers; got text"),
        (["1", "2", "--values", "[1, null]"], "values must be real numbers; got NoneType"),
        (
            ["1", "--values", "x"],
            "--values takes numbers, or a JSON list such as '[[1, 0], [0, 1]]'; got 'x'",
        ),
        (["1", "--form", "sum"], 'Invalid value "sum" for --form. Choose from: "unnormalised", "normalised"'),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, message, capsys):
    assert main(["trace", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"softcarry: {message}")
    assert captured.err.count("\n") == 1
