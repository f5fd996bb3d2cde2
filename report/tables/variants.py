"""Variants that the paper has not, less Full Relation: one row as soon as a run is there."""

import pandas as pd

from relation.variants import ABLATIONS, PAIRED, VARIANTS
from report.paper import SCALES
from report.table import Cells, cell, means, table, versus
from report.tables.quality import nll

OF_PAPER = (*PAIRED, *ABLATIONS, "linear", "hybrid")
NAMES = {f"{s}/{key}": f"{s}, {one.title}" for s in SCALES for key, one in VARIANTS.items()}


@table("V", "variants", "Other variants", names=NAMES, of_paper=False)
def other_variants(runs: pd.DataFrame) -> Cells:
    """Variants that the paper has not, beside Full Relation of the same scale: mean final NLL over
    seeds and the mean difference over paired seeds, with 95% intervals."""
    for (scale, variant), own in runs.groupby(["scale", "variant"], sort=False):
        if variant in OF_PAPER:
            continue
        row = f"{scale}/{variant}"
        yield from means(nll(own.assign(column="nll", row=row), "row", "column"))
        values = nll(runs[runs["scale"] == scale])
        less = list(means(versus(values, variant, "full", "delta").assign(row=row)))
        why = "no run of Full Relation has one of its seeds"
        yield from less or [cell(row, "delta", status="not run", reason=why)]
        yield cell(row, "parameters", float(own["parameters"].iloc[0]), of=own)
