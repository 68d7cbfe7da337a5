"""The page: self-contained, escaped, readable without sight or colour, small, and the same every time."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import softcarry.report
from contrasts import contrast
from report_examples import AXES, CASES, CHECKS, DTYPES, HOSTILE, full_report
from softcarry.report.html import render
from softcarry.report.kinds import KINDS
from softcarry.report.matrix import render as render_matrix
from softcarry.report.model import Finding, Report

STYLE = Path(softcarry.report.__file__).with_name("templates").joinpath("style.css").read_text()
VOID = {"meta", "br", "hr", "img", "link", "input"}
MEGABYTE = 1_000_000


class Page(HTMLParser):
    """Elements with their attributes, and the text outside of styles; refuses tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words, self.headings = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def one():
    return render([full_report(HOSTILE, source={"file": "a b.py", "line": 3})])


@pytest.fixture(scope="module")
def many():
    return render([full_report(), full_report("other"), Report(subject={"name": "bare"})])


def test_two_pages_of_one_report_are_equal(one):
    again = Report.from_json(full_report(HOSTILE, source={"file": "a b.py", "line": 3}).to_json())
    assert render([again]) == one


def test_everything_of_a_report_is_shown(one):
    text = Page(one).text
    for words in (
        f"{HOSTILE}: 48 errors, 3 warnings", "numpy 2.4, torch 2.13.0+cpu", "empty rows zero; lse empty -inf",
        "mask as attn_mask, scale", "a b.py, line 3", "top-left", *CHECKS, *DTYPES, *AXES, *CASES,
        "EMPTY is wrong: a < b", "mend <it>", 'q (1, 2, 4, 16), "EMPTY" & <b>', "positive: 90", "−inf",
        "normal: largest: 1.25; rms: nan", "within the bound", "MEAN_ALL", "can't be told", "50 %",
        "the kernel takes no dropout", "plain: abababababab…",
    ):  # fmt: skip
        assert words in text, words
    assert "0f0f" not in text
    for check in CHECKS:
        assert KINDS[check].question in text


def test_findings_tell_their_kind_of_fault_with_public_reports(one):
    page = Page(one)
    found = {anchor.get("href") for anchor in page.all("a")}
    for check in set(CHECKS) - {"REF", "DROP"}:
        assert KINDS[check].meaning in page.text
        assert {fault.url for fault in KINDS[check].faults} <= found
    assert not {fault.url for fault in KINDS["DROP"].faults} & found


def test_nothing_is_loaded_and_nothing_runs(one):
    page = Page(one)
    for tag, attributes in page.elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        address = attributes.get("href") or attributes.get("xlink:href") or "#"
        assert address.startswith("#") or (tag == "a" and address.startswith("https://"))
    assert not re.search(r"@import|url\((?!#)", one)
    (policy,) = (meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "name", [HOSTILE, '" onmouseover="x', "a$b$", "核", "{{ 7 * 7 }}", "a\x00\x1b[31m\ud800"]
)
def test_names_and_values_are_escaped(name):
    finding = Finding(name, "error", name, {name: name, "dict": {name: [name]}}, name, name)
    plain = full_report("mine", checks=("LSE",))
    report = Report(
        subject=plain.subject | {"name": name, "options": {name: name}, "arrays": name, "dtypes": [name]},
        findings=(finding,),
        profile={name: {name: plain.profile["float32"]["knee"]} | plain.profile["float32"]},
        environment={"cpu": name, "libraries": {name: name}},
    )
    page = Page(render([report, plain]))
    expected = re.sub("[\x00\x1b\ud800]", "\ufffd", name)
    assert expected in page.text
    assert page.all("script") == []
    assert not any("onmouseover" in attributes for _, attributes in page.elements)
    render([report, plain]).encode()


def test_ids_are_unique_and_links_lead_somewhere(one, many):
    for text in (one, many):
        page = Page(text)
        counts = Counter(a["id"] for _, a in page.elements if "id" in a)
        assert [each for each, count in counts.items() if count > 1] == []
        for _, attributes in page.elements:
            for name in ("href", "xlink:href", "aria-labelledby"):
                target = attributes.get(name, "#")
                if name == "aria-labelledby" and name in attributes:
                    assert target in counts
                elif target.startswith("#") and target != "#":
                    assert target[1:] in counts
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(counts)


