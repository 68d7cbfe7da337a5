"""``softcarry bench``: speed and memory beside what people use today, judged by written targets."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from softcarry.cli._bench_tables import (
    figures,
    judgement,
    milliseconds,
    packed_table,
    print_table,
    verdict,
)
from softcarry.cli._console import paragraph, progress, remarks, write_json
from softcarry.cli._options import AsJson, whole_number
from softcarry.cli._status import FINDINGS, NOTHING_FOUND

if TYPE_CHECKING:
    from softcarry.benchmarks._cases import Measured
    from softcarry.benchmarks._rates import Rate
    from softcarry.benchmarks.row_memory import MeasuredMemory

_QUICK = {"budget": 0.1, "least": 3, "most": 3}
_BUSY = 0.1
"""Processors at work for others beyond which the figures are doubtful."""


def bench(
    suite: Literal["rows", "attention", "decode", "merge", "sums", "emulated"],
    /,
    *,
    only: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    quick: Annotated[bool, Parameter(show_default=False)] = False,
    threads: Annotated[int | None, Parameter(converter=whole_number)] = None,
    json: AsJson = False,
) -> int:
    """Measure speed and memory beside what people use today, against written targets.

    The calls of a case run in turns in one process, with a plain read of the
    same input among them; the ratio is the median over the rounds, with half
    the distance of its quartiles. A result is compared with float64 before
    it is timed. Exit status 1 means that a target is missed, or an answer is
    wrong.

    Parameters
    ----------
    suite
        rows: reductions over rows, beside torch and SciPy. attention: forward
        on whole prompts, beside torch, with its memory and its first call.
        decode: one query on many keys, beside torch. merge: merges of partial
        outputs, beside torch. sums, emulated: emulated additions a second, of
        running sums and of kernels.
    only
        Cases or groups, by the names in the table, also as GROUP/NAME.
    quick
        Smaller inputs and three rounds: a look, and no judgement.
    threads
        Threads for softcarry, its peers and the plain read alike. [default:
        those that softcarry takes by itself]
    json
        Write JSON to stdout. Keys: schema, suite, quick, machine,
        busy_elsewhere, cases, and as far as the suite has them memory,
        start_up, doubling, limits; seconds, ratio and share are medians,
        memory is in bytes.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.benchmarks._machine import OthersAtWork, describe_machine

    others = OthersAtWork()
    if suite in ("rows", "merge"):
        number, measured, memory = _measure_cases(suite, only, threads, quick=quick)
        missed = any(item.met is False for item in (*measured, *memory))
        results = {
            "cases": [item.to_dict() for item in measured],
            "memory": [item.to_dict() for item in memory],
        }
        show = partial(_show_measured, measured, memory)
    elif suite in ("attention", "decode"):
        from softcarry.cli._bench_attention import measure_attention

        options = _QUICK if quick else {}
        number, missed, results, show = measure_attention(suite, only, threads, options, quick=quick)
    else:
        number, rates = _measure_rates(suite, only, threads, quick=quick)
        missed = False
        results = {"cases": [rate.to_dict() for rate in rates]}
        show = partial(_show_rates, suite, rates)
    machine, busy = describe_machine(number), others.processors()
    if json:
        about = {"schema": "softcarry.bench/1", "suite": suite, "quick": quick}
        write_json({**about, "machine": machine, "busy_elsewhere": busy, **results})
    else:
        show()
        _show_machine(machine)
    if busy is not None and busy > _BUSY:
        remarks().print(
            f"other processes kept {busy:.1f} processors busy meanwhile: measure on a quiet machine",
            soft_wrap=True,
        )
    return FINDINGS if missed else NOTHING_FOUND


def _measure_cases(
    suite: str, only: Sequence[str] | None, threads: int | None, *, quick: bool
) -> "tuple[int, list[Measured], list[MeasuredMemory]]":
    from softcarry.benchmarks._bandwidth import Reader
    from softcarry.benchmarks._cases import Case, measure, select
    from softcarry.benchmarks._machine import row_threads

    if suite == "rows":
        from softcarry.benchmarks import row_memory as memories
        from softcarry.benchmarks.rows import row_cases as list_cases
    else:
        from softcarry.benchmarks import merge as memories
        from softcarry.benchmarks.merge import merge_cases as list_cases
    chosen = select([*list_cases(quick=quick), *memories.memory_cases()], only)
    measured, memory = [], []
    with (
        row_threads(threads) as number,
        Reader(number) as read,
        progress("measuring", len(chosen)) as advance,
    ):
        for case in chosen:
            if isinstance(case, Case):
                measured.append(measure(case, read, judged=not quick, **(_QUICK if quick else {})))
            else:
                memory.append(memories.measure_memory(case, threads=number, quick=quick))
            advance()
    return number, measured, memory


