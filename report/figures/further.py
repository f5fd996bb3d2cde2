"""Every pair of the scales that have pairs beyond the paper's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.compute.further import KIND, paired
from report.compute.measured import select, t_margin
from report.figures.drawing import PAIR, Drawing, demand, grid, present, token_ticks
from report.figures.validation import METRIC
from report.layout import SCALES
from report.numbers import MINUS
from report.paper_seeds import number
from report.style import INK, MUTED, RELATION

if TYPE_CHECKING:
    from relation.records import CampaignRecords

# Before this part of the budget single pairs differ by so much that all others would look flat.
SHOWN_FROM = 0.2


def _planned(records: CampaignRecords) -> bool:
    return any(scale in SCALES for scale in records.page["further_seeds"])


def _read(records: CampaignRecords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The further runs that have their partner, and the matrix's of their scales."""
    further = _whole(records.further_runs)
    scales = tuple(set(further["scale"]))
    return further, select(_whole(records.runs), scale=scales)


def _whole(runs: pd.DataFrame) -> pd.DataFrame:
    runs = select(runs, variant=PAIR)
    runs = runs[runs["final_nll"].notna()]
    return runs[runs.groupby(["scale", "seed"])["variant"].transform("nunique") == len(PAIR)]


def further_pairs(records: CampaignRecords) -> Figure:
    """The difference of every pair, a row a scale, the matrix's seeds apart on the left."""
    further, matrix = _read(records)
    demand(len(further) > 0, "further pair", records, (KIND,))
    scales = present(further, SCALES)
    figure, axes = grid(len(scales), 1, 2.6 * len(scales) + 0.3)
    for here, scale in zip(axes[:, 0], scales, strict=True):
        _differences(here, scale, paired(matrix, scale), paired(further, scale))
    axes[-1, 0].set_xlabel("seed")
    return figure


