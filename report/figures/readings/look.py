"""How the figures of the readings look: residual scales by colour and shape, readings by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.figures.drawing import NotDrawnError, grid
from report.judge.readings_rule import BASE, RESIDUALS
from report.judge.readings_study import Described, Study, study
from report.values.style import MUTED, SCALED, UNSCALED

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

RESIDUAL_COLOUR = {"unscaled": UNSCALED, "scaled": SCALED}
RESIDUAL_MARKER = {"unscaled": "o", "scaled": "s"}
RESIDUAL_NAME = {"unscaled": "unscaled", "scaled": "scaled by 1/√(2L)"}
BESIDE = 0.45  # how far what is beside the readings fades
KINDS = ("runs", "losses", "probes", "diagnoses")
LINES = f"thick the base ({BASE}), thin the other readings, dotted those beside"


def study_of(records: CampaignRecords) -> Study:
    """What is computed of the readings. Raises NotDrawnError where the campaign has none."""
    if records.readings is None:
        raise NotDrawnError("this campaign has no run of a reading")
    return study(records.readings)


def planned(records: CampaignRecords) -> bool:
    """Whether there is any run of a reading."""
    return records.readings is not None


def read(*kinds: str) -> Callable[[CampaignRecords], list[pd.DataFrame]]:
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


def by_residual(
    residuals: Iterable[str], rows: int, height: float, **options: Any
) -> tuple[Figure, np.ndarray, list[str]]:
    """A figure with a column a residual scale, its axes (rows, columns), and the scales in order.

    Raises NotDrawnError where there is none.
    """
    there = [residual for residual in RESIDUALS if residual in set(residuals)]
    if not there:
        raise NotDrawnError("no pair of a reading has what is shown here")
    figure, axes = grid(rows, len(there), height, sharey="row", **options)
    for here, residual in zip(axes[0], there, strict=True):
        here.set_title(RESIDUAL_NAME[residual])
    return figure, axes, there


def draw_lines(
    axes: Axes, readings: Sequence[Described], residual: str, curves: Mapping[str, pd.Series]
) -> None:
    """The curves of one residual scale: the base thick, others thin, those beside dotted."""
    for reading in readings:
        if reading.residual != residual or reading.name not in curves:
            continue
        look = {"color": MUTED, "linewidth": 0.6, "alpha": 0.7}
        if reading.beside:
            look["linestyle"] = ":"
        if reading.choice == BASE:
            look = {"color": RESIDUAL_COLOUR[residual], "linewidth": 2.0, "zorder": 3}
        curve = curves[reading.name]
        axes.plot(curve.index, curve, **look)


def dashed(row: Sequence[Axes], value: float) -> None:
    """The paper's value as a dashed line in a row of axes, named at the right end of the last."""
    for axes in row:
        axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    row[-1].annotate(
        "paper", (1, value), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", va="center", fontsize=7, color=MUTED, annotation_clip=False,
    )  # fmt: skip
