"""An invented campaign for the report's tests, in the columns of the real records."""

import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
from examined_records import LAYOUTS as EXAMINED
from examined_records import examinations
from paper_records import PAGE, check_row, operator_row, provenance_row, row, trained_as

from relation.store import layouts as schemas
from report.values.frames import CampaignRecords
from report.values.measured import select

HOSTILE = r"<script>alert(1)</script> 50% & $x_1$ {a} \input{b} #~^ [c] “d” 猫"
LAYERS = {"10M": 3, "30M": 2, "100M": 21}
SEEDS = {"10M": (42, 43, 44), "30M": (42, 43), "100M": (42,)}
NLL = {"mha": 2.0, "full": 1.9, "hybrid": 1.8}
METRICS = (
    "self_flow", "exchange_flow", "beyond_eighth", "beyond_quarter", "beyond_half",
    *(f"sink_{k}" for k in (1, 2, 4, 8, 16, 32)),
    "effective_rank", "stable_rank", "dims_90", "dims_95", "top_singular_energy",
)  # fmt: skip


def _variants(scale):
    further = {
        "10M": ("exchange-only", "raw-x", "no-count", "no-givens", "single-head"),
        "30M": ("hybrid",),
    }
    return ("mha", "full", *further.get(scale, ()))


def _flow_rows():
    """MHA's values are 0.1; Relation's are 0.2 (layer + 1), twice that on every second head."""
    for key, depth in _checkpoints():
        key |= _source(key, "flow") | {"sequence": 0, "length": 64, "count": 4}
        for layer, head, metric in product(range(depth), range(2), METRICS):
            rise = 0.1 if key["variant"] == "mha" else 0.2 * (layer + 1) * (head + 1)
            yield key | {"layer": layer, "head": head, "metric": metric, "value": rise}


def _checkpoints():
    for scale, depth in LAYERS.items():
        for variant in ("mha", "full"):
            for seed in SEEDS[scale]:
                yield {"scale": scale, "variant": variant, "seed": seed}, depth


def _source(key, kind):
    """The file of a checkpoint's rows of one kind."""
    return {"source": f"{kind}/{key['scale']}/{key['variant']}/{key['seed']}.parquet"}


def _curve_rows():
    falling = np.linspace(1, 0.01, 64) / 32
    for key, depth in _checkpoints():
        key |= _source(key, "curves")
        for layer in range(depth):
            for curve in ("self", "distance", "sigma"):
                yield key | {"layer": layer, "curve": curve, "length": 64, "values": falling}


def _map_rows():
    """Layer + 2 head + 1 everywhere below the diagonal."""
    for key, depth in _checkpoints():
        key |= _source(key, "maps")
        for layer in range(depth):
            for head in range(2):
                codes = (np.tri(8) * (layer + 2 * head + 1)).astype(np.uint8).tobytes()
                yield key | {"layer": layer, "head": head, "length": 64, "side": 8, "codes": codes}


def _probe_rows():
    """Two looks: lambda and an angle of Relation's layers, Self flow and effective rank of all.

    Four of the validation NLL, which is Relation's seed times 0.001 below MHA's.
    """
    for key, depth in _checkpoints():
        key |= _source(key, "probes")
        lower = 0.001 * key["seed"] if key["variant"] == "full" else 0.0
        for look in range(5):
            place = {"update": 12 * look, "tokens": 2048 * 12 * look, "alike": True}
            nothing = {"layer": None, "part": None, "metric": "validation_nll"}
            yield key | place | nothing | {"value": 8 - look - lower}
        for layer in range(depth):
            for update in (0, 48):
                place = key | {"update": update, "tokens": 2048 * update, "layer": layer}
                place["alike"] = True
                for metric, part in (("lambda", None), ("theta", 0)):
                    if key["variant"] == "full":
                        yield place | {"part": part, "metric": metric, "value": 0.01 * update}
                for metric in ("self_flow", "effective_rank"):
                    yield place | {"part": None, "metric": metric, "value": 0.02 * update}


def _measurement(benchmark, scale, side, backend, rate, **changes):
    variant = {"reference": "full"}.get(side, side.split("-")[0])
    measured = row(
        schemas.THROUGHPUT, benchmark=benchmark, scale=scale, side=side, variant=variant,
        backend=backend, samples=[rate] * 6, alone=False, kernels=[], tokens="corpus", context=64,
        micro=4, accumulation=2, measured_updates=20, status="PASS", tokens_per_second=rate,
        raw_tokens_per_second=rate / 2, position=0, device="cpu_0",
    )  # fmt: skip
    return measured | {"source": f"systems/{benchmark}.parquet", **changes}


