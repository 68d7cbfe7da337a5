"""``softcarry trace``: the recurrence on scores typed by hand."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from softcarry.cli._console import output, paragraph, ratio, table, write_json
from softcarry.cli._options import AsJson, Whole
from softcarry.cli._status import NOTHING_FOUND
from softcarry.errors import OptionError

if TYPE_CHECKING:
    from softcarry.trace import Trace


def trace(
    *scores: float,
    block: Whole = 1,
    format: str | None = None,  # noqa: A002
    values: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    form: Literal["unnormalised", "normalised"] = "unnormalised",
    json: AsJson = False,
) -> int:
    """Show the carry of one row step by step, beside the sum it stands for.

    Each step takes one key block: the maximum m so far, the factor
    e^(m_old - m) that rescales what was carried, the running sum l, and the
    direct sum of e^(s - m) over all scores so far in float64. The last two
    agree, but in a narrow format l drifts and then stops moving: the note
    says where.

    Parameters
    ----------
    scores
        The row, such as 2 5 1 7. Negative numbers, nan, inf and -inf (a
        masked key) are scores too.
    block
        Key block: how many scores a step takes.
    format
        Keep scores, values, l and o in a format: bfloat16, float16, TF32,
        float32, E4M3, E5M2, E3M4, or any widths as eXmY.
    values
        One number a score, or a JSON list with one vector a score. Adds the
        running output o.
    form
        What o holds between steps: the sum, or the sum divided by l.
    json
        Write JSON to stdout. Keys: schema, steps, final, block, format, form;
        each step has start, stop, scores, m, factor, terms, l, direct, o,
        output, note; final has m, l, lse, weights, output.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.trace import recurrence

    if not scores:
        before = " (scores stand before --values)" if values else ""
        msg = f"trace needs at least one score; got none{before}; try: softcarry trace 2 5 1 7"
        raise OptionError(msg)
    row = recurrence(scores, _vectors(values), block=block, fmt=format, form=form)
    if json:
        write_json({"schema": "softcarry.trace/1", **row.to_dict()})
    else:
        _show(row)
    return NOTHING_FOUND


def _vectors(words: list[str] | None) -> Any:
    """Numbers as typed, or a JSON list of numbers or of vectors."""
    if words is None:
        return None
    text = " ".join(words)
    try:
        return json.loads(text) if text.lstrip().startswith("[") else [float(word) for word in words]
    except ValueError:
        msg = f"--values takes numbers, or a JSON list such as '[[1, 0], [0, 1]]'; got {text!r}"
        raise OptionError(msg) from None


def _show(row: "Trace") -> None:
    rounded = row.format != "float64"
    blocked = row.block > 1
    names = ["keys" if blocked else "key", "scores" if blocked else "score", "m", "factor", "l", "direct sum"]
    if rounded:
        names.append("error")
    if row.final.output is not None:
        names.append("o")
    console = output()
    # Beside a running output the remarks would be squeezed into a word a line: they follow the table.
    beside = row.final.output is None or console.width >= 110
    steps = table(*names, *(["note"] if beside else []), left=("scores", "o", "note"))
    remarks = []
    for step in row:
        keys = f"{step.start + 1}-{step.stop}" if step.stop > step.start + 1 else f"{step.stop}"
        cells = [keys, _several(step.scores), *map(_number, (step.m, step.factor, step.l, step.direct))]
        if rounded:
            cells.append(ratio(step.error))
        if step.o is not None:
            cells.append(_several(step.o))
        steps.add_row(*cells, *([step.note] if beside else []))
        if step.note and not beside:
            remarks.append(f"{names[0]} {keys}: {step.note}")
    console.print(steps)
    for remark in remarks:
        paragraph(remark)
    final = row.final
    paragraph(f"m = {_number(final.m)}   l = {_number(final.l)}   lse = m + ln l = {_number(final.lse)}")
    paragraph(f"weights {_several(final.weights, 12)}")
    if final.output is not None:
        paragraph(f"output {_several(final.output, 12)}")


def _number(x: float) -> str:
    """Four decimals where they say something, else four digits."""
    if not math.isfinite(x):
        return str(x)
    if x == round(x) and abs(x) < 1e6:
        return f"{x:.0f}"
    return f"{x:.4f}" if 1e-3 <= abs(x) < 1e4 else f"{x:.4g}"


def _several(numbers: Sequence[float], most: int = 4) -> str:
    words = [_number(x) for x in numbers[:most]]
    if len(numbers) > most:
        words.append(f"… ({len(numbers)})")
    return " ".join(words)
