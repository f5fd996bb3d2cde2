"""Contents of the first page: whether Relation is better, its cost, and the verdicts on claims."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from relation.variants import PAIRED, VARIANTS
from report import data, paper, stats
from report.claims import Judged
from report.data import Setting
from report.evidence import VERDICTS
from report.paper import SCALES
from report.render import DASH, axis

# Table and column of the cells that the first page shows next to a scale's difference.
CONTEXT_CELLS = (("main-results", "token_reduction"), ("relation_internal", "l0_self.full"))
# Columns of Tables 5, 6 and 15 behind the cost of a training step.
COST = ["matched.ratio", "peers.other_ratio", "fixed.speedup"]
COST += ["allocated.full", "allocated.mha", "params.full", "params.mha"]


def differences(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield Relation − MHA by scale; if a scale has pairs beyond the matrix, from those alone.

    runs: the runs of one setting. A row has scale, own_scale, the difference as final_nll and bits
    (Estimates in nat/token and bits/character), MHA's mean NLL as mha, the loss that the tokens'
    frequencies alone give as frequencies, and the paper's difference, or None, as paper.
    """
    names, runs = ["final_nll", "bits"], runs.dropna(subset="final_nll")
    runs = runs.assign(bits=stats.bits_per_character(runs))
    for (scale, own_scale), group in runs.groupby(["scale", "own_scale"], sort=False):
        arms = group.set_index(["further", "seed"])
        mha, full = (arms.loc[arms["variant"] == v, names] for v in PAIRED)
        difference = (full - mha).dropna(subset="final_nll")
        if difference.empty:
            continue
        further = difference.index.get_level_values("further")
        difference = difference[further == further.max()]
        row = {"scale": scale, "own_scale": own_scale}
        row |= {name: stats.mean(difference[name].dropna()) for name in names}
        row["mha"] = mha["final_nll"][difference.index].mean()
        row["frequencies"] = group["unigram_entropy"].mean()
        yield row | {"paper": paper.number("app-nll", f"{own_scale}/mean", "delta")}


def difference_rows(
    settings: Sequence[Setting], runs: Sequence[pd.DataFrame], cells: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return the rows of `differences` of every setting, sorted by scale, ready for the template.

    Further keys: setting (its index), title (the setting's), label (the scale's), places (on one
    axis for all rows), and context (a cell or None for each of CONTEXT_CELLS).
    """
    rows = [row | {"setting": k} for k, each in enumerate(runs) for row in differences(each)]
    rows.sort(key=lambda row: data.scale_order(row["scale"]))
    main = cells[cells["statistic"] != "sd"].set_index(["setting", "table", "row", "column"])
    by_key = main.to_dict("index")
    for row in rows:
        setting = settings[row["setting"]]
        is_mini = row["own_scale"].endswith("-mini")
        row |= {"title": str(setting), "label": row["own_scale" if is_mini else "scale"]}
        keys = ((setting.name, table, row["scale"], column) for table, column in CONTEXT_CELLS)
        row["context"] = list(map(by_key.get, keys))
    drawn = [(row["paper"], row["final_nll"]) for row in rows]
    # A band of no width keeps zero on the axis.
    places = axis(((printed, each.value, each.low, each.high) for printed, each in drawn), 0.0)
    return [row | {"places": place} for row, place in zip(rows, places, strict=True)]


def losses(runs_of_settings: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Return final NLL by scale and variant, also for a single run with one key changed.

    A row has scale, variant and `cells`. These hold per setting two Estimates, the mean over its
    seeds and the mean difference from the first setting over common seeds (n = 0: no value), and
    how many of its runs diverged.
    """
    key = ["own_scale", "variant", "seed"]
    nll = [runs.set_index(key)["final_nll"].fillna(math.inf) for runs in runs_of_settings]
    wide = pd.concat(nll, axis=1, keys=range(len(nll)))
    rows = []
    for (scale, variant), by_seed in wide.groupby(level=key[:2], sort=False):
        diverged = by_seed == math.inf
        finite = by_seed.mask(diverged)
        less = finite.sub(finite[0], axis=0)  # minus the first setting's
        means = [[stats.mean(each[k].dropna()) for k in each] for each in (finite, less)]
        cells = list(zip(*means, diverged.sum(), strict=True))
        rows.append({"scale": scale, "variant": data.title(variant), "cells": cells})
    order = {data.title(name): place for place, name in enumerate(VARIANTS)}
    rows.sort(key=lambda row: order.get(row["variant"], len(order)))
    return sorted(rows, key=lambda row: (data.scale_order(row["scale"]), row["scale"]))


def cost(cells: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return the cost of a training step with FlashRelation, compared with attention.

    The keys are quantity and scale. Values, with their intervals if the table has them, come from
    the first setting that has most at a scale. A quantity without a value anywhere is left out.
    """
    cells = cells[(cells["status"] == "ok") & cells["row"].isin(SCALES)]
    counts = cells[cells["column"].isin(COST)].groupby(["row", "setting"], sort=False).size()
    most = list(counts.groupby("row").idxmax())
    cells = cells[pd.MultiIndex.from_frame(cells[["row", "setting"]]).isin(most)]
    cells = cells.assign(scale=cells["scale"].fillna(cells["row"]))
    others = cells.loc[cells["column"] == "peers.name", "text"].unique()
    behind = cells[cells["column"].isin(COST)]
    estimates = map(stats.Estimate, behind["value"], behind["low"], behind["high"])
    behind = behind.assign(estimate=[f"{each:.2f}" for each in estimates])
    scales, by = cells["scale"].unique(), {"index": "scale", "columns": "column"}
    values = behind.pivot(values="value", **by).reindex(scales, columns=COST)
    speeds = behind.pivot(values="estimate", **by).reindex(scales, columns=COST)
    memory = values["allocated.full"] / values["allocated.mha"]
    more = values["params.full"] - values["params.mha"]
    quantities = {
        "times the tokens/s of FlashAttention": speeds["matched.ratio"],
        f"times the tokens/s of {' or '.join(others)}": speeds["peers.other_ratio"],
        "times the tokens/s of the materialised operator": speeds["fixed.speedup"],
        "times the memory of FlashAttention": memory.map("{:.3f}".format, na_action="ignore"),
        "more parameters": more.map("{:.0f}".format, na_action="ignore"),
    }
    table = pd.DataFrame(quantities).dropna(how="all").dropna(axis="columns", how="all")
    return table.fillna(DASH).to_dict()


def tally(judged: Sequence[Judged]) -> list[tuple[str, int, int]]:
    """Return each verdict, the number of its claims, and how many of them are not established."""
    counts = Counter(one.verdict for one in judged)
    unsure = Counter(one.verdict for one in judged if one.not_established)
    return [(name, counts[name], unsure[name]) for name in VERDICTS]
