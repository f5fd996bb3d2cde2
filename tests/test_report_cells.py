"""Cells: values, aggregation, differences, and what is missing."""

import math
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from test_report_records import HOSTILE, make_empty, make_records

from relation.errors import InputError
from relation.records import CampaignRecords
from report import paper
from report.cells import build
from report.claims import judge_claims
from report.compute.fit import power_fit
from report.compute.measured import Measured, absent
from report.compute.structure import ratio
from report.compute.systems import ATTENTION_NAME, efficient
from report.figures.systems import throughput
from report.layout import Note
from report.tables import TABLES
from report.view import print_table


@pytest.fixture(scope="module")
def records():
    return make_records()


@pytest.fixture(scope="module")
def cells(records):
    return build(records)


def one(cells, table, row, column, statistic="value"):
    found = cells[
        (cells["table"] == table)
        & (cells["row"] == row)
        & (cells["column"] == column)
        & (cells["statistic"] == statistic)
    ]
    assert len(found) == 1, (table, row, column, statistic)
    return found.iloc[0]


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
    runs = records.runs
    dropped = (runs["scale"] == "10M") & (runs["variant"] == "mha") & (runs["seed"] == 44)
    cells = build(CampaignRecords(**(vars(records) | {"runs": runs[~dropped]})))
    delta = one(cells, "main-results", "10M", "delta")
    assert delta["value"] == pytest.approx(((1.9 - 2.0) + (1.92 - 2.01)) / 2)
    assert delta["n"] == 2 and "44" in delta["reason"]


def test_a_seed_of_the_paper_that_the_campaign_does_not_plan(records):
    page = records.page | {"seeds": [42, 43]}
    kept = records.runs[records.runs["seed"] < 44]
    missing = records.missing.iloc[:0]
    cells = build(
        CampaignRecords(**(vars(records) | {"page": page, "runs": kept, "missing": missing}))
    )
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
    (note,) = [note.text for note in table.notes(of_table) if "first crossing" in note.text]
    assert "30M: 1.23, 1.23% and −0.2500, +0.1250 nat/token" in note
    told = next(j for j in judge_claims(make_records()) if j.claim.number == 3)
    assert any("MHA reaches its own final loss 1.2% early" in row.note for row in told.evidence)


def test_flow_is_count_weighted_over_heads_and_layers_and_then_averaged_over_seeds(records):
    """A checkpoint whose layers, and a layer whose heads, rest on different numbers of samples."""
    flow = records.flow.copy()
    here = (flow["scale"] == "10M") & (flow["variant"] == "full")
    lost = here & (flow["seed"] == 44) & (flow["head"] == 1) & (flow["layer"] == 0)
    flow.loc[here & (flow["seed"] == 43) & (flow["head"] == 1) & (flow["layer"] == 1), "count"] = 12
    cells = build(CampaignRecords(**(vars(records) | {"flow": flow[~lost]})))

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
    found = ratio(over, below)
    assert found.value == pytest.approx(1.5) and found.n == 1 and found.by_seed == {43: 1.5}
    apart = ratio(over, replace(below, by_seed={44: 4.0, 45: 2.0}))
    assert apart.value is None and "no seed has both" in apart.reason
    assert ratio(Measured(3.0, n=1), Measured(2.0, n=1)).value == 1.5
    zero = ratio(over, replace(below, by_seed={43: 0.0, 44: 4.0}))
    assert zero.status == "no counterpart"


def test_depth_that_the_campaign_lacks_or_adds(cells):
    beyond = one(cells, "app-structural-layerwise", "10M/L3", "self.mha")
    assert beyond["status"] == "no counterpart" and "has 3 layers" in beyond["reason"]
    assert one(cells, "relation_internal", "30M", "l2_self.full")["status"] == "no counterpart"
    deeper = one(cells, "app-structural-layerwise", "100M/L20", "self.mha")
    assert deeper["paper"] is None and deeper["value"] == pytest.approx(10.0)


def test_systems_ratios_and_missing_memory(cells):
    assert one(cells, "efficient-relation", "10M", "fixed.speedup")["value"] == pytest.approx(2.5)
    assert one(cells, "app-prod-fr-fa", "10M", "ratio")["value"] == pytest.approx(0.75)
    memory = one(cells, "app-prod-fr-fa", "10M", "allocated.mha")
    assert memory["status"] == "no counterpart" and "cpu_0" in memory["reason"]
    assert one(cells, "app-prod-fr-fa", "30M", "ratio")["status"] == "not run"


