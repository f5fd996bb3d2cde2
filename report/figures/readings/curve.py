"""Specification curves: every reading's value of one statistic, and below it what each chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from report.figures.drawing import Drawing, NotDrawnError
from report.figures.readings.look import (
    RESIDUALS,
    dashed,
    marker,
    planned,
    read,
    readings_of,
)
from report.numbers import MINUS
from report.readings.rule import BASE
from report.readings.study import Described, Study, study
from report.readings.values import STATISTICS, Statistic
from report.readings.words import PREFIX, amount, factor, heading, shown_unit, title
from report.style import HAIR, INK, MUTED

if TYPE_CHECKING:
    from relation.records import CampaignRecords

ROW = 0.145  # inches of the grid a choice
CURVE = 2.3  # inches of the panel above it
GROUP_GAP = 0.4  # rows between groups of choices
GROUP_AT = 124  # points left of the panel where the names of the groups stand


def name_of(statistic: Statistic) -> str:
    """The file name of a statistic's curve."""
    return PREFIX + statistic.name


def curve(statistic: Statistic) -> Callable[[CampaignRecords], Figure]:
    """The function that draws one statistic."""

    def draw(records: CampaignRecords) -> Figure:
        found = study(readings_of(records))
        rows = found.of(statistic.name)
        if rows.empty:
            raise NotDrawnError(f"no pair of a reading has a value of: {title(statistic)}")
        return _drawn(found, statistic, rows.sort_values("mean", kind="stable"))

    return draw


def _drawn(found: Study, statistic: Statistic, rows: pd.DataFrame) -> Figure:
    by_name = {reading.name: reading for reading in found.readings}
    shown = [by_name[name] for name in rows.index]
    choices = _choices([r for r in found.readings if r.name in rows.index])
    rows_below = sum(len(names) + GROUP_GAP for names in choices.values())
    heights = (CURVE, ROW * (rows_below + 0.5))
    figure = Figure(figsize=(8.4, sum(heights) + 0.35))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _values(above, statistic, rows, shown, found.turning(statistic.name))
    _grid(below, shown, choices)
    for axes in (above, below):
        axes.set_xlim(-0.7, len(shown) - 0.3)
        for place, reading in enumerate(shown):
            if reading.choice == BASE and any(r.choice != BASE for r in shown):
                axes.axvspan(place - 0.5, place + 0.5, color=HAIR, alpha=0.5, linewidth=0, zorder=0)
    return figure


def _values(
    axes: Axes,
    statistic: Statistic,
    rows: pd.DataFrame,
    shown: Sequence[Described],
    turning: set[str],
) -> None:
    """Means with their intervals, the paper's value, the bound of its direction."""
    scale = factor(statistic.unit)
    rows = rows.assign(**{name: scale * rows[name] for name in ("mean", "low", "high")})
    paper = None if statistic.paper is None else scale * statistic.paper
    if statistic.bound is not None:
        axes.axhline(scale * statistic.bound, color=INK, linewidth=0.8, zorder=1.5)
    dashed(axes, paper, "paper")
    for place, (reading, row) in enumerate(zip(shown, rows.itertuples(), strict=True)):
        established = pd.notna(row.established) and bool(row.established)
        look = marker(reading.residual, established, reading.beside)
        if np.isfinite(row.low):
            axes.vlines(
                place, row.low, row.high, color=look["color"], linewidth=1.1, alpha=look["alpha"]
            )
        axes.plot(place, row.mean, **look, zorder=3)
    ends = [*rows["mean"], *rows["low"].dropna(), *rows["high"].dropna()]
    ends += [end for end in (paper,) if end is not None]
    if statistic.bound is not None:
        ends.append(scale * statistic.bound)
    low, high = min(ends), max(ends)
    margin = 0.07 * ((high - low) or abs(high) or 1.0)
    axes.set_ylim(low - margin, high + margin)
    for place, reading in enumerate(shown):
        if reading.name in turning:
            axes.plot(place, low - 0.4 * margin, "^", color=INK, markersize=4, clip_on=False)
    unit = shown_unit(statistic)
    axes.set_ylabel(_wrapped(title(statistic)) + (f"\n({unit})" if unit else ""))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", MINUS)))
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _wrapped(text: str) -> str:
    """An axis title in lines of some 26 letters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 26 and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _choices(readings: Sequence[Described]) -> dict[str, list[str]]:
    """The rows of the grid by group, in the order of the readings; those beside come last."""
    found = {"residual scale": [r for r in RESIDUALS if r in {s.residual for s in readings}]}
    for reading in sorted(readings, key=lambda r: r.beside):
        names = found.setdefault(
            f"beside: {reading.group}" if reading.beside else reading.group, []
        )
        if reading.choice not in names:
            names.append(reading.choice)
    return found


def _grid(axes: Axes, shown: Sequence[Described], groups: Mapping[str, Sequence[str]]) -> None:
    """A row a choice, a dot where a reading takes it; a small gap between groups."""
    place = 0.0
    places: dict[str, float] = {}
    for group, names in groups.items():
        place += GROUP_GAP if places else 0
        for name in names:
            places[name] = place
            place += 1.0
        axes.annotate(
            group, (0, places[names[0]]),
            xycoords=("axes fraction", "data"), xytext=(-GROUP_AT, 0), textcoords="offset points",
            ha="left", va="center", fontsize=7, color=MUTED, annotation_clip=False,
        )  # fmt: skip
    for name, y in places.items():
        axes.plot(range(len(shown)), [y] * len(shown), "o", color=HAIR, markersize=2.2, zorder=1)
        at = [x for x, r in enumerate(shown) if name in (r.residual, r.choice)]
        for x in at:
            look = marker(shown[x].residual, not shown[x].beside, False)
            axes.plot(x, y, **{**look, "markersize": 4.2}, zorder=2)
    axes.set_ylim(place - 0.4, -0.6)
    axes.set_yticks(list(places.values()), list(places))
    axes.tick_params(axis="both", length=0, labelsize=7)
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _title(statistic: Statistic) -> Callable[[CampaignRecords], str]:
    def told(records: CampaignRecords) -> str:
        bound = ""
        if statistic.bound is not None:
            asked = {"below": "below", "above": "above", "at least": "at or above"}[statistic.side]
            bound = f" The full line is the bound of the paper’s direction, which is {asked} it."
        paper = f" Dashed: the paper’s {amount(statistic.paper, statistic, unit=True)}."
        return (
            f"{heading(statistic)}: every reading, sorted by its "
            "value, with its 95% interval, and below it the residual scale and the choice that it "
            f"takes; shaded, the base ({BASE}) of either scale. A filled point is established, a "
            "hollow one is not; a triangle marks a reading on which the answer turns. Faint above "
            "and hollow below is what stands beside the readings."
            f"{bound}{paper if statistic.paper is not None else ''}"
        )

    return told


DRAWINGS = tuple(
    Drawing(
        name_of(statistic),
        _title(statistic),
        f"A specification curve of {statistic.title}: a point with an interval for every reading, "
        "sorted by value, with the paper's value as a dashed line, and below it a grid of dots "
        "that says which residual scale and which choice each reading takes.",
        curve(statistic),
        reads=read("runs", "losses", "probes", "diagnoses"),
        planned=planned,
    )
    for statistic in STATISTICS
)
