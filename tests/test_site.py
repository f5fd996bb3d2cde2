"""The site, read as files: structure, escaping, links, gaps, and what lies behind a cell."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import pandas as pd
import pytest
from conftest import campaign
from further_records import further_campaign, with_further
from sites import content_of, write_report
from test_report_records import HOSTILE, make_empty, make_records

from relation.cli import main
from relation.pipeline.results import Results
from relation.store.parquet import read_origin, read_parquet, write_parquet
from report.figures import DRAWINGS
from report.judge.chosen import CHOSE
from report.judge.frames import CELLS, CLAIMS, page_origin
from report.render.compare import compare, render_comparison
from report.render.content import printed_tables
from report.render.document import render_document
from report.render.environment import duration, html_environment
from report.render.evidence import evidence_by_claim
from report.render.overview import PLANNED_BY
from report.render.pages import PAGES
from report.render.printed import FRESHNESS, VERDICTS
from report.render.shipped import differing, read_shipped
from report.render.site import records_by_source, render_site
from report.values import paper
from report.values.layout import SCALES
from report.values.numbers import significant
from report.values.tables import EVERY, TABLES

RECORD = "runs/10M/full/42/record.parquet"
VOID = {"meta", "img", "br", "link", "rect", "path", "line", "circle"}
OWN_SCRIPTS = {"report.js", "behind-data"}


class Page(HTMLParser):
    """Checks nesting, and collects scripts, links, ids and the text of every table cell."""

    def __init__(self, text: str):
        super().__init__()
        self.stack, self.cells, self.links, self.ids, self.scripts = [], [], [], [], []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        if tag == "script":
            self.scripts.append(given.get("src", given.get("id", "")).rpartition("/")[2])
        if tag not in VOID:
            self.stack.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag, f"{tag} closes out of order"

    def handle_data(self, data):
        if {"td", "th"} & set(self.stack):
            self.cells[-1] += data


@pytest.fixture
def folder(invented_report):
    return invented_report


@pytest.fixture(scope="module")
def pages(invented_report):
    folder = invented_report
    paths = [path for path in folder.rglob("*.html") if path.parent.name != "figures"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in paths}


def page_of(folder, name):
    return (folder / name).read_text(encoding="utf-8")


def behind(folder, label):
    """The JSON that a table's page holds."""
    found = re.search(r'id="behind-data">(.*?)</script>', page_of(folder, f"tables/{label}.html"))
    return json.loads(found.group(1))


def test_the_promised_pages_are_there(folder, records):
    assert all((folder / name).exists() for name in PAGES)
    assert {path.stem for path in (folder / "tables").glob("*.html")} == {t.label for t in EVERY}
    missing = records.missing[records.missing["kind"] == "run"]
    assert len(list((folder / "runs").glob("*.html"))) == len(records.runs) + len(missing)


def test_pages_are_well_formed_and_hold_no_script_from_data(pages):
    for path, page in pages.items():
        assert set(page.scripts) <= OWN_SCRIPTS, path
        assert len(page.ids) == len(set(page.ids)), path
        if path.parent.name == "tables" and "gap" not in page.ids:
            # Where a row has a verdict the cells without one are empty.
            assert any(text.strip() for text in page.cells)


def test_no_link_is_broken(folder, pages):
    for path, page in pages.items():
        for link in page.links:
            target, _, place = link.partition("#")
            if link == "data:,":
                continue
            assert "//" not in target, link
            other = (path.parent / unquote(target)).resolve() if target else path
            assert other.exists(), f"{path}: {link}"
            if place:
                assert unquote(place) in pages[folder / other.relative_to(folder)].ids, link


def test_no_page_shows_an_object_of_the_program(pages):
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"object at 0x|built-in method|\bNone\b|\bnan\b", text), path


def test_hostile_words_stand_on_the_pages_as_they_are(folder, pages):
    assert "<script>alert" not in "".join(path.read_text("utf-8") for path in pages)
    escaped = HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for name in (
        "index.html",
        "assumptions.html",
        "runs/10M-full-42.html",
        "runs/100M-mha-44.html",
    ):
        assert escaped in page_of(folder, name), name


