"""Invented readings with known answers: the frames that the readings' records hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from report.judge.readings_rule import VALUES
from report.values.scales import back, forward

SPREAD = 0.1  # deviation between seeds of each of the eight values, on its scale
UPDATES, UPDATE_TOKENS = 400, 10
BUDGET = UPDATES * UPDATE_TOKENS
CHOICES = ("sd-0.02", "sd-torch", "adam-eps", "lr-half", "lr-twice", "short-books")
# What the eight values leave open, by metric, for MHA and for Full Relation.
ELSEWHERE = {
    "exchange_flow": (0.95, 0.98),
    "beyond_eighth": (0.18, 0.25),
    "beyond_quarter": (0.10, 0.15),
    "beyond_half": (0.04, 0.06),
    "sink_1": (0.006, 0.005),
    "sink_32": (0.07, 0.08),
}


@dataclass(frozen=True)
class Named:
    """A configured reading."""

    name: str
    residual: str
    choice: str
    adds: tuple[str, ...]
    beside: bool


@dataclass(frozen=True)
class Planted:
    """What a reading's pairs give.

    shift: of the eight values off the paper's, on their scales, one for all or (8,); seeds: with
    three their values lie SPREAD above, below and at the mean, with two above and below, with one
    at it; delta: final NLL of Full Relation less MHA's, nat/token; ablations: the same of further
    variants less Full's.
    """

    shift: float | Sequence[float] = 0.0
    seeds: tuple[int, ...] = (142, 143, 144)
    delta: float = -0.04
    ablations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Frames:
    """The four frames, as report.values gives them."""

    runs: pd.DataFrame
    losses: pd.DataFrame
    probes: pd.DataFrame
    diagnoses: pd.DataFrame


def configured(adds: Mapping[str, int] | None = None) -> list[Named]:
    """Readings of CHOICES under both residual scales; adds: by name, else one statement."""
    names = [(f"{r}-{c}", r, c) for c in CHOICES for r in ("unscaled", "scaled")]
    beside = ("lr-half", "lr-twice", "short-books")
    counts = {name: (adds or {}).get(name, 1) for name, _, _ in names}
    return [Named(n, r, c, ("x",) * counts[n], c in beside) for n, r, c in names]


def offsets(seeds: Sequence[int]) -> dict[int, int]:
    """In deviations, by seed: their mean is 0 and, of three, their deviation 1."""
    return dict(zip(seeds, (0,) if len(seeds) == 1 else (1, -1, 0), strict=False))


def make_frames(planted: Mapping[str, Planted]) -> Frames:
    """The records of pairs with these answers: six layers, two heads, BUDGET tokens a run."""
    runs, losses, probes, diagnoses = [], [], [], []
    for reading, plan in planted.items():
        for seed, offset in offsets(plan.seeds).items():
            key = {"reading": reading, "seed": seed}
            nlls = {"mha": 2.0, "full": 2.0 + plan.delta + 0.01 * offset}
            nlls |= {name: nlls["full"] + rise for name, rise in plan.ablations.items()}
            for variant, nll in nlls.items():
                own = {**key, "variant": variant}
                runs.append({**own, "final_nll": nll, "budget_tokens": BUDGET})
                losses += _losses(own, nll)
                probes.append(
                    {**own, "update": UPDATES, "tokens": BUDGET, "layer": 0, "part": None}
                    | {"metric": "lambda", "value": 0.5}
                )
                if variant in ("mha", "full"):
                    diagnoses += _diagnosis(own, plan.shift, offset)
    tables = (runs, losses, probes, diagnoses)
    return Frames(*(pd.DataFrame(rows) for rows in tables))


def _losses(own: Mapping, end: float) -> list[dict]:
    """A loss that falls by 1e-3 nat a token to ``end``."""
    consumed = UPDATE_TOKENS * np.arange(1, UPDATES + 1)
    return [
        {**own, "tokens": int(t), "update_tokens": UPDATE_TOKENS, "loss": end + 1e-3 * (BUDGET - t)}
        for t in consumed
    ]


def _diagnosis(own: Mapping, shift: float | Sequence[float], offset: int) -> list[dict]:
    shifts = np.broadcast_to(shift, len(VALUES))
    given = {
        (value.metric, value.layer): float(
            back(value.scale, forward(value.scale, value.paper, value.name) + move)
        )
        for value, move in zip(VALUES, shifts + SPREAD * offset, strict=True)
        if value.variant == own["variant"]
    }
    place = ("mha", "full").index(own["variant"])
    given |= {
        (metric, layer): values[place] * (1 + 0.01 * offset * place)
        for metric, values in {**ELSEWHERE, "self_flow": (0.05, 0.03)}.items()
        for layer in range(6)
        if (metric, layer) not in given
    }
    return [
        {**own, "layer": layer, "head": head, "metric": metric, "count": 4096}
        | {"value": value * (1.05 if head else 0.95)}
        for (metric, layer), value in given.items()
        for head in (0, 1)
    ]
