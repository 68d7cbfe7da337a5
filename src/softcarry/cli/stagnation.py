"""``softcarry stagnation``: where running sums in narrow formats stop moving."""

from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, get_args

from softcarry.cli._console import (
    check_writable,
    output,
    paragraph,
    progress,
    ratio,
    sparkline,
    table,
    write_json,
    write_svg,
)
from softcarry.cli._options import AsJson, Distribution, Distributions, Formats, Rows, Seed, SvgFile, Whole
from softcarry.cli._status import NOTHING_FOUND

if TYPE_CHECKING:
    from softcarry.numerics.experiments import SumCurve


def stagnation(
    *,
    format: Formats = None,  # noqa: A002
    distribution: Distributions = None,
    max_n: Whole = 65536,
    rows: Rows = 64,
    seed: Seed = 0,
    json: AsJson = False,
    svg: SvgFile = None,
) -> int:
    """Measure running sums: where a format stops adding, and what a tree saves.

    A sequential sum of equal terms stops at the drop index 2^(t+1) of a
    format with t stored mantissa bits: later terms are below half its last
    place. The same terms summed pairwise, in a tree, stay accurate. Each
    figure is the relative error of the sum against float64, the mean over
    the rows.

    Parameters
    ----------
    format
        One format or more: bfloat16, float16, TF32, float32, E4M3, E5M2,
        E3M4, or any widths as eXmY. [default: bfloat16 float16 float32]
    distribution
        What the terms are: all 1, uniform on [0, 1), exponential, or the
        terms of a softmax over normal scores. [default: uniform]
    max_n
        The longest sum; the shorter ones are the powers of 4 from 16. An error
        of inf is an overflow.
    json
        Write JSON to stdout. Keys: schema, curves; each curve has format,
        distribution, order, drop_index, n, error, largest, rows, seed.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.numerics._formats import get_format
    from softcarry.numerics.experiments import SumOrder, sum_curve

    if svg is not None:
        check_writable(svg)
    formats = [get_format(name) for name in format or ("bfloat16", "float16", "float32")]
    orders = get_args(SumOrder)
    kinds: tuple[Distribution, ...] = tuple(distribution or ("uniform",))
    wanted = list(product(kinds, formats, orders))
    curves = []
    with progress("summing", len(wanted)) as advance:
        for kind, fmt, order in wanted:
            curves.append(sum_curve(fmt, distribution=kind, order=order, max_n=max_n, rows=rows, seed=seed))
            advance()
    if json:
        write_json({"schema": "softcarry.stagnation/1", "curves": [asdict(curve) for curve in curves]})
    else:
        for kind in dict.fromkeys(curve.distribution for curve in curves):
            _show([curve for curve in curves if curve.distribution == kind])
    if svg is not None:
        from softcarry.report.figures import stagnation_svg

        write_svg(svg, stagnation_svg(curves))
    return NOTHING_FOUND


def _show(curves: "list[SumCurve]") -> None:
    first = curves[0]
    console = output()
    # What the other columns leave of the line; a length takes 8 places.
    columns = max(1, (console.width - 33 - len(first.n)) // 8)
    shown = range(len(first.n))[-columns:]
    lines = table(
        "format",
        "drop\nindex",
        "order",
        *(f"n={first.n[k]}" if k == shown[0] else str(first.n[k]) for k in shown),
        "log\nscale",
        title=f"Relative error of running sums of n {first.distribution} terms",
        left=("format", "order"),
    )
    before = None
    for curve in curves:
        lines.add_row(
            "" if curve.format == before else curve.format,
            "" if curve.format == before else str(curve.drop_index),
            curve.order,
            *(ratio(curve.error[k]) for k in shown),
            sparkline(curve.error),
        )
        before = curve.format
    console.print(lines)
    paragraph(
        f"means over {first.rows} rows; blocks: n from {first.n[0]} to {first.n[-1]}, error from 1e-8 to 100%"
    )