def _throughput_rows():
    yield _measurement("fixed", "10M", "reference", "reference", 100.0)
    yield _measurement("fixed", "10M", "full", "tiled", 250.0)
    yield _measurement("matched", "10M", "mha", "sdpa", 400.0)
    yield _measurement("matched", "10M", "full", "tiled", 300.0, allocated_gib=0.0213)
    yield _measurement("matched", "10M", "mha-reference", "reference", 200.0)
    killed = {"status": "KILLED", "reason": HOSTILE, "tokens_per_second": math.nan}
    yield _measurement("fixed", "30M", "reference", "reference", 1.0) | killed
    yield _measurement("fixed", "30M", "full", "tiled", 50.0, disturbed=HOSTILE)
    yield _measurement("linear-steady", "10M", "linear", "recurrent", 80.0)
    for position in range(9):
        oom = {"status": "OOM", "reason": "9 GiB", "tokens_per_second": math.nan}
        place = {"context": 64 * 2**position, "position": position}
        long = _measurement("linear-long", "30M", "linear", "recurrent", 70.0, **place)
        yield long | (oom if position == 4 else {})


# By task and octave of distance, queries.
RECALL_QUERIES = {(16, 2): {2: 10, 8: 10}, (32, 4): {8: 20, 16: 60}}


def recall_training(
    mixer: str, width: int, seed: int, right: dict[int, float], **changes
) -> list[dict]:
    """Rows of a training whose share of right answers is `right` by octave."""
    return [
        dict.fromkeys(schemas.RECALL.names)
        | {"mixer": mixer, "layout": "FF", "status": "PASS", "width": width, "seed": seed}
        | {"parameters": 1000 * width, "learning_rate": 1e-3, "chosen": True, "device": "cpu_0"}
        | {"length": length, "pairs": pairs, "distance": octave, "queries": queries}
        | {"right": round(right[octave] * queries), "source": f"recall/{mixer}.parquet"}
        | changes
        for (length, pairs), octaves in RECALL_QUERIES.items()
        for octave, queries in octaves.items()
    ]


def _recall_rows():
    for mixer, rise in (("mha", 0.0), ("full", 0.1)):
        for width, seed in product((64, 128), (42, 43)):
            share = 0.5 + rise + 0.1 * (seed - 42)
            yield from recall_training(mixer, width, seed, {2: 1.0, 8: share, 16: share})
    unavailable = {"mixer": "gla", "status": "UNAVAILABLE", "reason": HOSTILE, "device": "cpu_0"}
    yield dict.fromkeys(schemas.RECALL.names) | unavailable | {"source": "recall/gla.parquet"}


def _verification_rows():
    for check, name, scale in (
        *(("exactness", result, scale) for scale in LAYERS for result in ("Y", "dp1")),
        ("identity", "F_ii + g_i = 1", ""),
    ):
        yield check_row(
            check, name, scale, 1e-7, operator="tiled", width=16, precision="fp32", allowed=1e-5,
            device="cpu_0",
        )  # fmt: skip


def _provenance_rows(runs):
    files = (("run", "record"), ("log", "log"))
    for run, (kind, file) in ((run, file) for run in runs for file in files):
        source, rerun = run["source"].replace("record", file), "snakemake --config a=<b>"
        same = {name: run[name] for name in ("variant", "seed", "device")}
        yield provenance_row(source, kind, run["scale"], rerun=rerun, **same)


