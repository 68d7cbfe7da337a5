"""Figures as strings: well formed, the same every time, words as words, and readable without colour."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from contrasts import contrast
from softcarry.numerics.experiments import Envelope, SumCurve
from softcarry.report.figures import (
    HUES,
    Series,
    envelope_svg,
    error_curves,
    stagnation_svg,
    to_svg,
)

SVG = "{http://www.w3.org/2000/svg}"


def curve(order="sequential", fmt="bfloat16", distribution="uniform", error=(0.0, 0.01, 0.5)):
    return SumCurve(fmt, distribution, order, 256, (16, 256, 1024), error, error, 4, 0)


def measured(predicted=(0.001, 0.01, 0.6)):
    error = (0.002, 0.02, 0.7)
    return Envelope("bfloat16", "lognormal", 4, 8, (8, 2, 1), (1, 4, 8), error, error, predicted, 4, 0)


def words(svg):
    return [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]


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
        assert all(contrast(paper, hue) >= 3 for hue in HUES)


def test_the_envelope_shows_the_cliff_and_the_prediction_where_there_is_one():
    with_one, without = words(envelope_svg(measured())), words(envelope_svg(measured(None)))
    assert {"A bfloat16 carry over 8 keys", "drop index 4", "predicted"} <= set(with_one)
    assert "predicted" not in without
    assert "carry updates n/Bc" in without


def test_markup_in_a_title_is_escaped():
    svg = to_svg(error_curves([], title='a < b & "c"', x_label="x"), description="<&>")
    root = ET.fromstring(svg)
    assert root.get("aria-label") == 'a < b & "c"'
    assert root.find(f"{SVG}desc").text == "<&>"


def test_a_dollar_sign_starts_no_formula_and_a_letter_without_a_glyph_no_warning():
    svg = to_svg(
        error_curves([Series("a $\\x", (1, 2), (0.1, 0.2))], title="$核$", x_label="x"), description="d"
    )
    assert {"$核$", "a $\\x"} <= set(words(svg))


def test_ids_begin_with_the_prefix_and_are_referred_to():
    figure = error_curves([Series("s", (1, 2), (0.1, 0.2))], title='<a id="b">', x_label="x")
    svg = to_svg(figure, description="d", prefix="one-")
    ids = re.findall(r'<[^>]* id="([^"]*)"', svg)
    assert ids
    assert all(each.startswith("one-") for each in ids)
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) == set(ids)
    assert '<a id="b">' in words(svg)


def test_a_prediction_has_the_hue_of_its_group_or_that_of_the_words():
    measured, other = Series("m", (1, 2), (0.1, 0.2), 0), Series("n", (1, 2), (0.3, 0.4), 1)
    predicted = Series("p", (1, 2), (0.5, 0.6), 1, "dotted")
    alone, paired = (
        to_svg(error_curves(lines, title="t", x_label="x"), description="d").count(HUES[1])
        for lines in ([measured, predicted], [measured, other, predicted])
    )
    assert alone == 0
    assert paired > 0


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