def test_every_printed_value_is_on_its_page(folder):
    for table in TABLES:
        text = page_of(folder, f"tables/{table.label}.html")
        for value in paper.load(table.label).values():
            if value.unit == "text":
                continue
            digits = value.printed.lstrip("+-")
            grouped = f"{int(digits.partition('.')[0]):,}" + "".join(digits.partition(".")[1:])
            assert digits in text or grouped in text, (table.label, value)


def test_a_cell_opens_on_its_value_its_judgement_and_its_records(folder):
    data = behind(folder, "main-results")
    cell = data["cells"]["10M/full_nll"]
    assert cell["title"] == "Table 2 · 10M · Relation NLL ↓"
    (value,) = cell["values"]
    facts = dict(value["facts"])
    assert facts["Paper"] == "1.6441 ± 0.0124 nat/token" and facts["Here"].startswith("1.92 ± 0.02")
    assert facts["Difference"] == "+0.2759 nat/token" and facts["Seeds or measurements"] == "3"
    assert value["verdict"] == "not judged" and "3/48/8x6/96" in value["verdict_reason"]
    assert len(value["sources"]) == 3
    record = data["records"][value["sources"][0]]
    assert dict(record["facts"])["Commit"] == "c0ffee" and record["rerun"]
    assert record["page"] == "runs/10M-full-42.html"
    gap = data["cells"]["100M/delta"]["values"][0]
    assert gap["sources"]


def test_what_lies_behind_a_cell_reads_as_its_table_does(folder):
    """Intervals, whole numbers, percentage points, and no record for what a model does not have."""
    ratio = behind(folder, "efficient-relation")["cells"]["10M/fixed.speedup"]["values"][0]
    (interval,) = (text for label, text in ratio["facts"] if label == "95% interval")
    assert re.fullmatch(r"[\d.]+ to [\d.]+ x", interval)
    count, _ = behind(folder, "app-configs")["cells"]["10M/params.mha+params.full"]["values"]
    facts = dict(count["facts"])
    assert facts["Paper"] == "10,425,216 parameters"
    assert re.fullmatch(r"−[\d,]{9,} parameters", facts["Difference"])
    profile = behind(folder, "app-structural-sink-profile")["cells"]
    share, _ = profile["10M/sink_1.mha+sink_1.full"]["values"]
    facts = dict(share["facts"])
    assert facts["Paper"].endswith(" %") and facts["Difference"].endswith(" pp")
    (crossing, *_) = behind(folder, "app-token-efficiency")["cells"].values()
    assert dict(crossing["values"][0]["facts"])["Here"] == "0.00009 B tokens"
    cells = behind(folder, "app-structural-layerwise")["cells"]
    (absent,) = cells["10M/L5/effrank.ratio"]["values"]
    assert absent["sources"] == [] and "has 3 layers" in str(absent["facts"])


def test_a_run_names_every_table_that_rests_on_any_of_its_records(folder, tmp_path):
    content = content_of(further_campaign(), folder)
    record = next(row for row in content.provenance if row["source"] == RECORD)
    further = (RECORD.replace("record", "log"), "flow/10M/full/42.parquet")
    provenance = [*content.provenance, *(record | {"source": source} for source in further)]
    render_site(replace(content, provenance=provenance), tmp_path)
    used = set(re.findall(r"tables/([\w-]+)\.html", page_of(tmp_path, "runs/10M-full-42.html")))
    logs = {"main-results", "app-token-efficiency"}
    flows = {table.label for table in TABLES if table.label.startswith("app-structural")}
    assert logs | flows | {"app-nll", "relation_internal"} <= used
    assert not used & {"app-linear-long", "app-hybrid"}


def test_every_record_leads_to_what_shows_it(folder):
    content = content_of(further_campaign(), folder)
    run = next(row for row in content.provenance if row["kind"] == "run")
    log = {**run, "kind": "log", "source": "log.parquet"}
    probes = {**run, "kind": "probes", "source": "probes.parquet"}
    content = replace(content, provenance=[*content.provenance, log, probes])
    found = records_by_source(content, folder)
    page = found["log.parquet"]["page"]
    assert page == found[run["source"]]["page"] and (folder / page).exists()
    assert found["probes.parquet"]["page"] == "runs.html#probes.parquet"


