"""Flow inside the paired checkpoints: Tables 4 and 7 to 10 (Section 6.2, Appendices B.4, B.5)."""

from collections.abc import Mapping

import pandas as pd

from relation.variants import PAIRED
from report import stats
from report.table import Cells, cell, means, ratios, table

# The paper's distances as parts of its sequences of 1,024 tokens; shorter sequences use them too.
ROUTING = {"beyond_128": "beyond_eighth", "beyond_256": "beyond_quarter"}
ROUTING |= {"beyond_512": "beyond_half", "sink_1": "sink_1"}
LENGTHS = {"flow_length": "self_flow", "rank_length": "effective_rank"}
SINKS = (1, 2, 4, 8, 16, 32)
SPECTRUM = {"effrank": "effective_rank", "top_energy": "top_singular_energy"}
SPECTRUM |= {name: name for name in ("stable_rank", "dims_90", "dims_95")}


def by_layer(flow: pd.DataFrame) -> pd.DataFrame:
    """Pool the pairs' flow to layers: scale, variant, seed, source, metric, layer, value, count."""
    pairs = flow[flow["variant"].isin(PAIRED)]
    return stats.pooled(pairs, ["scale", "variant", "seed", "source", "metric", "layer"])


def over_layers(layers: pd.DataFrame, metrics: Mapping[str, str]) -> pd.DataFrame:
    """Pool metrics over some layers, rows of `by_layer`, for `means`.

    metrics: metric by column. A column becomes COLUMN.mha and COLUMN.full; the rows are scales.
    """
    keys = ["scale", "variant", "seed", "source", "metric"]
    pooled = stats.pooled(layers[layers["metric"].isin(metrics.values())], keys)
    parts = [
        pooled[pooled["metric"] == metric].assign(column=f"{column}." + pooled["variant"])
        for column, metric in metrics.items()
    ]
    return pd.concat(parts).rename(columns={"scale": "row"})


def scale_means(flow: pd.DataFrame, metrics: Mapping[str, str]) -> Cells:
    """Yield means of metrics over all layers, one row per scale."""
    yield from means(over_layers(by_layer(flow), metrics))
    yield from lengths(flow)


def lengths(flow: pd.DataFrame) -> Cells:
    """Yield the lengths, in tokens, of the sequences that flow and ranks were measured on."""
    for scale, rows in flow[flow["variant"].isin(PAIRED)].groupby("scale", sort=False):
        for column, metric in LENGTHS.items():
            tokens = rows[rows["metric"] == metric]["length"].dropna()
            if len(tokens):
                of = rows.drop_duplicates("source")
                yield cell(scale, column, float(tokens.max()), of=of, n=tokens.nunique())


@table("4", "relation_internal", "Internal organization")
def internal_organization(flow: pd.DataFrame) -> Cells:
    """Diagonal flow (MHA) or Self flow (Relation) and effective rank by depth, and historical flow
    beyond a distance of d tokens, the same fraction of T in shorter sequences. Means over seeds."""
    yield from scale_means(flow, ROUTING)
    layers = by_layer(flow)
    metrics = {"l0_self": "self_flow", "l0_effrank": "effective_rank"}
    first = over_layers(layers.query("layer == 0"), metrics)
    yield from means(first)
    yield from ratios(first, "l0_effrank.full", "l0_effrank.mha", "l0_effrank.ratio")
    yield from means(over_layers(layers.query("layer == 1"), {"l1_self": "self_flow"}))
    metrics = {"l2_self": "self_flow", "l2_exchange": "exchange_flow"}
    yield from means(over_layers(layers.query("layer >= 2 and variant == 'full'"), metrics))


@table("7", "app-structural-layerwise", "Flow organization by layer")
def layerwise(flow: pd.DataFrame) -> Cells:
    """Normalized flow by layer: MHA's diagonal entry, Relation's Self flow, and the effective rank
    of each flow. Means over seeds."""
    layers = by_layer(flow)
    layers["scale"] = layers["scale"] + "/L" + layers["layer"].astype(int).astype(str)
    values = over_layers(layers, {"self": "self_flow", "effrank": "effective_rank"})
    yield from means(values)
    yield from ratios(values, "effrank.full", "effrank.mha", "effrank.ratio")
    yield from lengths(flow)


@table("8", "app-structural-routing", "Historical routing")
def routing(flow: pd.DataFrame) -> Cells:
    """Historical flow beyond three distances, in tokens, and on the first token, conditioned on
    history. Means over seeds."""
    yield from scale_means(flow, ROUTING)


@table("9", "app-structural-sink-profile", "Early-token sink profile")
def sink_profile(flow: pd.DataFrame) -> Cells:
    """Historical flow on the first k tokens, conditioned on history. Means over seeds."""
    yield from scale_means(flow, {f"sink_{k}": f"sink_{k}" for k in SINKS})


@table("10", "app-structural-spectrum", "Flow spectrum")
def spectrum(flow: pd.DataFrame) -> Cells:
    """Singular values of the normalized flow: means over heads, layers and seeds. 90% and 95% dims:
    the number of singular values with that share of the energy (their squares)."""
    yield from scale_means(flow, SPECTRUM)
