"""Invented records of every configured reading, as plausible as the pilot allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd
from conftest import campaign
from readings_frames import BUDGET, Planted, make_frames

from relation.pipeline.gather import LAYOUTS, ReadingRecords

LOOKS = 10
FILES = tuple(f"results/readings/readings/{kind}.parquet" for kind in LAYOUTS)
BASES = ("unscaled-sd-0.02", "scaled-sd-0.02")
# Of the eight values: layers 0 and 1 of Self flow, of the diagonal, of the ranks; off the paper's.
SHIFTS = {
    "unscaled": (0.5, 0.5, 0.1, 0.0, 0.1, 0.3, -0.1, 0.0),
    "scaled": (-2.0, 0.7, -0.5, 0.0, -0.4, 0.1, 0.1, 0.0),
}
# By residual scale: final NLL of MHA at the base, and of Relation less MHA's.
NLL = {"unscaled": (3.445, -0.065), "scaled": (3.346, -0.012)}
# What a choice adds to both, nat/token.
CHOICES = {
    "sd-torch": (-0.06, 0.02), "sd-rsqrt-d": (0.05, -0.01), "sd-small": (-0.01, 0.004),
    "short-books": (0.1, 0.01), "lr-half": (0.04, -0.01), "lr-twice": (-0.03, 0.01),
    "embedding-times-sqrt-d": (0.02, 0.03), "adam-eps": (0.001, 0.001),
}  # fmt: skip


# At the end of training, by residual scale: lambda and Self flow of layer 0.
ENDS = {"unscaled": (0.92, 0.37), "scaled": (0.46, 0.05)}
# What no test asks of a run.
RUN = {
    "scale": "10M", "parameters": 10_425_216, "validation_tokens": 1000,
    "unigram_entropy": 6.0, "trained_tokens": BUDGET, "updates": 400, "epochs": 0.5,
    "seconds": 60.0, "tokens_per_second": 1e6, "peak_memory_gib": 9.5,
    "backend": "cudnn", "code_hash": "c" * 64, "golden_hash": "9" * 64,
    "corpus_sha256": "5" * 64, "commit": "c0ffee" * 6, "torch": "2.13.0",
    "device": "NVIDIA H200", "created": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


@cache
def described(name: str = "readings") -> tuple[dict, ...]:
    """The readings of a campaign of config.yaml."""
    readings = campaign(name).readings
    return tuple(reading.described() for reading in readings)


@dataclass(frozen=True)
class Invented:
    """What is invented of a campaign's readings.

    seeds: of the readings named, others have 142 alone; delta: final NLL of Relation less MHA's by
    reading, in place of the pilot's; mha: MHA's; keep: the readings that ran, all where empty.
    """

    seeds: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: dict.fromkeys(BASES, (142, 143, 144))
    )
    delta: Mapping[str, float] = field(default_factory=dict)
    mha: Mapping[str, float] = field(default_factory=dict)
    shifts: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    keep: Sequence[str] = ()


def invented(given: Invented | None = None) -> ReadingRecords:
    """The records of these runs; the same arguments give the same records."""
    return _default() if given is None else _make(given)


@cache
def _default() -> ReadingRecords:
    return _make(Invented())


def _make(given: Invented) -> ReadingRecords:
    readings = described()
    names = [r["name"] for r in readings if not given.keep or r["name"] in given.keep]
    planted, mha = {}, {}
    for reading in readings:
        name, residual, choice = (reading[key] for key in ("name", "residual", "choice"))
        own = np.random.default_rng([*name.encode()]).normal(0, 0.15, 8)
        base, more = NLL[residual], CHOICES.get(choice, (0.0, 0.0))
        mha[name] = given.mha.get(name, base[0] + more[0])
        planted[name] = Planted(
            shift=given.shifts.get(name, np.add(SHIFTS[residual], own)),
            seeds=tuple(given.seeds.get(name, (142,))),
            delta=given.delta.get(name, base[1] + more[1]),
            ablations={"no-count": 0.04, "exchange-only": 0.02} if name in BASES else {},
        )
    frames = make_frames({name: planted[name] for name in names})
    # The frames have every MHA end at 2.0.
    lift = {name: value - 2.0 for name, value in mha.items()}
    losses = frames.losses.assign(loss=frames.losses["loss"] + frames.losses["reading"].map(lift))
    runs = frames.runs.assign(
        final_nll=frames.runs["final_nll"] + frames.runs["reading"].map(lift), **RUN
    )
    runs["order_hash"] = runs["init_hash"] = [f"{seed:x}" * 16 for seed in runs["seed"]]
    runs["config_hash"] = runs["reading"] + runs["variant"] + runs["seed"].astype(str)
    probes = pd.DataFrame([look for run in runs.itertuples() for look in _looks(run)])
    absent = [
        f"{name}/{variant}/{seed}"
        for name, plan in planted.items()
        if name not in names
        for seed in plan.seeds
        for variant in ("mha", "full")
    ]
    kinds = {"runs": runs, "losses": losses, "probes": probes, "diagnoses": frames.diagnoses}
    return ReadingRecords(
        described=readings,
        **{kind: rows[LAYOUTS[kind].names] for kind, rows in kinds.items()},
        planned=len(runs) + len(absent),
        there=len(runs),
        absent=tuple(absent),
        sources=FILES,
    )


def _looks(run) -> Iterator[dict]:
    """Validation NLL, lambda and Self flow of two layers at LOOKS parts of the budget."""
    lam, self_flow = ENDS[run.reading.partition("-")[0]]
    for look in range(LOOKS + 1):
        part = look / LOOKS
        key = {"reading": run.reading, "variant": run.variant, "seed": run.seed}
        key |= {"update": 40 * look, "tokens": 400 * look, "layer": None, "part": None}
        yield key | {
            "metric": "validation_nll", "value": run.final_nll + 4 * math.exp(-6 * part),
        }  # fmt: skip
        rise = 1 - math.exp(-4 * part)
        for layer in (0, 1):
            shown = {"self_flow": 0.02 + (0.01 if layer else self_flow) * rise}
            if run.variant == "full":
                shown["lambda"] = 0.5 + (lam - 0.5) * rise / (1 + layer)
            for name, value in shown.items():
                yield key | {"layer": layer, "metric": name, "value": value}


# One reading's answer turns: Relation loses clearly under it, and wins under all others.
TURNED = Invented(
    seeds={reading["name"]: (142, 143, 144) for reading in described()},
    delta={reading["name"]: -0.065 for reading in described()} | {"scaled-adam-eps": 0.065},
)
