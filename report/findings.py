"""Prints the numbers of README and docs/replication.md from the shipped records.

`python -m report.findings`; each line names the rows that it rests on.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from relation import plan, records
from report import data, stats, study, table, tables
from report.figures.style import signed
from report.render import number_text

PUBLISHED = Path("results/published")
# Cells of the tables that the pages quote: table, row and column.
QUOTED = re.compile(
    r"app-nll .*(mean|further) (?!epochs).*|efficient-relation .* (matched|peers.other)_?.?ratio"
    r"|relation_internal .* l2_exchange.full|app-structural-layerwise .*L[01] (self|effrank)\..*"
)


def cells(settings: list[data.Records]) -> None:
    """The quoted cells of every setting, each with its interval and its values by seed."""
    known = {each.label: each.columns for each in tables.PAPER}
    for cell in table.cells(settings, tables.PAPER).to_dict("records"):
        key = " ".join((cell["table"], cell["row"], cell["column"]))
        if cell["status"] == "ok" and cell["statistic"] != "sd" and QUOTED.fullmatch(key):
            form, unit = known[cell["table"]][cell["column"]].format, cell["unit"]
            value, low, high = (number_text(cell[n], form, unit) for n in ("value", "low", "high"))
            ends = "" if pd.isna(cell["low"]) else f"95% {low} to {high}, "
            seeds = ", ".join(number_text(each, form) for each in cell["by_seed"].values())
            told = cell["text"] or f"{value} ({ends}n = {cell['n']}) {seeds}"
            print(f"{cell['setting']} {key}: {told}")


def variants(runs: pd.DataFrame) -> None:
    """Final NLL of every variant less Full Relation's of the same seed."""
    for key, own in runs.groupby(["variation", "scale"]):
        wide = own.pivot_table("final_nll", "seed", "variant")
        for variant in wide.columns.difference(["full", "mha"]):
            apart = (wide[variant] - wide["full"]).dropna()
            told = signed(stats.mean(apart))
            print(f"{'/'.join(key)}: {variant} - Relation {told}, n = {len(apart)}")


def lengths(rows: pd.DataFrame) -> None:
    """What longer windows cost, by octave of the trained length."""
    run = ["variation", "scale", "variant", "seed"]
    wide = rows.pivot_table(["nll", "count"], [*run, "first"], "reading")
    more = (wide["nll", "whole"] - wide["nll", "apart"]).rename("value").reset_index()
    more["count"] = wide["count", "whole"].to_numpy()
    context = more["scale"].map({"10M": 1024, "30M": 2048, "100M28pc": 4096, "100M": 4096})
    for times in (1, 2, 4):
        own = more[(more["first"] >= times * context) & (more["first"] < 2 * times * context)]
        for key, group in stats.pooled(own, run).groupby(run[:3]):
            told = signed(stats.mean(group["value"]), "+.3f")
            name = f"long texts {'/'.join(key)}, {times} to {2 * times} T"
            print(f"{name}: {told}, n = {len(group)}")


def readings(values: pd.DataFrame) -> None:
    """Relation − MHA of the readings with several pairs, and by whether the first layer anchors.

    values: `study.reading_values`. The groups have whole books and the paper's learning rate.
    """
    for variation, own in values.groupby("variation"):
        if len(own) > 1:
            print(f"{variation}: {signed(stats.mean(own['apart']))}, n = {len(own)}")
    own = values[~values["variation"].str.contains("short|lr-")]
    for anchored, group in own.groupby(own["self0"] >= 0.2):
        won, second = (group["apart"] < 0).sum(), group["self1"]
        print(
            f"{'20% or more' if anchored else 'less'} Self flow in layer 0: {won} of {len(group)} "
            f"won, mean {group['apart'].mean():+.4f}; layer 1 keeps {second.min():.1%} to "
            f"{second.max():.1%}"
        )


def main() -> None:
    """Print all of them."""
    books = records.load(PUBLISHED / "books")
    cells([data.load(column) for column in plan.load({"campaign": "books"}).columns])
    variants(books["runs"])
    lengths(books["lengths"])
    readings(study.reading_values(records.load(PUBLISHED / "readings")))
    with TemporaryDirectory() as figures:
        for section in study.sections(PUBLISHED, Path(figures)):
            if section.table is not None:
                print(section.name, section.table.to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
