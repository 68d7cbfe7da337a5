"""How often a normaliser reads its row, and how much of it it keeps."""

import math
import tracemalloc
from typing import TYPE_CHECKING, Any, NamedTuple

from softcarry._counted_row import CountedRow
from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.blocks._asking import Case, Question

if TYPE_CHECKING:
    from softcarry.auditing.blocks.normalizer import Normalizer

_LONG = 4096
_LENGTHS = (16, 256, _LONG)


class Reading(NamedTuple):
    """What was seen of one reading of a row: ``refusal`` is the error of a function that can't read one."""

    walks: int = 1
    held: int = 0
    bytes_per_score: float = 0.0
    refusal: str = ""

    @property
    def words(self) -> str:
        """The reading in words."""
        if self.refusal:
            return self.refusal
        kept = f"{self.held} scores" if self.held else f"{self.bytes_per_score:.0f} bytes a score"
        return f"{self.walks} passes" if self.walks > 1 else f"1 pass, {kept} kept"


def passes_question(subject: "Normalizer") -> Question:
    """Ask whether a normaliser reads its row once, and keeps a few numbers of it."""
    return Question(
        "PASSES",
        _explain,
        "read each score once: when the maximum rises from m to s, set l to l · e^(m − s) + 1",
        "Milakov and Gimelshein 2018, arXiv:1805.02867, sections 2 and 3",
        [_iterator(subject), _walks(subject), *(_copies(subject, n) for n in _LENGTHS), _memory(subject)],
    )


def _explain(failure):
    reading = failure.came
    if reading is None:
        return "fails on a plain row"
    if reading.refusal:
        return "needs the whole row in memory: it can't read an iterator, which gives each score once"
    if reading.walks > 1:
        return f"takes {reading.walks} passes over its input where one is meant"
    if reading.held:
        return "copies the whole row, for further passes over the copy: one pass is meant"
    return "its memory grows with the row: one pass keeps two numbers"


def _iterator(subject):
    def run():
        try:
            subject.read(iter([1.0, 0.0]))
        except (KernelRaisedError, MalformedResultError) as error:
            return Reading(refusal=str(error))
        return Reading()

    return Case("iter([1, 0])", run, "one pass over an iterator", lambda came: not came.refusal, _words)


def _walks(subject):
    def run():
        row = CountedRow([1.0, 0.0])
        subject.read(row)
        return Reading(walks=len(row.ledger.passes))

    return Case("[1, 0]", run, "1 pass", lambda came: came.walks <= 1, _words)


def _copies(subject, n):
    def run():
        # A bounded buffer is no copy: what counts is whether the longest row is held.
        held = _held(subject, n)
        return Reading(held=held if _held(subject, _LONG) > _LONG // 2 else 0)

    return Case(f"{n} scores", run, "a few scores kept at once", lambda came: came.held <= n // 2, _words)


def _held(subject, n):
    row = CountedRow(math.sin(j) for j in range(n))
    subject.read(iter(row))
    return row.ledger.held


def _memory(subject):
    def run():
        short, long = (_peak(subject, n) for n in (_LONG, 4 * _LONG))
        return Reading(bytes_per_score=(long - short) / (3 * _LONG))

    return Case(
        f"{4 * _LONG} scores of a generator",
        run,
        "no more memory than for a short row",
        # The smallest copy, of float32 numbers, takes four bytes a score.
        lambda came: came.bytes_per_score < 4.0,
        _words,
    )


def _peak(subject: "Normalizer", n: int) -> int:
    """Measure the most memory that Python and NumPy hold at once during a call."""
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        subject.read(math.sin(j) for j in range(n))
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not traced:
            tracemalloc.stop()


def _words(reading: Any) -> str:
    return reading.words
