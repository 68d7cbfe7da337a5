"""``softcarry check``: the classroom's mistakes, output, exit status, bad input."""

import json
import sys
from pathlib import Path

import pytest

from json_schema import violations
from softcarry.cli import main

SCHEMA = json.loads(Path(__file__, "../../../docs/report-schema.json").resolve().read_text())

SOURCE = '''
import math
import os
import numpy as np


def two_passes(scores):
    scores = list(scores)
    m = max(scores, default=-math.inf)
    return m, sum(math.exp(s - m) for s in scores if s > -math.inf)


def forgets(a, b):
    return max(a[0], b[0]), a[1] + b[1], a[2] + b[2]


def two_empties(a, b):
    m = np.maximum(a[0], b[0])
    w1, w2 = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, w1 * a[1] + w2 * b[1], w1[..., None] * a[2] + w2[..., None] * b[2]


def overflowing(x, k):
    p = np.exp(x) / np.exp(x).sum()
    best = np.argsort(-x, kind="stable")[:k]
    return p[best], best


def softmax(x):
    m = x.max(-1, keepdims=True)
    p = np.exp(x.astype(float) - np.where(m == -np.inf, 0, m))
    return p / np.maximum(p.sum(-1, keepdims=True), 5e-324)


def last_first(x, k):
    best = np.argsort(x, kind="stable")[::-1][:k]
    return softmax(x)[best], best


def talks(x):
    print("said in Python")
    os.write(1, b"said below it\\n")
    return softmax(x)


def masked_block(q, k, v, mask=None):
    """Blocks of 4 keys; one that is masked as a whole gives NaN."""
    s = q @ k.T / np.sqrt(q.shape[1])
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    m, l, o = np.full((len(q), 1), -np.inf), 0.0, 0.0
    for at in range(0, len(k), 4):
        new = np.maximum(m, s[:, at:at + 4].max(1, keepdims=True))
        p = np.exp(s[:, at:at + 4] - new)
        l = l * np.exp(m - new) + p.sum(1, keepdims=True)
        o = o * np.exp(m - new) + p @ v[at:at + 4]
        m = new
    return (o / l).astype(q.dtype)


def any_number(*parts):
    return parts[0], parts[1]


number = 3
'''


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """A folder with somebody's functions, as the current one."""
    (tmp_path / "my_blocks.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    yield tmp_path
    sys.modules.pop("my_blocks", None)


def run(capsys, *tokens):
    status = main(["check", *tokens])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("function", "kind", "lines"),
    [
        ("two_passes", "normalizer", ["FAIL PASSES  copies the whole row", "input   16 scores"]),
        (
            "forgets",
            "merge",
            [
                "FAIL RESCALE  forgets to rescale l and o where the maxima differ",
                "input   f((0, 1, [1, 0]), (1, 1, [0, 1]))",
                "came    (1, 2, [1, 1])",
                "right   (1, 1.36788, [0.367879, 1])",
            ],
        ),
        (
            "two_empties",
            "merge",
            ["FAIL TWO_EMPTIES  breaks on two empties", "right   (-inf, 0, [0, 0])"],
        ),
        ("overflowing", "topk", ["FAIL OVERFLOW", "input   x = [1000], k = 1", "right   [1] at [0]"]),
        (
            "masked_block",
            "attention",
            ["FAIL MASKED_BLOCK  a row with 4 masked keys at the start gives NaN", "right   [5]"],
        ),
    ],
)
def test_the_mistakes_of_a_classroom_are_named(capsys, function, kind, lines):
    status, out, err = run(capsys, f"my_blocks:{function}", "--as", kind)
    assert (status, err) == (1, "")
    assert all(line in out for line in lines)
    assert f"{function}: " in out.splitlines()[-1]
    assert max(map(len, out.splitlines())) <= 80


def test_nothing_found(capsys):
    status, out, _ = run(capsys, "my_blocks:softmax", "--as", "softmax")
    assert status == 0
    assert out.splitlines()[-1] == "softmax: nothing found"


def test_warnings_count_when_asked(capsys):
    asked = ("my_blocks:last_first", "--as", "topk")
    status, out, _ = run(capsys, *asked)
    assert status == 0
    assert "warn TIES" in out
    assert run(capsys, *asked, "--fail-on", "warning")[0] == 1


def test_zero_may_be_asked_for(capsys):
    assert run(capsys, "my_blocks:softmax", "--as", "softmax", "--empty", "zero")[0] == 0


def test_json_follows_the_schema_and_is_all_there_is(capsys):
    status, out, err = run(capsys, "my_blocks:forgets", "--as", "merge", "--json")
    assert (status, err) == (1, "")
    content = json.loads(out)
    assert content["schema"] == "softcarry.check/1"
    (report,) = content["reports"]
    assert violations(report, SCHEMA) == []
    assert report["findings"][0]["evidence"]["right"] == "(1, 1.36788, [0.367879, 1])"


def test_what_a_function_prints_is_no_part_of_the_report(capfd):
    status, out, err = run(capfd, "my_blocks:talks", "--as", "softmax", "--json")
    assert status == 0
    assert json.loads(out)["reports"][0]["ok"]
    assert "said in Python" in err
    assert "said below it" in err


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("my_blocks:nothing", "--as", "merge"), "has no 'nothing'; expected a function to check as merge"),
        (("my_blocks:number", "--as", "merge"), "'my_blocks:number' is of type int; expected a function"),
        (("my_blocks:softmax", "--as", "merge"), "say form='carry' or form='lse' (--form)"),
        (("my_blocks:any_number", "--as", "topk"), "the top-k could not be called"),
        (("my_blocks:softmax", "--as", "softmaxx"), 'Invalid value "softmaxx" for --as'),
        (("my_blocks:softmax",), "--as requires an argument"),
        (("my_blocks:softmax", "--as", "softmax", "--form", "lse"), "form is for kind 'merge'"),
        (("no_such_module:f", "--as", "softmax"), "there is no module 'no_such_module'"),
        (("my_blocks.py:softmax", "--as", "softmax"), "is named module:function, not by a file"),
    ],
)
def test_what_can_not_be_checked_is_an_error_in_one_line(capsys, tokens, message):
    status, out, err = run(capsys, *tokens)
    assert (status, out) == (2, "")
    assert err.startswith("softcarry: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_help_states_what_each_kind_of_function_takes(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    words = " ".join(out.replace("│", " ").split())
    assert "f(iterable of floats) -> (m, l)" in words
    assert "f(x, k) -> (probabilities, indices)" in words
    assert "f(q, k, v[, mask])" in words
