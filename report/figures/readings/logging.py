"""Tokens spared to MHA's final loss against how often losses are logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from report.figures.drawing import Drawing, NotDrawnError, grid
from report.figures.readings.look import (
    RESIDUAL_COLOUR,
    RESIDUAL_NAME,
    RESIDUALS,
    dashed,
    planned,
    read,
    readings_of,
)
from report.readings.rule import BASE
from report.readings.study import study
from report.readings.values import BY_NAME, INTERVALS
from report.style import INK, MUTED

if TYPE_CHECKING:
    from relation.records import CampaignRecords

NAMES = {every: f"spared-every-{every}" for every in INTERVALS}


def intervals_of_logging(records: CampaignRecords) -> Figure:
    """Share of the budget spared, a panel a residual scale, the base with its interval."""
    found = study(readings_of(records))
    rows = {every: found.of(name) for every, name in NAMES.items()}
    there = [
        (residual, own)
        for residual in RESIDUALS
        if (own := [r for r in found.readings if r.residual == residual
                    and all(r.name in rows[every].index for every in INTERVALS)])
    ]  # fmt: skip
    if not there:
        raise NotDrawnError("no pair of a reading has its losses logged")
    figure, axes = grid(1, len(there), 2.8, sharey="row")
    paper = BY_NAME[NAMES[1]].paper
    for here, (residual, own) in zip(axes[0], there, strict=True):
        for reading in own:
            means = [100 * rows[every]["mean"][reading.name] for every in INTERVALS]
            if reading.choice != BASE:
                style = ":" if reading.beside else "-"
                here.plot(INTERVALS, means, style, color=MUTED, linewidth=0.6, alpha=0.7)
                continue
            colour = RESIDUAL_COLOUR[residual]
            here.plot(INTERVALS, means, "o-", color=colour, linewidth=1.6, zorder=3)
            ends = [rows[every].loc[reading.name, ["low", "high"]] for every in INTERVALS]
            here.vlines(
                INTERVALS, *zip(*(100 * e for e in ends), strict=True), color=colour, zorder=3
            )
        here.axhline(0, color=INK, linewidth=0.8)
        dashed(here, 100 * paper, "paper" if residual == there[-1][0] else "")
        here.set_xscale("log")
        here.set_xticks(INTERVALS, [str(every) for every in INTERVALS])
        here.minorticks_off()
        here.set_title(RESIDUAL_NAME[residual])
        here.set_xlabel("updates between two logged losses")
    axes[0, 0].yaxis.set_major_locator(MaxNLocator(6))
    axes[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes[0, 0].set_ylabel("tokens spared to\nMHA’s final loss")
    return figure


DRAWING = Drawing(
    "readings-logging",
    "Tokens spared to MHA’s final loss, a share of the budget, by how often losses are logged: "
    f"thick the base ({BASE}) with its 95% intervals, thin the others, dotted those beside the "
    "readings. A pair that never reaches the loss spares 0. Dashed: the paper’s share.",
    "Two line charts, one a residual scale: the share of tokens spared against the number of "
    "updates between logged losses, a line a reading, with the paper's share as a dashed line.",
    intervals_of_logging,
    reads=read("losses"),
    planned=planned,
)
