"""``softcarry bench attention`` and ``decode``: speed, memory and first calls of attention."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from softcarry.cli._bench_tables import (
    figures,
    judgement,
    milliseconds,
    packed_table,
    print_table,
    verdict,
)
from softcarry.cli._console import output, paragraph, progress

if TYPE_CHECKING:
    from softcarry.benchmarks._cases import Measured
    from softcarry.benchmarks._limits import Limits
    from softcarry.benchmarks.decode_growth import MeasuredGrowth
    from softcarry.benchmarks.prefill_memory import MeasuredPrefillMemory
    from softcarry.benchmarks.start_up import StartUp


class Measurement(NamedTuple):
    """What came of a suite.

    Attributes
    ----------
    threads : int
        Threads of the calls.
    missed : bool
        Whether a target is missed, or an answer wrong.
    results : dict
        Plain data for JSON.
    show : callable
        Writes the tables.
    """

    threads: int
    missed: bool
    results: dict[str, Any]
    show: Callable[[], None]


def measure_attention(
    suite: str, only: Sequence[str] | None, threads: int | None, options: Mapping[str, Any], *, quick: bool
) -> Measurement:
    """Measure the limits, then case by case what was chosen; the options are those of `interleave`.

    Raises
    ------
    OptionError
        If a word of ``only`` fits nothing, or there is to be no thread.
    """
    from softcarry.benchmarks._arithmetic import Multiplier
    from softcarry.benchmarks._bandwidth import Reader
    from softcarry.benchmarks._cases import select
    from softcarry.benchmarks._limits import measure_limits
    from softcarry.benchmarks._machine import row_threads

    tables = _ATTENTION if suite == "attention" else _DECODE
    chosen = select(_cases(suite, quick=quick), only)
    measured: dict[str, list[Any]] = {key: [] for key in tables}
    with (
        row_threads(threads) as number,
        Reader(number) as read,
        Multiplier(number) as multiply,
        progress("measuring", 1 + len(chosen)) as advance,
    ):
        limits = measure_limits(read, multiply, **{"budget": 0.5, "least": 5, **options})
        advance()
        measures = _measures(number, read, multiply, options, judged=not quick)
        for case in chosen:
            key, measure = measures[type(case).__name__]
            measured[key].append(measure(case))
            advance()
    missed = any(item.met is False for items in measured.values() for item in items)
    results = {key: [item.to_dict() for item in items] for key, items in measured.items()}
    return Measurement(
        number, missed, {**results, "limits": limits.to_dict()}, partial(_show, tables, measured, limits)
    )


def _cases(suite: str, *, quick: bool) -> list[Any]:
    if suite == "attention":
        from softcarry.benchmarks.attention import attention_cases
        from softcarry.benchmarks.prefill_memory import prefill_memory_case
        from softcarry.benchmarks.start_up import start_up_cases

        return [*attention_cases(quick=quick), prefill_memory_case(quick=quick), *start_up_cases()]
    from softcarry.benchmarks.decode import decode_cases
    from softcarry.benchmarks.decode_growth import growth_case

    return [*decode_cases(quick=quick), growth_case(quick=quick)]


def _measures(
    threads: int, read: Any, multiply: Any, options: Mapping[str, Any], *, judged: bool
) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Return, by the type of a case, the key of its results and what measures it."""
    from softcarry.benchmarks import _cases, decode_growth, prefill_memory, start_up

    times = {} if judged else {"times": 1}
    return {
        "Case": (
            "cases",
            partial(_cases.measure, read=read, multiply=multiply, judged=judged, **options),
        ),
        "PrefillMemoryCase": (
            "memory",
            partial(prefill_memory.measure_prefill_memory, threads=threads, judged=judged),
        ),
        "StartUpCase": (
            "start_up",
            partial(start_up.measure_start_up, threads=threads, judged=judged, **times),
        ),
        "GrowthCase": ("doubling", partial(decode_growth.measure_growth, judged=judged, **options)),
    }


def _show(
    tables: "Mapping[str, Callable[[Any], None]]", measured: Mapping[str, list[Any]], limits: "Limits"
) -> None:
    for key, items in measured.items():
        if items:
            tables[key](items)
    paragraph(
        f"limits: {limits.fma32 / 1e9:.0f} GFLOP/s in float32, {limits.fma64 / 1e9:.0f} in float64; one-pass "
        f"read {limits.read / 1e9:.1f} GB/s of {limits.read_bytes / 2**20:.0f} MiB"
    )


def _explain_ratio(share: str) -> None:
    paragraph(
        "float32 unless named; ratio, +-: median of peer/ours over the rounds, and half the distance of its "
        f"quartiles; {share}, in the same rounds"
    )
    output().print()


