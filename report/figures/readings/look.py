"""How the figures of the readings look: residual scales by colour and shape, readings by place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from report.figures.drawing import NotDrawnError
from report.style import INK, MUTED, SCALED, UNSCALED

if TYPE_CHECKING:
    from relation.records import CampaignRecords
    from relation.records.multiverse import ReadingRecords

RESIDUALS = ("unscaled", "scaled")
RESIDUAL_COLOUR = {"unscaled": UNSCALED, "scaled": SCALED}
RESIDUAL_MARKER = {"unscaled": "o", "scaled": "s"}
RESIDUAL_NAME = {"unscaled": "unscaled", "scaled": "scaled by 1/√(2L)"}
BESIDE = 0.45  # how far what is beside the readings fades
KINDS = ("runs", "losses", "probes", "diagnoses")


def readings_of(records: CampaignRecords) -> ReadingRecords:
    """The readings' records. Raises NotDrawnError where the campaign has none."""
    if records.readings is None:
        raise NotDrawnError("this campaign has no run of a reading")
    return records.readings


def planned(records: CampaignRecords) -> bool:
    """Whether there is any run of a reading."""
    return records.readings is not None


def read(*kinds: str) -> Any:
    """What a drawing reads: the readings' files of these kinds, as its ``reads`` gives them."""

    def rows(records: CampaignRecords) -> list[pd.DataFrame]:
        if records.readings is None:
            return []
        files = dict(zip(KINDS, records.readings.sources, strict=False))
        return [pd.DataFrame({"source": [files[kind]]}) for kind in kinds if kind in files]

    return rows


def marker(residual: str, established: bool = True, beside: bool = False) -> dict[str, Any]:
    """A point's look: shape and colour tell the scale, a hollow one is not established."""
    colour = RESIDUAL_COLOUR[residual]
    return {
        "marker": RESIDUAL_MARKER[residual],
        "color": colour,
        "markerfacecolor": colour if established else "none",
        "markeredgewidth": 1.1,
        "linestyle": "none",
        "alpha": BESIDE if beside else 1.0,
    }


def name_residuals(axes: Axes, residuals: Iterable[str], **options: Any) -> None:
    """A legend of the residual scales."""
    handles = [
        Line2D([], [], **marker(residual), label=RESIDUAL_NAME[residual]) for residual in residuals
    ]
    axes.legend(handles=handles, handletextpad=0.2, labelcolor=INK, **options)


def dashed(axes: Axes, value: float | None, label: str = "") -> None:
    """The paper's value as a dashed line, named at its right end."""
    if value is None:
        return
    axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    if label:
        axes.annotate(
            label,
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=MUTED,
            annotation_clip=False,
        )
