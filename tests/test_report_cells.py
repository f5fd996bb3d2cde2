"""Cells: values, aggregation, differences, and what is missing."""

import math
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from test_report_records import HOSTILE, edited, make_empty, make_records, one, without

from relation.errors import InputError
from report.judge.cells import build
from report.judge.claims import judge_claims
from report.render.printed import print_table
from report.values import paper
from report.values.measured import Measured, absent
from report.values.tables import TABLES


def test_seventeen_tables_hold_every_printed_value(cells):
    assert len(TABLES) == 17
    for frame in (cells, build(make_empty())):
        for table in TABLES:
            ours = frame[frame["table"] == table.label]
            printed = dict(zip(zip(ours["row"], ours["column"], ours["statistic"], strict=True),
                               ours["paper"], strict=True))  # fmt: skip
            for key, value in paper.load(table.label).items():
                assert printed[key] == value.printed


def test_an_empty_campaign_has_no_value_and_says_so():
    cells = build(make_empty())
    assert not (cells["status"] == "ok").any()
    assert cells["value"].isna().all() and cells["text"].isna().all()
    assert (cells["reason"] != "").all()


def test_means_over_seeds(cells):
    mean = one(cells, "main-results", "10M", "full_nll", "mean")
    assert mean["value"] == pytest.approx(1.92)
    assert mean["n"] == 3 and len(mean["sources"]) == 3
    assert mean["difference"] == pytest.approx(1.92 - 1.6441)
    assert one(cells, "main-results", "10M", "full_nll", "sd")["value"] == pytest.approx(0.02)
    assert one(cells, "main-results", "10M", "delta")["value"] == pytest.approx(1.92 - 2.01)
    assert one(cells, "app-nll", "10M/43", "delta")["value"] == pytest.approx(1.92 - 2.01)
    assert one(cells, "app-ablation", "raw-x", "delta")["value"] == pytest.approx(2.11 - 1.92)


def test_a_mean_difference_prints_its_interval_signed(cells):
    """Differences of -0.10, -0.09 and -0.08: 4.303 standard errors of 0.01 / sqrt(3) each way."""
    ends = [one(cells, "main-results", "10M", "delta", end)["value"] for end in ("low", "high")]
    assert ends == pytest.approx([-0.09 - 0.02484, -0.09 + 0.02484], abs=1e-5)
    alone = cells[(cells["table"] == "main-results") & (cells["row"] == "100M")]
    assert set(alone[alone["column"] == "delta"]["statistic"]) == {"value"}
    for label, text in (("structural-ablations", "+0.1900 [+0.1652, +0.2148]"),
                        ("app-ablation", "+0.1900 [+0.1652, +0.2148]")):  # fmt: skip
        table = next(table for table in TABLES if table.label == label)
        (panel,) = print_table(table, cells[cells["table"] == label]).panels
        shown = [entry.text for row in panel.rows for line in row.lines for entry in line.entries]
        assert text in shown


def test_an_ablation_on_another_backend_is_told(records):
    reading = {"name": "backend_overrides", "question": "?", "value": "single-head on materialised"}
    page = records.page | {"assumptions": [*records.page["assumptions"], reading]}
    for frames, told in ((replace(records, page=page), True), (records, False)):
        labels = ("structural-ablations", "app-ablation")
        cells = build(frames, *labels)
        for table in TABLES:
            if table.label in labels:
                notes = [note.text for note in table.notes_on(cells[cells["table"] == table.label])]
                said = "On another backend than the rest: single-head on materialised."
                assert (said in notes) == told


def test_table_3_names_no_record_without_a_column(cells):
    passes = one(cells, "structural-ablations", "nll", "epochs")
    assert any("single-head" in source for source in passes["sources"])
    assert not any("no-givens" in source for source in passes["sources"])


def test_missing_seeds_are_counted_and_named(cells):
    mean = one(cells, "main-results", "30M", "mha_nll", "mean")
    assert mean["n"] == 2 and "44" in mean["reason"]
    single = one(cells, "main-results", "100M", "mha_nll", "sd")
    assert single["status"] == "not run" and "takes two" in single["reason"]
    absent = one(cells, "app-nll", "100M/44", "full")
    assert absent["status"] == "not run" and absent["reason"] == HOSTILE


