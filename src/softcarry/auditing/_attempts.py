"""Calls that a kernel should refuse, made one after another in a fresh process that may die of any."""

import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing._calling import Calling, KernelRaisedError, MalformedResultError, _pair, one_line
from softcarry.auditing._libraries import is_floating, library_of, to_float64, to_library
from softcarry.auditing.isolation import CrashedError, OutOfTimeError, call_in_fresh_process

MOST_DEATHS = 5


@dataclass(frozen=True)
class Attempt:
    """One call, whose shapes or dtypes need not fit.

    Attributes
    ----------
    name : str
    q, k, v : ndarray
        float64, exact in their dtypes, in the layout (…, h, t, d).
    dtypes : tuple of (str or None)
        Those of q, k and v; None is the dtype under audit.
    options : dict
        As of a call; a mask is handed over in its own shape.
    """

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dtypes: tuple[str | None, str | None, str | None] = (None, None, None)
    options: dict[str, Any] = field(default_factory=dict)


class Answer(NamedTuple):
    """How an attempt ended.

    Attributes
    ----------
    kind : {"raised", "returned", "died", "hung", "not made"}
        "begun" too, in the log of a process only.
    text : str
        The error, the signal, or what was returned if it is no array.
    output : ndarray or None
        float64, in the layout (…, h, t, d), if an array was returned.
    """

    kind: str
    text: str = ""
    output: np.ndarray | None = None


def attempt_here(calling: Calling, attempt: Attempt) -> Answer:
    """Make one attempt in this process."""
    given = []
    try:
        for x, dtype in zip((attempt.q, attempt.k, attempt.v), attempt.dtypes, strict=True):
            layout = np.swapaxes(x, -2, -3) if calling.subject.layout == "bthd" else x
            given.append(to_library(layout, calling.library, dtype or calling.dtype, calling.subject.device))
        output, _ = _pair(calling._raw(given, calling._options(attempt.options, None)))
    except (KernelRaisedError, MalformedResultError) as error:
        return Answer("raised", str(error))
    except Exception as error:
        return Answer("raised", one_line(error))
    if library_of(output) is None or not is_floating(output):
        return Answer("returned", f"a {type(output).__name__}")
    values = to_float64(output)
    if calling.subject.layout == "bthd" and values.ndim >= 3:
        values = np.swapaxes(values, -2, -3)
    return Answer("returned", f"an array of shape {values.shape}", values)


def attempt_all(calling: Calling, attempts: Sequence[Attempt], *, time_limit: float = 60.0) -> list[Answer]:
    """Make attempts in order in one fresh process; if it dies, a new one goes on with the rest.

    Parameters
    ----------
    calling : Calling
    attempts : sequence of Attempt
    time_limit : float
        Seconds a process, its start included.

    Returns
    -------
    list of Answer
        One an attempt. After ``MOST_DEATHS`` processes that died or hung the rest is "not made".

    Raises
    ------
    NotPortableError
        If the kernel can't be sent to another process.
    """
    answers: list[Answer] = []
    with tempfile.TemporaryDirectory(prefix="softcarry-") as folder:
        log = Path(folder, "answers")
        for _ in range(MOST_DEATHS):
            if len(answers) == len(attempts):
                break
            log.write_bytes(b"")
            ending = None
            try:
                call_in_fresh_process(
                    _attempt_and_log, calling, attempts[len(answers) :], str(log), time_limit=time_limit
                )
            except CrashedError as error:
                ending = Answer("died", str(error))
            except OutOfTimeError as error:
                ending = Answer("hung", str(error))
            begun, *made = _read(log) or [None]
            answers += made
            if begun is None:
                # A process that has not come as far as an attempt says nothing about the kernel.
                reason = ending.text if ending else "no answer"
                return answers + [Answer("not made", reason)] * (len(attempts) - len(answers))
            if ending is not None:
                answers.append(ending)
    missing = len(attempts) - len(answers)
    return answers + [Answer("not made", f"{MOST_DEATHS} processes have died or hung")] * missing


def _attempt_and_log(calling, attempts, path):
    with open(path, "ab") as log:
        pickle.dump(Answer("begun"), log)
        log.flush()
        for attempt in attempts:
            pickle.dump(attempt_here(calling, attempt), log)
            log.flush()


def _read(log):
    answers = []
    with open(log, "rb") as content:
        while True:
            try:
                answers.append(pickle.load(content))
            except (EOFError, pickle.UnpicklingError):  # the last answer may be cut short
                return answers
