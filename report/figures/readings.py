"""Figures of the readings' page: baselines, training, intervals of logging; a column a scale.

Residual scales differ by colour and shape, readings by the line.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, MaxNLocator

from relation.pipeline.places import READING_KINDS
from relation.variants import PAIRED
from report.figures.drawing import (
    DASHES,
    Drawing,
    NotDrawnError,
    limit,
    multiples,
    name_pair,
    percent,
    token_axis,
    zero,
)
from report.judge.readings_rule import BASE, RATES, RESIDUALS
from report.judge.readings_study import BASES, Study, study
from report.judge.readings_words import PREFIX
from report.values.cost import METRIC
from report.values.frames import CampaignRecords
from report.values.measured import select
from report.values.paper import number
from report.values.readings import BY_NAME, INTERVALS
from report.values.style import HAIR, INK, MUTED, OPERATOR_COLOUR, SCALED, UNSCALED

RESIDUAL_COLOUR = {"unscaled": UNSCALED, "scaled": SCALED}
RESIDUAL_MARKER = {"unscaled": "o", "scaled": "s"}
RESIDUAL_NAME = {"unscaled": "unscaled", "scaled": "scaled by 1/√(2L)"}
BESIDE = 0.45  # how far what is beside the readings fades
LINES = f"thick the base ({BASE}), thin the other readings, dotted those beside"
MEANS = f"{LINES}; means over the seeds that have every look"
# The first looks' differences would flatten all that follow.
SHOWN_FROM = 0.2
FIRST = {"lambda": "count calibration λ\nof layer 0", "self_flow": "Self flow of\nlayer 0"}
DIFFERENCE = "Relation − MHA\n(nat/token)"


def of_readings(
    name: str, kinds: Sequence[str], title: str, alt: str, printed: bool = True
) -> Callable[[Callable[[Study], Figure]], Drawing]:
    """Declare a figure of the readings: what a function draws of what is computed of them.

    kinds: the readings' files that it shows.
    """

    def files(records: CampaignRecords) -> list[pd.DataFrame]:
        own = () if records.readings is None else records.readings.sources
        found = dict(zip(READING_KINDS, own, strict=False))
        return [pd.DataFrame({"source": [found[kind]]}) for kind in kinds if kind in found]

    def declare(draw: Callable[[Study], Figure]) -> Drawing:
        def drawn(records: CampaignRecords) -> Figure:
            if records.readings is None:
                raise NotDrawnError("this campaign has no run of a reading")
            return draw(study(records.readings))

        return Drawing(
            PREFIX + name,
            title,
            alt,
            drawn,
            reads=files,
            planned=lambda records: records.readings is not None,
            printed=printed,
        )

    return declare


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


def dashed(row: Sequence[Axes], value: float) -> None:
    """The paper's value as a dashed line in a row of axes, named at the right end of the last."""
    for axes in row:
        axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=DASHES, zorder=1.5)
    row[-1].annotate(
        "paper", (1, value), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", va="center", fontsize=7, color=MUTED, annotation_clip=False,
    )  # fmt: skip


def by_residual(
    residuals: Iterable[str],
    draw: Callable[[str, Sequence[Axes]], None],
    height: float,
    labels: Sequence[str],
    paper: float,
    **options: Any,
) -> Figure:
    """Small multiples: a column a residual scale, in the lowest row the paper's value.

    Raises NotDrawnError where there is no scale.
    """
    there = [residual for residual in RESIDUALS if residual in set(residuals)]
    if not there:
        raise NotDrawnError("no pair of a reading has what is shown here")
    titles = [RESIDUAL_NAME[residual] for residual in there]
    figure = multiples(there, draw, height, labels, titles, sharey="row", **options)
    dashed(figure.axes[-len(there) :], paper)
    return figure


def _lines(axes: Axes, found: Study, residual: str, curves: Mapping[str, pd.Series]) -> None:
    """The curves of one residual scale: the base thick, others thin, those beside dotted."""
    for reading in found.readings:
        if reading.residual != residual or reading.name not in curves:
            continue
        look = {"color": MUTED, "linewidth": 0.6, "alpha": 0.7}
        if reading.beside:
            look["linestyle"] = ":"
        if reading.choice == BASE:
            look = {"color": RESIDUAL_COLOUR[residual], "linewidth": 2.0, "zorder": 3}
        curve = curves[reading.name]
        axes.plot(curve.index, curve, **look)


