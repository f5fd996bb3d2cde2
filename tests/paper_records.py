"""Records of a campaign that measured exactly what the paper prints, for the verdicts' tests."""

import math
from dataclasses import replace
from functools import cache

import pandas as pd
import pyarrow as pa
from conftest import campaign

from relation.pipeline.gaps import MISSING
from relation.pipeline.inventory import inventory_row
from relation.store import layouts as schemas
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, SEEDS
from report.values.page import trained_models
from report.values.paper import load, number

GPU = "NVIDIA GeForce RTX 5090"
DISTANCES = {
    "beyond_128": "beyond_eighth",
    "beyond_256": "beyond_quarter",
    "beyond_512": "beyond_half",
}
SINKS = [f"sink_{k}" for k in (1, 2, 4, 8, 16, 32)]
SPECTRUM = {
    "stable_rank": "stable_rank", "dims_90": "dims_90", "dims_95": "dims_95",
    "top_energy": "top_singular_energy",
}  # fmt: skip

SETTINGS = ("micro", "accumulation")
# Of the layers' effective ranks the first are as printed.
EXACT_LAYERS = 3
# What invented campaigns say alike of themselves.
PAGE = {
    "omissions": "", "seeds": list(SEEDS), "scales": list(SCALES), "efficiency_window": 0.01,
    "diagnosed": {"sequences": 4, "flow_length": 1024, "rank_length": 512},
    "further_seeds": {}, "reading_runs": [], "probe_sequences": 1,
    "origin": {"commit": "c0ffee", "versions": {"torch": "2.13.0"}},
}  # fmt: skip


def row(layout: pa.Schema, **given) -> dict:
    """A row of a record's frame: of what is not given a number is NaN and all else None."""
    reals = [name for name in layout.names if pa.types.is_floating(layout.field(name).type)]
    return dict.fromkeys(layout.names) | dict.fromkeys(reals, math.nan) | given


def check_row(check: str, name: str, scale: str, error: float, **given) -> dict:
    """A verified quantity, as exact as its yardstick."""
    return row(
        schemas.VERIFICATION, check=check, name=name, scale=scale, heads=2, length=64, draws=16,
        measure="largest", error=error, yardstick=error, source="verification.parquet", **given,
    )  # fmt: skip


def operator_row(operator: str, context: int, seconds: float, part: float, **given) -> dict:
    """An operator's time at a context, its interval a `part` of it to either side."""
    state = 512 if operator == "linear" else 64 * context
    return row(
        schemas.COMPLEXITY, operator=operator, context=context, seconds=seconds,
        seconds_low=(1 - part) * seconds, seconds_high=(1 + part) * seconds, status="PASS",
        decode_seconds=1e-3, decode_seconds_low=0.9e-3, decode_seconds_high=1.1e-3,
        decode_state_bytes=state, scale="30M", **given,
    )  # fmt: skip


def provenance_row(source: str, kind: str, scale: str, **given) -> dict:
    """A current record's row of provenance."""
    return {
        "source": source, "kind": kind, "scale": scale, "variant": "", "seed": None,
        "config_hash": "0123", "code_hash": "4567", "golden_hash": "89ab", "commit": "c0ffee",
        "device": GPU, "versions": '{"torch": "2.13.0"}', "made": "2026-01-01T00:00:00+00:00",
        "log": None, "rerun": "snakemake", "freshness": "current", "freshness_reason": "",
    } | given  # fmt: skip


def _runs():
    for scale in SCALES:
        for seed in SEEDS:
            for variant in ("mha", "full"):
                yield scale, variant, seed, number("app-nll", f"{scale}/{seed}", variant)
    for seed in SEEDS:
        for variant in ("exchange-only", "raw-x", "no-count", "no-givens", "single-head"):
            yield "10M", variant, seed, number("app-ablation", variant, f"seed_{seed}")
        yield "30M", "hybrid", seed, number("app-hybrid", str(seed), "nll")


def _rank_off(scale: str, variant: str, layers: list[str]) -> float:
    """What rounding hides of the later layers' ranks: their mean is Table 10's, to more digits."""
    column = f"effrank.{variant}"
    ranks = [number("app-structural-layerwise", row, column) for row in layers]
    hidden = number("app-structural-spectrum", scale, column) * len(ranks) - sum(ranks)
    off = hidden / (len(ranks) - EXACT_LAYERS)
    assert abs(off) < 0.05
    return off


def _flow_rows():
    """One seed: the paper prints means. What it prints for a scale holds at every layer."""
    for scale in SCALES:
        layers = [row for row, column, _ in load("app-structural-layerwise")
                  if row.startswith(f"{scale}/") and column == "self.mha"]  # fmt: skip
        for variant in ("mha", "full"):
            off = _rank_off(scale, variant, layers)
            for layer, row in enumerate(layers):
                own = number("app-structural-layerwise", row, f"self.{variant}") / 100
                values = {
                    "self_flow": own,
                    "exchange_flow": 1 - own,
                    "effective_rank": number("app-structural-layerwise", row, f"effrank.{variant}")
                    + off * (layer >= EXACT_LAYERS),
                }
                for column, metric in DISTANCES.items():
                    printed = number("app-structural-routing", scale, f"{column}.{variant}")
                    values[metric] = printed / 100
                for column in SINKS:
                    printed = number("app-structural-sink-profile", scale, f"{column}.{variant}")
                    values[column] = printed / 100
                for column, metric in SPECTRUM.items():
                    values[metric] = number("app-structural-spectrum", scale, f"{column}.{variant}")
                for metric, value in values.items():
                    yield {
                        "scale": scale, "variant": variant, "seed": 42, "layer": layer, "head": 0,
                        "sequence": 0, "length": 1024, "count": 1, "metric": metric,
                        "value": value, "source": f"flow/{scale}.parquet",
                    }  # fmt: skip


