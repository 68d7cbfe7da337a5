"""``softcarry passes``: the table, its ratios, JSON, and what is refused."""

import json
import math
import os
import random
import re
import subprocess
import sys

import pytest

from softcarry import _softmax_algorithms, memory_passes
from softcarry.cli import main


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def flat(text):
    return " ".join(text.split())


def rows_of_the_table(out):
    """Algorithm, pass and numbers of each line between the rule and the legend."""
    lines = out.splitlines()
    header = next(line for line in lines if "algorithm" in line)
    start = next(k for k, line in enumerate(lines) if line.strip().startswith("─")) + 1
    end = next(k for k, line in enumerate(lines) if line.startswith("held:"))
    middle, right = header.index("pass"), header.index("loads")
    return [
        (line[:middle].strip(), line[middle:right].strip(), line[right:].split())
        for line in lines[start:end]
        if line.strip()
    ]


def test_the_table_shows_each_pass_and_the_accesses(capsys):
    assert main(["passes"]) == 0
    captured = capsys.readouterr()
    lines = rows_of_the_table(captured.out)
    # The fourth number, what was held, is small; how small may depend on the version of Python.
    assert [(name, walk, numbers[:3]) for name, walk, numbers in lines] == [
        ("unsafe softmax", "sum: read", ["1", "0"]),
        ("", "scale: read, write", ["1", "1", "3"]),
        ("safe softmax", "max: read", ["1", "0"]),
        ("", "sum: read", ["1", "0"]),
        ("", "scale: read, write", ["1", "1", "4"]),
        ("online softmax", "max, sum: read", ["1", "0"]),
        ("", "scale: read, write", ["1", "1", "3"]),
        ("safe, then top-k", "max: read", ["1", "0"]),
        ("", "sum: read", ["1", "0"]),
        ("", "scale: read, write", ["1", "1"]),
        ("", "k best: read", ["1", "0", "5"]),
        ("online with top-k", "max, sum, k best: read", ["1", "0", "1"]),
    ]
    held = [int(numbers[3]) for *_, numbers in lines if len(numbers) > 2]
    assert len(held) == 5
    assert max(held) <= 5 + 5
    assert captured.err == ""


def test_the_ratios_and_their_source_are_named(capsys):
    assert main(["passes", "--n", "77", "--k", "3", "--seed", "9"]) == 0
    out = flat(capsys.readouterr().out)
    assert "Memory accesses per score of a row of 77 normal scores, seed 9" in out
    assert "unsafe : safe : online = 3 : 4 : 3" in out
    assert "top-3 after safe softmax : fused with online softmax = 5 : 1" in out
    assert "arXiv:1805.02867, sections 2-4" in out
    assert re.search(r"unsafe softmax differs from safe softmax by (0|\de-1[56]) at most", out)


def test_the_ratios_come_from_the_run(monkeypatch, capsys):
    def hesitant(scores, out):
        for i in range(len(scores)):
            out[i] = scores[i] + scores[i]
        return memory_passes.online_softmax(scores, out)

    for module in (memory_passes, _softmax_algorithms):
        monkeypatch.setattr(module, "safe_softmax", hesitant)
    assert main(["passes", "--n", "8", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ratios"] == {"softmax": [1, 2, 1], "topk": [7, 1]}
    assert [one["per_element"] for one in data["algorithms"]] == [3, 6, 3, 7, 1]


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ("1000", "overflowed: l is inf, and of its 60 probabilities 60 are NaN; e^s is beyond float64 above"),
        # Every e^s fits and their sum does not.
        ("707", "overflowed: l is inf, and of its 60 probabilities 60 are 0;"),
        ("-1000", "underflowed: every e^s is 0, so is l, and of its 60 probabilities 60 are NaN"),
        # Subnormal terms have few bits: percents, not 1e-16.
        ("-740", "% at most; try --offset 1000"),
    ],
)
def test_an_offset_spoils_the_unsafe_softmax_only(offset, words, capsys):
    largest = []
    for arguments in ([], ["--offset", offset]):
        assert main(["passes", "--n", "60", *arguments]) == 0
        out = flat(capsys.readouterr().out)
        assert "unsafe : safe : online = 3 : 4 : 3" in out
        largest.append(out.split("largest probabilities: ")[1].split(", ")[0])
    assert f"60 normal scores {offset[0] if offset[0] == '-' else '+'} {offset.lstrip('-')}, seed 0" in out
    assert words in out
    assert largest[0] == largest[1]


