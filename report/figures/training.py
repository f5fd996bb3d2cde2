"""Loss curves, paired NLL, ablations."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.variants import ABLATIONS, PAIRED, VARIANTS
from report.figures.drawing import (
    DASHES,
    beside,
    by_scale,
    counts,
    demand,
    figure,
    grid,
    limit,
    mark_passes,
    name_pair,
    of_both,
    sideways,
    smoothed,
)
from report.values.ablations import ABLATION_SCALE
from report.values.frames import CampaignRecords
from report.values.measured import is_number, select, t_margin
from report.values.numbers import MINUS
from report.values.paper import number
from report.values.style import INK, MHA, MUTED, OPERATOR_COLOUR, RELATION

# Losses of the first updates, and of a spike, are so high that the crossing would be a flat line
# beneath them: a panel ends at this quantile of the losses after this part of the budget.
SHOWN_FROM, SHOWN_QUANTILE = 0.25, 0.95
LABEL_HEIGHT = 0.05  # of a panel's height, with its leading


def _read_losses(records: CampaignRecords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The logs, and the runs: their budgets smooth a crossing, their passes are marked."""
    return select(records.logs, variant=PAIRED), select(records.runs, variant=PAIRED)


def _loss_title(records: CampaignRecords) -> str:
    return (
        "Training loss of every pair, trailing mean over "
        f"{100 * records.page['efficiency_window']:g}% of the budget. Dashed: the MHA run’s final "
        "smoothed loss; the circle is where the Relation run first reaches it. Dotted: the end of "
        "a pass over the training windows. A panel ends just "
        f"above {SHOWN_QUANTILE:.0%} of either run’s losses after the first {SHOWN_FROM:.0%} of "
        "the budget: the fall from the first losses lies outside, and a triangle marks every later "
        "peak that does."
    )


@figure(
    "loss-curves",
    heading="Training loss",
    title=_loss_title,
    alt="Small multiples by scale and seed: the training loss of MHA and of Relation falls with "
    "the training tokens; a dashed line marks the MHA run's final loss and a circle the Relation "
    "run's crossing.",
    reads=_read_losses,
)
def loss_curves(records: CampaignRecords) -> Figure:
    logs, runs = _read_losses(records)
    demand(len(logs) > 0, "training log of a pair", records, "run")
    seeds = sorted(set(logs["seed"]))

    def draw(scale: str, logs: pd.DataFrame, panels: Sequence[Axes]) -> None:
        for here, seed in zip(panels, seeds, strict=True):
            _pair_losses(here, select(logs, seed=seed), records)
            mark_passes(here, select(runs, scale=scale, seed=seed))
            for row in select(records.efficiency, scale=scale, seed=seed).to_dict("records"):
                _mark_crossing(here, row)

    labels = [f"seed {seed}\nloss (nat/token)" for seed in seeds]
    height = 1.75 * len(seeds) + 0.4
    drawn = by_scale(logs, draw, height, labels, "training tokens", sharex="col")
    name_pair(drawn.axes[0])
    return drawn


def _pair_losses(axes: Axes, logs: pd.DataFrame, records: CampaignRecords) -> None:
    if logs.empty:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_yticks([])
        return
    lowest, highest, curves = [], [], {}
    for variant in (variant for variant in PAIRED if variant in set(logs["variant"])):
        log = select(logs, variant=variant)
        curves[variant] = losses = smoothed(log, records)
        axes.plot(losses.index, losses, color=OPERATOR_COLOUR[variant], zorder=3)
        lowest.append(losses.min())
        # Of the updates' own losses, as smoothing spreads a spike over the whole window.
        late = log.loc[log["tokens"] >= SHOWN_FROM * log["tokens"].max(), "loss"]
        highest.append(late.quantile(SHOWN_QUANTILE))
    limit(axes, (min(lowest), max(highest)))
    axes.set_xlim(left=0)
    counts(axes.xaxis, 4)
    for variant, losses in curves.items():
        _mark_spikes(axes, losses, OPERATOR_COLOUR[variant])


def _mark_spikes(axes: Axes, losses: pd.Series, colour: str) -> None:
    """A triangle on the upper edge over the peak of every rise out of the panel."""
    low, high = axes.get_ylim()
    # The fall from the first loss, with its wiggles across the edge, is no spike.
    above = (losses > high) & (losses < high - 0.1 * (high - low)).cummax()
    for _, rise in losses[above].groupby((~above).cumsum()):
        edge = axes.get_xaxis_transform()
        axes.plot(rise.idxmax(), 0.97, "^", transform=edge, color=colour, markersize=5)


def _mark_crossing(axes: Axes, row: dict[str, float]) -> None:
    axes.axhline(row["target"], color=MUTED, linewidth=0.7, linestyle=DASHES)
    note = "not reached"
    if is_number(row["crossing_tokens"]):
        look = {"markersize": 5, "markerfacecolor": "none", "color": INK, "zorder": 4}
        axes.plot(row["crossing_tokens"], row["target"], "o", **look)
        note = f"{MINUS}{row['reduction']:.1%} tokens"
    # Both losses fall: there is room above the line at the left.
    place = (0.03, row["target"])
    beside(
        axes, place, note, xycoords=axes.get_yaxis_transform(), xytext=(0, 3), va="bottom",
        color=INK, fontsize=7.5,
    )  # fmt: skip


def _read_pairs(records: CampaignRecords) -> pd.DataFrame:
    """The runs that have their partner."""
    return of_both(select(records.runs, variant=PAIRED))


