"""The style of all figures: the pages' fonts and colours, light and dark."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from relation.variants import PAIRED, VARIANTS
from report import data
from report.data import OPERATORS, Records
from report.stats import Estimate

MHA, RELATION, LINEAR, MATERIALISED = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # Okabe and Ito
INK, MUTED, HAIR, PAPER = "#1b1c1e", "#62656a", "#d9d9d4", "#fcfcfa"
COLOUR = {
    "mha": MHA,
    "full": RELATION,
    "full-flash": RELATION,
    "full-reference": MATERIALISED,
    "linear": LINEAR,
}
_FURTHER = "56b4e9 999933 8c564b e69f00 9467bd 882255 44aa99 e377c2 332288 117733 bcbd22 17becf"
_FURTHER = cycle(f"#{each}" for each in (*_FURTHER.split(), "6b6ecf", "c49c94"))
COLOUR |= {name: next(_FURTHER) for name in VARIANTS if name not in COLOUR}
NAME = {name: one.title for name, one in VARIANTS.items()} | OPERATORS | {"full": "Relation"}
SHEET = Path(__file__).with_name("page.mplstyle")
WIDTH, NARROW = 8.4, 4.6  # inches: the page's width, and a width that fits a telephone
DASHES = (0, (4, 3))

# Browsers show the text in the page's font; DejaVu Sans of the style sheet only reserves space.
_PAGE_TYPE = 'Inter, -apple-system, "Segoe UI", "Helvetica Neue", "Noto Sans", sans-serif'
# An SVG in <img> does not see the page's CSS, so it has its own dark scheme.
_DARK = {INK: "#e4e4e0", MUTED: "#9da0a6", HAIR: "#35373c", PAPER: "#141518"}
_DARK[MHA.lower()] = "#4aa3df"


@dataclass(frozen=True)
class Drawing:
    """A figure. choose: selects the rows of a setting's records; draw: draws them."""

    name: str
    heading: str
    caption: str
    choose: Callable[[Records], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Records], Figure]


def drawing(name: str, heading: str, choose: Callable[[Records], pd.DataFrame]) -> Callable:
    """Declare a function of rows and records as a figure. Its docstring is the caption.

    choose: selects the rows to draw. If there are none, the figure is left out.
    """

    def declare(draw: Callable[[pd.DataFrame, Records], Figure]) -> Drawing:
        return Drawing(name, heading, " ".join(draw.__doc__.split()), choose, draw)

    return declare


def styled():
    """Return a context manager that sets the project's style. Draw and save figures inside it."""
    sheet = matplotlib.rc_params_from_file(SHEET, use_default_template=False)
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, **sheet})


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG with the page's fonts and a dark scheme; equal figures, equal bytes.

    One legend above the panels has all their labels, MHA first.
    """
    named = {}  # the first handle of each label
    for panel in figure.axes:
        handles, names = panel.get_legend_handles_labels()
        named = dict(zip(names, handles, strict=True)) | named
    if named:
        names, place = sorted(named, key=lambda name: name != "MHA"), "outside upper left"
        columns = int(figure.get_figwidth() / 2)
        figure.legend([named[name] for name in names], names, loc=place, ncols=columns)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"(?<![\w-])-(?=[\d.])(?=[^<>]*</text>)", "−", buffer.getvalue())
    dark = " ".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {colour} !important; }}'
        for light, colour in _DARK.items()
        for kind in ("fill", "stroke")
    )
    rules = (
        f"text {{ font-family: {_PAGE_TYPE} !important; }} "
        f"@media screen and (prefers-color-scheme: dark) {{ {dark} }}"
    )
    opening = svg.index(">", svg.index("<svg")) + 1
    path.write_text(f"{svg[:opening]}\n<style>{rules}</style>{svg[opening:]}", encoding="utf-8")


def grid(
    rows: int, columns: int, height: float, width: float = WIDTH, **options
) -> tuple[Figure, np.ndarray]:
    """Return a figure of `width` x `height` inches and its axes, an array (rows, columns)."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def scales_of(rows: pd.DataFrame) -> list[str]:
    """Return a frame's scales: 10M, 30M, 100M, 100M28pc by size, then other names."""
    return sorted(rows["scale"].unique(), key=lambda name: (data.scale_order(name), name))