def test_overflow_of_some_scores_names_both_kinds(capsys):
    assert main(["passes", "--n", "1000", "--offset", "709.78"]) == 0
    found = re.search(r"probabilities (\d+) are NaN and (\d+) are 0", flat(capsys.readouterr().out))
    draw = random.Random(0)
    above = sum(draw.gauss(0.0, 1.0) + 709.78 > math.log(sys.float_info.max) for _ in range(1000))
    assert (int(found[1]), int(found[2])) == (above, 1000 - above)


def test_lines_fit_80_columns(capsys):
    for words in ([], ["--n", "1", "--k", "1"], ["--n", "2e3", "--k", "500", "--offset", "-123456.75"]):
        assert main(["passes", *words]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_json_holds_the_counts_and_the_same_k_best_of_all(capsys):
    assert main(["passes", "--n", "50", "--k", "4", "--seed", "3", "--json"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert list(data) == ["schema", "n", "k", "seed", "offset", "algorithms", "ratios"]
    assert data["schema"] == "softcarry.passes/1"
    assert (data["n"], data["k"], data["seed"], data["offset"]) == (50, 4, 3, 0.0)
    assert data["ratios"] == {"softmax": [3, 4, 3], "topk": [5, 1]}
    assert [(one["loads"], one["stores"]) for one in data["algorithms"]] == [
        (100, 50),
        (150, 50),
        (100, 50),
        (200, 50),
        (50, 0),
    ]
    draw = random.Random(3)
    scores = [draw.gauss(0.0, 1.0) for _ in range(50)]
    largest = sorted(range(50), key=lambda i: -scores[i])[:4]
    total = math.fsum(map(math.exp, scores))
    for one in data["algorithms"]:
        keys = ["algorithm", "passes", "loads", "stores", "per_element", "held", "l"]
        assert list(one) == [*keys, "probabilities", "indices"]
        assert one["indices"] == largest
        assert sum(walk["loads"] for walk in one["passes"]) == one["loads"]
        for p, index in zip(one["probabilities"], largest, strict=True):
            # Fifty additions, fifty rescales of three roundings, differences of up to 8: under 2^9 u.
            assert math.isclose(p, math.exp(scores[index]) / total, rel_tol=2.0**-44)
    assert captured.err == ""


def test_overflow_in_json_is_a_string_that_float_reads(capsys):
    assert main(["passes", "--n", "9", "--offset", "1000", "--json"]) == 0
    unsafe = json.loads(capsys.readouterr().out)["algorithms"][0]
    assert (unsafe["l"], unsafe["probabilities"], unsafe["indices"]) == (
        "Infinity",
        ["NaN"] * 5,
        [0, 1, 2, 3, 4],
    )


def test_the_seed_decides_the_row(capsys):
    seen = []
    for seed in ("0", "1", "0"):
        assert main(["passes", "--n", "20", "--seed", seed, "--json"]) == 0
        seen.append(json.loads(capsys.readouterr().out)["algorithms"])
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "0"], "n is a whole number of at least 1; got 0"),
        (["--n", "2.5"], "Invalid value for --n: expected a whole number"),
        (["--k", "0"], "k is a whole number of at least 1; got 0"),
        (["--n", "3"], "k is at most the number of scores, 3; got 5; ask for fewer, or give more scores"),
        (["--seed", "-1"], "seed is a whole number of at least 0; got -1"),
        (["--offset", "nan"], "offset is a finite number, such as 1000; got nan"),
        (["--offset", "inf"], "offset is a finite number, such as 1000; got inf"),
        (["--offset", "much"], 'Invalid value for --offset: unable to convert "much" into float'),
        (["7"], "Unexpected argument '7'. (see softcarry passes --help)"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, message, capsys):
    assert main(["passes", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"softcarry: {message}")
    assert captured.err.count("\n") == 1


def test_a_pipe_gets_plain_text_and_loads_no_compiler():
    script = (
        "import sys; from softcarry.cli import main; main(['passes']); "
        "print(sorted({'numba', 'torch', 'jax', 'matplotlib'} & set(sys.modules)))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        encoding="utf-8",
        env={**environment, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
        check=True,
        timeout=120,
    )
    assert "\x1b" not in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert run.stdout.splitlines()[-1] == "[]"
    assert run.stderr == ""
