"""Aggregation of the structural diagnostics in the paper's order (Appendix B.4).

Sequences pool at a head; heads are count-weighted at a layer and layers at a scale, so that every
value there is the mean over all rows, or matrices, behind it; checkpoints of several seeds then
count alike.
"""

from collections.abc import Sequence

import pandas as pd

_CHECKPOINT = ["scale", "variant", "seed", "metric"]


def _count_weighted(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """A row a group: `value`, weighted by `count`, and the group's `count`."""
    weighted = values.assign(value=values["value"].astype("float64") * values["count"])
    # Checkpoints of no campaign have null keys, which are groups too.
    sums = weighted.groupby(list(keys), observed=True, dropna=False)[["value", "count"]].sum()
    return sums.assign(value=sums["value"] / sums["count"]).reset_index()


def by_layer(flow: pd.DataFrame) -> pd.DataFrame:
    """Rows of FLOW to a row a checkpoint, metric and layer, with `value` and `count`."""
    return _count_weighted(flow, [*_CHECKPOINT, "layer"])


def by_checkpoint(layers: pd.DataFrame) -> pd.DataFrame:
    """Rows of `by_layer`, of all layers or some, to a row a checkpoint and metric."""
    return _count_weighted(layers, _CHECKPOINT)


def by_seed(layers: pd.DataFrame) -> pd.DataFrame:
    """`by_checkpoint` of one scale, variant and metric: a row a seed."""
    return _count_weighted(layers, ["seed"])


def over_sequences(flow: pd.DataFrame) -> pd.DataFrame:
    """Rows of FLOW, of one checkpoint, to a row a layer, head and metric, sequences pooled."""
    return _count_weighted(flow, ["layer", "head", "metric"])
