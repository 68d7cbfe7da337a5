"""``softcarry plan``: which key blocks, why, and the exit status that says there is none."""

import json
import math

import pytest

from softcarry.cli import main
from softcarry.numerics import plan


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def rows(out):
    return {line.split()[0]: line.split() for line in out.splitlines() if line[:10].strip().isdigit()}


def test_the_table_tells_stalling_from_being_unsafe(capsys):
    assert main(["plan", "--n", "131072", "--format", "bfloat16"]) == 1
    out = capsys.readouterr().out
    table = rows(out)
    assert table["256"] == ["256", "512", "stalls", "no", "bound", "no", "bound", "no"]
    assert table["1024"][:2] == ["1024", "128"]
    assert "stalls" not in table["1024"]
    assert "stall point: 256 updates" in out
    assert "instead: carry l in float32" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_safe_key_block_is_status_0(capsys):
    assert main(["plan", "--n", "131072", "--format", "float32", "--key-block", "64", "128"]) == 0
    table = rows(capsys.readouterr().out)
    assert [line[-1] for line in table.values()] == ["safe", "safe"]


def test_one_unsafe_key_block_is_explained(capsys):
    assert main(["plan", "--n", "8192", "--format", "float16", "--key-block", "64"]) == 1
    assert "Bc = 64: unsafe: 128 updates" in capsys.readouterr().out


def test_json_is_the_plan(capsys):
    words = [
        "--n",
        "4096",
        "--format",
        "bfloat16",
        "--tolerance",
        "0.05",
        "--splits",
        "2",
        "--key-block",
        "1",
        "512",
    ]
    assert main(["plan", *words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    expected = plan(n=4096, fmt="bfloat16", tolerance=0.05, splits=2, key_block=[1, 512])
    assert data["schema"] == "softcarry.plan/1"
    assert (data["format"], data["n"], data["tolerance"], data["splits"]) == ("bfloat16", 4096, 0.05, 2)
    assert tuple(data["safe_key_blocks"]) == expected.safe_key_blocks
    for got, option in zip(data["options"], expected.options, strict=True):
        assert float(got["worst_case"]) == option.worst_case
        assert got["reason"] == option.reason
    assert float(data["options"][0]["worst_case"]) == math.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], 'Command "plan" parameter --n requires an argument'),
        (["--n", "-1"], "n is a whole number of at least 1; got -1"),
        (["--n", "8", "--key-block", "0"], "key_block is a whole number of at least 1; got 0"),
        (["--n", "8", "--key-block", "1.5"], "Invalid value for --key-block: expected a whole number"),
        (["--n", "8", "--splits", "0"], "splits is a whole number of at least 1; got 0"),
        (["--n", "8", "--tolerance", "nan"], "tolerance is a finite number above 0; got nan"),
        (["--n", "8", "--format", "bf16"], "unknown format 'bf16'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, message, capsys):
    assert main(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"softcarry: {message}")
    assert captured.err.count("\n") == 1
