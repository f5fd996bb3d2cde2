"""The report as a reader has it: in headless Chromium, light and dark, wide, narrow and printed."""

import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from browser import PHONE, browser, why_not
from conftest import ROOT, snakemake
from test_report_records import HOSTILE

from relation.store.parquet import read_parquet
from report.judge.frames import CELLS
from report.render.content import printed_tables
from report.render.pages import PAGES
from report.values.style import MHA, MHA_ON_DARK, RELATION

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a browser is here")

# Every image that failed, every reference with the text of its element, and every id.
CONTENTS = """
for (const image of document.images) image.loading = "eager";
await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
const address = (e) => new URL(e.href?.baseVal ?? e.href ?? e.src, location).href;
return {
  broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
  links: [...document.querySelectorAll("[href], iframe, script[src]")].map(address),
  ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
};
"""

# For a moment after a page has loaded, Chromium 150 tells of a layout that is not the last.
FITS = "return document.documentElement.scrollWidth <= innerWidth"

# By how many pixels each table or figure is wider than its place.
BEYOND_THE_EDGE = (
    "return [...document.querySelectorAll('.scroll')].map((e) => e.scrollWidth - e.clientWidth)"
)

# A table as its headers tell it: [row headers, column header, text] a cell, spans unrolled.
BY_HEADERS = """
const table = arguments[0], grid = [];
[...table.rows].forEach((row, y) => {
  grid[y] ??= [];
  let x = 0;
  for (const cell of row.cells) {
    while (grid[y][x]) x++;
    for (let dy = 0; dy < cell.rowSpan; dy++)
      for (let dx = 0; dx < cell.colSpan; dx++) (grid[y + dy] ??= [])[x + dx] = cell;
  }
});
const told = [];
const say = (cell) => cell.innerText.replace(/\\s+/g, " ").trim();
for (const row of grid.slice(table.tHead.rows.length))
  row.forEach((cell, x) => {
    if (cell.tagName !== "TD") return;
    const heads = row.filter((other) => other.tagName === "TH" && other.scope.startsWith("row"));
    const columns = grid.slice(0, table.tHead.rows.length).map((line) => line[x]);
    told.push([heads.map(say), [...new Set(columns)].map(say).join(" "), say(cell)]);
  });
return told;
"""


@pytest.fixture(scope="module")
def tab():
    with browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def as_at_first(tab):
    tab.look()


@pytest.fixture
def folder(invented_report):
    return invented_report


