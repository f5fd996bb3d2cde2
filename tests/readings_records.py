"""Invented records of every configured reading, as plausible as the pilot allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd
from conftest import ROOT
from readings_frames import BUDGET, Planted, make_frames

from relation.config import load_config, resolve
from relation.records.multiverse import LAYOUTS, ReadingRecords

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


@cache
def described(campaign: str = "readings") -> tuple[dict, ...]:
    """The readings of a campaign of config.yaml."""
    readings = resolve(load_config(ROOT / "config.yaml"), campaign=campaign).readings
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
    given = given or Invented()
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
    lift = frames.runs["reading"].map(mha) - 2.0
    runs = frames.runs.assign(final_nll=frames.runs["final_nll"] + lift)
    losses = frames.losses.merge(runs[["reading"]].drop_duplicates(), on="reading")
    losses = losses.assign(loss=losses["loss"] + losses["reading"].map(mha) - 2.0)
    about = {
        "scale": "10M", "parameters": 10_425_216, "validation_tokens": 1000,
        "unigram_entropy": 6.0, "trained_tokens": BUDGET, "updates": 400, "epochs": 0.5,
        "seconds": 60.0, "tokens_per_second": 1e6, "peak_memory_gib": 9.5,
        "backend": "cudnn", "code_hash": "c" * 64, "golden_hash": "9" * 64,
        "corpus_sha256": "5" * 64, "commit": "c0ffee" * 6, "torch": "2.13.0",
        "device": "NVIDIA H200", "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    runs = runs.assign(**about)
    runs["order_hash"] = [f"{seed:x}" * 16 for seed in runs["seed"]]
    runs["init_hash"] = runs["order_hash"]
    runs["config_hash"] = [f"{abs(hash_of(row)):064x}" for row in runs.itertuples()]
    probes = pd.concat([_looks(row, planted) for row in runs.itertuples()], ignore_index=True)
    planned = sum(len(p.seeds) * (2 + len(p.ablations)) for p in planted.values())
    gone = [
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
        planned=planned,
        there=len(runs),
        absent=tuple(gone),
        sources=FILES,
    )


def hash_of(row) -> int:
    """A number that is the same for a run in every process."""
    return int.from_bytes(f"{row.reading}{row.variant}{row.seed}".encode()[:30], "big")


def _looks(run, planted: Mapping[str, Planted]) -> pd.DataFrame:
    """Validation NLL, lambda, Self flow and rank of two layers at LOOKS parts of the budget."""
    rows = []
    residual = run.reading.partition("-")[0]
    end = {"unscaled": (0.92, 0.37), "scaled": (0.46, 0.05)}[residual]
    for look in range(LOOKS + 1):
        part = look / LOOKS
        key = {"reading": run.reading, "variant": run.variant, "seed": run.seed}
        key |= {"update": 40 * look, "tokens": 400 * look, "layer": None, "part": None}
        rise = 1 - math.exp(-4 * part)
        rows.append(
            key | {"metric": "validation_nll", "value": run.final_nll + 4 * math.exp(-6 * part)}
        )
        for layer in (0, 1):
            of_layer = key | {"layer": layer}
            shown = {"self_flow": 0.02 + (end[1] if layer == 0 else 0.01) * rise}
            if run.variant == "full":
                shown["lambda"] = 0.5 + (end[0] - 0.5) * rise / (1 + layer)
            rows += [of_layer | {"metric": name, "value": value} for name, value in shown.items()]
    return pd.DataFrame(rows)