def _residuals(found: Study, names: Iterable[str]) -> list[str]:
    """The residual scales of some readings."""
    names = set(names)
    return [reading.residual for reading in found.readings if reading.name in names]


@of_readings(
    "advantage",
    ["runs"],
    "How much of Relation’s advantage is left where MHA is better: final NLL of Relation less "
    "MHA’s against MHA’s own, by residual scale. A point is the mean of a reading’s pairs; "
    "small points are its pairs, faint ones stand beside the readings. "
    "Readings of other texts are left out: an NLL there is not comparable. Dashed: the paper’s "
    "difference.",
    "Two scatter plots, one a residual scale: the difference of Relation and MHA in final NLL "
    "against MHA's final NLL, a point a reading, with a line at zero and one at the paper's "
    "difference.",
)
def advantage(found: Study) -> Figure:
    pairs = found.comparable
    if pairs.empty:
        raise NotDrawnError("no reading has a whole pair")

    def draw(residual: str, panels: Sequence[Axes]) -> None:
        (here,) = panels
        here.margins(x=0.04, y=0.06)
        zero(here)
        points = []
        own = pairs[pairs["residual"] == residual]
        for _, seeds in own.groupby("reading", sort=False):
            first, mean = seeds.iloc[0], seeds[["mha", "delta"]].mean()
            look = marker(residual, beside=first["beside"])
            if len(seeds) > 1:
                here.plot(seeds["mha"], seeds["delta"], **{**look, "markersize": 2.5, "alpha": 0.5})
            here.plot(*mean, **look)
            points.append((first["choice"], *mean))
        # Names in a column at the right, in the order of their points, a hair line to each.
        points.sort(key=lambda point: point[2])
        for height, (name, *at) in zip(np.linspace(0, 1, len(points)), points, strict=True):
            here.annotate(
                name, at, xytext=(1.18, height), textcoords="axes fraction", va="center",
                fontsize=6.5, color=MUTED, zorder=1,
                arrowprops={"arrowstyle": "-", "color": HAIR, "linewidth": 0.6, "shrinkB": 3},
            )  # fmt: skip
        here.set_xlabel("final NLL of MHA (nat/token)")
        here.xaxis.set_major_locator(MaxNLocator(5))

    paper = number("app-nll", "10M/mean", "delta")
    labels = [DIFFERENCE.replace("\n", " ")]
    return by_residual(pairs["residual"], draw, 3.4, labels, paper, sharex="row")


class _Plain(LogFormatterSciNotation):
    """Labels where matplotlib has them on a logarithmic axis, as 0.2 in place of 2 × 10⁻¹."""

    def __call__(self, value: float, place: int | None = None) -> str:
        return f"{value:g}" if super().__call__(value, place) else ""