def every_page(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.html")) if path.parent.name != "figures"]


def check_pages(tab, folder: Path) -> None:
    """Every page loads, says nothing, fits a phone, shows its images, and leads somewhere."""
    tab.look(PHONE)
    found = {}
    for page in every_page(folder):
        tab.open(page)
        found[page] = tab.run(f"return (async () => {{{CONTENTS}}})()")
        assert tab.complaints() == [], page
        assert found[page]["broken"] == [], page
        assert tab.becomes(FITS, True, seconds=2), f"{page} is wider than a phone"
    for page, contents in found.items():
        for link in set(contents["links"]):
            address = urlparse(link)
            if address.scheme == "data":
                continue
            assert address.scheme == "file" and not address.netloc, f"{page}: {link}"
            target = Path(unquote(address.path))
            assert target.exists(), f"{page}: {link}"
            if address.fragment:
                assert unquote(address.fragment) in found[target]["ids"], f"{page}: {link}"


def told(tab, page: Path) -> dict[tuple[tuple[str, ...], str], str]:
    """Every cell of a page's tables by its headers."""
    tab.open(page)
    cells = {}
    for table in tab.driver.find_elements("css selector", "table"):
        for rows, column, text in tab.run(BY_HEADERS, table):
            key = (tuple(rows), column)
            assert key not in cells, f"{page}: {key} names two cells"
            cells[key] = text
    return cells


def test_every_page_loads_and_leads_somewhere(tab, folder):
    check_pages(tab, folder)


def test_figures_are_large_enough_to_read_on_a_phone(tab, folder):
    tab.look(PHONE)
    tab.open(folder / "figures.html")
    widths = "return [...document.images].map((e) => e.getBoundingClientRect().width)"
    assert min(tab.run(widths)) >= 800  # of 8.4 inches: words of 8 pt have 10 pixels


def test_a_report_that_is_not_beside_this_one_is_named_without_a_link(tab, folder, tmp_path):
    there = tmp_path / "results" / "here" / "report"
    shutil.copytree(folder, there)
    shutil.copytree(folder, tmp_path / "results" / "beside" / "report")
    page = there / "index.html"
    links = (
        f'<a class="beside" href="../../{n}/report/index.html">{n}</a>' for n in ("beside", "gone")
    )
    text = page.read_text(encoding="utf-8").replace(
        "</h1>", f'</h1><p id="named">{" ".join(links)}</p>'
    )
    page.write_text(text, encoding="utf-8")
    tab.open(page)
    named = "return [...document.querySelectorAll('#named a')].map((e) => e.textContent).join()"
    assert tab.becomes(named, "beside")
    assert tab.run("return document.getElementById('named').textContent") == "beside gone"
    tab.complaints()


def test_a_table_is_read_by_its_headers(tab, folder):
    cells = told(tab, folder / "tables" / "app-nll.html")
    assert cells[("10M", "42", "paper"), "MHA NLL"] == "1.688823"
    assert cells[("10M", "42", "this campaign"), "MHA NLL"] == "2.000000"
    assert cells[("10M", "42", "difference"), "MHA NLL"] == "+0.311177"
    assert cells[("100M", "44", "this campaign"), "Full−MHA"].startswith("not run")
    assert cells[("30M", "Mean ± SD", "paper"), "Full Relation NLL"] == "1.285044 ± 0.013584"


def test_a_cell_opens_by_mouse_and_keyboard_and_closes(tab, folder):
    page = folder / "tables" / "app-nll.html"
    tab.open(page)
    tab.run("document.querySelectorAll('a.behind')[1].click()")
    shown = "return document.getElementById('behind').open"
    words = "return document.getElementById('behind').innerText"
    assert tab.run(shown)
    assert "Table 11 · 10M, 42 · Full Relation NLL" in tab.run(words)
    assert "c0ffee" in tab.run(words) and "snakemake --config a=<b>" in tab.run(words)
    assert "#10M/42/full" in unquote(tab.driver.current_url)
    tab.press("\ue014")  # right arrow: the next cell
    assert "Full−MHA" in tab.run(words)
    tab.press("\ue00c")  # escape
    assert tab.becomes(shown, False)
    focus = "return decodeURIComponent(document.activeElement.hash)"
    assert tab.becomes(focus, "#10M/42/delta"), "the focus is where the reader was"
    tab.press("\ue015")  # down arrow: the cell below
    assert tab.becomes(focus, "#10M/43/delta")
    tab.press("\ue007")  # enter
    assert tab.becomes(shown, True)


def test_a_cell_has_an_address(tab, folder):
    tab.open(folder / "tables" / "app-nll.html", "100M/44/full")
    words = tab.run("return document.getElementById('behind').innerText")
    assert "100M, 44" in words and HOSTILE in words


def test_a_command_is_copied(tab, folder):
    tab.open(folder / "runs" / "10M-full-42.html")
    copied = tab.run(
        """return (async () => {
        let copied = null;
        navigator.clipboard.writeText = async (text) => { copied = text; };
        document.querySelector("button.copy").click();
        await new Promise(requestAnimationFrame);
        return [copied, document.querySelector("button.copy").textContent];
        })()"""
    )
    assert copied == ["snakemake --config a=<b>", "Copied"]


def test_the_keyboard_reaches_the_content_first_and_every_section(tab, folder):
    tab.open(folder / "index.html")
    tab.press("\ue004")
    assert tab.run("return document.activeElement.className") == "skip"
    order = "return [...document.querySelectorAll('.bar a')].map((a) => a.tabIndex)"
    assert tab.run(order) == [0] * len(PAGES)
    scrolls = "return [...document.querySelectorAll('.scroll')].every((e) => e.tabIndex === 0)"
    assert tab.run(scrolls)


def luminance(colour: str) -> float:
    """Of an rgb(...) colour, by WCAG."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_in_either_scheme_and_operators_have_their_colours(tab, folder, scheme):
    tab.look(scheme=scheme)
    tab.open(folder / "index.html")
    paper = luminance(tab.run("return getComputedStyle(document.body).backgroundColor"))
    assert (paper > 0.9) == (scheme == "light")
    for chosen in ("h1", ".muted", ".number", "main a", ".sign", ".notice"):
        words = luminance(
            tab.run(f"return getComputedStyle(document.querySelector('{chosen}')).color")
        )
        lighter, darker = max(words, paper), min(words, paper)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, chosen
    for name, colour in (
        ("--mha", MHA if scheme == "light" else MHA_ON_DARK),
        ("--relation", RELATION),
    ):
        style = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])"
        assert tab.run(style, name).strip().lower() == colour.lower()


def test_a_page_prints_light_whole_and_without_its_bar(tab, folder):
    page = folder / "tables" / "main-results.html"
    tab.look(scheme="dark", media="print")
    tab.open(page)
    assert luminance(tab.run("return getComputedStyle(document.body).backgroundColor")) == 1.0
    hidden = "return getComputedStyle(document.querySelector('.bar')).display"
    assert tab.run(hidden) == "none"
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert tab.run("return document.querySelector('details').open")
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert not tab.run("return document.querySelector('details').open")
    wide = tab.run(BEYOND_THE_EDGE)
    assert len(wide) > 0 and tab.print().startswith(b"%PDF")


def test_the_widest_tables_keep_their_last_column_on_a_desktop(tab, folder):
    for label in ("main-results", "beyond-self"):
        tab.open(folder / "tables" / f"{label}.html")
        assert max(tab.run(BEYOND_THE_EDGE)) <= 0, label


@pytest.mark.campaign
@pytest.mark.skipif(
    not (ROOT / "results/smoke/report/index.html").exists(),
    reason="the smoke campaign has not been run here; `make` runs it",
)
def test_the_smoke_report_is_read_page_by_page(tab):
    snakemake(ROOT, "--cores", "all", "--config", "campaign=smoke")
    folder = ROOT / "results" / "smoke" / "report"
    check_pages(tab, folder)
    cells = read_parquet(folder / "cells.parquet", CELLS).to_pandas()
    (printed,) = (p for p in printed_tables(cells) if p.table.label == "main-results")
    read = told(tab, folder / "tables" / "main-results.html")
    row = printed.panels[0].rows[0]
    for line in row.lines:
        name = {"campaign": "this campaign"}.get(line.kind, line.kind)
        assert read[("10M", name), "Δ"] == line.entries[6].text
