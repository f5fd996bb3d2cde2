"""Tables: the paper's values, hand-made records, gaps with reasons, and shipped numbers."""

import math
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from conftest import refusal

from relation import records as stored
from relation.variants import ABLATIONS
from report import data, paper, table, tables
from report.data import Records, Setting
from report.paper import SCALES, SEEDS

BUDGET = {"10M": 1000, "30M": 2000, "100M": 4000}


def frame(kind: str, rows: list[dict] = ()) -> pd.DataFrame:
    """Rows of a kind with every column, and with the columns that loading adds."""
    layout = stored.KINDS[kind]
    full = [{name: row.get(name) for name in layout.names} for row in rows]
    loaded = pa.Table.from_pylist(full, layout).to_pandas()
    scales = loaded.get("scale", "")
    return loaded.assign(
        source=f"{kind}.parquet#" + pd.Series(scales, loaded.index), own_scale=scales
    )


def records(planned: list[tuple] = (), **frames: list[dict]) -> Records:
    """A setting's records with a few rows. All other frames are empty."""
    made = {kind: frame(kind, frames.get(kind, [])) for kind in stored.FILES}
    further = made["runs"]["seed"].map(lambda seed: seed not in SEEDS).astype(bool)
    made["runs"] = made["runs"].assign(further=further)
    rows = pd.DataFrame(planned, columns=data.PLANNED)
    models = pd.DataFrame(columns=["scale", "own_scale", "variant", "parameters"])
    others = {"models": models, "planned": rows, "precision": ["bf16"], "window": 0.01}
    return Records(setting=Setting("made"), **others, **made)


def run(scale: str, variant: str, seed: int, nll: float, **fields) -> dict:
    of = {"scale": scale, "variant": variant, "seed": seed, "final_nll": nll, "backend": "flash"}
    return of | {"parameters": 1000, "budget_tokens": BUDGET[scale], "epochs": 1.5} | fields


def cells_of(name: str, made: Records) -> pd.DataFrame:
    """The cells of one table by row, column and statistic."""
    declared = next(each for each in tables.EVERY if each.label == name)
    return table.table_cells(declared, made).set_index(paper.KEY)


def paper_runs() -> list[dict]:
    """Runs with the paper's final losses."""
    runs = []
    for seed in SEEDS:
        of = [(s, v, ("app-nll", f"{s}/{seed}", v)) for s in SCALES for v in ("mha", "full")]
        of += [("10M", v, ("app-ablation", v, f"seed_{seed}")) for v in ABLATIONS]
        of += [("30M", "hybrid", ("app-hybrid", str(seed), "nll"))]
        runs += [run(scale, v, seed, paper.number(*cell)) for scale, v, cell in of]
    return runs


@pytest.mark.parametrize(
    "name", ["main-results", "app-nll", "structural-ablations", "app-ablation", "app-hybrid"]
)
def test_the_papers_seeds_give_its_means_deviations_and_differences(name: str) -> None:
    cells = cells_of(name, records(runs=paper_runs())).reset_index()
    losses = cells[(cells["unit"] == "nat/token") & cells["paper"].notna() & cells["text"].isna()]
    assert len(losses) > 3
    for one in losses.to_dict("records"):
        digits = len(one["paper"].partition(".")[2])
        allowed = 0.5 * 10**-digits + (1e-4 if name == "main-results" else 1e-6)
        assert one["value"] == pytest.approx(one["paper_value"], abs=allowed), one["row"]


def test_the_papers_layers_give_its_table_of_internal_organization() -> None:
    flow = []
    for row in paper.load("app-structural-layerwise").to_dict("records"):
        scale, _, layer = row["row"].partition("/L")
        column, _, variant = row["column"].partition(".")
        if variant in ("mha", "full"):
            metric = {"self": "self_flow", "effrank": "effective_rank"}[column]
            value = row["paper_value"] * paper.UNITS[row["unit"]]
            fields = {"layer": int(layer), "head": 0, "count": 8, "length": 1024, "metric": metric}
            of = {"scale": scale, "variant": variant, "value": value}
            flow += [of | fields | {"seed": seed} for seed in SEEDS]
    made = records(flow=flow)
    cells = cells_of("relation_internal", made)
    for scale in SCALES:
        for column in ("l0_self.mha", "l0_self.full", "l0_effrank.full", "l1_self.full"):
            one = cells.loc[(scale, column, "value")]
            assert one["value"] == pytest.approx(one["paper_value"], abs=0.05)
    layers = cells_of("app-structural-layerwise", made)
    ratio = layers.loc[("10M/L0", "effrank.ratio", "value")]
    assert ratio["value"] == pytest.approx(ratio["paper_value"], abs=0.01)
    assert layers.loc[("10M", "flow_length", "value"), "value"] == 1024
    one_seed = [row for row in flow if row["scale"] != "100M" or row["seed"] == SEEDS[0]]
    runs = [run("100M", "full", seed, 3.0) for seed in SEEDS]
    cells = cells_of("relation_internal", records(flow=one_seed, runs=runs))
    for column in ("full", "ratio"):
        one = cells.loc[("100M", f"l0_effrank.{column}", "value")]
        assert (one["n"], one["reason"]) == (1, "seeds without a value: 43, 44")


