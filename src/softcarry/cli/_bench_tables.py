"""What the tables of ``softcarry bench`` have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softcarry.cli._console import output, table

if TYPE_CHECKING:
    from rich.table import Table

    from softcarry.benchmarks._cases import Measured
    from softcarry.benchmarks._timing import Spread


def packed_table(*columns: str, title: str, left: Sequence[str]) -> "Table":
    """Make a table whose columns stand one space apart: there are nine."""
    lines = table(*columns, title=title, left=left)
    lines.padding = 0
    lines.show_edge = False
    return lines


def print_table(lines: "Table") -> None:
    """Write a table to stdout, and an empty line."""
    console = output()
    console.print(lines)
    console.print()


def verdict(met: bool | None) -> str:
    """Write whether a target is met; nothing where there is none."""
    return "" if met is None else "yes" if met else "NO"


def milliseconds(seconds: "Spread | None") -> str:
    """Write a median in milliseconds, to three places."""
    if seconds is None:
        return "-"
    number = 1e3 * seconds.median
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def figures(item: "Measured") -> tuple[str, ...]:
    """Write what the tables of cases share: both times, ratio and its spread, targets."""
    case, ratio = item.case, item.ratio
    target = "" if case.target is None else f">={case.target:g}"
    share_target = "" if case.share_target is None else f">={case.share_target:.0%}"
    return (
        milliseconds(item.seconds),
        milliseconds(item.peer_seconds),
        "-" if ratio is None else f"{ratio.median:.2f}",
        "-" if ratio is None else f"{(ratio.high - ratio.low) / 2.0 / ratio.median:.0%}",
        " ".join(filter(None, (target, share_target))),
    )


def judgement(item: "Measured") -> tuple[str, str]:
    """Write the share of the limit, and whether the targets are met or why nobody knows."""
    share = "-" if item.share is None else f"{item.share.median:.0%}"
    return share, item.status if item.status != "timed" else verdict(item.met)
