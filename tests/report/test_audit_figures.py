"""Curves and grids of an audit, and the evidence of a fault, as figures with words."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from contrasts import blend, contrast
from softcarry.report.audit_figures import FILL_OPACITY, Grid, curves_svg, grid_svg
from softcarry.report.evidence_figures import evidence_svg
from softcarry.report.figures import HUES
from softcarry.report.model import Curve, Finding

SVG = "{http://www.w3.org/2000/svg}"


def words(svg):
    return [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]


def described(svg):
    return ET.fromstring(svg).find(f"{SVG}desc").text


def evidence(**values):
    return evidence_svg(Finding("REF", "error", "m", values, "r", "float32"), "e-")


def test_a_curve_is_drawn_beside_its_ceiling():
    svg = curves_svg([Curve("GROWTH of l", (64, 128), (1e-7, 2e-7), (1e-5, 2e-5), y_label="error / w")])
    assert {"GROWTH of l", "measured", "predicted ceiling", "keys n", "error / w"} <= set(words(svg))
    assert "measured 1e-7 at 64 and 2e-7 at 128" in described(svg)
    assert "predicted ceiling" not in words(curves_svg([Curve("l", (64,), (1e-7,))]))


def test_curves_of_several_dtypes_share_a_figure():
    curves = [Curve("l", (64, 128), (1e-7, 2e-7), (1e-5, 2e-5), dtype=d) for d in ("float32", "float16")]
    assert {"float32", "float16", "ceiling, float32", "ceiling, float16"} <= set(words(curves_svg(curves)))


@pytest.mark.parametrize("measured", [(math.nan, math.inf), (0.0, 0.0), ()])
def test_curves_without_a_positive_error_are_drawn(measured):
    assert "l" in words(curves_svg([Curve("l", range(64, 64 + len(measured)), measured)]))


def grid():
    words = {("a < b", "float32"): "same", ("a < b", "float16"): "different", ("c", "float16"): "skipped"}
    kinds = dict(zip(words, ("good", "bad", "none"), strict=True))
    return Grid(["a < b", "c"], ["float32", "float16"], words, kinds)


def test_a_grid_says_in_words_what_its_hues_say():
    svg = grid_svg(grid(), title="Invariance", prefix="g-")
    assert sorted(words(svg)) == sorted(
        ["Invariance", "a < b", "c", "float32", "float16", "same", "different", "skipped"]
    )
    assert described(svg) == "a < b, float32: same; a < b, float16: different; c, float16: skipped."
    assert svg == grid_svg(grid(), title="Invariance", prefix="g-")


@pytest.mark.parametrize(("paper", "ink"), [("#ffffff", "#1f2328"), ("#0d1117", "#e6edf3")])
def test_words_are_readable_on_every_fill(paper, ink):
    channels = [int(ink[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    for hue in HUES[:3]:
        assert contrast(channels, blend(hue, paper, FILL_OPACITY)) >= 4.5


def test_sizes_that_fail_are_marks_on_an_axis():
    svg = evidence(error=2.0, failing={"n": [63, 64, 65], "d": [7]})
    assert {"failing", "n", "d", "size"} <= set(words(svg))
    assert described(svg) == "failing, n: 3 sizes from 63 to 65; d: 1 sizes from 7 to 7."


def test_numbers_under_names_are_bars_with_their_numbers():
    svg = evidence(ratios={"normal": 0.5, "positive_terms": 9000.0, "sink": math.nan})
    assert {"ratios", "normal", "positive terms", "9000", "0.5", "nan"} <= set(words(svg))


def test_a_list_of_numbers_is_bars():
    assert {"output", "[0]", "[3]", "inf"} <= set(words(evidence(output=[0.5, -1.0, 2.0, math.inf])))


@pytest.mark.parametrize(
    "value",
    [
        None, "words", 1.0, [1, 2, 3, 4], [1.0, 2.0], {"a": 1.0}, {"a": 1.0, "b": "x", "c": 2.0},
        [math.nan] * 5, [10**400] * 5, [1e308, -1e308, 1.0, 2.0], [5e-324, 1.0, 2.0, 3.0],
    ],
)  # fmt: skip
def test_what_is_no_figure_is_left_to_the_table(value):
    assert evidence(value=value) is None


@pytest.mark.parametrize("numbers", [[0.0] * 4, [-1.0, -2.0, -3.0, -4.0], [1e-200, 1.0, 1.0, 1e200]])
def test_numbers_of_any_sign_and_size_are_drawn(numbers):
    assert len(re.findall("<text", evidence(output=numbers))) >= 9
