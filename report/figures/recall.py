"""Beyond the paper: accuracy of associative recall against width, pairs and distance."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.figures.drawing import band, demand, doublings, figure, grid, name_lines, percent
from report.values.frames import CampaignRecords
from report.values.measured import select, t_margin
from report.values.recall import MIXER_NAME, accuracies, counted
from report.values.style import INK, LINEAR, MATERIALISED, MHA, MUTED, RELATION

_COLOUR = {
    "mha": MHA,
    "full": RELATION,
    "linear": LINEAR,
    "hybrid": MATERIALISED,
    "gla": MUTED,
    "kda": INK,
}
_SHARE = "right answers"


def _planned(records: CampaignRecords) -> bool:
    missing = select(records.missing, kind="recall")
    return len(records.recall) > 0 or len(missing) > 0


def _line(axes: Axes, mixer: str, rows: pd.DataFrame, along: str, wider: int) -> None:
    """The mean over seeds of a mixer's accuracy along a column, with its 95% t interval.

    wider: how many mixers are drawn over it; where all are right, each stays to be seen.
    """
    samples = rows.groupby(along)["accuracy"].apply(list)
    means, margins = samples.map(lambda v: sum(v) / len(v)), samples.map(t_margin)
    look = {"markersize": 4 + 1.5 * wider, "linewidth": 1.4 + wider}
    axes.plot(means.index, means, "o-", color=_COLOUR[mixer], label=MIXER_NAME[mixer], **look)
    known = margins.dropna()
    if len(known):
        at = means[known.index]
        low, high = ((at + sign * known).clip(0, 1) for sign in (-1, 1))
        band(axes, known.index, low, high, _COLOUR[mixer])


def _lines(axes: Axes, rows: pd.DataFrame, along: str) -> None:
    found = [mixer for mixer in MIXER_NAME if (rows["mixer"] == mixer).any()]
    for over, mixer in zip(reversed(range(len(found))), found, strict=True):
        _line(axes, mixer, select(rows, mixer=mixer), along, over)
    doublings(axes, sorted(rows[along].unique()))
    axes.set_ylim(-0.03, 1.03)
    percent(axes)


@figure(
    "beyond-recall-width",
    heading="Associative recall against width",
    title="Associative recall: the share of queries whose likeliest token is the value, mean of "
    "the tasks, against the model’s width. Points are means over seeds at the chosen rate, bands "
    "their 95% t intervals, cut at 0 and 100%. Two layers, one model for all lengths.",
    alt="A line a mixer: the share of right answers against width, with a band over its 95% "
    "interval.",
    reads=counted,
    planned=_planned,
)
def recall_by_width(records: CampaignRecords) -> Figure:
    rows = counted(records)
    demand(len(rows) > 0, "associative recall", records, "recall")
    drawn, axes = grid(1, 1, 2.9)
    _lines(axes[0, 0], accuracies(rows), "width")
    axes[0, 0].set_xlabel("width (channels)")
    axes[0, 0].set_ylabel(_SHARE)
    return name_lines(drawn)


@figure(
    "beyond-recall-tasks",
    heading="Associative recall against pairs and distance",
    title="Associative recall by width: above, against the pairs of a sequence, which is the "
    "longer the more pairs it has; below, in the task with the most pairs, against the distance "
    "from a query back to its key, in octaves. Means over seeds with 95% t intervals.",
    alt="A column of two panels for each width, a line a mixer: the share of right answers "
    "against the number of pairs, and against the distance to the key, with bands over their 95% "
    "intervals.",
    reads=counted,
    planned=_planned,
)
def recall_by_task(records: CampaignRecords) -> Figure:
    rows = counted(records)
    demand(len(rows) > 0, "associative recall", records, "recall")
    widths = sorted(rows["width"].unique())
    hardest = select(rows, pairs=rows["pairs"].max())
    drawn, axes = grid(2, len(widths), 5.0, sharey=True)
    for column, width in zip(axes.T, widths, strict=True):
        _lines(column[0], accuracies(select(rows, width=width), "pairs"), "pairs")
        _lines(column[1], accuracies(select(hardest, width=width), "distance"), "distance")
        column[0].set_title(f"width {width}")
        column[0].set_xlabel("pairs")
        column[1].set_xlabel("distance (tokens)")
    for here in axes[:, 0]:
        here.set_ylabel(_SHARE)
    return name_lines(drawn)
