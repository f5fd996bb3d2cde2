"""What all figures share: how one is declared, panels by scale, axes, curves over seeds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from relation.pipeline.gaps import NOT_THERE
from relation.variants import PAIRED
from report.values.efficiency import smoothed_loss
from report.values.frames import CampaignRecords
from report.values.layout import SCALES
from report.values.measured import select
from report.values.numbers import quantity
from report.values.style import INK, MUTED, OPERATOR_COLOUR, OPERATOR_NAME

DASHES = (0, (4, 3))

# So many records that are not there are named one by one.
_MOST_NAMED = 3


class NotDrawnError(Exception):
    """A figure's data are not there; the message says which and why."""


@dataclass(frozen=True)
class Drawing:
    """One figure, declared where it is drawn; ``report.figures.DRAWINGS`` finds it there.

    ``title`` is its caption and may depend on the records; ``alt`` says what the picture shows, for
    those who do not see it, ``heading`` the same in a few words. ``draw`` gives the picture, or is
    the SVG of one that shows no campaign's data, with a PDF beside it. ``page`` writes a page of
    its own on which a reader explores it, where there is one. ``reads`` gives the rows that it
    shows, one frame or several, each row with its record in the column "source". ``planned`` says
    of records whether their campaign plans what it shows, and so has the figure at all; None where
    every one does. ``printed``: whether it goes into the document too, as a PDF beside the SVG.
    """

    name: str
    title: str | Callable[[CampaignRecords], str]
    alt: str
    draw: Callable[[CampaignRecords], Figure] | Path
    page: Callable[[CampaignRecords], str] | None = None
    reads: Callable[[CampaignRecords], pd.DataFrame | Iterable[pd.DataFrame]] | None = None
    planned: Callable[[CampaignRecords], bool] | None = None
    heading: str = ""
    printed: bool = True

    def sources(self, records: CampaignRecords) -> list[str]:
        """The Parquet files that it is drawn from, in the order of the records."""
        frames = [] if self.reads is None else self.reads(records)
        frames = [frames] if isinstance(frames, pd.DataFrame) else frames
        return list(dict.fromkeys(source for rows in frames for source in rows["source"]))


def figure(name: str, **declared: Any) -> Callable[[Callable[[CampaignRecords], Figure]], Drawing]:
    """Declare what a function draws: the fields of ``Drawing`` but ``draw``."""
    return lambda draw: Drawing(name, draw=draw, **declared)


def demand(found: bool, what: str, records: CampaignRecords, *kinds: str) -> None:
    """Refuse to draw without data.

    Raises:
        NotDrawnError: nothing was found; the campaign's own reasons are named, of many records that
            are just not there the first.
    """
    if found:
        return
    reasons = dict.fromkeys(str(reason) for reason in select(records.missing, kind=kinds)["reason"])
    told = [reason for reason in reasons if not reason.startswith(NOT_THERE)]
    untried = [reason for reason in reasons if reason.startswith(NOT_THERE)]
    if len(untried) > _MOST_NAMED:
        untried = [f"{untried[0]}, nor {len(untried) - 1} more"]
    because = "; ".join((*told, *untried))
    raise NotDrawnError(f"this campaign has no {what}" + (f" ({because})" if because else ""))


