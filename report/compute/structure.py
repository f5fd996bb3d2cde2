"""Structural diagnostics of the paired checkpoints (Section 6.2, Appendices B.4, B.5)."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from relation.records.structure import by_checkpoint, by_layer
from report.compute.measured import Measured, Measurements, absent, no_counterpart, select
from report.layout import SCALES

if TYPE_CHECKING:
    from relation.records import CampaignRecords

DISTANCES = {
    "beyond_128": "beyond_eighth",
    "beyond_256": "beyond_quarter",
    "beyond_512": "beyond_half",
}
# The paper's distances are these parts of its sequences, in shorter ones of theirs.
PARTS = {"beyond_128": 8, "beyond_256": 4, "beyond_512": 2}
PAPER_FLOW_LENGTH = 1024
SINKS = tuple(f"sink_{k}" for k in (1, 2, 4, 8, 16, 32))
SPECTRUM = {
    "stable_rank": "stable_rank",
    "effrank": "effective_rank",
    "dims_90": "dims_90",
    "dims_95": "dims_95",
    "top_energy": "top_singular_energy",
}
PAIR = ("mha", "full")


class FlowMeans:
    """Flow metrics by checkpoint and layer.

    The order is the paper's: heads and sequences count-weighted at a layer, layers count-weighted
    at a checkpoint, then mean and sample standard deviation over seeds.
    """

    def __init__(self, records: CampaignRecords) -> None:
        self._records = records
        layers = by_layer(records.flow)
        self._layers = dict(iter(layers.groupby(["scale", "variant", "metric"], observed=True)))
        self._none = layers.iloc[:0]
        # Means and deviations of many tables' cells ask for the same values.
        self.depth = cache(self.depth)
        self.by_seed = cache(self.by_seed)
        self._sources = records.flow[["scale", "variant", "source"]].drop_duplicates()

    def depth(self, scale: str) -> int | None:
        """Layers of this campaign's model at a scale; None if it plans no such pair."""
        models = select(self._records.models, scale=scale, variant=PAIR)
        return int(models["layers"].max()) if len(models) else None

    def at_layer(
        self, scale: str, variant: str, metric: str, layer: int, spread: bool = False
    ) -> Measured:
        """A metric at one layer, mean over seeds, or their sample standard deviation."""
        return self._over_seeds(scale, variant, metric, layer, layer, spread)

    def from_layer(
        self, scale: str, variant: str, metric: str, first: int = 0, spread: bool = False
    ) -> Measured:
        """A metric over all layers from ``first`` on, mean over seeds, or their deviation."""
        return self._over_seeds(scale, variant, metric, first, None, spread)

    def by_seed(
        self, scale: str, variant: str, metric: str, first: int = 0, last: int | None = None
    ) -> pd.Series:
        """A metric of each checkpoint over its layers first .. last, by seed; none may be there."""
        rows = self._layers.get((scale, variant, metric), self._none)
        rows = rows[rows["layer"] >= first]
        if last is not None:
            rows = rows[rows["layer"] <= last]
        return by_checkpoint(rows).set_index("seed")["value"]

    def _over_seeds(
        self, scale: str, variant: str, metric: str, first: int, last: int | None, spread: bool
    ) -> Measured:
        depth = self.depth(scale)
        if depth is not None and first >= depth:
            return no_counterpart(f"this campaign's {scale} has {depth} layers")
        checkpoints = self.by_seed(scale, variant, metric, first, last)
        if checkpoints.empty:
            return absent(self._records, ("flow", "run"), scale, (variant,))
        if spread and len(checkpoints) < 2:
            return no_counterpart("one seed has no standard deviation")
        left_out = [str(s) for s in self._records.page["seeds"] if s not in checkpoints.index]
        return Measured(
            float(checkpoints.std(ddof=1) if spread else checkpoints.mean()),
            unit=_unit(metric),
            n=len(checkpoints),
            reason=f"seeds without a value: {', '.join(left_out)}" if left_out else "",
            sources=tuple(select(self._sources, scale=scale, variant=variant)["source"]),
            rows=f"metric = {metric}, {layers_worded(first, last)}",
            # A deviation over seeds is no mean: it has no t interval.
            by_seed={}
            if spread
            else {int(seed): float(value) for seed, value in checkpoints.items()},
        )

    def length(self, scale: str, metric: str) -> Measured:
        """Tokens of the sequences on which a metric was taken."""
        lengths = select(self._records.flow, scale=scale, metric=metric)["length"].unique()
        if len(lengths) == 0:
            return absent(self._records, ("flow", "run"), scale, PAIR)
        sources = tuple(select(self._sources, scale=scale, variant=PAIR)["source"])
        rows = f"length, metric = {metric}"
        return Measured(
            float(max(lengths)), unit="tokens", n=len(lengths), sources=sources, rows=rows
        )


def distance(length: float, column: str) -> int:
    """The distance, in tokens, beyond which a column counts in sequences of ``length`` tokens."""
    return int(length) // PARTS[column]


def layers_worded(first: int, last: int | None) -> str:
    """Which layers a value is taken over."""
    if first == last:
        return f"layer = {first}"
    return f"layer >= {first}" if first else "all layers"


def _unit(metric: str) -> str:
    """The paper's unit of a metric: shares of flow in percent, dimensions as such."""
    if metric.endswith("_flow") or metric.startswith(("beyond_", "sink_")):
        return "%"
    return "dims" if metric.startswith("dims_") else "1"


def ratio(numerator: Measured, denominator: Measured) -> Measured:
    """The ratio of two means, over the seeds that both have; absent for the reason either is."""
    for term in (numerator, denominator):
        if term.value is None:
            return term
    above, below, n = numerator.value, denominator.value, min(numerator.n, denominator.n)
    paired = [seed for seed in numerator.by_seed if seed in denominator.by_seed]
    if numerator.by_seed and denominator.by_seed:
        if not paired:
            return Measured(status="not run", reason="no seed has both terms of the ratio")
        above, below = (fmean(t.by_seed[s] for s in paired) for t in (numerator, denominator))
        n = len(paired)
    whole = None
    if numerator.whole or denominator.whole:
        whole = ratio(numerator.whole or numerator, denominator.whole or denominator)
    if below == 0 or any(denominator.by_seed[seed] == 0 for seed in paired):
        return no_counterpart("the denominator is zero")
    return Measured(
        above / below,
        unit="x",
        n=n,
        reason=numerator.reason or denominator.reason,
        sources=denominator.sources + numerator.sources,
        rows=numerator.rows,
        by_seed={seed: numerator.by_seed[seed] / denominator.by_seed[seed] for seed in paired},
        whole=whole,
    )


def _pair(found: Measurements, means: FlowMeans, scale: str, columns: dict[str, str]) -> None:
    """Means over all layers and seeds, and under COLUMN_sd their deviation over seeds."""
    for column, metric in columns.items():
        for variant in PAIR:
            for suffix, spread in (("", False), ("_sd", True)):
                found[scale, f"{column}{suffix}.{variant}", "value"] = means.from_layer(
                    scale, variant, metric, spread=spread
                )


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
                    for suffix, spread in (("", False), ("_sd", True)):
                        found[row, f"{column}{suffix}.{variant}", "value"] = means.at_layer(
                            scale, variant, metric, layer, spread
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
