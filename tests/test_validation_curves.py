"""The picture of validation NLL over training, and how often the corpus was read."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_report_records import make_empty, make_records, without

from report.figures.drawing import NotDrawnError
from report.figures.validation import validation_curves
from report.judge.cells import build
from report.values.frames import CampaignRecords
from report.values.style import MHA, RELATION
from report.values.tables import TABLES

LOOKS = 4


def panels_of_10m(records: CampaignRecords) -> tuple:
    """The axes above and below in the first column, whose seeds are all there."""
    axes = validation_curves.draw(records).axes
    return axes[0], axes[len(axes) // 2]


def curves(axes) -> list:
    return [line for line in axes.lines if len(line.get_xdata()) == LOOKS]


def test_both_curves_and_their_paired_difference() -> None:
    """A thin line a seed and their mean, of either variant; the upper mean is dashed."""
    above, below = panels_of_10m(make_records())
    drawn = [tuple(line.get_ydata()) for line in curves(above)]
    assert len(drawn) == 8 and drawn.count((7, 6, 5, 4)) == 4
    means = [line for line in curves(above) if line.get_linewidth() > 1]
    assert [(line.get_color(), line.is_dashed()) for line in means] == [
        (MHA, False),
        (RELATION, True),
    ]
    differences = [[-0.001 * seed] * LOOKS for seed in (42, 43, 44, 43)]
    np.testing.assert_allclose([line.get_ydata() for line in curves(below)], differences)


def test_a_seed_without_its_pair_has_no_difference() -> None:
    _, below = panels_of_10m(without(make_records(), "probes", seed=43, variant="full"))
    assert len(curves(below)) == 3


def test_passes_over_the_corpus_are_marked() -> None:
    records = make_records()
    runs = records.runs.assign(epochs=2.5, trained_tokens=100_000)
    for axes in validation_curves.draw(replace(records, runs=runs)).axes:
        marks = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
        assert marks == [40_000, 80_000]


def test_nothing_is_drawn_before_anything_ran() -> None:
    with pytest.raises(NotDrawnError, match="no run of a pair"):
        validation_curves.draw(make_empty())


def test_the_caption_says_what_is_read_and_how_often() -> None:
    records = make_records()
    page = records.page | {"validations": 7, "validation_tokens": 12345}
    title = validation_curves.title(replace(records, page=page))
    assert "after each of 7 equal parts" in title and "first 12,345 tokens" in title


def passes_told(label: str, cells: pd.DataFrame) -> list[str]:
    """What a table's notes tell of passes."""
    (table,) = [table for table in TABLES if table.label == label]
    notes = table.notes_on(cells[cells["table"] == label])
    return [note.text for note in notes if "Passes" in note.text]


PASSES = {
    "main-results": "10M 1.5, 30M 3",
    "app-nll": "10M 1.5, 30M 3",
    "structural-ablations": "1.5",
    "app-ablation": "1.5",
    "app-hybrid": "3",
}


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    """Of runs that pass as often over their windows as their scale says."""
    records = make_records()
    passes = records.runs["scale"].map({"10M": 1.5, "30M": 3.0})
    return build(replace(records, runs=records.runs.assign(epochs=passes)), *PASSES)


@pytest.mark.parametrize(("label", "passes"), PASSES.items())
def test_tables_tell_how_often_the_runs_read_their_corpus(label, passes, cells) -> None:
    assert passes_told(label, cells) == [f"Passes over the training windows: {passes}."]


def test_runs_of_unlike_passes_show_as_a_range(cells: pd.DataFrame) -> None:
    other = (cells["column"] == "epochs") & cells["row"].str.endswith("/43")
    (note,) = passes_told("app-nll", cells.assign(value=cells["value"].mask(other, 2.0)))
    assert "10M 1.5 to 2" in note
