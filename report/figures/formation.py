"""What forms while a model trains: lambda, angles, and the organisation of flow by depth."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.variants import PAIRED
from report.figures.drawing import by_scale, figure, percent, token_axis
from report.figures.validation import left_out, probed
from report.values.frames import CampaignRecords
from report.values.measured import select
from report.values.style import OPERATOR_NAME

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


def _depth(rows: pd.DataFrame) -> int:
    return int(rows["layer"].max()) + 1


def _when(records: CampaignRecords) -> str:
    return f"before training and after each of {records.page['probes']} equal parts of the budget"


def _organised(records: CampaignRecords) -> pd.DataFrame:
    return probed(records, "run of a pair", variant=PAIRED, metric=("self_flow", "effective_rank"))


def _organisation_title(records: CampaignRecords) -> str:
    sequences = records.page["probe_sequences"]
    on = "one sequence" if sequences == 1 else f"{sequences} sequences"
    return (
        "How the organisation by depth appears: diagonal flow of MHA, Self flow of Relation and "
        f"effective rank of every layer, {_when(records)}, means over seeds on {on}. {_LOOKS}"
        f"{left_out(records, *PAIRED)}"
    )


@figure(
    "organisation-over-training",
    heading="Organisation over training",
    title=_organisation_title,
    alt="Line charts by scale, for MHA and Relation: the share of flow that stays on a token, and "
    "the effective rank of the flow, against training tokens, a line a layer.",
    reads=_organised,
)
def organisation(records: CampaignRecords) -> Figure:
    shown = {
        ("self_flow", "mha"): "diagonal flow",
        ("self_flow", "full"): "Self flow",
        ("effective_rank", "mha"): "effective rank",
        ("effective_rank", "full"): "effective rank",
    }

    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        highest = rows.groupby(["metric", "variant", "layer", "tokens"])["value"].mean()
        for here, (metric, variant) in zip(panels, shown, strict=True):
            _by_layer(here, select(rows, metric=metric, variant=variant), _depth(rows))
            here.set_ylim(0, 1.05 * highest[metric].max())
            if metric == "self_flow":
                percent(here)
        token_axis(panels[-1])
        panels[0].legend(handlelength=2.4)

    labels = [f"{OPERATOR_NAME[variant]}\n{label}" for (_, variant), label in shown.items()]
    return by_scale(_organised(records), draw, 6.6, labels, sharex="col")


def _learned(records: CampaignRecords) -> pd.DataFrame:
    return probed(records, "run of Full Relation", variant=FULL, metric=("lambda", "theta"))


def _parameters_title(records: CampaignRecords) -> str:
    return (
        f"What Relation learns besides its projections, {_when(records)}: above, the count "
        "calibration of every layer, mean over seeds; below, every Givens angle of the first seed. "
        f"{_LOOKS}{left_out(records, FULL)}"
    )


@figure(
    "learned-parameters",
    heading="Learned parameters",
    title=_parameters_title,
    alt="Line charts by scale: count calibration and Givens angles against training tokens, a line "
    "a layer or a pair of heads.",
    reads=_learned,
)
def learned_parameters(records: CampaignRecords) -> Figure:
    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        above, below = panels
        _by_layer(above, select(rows, metric="lambda"), _depth(rows))
        angles = select(rows, metric="theta")
        # A mean over seeds would cancel: an angle's sign is of no account.
        first = select(angles, seed=angles["seed"].min())
        for (layer, _), group in first.sort_values("tokens").groupby(["layer", "part"]):
            below.plot(group["tokens"], group["value"], **_look(layer, _depth(rows)))
        token_axis(below)
        above.legend(handlelength=2.4)

    labels = ["count calibration λ", "Givens angle (rad)"]
    return by_scale(_learned(records), draw, 4.2, labels, sharex="col", sharey="row")
