"""An invented campaign for the report's tests, in the columns of the real records."""

import math

import pandas as pd
import pytest

from relation import schemas
from relation.records import CampaignRecords

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
    for scale, depth in LAYERS.items():
        for variant in ("mha", "full"):
            for seed in SEEDS[scale]:
                for layer in range(depth):
                    for head in range(2):
                        for metric in METRICS:
                            rise = 0.1 if variant == "mha" else 0.2 * (layer + 1) * (head + 1)
                            yield {
                                "scale": scale, "variant": variant, "seed": seed, "layer": layer,
                                "head": head, "sequence": 0, "length": 64, "metric": metric,
                                "value": rise, "source": f"flow/{scale}/{variant}/{seed}.parquet",
                            }  # fmt: skip


def _measurement(benchmark, scale, variant, backend, rate, **changes):
    return {
        "benchmark": benchmark, "scale": scale, "variant": variant, "backend": backend,
        "context": 64, "micro": 4, "accumulation": 2, "status": "PASS", "tokens_per_second": rate,
        "raw_tokens_per_second": rate / 2, "allocated_gib": math.nan, "reserved_gib": math.nan,
        "position": 0, "device": "cpu_0", "source": f"systems/{benchmark}.parquet", **changes,
    }  # fmt: skip


def _throughput_rows():
    yield _measurement("fixed", "10M", "full", "reference", 100.0)
    yield _measurement("fixed", "10M", "full", "tiled", 250.0)
    yield _measurement("matched", "10M", "mha", "sdpa", 400.0)
    yield _measurement("matched", "10M", "full", "tiled", 300.0, allocated_gib=0.0213)
    yield _measurement("linear-steady", "10M", "linear", "recurrent", 80.0)
    for position in range(9):
        oom = {"status": "OOM", "tokens_per_second": math.nan} if position == 4 else {}
        context = 64 * 2**position
        yield (
            _measurement(
                "linear-long",
                "30M",
                "linear",
                "recurrent",
                70.0,
                context=context,
                position=position,
            )
            | oom
        )


def make_records(comparable=False):
    """A campaign with missing seeds, an OOM, a crossing never reached and hostile words."""
    models, runs, logs, efficiency = [], [], [], []
    for scale, depth in LAYERS.items():
        for variant in _variants(scale):
            models.append(
                {
                    "scale": scale, "variant": variant, "parameters": 1000 + (variant != "mha"),
                    "layers": depth, "d_model": 32, "heads": 2, "head_dim": 16, "d_ff": 64,
                    "vocab": 512, "context": 64, "micro": 4, "accumulation": 2,
                    "budget_tokens": 98_304, "data_title": HOSTILE, "layout": "F" * depth,
                }
            )  # fmt: skip
            for seed in SEEDS[scale]:
                key = {"scale": scale, "variant": variant, "seed": seed}
                nll = NLL.get(variant, 2.1) + 0.01 * (seed - 42) * (2 if variant == "full" else 1)
                source = f"runs/{scale}/{variant}/{seed}/record.parquet"
                runs.append(key | {"final_nll": nll, "device": "cpu_0", "source": source})
                logs += [
                    key | {"update": k + 1, "tokens": 2048 * (k + 1), "update_tokens": 2048,
                           "loss": nll + 3 / (k + 1)}
                    for k in range(48)
                ]  # fmt: skip
        for seed in SEEDS[scale]:
            reached = seed != 43
            efficiency.append(
                {
                    "scale": scale, "seed": seed, "target": 2.5,
                    "crossing_tokens": 90_000.0 if reached else math.nan,
                    "reduction": 0.0845 if reached else math.nan,
                }
            )  # fmt: skip
    complexity = [
        {
            "operator": operator, "context": context, "seconds": 1e-6 * context**power,
            "seconds_low": 0.9e-6 * context**power, "seconds_high": 1.1e-6 * context**power,
            "decode_state_bytes": 512.0 if operator == "linear" else 64.0 * context,
            "device": "cpu_0", "scale": "30M", "source": "systems/complexity.parquet",
        }
        for operator, power in (("mha", 2), ("full-reference", 2), ("full-flash", 2), ("linear", 1))
        for context in (64, 128, 256, 512)
    ]  # fmt: skip
    missing = [
        {"kind": kind, "scale": scale, "variant": variant, "seed": seed, "reason": HOSTILE}
        for kind in ("run", "flow")
        for scale, seed in (("30M", 44), ("100M", 43), ("100M", 44))
        for variant in ("mha", "full")
    ]
    page = {
        "campaign": "invented", "title": f"Invented {HOSTILE}", "description": HOSTILE,
        "comparable": comparable, "notice": "" if comparable else f"Too small. {HOSTILE}",
        "devices": ["cpu_0"], "miniature": True, "seeds": [42, 43, 44], "scales": list(LAYERS),
        "efficiency_window": 0.01,
        "assumptions": [{"question": HOSTILE, "value": [1.0, 16.0], "name": "a_range"}],
        "origin": {"commit": "c0ffee", "versions": {"torch": "2.13.0"}},
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
        missing=pd.DataFrame(missing),
        page=page,
    )


def make_empty():
    """The same campaign before anything ran."""
    full = make_records()
    frames = {
        name: pd.DataFrame(columns=frame.columns) if isinstance(frame, pd.DataFrame) else frame
        for name, frame in vars(full).items()
    }
    return CampaignRecords(**frames)


@pytest.mark.parametrize("frame", ["models", "flow", "throughput", "complexity"])
def test_the_invented_frames_use_columns_of_the_records_only(frame):
    known = {*getattr(schemas, frame.upper()).names, "scale", "source"}
    assert set(getattr(make_records(), frame).columns) <= known
