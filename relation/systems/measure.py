"""One systems benchmark from specification to Parquet."""

from pathlib import Path

import torch

from relation.data.tokens import open_tokens, token_file
from relation.data.windows import TrainingWindows
from relation.devices import claim, describe
from relation.geometry import model_config
from relation.model import Execution
from relation.origin import origin
from relation.parquet import write_parquet
from relation.progress import Progress
from relation.schemas import COMPLEXITY, THROUGHPUT
from relation.spec import SystemsSpec
from relation.systems.operators import probe_operator
from relation.systems.throughput import median_seconds, release, time_updates


def _throughput_row(spec: SystemsSpec, side: dict, data: Path, device: torch.device) -> dict:
    windows = TrainingWindows(open_tokens(token_file(data, "train")), side["context"], seed=0)
    row = {
        "benchmark": spec.benchmark,
        "scale": spec.scale,
        "variant": side["variant"],
        "backend": side["backends"][side["variant"]],
        "context": side["context"],
        "micro": side["micro"],
        "accumulation": side["accumulation"],
        "position": side["position"],
        "status": "OOM",
        "tokens_per_second": None,
        "raw_tokens_per_second": None,
        "allocated_gib": None,
        "reserved_gib": None,
        "measured_updates": 0,
        "device": describe(device),
    }
    try:
        timing = time_updates(
            model_config(side["model"]),
            Execution(**side["backends"], compiled=spec.compile),
            windows,
            side["micro"],
            side["accumulation"],
            spec.warmup_updates,
            spec.measured_updates,
            spec.optimizer,
            spec.precision,
            spec.compile,
            device,
            f"{spec.benchmark} {spec.scale} {row['variant']}/{row['backend']} T={side['context']}",
        )
    except torch.OutOfMemoryError:
        return row
    return row | {
        "status": "PASS",
        "tokens_per_second": timing.tokens_per_second,
        "raw_tokens_per_second": timing.raw_tokens_per_second,
        "allocated_gib": timing.allocated_gib,
        "reserved_gib": timing.reserved_gib,
        "measured_updates": spec.measured_updates,
    }


def _complexity_rows(spec: SystemsSpec, device: torch.device) -> list[dict]:
    rows = []
    with Progress("complexity", len(spec.sides), "points") as progress:
        for side in spec.sides:
            config = model_config(side["model"])
            probe = probe_operator(
                config, side["variant"], side["backends"], side["context"], spec.precision, device
            )
            median, low, high = median_seconds(probe.call, spec.repeats, device)
            rows.append(
                {
                    "operator": side["operator"],
                    "context": side["context"],
                    "seconds": median,
                    "seconds_low": low,
                    "seconds_high": high,
                    "decode_state_bytes": probe.decode_state_bytes,
                    "device": describe(device),
                }
            )
            progress.advance(1, f"{side['operator']} T={side['context']}")
            release(device)
    return rows


def measure(spec: SystemsSpec, data: Path, output: Path) -> None:
    """Run one benchmark and write its Parquet. Out of memory is a row, not a failure."""
    with claim(spec.device) as device:
        written = origin(spec.campaign, spec.config_hash, "systems", describe(device))
        if spec.benchmark == "complexity":
            write_parquet(output, COMPLEXITY, _complexity_rows(spec, device), written)
            return
        rows = []
        for side in spec.sides:
            rows.append(_throughput_row(spec, side, data, device))
            release(device)
        write_parquet(output, THROUGHPUT, rows, written)