def test_delta_of_uneven_seeds_rests_on_pairs(records):
    dropped = without(records, "runs", scale="10M", variant="mha", seed=44)
    cells = build(dropped, "main-results")
    delta = one(cells, "main-results", "10M", "delta")
    assert delta["value"] == pytest.approx(((1.9 - 2.0) + (1.92 - 2.01)) / 2)
    assert delta["n"] == 2 and "44" in delta["reason"]


def test_a_seed_of_the_paper_that_the_campaign_does_not_plan(records):
    page = records.page | {"seeds": [42, 43]}
    fewer = replace(without(records, "runs", seed=44), page=page, missing=records.missing.iloc[:0])
    cells = build(fewer, "app-ablation")
    absent = one(cells, "app-ablation", "raw-x", "seed_44")
    assert absent["status"] == "not run" and "none of this campaign's (42, 43)" in absent["reason"]
    assert one(cells, "app-ablation", "raw-x", "mean", "mean")["n"] == 2


def test_runs_that_are_not_there_are_counted(records):
    gone = [("10M", variant, seed, file) for variant in ("mha", "full") for seed in (42, 43)
            for file in ("record", "log")]  # fmt: skip
    missing = pd.DataFrame(
        {"kind": "run", "scale": scale, "variant": variant, "seed": seed, "status": "not run",
         "reason": f"there is no results/x/{scale}/{variant}/{seed}/{file}.parquet"}
        for scale, variant, seed, file in gone
    )  # fmt: skip
    kept = replace(records, missing=missing)
    rows = (("run",), "10M", ("mha", "full"))
    assert absent(kept, *rows).reason == "4 of 6 runs of 10M (mha, full) are not there"
    assert absent(kept, *rows, 42).reason == "2 of 2 runs are not there"
    assert absent(kept, ("run",), "10M", ("full",), 42).reason == "the run is not there"
    failed = missing.assign(status="failed", reason="loss nan")
    mixed = replace(records, missing=pd.concat([missing[:-2], failed[-2:]]))
    found = absent(mixed, *rows)
    assert found.reason == "3 of 6 runs of 10M (mha, full) are not there; loss nan"
    assert found.status == "failed"


def test_units_are_the_papers(cells):
    assert one(cells, "app-token-efficiency", "10M/42", "crossing")["value"] == pytest.approx(0.09)
    crossing = one(cells, "app-token-efficiency", "100M/42", "crossing")
    assert crossing["unit"] == "B tokens" and crossing["value"] == pytest.approx(9e-5)
    assert one(cells, "app-token-efficiency", "10M/42", "reduction")["value"] == pytest.approx(8.45)
    assert one(cells, "app-configs", "10M", "tokens")["text"] == "98.3K"


def test_a_crossing_never_reached_is_left_out_of_the_mean(cells):
    never = one(cells, "app-token-efficiency", "10M/43", "crossing")
    assert never["status"] == "not reached" and math.isnan(never["value"])
    mean = one(cells, "main-results", "10M", "token_reduction", "mean")
    assert mean["n"] == 2 and mean["value"] == pytest.approx(8.45)


def test_token_efficiency_says_what_its_measure_gives_mha_against_itself(cells):
    table = next(table for table in TABLES if table.label == "app-token-efficiency")
    of_table = cells[cells["table"] == table.label]
    (note,) = [note.text for note in table.notes_on(of_table) if "first crossing" in note.text]
    assert "30M: 1.23, 1.23% and −0.2500, +0.1250 nat/token" in note
    told = next(j for j in judge_claims(make_records()) if j.claim.number == 3)
    own = "MHA itself first reaches its final loss with 1.2% of the tokens left"
    assert any(own in row.note for row in told.evidence)


