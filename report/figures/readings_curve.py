"""Specification curves: every reading's value of one statistic, and below it what each chose."""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from relation.pipeline.places import READING_KINDS
from report.figures.drawing import Drawing, NotDrawnError
from report.figures.readings import dashed, marker, of_readings
from report.judge.readings_rule import BASE, RESIDUALS
from report.judge.readings_study import Described, Study
from report.judge.readings_words import amount, factor, heading, shown_unit, title
from report.values.numbers import MINUS
from report.values.readings import STATISTICS, Statistic
from report.values.style import HAIR, INK, MUTED

ROW = 0.145  # inches of the grid a choice
CURVE = 2.3  # inches of the panel above it
GROUP_GAP = 0.4  # rows between groups of choices
GROUP_AT = 150  # points left of the panel where the names of the groups stand
PRINTED = ("final-nll", "l0-self-more")  # the page has all


def curve(statistic: Statistic, found: Study) -> Figure:
    """One statistic of every reading that has it."""
    rows = found.of(statistic.name).sort_values("mean", kind="stable")
    if rows.empty:
        raise NotDrawnError(f"no pair of a reading has a value of: {title(statistic)}")
    by_name = {reading.name: reading for reading in found.readings}
    shown = [by_name[name] for name in rows.index]
    choices = _choices([r for r in found.readings if r.name in rows.index])
    rows_below = sum(len(names) + GROUP_GAP for names in choices.values())
    heights = (CURVE, ROW * (rows_below + 0.5))
    figure = Figure(figsize=(8.4, sum(heights) + 0.35))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _values(above, statistic, rows, shown)
    _grid(below, shown, choices)
    for axes in (above, below):
        axes.set_xlim(-0.7, len(shown) - 0.3)
        for place, reading in enumerate(shown):
            if reading.choice == BASE:
                axes.axvspan(place - 0.5, place + 0.5, color=HAIR, alpha=0.5, linewidth=0, zorder=0)
    return figure


def _values(
    axes: Axes, statistic: Statistic, rows: pd.DataFrame, shown: Sequence[Described]
) -> None:
    """Means with their intervals, the paper's value, the bound of its direction."""
    scale = factor(statistic.unit)
    axes.margins(y=0.07)
    if statistic.bound is not None:
        axes.axhline(scale * statistic.bound, color=INK, linewidth=0.8, zorder=1.5)
    if statistic.paper is not None:
        dashed([axes], scale * statistic.paper)
    points = (
        rows[["mean", "low", "high"]]
        .mul(scale)
        .assign(
            place=range(len(rows)),
            residual=[reading.residual for reading in shown],
            established=rows["established"].fillna(False).astype(bool),
            beside=[reading.beside for reading in shown],
        )
    )
    for key, alike in points.groupby(["residual", "established", "beside"], sort=False):
        look = marker(*key)
        told = alike[np.isfinite(alike["low"])]
        if len(told):
            line = {"color": look["color"], "linewidth": 1.1, "alpha": look["alpha"]}
            axes.vlines(told["place"], told["low"], told["high"], **line)
        axes.plot(alike["place"], alike["mean"], **look, zorder=3)
    turns = points["place"][rows["turns"].fillna(False).astype(bool)]
    if len(turns):
        foot = axes.get_xaxis_transform()
        heights, look = np.full(len(turns), 0.025), {"color": INK, "markersize": 4}
        axes.plot(turns, heights, "^", clip_on=False, transform=foot, **look)
    unit = shown_unit(statistic)
    label = textwrap.fill(title(statistic), 26)
    axes.set_ylabel(label + (f"\n({unit})" if unit else ""))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", MINUS)))
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _choices(readings: Sequence[Described]) -> dict[str, list[str]]:
    """The rows of the grid by group, in the order of the readings; those beside come last."""
    found = {"residual scale": [r for r in RESIDUALS if r in {s.residual for s in readings}]}
    for reading in sorted(readings, key=lambda r: r.beside):
        group = f"beside: {reading.group}" if reading.beside else reading.group
        if reading.choice not in found.setdefault(group, []):
            found[group].append(reading.choice)
    return found


def _grid(axes: Axes, shown: Sequence[Described], groups: Mapping[str, Sequence[str]]) -> None:
    """A row a choice, a dot where a reading takes it; a small gap between groups."""
    places: dict[str, float] = {}
    for gap, (group, names) in enumerate(groups.items()):
        start = len(places) + gap * GROUP_GAP
        places |= {name: start + k for k, name in enumerate(names)}
        axes.annotate(
            group, (0, start),
            xycoords=("axes fraction", "data"), xytext=(-GROUP_AT, 0), textcoords="offset points",
            ha="left", va="center", fontsize=7, color=MUTED, annotation_clip=False,
        )  # fmt: skip
    every = np.array(list(product(range(len(shown)), places.values())))
    axes.plot(*every.T, "o", color=HAIR, markersize=2.2, zorder=1)
    taken = pd.DataFrame(
        [
            (x, places[name], reading.residual, not reading.beside)
            for x, reading in enumerate(shown)
            for name in (reading.residual, reading.choice)
        ],
        columns=["x", "y", "residual", "established"],
    )
    for key, alike in taken.groupby(["residual", "established"], sort=False):
        axes.plot(alike["x"], alike["y"], **{**marker(*key), "markersize": 4.2}, zorder=2)
    axes.set_ylim(max(places.values()) + 0.6, -0.6)
    axes.set_yticks(list(places.values()), list(places))
    axes.tick_params(axis="both", length=0, labelsize=7)
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _title(statistic: Statistic) -> str:
    asked = {"below": "below", "above": "above", "at least": "at or above"}
    told = (
        f"{heading(statistic)}: every reading, sorted by its value, with its 95% interval, and "
        f"below it the residual scale and the choice that it takes; shaded, the base ({BASE}) of "
        "either scale. A filled point is established, a hollow one is not; a triangle marks a "
        "reading on which the answer turns. Points beside the readings are faint above and hollow "
        "below."
    )
    if statistic.side is not None:
        told += f" The paper’s direction is {asked[statistic.side]} the full line."
    if statistic.paper is not None:
        told += f" Dashed: the paper’s {amount(statistic.paper, statistic, unit=True)}."
    return told


def _declared(statistic: Statistic) -> Drawing:
    alt = (
        f"A specification curve of {statistic.title}: a point with an interval for every reading, "
        "sorted by value, with the paper's value as a dashed line, and below it a grid of dots "
        "that says which residual scale and which choice each reading takes."
    )
    printed = statistic.name in PRINTED
    declare = of_readings(statistic.name, READING_KINDS, _title(statistic), alt, printed)
    return declare(partial(curve, statistic))


DRAWINGS = tuple(map(_declared, STATISTICS))
