"""The printed report: tables in both forms, index, figures, from an invented campaign."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from test_report_records import make_empty, make_records

from report import latex, paper
from report.cells import build
from report.figures import draw_figures
from report.layout import Number
from report.numbers import difference_text, few_tokens, printed_text, value_text
from report.render import render_tables
from report.tables import TABLES

VOID = {"meta", "img", "br"}


@pytest.fixture(scope="module")
def records():
    return make_records()


@pytest.fixture(scope="module")
def cells(records):
    return build(records)


@pytest.fixture(scope="module")
def report(records, cells, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    render_tables(cells, records.page, draw_figures(records, folder), folder)
    return folder


def test_every_printed_value_reaches_both_forms(records, report):
    for table in TABLES:
        page = (report / "tables" / f"{table.label}.html").read_text()
        source = (report / "tables" / f"{table.label}.tex").read_text()
        for value in paper.load(table.label).values():
            if value.unit == "text":
                continue
            digits = value.printed.lstrip("+-")
            grouped = f"{int(digits.partition('.')[0]):,}" + "".join(digits.partition(".")[1:])
            assert digits in page or grouped in page, (table.label, value)
            assert digits in source or grouped in source, (table.label, value)


class _Tree(HTMLParser):
    """Checks nesting, and collects scripts, links, and the text of every table cell."""

    def __init__(self):
        super().__init__()
        self.stack, self.seen, self.cells, self.links, self.ids = [], set(), [], [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("href", "src") if name in attrs]
        self.ids.add(attrs.get("id"))
        if tag not in VOID:
            self.stack.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, f"{tag} closes out of order"

    def handle_data(self, data):
        if {"td", "th"} & set(self.stack):
            self.cells[-1] += data


@pytest.mark.parametrize("page", ["index", *(table.label for table in TABLES)])
def test_pages_are_well_formed_and_escaped(report, page):
    path = report / "index.html" if page == "index" else report / "tables" / f"{page}.html"
    tree = _Tree()
    tree.feed(path.read_text())
    assert tree.stack == [] and "script" not in tree.seen
    assert all(text.strip() for text in tree.cells)
    assert "Not comparable with the paper" in path.read_text()
    for link in tree.links:
        target, _, anchor = link.partition("#")
        assert "//" not in link
        assert (path.parent / target).exists() if target else anchor in tree.ids


@pytest.mark.parametrize("label", [table.label for table in TABLES])
def test_latex_is_balanced_and_escaped(report, label):
    source = (report / "tables" / f"{label}.tex").read_text()
    assert source.isascii()
    bare = re.sub(r"\\[\\{}$&#%_]", "", source)
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", source):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert open_environments == []
    assert rf"\label{{tab:{label}}}" in source and r"\toprule" in source
    assert r"\input" not in source and "Not comparable with the paper" in source


def test_long_contexts_keep_their_own_label(report):
    page = (report / "tables" / "app-linear-long.html").read_text()
    assert "64 (paper: 1,024)" in page and ">16,384<" in page


def test_a_comparable_campaign_carries_no_banner(tmp_path):
    records = make_records(comparable=True)
    render_tables(build(records), records.page, [], tmp_path)
    pages = [*tmp_path.glob("*.html"), *(tmp_path / "tables").iterdir()]
    assert len(pages) == 35
    assert not any("Not comparable" in page.read_text() for page in pages)


def test_hostile_words_print_as_themselves():
    assert latex.escape("a_b & 50% $x$") == r"a\_b \& 50\% \$x\$"
    assert latex.escape(r"\input{x}") == r"\textbackslash{}input\{x\}"
    assert latex.escape("[x] 猫") == "{[}x] {[}U+732B]"
    assert latex.formula("O(T^2 d)") == "$O(T^{2} d)$"
    assert latex.formula(r"\input{x}") == r"\textbackslash{}input\{x\}"


def test_numbers_keep_the_papers_digits():
    assert printed_text("841833.930", Number(grouped=True)) == "841,833.930"
    assert printed_text("-0.0412", Number()) == "−0.0412"
    assert value_text(0.0213, Number(2, significant=3), "5.24") == "0.0213"
    assert value_text(0.0302, Number(4), "+0.0320") == "+0.0302"
    assert value_text(-0.00001, Number(4), "-0.0412") == "0.0000"
    assert difference_text(-1.5, 5.0, Number(2, "%"), "%", "6.50") == "−1.50 pp"
    assert few_tokens(98_304) == "98.3K"


def test_figures_repeat_to_the_byte_and_are_well_formed(records, report, tmp_path):
    entries = draw_figures(records, tmp_path)
    for entry in entries:
        assert entry["file"] and entry["alt"] and not entry["reason"]
        again = (tmp_path / entry["file"]).read_bytes()
        assert again == (report / entry["file"]).read_bytes()
        ElementTree.fromstring(again)


def test_figures_without_data_are_named(tmp_path):
    records = make_empty()
    entries = draw_figures(records, tmp_path)
    assert all(entry["file"] is None and entry["reason"] for entry in entries)
    render_tables(build(records), records.page, entries, tmp_path)
    index = (tmp_path / "index.html").read_text()
    assert all(entry["name"] and "Not drawn" in index for entry in entries)