@of_readings(
    "start",
    ["diagnoses"],
    "What the first layer keeps for itself after training, by what a token’s embedding weighs at "
    "the start: left ρ, its RMS over that of W_O W_I of a normalised token, which the first mixer "
    "adds where all flow stays with the token; right ω, its RMS over the sd of W_O. A point is a "
    "reading, with its 95% interval; faint, beside the readings. Dashed: the paper’s Self flow.",
    "Two scatter plots: Self flow of layer 0 after training against the embedding's RMS over that "
    "of W_O W_I of a normalised token at the start, and over the sd of W_O, a point a reading, "
    "with a line at the paper's value.",
)
def start(found: Study) -> Figure:
    rows = found.of("l0-self")
    if rows.empty:
        raise NotDrawnError("no reading was diagnosed")
    by_name = {reading.name: reading for reading in found.readings}

    def draw(ratio: str, panels: Sequence[Axes]) -> None:
        (here,) = panels
        here.set_xscale("log")
        for name, row in rows.iterrows():
            reading = by_name[name]
            place = getattr(reading, ratio)
            look = marker(reading.residual, beside=reading.beside)
            colour, alpha = look["color"], look["alpha"]
            here.plot(place, row["mean"], **look)
            if np.isfinite(row["low"]):
                here.vlines(place, *row[["low", "high"]], color=colour, alpha=alpha, linewidth=1.1)
            if reading.choice in RATES:
                here.annotate(
                    reading.choice, (place, row["mean"]), xytext=(6, 0),
                    textcoords="offset points", va="center", fontsize=7, color=MUTED,
                )  # fmt: skip
        here.xaxis.set_major_formatter(_Plain())
        here.xaxis.set_minor_formatter(_Plain())

    titles = ["ρ: the embedding over $W_O W_I$ of a token", "ω: the embedding over $W_O$"]
    figure = multiples(
        ["start_ratio", "output_ratio"], draw, 3.2, ["Self flow of layer 0"], titles, sharey="row"
    )
    first, last = figure.axes
    for residual in dict.fromkeys(_residuals(found, rows.index)):
        last.plot([], [], label=RESIDUAL_NAME[residual], **marker(residual))
    last.legend(frameon=False)
    dashed([first, last], BY_NAME["l0-self"].paper)
    first.set_ylim(bottom=0)
    percent(first)
    return figure


