"""Flow by depth, by distance and on the first tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from report.compute.measured import select
from report.figures.drawing import Drawing, demand, grid, present
from report.layout import SCALES
from report.style import OPERATOR_COLOUR, OPERATOR_NAME

if TYPE_CHECKING:
    from relation.records import CampaignRecords

PAIR = ("mha", "full")
SINK_SIZES = (1, 2, 4, 8, 16, 32)


def _by_layer(flow: pd.DataFrame) -> pd.DataFrame:
    keys = ["scale", "variant", "seed", "metric", "layer"]
    return flow.groupby(keys, observed=True)["value"].mean().reset_index()


def flow_by_layer(records: CampaignRecords) -> Figure:
    """Self or diagonal flow above, effective rank below, a column a scale."""
    metrics = {
        "self_flow": "Self / diagonal flow",
        "effective_rank": "effective rank",
    }
    layers = _by_layer(select(records.flow, metric=tuple(metrics), variant=PAIR))
    demand(len(layers) > 0, "diagnosed checkpoint", records, ("flow", "run"))
    scales = present(layers, SCALES)
    figure, axes = grid(2, len(scales), 4.4, sharex="col", sharey="row")
    for row, (metric, label) in enumerate(metrics.items()):
        for column, scale in enumerate(scales):
            here = axes[row, column]
            _lines(here, select(layers, scale=scale, metric=metric), "layer")
            here.xaxis.set_major_locator(MaxNLocator(integer=True))
            if row == 0:
                here.set_title(scale)
                here.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[row, 0].set_ylabel(label)
        axes[row, 0].set_ylim(bottom=0)
    for here in axes[1]:
        here.set_xlabel("layer")
    _legend(axes[0, 0])
    return figure


def sink_profile(records: CampaignRecords) -> Figure:
    """Conditional historical mass on the first k tokens, a column a scale."""
    sizes = {f"sink_{size}": size for size in SINK_SIZES}
    layers = _by_layer(select(records.flow, metric=tuple(sizes), variant=PAIR))
    demand(len(layers) > 0, "diagnosed checkpoint", records, ("flow", "run"))
    layers = layers.assign(first=layers["metric"].map(sizes))
    scales = present(layers, SCALES)
    figure, axes = grid(1, len(scales), 2.6)
    for here, scale in zip(axes[0], scales, strict=True):
        _lines(here, select(layers, scale=scale), "first")
        here.set_xscale("log", base=2)
        here.set_xticks(SINK_SIZES, [str(size) for size in SINK_SIZES])
        here.set_ylim(bottom=0)
        here.yaxis.set_major_formatter(PercentFormatter(1.0))
        here.set_title(scale)
        here.set_xlabel("first k tokens")
    axes[0, 0].set_ylabel("conditional historical mass")
    _legend(axes[0, 0])
    return figure


def _lines(axes: Axes, values: pd.DataFrame, x: str) -> None:
    """Mean over seeds as a line, seeds as faint points; layers of a checkpoint averaged first."""
    for variant in PAIR:
        checkpoints = select(values, variant=variant).groupby(["seed", x])["value"].mean()
        if checkpoints.empty:
            continue
        colour = OPERATOR_COLOUR[variant]
        seeds = checkpoints.reset_index()
        axes.plot(seeds[x], seeds["value"], "o", color=colour, markersize=3, alpha=0.35)
        mean = checkpoints.groupby(x).mean()
        axes.plot(mean.index, mean, color=colour, label=OPERATOR_NAME[variant])


def _legend(axes: Axes) -> None:
    axes.legend(labelcolor="linecolor", handlelength=1.2)


DRAWINGS = (
    Drawing(
        "flow-by-layer",
        "Self flow of Relation and diagonal flow of MHA, and the effective rank of either flow, by "
        "layer: mean over seeds, a point a seed.",
        "Line charts by scale: above, the share of flow that stays on a token, below, the "
        "effective rank of the flow, both against the layer, for MHA and Relation.",
        flow_by_layer,
    ),
    Drawing(
        "sink-profile",
        "Historical flow on the first k tokens, conditioned on history: mean over seeds, a point a "
        "seed.",
        "Line charts by scale: the conditional historical mass on the first 1 to 32 tokens, for "
        "MHA and Relation.",
        sink_profile,
    ),
)
