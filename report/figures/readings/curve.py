"""Specification curves: every reading's value of one statistic, and below it what each chose."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from report.figures.drawing import Drawing, NotDrawnError
from report.figures.readings.look import dashed, marker, planned, read, study_of
from report.judge.readings_rule import BASE, RESIDUALS
from report.judge.readings_study import Described
from report.judge.readings_words import PREFIX, amount, factor, heading, shown_unit, title
from report.values.numbers import MINUS
from report.values.readings import STATISTICS, Statistic
from report.values.style import HAIR, INK, MUTED

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

ROW = 0.145  # inches of the grid a choice
CURVE = 2.3  # inches of the panel above it
GROUP_GAP = 0.4  # rows between groups of choices
GROUP_AT = 124  # points left of the panel where the names of the groups stand


def curve(statistic: Statistic, records: CampaignRecords) -> Figure:
    """One statistic of every reading that has it."""
    found = study_of(records)
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
    for place, (reading, row) in enumerate(zip(shown, rows.itertuples(), strict=True)):
        established = pd.notna(row.established) and bool(row.established)
        look = marker(reading.residual, established, reading.beside)
        if np.isfinite(row.low):
            ends = scale * row.low, scale * row.high
            axes.vlines(place, *ends, color=look["color"], linewidth=1.1, alpha=look["alpha"])
        axes.plot(place, scale * row.mean, **look, zorder=3)
        if pd.notna(row.turns) and row.turns:
            foot = axes.get_xaxis_transform()
            axes.plot(place, 0.025, "^", color=INK, markersize=4, clip_on=False, transform=foot)
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
    for name, y in places.items():
        axes.plot(range(len(shown)), [y] * len(shown), "o", color=HAIR, markersize=2.2, zorder=1)
        for x, reading in enumerate(shown):
            if name in (reading.residual, reading.choice):
                look = marker(reading.residual, established=not reading.beside)
                axes.plot(x, y, **{**look, "markersize": 4.2}, zorder=2)
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


DRAWINGS = tuple(
    Drawing(
        PREFIX + statistic.name,
        _title(statistic),
        f"A specification curve of {statistic.title}: a point with an interval for every reading, "
        "sorted by value, with the paper's value as a dashed line, and below it a grid of dots "
        "that says which residual scale and which choice each reading takes.",
        partial(curve, statistic),
        reads=read("runs", "losses", "probes", "diagnoses"),
        planned=planned,
    )
    for statistic in STATISTICS
)
