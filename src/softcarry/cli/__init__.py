"""The command line: ``softcarry COMMAND``, one file a command, loaded when it is called.

Exit status of every command: 0 nothing found, 1 findings, 2 wrong usage or the work could not be done.
"""

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from softcarry._version import __version__
from softcarry.cli._console import output, report_error
from softcarry.cli._help import HelpPages
from softcarry.cli._status import BROKEN_PIPE, CANNOT_RUN, INTERRUPTED, NOTHING_FOUND
from softcarry.errors import SoftcarryError

_COMMANDS = {
    "audit": "Audit attention kernels, seen only through calls.",
    "check": "Check a building block: a normaliser, a merge, a top-k, a softmax, an attention.",
    "subjects": "List the kernels that can be audited by name, and whether they are installed.",
    "plan": "Say which key blocks keep the error of a carry within a tolerance, and why.",
    "trace": "Show the carry of one row step by step, beside the sum it stands for.",
    "stagnation": "Measure running sums: where a format stops adding, and what a tree saves.",
    "envelope": "Measure the error of a carry against n/Bc, the number of its updates.",
    "bench": "Measure speed and memory beside what people use today, against written targets.",
    "passes": "Count how often each kind of softmax reads and writes a score.",
}
"""The commands and the first lines of their docstrings: read from there, a list would load every command."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    tokens : sequence of str, optional
        The arguments; None takes those of the process. ``--debug`` may stand before or after the command.

    Returns
    -------
    int
        0 nothing found, 1 findings, 2 wrong usage or cannot run, 130 interrupted, 141 the reader of stdout
        went away. Errors are one line on stderr, with a traceback only under ``--debug``.

    Examples
    --------
    >>> from softcarry.cli import main
    >>> main(["trace", "--help"]) # doctest: +ELLIPSIS
    Usage: softcarry trace ...
    """
    arguments, debug = _without_debug(sys.argv[1:] if tokens is None else tokens)
    if sys.stdout is None:
        report_error("stdout is closed, and every command writes its result there: leave it open")
        return CANNOT_RUN
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of an old encoding shows "?" for a block character rather than failing.
            stream.reconfigure(errors="replace")
    try:
        status = _application(listed=not set(arguments) & set(_COMMANDS))(
            arguments,
            console=output(),
            exit_on_error=False,
            print_error=False,
            verbose=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        report_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        report_error(_message(error))
        return CANNOT_RUN
    return status if isinstance(status, int) else NOTHING_FOUND


def _application(*, listed: bool) -> App:
    """Return the parser; with ``listed`` its commands show one line each, and are not loaded for it."""
    app = App(
        name="softcarry",
        help=(
            "The carry of softmax attention: watch it, see where a format stops being accurate, and audit "
            "attention kernels."
        ),
        help_epilogue=(
            "Exit status: 0 nothing found, 1 findings, 2 wrong usage or cannot run.\n"
            "Every command takes --debug, which shows the traceback of an error."
        ),
        help_format="plaintext",
        help_formatter=HelpPages(),
        version=__version__,
        default_parameter=Parameter(negative=""),
        suppress_keyboard_interrupt=False,
    )
    for command, line in _COMMANDS.items():
        app.command(f"softcarry.cli.{command}:{command}", name=command, **({"help": line} if listed else {}))
    return app


def _without_debug(tokens: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out of the options, wherever it stands; what follows ``--`` is never an option."""
    tokens = list(tokens)
    end = tokens.index("--") if "--" in tokens else len(tokens)
    options = [token for token in tokens[:end] if token != "--debug"]
    return options + tokens[end:], len(options) < end


def _message(error: Exception) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"Unexpected argument {' '.join(error.unused_tokens)!r}. {_where_help_is(error)}"
    if isinstance(error, CycloptsError):
        return f"{error} {_where_help_is(error)}"
    if isinstance(error, SoftcarryError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    return f"unexpected {type(error).__name__}: {error}; --debug shows where"


def _where_help_is(error: CycloptsError) -> str:
    return f"(see {' '.join(('softcarry', *(error.command_chain or ())))} --help)"
