"""Ablations and the Hybrid: Tables 3, 13 and 14 (Appendices D and E.2)."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from relation.variants import ABLATIONS, VARIANTS
from report.paper import SEEDS
from report.table import Column, Panel, Table, between, cell, means
from report.tables.quality import DELTA, NLL, epochs, nll

PRINTED = ("exchange-only", "raw-x", "no-count", "single-head")  # columns of Table 3
ABLATION_SCALE, HYBRID_SCALE = "10M", "30M"


def ablation_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Full Relation and its ablations at 10M, in the seeds of the matrix."""
    chosen = runs["variant"].isin(["full", *ABLATIONS]) & (runs["scale"] == ABLATION_SCALE)
    return runs[chosen & ~runs["further"]]


def differences(runs: pd.DataFrame, row: str) -> pd.DataFrame:
    """Each variant's NLL less Full Relation's, seed by seed; column: the variant."""
    values = nll(runs.assign(row=row), "row")
    parts = [between(values, name, "full", name) for name in values["column"].unique()]
    return pd.concat(parts) if parts else values


def other_backends(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Which variants another backend computes than Full Relation, in the row "setting"."""
    usual = set(runs[runs["variant"] == "full"]["backend"])
    others = runs[~runs["backend"].isin(usual)].drop_duplicates(["variant", "backend"])
    told = [f"{run['variant']} on {run['backend']}" for run in others.to_dict("records")]
    if told:
        yield cell("setting", "backends", text=", ".join(told))


def structural_ablations(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Table 3: mean NLL of each ablation at 10M and its difference to Full Relation."""
    runs = ablation_runs(runs)
    printed = runs[runs["variant"].isin(["full", *PRINTED])]
    seeds = sorted(runs["seed"].unique())
    yield from means(nll(printed.assign(row="nll"), "row"), "mean", seeds)
    delta = differences(printed, "delta")
    yield from means(delta[delta["column"] != "full"], seeds=seeds)
    yield from epochs(printed.assign(row="nll"), "row")
    yield from other_backends(runs)


def ablation_seeds(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Table 13: NLL of every ablation run, their means, and the differences to Full Relation."""
    runs = ablation_runs(runs)
    seeds = sorted(runs["seed"].unique())
    yield from means(
        nll(runs.assign(column="seed_" + runs["seed"].astype(str)), "variant", "column")
    )
    yield from means(nll(runs.assign(column="mean"), "variant", "column"), "mean", seeds)
    delta = differences(runs, "delta")
    yield from means(delta.assign(row=delta["column"], column="delta"), seeds=seeds)
    yield from epochs(runs, "variant")
    yield from other_backends(runs)


def hybrid_seeds(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Table 14: NLL of every Hybrid run and their mean (Appendix E.2)."""
    chosen = (runs["variant"] == "hybrid") & (runs["scale"] == HYBRID_SCALE) & ~runs["further"]
    runs = runs[chosen].assign(column="nll", row="mean")
    yield from means(nll(runs.assign(row=runs["seed"].astype(str)), "row", "column"))
    yield from means(nll(runs, "row", "column"), "mean", sorted(runs["seed"].unique()))
    yield from epochs(runs, "row")


_HEADERS = {
    "full": "Full Relation",
    "exchange-only": "Exchange-only transport",
    "raw-x": "Raw-X communication, I = X",
    "no-count": "No count calibration, λ = 0",
    "single-head": "Single head, H = 1",
}
_EPOCHS = Panel("Conditions", (Column("epochs", "Passes over the windows", ".3g", "epochs"),))
_ROWS = ("full", *ABLATIONS)

STRUCTURAL_ABLATIONS = Table(
    label="structural-ablations",
    number="3",
    title="Structural ablations",
    caption=(
        "Structural ablations of Full Relation in the 10M setting; NLL is mean ± sample standard "
        "deviation over seeds, Δ the mean over paired seeds of the difference to Full Relation, "
        "with its 95% interval."
    ),
    panels=(
        Panel(
            "NLL",
            tuple(
                Column(key, title, NLL, "nat/token", spread=True) for key, title in _HEADERS.items()
            ),
            ("nll",),
        ),
        Panel(
            "Difference",
            tuple(
                Column(key, title, DELTA, "nat/token", (key, "full"), null=0.0)
                for key, title in _HEADERS.items()
                if key != "full"
            ),
            ("delta",),
        ),
        _EPOCHS,
    ),
    frames=("runs",),
    compute=structural_ablations,
    scale=ABLATION_SCALE,
    names={"nll": "NLL ↓", "delta": "Δ vs Full"},
)

ABLATION_SEEDS = Table(
    label="app-ablation",
    number="13",
    title="Structural ablations by seed",
    caption=(
        "Final validation NLL of every structural ablation run in the 10M setting; Δ is the mean "
        "paired difference, with its 95% interval over seeds. Our seeds are not the paper's, and "
        "are not set against them."
    ),
    panels=(
        Panel(
            "",
            (
                *(Column(f"seed_{s}", f"Seed {s}", ".6f", "nat/token") for s in SEEDS),
                Column("mean", "Mean ± SD", ".6f", "nat/token", spread=True),
                Column("delta", "Δ vs Full", DELTA, "nat/token", null=0.0),
            ),
            _ROWS,
        ),
        _EPOCHS,
    ),
    frames=("runs",),
    compute=ablation_seeds,
    scale=ABLATION_SCALE,
    names={name: VARIANTS[name].title for name in _ROWS},
)

HYBRID = Table(
    label="app-hybrid",
    number="14",
    title="Hybrid Relation by seed",
    caption="Final validation NLL of the Hybrid, three Full layers among nine Linear in the paper.",
    panels=(
        Panel(
            "",
            (Column("nll", "Final NLL", ".6f", "nat/token", ("hybrid",), spread=True),),
            (*map(str, SEEDS), "mean"),
        ),
        _EPOCHS,
    ),
    frames=("runs",),
    compute=hybrid_seeds,
    scale=HYBRID_SCALE,
    names={"mean": "Mean ± SD"},
)
