"""Error curves as SVG: text stays text, equal input gives equal bytes, and dark pages are readable too."""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from softcarry.numerics.experiments import Envelope, SumCurve

# Each hue has a contrast of at least 3:1 on white and on the dark paper below (WCAG 2.2, 1.4.11), and goes
# with a marker of its own, so that no meaning rests on colour.
HUES = ("#1a7fc4", "#d55e00", "#009e73", "#c0609a", "#8a7a00", "#5a6acf")
_MARKERS = ("o", "s", "^", "D", "v", "P")
# Written as a colour that matplotlib takes, then replaced by currentColor, which a page can set.
INK = "#010203"
_STYLE = (
    "<style>.softcarry-figure *{stroke-linejoin:round;stroke-linecap:butt}"
    ".softcarry-figure{color:#1f2328}.softcarry-figure .paper{fill:#ffffff}"
    "@media (prefers-color-scheme:dark){.softcarry-figure{color:#e6edf3}"
    ".softcarry-figure .paper{fill:#0d1117}}"
    "</style>"
)
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "softcarry",
    # Names may hold a dollar sign.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Series:
    """One line of a figure.

    Attributes
    ----------
    label : str
        What the legend calls it.
    x, y : sequence of float
        Points; y that is 0 is drawn on the axis at the bottom, y that is not finite is left out.
    group : int
        Series of one group share a hue and a marker.
    line : {"solid", "dashed", "dotted"}
        Dotted lines are predictions: they bear few markers or none.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    group: int = 0
    line: Literal["solid", "dashed", "dotted"] = "solid"


def error_curves(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str = "relative error",
    marks: Sequence[tuple[float, str]] = (),
) -> "Figure":
    """Draw errors against sizes on logarithmic axes.

    Parameters
    ----------
    series : sequence of Series
        The lines, none or more. A prediction has the hue of its group if that has another line, else that of
        the words.
    title, x_label, y_label : str
        What stands over and beside the axes.
    marks : sequence of (float, str)
        Vertical lines with their text, such as a drop index.

    Returns
    -------
    matplotlib.figure.Figure
        Made without pyplot: nothing is global and nothing needs closing.

    Examples
    --------
    >>> from softcarry.report.figures import Series, error_curves, to_svg
    >>> figure = error_curves([Series("bfloat16", [256, 1024], [0.01, 0.5])], title="Sums", x_label="terms")
    >>> to_svg(figure, description="Error rises.").startswith("<svg")
    True
    """
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        zeros = any(y == 0.0 for line in series for y in line.y)
        floor = _floor(series)
        seen = {line.group for line in series if line.line != "dotted"}
        for line in series:
            _draw(axes, line, floor, alone=line.group not in seen)
        for position, text in marks:
            axes.axvline(position, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
            axes.annotate(
                text, (position, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", fontsize=8.5, ha="center", va="bottom",
            )  # fmt: skip
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=32.0 if marks else 8.0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}" if x >= 1 else f"{x:g}")
        axes.set_yticks(_decades(series, floor) + ([floor] if zeros else []))
        axes.yaxis.set_major_formatter(lambda y, _: "0" if zeros and y <= floor * 1.01 else percent(y))
        axes.minorticks_off()
        axes.grid(True, axis="y", color=INK, alpha=0.15, linewidth=0.6)
        axes.set_ylim(bottom=floor / 1.5 if zeros else None)
        if series:
            figure.legend(loc="outside lower left", ncols=min(3, len(series)), fontsize=9)
    return figure


def to_svg(figure: "Figure", *, description: str, prefix: str = "") -> str:
    """Turn a figure into an SVG element that stands alone as a file or inside a page.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        A figure of this module.
    description : str
        What the figure shows, in words, for those who do not see it.
    prefix : str
        Begins every id: figures of one page need different ones.

    Returns
    -------
    str
        One ``<svg>`` element without XML declaration. Equal figures give equal strings.
    """
    buffer = StringIO()
    with settings():
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue()
    body = text[text.index("<svg") :].strip()
    opening, rest = body.split(">", 1)
    # Points would be scaled by 4/3 in a page, and some renderers know no unit but the pixel.
    opening = re.sub(r'="([\d.]+)pt"', r'="\1"', opening)
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = _compact(rest, prefix)
    title = figure.axes[0].get_title(loc="left")
    opening += ' class="softcarry-figure" role="img" color="#1f2328" font-family="DejaVu Sans, sans-serif"'
    opening += f' aria-label="{escape(title)}"'
    head = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{_STYLE}"
    paper = '<rect class="paper" width="100%" height="100%" rx="6" fill="#ffffff"/>'
    return f"{opening}>\n{head}{paper}{rest.replace(INK, 'currentColor')}\n"


@contextmanager
def settings() -> Iterator[None]:
    """Let matplotlib draw in the style of every figure here, whatever the caller has set."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A letter that its font lacks is drawn by the font of the page.
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def _compact(svg: str, prefix: str) -> str:
    """Leave out what no reader sees: ids without reference, indentation, digits below a hundredth of a pixel.

    The ids that are left are the prefix and a number. Marks in a row say their style once.
    """
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    short = {name: f"{prefix}s{number}" for number, name in enumerate(used)}

    def tag(found: re.Match[str]) -> str:
        kept = re.sub(
            r' id="([^"]*)"', lambda each: f' id="{short[each[1]]}"' if each[1] in short else "", found[0]
        )
        kept = re.sub(r'(url\(|href=")#([^")]+)', lambda each: f"{each[1]}#{short[each[2]]}", kept)
        kept = re.sub(r"\d+\.\d{3,}", lambda each: f"{float(each[0]):.2f}".rstrip("0").rstrip("."), kept)
        kept = re.sub(r' transform="rotate\(-0 [^"]*"', "", kept)
        kept = kept.replace("font-family: 'DejaVu Sans', sans-serif; ", "")
        return re.sub(r"\s+", " ", kept)

    def one_style(found: re.Match[str]) -> str:
        return f'<g style="{found[2]}">' + found[0].replace(f' style="{found[2]}"', "") + "</g>"

    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", tag, svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'(<use [^>]*? style="([^"]*)"/>)(?:<use [^>]*? style="\2"/>)+', one_style, svg)
    return svg.replace("<defs></defs>", "")


def stagnation_svg(curves: Sequence["SumCurve"]) -> str:
    """Draw measured sums by format, distribution and order, with the drop indices marked.

    Parameters
    ----------
    curves : sequence of SumCurve
        What :func:`softcarry.numerics.experiments.sum_curve` returned.

    Returns
    -------
    str
        SVG.
    """
    formats = list(dict.fromkeys(curve.format for curve in curves))
    distributions = list(dict.fromkeys(curve.distribution for curve in curves))
    several = len(distributions) > 1
    series = [
        Series(
            f"{curve.format}, {curve.order}" + (f", {curve.distribution}" if several else ""),
            curve.n,
            curve.error,
            formats.index(curve.format) * len(distributions) + distributions.index(curve.distribution),
            "solid" if curve.order == "sequential" else "dashed",
        )
        for curve in curves
    ]
    longest = max((curve.n[-1] for curve in curves), default=0)
    drops: dict[int, list[str]] = {}
    for curve in curves:
        names = drops.setdefault(curve.drop_index, [])
        if curve.format not in names:
            names.append(curve.format)
    marks = [(at, f"{', '.join(names)}\ndrop index {at}") for at, names in drops.items() if at <= longest]
    kind = "" if several else f" of {distributions[0]} terms" if distributions else ""
    figure = error_curves(series, title=f"Running sums{kind}", x_label="terms n", marks=marks)
    ends = "; ".join(f"{line.label} {percent(line.y[-1])} at {line.x[-1]:.0f} terms" for line in series)
    return to_svg(figure, description=f"Relative error of a running sum against its number of terms: {ends}.")


def envelope_svg(measured: "Envelope") -> str:
    """Draw the error of a carry against its updates, beside what the theory expects.

    Parameters
    ----------
    measured : Envelope
        What :func:`softcarry.numerics.experiments.envelope` returned.

    Returns
    -------
    str
        SVG.
    """
    cliff = measured.drop_index
    series = [Series(f"measured, {measured.distribution} terms", measured.updates, measured.error)]
    if measured.predicted is not None:
        series.append(Series("predicted", measured.updates, measured.predicted, 1, "dotted"))
    marks = [(cliff, f"drop index {cliff}")] if cliff <= measured.updates[-1] else []
    title = f"A {measured.format} carry over {measured.n} keys"
    figure = error_curves(series, title=title, x_label="carry updates n/Bc", marks=marks)
    points = "; ".join(f"{percent(y)} at {x}" for x, y in zip(measured.updates, measured.error, strict=True))
    return to_svg(figure, description=f"Relative error of l against the number of updates: {points}.")


def _draw(axes: "Axes", line: Series, floor: float, alone: bool) -> None:
    predicted = line.line == "dotted"
    hue = INK if alone and predicted else HUES[line.group % len(HUES)]
    points = [math.nan if not math.isfinite(y) else max(y, floor) for y in line.y]
    axes.plot(
        line.x,
        points,
        label=line.label,
        color=hue,
        linestyle={"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.5))}[line.line],
        linewidth=1.6,
        marker="" if alone and predicted else _MARKERS[line.group % len(_MARKERS)],
        markersize=5,
        markevery=5 if predicted else 1,
        # A hollow marker for the second line of a group keeps the two apart where they cross.
        markerfacecolor="none" if line.line != "solid" else hue,
        clip_on=False,
    )


def _floor(series: Sequence[Series]) -> float:
    """Find the power of ten below every positive error: the place of the errors that are 0."""
    positive = [y for line in series for y in line.y if 0.0 < y < math.inf]
    return 10.0 ** (math.floor(math.log10(min(positive, default=1e-3))) - 1)


def _decades(series: Sequence[Series], floor: float) -> list[float]:
    """At most eight powers of ten above the floor, evenly apart, the largest error's among them."""
    largest = max((y for line in series for y in line.y if 0.0 < y < math.inf), default=1.0)
    top, bottom = math.ceil(math.log10(largest)), round(math.log10(floor))
    return [10.0**k for k in range(top, bottom, -math.ceil((top - bottom) / 8))]


def percent(error: float) -> str:
    """Write an error for an axis or a description: 0.39%, 4e-7, overflow."""
    if not math.isfinite(error):
        return "overflow"
    if error == 0.0:
        return "0"
    if error >= 1e-5:
        return f"{100.0 * error:.3g}%"
    mantissa, exponent = f"{error:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
