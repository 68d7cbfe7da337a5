"""The evidence of a fault as SVG, where it is better seen than read."""

import math
from typing import TYPE_CHECKING, Any

from softcarry.report._words import cut, named, shown
from softcarry.report.figures import HUES, settings, to_svg

if TYPE_CHECKING:
    from softcarry.report.model import Finding

_LABEL = 44
_MOST_BARS = 24


def evidence_svg(finding: "Finding", prefix: str = "") -> str | None:
    """Draw the evidence of a finding, if it holds something that is better seen than read.

    Parameters
    ----------
    finding : Finding
        Drawn are sizes at which it fails ({"failing": {"n": [1, 2, …]}}), else the first three or more
        numbers under names, else the first list of four or more numbers.
    prefix : str
        Begins every id of the figure.

    Returns
    -------
    str or None
        SVG; None if there is nothing to draw.
    """
    for name, value in finding.evidence.items():
        if isinstance(value, dict) and len(value) > 1 and all(map(_are_sizes, value.values())):
            return _sizes_svg(named(name), value, prefix)
    for name, value in finding.evidence.items():
        if not isinstance(value, dict) or float not in map(type, value.values()):
            continue
        if 3 <= len(value) <= _MOST_BARS and _are_numbers(value.values()):
            return _bars_svg(named(name), {named(key): each for key, each in value.items()}, prefix)
    for name, value in finding.evidence.items():
        if isinstance(value, list) and 4 <= len(value) <= _MOST_BARS and _are_numbers(value):
            # Whole numbers alone are places, such as rows, and not measurements.
            if float not in map(type, value):
                continue
            return _bars_svg(named(name), {f"[{at}]": each for at, each in enumerate(value)}, prefix)
    return None


def _are_numbers(values) -> bool:
    # A whole number may be too large for any axis.
    return all(type(each) is float or (type(each) is int and abs(each) < 2**53) for each in values)


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(each) is int and 0 < each < 2**53 for each in value)
    )


def _sizes_svg(title, sizes, prefix):
    """Draw a row of marks a name, on one logarithmic axis of sizes."""
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(7.2, 0.34 * len(sizes) + 1.1), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for row, values in enumerate(sizes.values()):
            axes.plot(values, [row] * len(values), "|", color=HUES[1], markersize=11, markeredgewidth=1.6)
        axes.set_yticks(range(len(sizes)), [cut(named(name), _LABEL) for name in sizes])
        axes.set_ylim(len(sizes) - 0.5, -0.5)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.minorticks_off()
        axes.set_xlabel("size")
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    said = "; ".join(
        f"{name}: {len(values)} sizes from {min(values)} to {max(values)}" for name, values in sizes.items()
    )
    return to_svg(figure, description=f"{title}, {said}.", prefix=prefix)


def _bars_svg(title, numbers, prefix):
    """Draw a bar a number, logarithmic where numbers lie far apart; what is not finite is a word."""
    from matplotlib.figure import Figure

    finite = [each for each in numbers.values() if math.isfinite(each)]
    sizes = [abs(each) for each in finite if each]
    # Matplotlib's axes give up before float64 does.
    if not finite or max(sizes, default=0.0) > 1e300 or min(sizes, default=1.0) < 1e-300:
        return None
    far_apart = len(sizes) == len(finite) and min(finite) > 0 and max(finite) > 30 * min(finite)
    with settings():
        figure = Figure(figsize=(7.2, 0.3 * len(numbers) + 0.9), layout="constrained")
        axes = figure.add_subplot()
        if far_apart:
            axes.set_xscale("log")
            axes.set_xlim(min(finite) / 3, max(finite) * 8)
        start = axes.get_xlim()[0] if far_apart else 0.0
        for row, number in enumerate(numbers.values()):
            shown_at = number if math.isfinite(number) else start
            axes.barh(row, shown_at - start, left=start, height=0.62, color=HUES[0])
            axes.annotate(
                shown(float(number)), (max(shown_at, start), row), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=8.5,
            )  # fmt: skip
        axes.set_yticks(range(len(numbers)), [cut(name, _LABEL) for name in numbers])
        axes.set_ylim(len(numbers) - 0.5, -0.5)
        axes.margins(x=0.14)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.6g}")
        axes.minorticks_off()
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    said = "; ".join(f"{name} {shown(float(number))}" for name, number in numbers.items())
    return to_svg(figure, description=f"{title}: {said}.", prefix=prefix)
