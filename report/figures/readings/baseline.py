"""What is left of Relation's advantage where MHA starts, or learns, better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from report.figures.drawing import PAIR, Drawing, NotDrawnError, name_pair
from report.figures.readings.look import (
    by_residual,
    dashed,
    marker,
    planned,
    read,
    study_of,
)
from report.judge.readings_rule import SHORT
from report.values.paper_seeds import number
from report.values.style import HAIR, INK, MUTED, OPERATOR_COLOUR

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords


def advantage(records: CampaignRecords) -> Figure:
    """Relation's final NLL less MHA's against MHA's own, a point a reading."""
    found = study_of(records)
    pairs = found.comparable
    if pairs.empty:
        raise NotDrawnError("no reading has a whole pair")
    figure, axes, there = by_residual(pairs["residual"], 1, 3.4, sharex="row")
    for here, residual in zip(axes[0], there, strict=True):
        here.margins(x=0.04, y=0.06)
        here.axhline(0, color=INK, linewidth=0.8)
        points = []
        own = pairs[pairs["residual"] == residual]
        for _, seeds in own.groupby("reading", sort=False):
            first, mean = seeds.iloc[0], seeds[["mha", "delta"]].mean()
            look = marker(residual, beside=first["beside"])
            if len(seeds) > 1:
                here.plot(seeds["mha"], seeds["delta"], **{**look, "markersize": 2.5, "alpha": 0.5})
            here.plot(*mean, **look)
            points.append((first["choice"], *mean))
        _name(here, points)
        here.set_xlabel("final NLL of MHA (nat/token)")
        here.xaxis.set_major_locator(MaxNLocator(5))
    dashed(axes[0], number("app-nll", "10M/mean", "delta"))
    axes[0, 0].set_ylabel("Relation − MHA (nat/token)")
    return figure


def _name(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Names in a column at the right, in the order of their points, a hair line to each."""
    ordered = sorted(points, key=lambda point: point[2])
    for height, (name, *at) in zip(np.linspace(0, 1, len(ordered)), ordered, strict=True):
        axes.annotate(
            name, at, xytext=(1.18, height), textcoords="axes fraction", va="center",
            fontsize=6.5, color=MUTED, zorder=1,
            arrowprops={"arrowstyle": "-", "color": HAIR, "linewidth": 0.6, "shrinkB": 3},
        )  # fmt: skip


def learning_rates(records: CampaignRecords) -> Figure:
    """Final NLL of both at half, once and twice the learning rate, and their difference."""
    found = study_of(records).rates
    if found.empty:
        raise NotDrawnError("no residual scale has pairs at two learning rates")
    figure, axes, there = by_residual(found["residual"], 2, 4.0, sharex="col", height_ratios=(3, 2))
    for (above, below), residual in zip(axes.T, there, strict=True):
        own = found[found["residual"] == residual]
        for here, column, colour in (
            *((above, variant, OPERATOR_COLOUR[variant]) for variant in PAIR),
            (below, "delta", INK),
        ):
            means = own.groupby("factor")[column].mean()
            here.plot(own["factor"], own[column], "o", color=colour, markersize=3, alpha=0.4)
            here.plot(means.index, means, color=colour, marker="o", markersize=4)
        below.axhline(0, color=MUTED, linewidth=0.8)
        below.set_xscale("log", base=2)
        below.set_xticks([0.5, 1, 2], ["half", "the paper’s", "twice"])
        below.minorticks_off()
        below.set_xlim(0.42, 2.4)
        below.set_xlabel("learning rate")
    dashed(axes[1], number("app-nll", "10M/mean", "delta"))
    name_pair(axes[0, -1])
    axes[0, 0].yaxis.set_major_locator(MaxNLocator(5))
    axes[0, 0].set_ylabel("final NLL\n(nat/token)")
    axes[1, 0].set_ylabel("Relation − MHA\n(nat/token)")
    return figure


DRAWINGS = (
    Drawing(
        "readings-advantage",
        "How much of Relation’s advantage is left where MHA is better: final NLL of Relation less "
        "MHA’s against MHA’s own, by residual scale. A point is the mean of a reading’s pairs; "
        "small points are its pairs, faint ones stand beside the readings. "
        f"{SHORT} is left out: an NLL on another text is not comparable. Dashed: the paper’s "
        "difference.",
        "Two scatter plots, one a residual scale: the difference of Relation and MHA in final NLL "
        "against MHA's final NLL, a point a reading, with a line at zero and one at the paper's "
        "difference.",
        advantage,
        reads=read("runs"),
        planned=planned,
    ),
    Drawing(
        "readings-learning-rate",
        "Final NLL of MHA and Relation at half, once and twice the paper’s learning rate, and "
        "Relation’s less MHA’s below, by residual scale: lines through the means, a faint point a "
        "seed. Dashed: the paper’s difference.",
        "Line charts, a column a residual scale: the final NLL of MHA and of Relation at three "
        "learning rates, and below it their difference with a line at zero.",
        learning_rates,
        reads=read("runs"),
        planned=planned,
    ),
)
