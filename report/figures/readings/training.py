"""What the readings do while they train: the difference of a pair, lambda, Self flow, by scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from report.figures.drawing import PAIR, Drawing, NotDrawnError, token_axis
from report.figures.readings.look import (
    LINES,
    by_residual,
    dashed,
    draw_lines,
    planned,
    read,
    study_of,
)
from report.figures.validation import METRIC
from report.values.measured import select
from report.values.paper_seeds import number
from report.values.style import INK

if TYPE_CHECKING:
    from report.values.frames import CampaignRecords

# The first looks' differences would flatten all that follow.
SHOWN_FROM = 0.2
FIRST = {"lambda": "count calibration λ\nof layer 0", "self_flow": "Self flow of\nlayer 0"}


def _curves(looks: pd.DataFrame) -> dict[str, pd.Series]:
    """By reading the mean over seeds against tokens, of the seeds that have every look."""
    found = {}
    for reading, rows in looks.dropna(subset="value").groupby("reading", sort=False):
        wide = rows.pivot_table(index="tokens", columns="seed", values="value").dropna(axis=1)
        if len(wide.columns):
            found[reading] = wide.mean(axis=1)
    return found


def validation_difference(records: CampaignRecords) -> Figure:
    """Validation NLL of Relation less MHA's against tokens, a panel a residual scale."""
    found = study_of(records)
    looks = select(found.records.probes, metric=METRIC, variant=PAIR)
    keys = ["reading", "seed", "tokens"]
    wide = looks[looks["tokens"] > 0].pivot_table(
        index=keys, columns="variant", values="value", sort=False
    )
    wide = wide.reindex(columns=list(PAIR))
    curves = _curves((wide["full"] - wide["mha"]).reset_index(name="value"))
    if not curves:
        raise NotDrawnError("no pair of a reading has looks at the validation text")
    residuals = [reading.residual for reading in found.readings if reading.name in curves]
    figure, axes, there = by_residual(residuals, 1, 2.9)
    for here, residual in zip(axes[0], there, strict=True):
        draw_lines(here, found.readings, residual, curves)
        here.axhline(0, color=INK, linewidth=0.8)
        token_axis(here)
        here.set_xlim(left=0)
    paper = number("app-nll", "10M/mean", "delta")
    dashed(axes[0], paper)
    late = pd.concat([c[c.index >= SHOWN_FROM * c.index.max()] for c in curves.values()])
    low, high = min(late.min(), 0.0, paper), max(late.max(), 0.0, paper)
    axes[0, 0].set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes[0, 0].set_ylabel("Relation − MHA\n(nat/token)")
    return figure


def formation(records: CampaignRecords) -> Figure:
    """Lambda and Self flow of Relation's first layer against tokens, a column a residual scale."""
    found = study_of(records)
    looks = select(found.records.probes, variant="full", layer=0)
    curves = {name: _curves(select(looks, metric=name)) for name in FIRST}
    seen = {reading for own in curves.values() for reading in own}
    if not seen:
        raise NotDrawnError("no run of a reading was looked at while it trained")
    residuals = [reading.residual for reading in found.readings if reading.name in seen]
    figure, axes, there = by_residual(residuals, 2, 4.0, sharex="col")
    for row, (name, label) in zip(axes, FIRST.items(), strict=True):
        row[0].set_ylabel(label)
        for here, residual in zip(row, there, strict=True):
            draw_lines(here, found.readings, residual, curves[name])
    for here in axes[1]:
        token_axis(here)
    dashed(axes[1], number("app-structural-layerwise", "10M/L0", "self.full") / 100)
    axes[1, 0].set_ylim(bottom=0)
    axes[1, 0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


_MEANS = f"{LINES}; means over the seeds that have every look"
DRAWINGS = (
    Drawing(
        "readings-validation",
        f"Validation NLL of Relation less MHA’s while the pairs train, by residual scale: {_MEANS}"
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
        f"Self flow below; {_MEANS}. Dashed: the paper’s Self flow after training.",
        "Line charts, a column a residual scale: count calibration of the first layer and below it "
        "the share of its flow that stays on a token, against training tokens, a line a reading.",
        formation,
        reads=read("probes"),
        planned=planned,
    ),
)
