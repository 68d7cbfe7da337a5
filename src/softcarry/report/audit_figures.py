"""What an audit measured, as SVG: error curves beside their ceilings, and grids of outcomes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from softcarry.report._words import cut
from softcarry.report.figures import HUES, INK, Series, error_curves, percent, settings, to_svg

if TYPE_CHECKING:
    from softcarry.report.model import Curve

_BLUE, _VERMILION, _GREEN = HUES[:3]
# How a cell of a grid is filled. Its words say the same.
_FILLS = {"good": _GREEN, "fair": _BLUE, "bad": _VERMILION, "none": "none"}
FILL_OPACITY = 0.28
"""How much of its hue a cell has: its words must stay readable on it."""
_LABEL = 44


class Grid(NamedTuple):
    """Outcomes in rows and columns.

    Attributes
    ----------
    rows, columns : sequence of str
        Their names.
    words : mapping
        What stands in a cell, by (row, column); a cell without words is left out.
    kinds : mapping
        "good", "fair", "bad" or "none", by (row, column).
    """

    rows: Sequence[str]
    columns: Sequence[str]
    words: Mapping[tuple[str, str], str]
    kinds: Mapping[tuple[str, str], str]


def curves_svg(curves: "Sequence[Curve]", prefix: str = "") -> str:
    """Draw one error curve of an audit, in one dtype or several, beside the ceilings predicted for it.

    Parameters
    ----------
    curves : sequence of Curve
        At least one, all of one title.
    prefix : str
        Begins every id of the figure.

    Returns
    -------
    str
        SVG.
    """
    several = len(curves) > 1
    series = []
    for group, curve in enumerate(curves):
        series.append(Series(curve.dtype if several else "measured", curve.n, curve.measured, group))
    for group, curve in enumerate(curves):
        if curve.predicted is not None:
            label = f"ceiling, {curve.dtype}" if several else "predicted ceiling"
            series.append(Series(label, curve.n, curve.predicted, group, "dotted"))
    first = curves[0]
    figure = error_curves(series, title=first.title, x_label=first.x_label, y_label=first.y_label)
    ends = "; ".join(
        f"{line.label} {percent(line.y[0])} at {line.x[0]} and {percent(line.y[-1])} at {line.x[-1]}"
        for line in series
        if line.x
    )
    return to_svg(figure, description=f"{first.y_label} against {first.x_label}: {ends}.", prefix=prefix)


def grid_svg(grid: Grid, *, title: str, prefix: str = "") -> str:
    """Draw a grid of outcomes: each cell has words, and a hue that repeats them.

    Parameters
    ----------
    grid : Grid
    title : str
    prefix : str
        Begins every id of the figure.

    Returns
    -------
    str
        SVG.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    with settings():
        height = 0.36 * len(grid.rows) + 0.9
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlim(0, len(grid.columns))
        axes.set_ylim(len(grid.rows), 0)
        for (row, column), words in grid.words.items():
            x, y = grid.columns.index(column), grid.rows.index(row)
            hue = _FILLS[grid.kinds[row, column]]
            place = {"xy": (x + 0.02, y + 0.08), "width": 0.96, "height": 0.84}
            axes.add_patch(Rectangle(**place, facecolor=hue, linewidth=0.0, alpha=FILL_OPACITY))
            line = INK if hue == "none" else hue
            axes.add_patch(Rectangle(**place, facecolor="none", edgecolor=line, linewidth=0.8))
            axes.text(x + 0.5, y + 0.5, cut(words, 24), ha="center", va="center", fontsize=9)
        _name_axes(axes, grid)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    said = "; ".join(f"{row}, {column}: {words}" for (row, column), words in grid.words.items())
    return to_svg(figure, description=f"{said}.", prefix=prefix)


def _name_axes(axes, grid):
    axes.set_xticks([x + 0.5 for x in range(len(grid.columns))], grid.columns)
    axes.set_yticks([y + 0.5 for y in range(len(grid.rows))], [cut(row, _LABEL) for row in grid.rows])
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set_visible(False)
