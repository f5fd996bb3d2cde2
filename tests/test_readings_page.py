"""The page of the readings, its frames, and what other pages and the document say of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from readings_records import BASES, TURNED, Invented, described, invented
from sites import content_of, write_report
from test_report_records import make_records
from test_site import Page

import report.figures
from relation.store.parquet import read_parquet
from report.figures import READINGS, draw_figures
from report.judge.readings_frames import NAMES, reading_rows
from report.render.content import gather
from report.render.document import render_document
from report.render.readings import ANSWERS, Readings, read_readings
from report.render.site import render_site
from report.values.readings import STATISTICS

DRAWN = tuple(f"readings-{k}" for k in ("final-nll", "advantage", "learning-rate", "start"))


def printed(records) -> Readings:
    rows = reading_rows(records)
    return read_readings(*(rows[name] for name in NAMES), [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The Parquet, some figures, the pages and report.tex of readings on which answers turn."""
    folder = tmp_path_factory.mktemp("readings")
    records = replace(make_records(), readings=invented(TURNED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report.figures, "DRAWINGS", report.figures.DRAWINGS[:1])
        figures = draw_figures(records, folder)
    figures += draw_figures(records, folder, [d for d in READINGS if d.name in DRAWN])
    write_report(records, folder, figures)
    render_site(content_of(records, folder), folder)
    render_document(gather(folder), folder)
    return folder


def text_of(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def test_the_page_has_every_statistic_reading_and_run(folder: Path) -> None:
    text = text_of(folder, "readings.html")
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {f"statistic-{statistic.name}" for statistic in STATISTICS} <= set(page.ids)
    assert {f"reading-{reading['name']}" for reading in described()} <= set(page.ids)
    for link in page.links:
        target, _, place = link.partition("#")
        if not target and place:
            assert place in page.ids, link
    assert not re.search(r"\bNone\b|\bnan\b|<NA>|object at", text)
    for reading in described():
        assert reading["paper"].replace("'", "&#39;") in text
    assert text.count("c0ffeec0ff") >= 26 * 6, "the commit of every run"
    assert all(f'id="figure-{name}"' in text for name in DRAWN)


def test_where_there_are_none_the_page_says_so_and_no_other_speaks_of_them(invented_report) -> None:
    assert "This campaign has no run of a reading" in text_of(invented_report, "readings.html")
    for name in ("index.html", "claims.html"):
        assert "turns on a reading" not in text_of(invented_report, name)
    assert 'id="finding"' not in text_of(invented_report, "index.html")
    files = [invented_report / f"{name}.parquet" for name in NAMES]
    assert not any(read_parquet(file).num_rows for file in files)


def test_the_overview_says_the_finding_before_the_claims(folder: Path) -> None:
    text = text_of(folder, "index.html")
    assert text.index('id="finding"') < text.index('id="claims"')
    assert 'href="readings.html">Readings of the paper' in text
    shown = text.split('id="figures"')[1]
    assert "readings-" not in shown and "readings-" not in text_of(folder, "figures.html")


def test_a_claim_that_turns_on_a_reading_is_marked_in_the_ledger(folder: Path) -> None:
    for name in ("index.html", "claims.html"):
        text = text_of(folder, name)
        assert 'href="readings.html#claim-1"' in text and 'href="readings.html#claim-9"' not in text
        assert "scaled-adam-eps" in text or name == "index.html"


def test_the_document_has_a_section_with_figures_and_tables(folder: Path) -> None:
    text = text_of(folder, "report.tex")
    section = text.split("\\section{Readings}")[1].split("\\section{Relation in two")[0]
    assert all(f"figures/{name}.pdf" in section for name in DRAWN)
    assert "U+" not in section, "every sign has its place in the type"
    assert "Claim 1 turns on a reading" in section and section.count("longtable}") == 6
    rest = text.replace(section, "")
    assert "figures/readings-" not in rest


def test_frames_hold_what_the_statistics_say() -> None:
    rows = reading_rows(invented())
    by_key = {(row["statistic"], row["reading"]): row for row in rows["readings"]}
    base = by_key["final-nll", "unscaled-sd-0.02"]
    assert base["mean"] == pytest.approx(-0.065) and base["n"] == 3 and base["holds"]
    assert base["low"] == pytest.approx(-0.081, abs=1e-4) and base["established"] is True
    assert base["paper"] == pytest.approx(-0.041168) and base["paper_inside"] is False
    assert [row["reading"] for row in rows["readings_choice"]] == [r["name"] for r in described()]
    one = next(r for r in rows["readings_choice"] if r["reading"] == "scaled-sd-torch")
    assert len(one["terms"]) == 8 and one["distance"] == pytest.approx(
        sum(term**2 for term in one["terms"])
    )
    assert one["absent"] == [] and not one["beside"] and one["candidate"]
    assert len(rows["readings_runs"]) == 26 * 2 + 2 * 2 * 2 + 3 * 2 * 2


def test_readings_without_their_base_are_shown(tmp_path: Path) -> None:
    own = tuple(r for r in described() if r["choice"] == "sd-torch")
    readings = replace(invented(Invented(keep=[r["name"] for r in own])), described=own)
    records = replace(make_records(), readings=readings)
    write_report(records, tmp_path, [])
    render_site(content_of(records, tmp_path), tmp_path)
    render_document(gather(tmp_path), tmp_path)
    page = text_of(tmp_path, "readings.html")
    assert all(f'id="reading-{r["name"]}"' in page for r in own) and 'id="practice"' not in page
    assert "unscaled-sd-torch" in text_of(tmp_path, "report.tex")


def test_partial_records_are_shown_as_far_as_they_go() -> None:
    found = printed(invented(Invented(seeds={BASES[0]: (142, 143)}, keep=BASES)))
    (curve,) = found.curves[1]
    assert [(value.reading, value.n) for value in curve.values] == [(BASES[0], 2), (BASES[1], 1)]
    assert curve.holding == "2 of 2"
    assert all(value.interval for value in curve.values), "one deviation serves both"
    absent = {row["reading"]: row["absent"] for row in found.readings}
    assert absent["scaled-adam-eps"] == [f"scaled-adam-eps/{v}/142" for v in ("mha", "full")]
    assert [found.ruling(row) for row in found.nearest[2:]] == ["no whole pair"] * 24


def test_without_a_second_seed_nothing_is_compared() -> None:
    found = printed(invented(Invented(seeds={})))
    (curve,) = found.curves[1]
    assert not any(value.interval or value.turns for value in curve.values)
    assert {v.answer for v in curve.values} == {ANSWERS[True, None], ANSWERS[False, None]}
    assert curve.established == "—"
    assert {v.against for v in curve.values} == {"the base", "not compared"}
    assert all(row["distance"] is None and row["terms"] == [] for row in found.readings)
    assert "not decided yet" in {found.ruling(row) for row in found.nearest}
    assert not found.turns and printed(None).curves == {} and not printed(None)


def test_differences_are_in_the_statistics_own_terms() -> None:
    """Ratios of ranks as times, of shares as times their odds, differences with their sign."""
    found = printed(invented())
    curves = {curve.name: curve for group in found.curves.values() for curve in group}
    told = {
        name: [v.difference for v in curve.values if v.difference] for name, curve in curves.items()
    }
    assert all(text.startswith("odds × ") for text in told["l0-self"])
    assert all(text.startswith("× ") for text in told["l0-anchor"])
    assert all(text[0] in "+−0" and "[" in text for text in told["final-nll"])
    assert told["pair-won"] == [] and curves["l0-self"].holding == "—"