def grid(rows: int, columns: int, height: float, **options: object) -> tuple[Figure, np.ndarray]:
    """A figure of the page's width with rows x columns axes, always a 2-D array."""
    figure = Figure(figsize=(8.4, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def of_both(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """The rows of the scales, seeds and ``keys`` of which both runs of the pair have some."""
    variants = rows.groupby(["scale", "seed", *keys])["variant"].transform("nunique")
    return rows[variants == len(PAIRED)]


def scales_of(rows: pd.DataFrame) -> list[str]:
    """The scales of a frame: the paper's in its order, then a campaign's own."""
    found = list(rows["scale"].unique())
    own = [scale for scale in found if scale not in SCALES]
    return [*(scale for scale in SCALES if scale in found), *own]


def multiples(
    columns: Sequence[str],
    draw: Callable[[str, Sequence[Axes]], None],
    height: float,
    labels: Sequence[str],
    titles: Sequence[str],
    along: str = "",
    legend: int | None = None,
    **options: object,
) -> Figure:
    """Small multiples side by side.

    Args:
        columns: what each column shows.
        draw: fills a column: what it shows, and its axes from the top.
        height: of the figure, inches.
        labels: of the y axes, one for each row of panels.
        titles: one for each column.
        along: label of the x axes at the bottom.
        legend: the column in whose upper panel the lines are named.
        options: of ``Figure.subplots``.
    """
    figure, axes = grid(len(labels), len(columns), height, **options)
    for column, title, panels in zip(columns, titles, axes.T, strict=True):
        panels[0].set_title(title)
        panels[-1].set_xlabel(along)
        draw(column, panels)
    for panel, label in zip(axes[:, 0], labels, strict=True):
        panel.set_ylabel(label)
    if legend is not None:
        axes[0, legend].legend(handlelength=1.6)
    return figure


def by_scale(
    rows: pd.DataFrame,
    draw: Callable[[str, pd.DataFrame, Sequence[Axes]], None],
    height: float,
    labels: Sequence[str],
    along: str = "",
    **options: object,
) -> Figure:
    """`multiples` with a column for each scale of the rows, in the paper's order.

    rows: have the column "scale"; draw: also gets those of its scale.
    """

    def column(scale: str, panels: Sequence[Axes]) -> None:
        draw(scale, select(rows, scale=scale), panels)

    scales = scales_of(rows)
    return multiples(scales, column, height, labels, scales, along, **options)


def seeds_and_mean(
    axes: Axes, curves: pd.DataFrame, colour: str, points: bool = False, **look: object
) -> pd.Series:
    """Draw a thin line, or points, for each column, and over them the mean; ``look`` is its own.

    A column without a value is left out, and the mean is where all others have one. Returns it.
    """
    curves = curves.dropna(axis=1, how="all")
    faint = 0.5 if curves.shape[1] < 10 else 0.3
    if points:
        axes.plot(curves.index, curves, "o", color=colour, markersize=3, alpha=0.35)
    else:
        axes.plot(curves.index, curves, color=colour, linewidth=0.6, alpha=faint)
    mean = curves.dropna().mean(axis=1)
    if len(mean):
        axes.plot(mean.index, mean, color=colour, **look)
    return mean


def band(axes: Axes, places: Any, low: Any, high: Any, colour: str) -> None:
    """Shade an interval."""
    axes.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0, zorder=1)


def limit(axes: Axes, values: Iterable[float], margin: float = 0.06) -> None:
    """End a panel a little below the least and above the greatest of some values, if any."""
    if not (values := list(values)):
        return
    low, high = min(values), max(values)
    axes.set_ylim(low - margin * (high - low), high + margin * (high - low))


def late(curves: pd.DataFrame, share: float) -> list[float]:
    """The values of curves after a share of their budget; the index is in tokens."""
    values = curves[curves.index >= share * curves.index.max()].to_numpy().ravel()
    return list(values[~np.isnan(values)])


def smoothed(log: pd.DataFrame, records: CampaignRecords) -> pd.Series:
    """A run's loss, its trailing mean over the campaign's window, against training tokens."""
    log = log.sort_values("update")
    tokens, sizes, losses = (log[name].to_numpy() for name in ("tokens", "update_tokens", "loss"))
    window = records.page["efficiency_window"] * tokens[-1]
    return pd.Series(smoothed_loss(tokens, sizes, losses, window), index=tokens)


def counts(axis: Axis, ticks: int) -> None:
    """A few round counts: 131K, 1.07B."""
    axis.set_major_locator(MaxNLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda count, _: quantity(count, ".3g")))


def powers(axes: Axes) -> None:
    """A logarithmic y axis of counts."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: quantity(count, ".3g")))
    axes.yaxis.set_minor_locator(NullLocator())


def doublings(axes: Axes, places: Sequence[int], form: str = "d") -> None:
    """A logarithmic x axis with ticks at ``places``."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [format(place, form) for place in places])
    axes.xaxis.set_minor_locator(NullLocator())


def percent(axes: Axes) -> None:
    """Shares on the y axis, in whole percent."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def token_axis(axes: Axes) -> None:
    """Training tokens from left to right."""
    counts(axes.xaxis, 4)
    axes.set_xlabel("training tokens")


def mark_passes(axes: Axes, runs: pd.DataFrame) -> None:
    """A dotted line where the runs begin to read a window again."""
    passes = runs[runs["epochs"] > 0]
    if passes.empty:
        return
    first = passes.iloc[0]
    tokens = first["trained_tokens"] / first["epochs"]
    for epoch in range(1, int(first["epochs"]) + 1):
        axes.axvline(epoch * tokens, color=MUTED, linewidth=0.7, linestyle=":", zorder=1)
    axes.set_xlim(0, 1.02 * first["trained_tokens"])


def name_pair(axes: Axes) -> None:
    """The pair's names in their colours, at the right."""
    for position, variant in enumerate(PAIRED):
        inside(axes, 0.9 - 0.12 * position, OPERATOR_NAME[variant], OPERATOR_COLOUR[variant])


def name_lines(drawn: Figure, columns: int | None = None, **look: object) -> Figure:
    """The names of the lines of all panels above them, each once, in one row or so many columns."""
    found = {}
    for axes in drawn.axes:
        handles, names = axes.get_legend_handles_labels()
        found |= {name: one for one, name in zip(handles, names, strict=True) if name not in found}
    drawn.legend(
        found.values(), found, loc="outside upper center", ncols=columns or len(found), **look
    )
    return drawn


def inside(axes: Axes, height: float, text: str, colour: str, **options: object) -> None:
    """A word at the right of a panel, at a share of its height."""
    axes.text(0.97, height, text, transform=axes.transAxes, ha="right", color=colour, **options)


def beside(axes: Axes, place: tuple[float, float], text: str, **options: Any) -> None:
    """A word right of a point; ``options`` are those of ``Axes.annotate``."""
    look = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    axes.annotate(text, place, **{**look, **options})


def sideways(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Make a panel one of horizontal bars, named at the left."""
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)


def zero(axes: Axes, colour: str = INK) -> None:
    """A line at no difference."""
    axes.axhline(0, color=colour, linewidth=0.8)
