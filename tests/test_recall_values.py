"""Associative recall and the cost to a loss as the report has them: planted effects, and none."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import pytest
from further_records import further_campaign
from test_report_records import make_empty, make_records, recall_training

from relation.store.layouts import PROBES, RECALL
from report.figures import DRAWINGS, draw_figures
from report.judge.cells import build
from report.render.printed import PrintedTable, print_table
from report.values.cost import COST, cost_to_a_loss
from report.values.frames import CampaignRecords
from report.values.layout import Table
from report.values.measured import Measured, Measurements, t_margin
from report.values.recall import RECALL as RECALL_TABLE
from report.values.recall import associative_recall

FIGURES = [drawing for drawing in DRAWINGS if drawing.name.startswith("beyond-recall")]


def with_recall(*trainings: list[dict], missing: tuple[str, ...] = ()) -> CampaignRecords:
    records = make_records()
    gaps = [
        {"kind": "recall", "scale": "", "variant": mixer, "seed": -1, "status": "not run"}
        | {"reason": f"there is no recall/{mixer}.parquet"}
        for mixer in missing
    ]
    rows = [row for rows in trainings for row in rows]
    return replace(
        records,
        recall=pd.DataFrame(rows, columns=[*RECALL.names, "source"]),
        missing=pd.concat([records.missing, pd.DataFrame(gaps)], ignore_index=True),
    )


def printed(table: Table, records: CampaignRecords) -> PrintedTable:
    cells = build(records)
    return print_table(table, cells[cells["table"] == table.label])


def texts(found: PrintedTable) -> dict[str, list[str]]:
    return {
        row.key: [entry.text for entry in row.lines[0].entries]
        for panel in found.panels
        for row in panel.rows
    }


# -- recall ----------------------------------------------------------------------------------------
def alike(share: float) -> dict[int, float]:
    return dict.fromkeys((2, 8, 16), share)


PLANTED = with_recall(
    recall_training("full", 64, 42, {2: 1.0, 8: 0.5, 16: 0.5}),
    recall_training("full", 64, 43, {2: 1.0, 8: 1.0, 16: 1.0}),
    recall_training("full", 64, 42, alike(0.0), learning_rate=1e-2, chosen=False),
    recall_training("mha", 64, 42, alike(0.5)),
    recall_training("mha", 64, 43, alike(0.5)),
    recall_training("full", 128, 42, alike(1.0)),
    [dict.fromkeys(RECALL.names) | {"mixer": "gla", "status": "UNAVAILABLE", "source": "g"}
     | {"reason": "it needs a GPU, and this device is cpu", "device": "cpu_0"}],
    missing=("linear",),
)  # fmt: skip


def test_accuracy_is_the_mean_of_the_tasks_at_the_chosen_rate() -> None:
    """Seed 42: 15 of 20 and 40 of 80; 43: all. What was not chosen counts nowhere."""
    accuracy = associative_recall(PLANTED)["full/64", "accuracy", "value"]
    assert accuracy.by_seed == pytest.approx({42: (0.75 + 0.5) / 2, 43: 1.0})
    assert accuracy.margin == pytest.approx(t_margin([0.625, 1.0]))
    found = texts(printed(RECALL_TABLE, PLANTED))
    assert found["full/64"][0] == "0.001" and found["full/64"][1] == "64,000"
    assert found["full/64"][2].startswith("81.2% [") and found["full/64"][4].startswith("75.0% [")
    assert found["full/128"][2:] == ["100.0%"] * 3, "one seed has no interval"


def test_where_mixers_are_alike_their_accuracies_are() -> None:
    same = {mixer: [recall_training(mixer, 64, seed, alike(0.7)) for seed in (42, 43)] for mixer in
            ("mha", "full")}  # fmt: skip
    found = texts(printed(RECALL_TABLE, with_recall(*same["mha"], *same["full"])))
    assert found["mha/64"] == found["full/64"]


def test_a_mixer_that_did_not_run_says_why() -> None:
    table = printed(RECALL_TABLE, PLANTED)
    assert texts(table)["gla"][2] == texts(table)["linear"][2] == "not run"
    told = " ".join(text for _, text in table.notes)
    assert "needs a GPU" in told and "no record is there" in told
    assert "kda" not in texts(table), "this campaign does not ask for it"
    assert not associative_recall(make_empty())


def test_recall_is_drawn_and_reads_its_records(tmp_path) -> None:
    drawn = draw_figures(PLANTED, tmp_path, FIGURES)
    assert len(drawn) == 2 and all(entry["file"] for entry in drawn)
    sources = {"recall/full.parquet", "recall/mha.parquet"}
    assert all(set(entry["sources"]) == sources for entry in drawn)
    (entry, _) = draw_figures(with_recall(missing=("full",)), tmp_path, FIGURES)
    assert "recall/full.parquet" in entry["reason"]
    assert not draw_figures(make_empty(), tmp_path, FIGURES)


# -- cost ------------------------------------------------------------------------------------------
LOOKS = (1000, 2000, 3000, 4000)


def with_curves(
    full: Mapping[int, list[float]], mha: list[float], rates: Mapping[str, float] = {}
) -> CampaignRecords:
    """Pairs of 10M by seed: validation NLL of Relation, and of MHA, at four looks."""
    records = make_records()
    rows = [
        dict.fromkeys(PROBES.names)
        | {"scale": "10M", "variant": variant, "seed": seed, "metric": "validation_nll"}
        | {"tokens": tokens, "value": value, "alike": True, "source": f"{variant}/{seed}.parquet"}
        for seed, curve in full.items()
        for variant, values in (("mha", mha), ("full", curve))
        for tokens, value in zip(LOOKS, values, strict=True)
    ]
    sides = records.throughput.assign(
        tokens_per_second=records.throughput["side"].map({"full": 300.0, "mha": 400.0, **rates})
    )
    return replace(records, probes=pd.DataFrame(rows), throughput=sides)


def value(found: Measurements, column: str) -> Measured:
    return found["10M", column, "value"]


def test_a_planted_saving_is_tokens_over_speed() -> None:
    """MHA ends at 4, which Relation crosses half way from 1000 to 2000, or at 3000, of 4000."""
    records = with_curves(
        {42: [5, 3, 2, 1], 43: [6, 5, 4, 3]}, [7, 6, 5, 4], {"full": 500.0, "mha-reference": 250.0}
    )
    found = cost_to_a_loss(records)
    assert value(found, "tokens.full").by_seed == pytest.approx({42: 0.375, 43: 0.75})
    assert value(found, "tokens.mha").value == 1.0
    assert value(found, "speed.flash").value == pytest.approx(1.25)
    assert value(found, "cost.flash").by_seed == pytest.approx({42: 0.3, 43: 0.6})
    assert value(found, "cost.flash").margin == pytest.approx(t_margin([0.3, 0.6]))
    assert value(found, "cost.other").value == pytest.approx(0.5625 / 2)
    # Its name comes of the rates, so a curve of older code does not make it older.
    assert set(value(found, "other").sources) == set(value(found, "speed.other").sources)
    line = texts(printed(COST, records))["10M"]
    assert line[0] == "2 of 2" and line[4].startswith("0.450×")


def test_equal_curves_at_equal_rates_cost_the_same() -> None:
    curve = [7, 6, 5, 4]
    found = cost_to_a_loss(with_curves({42: curve, 43: curve}, curve, {"full": 400.0}))
    assert value(found, "cost.flash").by_seed == {42: 1.0, 43: 1.0}
    assert value(found, "tokens.full").value == value(found, "tokens.mha").value


def test_a_pair_that_never_reaches_it_counts_as_the_whole_budget() -> None:
    early = {42: [7, 4, 3, 2], 43: [8, 7, 6, 5]}
    found = cost_to_a_loss(with_curves(early, [7, 6, 5, 4], {"full": 500.0}))
    share = value(found, "tokens.full")
    assert share.by_seed == {42: 0.5, 43: 1.0} and share.reason.endswith("budget: seeds 43")
    assert value(found, "cost.flash").by_seed == pytest.approx({42: 0.4, 43: 0.8})
    assert value(found, "reached").text == "1 of 2"
    nowhere = cost_to_a_loss(with_curves({43: early[43]}, [7, 6, 5, 4]))
    assert value(nowhere, "cost.flash").status == "not reached"


def test_what_is_not_there_says_so() -> None:
    records = make_records()
    alone = replace(records, throughput=records.throughput.iloc[:0])
    without = cost_to_a_loss(alone)
    assert value(without, "cost.flash").status == "not run"
    assert value(without, "tokens.full").status == "ok"
    half = replace(records, probes=records.probes[records.probes["variant"] == "mha"])
    assert value(cost_to_a_loss(half), "cost.flash").status == "not run"


def test_further_pairs_have_a_row() -> None:
    found = cost_to_a_loss(further_campaign())
    assert found["10M/further", "reached", "value"].n == 4
