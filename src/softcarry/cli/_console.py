"""How every command writes: data to stdout, progress and remarks to stderr, errors in one line."""

import json
import math
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PATIENCE = 1.0
"""Seconds of work before a progress bar appears."""


def output() -> "Console":
    """Make a console for data, on stdout as it is now (rich honours NO_COLOR and COLUMNS)."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process here, with the status that means findings.
            raise BrokenPipeError

    console = Output(file=sys.stdout, highlight=False, markup=False)
    if not console.width:  # COLUMNS=0 is how some terminals say that they do not know
        console.width = 80
    return console


def remarks() -> "Console":
    """Make a console for progress and remarks, on stderr."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, markup=False)


def report_error(message: str) -> None:
    """Write an error as one line, ``softcarry: message``, to stderr; if that is closed, nowhere."""
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"softcarry: {' '.join(message.split())}\n")
        sys.stderr.flush()


def write_json(data: Mapping[str, Any]) -> None:
    """Write an object to stdout as JSON that every parser takes.

    JSON has no NaN and no infinities: they become the strings "NaN", "Infinity" and "-Infinity", which
    Python's ``float`` and JavaScript's ``Number`` both read.
    """
    sys.stdout.write(json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def check_writable(path: Path) -> None:
    """Raise OSError before any work is done if a file can't be written there."""
    if path.is_dir():
        raise IsADirectoryError(21, "is a directory, give the name of a file", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "no such folder, create it first", str(path.parent))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(13, "not writable, choose another place", str(path))


def write_svg(path: Path, svg: str) -> None:
    """Write a figure and say so on stderr."""
    path.write_text(svg, encoding="utf-8")
    remarks().print(f"wrote {path}", soft_wrap=True)


def paragraph(text: str) -> None:
    """Write text to stdout, wrapped to the width of the console with a hanging indent."""
    console = output()
    wrapped = textwrap.fill(text, console.width, subsequent_indent="    ", break_on_hyphens=False)
    console.print(wrapped, soft_wrap=True)


def table(*columns: str, title: str | None = None, left: Sequence[str] = ()) -> "Table":
    """Make an empty table in the style of every command: the columns named in ``left`` flush left."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    result = Table(
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        # Only the last column gives way: a number without its last digits is another number.
        result.add_column(name, justify="left" if name in left else "right", no_wrap=name != columns[-1])
    return result


def ratio(error: float) -> str:
    """Write a relative error as a person reads it: percent down to 0.01 %, a power of ten below."""
    if math.isnan(error):
        return "nan"
    if math.isinf(error):
        return "inf"
    if error == 0.0:
        return "0"
    if error < 1e-4:
        mantissa, exponent = f"{error:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    percent = 100.0 * error
    return f"{percent:.2g}%" if percent < 99.5 else f"{percent:.3g}%"


_EIGHTHS = "▁▂▃▄▅▆▇█"
_EIGHTHS_WIDE = "▏▎▍▌▋▊▉"


def sparkline(errors: Sequence[float], low: float = 1e-8, high: float = 1.0) -> str:
    """Draw one block a number, its height the logarithm of the number between ``low`` and ``high``.

    Only 0 is a blank; NaN and infinity, as after an overflow, are "×".
    """
    return "".join(_spark(error, low, high) for error in errors)


def _spark(error: float, low: float, high: float) -> str:
    if not math.isfinite(error):
        return "×"
    if error == 0.0:
        return " "
    part = math.log(max(error, low) / low) / math.log(high / low)
    return _EIGHTHS[min(len(_EIGHTHS) - 1, int(part * len(_EIGHTHS)))]


def bar(error: float, width: int, low: float, high: float = 1.0) -> str:
    """Draw a horizontal bar whose length is the logarithm of the number between ``low`` and ``high``."""
    if not math.isfinite(error):
        return "×" * width
    if error <= low:
        return ""
    part = min(1.0, math.log(error / low) / math.log(high / low))
    full, eighths = divmod(max(1, round(part * width * 8)), 8)
    return "█" * full + ("", *_EIGHTHS_WIDE)[eighths]


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr once the work has taken over a second; it vanishes at the end.

    Yields ``advance(what=None, pieces=1)``, to call after each of ``total`` pieces of work; what is done next
    takes the place of the description. A stderr that is no terminal gets nothing.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = remarks()
    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = display.add_task(description, total=total)
    # A timer, since the first piece may be long: compiled code is compiled in it.
    lock, over = threading.Lock(), threading.Event()

    def advance(what: str | None = None, pieces: int = 1) -> None:
        display.update(task, advance=pieces, description=what)

    def start() -> None:
        with lock:
            if not over.is_set():
                display.start()

    timer = threading.Timer(PATIENCE, start)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        with lock:
            over.set()
            display.stop()
