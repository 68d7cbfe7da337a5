"""``softcarry envelope``: the error of a carry against the number of its updates."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from softcarry.cli._console import (
    bar,
    check_writable,
    output,
    paragraph,
    progress,
    ratio,
    table,
    write_json,
    write_svg,
)
from softcarry.cli._options import AsJson, Distribution, Rows, Seed, SvgFile, Whole
from softcarry.cli._status import NOTHING_FOUND

if TYPE_CHECKING:
    from softcarry.numerics.experiments import Envelope

_BAR = 10


def envelope(
    *,
    n: Whole = 8192,
    format: str = "bfloat16",  # noqa: A002
    distribution: Distribution = "lognormal",
    rows: Rows = 64,
    seed: Seed = 0,
    json: AsJson = False,
    svg: SvgFile = None,
) -> int:
    """Measure the error of a carry against n/Bc, the number of its updates.

    A kernel with key block Bc updates its carry n/Bc times. Kept in a format
    with t stored mantissa bits, the sum l stops moving near 2^(t+1) updates:
    the cliff. Blocks are summed in float64 here, so the error is that of the
    carry alone. The 1% line is crossed well before the cliff: see plan.

    Parameters
    ----------
    n
        Keys in a row.
    format
        The carry format: bfloat16, float16, TF32, float32, E4M3, E5M2, E3M4,
        or any widths as eXmY.
    distribution
        What the terms are: all 1, uniform on [0, 1), exponential, or the
        terms of a softmax over normal scores (lognormal).
    json
        Write JSON to stdout. Keys: schema, format, distribution, drop_index,
        n, key_block, updates, error, largest, predicted, rows, seed.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.numerics import experiments

    if svg is not None:
        check_writable(svg)
    with progress("carrying", 1) as advance:
        measured = experiments.envelope(format, n=n, distribution=distribution, rows=rows, seed=seed)
        advance()
    if json:
        write_json({"schema": "softcarry.envelope/1", **asdict(measured)})
    else:
        _show(measured)
    if svg is not None:
        from softcarry.report.figures import envelope_svg

        write_svg(svg, envelope_svg(measured))
    return NOTHING_FOUND


def _show(measured: "Envelope") -> None:
    title = f"Error of a {measured.format} carry over {measured.n} keys, {measured.distribution} terms"
    names = ["key block", "updates", "error", "largest", "log scale"]
    if measured.predicted is not None:
        names.insert(4, "predicted")
    lines = table(*names, "", title=title, left=("log scale", ""))
    low = 10.0 ** math.floor(math.log10(min((error for error in measured.error if error > 0.0), default=0.1)))
    for k, updates in enumerate(measured.updates):
        cells = [
            str(measured.key_block[k]),
            str(updates),
            ratio(measured.error[k]),
            ratio(measured.largest[k]),
        ]
        if measured.predicted is not None:
            cells.append(ratio(measured.predicted[k]))
        before = measured.updates[k - 1] if k else 0
        cliff = before < measured.drop_index <= updates
        mark = f"<- drop index {measured.drop_index}" if cliff else ""
        lines.add_row(*cells, bar(measured.error[k], _BAR, low), mark)
    output().print(lines)
    paragraph(f"error, largest: mean and largest of {measured.rows} rows; bars from {ratio(low)} to 100%")