@cache
def make_records(comparable=False):
    """A campaign with missing seeds, an OOM, a crossing never reached and hostile words.

    It says that it plans the paper's models, if `comparable`, or the smoke campaign's.
    """
    models, runs, logs, efficiency = [], [], [], []
    for scale, depth in LAYERS.items():
        for variant in _variants(scale):
            models.append(
                {
                    "scale": scale, "variant": variant, "parameters": 1000 + (variant != "mha"),
                    "layers": depth, "d_model": 32, "heads": 2, "head_dim": 16, "d_ff": 64,
                    "vocab": 512, "context": 64, "micro": 4, "accumulation": 2,
                    "budget_tokens": 98_304, "data_title": HOSTILE, "layout": "F" * depth,
                    "source": "models.parquet",
                }
            )  # fmt: skip
            for seed in SEEDS[scale]:
                key = {"scale": scale, "variant": variant, "seed": seed}
                nll = NLL.get(variant, 2.1) + 0.01 * (seed - 42) * (2 if variant == "full" else 1)
                source = f"runs/{scale}/{variant}/{seed}/record.parquet"
                runs.append(
                    key
                    | {"final_nll": nll, "device": "cpu_0", "processes": 1, "source": source}
                    | {"epochs": 1.25, "trained_tokens": 98304}
                )
                logs += [
                    key | {"update": k + 1, "tokens": 2048 * (k + 1), "update_tokens": 2048,
                           "loss": nll + 3 / (k + 1), "learning_rate": 1e-3,
                           "gradient_norm": 0.5, "tokens_per_second": 1000.0 + k,
                           "source": source.replace("record", "log")}
                    for k in range(48)
                ]  # fmt: skip
        for seed in SEEDS[scale]:
            reached = seed != 43
            efficiency.append(
                {
                    "scale": scale, "seed": seed, "target": 2.5,
                    "crossing_tokens": 90_000.0 if reached else math.nan,
                    "reduction": 0.0845 if reached else math.nan,
                    "own_reduction": 0.0123, "end_gap": -0.25 if reached else 0.125,
                }
            )  # fmt: skip
    measured = {"device": "cpu_0", "source": "systems/complexity.parquet"}
    complexity = [
        operator_row(operator, context, 1e-6 * context**power, 0.1, **measured)
        for operator, power in (("mha", 2), ("full-reference", 2), ("full-flash", 2), ("linear", 1))
        for context in (64, 128, 256, 512, 1024, 2048, 4096)
    ]  # fmt: skip
    missing = [
        {"kind": kind, "scale": scale, "variant": variant, "seed": seed, "status": "not run",
         "reason": HOSTILE}
        for kind in ("run", "flow")
        for scale, seed in (("30M", 44), ("100M", 43), ("100M", 44))
        for variant in ("mha", "full")
    ]  # fmt: skip
    page = PAGE | {
        "campaign": "invented", "title": f"Invented {HOSTILE}", "description": HOSTILE,
        "texts": HOSTILE,
        "notice": "" if comparable else f"Too small. {HOSTILE}",
        "omissions": f"Chosen by {HOSTILE}",
        "trained": trained_as("paper" if comparable else "smoke"),
        "systems": {"precision": ["fp32"], "flash": "tiled"}, "devices": ["cpu_0"],
        "corpora": [{"title": HOSTILE, "kind": "files"}],
        "probes": 2, "validations": 4, "validation_tokens": 512,
        "assumptions": [{"question": HOSTILE, "value": [1.0, 16.0], "name": "a_range"}],
        "commands": {"Everything": "snakemake --cores all --config a=<b>"},
    }  # fmt: skip
    return CampaignRecords(
        models=pd.DataFrame(models),
        runs=pd.DataFrame(runs),
        logs=pd.DataFrame(logs),
        efficiency=pd.DataFrame(efficiency),
        flow=pd.DataFrame(_flow_rows()),
        throughput=pd.DataFrame(_throughput_rows()),
        complexity=pd.DataFrame(complexity),
        verification=pd.DataFrame(_verification_rows()),
        missing=pd.DataFrame(missing),
        provenance=pd.DataFrame(_provenance_rows(runs)),
        page=page,
        curves=pd.DataFrame(_curve_rows()),
        maps=pd.DataFrame(_map_rows()),
        probes=pd.DataFrame(_probe_rows()),
        recall=pd.DataFrame(_recall_rows()),
        **examinations(0.1),
    )


@cache
def make_empty():
    """The same campaign before anything ran."""
    full = make_records()
    frames = {
        name: pd.DataFrame(columns=frame.columns)
        for name, frame in vars(full).items()
        if isinstance(frame, pd.DataFrame)
    }
    return replace(full, **frames)


SCHEMAS = {
    "models": schemas.MODELS,
    "flow": schemas.FLOW,
    "curves": schemas.FLOW_CURVES,
    "maps": schemas.FLOW_MAPS,
    "probes": schemas.PROBES,
    "throughput": schemas.THROUGHPUT,
    "complexity": schemas.COMPLEXITY,
    "verification": schemas.VERIFICATION,
    "recall": schemas.RECALL,
    **EXAMINED,
}


@pytest.mark.parametrize("frame", SCHEMAS)
def test_the_invented_frames_use_columns_of_the_records_only(frame):
    known = {*SCHEMAS[frame].names, "scale", "source", *({"alike"} if frame == "probes" else ())}
    assert set(getattr(make_records(), frame).columns) <= known


def edited(records, frame, where, **columns):
    """The records with these columns of a frame set, or changed, where its others are as said.

    where: a value or a tuple of them by column; columns: a value, or what makes it of the old.
    """
    table = getattr(records, frame)
    rows = table.index.isin(select(table, **where).index)
    assert rows.any()
    new = {
        name: table[name].mask(rows, value(table[name]) if callable(value) else value)
        for name, value in columns.items()
    }
    return replace(records, **{frame: table.assign(**new)})


def without(records, frame, **where):
    """The records without the rows of a frame that are as said."""
    table = getattr(records, frame)
    kept = table.drop(select(table, **where).index)
    assert len(kept) < len(table)
    return replace(records, **{frame: kept})


def one(cells, table, row, column, statistic="value"):
    """The one cell of a key."""
    found = select(cells, table=table, row=row, column=column, statistic=statistic)
    assert len(found) == 1, (table, row, column, statistic)
    return found.iloc[0]