def test_flow_pools_heads_by_count_and_layers_by_count() -> None:
    fields = {"scale": "10M", "variant": "full", "seed": 42, "metric": "self_flow", "length": 64}
    flow = [
        fields | {"layer": layer, "head": head, "count": count, "value": value}
        for layer, head, count, value in [(2, 0, 1, 0.1), (2, 1, 3, 0.3), (3, 0, 4, 0.6)]
    ]
    cells = cells_of("relation_internal", records(flow=flow))
    deep = cells.loc[("10M", "l2_self.full", "value"), "value"]
    assert deep == pytest.approx(100 * (0.1 + 0.9 + 2.4) / 8)


def test_the_interval_of_a_share_ends_where_shares_do() -> None:
    fields = {"scale": "10M", "variant": "full", "metric": "self_flow", "length": 64, "layer": 0}
    shares = {42: 0.02, 43: 0.9, 44: 0.95}
    flow = [fields | {"seed": k, "head": 0, "count": 1, "value": v} for k, v in shares.items()]
    one = cells_of("relation_internal", records(flow=flow)).loc[("10M", "l0_self.full", "value")]
    assert (one["low"], one["high"], one["n"]) == (0, 100, 3)
    assert one["value"] == pytest.approx(100 * sum(shares.values()) / 3)


def test_every_value_of_the_paper_has_a_cell_with_a_value_or_a_reason() -> None:
    made = records()
    for each in tables.PAPER:
        cells = table.table_cells(each, made)
        values = paper.load(each.label)
        assert not values.duplicated(paper.KEY).any() and (values != "").all(axis=None), each.label
        printed = set(map(tuple, values[paper.KEY].to_numpy()))
        assert printed <= set(map(tuple, cells[paper.KEY].to_numpy())), each.label
        assert (cells["status"] != "ok").all() and (cells["reason"] != "").all(), each.label
    assert [each.number for each in tables.PAPER] == [str(n) for n in range(1, 18)]


def wanted(variant: str, seed: int, status: str = "not run", reason: str = "") -> tuple:
    """A planned run of 10M."""
    return ("runs", "10M", variant, seed, seed not in SEEDS, "10M", status, reason)


PLAN = [wanted(variant, seed) for variant in ("mha", "full") for seed in SEEDS]


def test_gaps_say_what_is_planned_and_why_it_is_not_there() -> None:
    cells = cells_of("main-results", records(PLAN))
    mean = cells.loc[("10M", "mha_nll", "mean")]
    assert (mean["status"], mean["reason"]) == ("not run", "no run is recorded")
    assert cells.loc[("30M", "delta", "value"), "reason"] == "30M is not part of this setting"
    lacking = PLAN[:3] + [wanted("full", seed, reason="not shipped") for seed in SEEDS]
    cells = cells_of("app-nll", records(lacking))
    one = cells.loc[("10M/43", "full", "value")]
    assert (one["status"], one["reason"]) == ("not run", "no run is recorded; not shipped")
    assert cells.loc[("10M/43", "mha", "value"), "reason"] == "no run is recorded"


