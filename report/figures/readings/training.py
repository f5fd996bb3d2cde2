"""What the readings do while they train: the difference of a pair, lambda, Self flow, by scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from report.compute.measured import select
from report.figures.drawing import PAIR, Drawing, NotDrawnError, grid, token_axis
from report.figures.readings.look import (
    RESIDUAL_COLOUR,
    RESIDUAL_NAME,
    RESIDUALS,
    dashed,
    planned,
    read,
    readings_of,
)
from report.figures.validation import METRIC
from report.paper_seeds import number
from report.readings.rule import BASE
from report.style import INK, MUTED

if TYPE_CHECKING:
    from relation.records import CampaignRecords
    from relation.records.multiverse import ReadingRecords

# The first looks' differences would flatten all that follow.
SHOWN_FROM = 0.2
FIRST = {"lambda": "count calibration λ\nof layer 0", "self_flow": "Self flow of\nlayer 0"}


def _curves(looks: pd.DataFrame) -> dict[str, pd.Series]:
    """By reading the mean over seeds against tokens, of the seeds that have every look."""
    found = {}
    for reading, rows in looks.groupby("reading", sort=False):
        wide = rows.pivot_table(index="tokens", columns="seed", values="value").dropna(axis=1)
        if len(wide.columns):
            found[reading] = wide.mean(axis=1)
    return found


def _differences(readings: ReadingRecords) -> dict[str, pd.Series]:
    """Validation NLL of Full Relation less MHA's by reading, while both train."""
    looks = select(readings.probes, metric=METRIC, variant=PAIR)
    looks = looks[(looks["tokens"] > 0) & looks["value"].notna()]
    wide = looks.pivot_table(
        index=["reading", "seed", "tokens"], columns="variant", values="value", sort=False
    )
    if set(PAIR) - set(wide):
        return {}
    apart = (wide["full"] - wide["mha"]).dropna().reset_index(name="value")
    return _curves(apart)


def _split(readings: ReadingRecords, curves: dict[str, pd.Series]) -> list[tuple[str, list]]:
    """Residual scales with their curves: (reading, whether it is the base, beside, curve)."""
    found = []
    for residual in RESIDUALS:
        own = [
            (r["name"], r["choice"] == BASE, r["beside"], curves[r["name"]])
            for r in readings.described
            if r["residual"] == residual and r["name"] in curves
        ]
        if own:
            found.append((residual, own))
    return found


def _panel(axes: Axes, residual: str, curves: list) -> None:
    """The base thick, other readings thin, those beside dotted."""
    for _, base, beside, curve in curves:
        look = {"color": MUTED, "linewidth": 0.6, "alpha": 0.7}
        if beside:
            look |= {"linestyle": ":"}
        if base:
            look = {"color": RESIDUAL_COLOUR[residual], "linewidth": 2.0, "zorder": 3}
        axes.plot(curve.index, curve, **look)


def validation_difference(records: CampaignRecords) -> Figure:
    """Validation NLL of Relation less MHA's against tokens, a panel a residual scale."""
    readings = readings_of(records)
    parts = _split(readings, _differences(readings))
    if not parts:
        raise NotDrawnError("no pair of a reading has looks at the validation text")
    figure, axes = grid(1, len(parts), 2.9, sharey="row")
    late = []
    for here, (residual, curves) in zip(axes[0], parts, strict=True):
        _panel(here, residual, curves)
        for *_, curve in curves:
            late += list(curve[curve.index >= SHOWN_FROM * curve.index.max()])
        here.axhline(0, color=INK, linewidth=0.8)
        here.set_title(RESIDUAL_NAME[residual])
        token_axis(here)
        here.set_xlim(left=0)
    paper = number("app-nll", "10M/mean", "delta")
    for here in axes[0]:
        dashed(here, paper, "paper" if here is axes[0][-1] else "")
    shown = [*late, 0.0, paper]
    margin = 0.06 * (max(shown) - min(shown))
    axes[0, 0].set_ylim(min(shown) - margin, max(shown) + margin)
    axes[0, 0].set_ylabel("Relation − MHA\n(nat/token)")
    return figure


def formation(records: CampaignRecords) -> Figure:
    """Lambda and Self flow of Relation's first layer against tokens, a column a residual scale."""
    readings = readings_of(records)
    looks = select(readings.probes, variant="full", layer=0)
    looks = looks[looks["value"].notna()]
    parts = {name: _split(readings, _curves(select(looks, metric=name))) for name in FIRST}
    there = [residual for residual in RESIDUALS if any(residual in dict(p) for p in parts.values())]
    if not there:
        raise NotDrawnError("no run of a reading was looked at while it trained")
    figure, axes = grid(2, len(there), 4.0, sharex="col", sharey="row")
    for row, (name, label) in enumerate(FIRST.items()):
        curves = dict(parts[name])
        for column, residual in enumerate(there):
            _panel(axes[row, column], residual, curves.get(residual, []))
            if row == 0:
                axes[row, column].set_title(RESIDUAL_NAME[residual])
        axes[row, 0].set_ylabel(label)
    paper = number("app-structural-layerwise", "10M/L0", "self.full") / 100
    for column in range(len(there)):
        dashed(axes[1, column], paper, "paper" if column == len(there) - 1 else "")
        token_axis(axes[1, column])
    axes[1, 0].set_ylim(bottom=0)
    axes[1, 0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


_LINES = (
    f"thick the base ({BASE}), thin the other readings, dotted those beside, means over the seeds "
    "that have every look"
)
DRAWINGS = (
    Drawing(
        "readings-validation",
        f"Validation NLL of Relation less MHA’s while the pairs train, by residual scale: {_LINES}"
        f". Dashed: the paper’s final difference. The panel shows all that came after the first "
        f"{SHOWN_FROM:.0%} of the budget.",
        "Two line charts, one a residual scale: the difference of the pairs in validation NLL "
        "against training tokens, a line a reading, with a line at zero and one at the paper's "
        "final difference.",
        validation_difference,
        reads=read("probes"),
        planned=planned,
    ),
    Drawing(
        "readings-formation",
        f"Relation’s first layer while it trains, by residual scale: count calibration λ above, "
        f"Self flow below; {_LINES}. Dashed: the paper’s Self flow after training.",
        "Line charts, a column a residual scale: count calibration of the first layer and below it "
        "the share of its flow that stays on a token, against training tokens, a line a reading.",
        formation,
        reads=read("probes"),
        planned=planned,
    ),
)
