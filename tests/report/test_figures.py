"""Figures as strings: well formed, the same every time, words as words, and readable without colour."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from softcarry.numerics.experiments import Envelope, SumCurve
from softcarry.report.figures import (
    _HUES,
    Series,
    curve_svg,
    envelope_svg,
    error_curves,
    stagnation_svg,
    to_svg,
)
from softcarry.report.model import Curve

SVG = "{http://www.w3.org/2000/svg}"


def curve(order="sequential", fmt="bfloat16", distribution="uniform", error=(0.0, 0.01, 0.5)):
    return SumCurve(fmt, distribution, order, 256, (16, 256, 1024), error, error, 4, 0)


def measured(predicted=(0.001, 0.01, 0.6)):
    error = (0.002, 0.02, 0.7)
    return Envelope("bfloat16", "lognormal", 4, 8, (8, 2, 1), (1, 4, 8), error, error, predicted, 4, 0)


def words(svg):
    return [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]


def luminance(colour):
    def linear(channel):
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[k : k + 2], 16) / 255) for k in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_equal_input_gives_equal_bytes_without_a_date():
    first, second = (stagnation_svg([curve(), curve("pairwise")]) for _ in range(2))
    assert first == second
    assert "date" not in first.lower().split("</style>")[-1]
    assert first.startswith("<svg")
    assert first.rstrip().endswith("</svg>")


def test_words_are_text_and_the_figure_has_a_title_and_a_description():
    svg = stagnation_svg([curve(), curve("pairwise", error=(0.001, 0.002, math.inf))])
    root = ET.fromstring(svg)
    shown = words(svg)
    assert {"Running sums of uniform terms", "bfloat16, sequential", "bfloat16, pairwise", "terms n"} <= set(
        shown
    )
    assert {"drop index 256", "16", "1024", "100%", "0"} <= set(shown)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find(f"{SVG}title").text == "Running sums of uniform terms"
    assert "bfloat16, sequential 50% at 1024 terms" in root.find(f"{SVG}desc").text
    assert "bfloat16, pairwise overflow at 1024 terms" in root.find(f"{SVG}desc").text


def test_ink_follows_the_page_and_every_hue_is_seen_on_both_papers():
    svg = envelope_svg(measured())
    assert "#010203" not in svg
    assert "currentColor" in svg
    papers = re.findall(r"\.paper\{fill:(#\w{6})\}", svg)
    inks = re.findall(r"\.softcarry-figure\{color:(#\w{6})\}", svg)
    assert len(papers) == len(inks) == 2
    for paper, ink in zip(papers, inks, strict=True):
        assert contrast(paper, ink) >= 7
        # WCAG 2.2, success criterion 1.4.11.
        assert all(contrast(paper, hue) >= 3 for hue in _HUES)


def test_the_envelope_shows_the_cliff_and_the_prediction_where_there_is_one():
    with_one, without = words(envelope_svg(measured())), words(envelope_svg(measured(None)))
    assert {"A bfloat16 carry over 8 keys", "drop index 4", "predicted"} <= set(with_one)
    assert "predicted" not in without
    assert "carry updates n/Bc" in without


def test_an_audit_curve_is_drawn_beside_its_ceiling():
    svg = curve_svg(Curve("GROWTH of l", (64, 128), (1e-7, 2e-7), (1e-5, 2e-5), y_label="error / w"))
    assert {"GROWTH of l", "measured", "predicted ceiling", "keys n", "error / w"} <= set(words(svg))
    assert "predicted ceiling" not in words(curve_svg(Curve("l", (64,), (1e-7,))))


def test_markup_in_a_title_is_escaped():
    svg = to_svg(error_curves([], title='a < b & "c"', x_label="x"), description="<&>")
    root = ET.fromstring(svg)
    assert root.get("aria-label") == 'a < b & "c"'
    assert root.find(f"{SVG}desc").text == "<&>"


@pytest.mark.parametrize("y", [(0.0, 0.0), (math.inf, math.nan), (1.0, 1e-300)])
def test_errors_that_logarithms_do_not_like_are_drawn(y):
    svg = to_svg(error_curves([Series("s", (1, 2), y)], title="t", x_label="x"), description="d")
    ET.fromstring(svg)
    assert ("0" in words(svg)) == (0.0 in y)


def test_the_settings_of_the_caller_are_neither_used_nor_changed():
    import matplotlib

    plain = envelope_svg(measured())
    with matplotlib.rc_context({"font.size": 30.0, "svg.fonttype": "path", "lines.linewidth": 9.0}):
        assert envelope_svg(measured()) == plain
        assert matplotlib.rcParams["font.size"] == 30.0


def test_pyplot_is_not_loaded():
    code = (
        "import sys; from softcarry.report.figures import error_curves, to_svg;"
        "to_svg(error_curves([], title='t', x_label='x'), description='d');"
        "print('matplotlib.pyplot' in sys.modules, 'matplotlib' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]