def _show_forward(items: "Sequence[Measured]") -> None:
    lines = packed_table(
        *("case", "shape", "ours\nms", "peer\nms", "ratio", "+-", "target", "GFLOP/s", "FMA\nshare", "met"),
        title="forward beside torch SDPA: batch x heads x tokens x d",
        left=("case", "shape", "met"),
    )
    for item in items:
        rate = "-" if item.seconds is None else f"{item.operations / item.seconds.median / 1e9:.0f}"
        lines.add_row(item.case.name, _shape(item), *figures(item), rate, *judgement(item))
    print_table(lines)
    _show_reasons(items)
    _explain_ratio("FMA share: the operations of both products, over multiply-adds in registers")


def _show_decode(items: "Sequence[Measured]") -> None:
    lines = packed_table(
        *("case", "shape", "beside", "ours\nms", "peer\nms", "ratio", "+-", "target", "read\nshare", "met"),
        title="decode of one query, beside torch SDPA: heads x kv_heads x keys x d",
        left=("case", "shape", "beside", "met"),
    )
    for item in items:
        lines.add_row(
            item.case.name, _shape(item), item.case.peer.split()[0], *figures(item), *judgement(item)
        )
    print_table(lines)
    _show_reasons(items)
    _explain_ratio("read share: what must be loaded and stored, over the one-pass read")


def _shape(item: "Measured") -> str:
    return "x".join(map(str, item.case.shape))


def _show_reasons(items: "Sequence[Measured]") -> None:
    for item in items:
        if item.reason:
            paragraph(f"{item.case.name}: {item.status}, {item.reason}")


def _show_memory(items: "Sequence[MeasuredPrefillMemory]") -> None:
    from softcarry.benchmarks.prefill_memory import GROWTH_TARGET, TARGET

    lines = packed_table(
        *("tokens", "result\nMiB", "beyond\nMiB", "target", "times\nhalf", "target ", "met"),
        title="memory: a causal prefill of one head, d 64",
        left=("met",),
    )
    for item in items:
        half, whole = item.half.beyond_result, item.whole.beyond_result
        for tokens, found, beyond in (
            (item.case.tokens // 2, item.half, half),
            (item.case.tokens, item.whole, whole),
        ):
            last = found is item.whole
            lines.add_row(
                str(tokens),
                "-" if beyond is None else f"{found.result / 2**20:.0f}",
                "-" if beyond is None else f"{beyond / 2**20:.1f}",
                f"<{TARGET / 2**20:.0f}" if last else "",
                "" if not last else "-" if item.growth is None else f"{item.growth:.2f}",
                f"<={GROWTH_TARGET:g}" if last else "",
                "" if not last else "skipped" if found.reason else verdict(item.met),
            )
    print_table(lines)
    for item in items:
        if item.whole.reason:
            paragraph(f"memory: skipped, {item.whole.reason}")


def _show_start_up(items: "Sequence[StartUp]") -> None:
    from softcarry.benchmarks.start_up import TARGET

    lines = packed_table(
        *("case", "import\nms", "first\ncall ms", "both\nms", "target", "met"),
        title="start-up: a first call, kernel in the cache",
        left=("case", "met"),
    )
    for item in items:
        lines.add_row(
            item.case.name,
            milliseconds(item.importing),
            milliseconds(item.calling),
            milliseconds(item.together),
            f"<{1e3 * TARGET:.0f}",
            verdict(item.met),
        )
    print_table(lines)


def _show_doubling(items: "Sequence[MeasuredGrowth]") -> None:
    from softcarry.benchmarks.decode_growth import TARGET

    lines = packed_table(
        *("keys", "ours\nms", "times\nhalf", "+-", "target", "met"),
        title="doubling the keys of a decode",
        left=("met",),
    )
    for item in items:
        ratios = (None, *item.ratios)
        for keys, seconds, ratio in zip(item.case.keys, item.seconds, ratios, strict=False):
            met = None if ratio is None or not item.judged else ratio.median <= TARGET
            lines.add_row(
                str(keys),
                milliseconds(seconds),
                "" if ratio is None else f"{ratio.median:.2f}",
                "" if ratio is None else f"{(ratio.high - ratio.low) / 2.0 / ratio.median:.0%}",
                "" if ratio is None else f"<={TARGET:g}",
                verdict(met),
            )
    if any(item.seconds for item in items):
        print_table(lines)
    for item in items:
        if item.reason:
            paragraph(f"doubling: {item.status}, {item.reason}")


_ATTENTION: dict[str, Callable[[Any], None]] = {
    "cases": _show_forward,
    "memory": _show_memory,
    "start_up": _show_start_up,
}
_DECODE: dict[str, Callable[[Any], None]] = {"cases": _show_decode, "doubling": _show_doubling}