def _throughput_rows():
    shared = row(
        schemas.THROUGHPUT, status="PASS", position=0, device=GPU, measured_updates=10,
        alone=False, kernels=[], tokens="corpus",
    )  # fmt: skip
    for scale, micro in (("10M", (32, 4)), ("30M", (32, 4)), ("100M", (16, 8))):
        for side, backend, column in (
            ("reference", "reference", "fixed.reference"), ("full", "flash", "fixed.flash"),
        ):  # fmt: skip
            rate = number("efficient-relation", scale, column)
            yield shared | {
                "benchmark": "fixed", "scale": scale, "side": side, "variant": "full",
                "backend": backend, "context": 1024, "micro": micro[0], "accumulation": micro[1],
                "tokens_per_second": rate, "samples": [rate] * 6,
            }  # fmt: skip
    table = load("app-prod-fr-fa")
    for scale in SCALES:
        for variant in ("mha", "full"):
            micro, accumulation = table[scale, f"micro_ga.{variant}", "value"].printed.split("/")
            rate = table[scale, f"throughput.{variant}", "value"].number
            yield shared | {
                "benchmark": "matched", "scale": scale, "side": variant, "variant": variant,
                "backend": "flash", "tokens_per_second": rate, "samples": [rate] * 6,
                "context": int(table[scale, "context", "value"].number),
                "micro": int(micro), "accumulation": int(accumulation),
                "allocated_gib": table[scale, f"allocated.{variant}", "value"].number,
                "reserved_gib": table[scale, f"reserved.{variant}", "value"].number,
            }  # fmt: skip
    long = load("app-linear-long")
    for position, context in enumerate(dict.fromkeys(row for row, _, _ in long)):
        status = long[context, "status", "value"].printed
        passed = status == "PASS"
        micro, accumulation, rate, allocated = (
            number("app-linear-long", context, column) if passed or column in SETTINGS else None
            for column in (*SETTINGS, "throughput", "allocated")
        )
        yield shared | {
            "benchmark": "linear-long", "scale": "30M", "side": f"T={context}", "variant": "linear",
            "backend": "flash", "context": int(context), "position": position, "status": status,
            "reason": None if passed else "CUDA out of memory", "micro": int(micro),
            "accumulation": int(accumulation), "tokens_per_second": rate,
            "samples": [rate] * 6 if passed else [], "allocated_gib": allocated,
        }  # fmt: skip


@cache
def _models() -> pd.DataFrame:
    rows = [inventory_row(run, title) for run, title in campaign("paper").inventory()]
    return pd.DataFrame(rows).assign(source="models.parquet")


@cache
def trained_as(name: str, **choices) -> list[dict]:
    """What a campaign of config.yaml trains, as its page says."""
    return trained_models(campaign(name, **choices))


def paper_records(**page) -> CampaignRecords:
    """The paper's printed values as records; `page` replaces what the campaign says of itself."""
    return replace(_printed(), page=_printed().page | page) if page else _printed()


@cache
def _printed() -> CampaignRecords:
    runs = pd.DataFrame(
        {"scale": scale, "variant": variant, "seed": seed, "final_nll": nll, "device": GPU,
         "processes": 1, "epochs": 1.0, "trained_tokens": 10**8,
         "source": f"runs/{scale}/{variant}/{seed}/record.parquet"}
        for scale, variant, seed, nll in _runs()
    )  # fmt: skip
    million = {"10M": 1e6, "30M": 1e6, "100M": 1e9}
    efficiency = [
        {
            "scale": scale, "seed": seed,
            "target": number("app-token-efficiency", f"{scale}/{seed}", "target"),
            "crossing_tokens": million[scale]
            * number("app-token-efficiency", f"{scale}/{seed}", "crossing"),
            "reduction": number("app-token-efficiency", f"{scale}/{seed}", "reduction") / 100,
            "own_reduction": math.nan, "end_gap": math.nan,
        }
        for scale in SCALES
        for seed in SEEDS
    ]  # fmt: skip
    logs = runs["source"].str.replace("record", "log")
    sources = [
        ("models.parquet", "models", ""),
        *((path, "run", scale) for path, scale in zip(runs["source"], runs["scale"], strict=True)),
        *((path, "log", scale) for path, scale in zip(logs, runs["scale"], strict=True)),
        *((f"flow/{scale}.parquet", "diagnostics", scale) for scale in SCALES),
        *((f"systems/{scale}.parquet", "systems", scale) for scale in SCALES),
    ]
    said = PAGE | {
        "campaign": "printed", "title": "What the paper prints", "description": "",
        "notice": "", "texts": "", "devices": [GPU], "trained": trained_as("paper"),
        "systems": {"precision": ["bf16"], "flash": "flash"},
        "probes": 10, "validations": 20, "validation_tokens": 1048576,
        "corpora": [{"title": "TinyStories", "kind": "huggingface"}], "assumptions": [],
        "commands": {"Everything": "snakemake --cores all --config campaign=printed"},
    }  # fmt: skip

    rates = pd.DataFrame(_throughput_rows())

    return CampaignRecords(
        models=_models(),
        runs=runs,
        efficiency=pd.DataFrame(efficiency),
        flow=pd.DataFrame(_flow_rows()),
        throughput=rates.assign(source=[f"systems/{scale}.parquet" for scale in rates["scale"]]),
        missing=pd.DataFrame(columns=MISSING),
        provenance=pd.DataFrame([provenance_row(*source) for source in sources]),
        page=said,
    )