def test_the_throughput_figure_prints_the_tables_ratios(records):
    rates = records.throughput
    # The others slow down from round to round: the median ratio is not that of the rates.
    slowing = [
        [rate] * 3 if side == "full" else [rate, rate / 2, rate / 4]
        for side, rate in zip(rates["side"], rates["tokens_per_second"], strict=True)
    ]
    changed = replace(records, throughput=rates.assign(samples=slowing))
    found = efficient(changed)
    titles = [axes.get_title("left") or axes.get_title() for axes in throughput(changed).axes]
    for terms, column, decimals in (
        ("FlashRelation / materialised", "fixed.speedup", 2),
        ("Relation / MHA", "matched.ratio", 3),
    ):
        told = f"\n{terms}\n{found['10M', column, 'value'].value:.{decimals}f}×"
        assert any(title.startswith("10M") and title.endswith(told) for title in titles)
    assert found["10M", "fixed.speedup", "value"].value == pytest.approx(5)


def test_the_throughput_figure_has_a_bar_for_every_side_that_table_5_has(records):
    panels = [axes for axes in throughput(records).axes if axes.get_title().startswith("10M")]
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in panels]
    assert names == [["Materialised", "FlashRelation"], ["MHA", "MHA, reference", "Relation"]]
    rates = records.throughput
    compiled = rates[(rates["benchmark"] == "fixed") & (rates["side"] == "reference")].assign(
        side="reference-compiled", tokens_per_second=123_000.0, status="PASS"
    )
    more = replace(records, throughput=pd.concat([rates, compiled]))
    bars = throughput(more).axes[0]
    assert [text.get_text() for text in bars.texts] == ["100", "123K", "250"]
    named = replace(records, throughput=rates.replace({"backend": {"reference": "cudnn"}}))
    panels = [axes for axes in throughput(named).axes if axes.get_title().startswith("10M")]
    for name in (panels[1].get_yticklabels()[1].get_text(),
                 efficient(named)["10M", "peers.name", "value"].text):  # fmt: skip
        assert name == ATTENTION_NAME["cudnn"]


def test_a_systems_table_names_operators_backends_and_precision_once(cells):
    table = next(table for table in TABLES if table.label == "efficient-relation")
    (told,) = [note.text for note in table.notes(cells[cells["table"] == table.label])
               if "FP32" in note.text]  # fmt: skip
    assert told.startswith("In FP32, the paper’s in BF16: ") and "Full Relation on" in told
    assert told.endswith("tiled, FlashRelation’s tiling in plain PyTorch, not the kernel.")


def test_long_contexts_meet_by_position(cells):
    assert one(cells, "app-linear-long", "1024", "context")["value"] == 64
    assert one(cells, "app-linear-long", "16384", "throughput")["status"] == "oom"
    assert one(cells, "app-linear-long", "16384", "status")["text"] == "OOM"
    extra = one(cells, "app-linear-long", "+16384", "throughput")
    assert extra["value"] == 70.0 and extra["paper"] is None


def test_fewer_contexts_than_the_paper(records):
    kept = records.throughput[records.throughput["position"] < 5]
    cells = build(CampaignRecords(**(vars(records) | {"throughput": kept})))
    beyond = one(cells, "app-linear-long", "32768", "throughput")
    assert beyond["status"] == "no counterpart" and "5 contexts" in beyond["reason"]


def test_fitted_powers(cells):
    noisy = power_fit([(1, 1.0), (2, 4.4), (4, 15.0), (8, 66.0)])
    assert noisy.low < 2 < noisy.high and noisy.low < noisy.exponent < noisy.high
    assert power_fit([(1, 1.0), (2, 8.0)]).exponent == pytest.approx(3)
    assert power_fit([(1, 1.0), (2, 8.0)]).low is None
    assert power_fit([(4, 1.0), (4, 2.0)]) is None
    state = one(cells, "token-mixing-complexity", "linear", "state_exponent")
    assert state["value"] == pytest.approx(0) and state["n"] == 7
    assert one(cells, "token-mixing-complexity", "full", "complexity")["text"] == "T^2.00"