def _measure_rates(
    suite: str, only: Sequence[str] | None, threads: int | None, *, quick: bool
) -> "tuple[int, list[Rate]]":
    from softcarry.benchmarks._cases import select
    from softcarry.benchmarks._machine import numba_threads
    from softcarry.benchmarks._rates import measure_rate

    if suite == "sums":
        from softcarry.benchmarks.emulated_sums import sum_cases as list_cases
    else:
        from softcarry.benchmarks.emulated_kernel import kernel_cases as list_cases
    chosen = select(list_cases(quick=quick), only)
    rates = []
    options = _QUICK if quick else {"budget": 0.5, "least": 3}
    with numba_threads(threads) as number, progress("measuring", len(chosen)) as advance:
        for case in chosen:
            rates.append(measure_rate(case, **options))
            advance()
    return number, rates


def _show_measured(measured: "Sequence[Measured]", memory: "Sequence[MeasuredMemory]") -> None:
    if measured:
        _show_cases(measured)
    if memory:
        _show_memory(memory)
    paragraph(
        "ratio, +-: median of peer/ours over the rounds, and half the distance of its quartiles; read share: "
        "what must be loaded and stored, over the one-pass read; beyond: beyond input and result"
    )


def _show_cases(measured: "Sequence[Measured]") -> None:
    for group in dict.fromkeys(item.case.group for item in measured):
        items = [item for item in measured if item.case.group == group]
        lines = packed_table(
            *("case", "beside", "ours\nms", "peer\nms", "ratio", "+-", "target", "read\nshare", "met"),
            title=_title(group, items),
            left=("case", "beside", "met"),
        )
        for item in items:
            lines.add_row(*_cells(item))
        print_table(lines)
        for item in items:
            if item.reason:
                paragraph(f"{item.case.name}: {item.status}, {item.reason}")


def _title(group: str, items: "Sequence[Measured]") -> str:
    case = items[0].case
    title = f"{group}: {' x '.join(map(str, case.shape))} {case.dtype}"
    reads = [item.read_seconds.median for item in items if item.read_seconds is not None]
    if not reads:
        return title
    return f"{title}, one-pass read {items[0].read_bytes / median(reads) / 1e9:.1f} GB/s"


def _cells(item: "Measured") -> tuple[str, ...]:
    return (item.case.name, item.case.peer, *figures(item), *judgement(item))


def _show_memory(memory: "Sequence[MeasuredMemory]") -> None:
    lines = packed_table(
        *("case", "of", "result\nKiB", "beyond\nKiB", "target", "met"),
        title="memory: peak of a call",
        left=("case", "of", "met"),
    )
    for item in memory:
        beyond, target = item.found.beyond_result, item.case.target
        lines.add_row(
            item.case.name,
            item.case.library,
            f"{item.found.result / 1024:.0f}" if beyond is not None else "-",
            f"{beyond / 1024:.0f}" if beyond is not None else "-",
            "" if target is None else f"<{target / 1024:.0f}",
            "skipped" if item.found.reason else verdict(item.met),
        )
    print_table(lines)
    for reason in dict.fromkeys(item.found.reason for item in memory if item.found.reason):
        paragraph(f"memory: skipped, {reason}")


def _show_rates(suite: str, rates: "Sequence[Rate]") -> None:
    lines = packed_table(
        *("case", "first\ncall s", "call\nms", "processor\nms", "million\na second"),
        title=f"emulated additions of {suite}",
        left=("case",),
    )
    for rate in rates:
        lines.add_row(
            "/".join(rate.case.labels),
            f"{rate.first_call:.2f}",
            milliseconds(rate.seconds),
            f"{1e3 * rate.processor:.0f}",
            f"{rate.additions_a_second / 1e6:.0f}",
        )
    print_table(lines)


def _show_machine(machine: dict[str, Any]) -> None:
    libraries = ", ".join(f"{name} {number}" for name, number in machine["libraries"].items())
    paragraph(
        f"{machine['cpu']}, {machine['threads']} threads on {machine['processors']} processors, "
        f"{machine['system']}, Python {machine['python']}, softcarry {machine['softcarry']}, {libraries}"
    )
