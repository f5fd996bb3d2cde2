"""Flow inside the paired checkpoints: Tables 4 and 7 to 10 (Section 6.2, Appendices B.4, B.5)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from relation.variants import PAIRED
from report import stats
from report.paper import SCALES
from report.table import Column, Panel, Table, cell, means, ratios, sources

# The paper's distances are these parts of its sequences of 1,024 tokens, of shorter ones too.
DISTANCES = {
    "beyond_128": ("beyond_eighth", "d > 128 (T/8)"),
    "beyond_256": ("beyond_quarter", "d > 256 (T/4)"),
    "beyond_512": ("beyond_half", "d > 512 (T/2)"),
}
DEPTH = {"10M": 6, "30M": 10, "100M": 20}
LENGTHS = {"flow_length": "self_flow", "rank_length": "effective_rank"}
SINKS = (1, 2, 4, 8, 16, 32)
SPECTRUM = {
    "stable_rank": ("stable_rank", "Stable rank", ".3f", "1"),
    "effrank": ("effective_rank", "Effective rank", ".3f", "1"),
    "dims_90": ("dims_90", "90% dims", ".2f", "dims"),
    "dims_95": ("dims_95", "95% dims", ".2f", "dims"),
    "top_energy": ("top_singular_energy", "Top singular energy", ".5f", "1"),
}


def by_layer(flow: pd.DataFrame) -> pd.DataFrame:
    """Flow of the pairs pooled to layers: scale, variant, seed, metric, layer, value, count."""
    pairs = flow[flow["variant"].isin(PAIRED)]
    return stats.pooled(pairs, ["scale", "variant", "seed", "source", "metric", "layer"])


def pooled(
    layers: pd.DataFrame, columns: Mapping[str, str], first: int = 0, last: int | None = None
) -> pd.DataFrame:
    """Metrics over the layers `first` to `last`, or from it on, as `means` takes them.

    columns: the metric of each column, which becomes COLUMN.mha and COLUMN.full; a row a scale.
    """
    rows = layers[(layers["layer"] >= first) & ((last is None) | (layers["layer"] == last))]
    keys = ["scale", "variant", "seed", "source", "metric"]
    found = stats.pooled(rows[rows["metric"].isin(columns.values())], keys)
    parts = [
        found[found["metric"] == metric].assign(column=f"{column}." + found["variant"])
        for column, metric in columns.items()
    ]
    return pd.concat(parts).rename(columns={"scale": "row"})


def lengths(flow: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Tokens of the sequences on which flow and ranks were taken."""
    for scale, rows in flow[flow["variant"].isin(PAIRED)].groupby("scale", sort=False):
        for column, metric in LENGTHS.items():
            taken = rows[rows["metric"] == metric]["length"].dropna()
            if len(taken):
                behind = {
                    "n": taken.nunique(),
                    "sources": sources(rows[["source"]].drop_duplicates()),
                }
                yield cell(scale, column, float(taken.max()), **behind)


def _over_layers(columns: Mapping[str, str]) -> Callable[..., Iterator[dict[str, Any]]]:
    """A table of metrics over all layers: a row a scale."""

    def compute(flow: pd.DataFrame) -> Iterator[dict[str, Any]]:
        if len(flow):
            yield from means(pooled(by_layer(flow), columns), seeds=_seeds(flow))
        yield from lengths(flow)

    return compute


def _seeds(flow: pd.DataFrame) -> list[int]:
    return sorted(flow["seed"].unique())


ROUTING_METRICS = {key: metric for key, (metric, _) in DISTANCES.items()} | {"sink_1": "sink_1"}


