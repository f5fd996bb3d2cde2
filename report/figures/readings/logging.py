"""Tokens spared to MHA's final loss against how often losses are logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from report.figures.drawing import Drawing
from report.figures.readings.look import (
    LINES,
    RESIDUAL_COLOUR,
    by_residual,
    dashed,
    draw_lines,
    planned,
    read,
    study_of,
)
from report.judge.readings_study import BASES
from report.values.readings import BY_NAME, INTERVALS
from report.values.style import INK

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

NAMES = {every: f"spared-every-{every}" for every in INTERVALS}


def intervals_of_logging(records: CampaignRecords) -> Figure:
    """Share of the budget spared, a panel a residual scale, the base with its interval."""
    found = study_of(records)
    # By reading, a row an interval of logging; %.
    shares = {
        reading: 100 * rows.set_index("every")[["mean", "low", "high"]]
        for reading, rows in pd.concat(
            found.of(name).assign(every=every) for every, name in NAMES.items()
        ).groupby(level="reading")
    }
    residuals = [reading.residual for reading in found.readings if reading.name in shares]
    figure, axes, there = by_residual(residuals, 1, 2.8)
    for here, residual in zip(axes[0], there, strict=True):
        draw_lines(here, found.readings, residual, {n: rows["mean"] for n, rows in shares.items()})
        if BASES[residual] in shares:
            base, look = shares[BASES[residual]], {"color": RESIDUAL_COLOUR[residual], "zorder": 3}
            here.plot(base.index, base["mean"], "o", **look)
            here.vlines(base.index, base["low"], base["high"], **look)
        here.axhline(0, color=INK, linewidth=0.8)
        here.set_xscale("log")
        here.set_xticks(INTERVALS, [str(every) for every in INTERVALS])
        here.minorticks_off()
        here.set_xlabel("updates between two logged losses")
    dashed(axes[0], 100 * BY_NAME[NAMES[1]].paper)
    axes[0, 0].yaxis.set_major_locator(MaxNLocator(6))
    axes[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes[0, 0].set_ylabel("tokens spared to\nMHA’s final loss")
    return figure


DRAWING = Drawing(
    "readings-logging",
    "Tokens spared to MHA’s final loss, a share of the budget, by how often losses are logged: "
    f"{LINES}; the base with its 95% intervals. A pair that never reaches the loss spares 0. "
    "Dashed: the paper’s share.",
    "Two line charts, one a residual scale: the share of tokens spared against the number of "
    "updates between logged losses, a line a reading, with the paper's share as a dashed line.",
    intervals_of_logging,
    reads=read("losses"),
    planned=planned,
)
