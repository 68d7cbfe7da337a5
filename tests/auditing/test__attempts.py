"""Attempts are answered one for one, whatever becomes of the process that makes them."""

import pickle

import numpy as np
import pytest

import misfit_mutants
from softcarry.auditing import _attempts
from softcarry.auditing._attempts import Answer, Attempt, attempt_all, attempt_here
from softcarry.auditing._calling import prepare
from softcarry.auditing.isolation import CrashedError, OutOfTimeError
from softcarry.auditing.subject import Subject


def zeros(*shape):
    return np.zeros(shape)


FITS = Attempt("fits", zeros(1, 1, 2, 4), zeros(1, 1, 3, 4), zeros(1, 1, 3, 4))
LONGER = Attempt("longer v", zeros(1, 1, 2, 4), zeros(1, 1, 3, 4), zeros(1, 1, 5, 4))


def calling_of(kernel, **declared):
    return prepare(Subject(kernel, arrays="numpy", **declared), "float32")


def test_an_output_and_an_error_come_back():
    calling = calling_of(misfit_mutants.right)
    fits, longer = attempt_all(calling, [FITS, LONGER])
    assert (fits.kind, fits.output.shape) == ("returned", (1, 1, 2, 4))
    assert longer.kind == "raised"
    assert longer.text.startswith("ValueError: q, k and v do not fit")


def test_the_dtypes_of_an_attempt_are_handed_over():
    seen = []

    def kernel(q, k, v):
        seen.append([str(x.dtype) for x in (q, k, v)])
        return q

    mixed = Attempt("mixed", *[zeros(1, 1, 2, 4)] * 3, dtypes=(None, "float16", "bfloat16"))
    calling = calling_of(kernel)
    attempt_here(calling, mixed)
    assert seen[-1] == ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("ending", [CrashedError("killed by SIGSEGV"), OutOfTimeError("no answer")])
def test_the_attempt_that_ends_a_process_is_known_and_the_rest_is_made(monkeypatch, ending):
    started = []

    def process(function, calling, attempts, log, *, time_limit):
        started.append([attempt.name for attempt in attempts])
        with open(log, "ab") as out:
            pickle.dump(Answer("begun"), out)
            for attempt in attempts:
                if attempt.name == "bad":
                    out.write(b"\x80\x05cut short")
                    raise ending
                pickle.dump(Answer("raised", attempt.name), out)

    monkeypatch.setattr(_attempts, "call_in_fresh_process", process)
    cases = [Attempt(name, *[zeros(1)] * 3) for name in ("a", "bad", "b", "c")]
    kind = "died" if isinstance(ending, CrashedError) else "hung"
    kinds = [answer.kind for answer in attempt_all(None, cases)]
    assert kinds == ["raised", kind, "raised", "raised"]
    assert started == [["a", "bad", "b", "c"], ["b", "c"]]


def test_after_many_deaths_the_rest_is_not_made(monkeypatch):
    def process(function, calling, attempts, log, *, time_limit):
        with open(log, "ab") as out:
            pickle.dump(Answer("begun"), out)
        raise CrashedError("killed by SIGSEGV")

    monkeypatch.setattr(_attempts, "call_in_fresh_process", process)
    kinds = [answer.kind for answer in attempt_all(None, [FITS] * 8)]
    assert kinds == ["died"] * _attempts.MOST_DEATHS + ["not made"] * (8 - _attempts.MOST_DEATHS)


def test_a_process_that_does_not_come_to_its_first_attempt_says_nothing(monkeypatch):
    def process(function, calling, attempts, log, *, time_limit):
        raise OutOfTimeError("no answer within 60 s")

    monkeypatch.setattr(_attempts, "call_in_fresh_process", process)
    answers = attempt_all(None, [FITS, LONGER])
    assert answers == [Answer("not made", "no answer within 60 s")] * 2