def test_a_mean_names_the_seeds_that_it_lacks_and_those_that_diverged() -> None:
    runs = [run("10M", v, s, 3.0) for v in ("mha", "full") for s in SEEDS[:2]]
    runs += [run("10M", "mha", 44, 3.3), run("10M", "full", 44, math.nan)]
    losses = logs("10M", 44, FALLING, [*FALLING[:-1], math.nan])
    cells = cells_of("app-nll", records(runs=runs, losses=losses))
    mean = cells.loc[("10M/mean", "full", "mean")]
    assert (mean["n"], mean["reason"]) == (2, "diverged: seeds 44")
    alone = cells.loc[("10M/44", "full", "value")]
    assert (alone["status"], alone["n"]) == ("diverged", 0)
    ended = [each for each in runs if not math.isnan(each["final_nll"])]
    without = cells_of("app-nll", records(runs=ended))
    delta = without.loc[("10M/mean", "delta", "value")]
    assert (delta["n"], delta["reason"]) == (2, "seeds without a value: 44")
    one = cells_of("app-nll", records(runs=runs[:1]))
    assert one.loc[("10M/mean", "mha", "mean"), "value"] == 3.0
    assert one.loc[("10M/mean", "mha", "sd"), "status"] == "undetermined"


def pairs_of(differences: list[float], scale: str = "10M") -> list[dict]:
    runs = [run(scale, "mha", s, 3.0) for s in SEEDS]
    return runs + [run(scale, "full", s, 3.0 + d) for s, d in zip(SEEDS, differences, strict=True)]


@pytest.mark.parametrize(
    "differences, agrees",
    [
        ([-0.045, -0.040, -0.039], True),  # includes the paper's -0.0412, excludes 0
        ([-0.100, -0.040, +0.010], None),  # includes both
        ([-0.101, -0.100, -0.099], False),
        ([-0.010, +0.000, +0.010], False),  # includes only zero
    ],
)
def test_agreement_is_marked_where_no_effect_would_fail_it(differences, agrees) -> None:
    cells = cells_of("main-results", records(runs=pairs_of(differences)))
    assert cells.loc[("10M", "delta", "value"), "agrees"] is agrees
    # Losses are not judged, because the texts are not the paper's.
    assert cells.loc[("10M", "mha_nll", "mean"), "agrees"] is None
    losses = cells_of("structural-ablations", records(runs=paper_runs())).loc["nll"]
    assert losses["value"].notna().all() and losses["agrees"].isna().all()


def test_no_seed_of_ours_is_set_against_the_papers_seed_of_its_number() -> None:
    for name in ("app-nll", "app-ablation", "app-hybrid"):
        cells = cells_of(name, records(runs=paper_runs())).reset_index()
        of_seed = cells["row"].str.contains(r"(?:^|/)4\d$") | cells["column"].str.contains("seed_")
        assert of_seed.any() and cells[of_seed]["paper"].notna().any()
        assert cells[of_seed]["difference"].isna().all()
        assert cells[of_seed]["agrees"].isna().all()
        assert cells[~of_seed & cells["paper"].notna()]["difference"].notna().any()


def logs(scale: str, seed: int, mha: list[float], full: list[float]) -> list[dict]:
    """Losses of a pair. Each update is a tenth of the budget."""
    step = BUDGET[scale] // 10
    return [
        {"scale": scale, "variant": v, "seed": seed, "update": k, "tokens": k * step, "loss": loss}
        for v, curve in (("mha", mha), ("full", full))
        for k, loss in enumerate(curve, start=1)
    ]