def test_linear_relation_is_told_to_be_timed_untrained_and_how_it_trained(records):
    labels = ("token-mixing-complexity", "app-linear-steady", "app-linear-long")
    tables = {table.label: table for table in TABLES if table.label in labels}

    def told(**frames):
        cells = build(replace(records, **frames))
        notes = {label: " ".join(note.text for note in table.notes(cells[cells["table"] == label]))
                 for label, table in tables.items()}  # fmt: skip
        return {label: ("timed untrained" in note, "Hybrid runs" in note, note)
                for label, note in notes.items()}  # fmt: skip

    gpu = {name: getattr(records, name).assign(device="NVIDIA X")
           for name in ("throughput", "complexity")}  # fmt: skip
    assert all(note[:2] == (False, False) for note in told().values()), "nothing holds for a CPU"
    untrained = records.logs[records.logs["variant"] != "hybrid"]
    assert all(note[:2] == (True, False) for note in told(**gpu, logs=untrained).values())
    for *there, note in told(**gpu).values():
        # Of 48 updates, whose rates are 1000, 1001 and so on, 1 to 4 and 36 to 48.
        assert there == [True, True] and "30M, seed 42: 1,000 → 1,040; 30M, seed 43" in note


def test_a_token_without_a_trend_and_contexts_out_of_memory_are_told(records):
    (table,) = (table for table in TABLES if table.label == "token-mixing-complexity")
    times = records.complexity.assign(device="NVIDIA X")
    slower = (times["operator"] == "mha") & (times["context"] == 4096)
    for end in ("low", "high"):
        times.loc[slower, f"decode_seconds_{end}"] += 1e-3
    lost = (times["operator"] == "full-reference") & (times["context"] > 1024)
    times.loc[lost, "status"] = "OOM"
    cells = build(replace(records, complexity=times))
    notes = table.notes(cells[cells["table"] == table.label])
    assert Note("Out of memory: Full, materialised at T = 2,048, 4,096.", below=True) in notes
    (flat,) = [note for note in notes if note.text.startswith("No trend of a token’s time")]
    assert flat.text.endswith("overlap (Full, materialised; FlashRelation; Linear Relation).")
    assert not flat.below


def test_what_a_table_was_measured_under_is_said_once(records):
    throughput = records.throughput.copy()
    long = throughput["benchmark"] == "linear-long"
    busy = long & (throughput["context"] > 64)
    throughput["kernels"] = [["scan_kernel", "scan_kernel"]] * len(throughput)
    throughput.loc[busy, "disturbed"] = "busy"
    throughput.loc[busy & (throughput["context"] > 8000), "disturbed"] = "hot"
    cells = build(CampaignRecords(**(vars(records) | {"throughput": throughput})))
    found = one(cells, "app-linear-long", "setting", "disturbed")["text"].split("; ")
    assert found == [
        "linear-long 30M at T = 128, 256, 512, 1,024, 2,048, 4,096: busy",
        "linear-long 30M at T = 8,192, 16,384: hot",
    ]
    sides = ", ".join(throughput[long & (throughput["status"] == "PASS")]["side"].unique())
    kernels = one(cells, "app-linear-long", "setting", "kernels")["text"]
    assert kernels == f"{sides}: scan_kernel"
    assert one(cells, "app-linear-steady", "setting", "raw")["text"] == "20"
    matched = one(cells, "app-prod-fr-fa", "setting", "kernels")["text"]
    assert matched == "mha, full, mha-reference: scan_kernel"


def test_what_values_mean_is_said_before_a_table_and_what_they_were_measured_under_below(records):
    systems = records.page["systems"]
    table = next(table for table in TABLES if table.label == "app-linear-steady")
    for precision, above in (("bf16", ["The raw"]), ("fp32", ["In FP32", "The raw"])):
        page = records.page | {"systems": systems | {"precision": [precision]}}
        driver = records.throughput.assign(driver="1.2")
        cells = build(CampaignRecords(**(vars(records) | {"page": page, "throughput": driver})))
        printed = print_table(table, cells[cells["table"] == table.label])
        assert [remark[:7] for remark in printed.remarks][: len(above)] == above
        assert "GPU driver 1.2." in printed.conditions


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
