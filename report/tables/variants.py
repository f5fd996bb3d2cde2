"""Variants that the paper has not, less Full Relation: one row as soon as a run is there."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from relation.variants import ABLATIONS, PAIRED, VARIANTS
from report.table import Column, Panel, Table, between, cell, means, sources
from report.tables.quality import DELTA, NLL, nll

OF_PAPER = (*PAIRED, *ABLATIONS, "linear", "hybrid")


def other_variants(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A row a scale and variant: NLL, the paired difference to Full Relation, parameters."""
    for scale, of_scale in runs.groupby("scale", sort=False):
        values = nll(of_scale)
        for variant, own in of_scale.groupby("variant", sort=False):
            if variant in OF_PAPER:
                continue
            row = f"{scale}/{variant}"
            yield from means(nll(own.assign(column="nll", row=row), "row", "column"))
            less = list(means(between(values, variant, "full", "delta").assign(row=row)))
            why = "no run of Full Relation in one of its seeds"
            missing = cell(row, "delta", n=0, status="not run", reason=why)
            yield from less or [missing]
            known = {"sources": sources(own)}
            yield cell(row, "parameters", float(own["parameters"].iloc[0]), **known)


OTHER_VARIANTS = Table(
    label="variants",
    number="V",
    title="Other variants",
    caption=(
        "Variants that the paper has not, beside Full Relation of the same scale: mean final NLL "
        "over seeds and the mean difference over paired seeds, with 95% intervals."
    ),
    panels=(
        Panel(
            "",
            (
                Column("nll", "NLL", NLL, "nat/token", spread=True),
                Column("delta", "less Full Relation", DELTA, "nat/token", null=0.0),
                Column("parameters", "Parameters", ",.0f", "parameters"),
            ),
        ),
    ),
    frames=("runs",),
    compute=other_variants,
    names={
        f"{s}/{name}": f"{s}, {v.title}"
        for s in ("10M", "30M", "100M")
        for name, v in VARIANTS.items()
    },
    of_paper=False,
)