def test_a_column_of_two_values_opens_on_both(folder):
    cells = behind(folder, "app-structural-routing")["cells"]
    names = [value["name"] for value in cells["10M/beyond_128.mha+beyond_128.full"]["values"]]
    assert names == ["beyond_128.mha", "beyond_128.full"]


@pytest.mark.parametrize("marks, said", [((), ""), (("a",), "a"), (("a", "b"), "a, b")])
def test_several_notes_of_a_cell_stand_apart(marks, said):
    template = '{% from "macros.html.j2" import notes_of %}{{ notes_of(marks) }}'
    shown = html_environment().from_string(template).render(marks=marks)
    assert re.sub(r"<.*?>", "", shown) == said
    assert Page(shown).links == [f"#note-{mark}" for mark in marks]


def test_the_first_page_names_the_texts(folder, tmp_path):
    content = content_of(further_campaign(), folder)
    assert "Trained on</dt>" not in page_of(folder, "index.html")
    first, *others = content.runs
    runs = [replace(first, texts=(HOSTILE, "ab" * 32)), *others]
    render_site(replace(content, runs=runs), tmp_path)
    shown = page_of(tmp_path, "index.html")
    assert re.search(rf"<dt>Trained on</dt><dd>&lt;.*<code>{'ab' * 32}</code></dd>", shown)


def test_gaps_are_named(folder):
    table = page_of(folder, "tables/app-linear-long.html")
    assert ">OOM<" in table and "64 (paper: 1,024)" in table and ">16,384<" in table
    assert "not run: " in page_of(folder, "runs.html")
    assert "Not run" in page_of(folder, "runs/100M-full-43.html")
    index = page_of(folder, "index.html")
    assert "What is missing" in index and "100M/full/43" in index
    assert index.index("What is missing") < index.index("Chosen by ") < index.index("100M/full/43")


def test_a_table_beyond_the_paper_without_a_value_is_one_line_and_a_command(folder):
    for label, choices in PLANNED_BY.items():
        page = page_of(folder, f"tables/{label}.html")
        assert "<table" not in page and f"--config {choices}</code>" in page, label
        absent = page_of(folder, "beyond.html").partition("Not measured here")[2]
        assert f'href="tables/{label}.html"' in absent
    assert "<table" in page_of(folder, "tables/beyond-self.html")


@pytest.mark.parametrize("label", PLANNED_BY)
def test_the_command_of_such_a_table_runs_what_it_holds(label):
    given = dict(word.split("=") for word in PLANNED_BY[label].split())
    found = campaign(given.pop("campaign"), **given)
    if label == "beyond-conversion":
        assert found.converted_runs
    else:
        assert {run.scale for run in found.runs} - set(SCALES)


def ship(folder, name, to, claims):
    """A shipped report with these verdicts on claims 1 and 2."""
    report = to / "published" / name / "report"
    shutil.copytree(folder, report)
    (report.parent / "SHA256SUMS").touch()
    rows = read_parquet(report / "claims.parquet", CLAIMS).to_pylist()
    for row in rows:
        row["verdict"] = claims.get(row["number"], "not tested")
    origin = read_origin(report / "claims.parquet")
    write_parquet(report / "claims.parquet", CLAIMS, rows, origin)


def test_shipped_reports_name_each_other_and_where_they_answer_otherwise(folder, tmp_path):
    ship(folder, "books", tmp_path, {1: "not reproduced", 2: "reproduced", 6: CHOSE})
    ship(folder, "conversion", tmp_path, {1: "reproduced", 2: "reproduced"})
    ship(folder, "readings", tmp_path, {})
    found = {}
    for name in ("books", "conversion", "readings"):
        results = Results(campaign(name), tmp_path)
        assert read_shipped(results) == []
        shipped = read_shipped(replace(results, shipped_only=True))
        assert [one.name for one in shipped if one.here] == [name] and len(shipped) == 3
        found[name] = shipped
    assert differing(found["books"]) == "Another verdict than here: conversion on claim 1."
    told = differing(found["conversion"])
    assert told.startswith("Other verdicts than in books: claim 1: here reproduced")
    assert "; claim 2" not in told and "there not reproduced" in told
    assert differing(found["readings"]) == ""

    content = replace(content_of(further_campaign(), folder), shipped=found["conversion"])
    site = tmp_path / "published" / "conversion" / "report"
    render_site(content, site)
    page = Page(page_of(site, "index.html"))
    beside = [link for link in page.links if link.startswith("../../")]
    assert len(beside) == 2 and all((site / link).exists() for link in beside)
    assert told in page_of(site, "index.html")
    assert "books</a> not reproduced" in page_of(site, "claims.html")
    render_document(content, site)
    assert "Shipped reports & " in page_of(site, "report.tex")


