"""What every command writes with: numbers for people, JSON for parsers, a progress bar that vanishes."""

import io
import json
import math

import pytest

from softcarry.cli import _console


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (0.0, "0"),
        (5.96e-8, "6e-8"),
        (9.9e-5, "1e-4"),
        (1e-4, "0.01%"),
        (0.0123, "1.2%"),
        (0.5, "50%"),
        (0.992, "99%"),
        (0.997, "99.7%"),
        (1.0, "100%"),
        (12.5, "1.25e+03%"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_relative_error_is_a_percentage_or_a_power_of_ten(error, text):
    assert _console.ratio(error) == text


def test_a_sparkline_is_the_logarithm():
    assert _console.sparkline([1e-8, 1e-4, 1.0, 5.0], low=1e-8) == "▁▅██"
    assert _console.sparkline([0.0, 1e-12, math.inf, math.nan]) == " ▁××"


def test_a_bar_is_the_logarithm():
    assert _console.bar(1.0, 10, low=1e-2) == "█" * 10
    assert _console.bar(0.1, 10, low=1e-2) == "█" * 5
    # Half of the range plus 0.15 of a decade is 5.75 of 10 cells.
    assert _console.bar(0.1 * 10**0.15, 10, low=1e-2) == "█" * 5 + "▊"
    assert _console.bar(1e-2, 10, low=1e-2) == _console.bar(0.0, 10, low=1e-2) == ""
    assert _console.bar(7.0, 10, low=1e-2) == "█" * 10
    assert _console.bar(math.inf, 3, low=1e-2) == "×××"


def test_json_has_strings_for_what_it_cannot_hold(capsys):
    _console.write_json({"a": (1.5, math.inf, -math.inf), "b": {"c": [math.nan]}, "d": None, "µ": True})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": [1.5, "Infinity", "-Infinity"], "b": {"c": ["NaN"]}, "d": None, "µ": True}
    assert out.endswith("}\n")


def test_an_error_is_one_line(capsys):
    _console.report_error("first\n  second")
    assert capsys.readouterr().err == "softcarry: first second\n"


def test_numbers_are_never_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    lines = _console.table("number", "note", left=("note",))
    lines.add_row("1234567890", "a long remark that has to wrap")
    _console.output().print(lines)
    assert "1234567890" in capsys.readouterr().out


def test_an_unknown_width_is_80(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "0")
    _console.paragraph("word " * 40)
    assert 70 < max(map(len, capsys.readouterr().out.splitlines())) <= 80


class Impatient:
    """A timer that is over as soon as it starts."""

    def __init__(self, _seconds, function):
        self.function = function

    def start(self):
        self.function()

    def cancel(self):
        pass


def test_progress_shows_on_a_terminal_and_vanishes(monkeypatch):
    from rich.console import Console

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(_console, "remarks", lambda: console)
    monkeypatch.setattr(_console.threading, "Timer", Impatient)
    with _console.progress("working", 2) as advance:
        advance()
        advance()
    shown = screen.getvalue()
    assert "working" in shown
    assert "2/2" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the last thing written erases the line


def test_progress_is_silent_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(_console.threading, "Timer", Impatient)
    with _console.progress("working", 1) as advance:
        advance()
    assert capsys.readouterr().err == ""


def test_quick_work_shows_nothing(monkeypatch):
    from rich.console import Console

    screen = io.StringIO()
    monkeypatch.setattr(_console, "remarks", lambda: Console(file=screen, force_terminal=True))
    monkeypatch.setattr(_console, "PATIENCE", 3600.0)
    with _console.progress("working", 1) as advance:
        advance()
    assert "working" not in screen.getvalue()


def test_places_that_cannot_be_written_are_refused(tmp_path):
    _console.check_writable(tmp_path / "new.svg")
    with pytest.raises(IsADirectoryError):
        _console.check_writable(tmp_path)
    with pytest.raises(FileNotFoundError):
        _console.check_writable(tmp_path / "none" / "new.svg")
