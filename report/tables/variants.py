"""Variants beyond the paper, compared with Full Relation: one row per variant with a run."""

import pandas as pd

from relation.variants import ABLATIONS, PAIRED
from report.table import Cells, cell, means, table, versus
from report.tables.quality import nll

OF_PAPER = (*PAIRED, *ABLATIONS, "linear", "hybrid")


@table("V", "variants", "Other variants", of_paper=False)
def other_variants(runs: pd.DataFrame) -> Cells:
    """Variants beyond the paper, compared with Full Relation at the same scale: mean final NLL over
    seeds, and mean difference from Full Relation over paired seeds, with 95% intervals."""
    for (scale, variant), variant_runs in runs.groupby(["scale", "variant"], sort=False):
        if variant in OF_PAPER:
            continue
        row = f"{scale}/{variant}"
        yield from means(nll(variant_runs, row=row, column="nll"))
        values = nll(runs[runs["scale"] == scale])
        differences = list(means(versus(values, variant, "full", "delta").assign(row=row)))
        why = "no run of Full Relation has one of its seeds"
        yield from differences or [cell(row, "delta", status="not run", reason=why)]
        yield cell(row, "parameters", float(variant_runs["parameters"].iloc[0]), of=variant_runs)
