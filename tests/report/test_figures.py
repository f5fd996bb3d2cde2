"""Every figure draws from the shipped records, each time the same, without missing runs."""

import dataclasses

import pytest

from relation.records import FILES
from report import data, figures

NEAREST = data.Setting("books", "nearest", ("10M", "30M"))


@pytest.fixture(scope="module")
def records():
    return data.load(NEAREST)


def test_every_figure_of_the_nearest_reading_is_drawn(records, tmp_path):
    drawn = figures.draw(records, tmp_path)
    assert drawn == [drawing.name for drawing in figures.ALL]
    texts = [(tmp_path / f"{name}.svg").read_text() for name in drawn]
    assert all("<svg" in text and ">nan" not in text for text in texts)
    assert "10M, 31 pairs: −0.0364" in (tmp_path / "pairs.svg").read_text()
    figures.draw(data.load(data.Setting("anchor", "scaled-sd-0.02")), tmp_path)
    assert "Exchange-only transport" in (tmp_path / "flow-by-layer.svg").read_text()


def test_figures_without_rows_are_left_out(records, tmp_path):
    empty = {name: getattr(records, name).iloc[:0] for name in FILES}
    (tmp_path / "pairs.svg").write_text("of an earlier report")
    assert figures.draw(dataclasses.replace(records, **empty), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_pair_with_one_log_is_left_out_of_the_losses(records, tmp_path):
    lost = records.losses.eval("scale == '30M' and variant == 'full' and seed == 43")
    figures.draw(dataclasses.replace(records, losses=records.losses[~lost]), tmp_path)
    text = (tmp_path / "loss-curves.svg").read_text()
    assert text.count("seed 43: ") == 1 and text.count("seed 42: ") == 2