FALLING = [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_token_efficiency_of_a_pair_by_hand() -> None:
    earlier = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    runs = [run("10M", v, s, 3.0) for v in ("mha", "full") for s in (42, 43)]
    losses = logs("10M", 42, FALLING, earlier) + logs("10M", 43, FALLING, [11.0] * 10)
    made = records(runs=runs, losses=losses)
    cells = cells_of("app-token-efficiency", made)
    actual = cells.loc["10M/42"].xs("value", level="statistic")["value"]
    numbers = {"target": 1.0, "crossing": 900e-6, "reduction": 10.0}  # the crossing in M tokens
    numbers |= {"own_reduction": 0.0, "end_gap": -1.0}
    assert actual[list(numbers)].to_dict() == pytest.approx(numbers)
    never = cells.loc[("10M/43", "crossing", "value")]
    assert (never["status"], never["n"]) == ("not reached", 0)
    mean = cells_of("main-results", made).loc[("10M", "token_reduction", "mean")]
    assert (mean["value"], mean["n"]) == (pytest.approx(10.0), 1)
    assert mean["reason"] == "never reached (not in the mean): seeds 43"
    only = records(runs=[r for r in runs if r["seed"] == 43], losses=losses)
    reduction = cells_of("main-results", only).loc[("10M", "token_reduction", "mean")]
    assert reduction["status"] == "not reached"
    # A pair of which a run diverged reaches nothing.
    broken = [each | {"final_nll": math.nan} if each["variant"] == "mha" else each for each in runs]
    planned = [wanted(v, s, "ok", data.DIVERGED) for v in ("mha", "full") for s in (42, 43)]
    made = records(planned, runs=broken, losses=losses)
    assert cells_of("app-token-efficiency", made)["status"].eq("diverged").any()
    assert not cells_of("app-token-efficiency", made)["value"].notna().any()
    assert cells_of("main-results", made).loc[("10M", "token_reduction", "mean"), "status"] != "ok"


def test_further_pairs_stand_apart_and_those_that_never_reach_count_as_none() -> None:
    runs = [run("10M", v, s, 3.0 - (v == "full") * 0.1 * (s - 44)) for v in ("mha", "full")
            for s in (45, 46)]  # fmt: skip
    losses = logs("10M", 45, FALLING, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]) + logs(
        "10M", 46, FALLING, [11.0] * 10
    )
    planned = [wanted(v, s, "ok") for v in ("mha", "full") for s in (45, 46, 47)]
    cells = cells_of("app-nll", records(planned, runs=runs, losses=losses)).loc["10M/further"]

    def value(column: str) -> float:
        return cells.loc[(f"further.{column}", "value"), "value"]

    assert (value("pairs"), value("planned"), value("won")) == (2, 3, 2)
    assert cells.loc[("further.pairs", "value"), "reason"] == "seeds without a pair: 47"
    assert value("delta") == pytest.approx(-0.15)
    assert (value("reached"), value("spared.full")) == (1, pytest.approx(5.0))
    assert (value("spared.mha"), value("spared.difference")) == pytest.approx((0.0, 5.0))
    assert value("spread") == pytest.approx(0.1 / math.sqrt(2))
    matrix = cells_of("app-nll", records(planned, runs=runs, losses=losses))
    assert matrix.loc[("10M/mean", "delta", "value"), "status"] == "not run"
    assert "10M/45" not in matrix.index.get_level_values("row")