@figure(
    "paired-nll",
    heading="Validation NLL by pair",
    title="Final validation NLL of every pair; a line joins the two runs of a seed, which it "
    "names. Above, the mean of Relation − MHA.",
    alt="Slope charts by scale: one line a seed from the MHA run's final validation NLL to the "
    "Relation run's, with the mean difference above.",
    reads=_read_pairs,
)
def paired_nll(records: CampaignRecords) -> Figure:
    runs = _read_pairs(records)
    demand(len(runs) > 0, "finished pair", records, "run")

    def draw(scale: str, runs: pd.DataFrame, panels: Sequence[Axes]) -> None:
        (here,) = panels
        pairs = runs.pivot_table(index="seed", columns="variant", values="final_nll")
        here.plot([0, 1], pairs[list(PAIRED)].T, color=MUTED, linewidth=0.9, zorder=2)
        here.plot(np.zeros(len(pairs)), pairs["mha"], "o", color=MHA, zorder=3)
        here.plot(np.ones(len(pairs)), pairs["full"], "o", color=RELATION, zorder=3)
        change = float((pairs["full"] - pairs["mha"]).mean())
        here.set_title(f"{scale}: mean difference {change:+.4f}".replace("-", MINUS))
        here.set_xlim(-0.25, 1.35)
        here.set_xticks([0, 1], ["MHA", "Relation"])
        here.margins(y=0.12)
        _name_seeds(here, pairs["full"].sort_values(ascending=False))

    return by_scale(runs, draw, 2.9, ["final validation NLL (nat/token)"])


def _name_seeds(axes: Axes, ends: pd.Series) -> None:
    """Each Relation run's seed beside it; one label for those too near each other for two."""
    low, high = axes.get_ylim()
    groups: list[dict[int, float]] = []
    for seed, end in ends.items():
        if groups and max(groups[-1].values()) - end < LABEL_HEIGHT * (high - low):
            groups[-1][seed] = end
        else:
            groups.append({seed: end})
    for group in groups:
        place = (1, np.mean(list(group.values())))
        beside(axes, place, ", ".join(map(str, group)), xytext=(6, 0), fontsize=7.5, color=MUTED)


def _read_ablations(records: CampaignRecords) -> pd.DataFrame:
    """The runs of the seeds that have both a Full run and an ablation."""
    runs = select(records.runs, scale=ABLATION_SCALE, variant=("full", *ABLATIONS))
    full = runs["variant"] == "full"
    both = set(runs[full]["seed"]) & set(runs[~full]["seed"])
    return select(runs, seed=tuple(both))


@figure(
    "ablations",
    heading="Ablations",
    title="Final validation NLL of every structural ablation, as the difference from Full "
    "Relation's with the same seed: bars and numbers are means over seeds with their 95% "
    "intervals, a point is a seed, a diamond what the paper prints. An interval of fewer seeds may "
    "leave the panel.",
    alt="Horizontal bars: the mean difference between the final validation NLL of each structural "
    "ablation and Full Relation's with its 95% interval, the seeds as points, the paper's value as "
    "a diamond.",
    reads=_read_ablations,
)
def ablations(records: CampaignRecords) -> Figure:
    ablated = select(records.runs, scale=ABLATION_SCALE, variant=ABLATIONS)
    demand(len(ablated) > 0, "ablation run", records, "run")
    runs = _read_ablations(records)
    demand(len(runs) > 0, "ablation with a Full run of its seed", records, "run")
    wide = runs.pivot_table(index="seed", columns="variant", values="final_nll")
    differences = wide.drop(columns="full").sub(wide["full"], axis=0)
    variants = [variant for variant in ABLATIONS if variant in differences]
    drawn, axes = grid(1, 1, 0.42 * len(variants) + 0.8)
    here = axes[0, 0]
    places = np.arange(len(variants))[::-1]
    sideways(here, places, [VARIANTS[variant].title for variant in variants])
    most, shown = int(differences[variants].count().max()), [0.0]
    for place, variant in zip(places, variants, strict=True):
        seeds = differences[variant].dropna()
        mean, margin = seeds.mean(), t_margin(list(seeds))
        here.barh(place, mean, height=0.55, color=RELATION, alpha=0.35)
        here.plot(seeds, np.full(len(seeds), place), "o", color=RELATION, markersize=3.5)
        paper = number("app-ablation", variant, "delta")
        shown += [*seeds, paper]
        here.plot(paper, place, "D", color=INK, markerfacecolor="none", markersize=5, zorder=4)
        told = f"{mean:+.4f}"
        if margin is not None:
            ends = (mean - margin, mean + margin)
            here.plot(ends, (place, place), color=INK, linewidth=1)
            # An interval of fewer seeds than the others' is so wide that it would flatten them.
            shown += ends if len(seeds) == most else ()
            told += " [{:+.3f}, {:+.3f}]".format(*ends)
        told += f", n = {len(seeds)}" if len(seeds) < len(records.page["seeds"]) else ""
        beside(here, (1, place), told.replace("-", MINUS), xycoords=("axes fraction", "data"))
    margin = 0.04 * (max(shown) - min(shown))
    here.set_xlim(min(shown) - margin, max(shown) + margin)
    here.axvline(0, color=INK, linewidth=0.8)
    beside(here, (1, 1), "mean [95% interval]", xycoords="axes fraction", va="baseline")
    here.set_xlabel(f"final validation NLL less Full Relation’s, {ABLATION_SCALE} (nat/token)")
    return drawn