def test_a_campaign_without_any_result_renders(tmp_path):
    empty = make_empty()
    write_report(empty, tmp_path, [])
    absent = {"name": "paired-nll", "title": "Pairs", "alt": "", "file": None, "reason": HOSTILE}
    content = content_of(empty, tmp_path)
    render_site(replace(content, figures=[absent]), tmp_path)
    assert "Not drawn" in page_of(tmp_path, "figures.html")
    assert all(printed.measured == 0 for printed in content.tables)
    for label in ("main-results", "app-linear-long"):
        page = page_of(tmp_path, f"tables/{label}.html")
        assert "Nothing of it has been measured." in page and "Measured on" not in page
    page = page_of(tmp_path, "tables/beyond-self.html")
    assert "Not measured here" in page and "<code>snakemake --cores all --config" in page


def test_verdicts_and_freshness_show_by_word_and_by_class(folder, tmp_path):
    records = with_further(make_records(comparable=True))
    content = content_of(records, folder)
    given = content.cells
    cells = given.assign(
        verdict=[VERDICTS[i % 4] if paper else None for i, paper in enumerate(given["paper"])],
        tolerance=0.0125,
        freshness=[FRESHNESS[i % 3] for i in range(len(given))],
    )
    content = replace(
        content,
        page=page_origin(records, "cells")["page"],
        cells=cells,
        tables=printed_tables(cells),
    )
    claims = [
        row | {"verdict": verdict}
        for row, verdict in zip(
            content.claims,
            ("reproduced", "direction only", "not reproduced", "not tested") * 5,
            strict=False,
        )
    ]
    render_site(replace(content, claims=claims), tmp_path)
    table = page_of(tmp_path, "tables/app-nll.html")
    assert 'aria-label="outside"' in table and '<span class="differs">' in table
    assert "±" in table and ">stale</span>" in table and ">older code</span>" in table
    overview = page_of(tmp_path, "index.html")
    for verdict, kind in (("reproduced", "agrees"), ("direction only", "partly")):
        assert f'<span class="sign {kind}" role="img" aria-label="{verdict}"' in overview
    pages = [path.read_text("utf-8") for path in tmp_path.rglob("*.html")]
    assert not any("Not the paper's setting" in page for page in pages)


@pytest.mark.parametrize("notice, differences, said", [
    ("", "", ""),
    ("Read <this>.", "", "Read &lt;this&gt;."),
    ("Too small.", "10M has T = 64", "<strong>Not the paper's setting.</strong> Too small."),
    ("", "10M has T = 64", "<strong>Not the paper's setting.</strong> 10M has T = 64."),
])  # fmt: skip
def test_what_is_not_the_papers_is_told_with_or_without_a_notice(notice, differences, said):
    template = '{% from "macros.html.j2" import notice with context %}{{ notice(page) }}'
    shown = (
        html_environment()
        .from_string(template)
        .render(page={"notice": notice, "differences": differences})
    )
    assert shown.strip() == (f'<p class="notice" role="note">{said}</p>' if said else "")


def test_two_campaigns_stand_side_by_side(folder, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "report").mkdir(parents=True)
        for frame in ("cells", "claims"):
            target = tmp_path / name / "report" / f"{frame}.parquet"
            target.write_bytes((folder / f"{frame}.parquet").read_bytes())
    page = render_comparison(compare("one", "two", tmp_path))
    text = page.read_text(encoding="utf-8")
    tree = Page(text)
    assert set(tree.scripts) == {"report.js"} and HOSTILE not in text
    assert {table.label for table in TABLES} <= set(tree.ids)
    assert (page.parent / "style.css").exists() and (page.parent / "report.js").exists()
    row = re.search(r'<th scope="row">10M</th><td class="l">Relation NLL.*?</tr>', text, re.S)
    assert "1.6441" in row.group() and row.group().count("1.92 ± 0.02") == 2
    assert text.count("Not the paper's setting.") == 2


