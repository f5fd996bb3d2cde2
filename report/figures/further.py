"""Every pair of the scales that have pairs beyond the paper's."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.variants import PAIRED
from report.figures.drawing import (
    DASHES,
    band,
    counts,
    demand,
    figure,
    grid,
    late,
    limit,
    of_both,
    scales_of,
    seeds_and_mean,
    zero,
)
from report.values.cost import METRIC
from report.values.frames import CampaignRecords
from report.values.further import KIND, paired
from report.values.layout import SCALES
from report.values.measured import select, t_margin
from report.values.numbers import MINUS
from report.values.paper import number
from report.values.style import INK, MUTED, RELATION

# Before this part of the budget single pairs differ by so much that all others would look flat.
SHOWN_FROM = 0.2
_LABEL = "Relation − MHA\n(nat/token)"


def _planned(records: CampaignRecords) -> bool:
    return any(scale in SCALES for scale in records.page["further_seeds"])


def _whole(runs: pd.DataFrame) -> pd.DataFrame:
    return of_both(select(runs, variant=PAIRED).dropna(subset="final_nll"))


def _read(records: CampaignRecords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The further runs that have their partner, and the matrix's of their scales."""
    further = _whole(records.further_runs)
    return further, select(_whole(records.runs), scale=tuple(set(further["scale"])))


@figure(
    "further-pairs",
    heading="Further pairs",
    title="Final validation NLL of Relation less MHA’s, a point a pair, by seed: hollow, left of "
    "the dotted line, the pairs of the matrix; filled the further ones, beyond the paper’s, with "
    "their mean and its 95% t interval as a band, told above. Dashed: the mean of the paper’s "
    "three pairs. No verdict counts the further pairs.",
    alt="By scale, a stem from zero to the difference of each pair in final validation NLL, seed "
    "by seed: the matrix's pairs at the left as hollow points, the further pairs as filled ones "
    "with a line at their mean and a band over its 95% interval; a dashed line at the paper's "
    "mean.",
    reads=_read,
    planned=_planned,
)
def further_pairs(records: CampaignRecords) -> Figure:
    further, matrix = _read(records)
    demand(len(further) > 0, "further pair", records, KIND)
    scales = scales_of(further)
    drawn, axes = grid(len(scales), 1, 2.6 * len(scales) + 0.3)
    for here, scale in zip(axes[:, 0], scales, strict=True):
        _differences(here, scale, paired(matrix, scale), paired(further, scale))
    axes[-1, 0].set_xlabel("seed")
    return drawn


def _differences(axes: Axes, scale: str, matrix: pd.DataFrame, further: pd.DataFrame) -> None:
    before = np.arange(len(matrix))
    places = np.arange(len(further)) + (len(matrix) + 1 if len(matrix) else 0)
    for at, pairs, look in (
        (before, matrix, {"color": INK, "markerfacecolor": "none"}),
        (places, further, {"color": RELATION}),
    ):
        axes.vlines(at, 0, pairs["delta"], color=look["color"], linewidth=0.6, zorder=2)
        axes.plot(at, pairs["delta"], "o", zorder=3, **look)
    zero(axes)
    paper = number("app-nll", f"{scale}/mean", "delta")
    axes.axhline(paper, color=MUTED, linewidth=0.9, linestyle=DASHES)
    mean, margin = further["delta"].mean(), t_margin(list(further["delta"]))
    ends, told = (places[0] - 0.5, places[-1] + 0.5), f"{scale}: mean {mean:+.4f}"
    axes.plot(ends, (mean, mean), color=RELATION)
    if margin is not None:
        band(axes, ends, mean - margin, mean + margin, RELATION)
        told += f" [{mean - margin:+.4f}, {mean + margin:+.4f}]"
    told += f", n = {len(further)}; the paper’s {paper:+.4f}"
    if len(matrix):
        axes.axvline(len(matrix), color=MUTED, linewidth=0.7, linestyle=":")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.8, places[-1] + 0.8)
    axes.set_xticks([*before, *places], [*matrix.index, *further.index])
    axes.set_title(told.replace("-", MINUS))
    axes.set_ylabel(_LABEL)


def _looks(records: CampaignRecords) -> pd.DataFrame:
    """The looks at the validation text of the further pairs whose two runs have some."""
    rows = select(records.further_probes, metric=METRIC, variant=PAIRED, alike=True)
    return of_both(rows[(rows["tokens"] > 0) & rows["value"].notna()])


def _whole_looks(records: CampaignRecords) -> pd.DataFrame:
    """Those of the pairs that have every look of their scale: a mean is over all at every look."""
    rows = of_both(_looks(records), "tokens")
    every = rows.groupby("scale")["tokens"].transform("nunique")
    return rows[rows.groupby(["scale", "seed"])["tokens"].transform("nunique") == every]


def _curves_title(records: CampaignRecords) -> str:
    looks, tokens = records.page["validations"], records.page["validation_tokens"]
    there, drawn = (
        [f"{scale}/{seed}" for scale, seed in rows.groupby(["scale", "seed"]).groups]
        for rows in (_looks(records), _whole_looks(records))
    )
    lacking = ", ".join(pair for pair in there if pair not in drawn)
    left_out = f" Left out, since they lack looks that others have: {lacking}." if lacking else ""
    return (
        "Validation NLL of Relation less MHA’s while the further pairs train, after each of "
        f"{looks} equal parts of the budget on the first {tokens:,} tokens of the split (on all, "
        f"where it has fewer): thin a pair, which may leave the panel before {SHOWN_FROM:.0%} of "
        "the budget and not after, thick their mean; the band is its 95% t interval at each look "
        f"by itself.{left_out}"
    )


@figure(
    "further-curves",
    heading="Further pairs while training",
    title=_curves_title,
    alt="By scale, the difference of each further pair in validation NLL against training tokens "
    "as a thin line, their mean as a thick one with a band over its 95% interval, and a line at "
    "zero.",
    reads=_whole_looks,
    planned=_planned,
)
def further_curves(records: CampaignRecords) -> Figure:
    rows = _whole_looks(records)
    demand(len(_looks(records)) > 0, "look at a further pair", records, KIND)
    demand(len(rows) > 0, "further pair that has every look of the others", records, KIND)
    scales = scales_of(rows)
    drawn, axes = grid(len(scales), 1, 2.4 * len(scales) + 0.3)
    for here, scale in zip(axes[:, 0], scales, strict=True):
        wide = select(rows, scale=scale).pivot_table("value", "tokens", ["variant", "seed"])
        differences = wide["full"] - wide["mha"]
        low = high = mean = seeds_and_mean(here, differences, RELATION)
        if differences.shape[1] > 1:
            margins = [t_margin(list(look)) for look in differences.to_numpy()]
            low, high = mean - margins, mean + margins
            band(here, mean.index, low, high, RELATION)
        zero(here)
        limit(here, [*low, *high, *late(differences, SHOWN_FROM), 0.0])
        here.set_title(f"{scale}, n = {differences.shape[1]}")
        here.set_ylabel(_LABEL)
        counts(here.xaxis, 4)
        here.set_xlim(left=0)
    axes[-1, 0].set_xlabel("training tokens")
    return drawn
