"""Validation NLL while the pairs train, and the looks at a run that figures take."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.variants import PAIRED
from report.figures.drawing import (
    NotDrawnError,
    by_scale,
    demand,
    figure,
    late,
    limit,
    mark_passes,
    name_pair,
    seeds_and_mean,
    token_axis,
    zero,
)
from report.values.cost import METRIC
from report.values.frames import CampaignRecords
from report.values.measured import select
from report.values.style import INK, MUTED, OPERATOR_COLOUR

# The fall of the first looks would flatten all others.
SHOWN_FROM = 0.25


def probed(records: CampaignRecords, needs: str, **keys: object) -> pd.DataFrame:
    """The probes that the figure shows. Looks of other samples or times do not mix with them."""
    rows = select(records.probes, **keys)
    demand(len(rows) > 0, needs, records, "run")
    alike = select(rows, alike=True)
    if alike.empty:
        raise NotDrawnError(
            "every run was probed by another configuration of `diagnostics`; set it back, or train "
            "again"
        )
    return alike


def left_out(records: CampaignRecords, *variants: str) -> str:
    """A sentence on the runs whose probes the figure leaves out, if there are any."""
    other = select(records.probes, alike=False, variant=variants)[["scale", "variant", "seed"]]
    runs = ["/".join(map(str, run)) for run in other.drop_duplicates().itertuples(index=False)]
    if not runs:
        return ""
    return f" Left out, since another configuration probed them: {', '.join(runs)}."


def _read(records: CampaignRecords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The looks, and the runs, which know the ends of their passes."""
    rows = probed(records, "run of a pair", variant=PAIRED, metric=METRIC)
    rows = rows[rows["tokens"] > 0]
    return rows, select(records.runs, scale=tuple(set(rows["scale"])), variant=PAIRED)


def _title(records: CampaignRecords) -> str:
    looks, tokens = records.page["validations"], records.page["validation_tokens"]
    return (
        f"Validation NLL while the pairs train, after each of {looks} equal parts of the budget on "
        f"the first {tokens:,} tokens of the split (on all, where it has fewer). Above, MHA and "
        "Relation, thin by seed and thick the mean, Relation’s dashed; below, the difference of "
        "each pair and their mean. A dotted line marks the end of a pass over the training "
        f"windows. A panel shows all that came after the first {SHOWN_FROM:.0%} of the budget."
        f"{left_out(records, *PAIRED)}"
    )


@figure(
    "validation-curves",
    heading="Validation NLL while training",
    title=_title,
    alt="Line charts by scale: the validation NLL of MHA and of Relation against training tokens, "
    "and below the difference of each pair, with the ends of passes over the corpus marked.",
    reads=_read,
)
def validation_curves(records: CampaignRecords) -> Figure:
    rows, runs = _read(records)

    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        above, below = panels
        looks = {
            variant: select(rows, variant=variant).pivot_table("value", "tokens", "seed")
            for variant in PAIRED
        }
        for variant, curves in looks.items():
            # The two may lie on one another: the upper mean is dashed, the lower shows between.
            dashes = {"linestyle": (0, (4, 4))} if variant == "full" else {}
            seeds_and_mean(above, curves, OPERATOR_COLOUR[variant], **dashes)
        limit(above, [value for curves in looks.values() for value in late(curves, SHOWN_FROM)])
        apart = (looks["full"] - looks["mha"]).dropna(axis=1, how="all")
        if apart.size:
            seeds_and_mean(below, apart, INK)
            limit(below, [*late(apart, SHOWN_FROM), 0.0])
        zero(below, MUTED)
        for panel in panels:
            mark_passes(panel, select(runs, scale=scale))
        token_axis(below)

    labels = ["validation NLL\n(nat/token)", "Relation − MHA\n(nat/token)"]
    drawn = by_scale(rows, draw, 4.2, labels, sharex="col")
    name_pair(drawn.axes[0])
    return drawn