@of_readings(
    "learning-rate",
    ["runs"],
    "Final NLL of MHA and Relation at half, once and twice the paper’s learning rate, and "
    "Relation’s less MHA’s below, by residual scale: lines through the means, a faint point a "
    "seed. Dashed: the paper’s difference.",
    "Line charts, a column a residual scale: the final NLL of MHA and of Relation at three "
    "learning rates, and below it their difference with a line at zero.",
)
def learning_rates(found: Study) -> Figure:
    if found.rates.empty:
        raise NotDrawnError("no residual scale has pairs at two learning rates")

    def draw(residual: str, panels: Sequence[Axes]) -> None:
        above, below = panels
        own = found.rates[found.rates["residual"] == residual]
        for here, column, colour in (
            *((above, variant, OPERATOR_COLOUR[variant]) for variant in PAIRED),
            (below, "delta", INK),
        ):
            means = own.groupby("factor")[column].mean()
            here.plot(own["factor"], own[column], "o", color=colour, markersize=3, alpha=0.4)
            here.plot(means.index, means, color=colour, marker="o", markersize=4)
        zero(below, MUTED)
        below.set_xscale("log", base=2)
        below.set_xticks([0.5, 1, 2], ["half", "the paper’s", "twice"])
        below.minorticks_off()
        below.set_xlim(0.42, 2.4)

    paper = number("app-nll", "10M/mean", "delta")
    labels, shape = ["final NLL\n(nat/token)", DIFFERENCE], {"height_ratios": (3, 2)}
    residuals, along = found.rates["residual"], "learning rate"
    figure = by_residual(residuals, draw, 4.0, labels, paper, along=along, sharex="col", **shape)
    above = figure.axes[: len(figure.axes) // 2]
    name_pair(above[-1])
    above[0].yaxis.set_major_locator(MaxNLocator(5))
    return figure


def _curves(looks: pd.DataFrame) -> dict[str, pd.Series]:
    """By reading the mean over seeds against tokens, of the seeds that have every look."""
    found = {}
    for reading, rows in looks.dropna(subset="value").groupby("reading", sort=False):
        wide = rows.pivot_table(index="tokens", columns="seed", values="value").dropna(axis=1)
        if len(wide.columns):
            found[reading] = wide.mean(axis=1)
    return found


@of_readings(
    "validation",
    ["probes"],
    f"Validation NLL of Relation less MHA’s while the pairs train, by residual scale: {MEANS}"
    f". Dashed: the paper’s final difference. The panel shows all that came after the first "
    f"{SHOWN_FROM:.0%} of the budget.",
    "Two line charts, one a residual scale: the difference of the pairs in validation NLL "
    "against training tokens, a line a reading, with a line at zero and one at the paper's "
    "final difference.",
)
def validation_difference(found: Study) -> Figure:
    looks = select(found.records.probes, metric=METRIC, variant=PAIRED)
    keys = ["reading", "seed", "tokens"]
    wide = looks[looks["tokens"] > 0].pivot_table(
        index=keys, columns="variant", values="value", sort=False
    )
    wide = wide.reindex(columns=list(PAIRED))
    curves = _curves((wide["full"] - wide["mha"]).reset_index(name="value"))
    if not curves:
        raise NotDrawnError("no pair of a reading has looks at the validation text")

    def draw(residual: str, panels: Sequence[Axes]) -> None:
        (here,) = panels
        _lines(here, found, residual, curves)
        zero(here)
        token_axis(here)
        here.set_xlim(left=0)

    paper = number("app-nll", "10M/mean", "delta")
    figure = by_residual(_residuals(found, curves), draw, 2.9, [DIFFERENCE], paper)
    late = pd.concat([c[c.index >= SHOWN_FROM * c.index.max()] for c in curves.values()])
    limit(figure.axes[0], [*late, 0.0, paper])
    return figure


@of_readings(
    "formation",
    ["probes"],
    f"Relation’s first layer while it trains, by residual scale: count calibration λ above, "
    f"Self flow below; {MEANS}. Dashed: the paper’s Self flow after training.",
    "Line charts, a column a residual scale: count calibration of the first layer and below it "
    "the share of its flow that stays on a token, against training tokens, a line a reading.",
    printed=False,
)
def formation(found: Study) -> Figure:
    looks = select(found.records.probes, variant="full", layer=0)
    curves = {name: _curves(select(looks, metric=name)) for name in FIRST}
    seen = {reading for own in curves.values() for reading in own}
    if not seen:
        raise NotDrawnError("no run of a reading was looked at while it trained")

    def draw(residual: str, panels: Sequence[Axes]) -> None:
        for here, name in zip(panels, FIRST, strict=True):
            _lines(here, found, residual, curves[name])
        token_axis(here)

    paper = number("app-structural-layerwise", "10M/L0", "self.full") / 100
    labels, residuals = list(FIRST.values()), _residuals(found, seen)
    figure = by_residual(residuals, draw, 4.0, labels, paper, sharex="col")
    below = figure.axes[len(figure.axes) // 2]
    below.set_ylim(bottom=0)
    percent(below)
    return figure


@of_readings(
    "logging",
    ["losses"],
    "Tokens spared to MHA’s final loss, a share of the budget, by how often losses are logged: "
    f"{LINES}; the base with its 95% intervals. A pair that never reaches the loss spares 0. "
    "Dashed: the paper’s share.",
    "Two line charts, one a residual scale: the share of tokens spared against the number of "
    "updates between logged losses, a line a reading, with the paper's share as a dashed line.",
    printed=False,
)
def intervals_of_logging(found: Study) -> Figure:
    names = {every: f"spared-every-{every}" for every in INTERVALS}
    # By reading, a row an interval of logging; %.
    shares = {
        reading: 100 * rows.set_index("every")[["mean", "low", "high"]]
        for reading, rows in pd.concat(
            found.of(name).assign(every=every) for every, name in names.items()
        ).groupby(level="reading")
    }

    def draw(residual: str, panels: Sequence[Axes]) -> None:
        (here,) = panels
        _lines(here, found, residual, {name: rows["mean"] for name, rows in shares.items()})
        if BASES[residual] in shares:
            base, look = shares[BASES[residual]], {"color": RESIDUAL_COLOUR[residual], "zorder": 3}
            here.plot(base.index, base["mean"], "o", **look)
            here.vlines(base.index, base["low"], base["high"], **look)
        zero(here)
        here.set_xscale("log")
        here.set_xticks(INTERVALS, [str(every) for every in INTERVALS])
        here.minorticks_off()

    paper, along = 100 * BY_NAME[names[1]].paper, "updates between two logged losses"
    labels, residuals = ["tokens spared to\nMHA’s final loss"], _residuals(found, shares)
    figure = by_residual(residuals, draw, 2.8, labels, paper, along=along)
    axis = figure.axes[0].yaxis
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    return figure
