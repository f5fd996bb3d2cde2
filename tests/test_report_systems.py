"""Cells of the systems tables: rates, ratios, and what they were measured under."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from test_report_records import edited, one

from relation.store.layouts import DECODE
from report.figures.systems import throughput
from report.judge.cells import build
from report.render.printed import print_table
from report.values.layout import Note
from report.values.measured import select
from report.values.statistics import power_fit
from report.values.systems import ATTENTION_NAME, efficient
from report.values.tables import TABLES


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
    titles = [axes.get_title("left") or axes.get_title() for axes in throughput.draw(changed).axes]
    for terms, column, decimals in (
        ("FlashRelation / materialised", "fixed.speedup", 2),
        ("Relation / MHA", "matched.ratio", 3),
    ):
        told = f"\n{terms}\n{found['10M', column, 'value'].value:.{decimals}f}×"
        assert any(title.startswith("10M") and title.endswith(told) for title in titles)
    assert found["10M", "fixed.speedup", "value"].value == pytest.approx(5)


def test_the_throughput_figure_has_a_bar_for_every_side_that_table_5_has(records):
    panels = [axes for axes in throughput.draw(records).axes if axes.get_title().startswith("10M")]
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in panels]
    assert names == [["Materialised", "FlashRelation"], ["MHA", "MHA, reference", "Relation"]]
    rates = records.throughput
    compiled = rates[(rates["benchmark"] == "fixed") & (rates["side"] == "reference")].assign(
        side="reference-compiled", tokens_per_second=123_000.0, status="PASS"
    )
    more = replace(records, throughput=pd.concat([rates, compiled]))
    bars = throughput.draw(more).axes[0]
    assert [text.get_text() for text in bars.texts] == ["100", "123K", "250"]
    named = replace(records, throughput=rates.replace({"backend": {"reference": "cudnn"}}))
    panels = [axes for axes in throughput.draw(named).axes if axes.get_title().startswith("10M")]
    for name in (panels[1].get_yticklabels()[1].get_text(),
                 efficient(named)["10M", "peers.name", "value"].text):  # fmt: skip
        assert name == ATTENTION_NAME["cudnn"]


def test_a_systems_table_names_operators_backends_and_precision_once(cells):
    table = next(table for table in TABLES if table.label == "efficient-relation")
    (told,) = [note.text for note in table.notes_on(cells[cells["table"] == table.label])
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
    cells = build(replace(records, throughput=kept), "app-linear-long")
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
        cells = build(replace(records, **frames), *labels)
        notes = {
            label: " ".join(note.text for note in table.notes_on(select(cells, table=label)))
            for label, table in tables.items()
        }
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
    few = records.logs[records.logs["update"] <= 9]
    assert all(note[:2] == (True, False) for note in told(**gpu, logs=few).values()), "no spans"
    runs = records.runs.assign(processes=2)
    shared = "30M, seed 42, each of 2 processes: 501 → 520;"
    assert all(shared in note for *_, note in told(**gpu, runs=runs).values())


def test_rates_in_training_are_of_each_process_and_of_whole_pairs(records, cells):
    runs = records.runs.copy()
    alone, shared = 43, (runs["scale"] == "10M") & (runs["seed"] == 42)
    runs.loc[shared, "processes"] = 4
    runs.loc[(runs["scale"] == "10M") & (runs["seed"] == 44), "processes"] = math.nan
    runs.loc[(runs["scale"] == "10M") & (runs["variant"] == "mha") & shared, "processes"] = 2
    logs = records.logs.copy()
    # Medians of updates at rates of 1000, 1001 and so on: 1023.5, of Relation twice that.
    logs.loc[logs["variant"] == "full", "tokens_per_second"] *= 2
    gpu = records.throughput.assign(device="NVIDIA X")
    found = build(replace(records, runs=runs, logs=logs, throughput=gpu), "app-prod-fr-fa")

    def value(column, scale="10M"):
        return one(found, "app-prod-fr-fa", scale, column)

    assert value("processes")["text"] == "1, 2, 4"
    assert value("run_rate.mha")["value"] == pytest.approx((1023.5 / 2 + 1023.5) / 2)
    assert value("run_rate.full")["value"] == pytest.approx((2047 / 4 + 2047) / 2)
    assert value("run_rate.full")["n"] == 2, "seed 44 was trained by several numbers of processes"
    ratio = value("run_ratio")
    assert (ratio["value"], ratio["n"]) == (pytest.approx(2), 1), f"only seed {alone} is a pair"
    assert all(f"/{alone}/" in source for source in ratio["sources"])
    benchmark = value("throughput.full")["value"]
    share = value("run_share.full")["value"]
    assert share == pytest.approx(100 * (2047 / 4 + 2047) / 2 / benchmark)
    assert value("run_share.full", "30M")["status"] == "not run", "there is no benchmark"
    on_cpu = one(cells, "app-prod-fr-fa", "10M", "run_share.mha")
    assert on_cpu["status"] == "no counterpart" and "CPU" in on_cpu["reason"]
    ends = [
        one(cells, "app-prod-fr-fa", "10M", "run_ratio", end)["value"] for end in ("low", "high")
    ]
    assert ends == [pytest.approx(1)] * 2, "three pairs of equal rates"


def test_runs_without_a_rate_say_why(records):
    def value(column, runs, models=records.models):
        gpu = records.throughput.assign(device="NVIDIA X")
        changed = replace(records, runs=runs, models=models, throughput=gpu)
        return one(build(changed, "app-prod-fr-fa"), "app-prod-fr-fa", "10M", column)

    changed = records.runs.assign(processes=math.nan)
    for column, unit in (("run_rate.full", "tok/s"), ("run_ratio", "x"), ("run_share.mha", "%")):
        cell = value(column, changed)
        assert (cell["status"], cell["unit"]) == ("undetermined", unit)
        assert "processes trained a run changed" in cell["reason"]
    apart = records.runs.assign(processes=records.runs["variant"].map({"mha": 4, "full": 2}))
    cell = value("run_ratio", apart)
    assert cell["status"] == "undetermined" and "as many processes" in cell["reason"]
    models = records.models.copy()
    models.loc[models["variant"] == "mha", "micro"] = 2
    cell = value("run_share.mha", records.runs, models)
    assert cell["status"] == "no counterpart"
    assert cell["reason"] == "micro/GA is 2/2 in the runs and 4/2 in the benchmark"
    assert value("run_share.full", records.runs, models)["status"] == "ok"
    assert value("run_share.full", records.runs, models.iloc[:0])["status"] == "not run"


def test_a_token_without_a_trend_and_contexts_out_of_memory_are_told(records):
    (table,) = (table for table in TABLES if table.label == "token-mixing-complexity")
    times = records.complexity.assign(device="NVIDIA X")
    slower = {f"decode_seconds_{end}": lambda seconds: seconds + 1e-3 for end in ("low", "high")}
    changed = replace(records, complexity=times)
    changed = edited(changed, "complexity", {"operator": "mha", "context": 4096}, **slower)
    lost = {"operator": "full-reference", "context": (2048, 4096)}
    cells = build(edited(changed, "complexity", lost, status="OOM"), table.label)
    notes = table.notes_on(cells[cells["table"] == table.label])
    assert Note("Out of memory: Full, materialised at T = 2,048, 4,096.", below=True) in notes
    (flat,) = [note for note in notes if note.text.startswith("No trend of a token’s time")]
    assert flat.text.endswith("overlap (Full, materialised; FlashRelation; Linear Relation).")
    assert not flat.below


def decoded(model: str, context: int, batch: int, ms: float | None) -> dict:
    """A row of the benchmark `decode`; without a time it did not fit."""
    seconds = ms and ms / 1e3
    return dict.fromkeys(DECODE.names) | {
        "model": model, "measure": "token", "context": context, "batch": batch, "seconds": seconds,
        "seconds_low": seconds, "seconds_high": seconds, "state_bytes": batch * context * 2**20,
        "tokens_per_second": ms and 1e3 * batch / ms, "status": "PASS" if ms else "OOM",
        "reason": None if ms else "too large", "device": "NVIDIA X", "scale": "30M",
        "source": "systems/decode.parquet",
    }  # fmt: skip


def test_tokens_are_those_of_the_record_of_decoding(records):
    """Where there is one: of one row in panel (b), of the largest batch in panel (c)."""
    rows = [
        decoded(model, context, batch, ms * batch if fits else None)
        for model, ms in (("mha", 0.2), ("full", 0.3), ("linear", 0.1), ("hybrid", 0.15))
        for context in (512, 8192)
        for batch in (1, 128)
        for fits in [(model, context, batch) != ("full", 8192, 128)]
    ]
    label = "token-mixing-complexity"
    before, after = (
        build(each, label) for each in (records, replace(records, decode=pd.DataFrame(rows)))
    )
    assert one(before, label, "full-flash", "decode_last")["value"] == pytest.approx(1.0)
    assert not (before["row"] == "decode-full").any()
    assert one(after, label, "full-flash", "decode_last")["value"] == pytest.approx(0.3)
    assert one(after, label, "linear", "decoded")["text"] == "512 to 8192"
    assert one(after, label, "full-reference", "decode_last")["status"] == "no counterpart"
    assert one(after, label, "decode-full", "rows")["value"] == 128
    assert one(after, label, "decode-full", "many_first")["value"] == pytest.approx(38.4)
    assert one(after, label, "decode-full", "many_last")["status"] == "oom"
    assert one(after, label, "decode-hybrid", "rate_last")["value"] == pytest.approx(1e3 / 0.15)
    assert one(after, label, "decode-hybrid", "bytes")["value"] == pytest.approx(1024)
    table = next(table for table in TABLES if table.label == label)
    panels = [printed.panel.title for printed in print_table(table, after).panels]
    assert panels[-1] == "(c) Decoding many rows"
    assert len(print_table(table, before).panels) == len(panels) - 1


def test_what_a_table_was_measured_under_is_said_once(records):
    throughput = records.throughput.copy()
    long = throughput["benchmark"] == "linear-long"
    busy = long & (throughput["context"] > 64)
    throughput["kernels"] = [["scan_kernel", "scan_kernel"]] * len(throughput)
    throughput.loc[busy, "disturbed"] = "busy"
    throughput.loc[busy & (throughput["context"] > 8000), "disturbed"] = "hot"
    cells = build(replace(records, throughput=throughput))
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
        cells = build(replace(records, page=page, throughput=driver), table.label)
        printed = print_table(table, cells[cells["table"] == table.label])
        assert [remark[:7] for remark in printed.remarks][: len(above)] == above
        assert "GPU driver 1.2." in printed.conditions
