"""The first page: is Relation better, at which cost, and the results that decide."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from relation.variants import PAIRED, VARIANTS
from report import data, paper, stats
from report.claims import Judged
from report.data import Setting, bits_per_character
from report.evidence import VERDICTS, Evidence, axis
from report.paper import SCALES

# Cells of each scale that stand beside a difference: table and column.
CONTEXT_CELLS = {"spared": ("main-results", "token_reduction")}
CONTEXT_CELLS |= {"self_flow": ("relation_internal", "l0_self.full")}


def differences(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Relation − MHA by scale, from the pairs beyond the matrix where there are some.

    runs: of a setting. A row has scale, own_scale, the difference as final_nll and bits (Estimates
    in nat/token and bits/character), MHA's mean NLL, the loss that the tokens' frequencies alone
    give, and the paper's difference, if any.
    """
    runs = runs.dropna(subset="final_nll")
    runs, names = runs.assign(bits=bits_per_character(runs)), ["final_nll", "bits"]
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
    settings: Sequence[Setting], runs: Sequence[pd.DataFrame], cells: pd.DataFrame, miniature: bool
) -> list[dict[str, Any]]:
    """The rows of `differences` of each setting's runs, scales together, and how each is shown.

    Further keys: setting, its place; evidence; places, on the axis of all; and CONTEXT_CELLS, a
    cell or None. miniature: nothing is set against the paper.
    """
    rows = [row | {"setting": k} for k, each in enumerate(runs) for row in differences(each)]
    rows.sort(key=lambda row: data.scale_order(row["scale"]))
    main = cells[cells["statistic"] != "sd"].set_index(["setting", "table", "row", "column"])
    by_key = main.to_dict("index")
    for row in rows:
        setting, scale = settings[row["setting"]], row["scale"]
        label = row["own_scale" if miniature else "scale"]
        labels = {"label": label, "quantity": str(setting), "counted": "pairs"}
        printed = None if miniature else row["paper"]
        row["evidence"] = Evidence.of(row["final_nll"], printed, **labels)
        for name, (table, column) in CONTEXT_CELLS.items():
            row[name] = by_key.get((setting.name, table, scale, column))
    place = axis([row["evidence"] for row in rows])
    return [row | {"places": place(row["evidence"])} for row in rows]


def answer(rows: Sequence[Evidence]) -> str:
    """In how many comparisons Relation's loss is below MHA's, or above it, by a 95% interval."""
    established = {
        "lower": [row for row in rows if row.high is not None and row.high < 0],
        "higher": [row for row in rows if row.low is not None and row.low > 0],
    }
    sentences = [
        f"Its loss is {way} in {len(those)} of {len(rows)} comparisons, by a 95% interval: "
        + "; ".join(f"at {row.label}, {row.quantity}, {_by(row)}" for row in those)
        for way, those in established.items()
        if those
    ]
    if undecided := len(rows) - sum(map(len, established.values())):
        of = f"{undecided} of {len(rows)} comparisons"
        sentences.append(f"In {of} no difference from MHA’s loss is established")
    return ". ".join([*sentences, ""]).strip()


def _by(row: Evidence) -> str:
    ends = (f"{abs(end):.4f}" for end in sorted((row.low, row.high), key=abs))
    return f"by {abs(row.ours):.4f} nat/token (95% {' to '.join(ends)}, {row.n} pairs)"


def losses(runs_of_settings: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Final NLL by scale and variant, which shows a change of one key on a single run too.

    A row has scale, variant and, a setting each, `cells`: the mean over its seeds, and the mean
    difference to the first setting over common seeds; Estimates, with n = 0 for none.
    """
    key = ["own_scale", "variant", "seed"]
    nll = [runs.set_index(key)["final_nll"] for runs in runs_of_settings]
    wide = pd.concat(nll, axis=1, keys=range(len(nll))).dropna(how="all")
    rows = []
    for (scale, variant), by_seed in wide.groupby(level=key[:2], sort=False):
        pairs = by_seed.sub(by_seed[0], axis=0)  # less the first setting's
        cells = [[stats.mean(nll[k].dropna()) for nll in (by_seed, pairs)] for k in by_seed]
        rows.append({"scale": scale, "variant": data.title(variant), "cells": cells})
    order = {data.title(name): place for place, name in enumerate(VARIANTS)}
    rows.sort(key=lambda row: order.get(row["variant"], len(order)))
    return sorted(rows, key=lambda row: (data.scale_order(row["scale"]), row["scale"]))


def cost(cells: pd.DataFrame) -> str:
    """Relation's throughput beside attention's and its further parameters, by scale.

    Of the first setting that has them; "" for none.
    """
    key = ["table", "column", "row"]
    measured = cells[(cells["status"] == "ok") & cells["row"].isin(SCALES)].drop_duplicates(key)
    scales = measured["scale"].fillna(measured["row"])
    measured = measured.assign(scale=scales).set_index(["column", "scale"])

    def phrase(values: pd.Series, form: str, unit: str) -> str:
        numbers = ", ".join(format(value, form) for value in values)
        return f"{numbers} {unit} at {', '.join(values.index)}"

    speeds, parts = measured[measured["table"] == "efficient-relation"], []
    others = speeds["text"].reindex(["peers.name"], level="column").dropna().unique()
    sides = {"matched.ratio": "FlashAttention", "peers.other_ratio": ", ".join(others)}
    for column, name in (sides | {"fixed.speedup": "the materialised operator"}).items():
        if column in speeds.index and (column != "peers.other_ratio" or len(others) == 1):
            ratios = speeds.loc[column, "value"]
            parts.append(phrase(ratios, ".2f", f"times the tokens/s of {name}"))
    parts = [f"Training steps with FlashRelation: {'; '.join(parts)}."] if parts else []
    for table, column, form, unit in (
        ("app-prod-fr-fa", "allocated", ".3f", "times FlashAttention’s memory"),
        ("app-configs", "params", ".0f", "more parameters"),
    ):
        arms = measured.loc[measured["table"] == table, "value"]
        arms = arms.unstack("column").reindex(arms.index.unique("scale"))
        if {f"{column}.full", f"{column}.mha"} <= set(arms):
            full, mha = arms[f"{column}.full"], arms[f"{column}.mha"]
            more = full / mha if column == "allocated" else full - mha
            parts.append(phrase(more.dropna(), form, unit) + ".")
    return " ".join(parts)


def tally(judged: Sequence[Judged]) -> list[tuple[str, int, int]]:
    """Each verdict with how many claims have it, and how many of these are not established."""
    counts = Counter(one.verdict for one in judged)
    unsure = Counter(one.verdict for one in judged if one.not_established)
    return [(name, counts[name], unsure[name]) for name in VERDICTS]