def _differences(axes: Axes, scale: str, matrix: pd.DataFrame, further: pd.DataFrame) -> None:
    before = np.arange(len(matrix))
    places = np.arange(len(further)) + (len(matrix) + 1 if len(matrix) else 0)
    for at, pairs, look in (
        (before, matrix, {"color": INK, "markerfacecolor": "none"}),
        (places, further, {"color": RELATION}),
    ):
        axes.vlines(at, 0, pairs["delta"], color=look["color"], linewidth=0.6, zorder=2)
        axes.plot(at, pairs["delta"], "o", zorder=3, **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    paper = number("app-nll", f"{scale}/mean", "delta")
    axes.axhline(paper, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    mean, margin = further["delta"].mean(), t_margin(list(further["delta"]))
    ends, told = (places[0] - 0.5, places[-1] + 0.5), f"{scale}: mean {mean:+.4f}"
    axes.plot(ends, (mean, mean), color=RELATION)
    if margin is not None:
        low, high = mean - margin, mean + margin
        axes.fill_between(ends, low, high, color=RELATION, alpha=0.2, linewidth=0, zorder=1)
        told += f" [{low:+.4f}, {high:+.4f}]"
    told += f", n = {len(further)}; the paper’s {paper:+.4f}"
    if len(matrix):
        axes.axvline(len(matrix), color=MUTED, linewidth=0.7, linestyle=":")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.8, places[-1] + 0.8)
    axes.set_xticks([*before, *places], [*matrix.index, *further.index])
    axes.set_title(told.replace("-", MINUS))
    axes.set_ylabel("Relation − MHA\n(nat/token)")


def _looks(records: CampaignRecords) -> pd.DataFrame:
    """The looks at the validation text of the further pairs whose two runs have some."""
    rows = select(records.further_probes, metric=METRIC, variant=PAIR, alike=True)
    rows = rows[(rows["tokens"] > 0) & rows["value"].notna()]
    return rows[rows.groupby(["scale", "seed"])["variant"].transform("nunique") == len(PAIR)]


def _whole_looks(records: CampaignRecords) -> pd.DataFrame:
    """Those of the pairs that have every look of their scale: a mean is over all at every look."""
    rows = _looks(records)
    both = rows.groupby(["scale", "seed", "tokens"])["variant"].transform("nunique") == len(PAIR)
    rows = rows[both]
    every = rows.groupby("scale")["tokens"].transform("nunique")
    return rows[rows.groupby(["scale", "seed"])["tokens"].transform("nunique") == every]


def further_curves(records: CampaignRecords) -> Figure:
    """The difference of every further pair while it trains, and their mean; a row a scale."""
    rows = _whole_looks(records)
    demand(len(_looks(records)) > 0, "look at a further pair", records, (KIND,))
    demand(len(rows) > 0, "further pair that has every look of the others", records, (KIND,))
    scales = present(rows, SCALES)
    figure, axes = grid(len(scales), 1, 2.4 * len(scales) + 0.3)
    for here, scale in zip(axes[:, 0], scales, strict=True):
        wide = select(rows, scale=scale).pivot_table(
            index="tokens", columns=["variant", "seed"], values="value"
        )
        differences = wide["full"] - wide["mha"]
        here.plot(differences.index, differences, color=RELATION, linewidth=0.5, alpha=0.35)
        mean = differences.mean(axis=1)
        here.plot(mean.index, mean, color=RELATION)
        low = high = mean
        if differences.shape[1] > 1:
            margins = [t_margin(list(look)) for look in differences.to_numpy()]
            low, high = mean - margins, mean + margins
            here.fill_between(mean.index, low, high, color=RELATION, alpha=0.25, linewidth=0)
        here.axhline(0, color=INK, linewidth=0.8)
        late = differences[differences.index >= SHOWN_FROM * differences.index.max()]
        low = min(low.min(), late.min().min(), 0.0)
        high = max(high.max(), late.max().max(), 0.0)
        margin = 0.06 * (high - low)
        here.set_ylim(low - margin, high + margin)
        here.set_title(f"{scale}, n = {differences.shape[1]}")
        here.set_ylabel("Relation − MHA\n(nat/token)")
        token_ticks(here)
        here.set_xlim(left=0)
    axes[-1, 0].set_xlabel("training tokens")
    return figure


def _curves_title(records: CampaignRecords) -> str:
    looks, tokens = records.page["validations"], records.page["validation_tokens"]
    return (
        "Validation NLL of Relation less MHA’s while the further pairs train, after each of "
        f"{looks} equal parts of the budget on the first {tokens:,} tokens of the split (on all, "
        f"where it has fewer): thin a pair, which may leave the panel before {SHOWN_FROM:.0%} of "
        "the budget and not after, thick their mean; the band is its 95% t interval at each look "
        f"by itself.{_left_out(records)}"
    )


def _left_out(records: CampaignRecords) -> str:
    """A sentence on the pairs without every look, if there are any."""
    there, drawn = (
        [f"{scale}/{seed}" for scale, seed in rows.groupby(["scale", "seed"]).groups]
        for rows in (_looks(records), _whole_looks(records))
    )
    lacking = [pair for pair in there if pair not in drawn]
    if not lacking:
        return ""
    return f" Left out, since they lack looks that others have: {', '.join(lacking)}."


PAIRS = Drawing(
    "further-pairs",
    "Final validation NLL of Relation less MHA’s, a point a pair, by seed: hollow, left of the "
    "dotted line, the pairs of the matrix; filled the further ones, beyond the paper’s, with their "
    "mean and its 95% t interval as a band, told above. Dashed: the mean of the paper’s three "
    "pairs. No verdict counts the further pairs.",
    "By scale, a stem from zero to the difference of each pair in final validation NLL, seed by "
    "seed: the matrix's pairs at the left as hollow points, the further pairs as filled ones with "
    "a line at their mean and a band over its 95% interval; a dashed line at the paper's mean.",
    further_pairs,
    reads=_read,
    planned=_planned,
)
CURVES = Drawing(
    "further-curves",
    _curves_title,
    "By scale, the difference of each further pair in validation NLL against training tokens as a "
    "thin line, their mean as a thick one with a band over its 95% interval, and a line at zero.",
    further_curves,
    reads=lambda records: (_whole_looks(records),),
    planned=_planned,
)
DRAWINGS = (PAIRS, CURVES)