def side(name: str, variant: str, samples: list[float], **fields) -> dict:
    row = {"benchmark": "matched", "scale": "10M", "side": name, "variant": variant}
    row |= {"backend": "flash", "context": 1024, "micro": 32, "accumulation": 4, "alone": False}
    row |= {"status": "PASS", "tokens_per_second": samples[len(samples) // 2], "samples": samples}
    row |= {"device": "NVIDIA H200", "allocated_gib": 5.0}
    return row | fields


def test_a_ratio_is_taken_round_by_round() -> None:
    old = {"created": "2026-11-22T10:00:00", "commit": "59f6757" + 33 * "0"}
    new = {"created": "2026-11-27T10:00:00", "commit": "a1b2c3d" + 33 * "0" + "+changes"}
    steps = [
        side("full", "full", [110.0, 220.0, 330.0, 440.0, 550.0, 660.0], **new),
        side("mha", "mha", [100.0, 200.0, 300.0, 400.0, 500.0, 600.0], **old),
    ]
    cells = cells_of("efficient-relation", records(steps=steps))
    ratio = cells.loc[("10M", "matched.ratio", "value")]
    assert (ratio["value"], ratio["low"], ratio["n"]) == pytest.approx((1.1, 1.1, 6))
    assert cells.loc[("10M", "fixed.flash", "value"), "status"] == "not run"
    assert cells.loc[("setting", "device", "value"), "text"] == "NVIDIA H200"
    assert cells.loc[("setting", "sides", "value"), "text"] == "full, mha on flash"
    steps[0] |= {"alone": True, "samples": steps[0]["samples"][::-1], "disturbed": "slowed down"}
    apart = cells_of("efficient-relation", records(steps=steps))
    ratio = apart.loc[("10M", "matched.ratio", "value")]  # of medians
    assert ratio["value"] == pytest.approx(1.1) and "measured separately" in ratio["reason"]
    assert "slowed down" in apart.loc[("setting", "disturbed", "value"), "text"]
    measured = cells.loc[("setting", "measured", "value"), "text"]
    assert measured == "2026-11-22 at 59f6757; 2026-11-27 at a1b2c3d+"


def test_memory_that_ran_out_keeps_its_settings_and_says_so() -> None:
    steps = [
        side("mha", "mha", [100.0]),
        side("full", "full", [1.0], status="OOM", reason="80 GiB"),
    ]
    cells = cells_of("app-prod-fr-fa", records(steps=steps))
    rate = cells.loc[("10M", "throughput.full", "value")]
    assert (rate["status"], rate["reason"]) == ("oom", "80 GiB, on NVIDIA H200, T = 1024")
    assert cells.loc[("10M", "ratio", "value"), "status"] == "oom"
    assert cells.loc[("10M", "micro_ga.full", "value"), "text"] == "32/4"
    assert cells.loc[("10M", "reserved.mha", "value"), "status"] == "no counterpart"


def test_a_context_that_the_paper_lacks_has_a_row_of_its_own() -> None:
    fields = {"benchmark": "linear-long", "scale": "30M"}
    steps = [
        side(f"T={t}", "linear", [t / 10], context=t, **fields) for t in (1024, 2048, 131072)
    ]  # fmt: skip
    cells = cells_of("app-linear-long", records(steps=steps))
    assert cells.loc[("2048", "throughput", "value"), "value"] == pytest.approx(204.8)
    assert cells.loc[("+131072", "status", "value"), "text"] == "PASS"
    assert cells.loc[("65536", "throughput", "value"), "status"] == "not run"


def timed(operator: str, power: float, contexts: list[int], **fields) -> list[dict]:
    row = {"scale": "30M", "operator": operator, "status": "PASS", "device": "NVIDIA H200"} | fields
    return [
        row | {"context": t, "seconds": 1e-6 * t**power, "decode_state_bytes": 8 * t}
        for t in contexts
    ]


def test_powers_are_fitted_to_times_that_grew() -> None:
    contexts = [128, 256, 512, 1024, 2048]
    rows = timed("mha", 2.0, contexts) + timed("linear", 0.1, contexts)
    rows += timed("full-flash", 1.0, [128, 2048])
    rows += [rows[0] | {"operator": "full-reference", "status": "OOM", "reason": "too large",
                        "seconds": None, "decode_state_bytes": None}]  # fmt: skip
    noisy = timed("full-flash", 1.0, [512, 1024, 4096])  # three powers of T fit them
    noisy[1]["seconds"] *= 8
    cells = cells_of("token-mixing-complexity", records(complexity=rows + noisy))
    wide = cells.loc[("full-flash", "time_exponent", "value")]
    assert wide["status"] == "undetermined" and "is wider than 1" in wide["reason"]
    power = cells.loc[("mha", "time_exponent", "value")]
    assert (power["value"], power["n"]) == (pytest.approx(2.0), 3)  # at least 5 times the first
    assert cells.loc[("mha", "complexity", "value"), "text"] == "T^2.00"
    assert cells.loc[("mha", "state_exponent", "value"), "value"] == pytest.approx(1.0)
    flat = cells.loc[("linear", "time_exponent", "value")]
    assert (flat["status"], "1.3 times as long" in flat["reason"]) == ("undetermined", True)
    assert cells.loc[("full-reference", "time_exponent", "value"), "status"] == "oom"
    assert cells.loc[("mha", "sequential", "value"), "status"] == "no counterpart"
    assert cells.loc[("setting", "oom", "value"), "text"] == "Full, materialised at T = 128"


def test_decoding_is_of_the_largest_batch_and_of_single_rows() -> None:
    fields = {"scale": "30M", "model": "mha", "measure": "token", "device": "NVIDIA H200"}
    passed = {"status": "PASS", "seconds": 1e-3, "tokens_per_second": 64e3, "state_bytes": 2**30}
    decode = [
        fields | passed | {"context": t, "batch": b, "seconds": 1e-3 * b + 1e-6 * t}
        for t in (512, 1024)
        for b in (1, 64)
    ]
    decode[-1] |= {"status": "OOM", "reason": "344 GB", "seconds": None}
    rows = timed("mha", 2.0, [128, 256])
    cells = cells_of("token-mixing-complexity", records(complexity=rows, decode=decode))
    assert cells.loc[("mha", "decode_last", "value"), "value"] == pytest.approx(2.024)  # ms
    assert cells.loc[("decode-mha", "rows", "value"), "value"] == 64
    assert cells.loc[("decode-mha", "many_last", "value"), "status"] == "oom"
    assert cells.loc[("decode-mha", "bytes", "value"), "value"] == pytest.approx(1.0)
    # Rows from before the benchmark decode used another method, which the cell names.
    rows = timed("mha", 2.0, [128, 256], decode_seconds=0.016)
    former = cells_of("token-mixing-complexity", records(complexity=rows))
    cell = former.loc[("mha", "decode_last", "value")]
    assert cell["value"] == pytest.approx(16.0) and "launches included" in cell["reason"]
    assert cells.loc[("mha", "decode_last", "value"), "reason"] == ""


def test_a_variant_that_the_paper_lacks_has_a_row_as_soon_as_it_ran() -> None:
    runs = [run("10M", "full", s, 3.0) for s in SEEDS] + [run("10M", "no-self", 43, 3.1)]
    cells = cells_of("variants", records(runs=runs)).loc["10M/no-self"]
    assert cells.loc[("delta", "value"), "value"] == pytest.approx(0.1)
    assert cells.loc[("parameters", "value"), "value"] == 1000
    alone = cells_of("variants", records(runs=runs[-1:])).loc["10M/no-self"]
    assert alone.loc[("delta", "value"), "status"] == "not run"
    assert len(cells_of("variants", records(runs=paper_runs()))) == 0


@pytest.fixture(scope="module")
def shipped() -> dict[str, pd.DataFrame]:
    """The cells of the shipped settings, by the setting's name."""
    settings = [
        Setting("books", variation, scales)
        for variation, scales in (
            ("nearest", None), ("gpt2", None), ("residual", None), ("nearest", ("100M28pc",))
        )
    ]  # fmt: skip
    made = [data.load(each) for each in settings]
    cells = table.cells(made, tables.PAPER).set_index(["table", *paper.KEY])
    return {name: of for name, of in cells.groupby("setting")}


@pytest.mark.parametrize(
    "setting, key, value, low, n",
    [
        ("nearest", "app-nll 10M/mean delta value", -0.036899, -0.103009, 3),
        ("nearest", "app-nll 10M/further further.delta value", -0.036294, -0.047668, 28),
        ("nearest", "relation_internal 30M l0_self.full value", 27.974554, 20.116546, 3),
        ("nearest", "main-results 10M bits.full value", 1.389936, 1.386543, 3),
        ("nearest", "relation_internal 10M l0_effrank.ratio value", 2.545209, 1.656664, 3),
        ("nearest", "relation_internal 10M beyond_512.full value", 8.864633, 8.718462, 3),
        ("nearest", "app-structural-routing 30M beyond_256.mha value", 21.572633, 20.632627, 3),
        ("nearest", "app-structural-sink-profile 10M sink_8.full value", 3.195952, 3.043490, 3),
        ("nearest", "app-structural-spectrum 10M top_energy.full value", 0.128735, 0.117323, 3),
        ("nearest", "efficient-relation 10M fixed.speedup value", 11.278376, 11.236496, 10),
        ("nearest", "efficient-relation 10M peers.compiled_ratio value", 3.728397, 3.714479, 10),
        ("nearest", "efficient-relation 10M peers.other_ratio value", 1.005206, 0.981046, 10),
        ("nearest", "token-mixing-complexity mha time_exponent value", 1.918760, 1.837766, 6),
        ("gpt2", "app-nll 10M/mean delta value", -0.012074, -0.065959, 3),
        ("gpt2", "efficient-relation 100M peers.other_ratio value", 0.969848, 0.966192, 10),
        ("residual", "app-nll 30M/mean mha mean", 3.070435, 2.873290, 2),
        ("nearest@100M28pc", "main-results 100M delta value", -0.013894, -0.039678, 3),
        ("nearest@100M28pc", "main-results 100M token_reduction mean", 1.120710, 0.473662, 3),
    ],
)
def test_shipped_numbers(shipped, setting: str, key: str, value: float, low, n) -> None:
    one = shipped[f"books/{setting}"].loc[tuple(key.split())]
    assert (one["value"], one["low"]) == pytest.approx((value, low), rel=1e-4)
    assert one["n"] == n
    assert one["sources"] and "#" in one["sources"][0]


def test_no_shipped_cell_is_blank(shipped) -> None:
    for name, cells in shipped.items():
        there = cells["status"] == "ok"
        assert (cells[there]["value"].notna() | cells[there]["text"].notna()).all(), name
        assert (cells[~there]["reason"] != "").all(), name


def test_a_column_that_the_tables_csv_lacks_is_refused() -> None:
    declared = next(each for each in tables.PAPER if each.label == "app-nll")
    misspelt = replace(declared, compute=lambda *_: [table.cell("10M/mean", "detla", 1.0)])
    made = records(runs=paper_runs())
    assert "no column 'detla'" in refusal(lambda: table.table_cells(misspelt, made))
