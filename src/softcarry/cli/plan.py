"""``softcarry plan``: which key blocks a carry format allows, and why."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from softcarry.cli._console import output, paragraph, ratio, table, write_json
from softcarry.cli._options import AsJson, Whole, whole_numbers
from softcarry.cli._status import FINDINGS, NOTHING_FOUND

if TYPE_CHECKING:
    from softcarry.numerics.planning import Plan


def plan(
    *,
    n: Whole,
    format: str = "bfloat16",  # noqa: A002
    key_block: Annotated[list[int] | None, Parameter(consume_multiple=1, converter=whole_numbers)] = None,
    tolerance: float = 1e-2,
    splits: Whole = 1,
    json: AsJson = False,
) -> int:
    """Say which key blocks keep the error of a carry within a tolerance, and why.

    Two limits are told apart. Past the stall point, 2^(t+1) updates, a
    sequential sum of equal terms no longer moves. The error point, where
    rounding errors add up to the tolerance, comes much earlier. Exit status
    1 means that no key block asked for is safe.

    Parameters
    ----------
    n
        Keys in a row.
    format
        The carry format of l: bfloat16, float16, TF32, float32, E4M3, E5M2,
        E3M4, or any widths as eXmY.
    key_block
        Key blocks to judge. [default: the powers of two up to n]
    tolerance
        The relative error of l to stay within.
    splits
        Key splits that are carried apart and merged at the end.
    json
        Write JSON to stdout. Keys: schema, n, format, tolerance, splits,
        order, rounding, lambda, stall_updates, worst_case_updates,
        probabilistic_updates, options, alternatives, safe_key_blocks; each
        option has key_block, updates, stalls, stall_n, worst_case,
        probabilistic, safe, reason.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.numerics import planning

    made = planning.plan(n=n, fmt=format, key_block=key_block, tolerance=tolerance, splits=splits)
    if json:
        # The names of Python arguments, fmt and lambda_, are nobody's idea of a key.
        names = {"fmt": "format", "lambda_": "lambda"}
        fields = {names.get(name, name): value for name, value in asdict(made).items()}
        write_json({"schema": "softcarry.plan/1", **fields, "safe_key_blocks": made.safe_key_blocks})
    else:
        _show(made)
    return NOTHING_FOUND if made.safe_key_blocks else FINDINGS


def _show(made: "Plan") -> None:
    splits = f" in {made.splits} splits" if made.splits > 1 else ""
    title = f"l carried in {made.fmt} over {made.n} keys{splits}, tolerance {ratio(made.tolerance)}"
    updates = "updates a split" if made.splits > 1 else "updates"
    lines = table("key block", updates, "stalls", "worst case", "probabilistic", "safe", title=title)
    for option in made.options:
        lines.add_row(
            str(option.key_block),
            str(option.updates),
            "stalls" if option.stalls else "",
            _bound(option.worst_case),
            _bound(option.probabilistic),
            "safe" if option.safe else "no",
        )
    output().print(lines)
    for line in made.explain().splitlines():
        # The table says the same of many key blocks, but not why one of them is unsafe.
        if len(made.options) == 1 or not line.startswith("Bc = "):
            paragraph(line)


def _bound(error: float) -> str:
    return ratio(error) if math.isfinite(error) else "no bound"
