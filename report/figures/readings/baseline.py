"""What is left of Relation's advantage where MHA starts, or learns, better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from report.figures.drawing import PAIR, Drawing, NotDrawnError, grid, name_pair
from report.figures.readings.look import (
    RESIDUAL_NAME,
    RESIDUALS,
    dashed,
    marker,
    name_residuals,
    planned,
    read,
    readings_of,
)
from report.paper_seeds import number
from report.readings.baselines import comparable, paired_nll, rates
from report.readings.rule import SHORT
from report.style import INK, MUTED, OPERATOR_COLOUR

if TYPE_CHECKING:
    from relation.records import CampaignRecords

# Corners of a point at which its label may stand, nearest first: offset in points, alignment.
_CORNERS = (
    ((5, 0), "left", "center"),
    ((-5, 0), "right", "center"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
    ((4, 8), "left", "bottom"),
    ((4, -8), "left", "top"),
    ((-4, 8), "right", "bottom"),
    ((-4, -8), "right", "top"),
)
_LETTER, _LINE = 3.9, 8.0  # a label's size in points, at the size it is set in


def advantage(records: CampaignRecords) -> Figure:
    """Relation's final NLL less MHA's against MHA's own, a point a reading."""
    readings = readings_of(records)
    pairs = comparable(paired_nll(readings))
    if pairs.empty:
        raise NotDrawnError("no reading has a whole pair")
    figure, axes = grid(1, 1, 4.2)
    here = axes[0, 0]
    means = pairs.groupby("reading", sort=False)[["mha", "delta"]].mean()
    shown = [r for r in readings.described if r["name"] in means.index]
    here.axhline(0, color=INK, linewidth=0.8)
    paper = number("app-nll", "10M/mean", "delta")
    for reading in shown:
        look = marker(reading["residual"], beside=reading["beside"])
        x, y = means.loc[reading["name"]]
        seeds = pairs[pairs["reading"] == reading["name"]]
        if len(seeds) > 1:
            here.plot(seeds["mha"], seeds["delta"], **{**look, "markersize": 2.5, "alpha": 0.5})
        here.plot(x, y, **look)
    ys = [*means["delta"], *pairs["delta"], 0.0, paper]
    margin = 0.08 * (max(ys) - min(ys))
    here.set_ylim(min(ys) - margin, max(ys) + margin)
    xs = pairs["mha"]
    room = 0.12 * (xs.max() - xs.min()) or 0.01
    here.set_xlim(xs.min() - room, xs.max() + room)
    dashed(here, paper, "paper")
    here.set_xlabel("final NLL of MHA (nat/token)")
    here.set_ylabel("Relation − MHA (nat/token)")
    name_residuals(here, dict.fromkeys(r["residual"] for r in shown), loc="lower left")
    _label(here, figure, [(r["choice"], *means.loc[r["name"]]) for r in shown])
    return figure


def _label(axes: Axes, figure: Figure, points: Sequence[tuple[str, float, float]]) -> None:
    """Name every point that a label has room beside."""
    width, height = (72 * size * 0.85 for size in figure.get_size_inches())
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    places = [
        (width * (x - left) / (right - left), height * (y - low) / (high - low))
        for _, x, y in points
    ]
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    for (name, *at), (x, y) in zip(points, places, strict=True):
        for (dx, dy), across, up in _CORNERS:
            size = _LETTER * len(name)
            start = x + dx - {"left": 0, "center": size / 2, "right": size}[across]
            foot = y + dy - {"bottom": 0, "center": _LINE / 2, "top": _LINE}[up]
            box = (start, foot, start + size, foot + _LINE)
            own = taken.index((x - 3, y - 3, x + 3, y + 3))
            others = taken[:own] + taken[own + 1 :]
            if start < 0 or box[2] > width or any(_meet(box, other) for other in others):
                continue
            taken.append(box)
            axes.annotate(
                name, at, xytext=(dx, dy), textcoords="offset points", ha=across, va=up,
                fontsize=6.5, color=MUTED,
            )  # fmt: skip
            break


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def learning_rates(records: CampaignRecords) -> Figure:
    """Final NLL of both at half, once and twice the learning rate, and their difference."""
    found = rates(readings_of(records))
    there = [residual for residual in RESIDUALS if residual in set(found["residual"])]
    if not there:
        raise NotDrawnError("no residual scale has pairs at two learning rates")
    figure, axes = grid(2, len(there), 4.0, sharex="col", sharey="row", height_ratios=(3, 2))
    for column, residual in enumerate(there):
        own = found[found["residual"] == residual]
        above, below = axes[:, column]
        for variant in PAIR:
            _rates(above, own, variant, OPERATOR_COLOUR[variant])
        _rates(below, own, "delta", INK)
        below.axhline(0, color=MUTED, linewidth=0.8)
        dashed(
            below, number("app-nll", "10M/mean", "delta"), "paper" if residual == there[-1] else ""
        )
        above.set_title(RESIDUAL_NAME[residual])
        below.set_xscale("log", base=2)
        below.set_xticks([0.5, 1, 2], ["half", "the paper’s", "twice"])
        below.minorticks_off()
        below.set_xlim(0.42, 2.4)
        below.set_xlabel("learning rate")
    name_pair(axes[0, -1])
    axes[0, 0].yaxis.set_major_locator(MaxNLocator(5))
    axes[0, 0].set_ylabel("final NLL\n(nat/token)")
    axes[1, 0].set_ylabel("Relation − MHA\n(nat/token)")
    return figure


def _rates(axes: Axes, rows: pd.DataFrame, column: str, colour: str) -> None:
    means = rows.groupby("factor")[column].mean()
    axes.plot(rows["factor"], rows[column], "o", color=colour, markersize=3, alpha=0.4)
    axes.plot(means.index, means, color=colour, marker="o", markersize=4)


DRAWINGS = (
    Drawing(
        "readings-advantage",
        "How much of Relation’s advantage is left where MHA is better: final NLL of Relation less "
        "MHA’s against MHA’s own, a point a reading (mean over its pairs; small, its pairs), faint "
        f"what is beside the readings. Left out is {SHORT}: an NLL on another text is not "
        "comparable. Dashed: the paper’s difference.",
        "A scatter plot: the difference of Relation and MHA in final NLL against MHA's final NLL, "
        "a point a reading, by colour and shape of the residual scale, with a line at zero and one "
        "at the paper's difference.",
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
