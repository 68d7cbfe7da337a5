"""The command as a whole: help, exit statuses, errors in one line, interruptions."""

import importlib
import inspect
import os
import subprocess
import sys

import pytest

from softcarry import __version__
from softcarry.cli import main

COMMANDS = ("audit", "subjects", "plan", "trace", "stagnation", "envelope", "passes", "bench")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def run(*arguments, **environment):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "softcarry", *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        timeout=120,
    )


def test_help_lists_every_command_with_its_first_line(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        function = getattr(importlib.import_module(f"softcarry.cli.{command}"), command)
        first_line = inspect.getdoc(function).partition("\n")[0]
        listed = " ".join(out.replace("│", " ").split())
        assert f" {command} {first_line} " in listed
    assert "Exit status: 0 nothing found, 1 findings, 2 wrong usage or cannot run." in out
    assert "--debug" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_fits_80_columns_and_describes_every_option(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: softcarry {command}")
    assert max(map(len, out.splitlines())) <= 80
    options = [line for line in out.splitlines() if line.lstrip("│ *").startswith("--")]
    assert options
    for line in options:
        name, _, description = line.strip("│ *").partition("  ")
        assert description.strip(), name


def test_no_command_shows_the_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: softcarry COMMAND")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trcae", "1"], 'softcarry: Unknown command "trcae". Did you mean "trace"?'),
        (["trace", "1", "--blok", "2"], "softcarry: Unknown option: --blok. Did you mean --block?"),
        (["envelope", "7"], "softcarry: Unexpected argument '7'. (see softcarry envelope --help)"),
        (["envelope", "--n", "2.5"], "softcarry: Invalid value for --n: expected a whole number"),
        (["plan"], 'softcarry: Command "plan" parameter --n requires an argument.'),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--debug", "trace", "1", "--block", "0"], ["trace", "1", "--block=0", "--debug"]]
)
def test_debug_shows_the_traceback_wherever_it_stands(arguments, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("softcarry: block is a whole number")


def test_behind_two_dashes_debug_is_no_option(capsys):
    assert main(["trace", "--", "1", "--debug"]) == 2
    assert 'unable to convert "--debug" into float' in capsys.readouterr().err


def fails_with(error):
    def recurrence(*_args, **_options):
        raise error

    return recurrence


def test_an_unexpected_error_is_one_line_that_says_how_to_see_more(monkeypatch, capsys):
    monkeypatch.setattr("softcarry.trace.recurrence", fails_with(RuntimeError("two\nlines")))
    assert main(["trace", "1"]) == 2
    assert capsys.readouterr().err == "softcarry: unexpected RuntimeError: two lines; --debug shows where\n"


def test_an_interruption_is_tidy(monkeypatch, capsys):
    monkeypatch.setattr("softcarry.trace.recurrence", fails_with(KeyboardInterrupt()))
    assert main(["trace", "1"]) == 130
    assert capsys.readouterr().err == "softcarry: interrupted\n"


@pytest.mark.parametrize("words", [["trace", "2", "5"], ["trace", "2", "5", "--json"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(words):
    process = subprocess.Popen(
        [sys.executable, "-m", "softcarry", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 141
    assert error == b""


def test_the_process_returns_the_status():
    good, bad = run("trace", "2", "5"), run("trace", "2", "--block", "0")
    assert (good.returncode, good.stderr) == (0, "")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "softcarry: block is a whole number of at least 1; got 0\n"


def test_a_pipe_gets_no_escape_codes_and_80_columns():
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
    result = subprocess.run(
        [sys.executable, "-m", "softcarry", "trace", "2", "5", "1", "7"],
        capture_output=True,
        encoding="utf-8",
        env={**environment, "PYTHONIOENCODING": "utf-8"},
        check=True,
        timeout=120,
    )
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_an_old_encoding_loses_characters_and_nothing_else():
    result = run("envelope", "--n", "64", "--rows", "1", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "Error of a bfloat16 carry over 64 keys" in result.stdout


@pytest.mark.parametrize(("redirection", "words"), [("2>&-", "trace abc"), (">&-", "trace 1 2")])
def test_a_closed_stream_changes_no_exit_status(redirection, words):
    command = f"{sys.executable} -m softcarry {words} {redirection}"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "unexpected" not in run.stderr
