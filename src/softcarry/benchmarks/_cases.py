"""One case of a benchmark: softcarry's call beside a peer's, checked, timed, and judged by its targets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from softcarry.benchmarks._arithmetic import Multiplier
from softcarry.benchmarks._bandwidth import Reader
from softcarry.benchmarks._machine import missing
from softcarry.benchmarks._timing import Spread, Timings, interleave
from softcarry.errors import OptionError


class Named(Protocol):
    """Whatever ``select`` can choose from."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The words that the item goes by."""
        ...


Item = TypeVar("Item", bound=Named)


@dataclass(frozen=True)
class Calls:
    """What a case runs, made when its turn has come.

    Attributes
    ----------
    ours, peer : callable
        The calls, without arguments.
    disagreement : callable
        Returns "" if our result is within its bound of float64, else what is wrong with it. Never timed.
    buffer : ndarray
        The input, which a plain read reads to find the limit.
    traffic : int
        Bytes that any implementation must load or store: the share of the bandwidth counts these.
    operations : int
        Floating-point operations that any implementation must make, where products set the limit: the share
        is then of the FMA limit, in the working type of the input.
    """

    ours: Callable[[], Any]
    peer: Callable[[], Any]
    disagreement: Callable[[], str]
    buffer: "np.ndarray[Any, Any]"
    traffic: int
    operations: int = 0


@dataclass(frozen=True)
class Case:
    """One line of a benchmark.

    Attributes
    ----------
    group, name : str
        Where it stands; a command chooses cases by either word.
    shape : tuple of int
        Shape of the input.
    dtype : str
        Its dtype.
    peer : str
        What softcarry is compared with, as a reader would write it.
    library : str
        The library that the peer needs.
    build : callable
        Makes the calls.
    target : float or None
        The least ratio of the peer's time to ours; None for a case that is there to be known.
    share_target : float or None
        The least share of the one-pass read bandwidth, or of the FMA limit.
    """

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    peer: str
    library: str
    build: Callable[[], Calls]
    target: float | None = None
    share_target: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The group and the name."""
        return self.group, self.name


@dataclass(frozen=True)
class Measured:
    """What came of a case.

    Attributes
    ----------
    case : Case
        The case.
    status : {"timed", "skipped", "wrong"}
        Skipped for want of the peer; wrong if the answer is, and then not timed.
    reason : str
        Why it was not timed.
    rounds : int
        Rounds of the timing.
    seconds, peer_seconds, read_seconds : Spread or None
        One call of ours, one of the peer, one plain read of the input.
    ratio : Spread or None
        The peer's time over ours, formed round by round.
    share : Spread or None
        The part of the one-pass read bandwidth at which we move what must be moved; or of the FMA limit.
    read_bytes : int
        Bytes of the input.
    operations : int
        Floating-point operations of a call, where the share is of the FMA limit; else 0.
    judged : bool
        Whether the targets count.
    """

    case: Case
    status: Literal["timed", "skipped", "wrong"]
    reason: str = ""
    rounds: int = 0
    seconds: Spread | None = None
    peer_seconds: Spread | None = None
    read_seconds: Spread | None = None
    ratio: Spread | None = None
    share: Spread | None = None
    read_bytes: int = 0
    operations: int = 0
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """Whether every target is met; None if there is none or it does not count; a wrong answer fails."""
        if self.status == "wrong":
            return False
        pairs = ((self.ratio, self.case.target), (self.share, self.case.share_target))
        verdicts = [
            found.median >= least for found, least in pairs if found is not None and least is not None
        ]
        return all(verdicts) if verdicts and self.judged else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; seconds and ratios are medians, with quartiles beside the ratio."""
        case, ratio, share = self.case, self.ratio, self.share
        return {
            "group": case.group,
            "name": case.name,
            "shape": list(case.shape),
            "dtype": case.dtype,
            "peer": case.peer,
            "status": self.status,
            "reason": self.reason,
            "rounds": self.rounds,
            "seconds": self.seconds and self.seconds.median,
            "peer_seconds": self.peer_seconds and self.peer_seconds.median,
            "read_seconds": self.read_seconds and self.read_seconds.median,
            "read_bytes": self.read_bytes,
            "operations": self.operations,
            "ratio": ratio and ratio.median,
            "ratio_quartiles": ratio and [ratio.low, ratio.high],
            "target": case.target,
            "share": share and share.median,
            "share_target": case.share_target,
            "met": self.met,
        }


def select(items: Iterable[Item], only: Sequence[str] | None) -> list[Item]:
    """Return the items that bear one of the words, or "group/name"; all of them for None.

    Raises
    ------
    OptionError
        If a word fits none; the message lists those there are.
    """
    items = list(items)
    if only is None:
        return items
    known = {id(item): {*item.labels, "/".join(item.labels)} for item in items}
    for word in only:
        if not any(word in words for words in known.values()):
            words = ", ".join(dict.fromkeys(label for item in items for label in item.labels))
            msg = f"only takes the name of a case or a group ({words}); got {word!r}"
            raise OptionError(msg)
    return [item for item in items if known[id(item)] & set(only)]


def measure(
    case: Case,
    read: Reader,
    *,
    multiply: Multiplier | None = None,
    judged: bool = True,
    timing: Callable[..., Timings] = interleave,
    **options: Any,
) -> Measured:
    """Check and time one case, with its limit in every round: a plain read of its input, or multiply-adds.

    Parameters
    ----------
    case : Case
        The case.
    read : Reader
        The plain read, by the number of threads that the calls use.
    multiply : Multiplier, optional
        The multiply-adds, by as many: what cases that count their operations are held against.
    judged : bool
        Whether its targets count.
    timing : callable
        `interleave`, or what a test puts in its place.
    **options
        Passed on to ``timing``.

    Returns
    -------
    Measured
        Figures, or why there are none.
    """
    lacking = missing([case.library])
    if lacking:
        return Measured(case, "skipped", lacking, judged=judged)
    calls = case.build()
    wrong = calls.disagreement()
    if wrong:
        return Measured(case, "wrong", wrong, judged=judged)
    named: dict[str, Callable[[], Any]] = {"softcarry": calls.ours, "peer": calls.peer}
    operations = calls.operations if multiply is not None else 0
    if multiply is not None and operations:
        limit, factor = "fma", operations / multiply.operations(calls.buffer.dtype)
        named[limit] = partial(multiply, calls.buffer.dtype)
    else:
        limit, factor = "read", calls.traffic / calls.buffer.nbytes
        named[limit] = partial(read, calls.buffer)
    timings = timing(named, **options)
    share = timings.ratio(limit, "softcarry")
    return Measured(
        case,
        "timed",
        rounds=timings.rounds,
        seconds=timings.spread("softcarry"),
        peer_seconds=timings.spread("peer"),
        read_seconds=timings.spread("read") if limit == "read" else None,
        ratio=timings.ratio("peer", "softcarry"),
        share=Spread(share.low * factor, share.median * factor, share.high * factor),
        read_bytes=calls.buffer.nbytes,
        operations=operations,
        judged=judged,
    )
