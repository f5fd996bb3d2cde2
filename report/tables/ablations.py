"""Ablations and the Hybrid: Tables 3, 13 and 14 (Appendices D and E.2)."""

import pandas as pd

from relation.variants import ABLATIONS
from report.paper import SEEDS
from report.table import Cells, cell, means, table, versus
from report.tables.quality import epochs, nll

# The columns of Table 3.
PRINTED = ("full", "exchange-only", "raw-x", "no-count", "single-head")


def ablation_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of Full Relation and its ablations at 10M, on the matrix's seeds."""
    chosen = runs["variant"].isin(["full", *ABLATIONS]) & (runs["scale"] == "10M")
    return runs[chosen & ~runs["further"]]


def differences(runs: pd.DataFrame) -> pd.DataFrame:
    """Return each variant's NLL − Full Relation's by seed, in row "delta", column delta.VARIANT."""
    values = nll(runs, row="delta")
    return pd.concat([versus(values, name, "full", f"delta.{name}") for name in ABLATIONS])


def other_backends(runs: pd.DataFrame) -> Cells:
    """Yield, in the row "setting", the variants that ran on another backend than Full Relation."""
    usual = set(runs[runs["variant"] == "full"]["backend"])
    others = runs[~runs["backend"].isin(usual)].drop_duplicates(["variant", "backend"])
    names = [f"{run['variant']} on {run['backend']}" for run in others.to_dict("records")]
    if names:
        yield cell("setting", "backends", text=", ".join(names))


@table(
    "3", "structural-ablations", "Structural ablations", scale="10M",
    names={"nll": "NLL ↓", "delta": "Δ vs Full"},
)  # fmt: skip
def structural_ablations(runs: pd.DataFrame) -> Cells:
    """Structural ablations of Full Relation at 10M. NLL: mean ± sample standard deviation over
    seeds. Δ: mean difference from Full Relation over paired seeds, with its 95% interval."""
    runs = ablation_runs(runs)
    printed = runs[runs["variant"].isin(PRINTED)]
    yield from means(nll(printed, row="nll"), "mean")
    yield from means(differences(printed))
    yield from epochs(printed, "nll")
    yield from other_backends(runs)


@table("13", "app-ablation", "Structural ablations by seed", scale="10M")
def ablation_seeds(runs: pd.DataFrame) -> Cells:
    """Final validation NLL of every structural ablation at 10M. Δ is the mean paired difference
    from Full Relation, with its 95% interval over seeds. Our seeds are not the paper's, so their
    values are not compared one by one."""
    runs = ablation_runs(runs)
    variants = runs["variant"]
    of_paper = runs[runs["seed"].isin(SEEDS)]  # the table has columns for these
    by_seed = "seed_" + of_paper["seed"].astype(str)
    yield from means(nll(of_paper, row=of_paper["variant"], column=by_seed))
    yield from means(nll(runs, row=variants, column="mean"), "mean")
    delta = differences(runs)
    of_variants = delta["column"].str.removeprefix("delta.")
    yield from means(delta.assign(row=of_variants, column="delta"))
    if "full" in set(variants):
        yield cell("full", "delta", text="—")  # Full Relation minus itself
    yield from epochs(runs, variants)
    yield from other_backends(runs)


@table("14", "app-hybrid", "Hybrid Relation by seed", scale="30M", names={"mean": "Mean ± SD"})
def hybrid_seeds(runs: pd.DataFrame) -> Cells:
    """Final validation NLL of the Hybrid, three Full and nine Linear layers in the paper, by seed.
    Mean ± sample standard deviation over seeds."""
    runs = runs[(runs["variant"] == "hybrid") & (runs["scale"] == "30M") & ~runs["further"]]
    yield from means(nll(runs, row=runs["seed"].astype(str), column="nll"))
    yield from means(nll(runs, row="mean", column="nll"), "mean")
    yield from epochs(runs, "mean")
