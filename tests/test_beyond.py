"""The section beyond the paper: an effect that was planted is found, and none where none was."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from examined_records import LAYOUTS, MODELS, SEEDS, examinations, key
from paper_records import paper_records

from report.figures import beyond, draw_figures
from report.judge.cells import build
from report.render.printed import print_table
from report.values.copying import COPYING
from report.values.frames import CampaignRecords
from report.values.length import LENGTH
from report.values.measured import Measurements
from report.values.self_use import SELF_USE
from report.values.tables import BEYOND


def records(effect: float, **left_out: tuple[str, ...]) -> CampaignRecords:
    """The paper's records with examinations of so large an effect; left_out: variants by frame."""
    base = paper_records()
    like = base.provenance.iloc[0].to_dict()
    known = [
        like | key(scale, variant, seed, kind) | {"kind": kind}
        for kind, (scale, variant), seed in product(LAYOUTS, MODELS, SEEDS)
    ]
    provenance = pd.concat([base.provenance, pd.DataFrame(known)], ignore_index=True)
    return replace(base, provenance=provenance, **examinations(effect, left_out))


def measured(records: CampaignRecords) -> Measurements:
    """The values of all tables beyond the paper that examinations fill; no key is in two."""
    found = Measurements()
    for table in (COPYING, LENGTH, SELF_USE):
        found |= table.measure(records)
    return found


@pytest.fixture(scope="module")
def planted() -> Measurements:
    return measured(records(0.1))


@pytest.fixture(scope="module")
def null() -> Measurements:
    return measured(records(0.0))


EFFECTS = ("copy.delta", "length.4", "without.self.first")


@pytest.mark.parametrize("column", EFFECTS)
def test_a_planted_effect_is_found_and_a_planted_null_is_not(planted, null, column: str) -> None:
    mean = planted["10M/full", column, "value"]
    assert mean.value == pytest.approx(0.1, abs=0.001) and mean.value - mean.margin > 0
    mean = null["10M/full", column, "value"]
    assert abs(mean.value) < 0.001 and abs(mean.value) <= mean.margin + 1e-9


def test_what_stands_in_the_tables(planted) -> None:
    def cell(row: str, column: str) -> float:
        return planted[row, column, "value"].value

    assert cell("30M/full", "copy.near") == pytest.approx(0.6, abs=0.001)
    assert cell("30M/full", "copy.induction") == pytest.approx(0.9)
    assert planted["30M/mha", "copy.layer", "value"].text == "L1, L1, L1"
    assert cell("10M/full", "length.2") == cell("10M/full", "length.frozen") == 0
    assert cell("10M/full", "length.removed") == pytest.approx(0.2)
    assert cell("10M/full", "self.again.less") == pytest.approx(-0.1)
    assert abs(cell("10M/full", "without.self.later")) < 0.001
    for column, reason in (
        ("length.frozen", "no layer of it has a count correction"),
        ("without.count.first", "no such layer has this part"),
    ):
        found = planted["10M/mha", column, "value"]
        assert (found.status, found.reason) == ("no counterpart", reason)


def test_a_scale_that_the_paper_has_not_has_rows_of_its_own_below_the_others() -> None:
    base, own = records(0.1), "10M28pc"
    frames = {
        name: frame.assign(scale=frame["scale"].replace("10M", own))
        for name in ("provenance", *LAYOUTS)
        if (frame := getattr(base, name)) is not None
    }
    trained = [
        row | {"scale": own if row["scale"] == "10M" else row["scale"]}
        for row in base.page["trained"]
    ]
    renamed = replace(base, page=base.page | {"trained": trained}, **frames)
    for table in (COPYING, LENGTH, SELF_USE):
        there = table.measure(base)
        for (row, column, statistic), found in table.measure(renamed).items():
            row = row.replace(own, "10M")
            assert found.value == there[row, column, statistic].value, (row, column)
        panels = print_table(table, build(renamed, table.label)).panels
        for panel in panels:
            labels = [row.labels[0] for row in panel.rows]
            assert own in labels and labels == sorted(labels, reverse=True)


def test_later_tokens_leave_out_where_the_short_windows_begin() -> None:
    base = records(0.1)
    begins = base.lengths["reading"].eq("apart") & base.lengths["first"].mod(1024).eq(0)
    worse = base.lengths["nll"] + begins * 1.0
    found = LENGTH.measure(replace(base, lengths=base.lengths.assign(nll=worse)))
    assert found["10M/mha", "length.4", "value"].value == pytest.approx(0.1 - 1 / 4)
    assert found["10M/mha", "length.4.later", "value"].value == pytest.approx(0.1)


def test_a_corpus_of_short_documents_says_so() -> None:
    """The records are there and hold no row: no window is longer than trained."""
    found = measured(records(0.1, lengths=("mha", "full", "hybrid")))
    reason = found["10M/full", "length.8", "value"].reason
    assert reason == "no document of the validation split is so long"


def test_no_value_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("report.judge.cells.EVERY", BEYOND)
    cells = build(records(0.1))
    assert len(cells) and cells["verdict"].isna().all() and cells["paper"].isna().all()


def test_a_campaign_without_examinations_has_no_row_and_no_figure(tmp_path: Path) -> None:
    bare = paper_records()
    assert measured(bare) == {}
    assert draw_figures(bare, tmp_path, (beyond.copying, beyond.length, beyond.self_use)) == []


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    drawings = (beyond.copying, beyond.length, beyond.self_use)
    for entry in draw_figures(records(0.1), tmp_path, drawings):
        assert entry["file"] and len(entry["sources"]) == len(MODELS) * len(SEEDS)
    drawn = (tmp_path / "figures/beyond-length.svg").read_text(encoding="utf-8")
    assert "Hybrid Relation" in drawn and "position (training contexts)" in drawn
    lacking = records(0.1, lengths=("mha", "full", "hybrid"))
    (entry,) = draw_figures(lacking, tmp_path, (beyond.length,))
    assert entry["file"] is None and "no window longer than trained" in entry["reason"]