def test_flow_is_count_weighted_over_heads_and_layers_and_then_averaged_over_seeds(records):
    """A checkpoint whose layers, and a layer whose heads, rest on different numbers of samples."""
    head = {"scale": "10M", "variant": "full", "head": 1}
    flow = edited(records, "flow", head | {"seed": 43, "layer": 1}, count=12)
    tables = ("app-structural-layerwise", "app-structural-spectrum")
    cells = build(without(flow, "flow", **head, seed=44, layer=0), *tables)

    # Head 0 has 0.2 (layer + 1), head 1 twice that. Seed 43: its layer 1 is 0.4 x 4 + 0.8 x 12.
    second = [0.6, (0.4 * 4 + 0.8 * 12) / 16, 0.6]
    value = one(cells, "app-structural-layerwise", "10M/L1", "self.full")
    assert value["value"] == pytest.approx(100 * sum(second) / 3)
    whole = [
        (0.3 * 8 + 0.6 * 8 + 0.9 * 8) / 24,
        (0.3 * 8 + second[1] * 16 + 0.9 * 8) / 32,
        (0.2 * 4 + 0.6 * 8 + 0.9 * 8) / 20,
    ]
    value = one(cells, "app-structural-spectrum", "10M", "stable_rank.full")
    assert value["value"] == pytest.approx(sum(whole) / 3) and value["n"] == 3
    # Neither a mean of layer means nor one pool of all seeds gives that.
    layers = (0.6 + (0.3 + second[1] + 0.9) / 3 + (0.2 + 0.6 + 0.9) / 3) / 3
    pool = (whole[0] * 24 + whole[1] * 32 + whole[2] * 20) / 76
    assert all(abs(value["value"] - other) > 1e-3 for other in (layers, pool))
    assert value["low"] < value["value"] < value["high"]
    spread = one(cells, "app-structural-spectrum", "10M", "stable_rank_sd.full")
    assert math.isnan(spread["low"]) and math.isnan(spread["high"]) and math.isnan(spread["spread"])
    assert spread["value"] == pytest.approx(statistics.stdev(whole)) and spread["paper"] is None
    alone = one(cells, "app-structural-spectrum", "100M", "stable_rank_sd.full")
    assert alone["status"] == "no counterpart" and "one seed" in alone["reason"]
    ratio = one(cells, "app-structural-layerwise", "10M/L0", "effrank.ratio")
    assert ratio["value"] == pytest.approx((0.3 + 0.3 + 0.2) / 3 / 0.1)
    assert ratio["unit"] == "x"


def test_a_ratio_is_of_the_seeds_that_have_both_terms():
    over = Measured(2.0, n=2, by_seed={42: 1.0, 43: 3.0})
    below = Measured(3.0, n=2, by_seed={43: 2.0, 44: 4.0})
    found = over / below
    assert found.value == pytest.approx(1.5) and found.n == 1 and found.by_seed == {43: 1.5}
    apart = over / replace(below, by_seed={44: 4.0, 45: 2.0})
    assert apart.value is None and "no seed has both" in apart.reason
    assert (Measured(3.0, n=1) / Measured(2.0, n=1)).value == 1.5
    zero = over / replace(below, by_seed={43: 0.0, 44: 4.0})
    assert zero.status == "no counterpart"


def test_depth_that_the_campaign_lacks_or_adds(cells):
    beyond = one(cells, "app-structural-layerwise", "10M/L3", "self.mha")
    assert beyond["status"] == "no counterpart" and "has 3 layers" in beyond["reason"]
    assert one(cells, "relation_internal", "30M", "l2_self.full")["status"] == "no counterpart"
    deeper = one(cells, "app-structural-layerwise", "100M/L20", "self.mha")
    assert deeper["paper"] is None and deeper["value"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,column,value\n", "header"),
        ("row,column,statistic,value,unit\na,b,value,1,parsec\n", "unknown unit 'parsec'"),
        ("row,column,statistic,value,unit\na,b,median,1,nat/token\n", "unknown statistic 'median'"),
        ("row,column,statistic,value,unit\na,b,value,one,nat/token\n", "not a number"),
        (
            "row,column,statistic,value,unit\na,b,value,1,nat/token\na,b,value,2,nat/token\n",
            "given twice",
        ),
        ("row,column,statistic,value,unit\na,b,value,1\n", "5 filled fields"),
    ],
)
def test_a_damaged_file_of_printed_values_is_refused(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        paper.load("x", tmp_path)
    with pytest.raises(InputError, match="missing"):
        paper.load("y", tmp_path)
