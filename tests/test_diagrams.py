"""Figures 1 and 2: the files that are kept are what the script draws, and what reports show."""

import pytest
from test_report_records import make_empty

from docs.figures import draw
from report.figures import diagrams, draw_figures


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    draw.draw(folder)
    return folder


@pytest.mark.parametrize("name", ["overview", "self-exchange"])
def test_the_kept_file_is_what_the_script_draws_and_the_report_shows(name, drawn, tmp_path):
    entries = {entry["name"]: entry for entry in draw_figures(make_empty(), tmp_path)}
    assert entries[name]["file"] == f"figures/{name}.svg" and entries[name]["sources"] == []
    for file in (f"{name}.svg", f"{name}.pdf"):
        kept = (diagrams.DRAWN / file).read_bytes()
        assert kept == (drawn / file).read_bytes(), "run python -m docs.figures.draw"
        assert kept == (tmp_path / "figures" / file).read_bytes()


def test_the_printed_rows_of_the_flow_sum_to_one():
    assert draw.Example(draw.FEW, seed=30).flow.round(2).sum(axis=1) == pytest.approx(1)


def test_pairs_alternate_and_close_the_circle_as_the_caption_says():
    assert draw.pairing(0) == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert draw.pairing(1) == [(2, 3), (4, 5), (6, 7), (8, 1)]
