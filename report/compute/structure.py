"""Structural diagnostics of the paired checkpoints (sections 4.2, B.4, B.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from report.compute.measured import Measured, Measurements, absent, no_counterpart, select
from report.layout import SCALES

if TYPE_CHECKING:
    from relation.records import CampaignRecords

DISTANCES = {
    "beyond_128": "beyond_eighth",
    "beyond_256": "beyond_quarter",
    "beyond_512": "beyond_half",
}
SINKS = tuple(f"sink_{k}" for k in (1, 2, 4, 8, 16, 32))
SPECTRUM = {
    "stable_rank": "stable_rank",
    "effrank": "effective_rank",
    "dims_90": "dims_90",
    "dims_95": "dims_95",
    "top_energy": "top_singular_energy",
}
PAIR = ("mha", "full")
_CHECKPOINT = ["scale", "variant", "seed", "metric"]


class FlowMeans:
    """Flow metrics by checkpoint and layer.

    The order is the paper's: heads and sequences at a layer, layers of a checkpoint, seeds.
    """

    def __init__(self, records: CampaignRecords) -> None:
        self._records = records
        self._layers = (
            records.flow.groupby([*_CHECKPOINT, "layer"], observed=True)["value"]
            .mean()
            .reset_index()
        )
        self._sources = records.flow[["scale", "variant", "source"]].drop_duplicates()

    def depth(self, scale: str) -> int | None:
        """Layers of this campaign's model at a scale; None if it plans no such pair."""
        models = select(self._records.models, scale=scale, variant=PAIR)
        return int(models["layers"].max()) if len(models) else None

    def at_layer(self, scale: str, variant: str, metric: str, layer: int) -> Measured:
        """A metric at one layer, mean over seeds."""
        return self._mean(scale, variant, metric, layer, layer)

    def from_layer(self, scale: str, variant: str, metric: str, first: int = 0) -> Measured:
        """A metric over all layers from ``first`` on, mean over layers, then over seeds."""
        return self._mean(scale, variant, metric, first, None)

    def _mean(
        self, scale: str, variant: str, metric: str, first: int, last: int | None
    ) -> Measured:
        depth = self.depth(scale)
        if depth is not None and first >= depth:
            return no_counterpart(f"this campaign's {scale} has {depth} layers")
        rows = select(self._layers, scale=scale, variant=variant, metric=metric)
        rows = rows[rows["layer"] >= first]
        if last is not None:
            rows = rows[rows["layer"] <= last]
        if rows.empty:
            return absent(self._records, ("flow", "run"), scale, (variant,))
        checkpoints = rows.groupby("seed")["value"].mean()
        left_out = [str(s) for s in self._records.page["seeds"] if s not in checkpoints.index]
        return Measured(
            float(checkpoints.mean()),
            unit=_unit(metric),
            n=len(checkpoints),
            reason=f"seeds without a value: {', '.join(left_out)}" if left_out else "",
            sources=tuple(select(self._sources, scale=scale, variant=variant)["source"]),
        )

    def length(self, scale: str, metric: str) -> Measured:
        """Tokens of the sequences on which a metric was taken."""
        lengths = select(self._records.flow, scale=scale, metric=metric)["length"].unique()
        if len(lengths) == 0:
            return absent(self._records, ("flow", "run"), scale, PAIR)
        return Measured(float(max(lengths)), unit="tokens", n=len(lengths))


def _unit(metric: str) -> str:
    """The paper's unit of a metric: shares of flow in percent, dimensions as such."""
    if metric.endswith("_flow") or metric.startswith(("beyond_", "sink_")):
        return "%"
    return "dims" if metric.startswith("dims_") else "1"


def ratio(numerator: Measured, denominator: Measured) -> Measured:
    """The ratio of two means; absent for the reason that either is."""
    for term in (numerator, denominator):
        if term.value is None:
            return term
    if denominator.value == 0:
        return no_counterpart("the denominator is zero")
    return Measured(
        numerator.value / denominator.value,
        unit="x",
        n=min(numerator.n, denominator.n),
        reason=numerator.reason or denominator.reason,
        sources=denominator.sources + numerator.sources,
    )


def _pair(found: Measurements, means: FlowMeans, scale: str, columns: dict[str, str]) -> None:
    for column, metric in columns.items():
        for variant in PAIR:
            found[scale, f"{column}.{variant}", "value"] = means.from_layer(scale, variant, metric)


def internal_organization(records: CampaignRecords) -> Measurements:
    """Table 4: depth organization and historical routing."""
    means = FlowMeans(records)
    found: Measurements = {}
    for scale in SCALES:
        for variant in PAIR:
            for layer in (0, 1):
                found[scale, f"l{layer}_self.{variant}", "value"] = means.at_layer(
                    scale, variant, "self_flow", layer
                )
            found[scale, f"l0_effrank.{variant}", "value"] = means.at_layer(
                scale, variant, "effective_rank", 0
            )
        found[scale, "l0_effrank.ratio", "value"] = ratio(
            found[scale, "l0_effrank.full", "value"], found[scale, "l0_effrank.mha", "value"]
        )
        for column, metric in (("l2_self", "self_flow"), ("l2_exchange", "exchange_flow")):
            found[scale, f"{column}.full", "value"] = means.from_layer(scale, "full", metric, 2)
        _lengths(found, means, scale)
        _pair(found, means, scale, DISTANCES | {"sink_1": "sink_1"})
    return found


def _lengths(found: Measurements, means: FlowMeans, scale: str) -> None:
    found[scale, "flow_length", "value"] = means.length(scale, "self_flow")
    found[scale, "rank_length", "value"] = means.length(scale, "effective_rank")


def layerwise(records: CampaignRecords) -> Measurements:
    """Self or diagonal flow and effective rank of every layer of the paper, and of any deeper."""
    means = FlowMeans(records)
    found: Measurements = {}
    for scale, paper_depth in (("10M", 6), ("30M", 10), ("100M", 20)):
        for layer in range(max(paper_depth, means.depth(scale) or 0)):
            row = f"{scale}/L{layer}"
            for column, metric in (("self", "self_flow"), ("effrank", "effective_rank")):
                for variant in PAIR:
                    found[row, f"{column}.{variant}", "value"] = means.at_layer(
                        scale, variant, metric, layer
                    )
            found[row, "effrank.ratio", "value"] = ratio(
                found[row, "effrank.full", "value"], found[row, "effrank.mha", "value"]
            )
        _lengths(found, means, scale)
    return found


def routing(records: CampaignRecords) -> Measurements:
    """Conditional historical mass beyond three distances, and the first-token sink."""
    means = FlowMeans(records)
    found: Measurements = {}
    for scale in SCALES:
        _pair(found, means, scale, DISTANCES | {"sink_1": "sink_1"})
        _lengths(found, means, scale)
    return found


def sink_profile(records: CampaignRecords) -> Measurements:
    """Conditional historical mass on the first k tokens."""
    means = FlowMeans(records)
    found: Measurements = {}
    for scale in SCALES:
        _pair(found, means, scale, {sink: sink for sink in SINKS})
        _lengths(found, means, scale)
    return found


def spectrum(records: CampaignRecords) -> Measurements:
    """Singular-value statistics of the flow matrices."""
    means = FlowMeans(records)
    found: Measurements = {}
    for scale in SCALES:
        _pair(found, means, scale, SPECTRUM)
        _lengths(found, means, scale)
    return found