def internal_organization(flow: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Table 4: depth organization and historical routing."""
    yield from _over_layers(ROUTING_METRICS)(flow)
    if flow.empty:
        return
    layers, seeds = by_layer(flow), _seeds(flow)
    first = pooled(layers, {"l0_self": "self_flow", "l0_effrank": "effective_rank"}, 0, 0)
    yield from means(first, seeds=seeds)
    yield from ratios(first, "l0_effrank.full", "l0_effrank.mha", "l0_effrank.ratio")
    yield from means(pooled(layers, {"l1_self": "self_flow"}, 1, 1), seeds=seeds)
    deep = pooled(layers, {"l2_self": "self_flow", "l2_exchange": "exchange_flow"}, 2)
    yield from means(deep[deep["variant"] == "full"], seeds=seeds)


def layerwise(flow: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Table 7: diagonal or Self flow and effective rank of every layer."""
    if len(flow):
        layers = by_layer(flow)
        layers["scale"] = layers["scale"] + "/L" + layers["layer"].astype(int).astype(str)
        values = pooled(layers, {"self": "self_flow", "effrank": "effective_rank"})
        yield from means(values, seeds=_seeds(flow))
        yield from ratios(values, "effrank.full", "effrank.mha", "effrank.ratio")
    yield from lengths(flow)


def _pair(key: str, title: str, form: str, unit: str) -> tuple[Column, Column]:
    """MHA's column and Relation's; no effect would be Relation at MHA's value."""
    return (
        Column(f"{key}.mha", f"{title}, MHA", form, unit, ("mha",)),
        Column(f"{key}.full", f"{title}, Relation", form, unit, ("full",), null=f"{key}.mha"),
    )


_CONDITIONS = Panel(
    "Conditions",
    (
        Column("flow_length", "Flow taken on sequences of", ".0f", "tokens"),
        Column("rank_length", "Ranks taken on sequences of", ".0f", "tokens"),
    ),
)
_ROUTING = (
    *(c for key, (_, title) in DISTANCES.items() for c in _pair(key, title, ".2f", "%")),
    *_pair("sink_1", "First-token sink", ".3f", "%"),
)

INTERNAL = Table(
    label="relation_internal",
    number="4",
    title="Internal organization",
    caption=(
        "Internal organization of the paired checkpoints: diagonal (MHA) or Self flow (Relation) "
        "and routing rank by depth; where historical flow goes, at distances d that are the same "
        "parts of shorter sequences. Values are means over seeds."
    ),
    panels=(
        Panel(
            "Depth organization",
            (
                *_pair("l0_self", "Layer 0, diagonal / Self flow", ".2f", "%"),
                *_pair("l0_effrank", "Layer 0, effective rank of the flow", ".1f", "1"),
                Column("l0_effrank.ratio", "Relation / MHA", ".2f", "x", null=1.0),
                *_pair("l1_self", "Layer 1, diagonal / Self flow", ".2f", "%"),
                Column("l2_self.full", "From layer 2, Self flow", ".2f", "%"),
                Column("l2_exchange.full", "From layer 2, Exchange flow", ".2f", "%"),
            ),
            SCALES,
        ),
        Panel("Historical routing", _ROUTING, SCALES),
        _CONDITIONS,
    ),
    frames=("flow",),
    compute=internal_organization,
)

LAYERWISE = Table(
    label="app-structural-layerwise",
    number="7",
    title="Flow organization by layer",
    caption=(
        "Normalized flow by layer: MHA's diagonal entry, Relation's Self flow, and the effective "
        "rank of either flow. Values are means over seeds."
    ),
    panels=(
        Panel(
            "",
            (
                *_pair("self", "Diagonal / Self flow", ".2f", "%"),
                *_pair("effrank", "Effective rank", ".1f", "1"),
                Column("effrank.ratio", "Relation / MHA", ".2f", "x", null=1.0),
            ),
            tuple(f"{scale}/L{layer}" for scale in SCALES for layer in range(DEPTH[scale])),
        ),
        _CONDITIONS,
    ),
    frames=("flow",),
    compute=layerwise,
)

ROUTING = Table(
    label="app-structural-routing",
    number="8",
    title="Historical routing",
    caption=(
        "Historical flow beyond three distances and on the first token, conditioned on history. "
        "Values are means over seeds."
    ),
    panels=(Panel("", _ROUTING, SCALES), _CONDITIONS),
    frames=("flow",),
    compute=_over_layers(ROUTING_METRICS),
)

SINK_PROFILE = Table(
    label="app-structural-sink-profile",
    number="9",
    title="Early-token sink profile",
    caption=("Historical flow on the first k tokens, conditioned on history. Means over seeds."),
    panels=(
        Panel(
            "",
            tuple(c for k in SINKS for c in _pair(f"sink_{k}", f"First {k}", ".3f", "%")),
            SCALES,
        ),
        _CONDITIONS,
    ),
    frames=("flow",),
    compute=_over_layers({f"sink_{k}": f"sink_{k}" for k in SINKS}),
)

SPECTRUM_TABLE = Table(
    label="app-structural-spectrum",
    number="10",
    title="Flow spectrum",
    caption="Singular values of the normalized flow, over all layers. Values are means over seeds.",
    panels=(
        Panel("", tuple(c for key, (_, *of) in SPECTRUM.items() for c in _pair(key, *of)), SCALES),
        _CONDITIONS,
    ),
    frames=("flow",),
    compute=_over_layers({key: metric for key, (metric, *_) in SPECTRUM.items()}),
)
