"""The figures of a report, each with the table of its numbers."""

from typing import TYPE_CHECKING, Any

from softcarry.report._words import ratio, shown
from softcarry.report.audit_figures import Grid, curves_svg, grid_svg

if TYPE_CHECKING:
    from softcarry.report.model import Report

_AGREEMENTS = {"same": "good", "within the bound": "fair", "different": "bad", "skipped": "none"}


def figures_of(report: "Report", ids: str) -> list[dict[str, Any]]:
    """Draw what was measured: curves, the matrix of invariances, the table of rows without keys.

    Parameters
    ----------
    report : Report
        As written: see ``_words.as_written``.
    ids : str
        Begins every id.

    Returns
    -------
    list of dict
        title, check, svg, and the numbers as a table: heads, rows, and whether they are all numbers.
    """
    return [*_curves(report, ids), *_invariance(report, ids), *_empty_rows(report, ids)]


def _curves(report, ids):
    titles: dict[Any, list[Any]] = {}
    for curve in report.curves:
        titles.setdefault((curve.check, curve.title, curve.x_label, curve.y_label), []).append(curve)
    for number, curves in enumerate(titles.values(), 1):
        heads, rows = [curves[0].x_label], {n: [f"{n}"] for n in sorted({n for c in curves for n in c.n})}
        for curve in curves:
            columns = [(curve.dtype or "measured", curve.measured)]
            if curve.predicted is not None:
                columns.append((f"ceiling {curve.dtype}".strip(), curve.predicted))
            for head, values in columns:
                heads.append(head)
                at = dict(zip(curve.n, values, strict=True))
                for n, cells in rows.items():
                    cells.append(ratio(at[n]) if n in at else "")
        yield {
            "title": curves[0].title,
            "check": curves[0].check,
            "svg": curves_svg(curves, f"{ids}-c{number}-"),
            "heads": heads,
            "rows": list(rows.values()),
            "right": True,
        }


def _invariance(report, ids):
    found = {d: facts["invariance"].value for d, facts in report.profile.items() if "invariance" in facts}
    found = {dtype: axes for dtype, axes in found.items() if isinstance(axes, dict) and axes}
    if not found:
        return
    axes = list(dict.fromkeys(axis for each in found.values() for axis in each))
    seen = [(axis, dtype, found[dtype][axis]) for axis in axes for dtype in found if axis in found[dtype]]
    words = {(axis, dtype): str(each.get("outcome", "")) for axis, dtype, each in seen}
    kinds = {place: _AGREEMENTS.get(word, "none") for place, word in words.items()}
    title = "Does a row depend on what surrounds it?"
    yield {
        "title": title,
        "check": "INVAR",
        "svg": grid_svg(Grid(axes, list(found), words, kinds), title=title, prefix=f"{ids}-i-"),
        "heads": ["changed", "dtype", "outcome", "largest difference", "bound", "stage"],
        "rows": [
            [
                axis,
                dtype,
                words[axis, dtype],
                *(shown(each.get(key)) for key in ("largest difference", "bound", "stage")),
            ]
            for axis, dtype, each in seen
        ],
        "right": False,
    }


def _empty_rows(report, ids):
    found = {
        d: facts["empty row table"].value for d, facts in report.profile.items() if "empty row table" in facts
    }
    if not any(found.values()):
        return
    kept = {(each["case"], dtype): each for dtype, cases in found.items() for each in cases}
    cases = list(dict.fromkeys(case for case, _ in kept))
    words = {
        place: str(each["output"]) + (f", lse {each['lse']}" if each.get("lse") is not None else "")
        for place, each in kept.items()
    }
    plain = {("ZERO", None), ("ZERO", "-inf")}
    kinds = {
        place: "good" if (each["output"], each.get("lse")) in plain else "fair"
        for place, each in kept.items()
    }
    title = "What rows without keys get"
    yield {
        "title": title,
        "check": "EMPTY",
        "svg": grid_svg(Grid(cases, list(found), words, kinds), title=title, prefix=f"{ids}-r-"),
        "heads": ["case", "dtype", "output", "lse"],
        "rows": [
            [case, dtype, shown(each["output"]), shown(each.get("lse"))]
            for (case, dtype), each in kept.items()
        ],
        "right": False,
    }