def test_a_reader_without_sight_gets_the_same(one, many):
    for text in (one, many):
        page = Page(text)
        assert page.all("html") == [{"lang": "en"}]
        assert len(page.all("main")) == 1
        first = next(attributes for tag, attributes in page.elements if tag == "a")
        assert first["href"] == "#content"
        assert page.headings[0] == 1
        assert page.headings.count(1) == 1
        assert all(
            after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False)
        )
        assert len(page.all("caption")) == len(page.all("table")) > 0
        assert all(head.get("scope") in ("row", "col") for head in page.all("th"))
        assert len(page.all("details")) == len(page.all("summary")) > 0
        assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
        assert text.count("<desc>") == len(page.all("svg")) > 0
        # What scrolls can be reached by key and has a name.
        wide = [a for a in page.all("div") if a.get("class") == "wide"]
        assert all(a["tabindex"] == "0" and a["role"] == "region" for a in wide)
        assert all(a.get("aria-label") or a.get("aria-labelledby") for a in wide)


def schemes():
    """The colours by name: of the light page, the dark and the printed one."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    return [dict(re.findall(r"--([a-z]+): (#\w{6});", block)) for block in blocks]


def test_every_colour_of_words_is_readable_on_every_paper():
    assert len(schemes()) == 3
    for colours in schemes():
        for paper in ("paper", "raised"):
            for words in ("ink", "dim", "link", "pass", "fail", "warn", "skip"):
                assert contrast(colours[words], colours[paper]) >= 4.5, (words, paper)
    assert set(re.findall(r"[^-\w]color: ([^;}]+)", STYLE)) <= {
        "var(--ink)", "var(--dim)", "var(--link)", "var(--pass)", "var(--fail)", "var(--warn)", "var(--skip)",
        "#000000",
    }  # fmt: skip


def test_light_dark_and_print_are_styled(one):
    for rule in ("@media (prefers-color-scheme: dark)", "@media print", "break-inside: avoid"):
        assert rule in one
    (scheme,) = (m["content"] for m in Page(one).all("meta") if m.get("name") == "color-scheme")
    assert scheme == "light dark"


def test_a_page_with_everything_is_small(one):
    assert len(one.encode()) < MEGABYTE / 2


def test_twelve_subjects_are_a_small_page_with_a_figure_each():
    # Of 19 checks a library fails a few, seldom nearly all as the full report does.
    checks = CHECKS[:6]
    page = render([full_report(f"kernel {number}", checks) for number in range(12)])
    assert len(page.encode()) < MEGABYTE
    assert page.count("<svg") == 12


def test_many_subjects_stand_side_by_side(many):
    text = Page(many).text
    assert "Subjects side by side" in text
    assert "bare: nothing found" in text
    row = re.search(r'<th scope="row"><a href="#subject-2">other</a></th>(.*?)</tr>', many, re.DOTALL)[1]
    cells = re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
    assert len(cells) == len(CHECKS)
    assert 'href="#subject-2-EMPTY"' in cells[0]
    assert "FAIL" in cells[0]
    assert ">1</a>" in cells[0]  # three dtypes, one finding
    assert "pass" in cells[CHECKS.index("REF")]
    assert "<a" not in cells[CHECKS.index("REF")]
    assert 'id="subject-2"' in many


def test_one_subject_has_a_matrix_where_it_is_asked_for(one):
    assert "Subjects side by side" not in one
    assert "Subjects side by side" in render_matrix([full_report()])
    assert render_matrix([full_report(), full_report("b")]) == render([full_report(), full_report("b")])


def test_a_page_of_many_subjects_has_a_short_title():
    small = [Report(subject={"name": name}) for name in "abcd"]
    assert "<title>softcarry audit: 4 subjects</title>" in render(small)
    assert "<title>softcarry audit: a, b</title>" in render(small[:2])


def test_what_environments_have_in_common_stands_above():
    reports = [full_report(), full_report("b")]
    changed = Report(subject=reports[1].subject, environment=reports[1].environment | {"cpu": "another"})
    page = render([reports[0], changed])
    header = page[: page.index("<main")]
    assert "Linux x86_64" in header
    assert "another" not in header
    assert "<dt>cpu</dt><dd>another</dd>" in page


def test_a_control_is_said_to_be_one():
    text = Page(render([full_report("c", control=True)])).text
    assert "wrong on purpose" in text
    assert "(a control, not counted)" in text


def test_a_report_of_nothing_is_a_page():
    assert "bare: nothing found" in Page(render([Report(subject={"name": "bare"})])).text
