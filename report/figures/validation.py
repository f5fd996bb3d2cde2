"""Validation NLL while the pairs train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.compute.measured import select
from report.figures.drawing import PAIR, Drawing, grid, mark_passes, name_pair, present, token_axis
from report.figures.probes import left_out, probed
from report.layout import SCALES
from report.style import INK, MUTED, OPERATOR_COLOUR

if TYPE_CHECKING:
    from relation.records import CampaignRecords

METRIC = "validation_nll"
# The fall of the first looks would flatten all others.
SHOWN_FROM = 0.25


def _read(records: CampaignRecords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The looks, and the runs, which know the ends of their passes."""
    rows = probed(records, "run of a pair", variant=PAIR, metric=METRIC)
    rows = rows[rows["tokens"] > 0]
    return rows, select(records.runs, scale=tuple(set(rows["scale"])), variant=PAIR)


def validation_curves(records: CampaignRecords) -> Figure:
    """Validation NLL of both above, the paired difference below; a column a scale."""
    rows, runs = _read(records)
    scales = present(rows, SCALES)
    figure, axes = grid(2, len(scales), 4.2, sharex="col")
    for column, scale in enumerate(scales):
        above, below = axes[:, column]
        wide = select(rows, scale=scale).pivot_table(
            index="tokens", columns=["variant", "seed"], values="value"
        )
        above.set_title(scale)
        for variant in (v for v in PAIR if v in wide):
            # The two may lie on one another: the upper mean is dashed, the lower shows between.
            dashes = {"linestyle": (0, (4, 4))} if variant == "full" else {}
            _curve_and_mean(above, wide[variant], OPERATOR_COLOUR[variant], **dashes)
        paired = [s for s in wide.columns.unique("seed") if all((v, s) in wide for v in PAIR)]
        _show_late(above, wide)
        if paired:
            differences = wide["full"][paired] - wide["mha"][paired]
            _curve_and_mean(below, differences, INK)
            _show_late(below, differences, 0.0)
        below.axhline(0, color=MUTED, linewidth=0.7)
        for panel in axes[:, column]:
            mark_passes(panel, select(runs, scale=scale))
        token_axis(below)
    name_pair(axes[0, 0])
    axes[0, 0].set_ylabel("validation NLL\n(nat/token)")
    axes[1, 0].set_ylabel("Relation − MHA\n(nat/token)")
    return figure


def _show_late(axes: Axes, curves: pd.DataFrame, *shown: float) -> None:
    """End a panel at what its curves do after the first looks, and at values beside them."""
    late = curves[curves.index >= SHOWN_FROM * curves.index.max()]
    low, high = min([late.min().min(), *shown]), max([late.max().max(), *shown])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)


def _curve_and_mean(axes: Axes, curves: pd.DataFrame, colour: str, **mean_look: object) -> None:
    """A thin line a seed, and their mean where all have been read."""
    axes.plot(curves.index, curves, color=colour, linewidth=0.6, alpha=0.5)
    mean = curves.dropna().mean(axis=1)
    axes.plot(mean.index, mean, color=colour, **mean_look)


def _validation_title(records: CampaignRecords) -> str:
    looks, tokens = records.page["validations"], records.page["validation_tokens"]
    return (
        f"Validation NLL while the pairs train, after each of {looks} equal parts of the budget on "
        f"the first {tokens:,} tokens of the split (on all, where it has fewer). Above, MHA and "
        "Relation, thin by seed and thick the mean, Relation’s dashed; below, the difference of "
        "each pair and their mean. A dotted line marks the end of a pass over the training "
        f"windows. A panel shows all that came after the first {SHOWN_FROM:.0%} of the budget."
        f"{left_out(records, *PAIR)}"
    )


DRAWING = Drawing(
    "validation-curves",
    _validation_title,
    "Line charts by scale: the validation NLL of MHA and of Relation against training tokens, "
    "and below the difference of each pair, with the ends of passes over the corpus marked.",
    validation_curves,
    reads=_read,
)
