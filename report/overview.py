"""The first page: is Relation better, at which cost, and the results that decide."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from relation.variants import PAIRED, VARIANTS
from report import data, paper, stats
from report.claims import Judged
from report.data import Setting, bits_per_character
from report.evidence import VERDICTS, Evidence, axis
from report.paper import SCALES

# Cells of each scale that stand beside a difference: table and column.
BESIDE = {"spared": ("main-results", "token_reduction")}
BESIDE |= {"kept": ("relation_internal", "l0_self.full")}


def differences(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Relation − MHA by scale, from the pairs beyond the matrix where there are some.

    runs: of a setting. A row has scale, own_scale, the difference as final_nll and bits (Estimates
    in nat/token and bits/character), MHA's mean NLL, and the paper's difference, if any.
    """
    runs = runs.dropna(subset="final_nll")
    runs, rows, names = runs.assign(bits=bits_per_character(runs)), [], ["final_nll", "bits"]
    for (scale, own_scale), own in runs.groupby(["scale", "own_scale"], sort=False):
        arms = own.set_index(["further", "seed"])
        mha, full = (arms.loc[arms["variant"] == v, names] for v in PAIRED)
        apart = (full - mha).dropna(subset="final_nll")
        if apart.empty:
            continue
        further = apart.index.get_level_values("further")
        apart = apart[further == further.max()]
        row = {"scale": scale, "own_scale": own_scale}
        row |= {name: stats.mean(apart[name].dropna()) for name in names}
        row["mha"] = mha["final_nll"][apart.index].mean()
        rows.append(row | {"paper": paper.number("app-nll", f"{own_scale}/mean", "delta")})
    return rows


def compared(
    settings: Sequence[Setting],
    of_settings: Sequence[pd.DataFrame],
    cells: pd.DataFrame,
    miniature: bool,
) -> list[dict[str, Any]]:
    """The rows of `differences` of each setting's runs, scales together, and how each is shown.

    Further keys: setting, its place; shown, as evidence; places, on the axis of all; and BESIDE, a
    cell or None. miniature: nothing is set against the paper.
    """
    found = enumerate(map(differences, of_settings))
    rows = [row | {"setting": k} for k, of in found for row in of]
    rows.sort(key=lambda row: data.size(row["scale"]))
    main = cells[cells["statistic"] != "sd"].set_index(["setting", "table", "row", "column"])
    by_key = main.to_dict("index")
    for row in rows:
        setting, scale = settings[row["setting"]], row["scale"]
        label = row["own_scale" if miniature else "scale"]
        known = {"label": label, "quantity": str(setting), "counted": "pairs"}
        printed = None if miniature else row["paper"]
        row["shown"] = Evidence.of(row["final_nll"], printed, **known)
        for name, (table, column) in BESIDE.items():
            row[name] = by_key.get((setting.name, table, scale, column))
    place = axis([row["shown"] for row in rows])
    return [row | {"places": place(row["shown"])} for row in rows]


def answer(rows: Sequence[Evidence]) -> str:
    """Where Relation's loss is surely below MHA's, or above it, and where that is open."""
    sure = {
        "lower": [row for row in rows if row.high is not None and row.high < 0],
        "higher": [row for row in rows if row.low is not None and row.low > 0],
    }
    told = [
        f"Its loss is {way} in {len(of)} of {len(rows)} comparisons: "
        + "; ".join(f"at {row.label}, {row.quantity}, {_by(row)}" for row in of)
        for way, of in sure.items()
        if of
    ]
    left = len(rows) - sum(map(len, sure.values()))
    told += [f"No difference is established in {left} of {len(rows)}"] if left else []
    return ". ".join([*told, ""]).strip()


def _by(row: Evidence) -> str:
    ends = (f"{abs(end):.4f}" for end in sorted((row.low, row.high), key=abs))
    return f"by {abs(row.ours):.4f} nat/token (95% {' to '.join(ends)}, {row.n} pairs)"


def losses(of_settings: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Final NLL by scale and variant, which shows a change of one key on a single run too.

    of_settings: runs. A row has scale, variant and, a setting each, `cells`: the mean over its
    seeds, and less the first setting on the seeds of both; Estimates, with n = 0 for none.
    """
    key = ["own_scale", "variant", "seed"]
    nll = [runs.set_index(key)["final_nll"] for runs in of_settings]
    wide = pd.concat(nll, axis=1, keys=range(len(nll))).dropna(how="all")
    rows = []
    for (scale, variant), own in wide.groupby(level=key[:2], sort=False):
        apart = own.sub(own[0], axis=0)
        cells = [[stats.mean(of[k].dropna()) for of in (own, apart)] for k in own]
        rows.append({"scale": scale, "variant": data.title(variant), "cells": cells})
    order = {title: place for place, title in enumerate(map(data.title, VARIANTS))}
    return sorted(
        rows, key=lambda row: (data.size(row["scale"]), row["scale"], order.get(row["variant"], 99))
    )


def cost(cells: pd.DataFrame) -> str:
    """Relation's throughput beside attention's and its further parameters, by scale; "" for none.

    Of the first setting that has them; "" for none.
    """
    key = ["table", "column", "row"]
    there = cells[(cells["status"] == "ok") & cells["row"].isin(SCALES)].drop_duplicates(key)
    there = there.assign(scale=there["scale"].fillna(there["row"])).set_index(["column", "scale"])

    def told(values: pd.Series, form: str, unit: str) -> str:
        numbers = ", ".join(format(value, form) for value in values)
        return f"{numbers} {unit} at {', '.join(values.index)}"

    speeds, parts = there[there["table"] == "efficient-relation"], []
    others = speeds["text"].reindex(["peers.name"], level="column").dropna().unique()
    named = {"matched.ratio": "FlashAttention", "peers.other_ratio": ", ".join(others)}
    for column, name in (named | {"fixed.speedup": "the materialised operator"}).items():
        if column in speeds.index and (column != "peers.other_ratio" or len(others) == 1):
            ratios = speeds.loc[column, "value"]
            parts.append(told(ratios, ".2f", f"times the tokens/s of {name}"))
    parts = [f"Training steps with FlashRelation: {'; '.join(parts)}."] if parts else []
    for table, column, form, unit in (
        ("app-prod-fr-fa", "allocated", ".3f", "times FlashAttention’s memory"),
        ("app-configs", "params", ".0f", "more parameters"),
    ):
        both = there.loc[there["table"] == table, "value"]
        both = both.unstack("column").reindex(both.index.unique("scale"))
        if {f"{column}.full", f"{column}.mha"} <= set(both):
            full, mha = both[f"{column}.full"], both[f"{column}.mha"]
            more = full / mha if column == "allocated" else full - mha
            parts.append(told(more.dropna(), form, unit) + ".")
    return " ".join(parts)


def tally(judged: Sequence[Judged]) -> list[tuple[str, int, int]]:
    """Each verdict with how many claims have it, and how many of these are not established."""
    counts = Counter(one.verdict for one in judged)
    unsure = Counter(one.verdict for one in judged if one.not_established)
    return [(name, counts[name], unsure[name]) for name in VERDICTS]
