"""What forms while a model trains: lambda, angles, and the organisation of flow by depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from report.compute.measured import select
from report.figures.drawing import PAIR, Drawing, grid, present, token_axis
from report.figures.probes import left_out, probed
from report.layout import SCALES
from report.style import OPERATOR_NAME

if TYPE_CHECKING:
    from relation.records import CampaignRecords

FULL = "full"


# The claims are about the first two layers. Where they meet, the thick one shows between dashes.
_FIRST = {
    0: {"linewidth": 2.0, "zorder": 2.5},
    1: {"linewidth": 1.6, "zorder": 2.6, "linestyle": (0, (3, 2))},
}


def _look(layer: int, layers: int) -> dict[str, Any]:
    """How a layer's line is drawn: the first one thick, the second dashed, the others thin.

    Colours go from the first layer's violet to the last one's orange, each plain on light and dark,
    by the logarithm of the layer's number from 1, so that the first are furthest apart.
    """
    depth = np.log(layer + 1) / np.log(max(layers, 2))
    colour = colormaps["plasma"](np.interp(depth, (0, 1), (0.3, 0.75)))
    return {"color": colour, "linewidth": 0.8, **_FIRST.get(layer, {})}


_LOOKS = "From violet, the first layer, to orange, the last; L0 is thick, L1 dashed."


def _by_layer(axes: Axes, rows: pd.DataFrame, layers: int) -> None:
    """A line a layer: mean over seeds against training tokens."""
    # Rows of the whole model beside them make the column's numbers floating ones.
    for layer, group in rows.astype({"layer": int}).groupby("layer"):
        mean = group.groupby("tokens")["value"].mean()
        label = f"L{layer}" if layer in (*_FIRST, layers - 1) else None
        axes.plot(mean.index, mean, label=label, **_look(layer, layers))


def _name_layers(axes: Axes) -> None:
    axes.legend(handlelength=2.4)


def _when(records: CampaignRecords) -> str:
    return f"before training and after each of {records.page['probes']} equal parts of the budget"


def _organisation_title(records: CampaignRecords) -> str:
    sequences = records.page["probe_sequences"]
    on = "one sequence" if sequences == 1 else f"{sequences} sequences"
    return (
        "How the organisation by depth appears: diagonal flow of MHA, Self flow of Relation and "
        f"effective rank of every layer, {_when(records)}, means over seeds on {on}. {_LOOKS}"
        f"{left_out(records, *PAIR)}"
    )


def _parameters_title(records: CampaignRecords) -> str:
    return (
        f"What Relation learns besides its projections, {_when(records)}: above, the count "
        "calibration of every layer, mean over seeds; below, every Givens angle of the first seed. "
        f"{_LOOKS}{left_out(records, FULL)}"
    )


def _learned(records: CampaignRecords) -> pd.DataFrame:
    return probed(records, "run of Full Relation", variant=FULL, metric=("lambda", "theta"))


def learned_parameters(records: CampaignRecords) -> Figure:
    """Count calibration above, Givens angles below, by layer over training; a column a scale."""
    rows = _learned(records)
    scales = present(rows, SCALES)
    figure, axes = grid(2, len(scales), 4.2, sharex="col", sharey="row")
    for column, scale in enumerate(scales):
        of_scale = select(rows, scale=scale)
        layers = int(of_scale["layer"].max()) + 1
        _by_layer(axes[0, column], select(of_scale, metric="lambda"), layers)
        angles = select(of_scale, metric="theta")
        # A mean over seeds would cancel: an angle's sign is of no account.
        shown = select(angles, seed=int(angles["seed"].min())) if len(angles) else angles
        for (layer, _), group in shown.groupby(["layer", "part"]):
            ordered = group.sort_values("tokens")
            look = _look(layer, layers)
            axes[1, column].plot(ordered["tokens"], ordered["value"], **look)
        axes[0, column].set_title(scale)
        token_axis(axes[1, column])
        _name_layers(axes[0, column])
    axes[0, 0].set_ylabel("count calibration λ")
    axes[1, 0].set_ylabel("Givens angle (rad)")
    return figure


def _organised(records: CampaignRecords) -> pd.DataFrame:
    return probed(records, "run of a pair", variant=PAIR, metric=("self_flow", "effective_rank"))


def organisation(records: CampaignRecords) -> Figure:
    """Self or diagonal flow and effective rank by layer over training, MHA and Relation in turn."""
    labels = {
        "self_flow": {"mha": "diagonal flow", "full": "Self flow"},
        "effective_rank": dict.fromkeys(PAIR, "effective rank"),
    }
    rows = _organised(records)
    scales = present(rows, SCALES)
    figure, axes = grid(4, len(scales), 6.6, sharex="col")
    for column, scale in enumerate(scales):
        of_scale = select(rows, scale=scale)
        layers = int(of_scale["layer"].max()) + 1
        for pair, (metric, label) in enumerate(labels.items()):
            of_metric = select(of_scale, metric=metric)
            highest = of_metric.groupby(["variant", "layer", "tokens"])["value"].mean().max()
            for row, variant in enumerate(PAIR, start=2 * pair):
                here = axes[row, column]
                _by_layer(here, select(of_metric, variant=variant), layers)
                here.set_ylim(0, 1.05 * highest)
                if metric == "self_flow":
                    here.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
                if column == 0:
                    here.set_ylabel(f"{OPERATOR_NAME[variant]}\n{label[variant]}")
        axes[0, column].set_title(scale)
        token_axis(axes[3, column])
        _name_layers(axes[0, column])
    return figure


DRAWINGS = (
    Drawing(
        "organisation-over-training",
        _organisation_title,
        "Line charts by scale, for MHA and Relation: the share of flow that stays on a token, and "
        "the effective rank of the flow, against training tokens, a line a layer.",
        organisation,
        reads=lambda records: (_organised(records),),
    ),
    Drawing(
        "learned-parameters",
        _parameters_title,
        "Line charts by scale: count calibration and Givens angles against training tokens, a "
        "line a layer or a pair of heads.",
        learned_parameters,
        reads=lambda records: (_learned(records),),
    ),
)