def test_a_comparison_counts_alike_on_page_and_terminal(folder, tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        shutil.copytree(
            folder, tmp_path / "results" / name / "report", ignore=shutil.ignore_patterns("figures")
        )
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "one", "two"]) == 0
    told = re.findall(r"^([\w-]+) +(\d+) +(\d+) +(\d+)$", capsys.readouterr().out, re.MULTILINE)
    page = page_of(tmp_path, "results/compare/one-two/index.html")
    shown = re.findall(r'<a href="#([\w-]+)">.*?' + 3 * r'<td class="r">(\d+)</td>', page)
    assert told == shown and len(shown) == len(TABLES)


def test_a_campaign_named_paper_is_told_from_the_paper(folder, tmp_path):
    """A header never says the same of the paper's column and of the campaign's."""
    content = content_of(further_campaign(), folder)
    render_site(replace(content, page=content.page | {"campaign": "paper"}), tmp_path)
    for name in ("index.html", "claims.html"):
        for header in re.findall(r"<thead>.*?</thead>", page_of(tmp_path, name), re.S):
            headed = re.findall(r"<th[^>]*>([^<]+)</th>", header)
            assert headed.count("paper") == headed.count("here") > 0
            assert "◇ paper, ● paper" not in header


def test_a_tables_csv_is_its_cells(folder):
    cells = read_parquet(folder / "cells.parquet", CELLS).to_pandas()
    explained = page_of(folder, "tables.html")
    for table in TABLES:
        found = pd.read_csv(folder / f"tables/{table.label}.csv", dtype=str, keep_default_na=False)
        asked = cells[cells["table"] == table.label]
        assert list(found["paper"]) == list(asked["paper"].fillna(""))
        assert [row.split("; ") if row else [] for row in found["sources"]] == [
            list(sources) for sources in asked["sources"]
        ]
        assert f'href="{table.label}.csv"' in page_of(folder, f"tables/{table.label}.html")
        for name in found:
            assert re.search(rf"<code>{name}</code></dt><dd>\w", explained)


def test_every_figure_has_a_few_words_on_the_first_page(folder):
    shown = page_of(folder, "index.html")
    for drawing in DRAWINGS:
        assert drawing.heading and f"<span>{drawing.heading}</span>" in shown


def test_evidence_shares_an_axis():
    row = {"claim": 1, "unit": "nat/token", "low": None, "high": None, "paper_n": None}
    rows = [row | {"paper": -0.04, "ours": -0.02}, row | {"paper": -0.01, "ours": None}]
    first, second = (entry["places"] for entry in evidence_by_claim(rows)[1])
    assert first["paper"] == 0 and first["zero"] == 100 and first["ours"] == 50
    assert second["paper"] == 75 and second["ours"] is None
    mixed = [rows[0], rows[1] | {"unit": "%"}]
    counts = [rows[0], rows[1] | {"paper_n": 9}]
    for others in (mixed, counts):
        assert [entry["places"] for entry in evidence_by_claim(others)[1]] == [None, None]


def test_numbers_and_times_read_as_a_person_writes_them():
    assert significant(-0.041168) == "−0.04117" and significant(12345.6, signed=True) == "+12,346"
    assert significant(0.0, signed=True) == "0" and significant(-7.394e-05) == "−0.00007394"
    assert significant(None) == "—" == significant(float("nan"))
    assert significant(1234.5678, 6) == "1,234.57" and significant(3e-13) == "3e−13"
    assert significant(float("inf")) == "inf"
    assert [duration(s) for s in (0.4, 12, 59.9, 320, 11_520)] == [
        "0.4 s", "12 s", "1 min 00 s", "5 min 20 s", "3 h 12 min",
    ]  # fmt: skip