def panels(
    rows: pd.DataFrame, height: float, labels: Sequence[str], along: str, by: str = "scale",
    title: str = "{}", **options,
) -> tuple[Figure, list[tuple[str, pd.DataFrame, np.ndarray]]]:  # fmt: skip
    """Return a figure with one column of panels per scale, and each column's scale, rows and axes.

    labels: of the y axes, one per row of panels. along: label of the x axis. by: the frame's
    column that makes the columns of panels.
    """
    values = scales_of(rows) if by == "scale" else sorted(rows[by].unique())
    figure, axes = grid(len(labels), len(values), height, **options)
    for panel, label in zip(axes[:, 0], labels, strict=True):
        panel.set_ylabel(label)
    for value, column in zip(values, axes.T, strict=True):
        column[0].set_title(title.format(value))
        column[-1].set_xlabel(along)
    return figure, [(v, rows[rows[by] == v], c) for v, c in zip(values, axes.T, strict=True)]


def paired(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Return the rows of MHA and Relation at the scales (and other `keys`) that have both."""
    rows = rows[rows["variant"].isin(PAIRED)]
    return rows[rows.groupby(["scale", *keys])["variant"].transform("nunique") == 2]


def look(variant: str) -> dict[str, str]:
    """Return the colour of a variant and its name in the legend."""
    return {"color": COLOUR.get(variant, MUTED), "label": NAME.get(variant, variant)}


def seeds_and_mean(axes: Axes, curves: pd.DataFrame, variant="", points=False, **options) -> None:
    """Draw a thin line (or points) for each column of `curves`, which is a seed, and their mean.
    Curves without a variant are grey."""
    curves, colour = curves.dropna(axis=1, how="all"), look(variant)["color"]
    thin = {"marker": "o", "linestyle": "", "markersize": 3} if points else {"linewidth": 0.6}
    axes.plot(curves.index, curves, color=colour, alpha=0.35, **thin)
    mean = curves.dropna().mean(axis=1)
    axes.plot(mean.index, mean, **look(variant), **options)


def counts(axis) -> None:
    """Format an axis with rounded counts, such as 150M."""
    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(lambda count, _: data.rounded(count))


def doublings(axes: Axes, places: list[int]) -> None:
    """Make the x axis logarithmic, with ticks at `places`."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.xaxis.set_minor_locator(NullLocator())


def annotate(axes: Axes, place: tuple[float, float], text: str, **options) -> None:
    """Write a text right of a point. options: arguments of `Axes.annotate`."""
    look = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
    axes.annotate(text, place, **{**look, **options})


@dataclass(frozen=True)
class Bar:
    """A row of a forest plot. printed: the paper's value. points: the values behind a mean. kind:
    the legend's name for the colour."""

    name: str
    estimate: Estimate
    printed: float | None = None
    points: Sequence[float] = ()
    colour: str = RELATION
    kind: str = ""


def forest(bars: Sequence[Bar], label: str, width: float = NARROW, margin: float = 0) -> Figure:
    """Draw differences with their intervals, each below its name and its value as text.

    margin: differences within ±margin count as equivalent.
    """
    figure, ((axes,),) = grid(1, 1, 0.4 * len(bars) + 0.9, width)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(0, -len(bars), -1), [""] * len(bars))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    placing = {"xycoords": ("axes fraction", "data"), "xytext": (0, 9)}
    for place, bar in enumerate(bars):
        estimate, points = bar.estimate, list(bar.points)
        look = {"color": bar.colour}
        zero = (-place - 0.5, -place + 0.15)  # clear of the text
        axes.plot((0, 0), zero, color=MUTED, linewidth=0.8, zorder=1)
        axes.plot(points, [-place] * len(points), "o", markersize=3, alpha=0.35, **look)
        axes.plot((estimate.low, estimate.high), (-place, -place), **look)
        axes.plot(estimate.value, -place, "o", label=bar.kind, **look)
        if bar.printed is not None:
            look = {"color": INK, "markerfacecolor": "none", "markersize": 5}
            axes.plot(bar.printed, -place, "D", label="the paper", **look)
        annotate(axes, (0, -place), bar.name, **placing)
        annotate(axes, (1, -place), f"{estimate:+.4f}", xycoords=placing["xycoords"])
    if margin:
        look = {"color": MUTED, "alpha": 0.15, "linewidth": 0}
        axes.axvspan(-margin, margin, label=f"±{margin:g}, counts as equivalent", **look)
    axes.set_ylim(0.4 - len(bars), 0.8)
    axes.set_xlabel(label, loc="left")  # a long label would be cut off at the left
    return figure
