"""Loss curves, paired NLL, ablations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.records import smoothed_loss
from report.compute.measured import is_number, select, t_margin
from report.compute.quality import ABLATION_NAMES, ABLATION_SCALE, ABLATIONS
from report.figures.drawing import (
    PAIR,
    Drawing,
    demand,
    grid,
    mark_passes,
    name_pair,
    present,
    token_ticks,
)
from report.layout import SCALES
from report.numbers import MINUS
from report.paper_seeds import number
from report.style import INK, MHA, MUTED, OPERATOR_COLOUR, RELATION

if TYPE_CHECKING:
    from relation.records import CampaignRecords

# Losses of the first updates, and of a spike, are so high that the crossing would be a flat line
# beneath them: a panel ends at this quantile of the losses after this part of the budget.
SHOWN_FROM, SHOWN_QUANTILE = 0.25, 0.95
LABEL_HEIGHT = 0.05  # of a panel's height, with its leading


def _read_losses(records: CampaignRecords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The logs, and the runs: their budgets smooth a crossing, their passes are marked."""
    return select(records.logs, variant=PAIR), select(records.runs, variant=PAIR)


def loss_curves(records: CampaignRecords) -> Figure:
    """A row a seed, a column a scale: both losses, the MHA run's final one, the crossing."""
    logs, _ = _read_losses(records)
    demand(len(logs) > 0, "training log of a pair", records, ("run",))
    scales = present(logs, SCALES)
    seeds = sorted(set(logs["seed"]))
    figure, axes = grid(len(seeds), len(scales), 1.75 * len(seeds) + 0.4, sharex="col")
    for row, seed in enumerate(seeds):
        for column, scale in enumerate(scales):
            here = axes[row, column]
            _pair_losses(here, records, scale, int(seed))
            if row == column == 0:
                name_pair(here)
            if row == 0:
                here.set_title(scale)
            if row == len(seeds) - 1:
                here.set_xlabel("training tokens")
            if column == 0:
                here.set_ylabel(f"seed {seed}\nloss (nat/token)")
    return figure


def _pair_losses(axes: Axes, records: CampaignRecords, scale: str, seed: int) -> None:
    logs = select(records.logs, scale=scale, seed=seed)
    curves, lowest, highest = [], [], []
    for variant in PAIR:
        log = select(logs, variant=variant).sort_values("update")
        if log.empty:
            continue
        budget = float(log["tokens"].iloc[-1])
        losses = smoothed_loss(
            log["tokens"].to_numpy(),
            log["update_tokens"].to_numpy(),
            log["loss"].to_numpy(),
            records.page["efficiency_window"] * budget,
        )
        axes.plot(log["tokens"], losses, color=OPERATOR_COLOUR[variant], zorder=3)
        curves.append((log["tokens"].to_numpy(), losses, OPERATOR_COLOUR[variant]))
        lowest.append(losses.min())
        # Of the updates' own losses, as smoothing spreads a spike over the whole window.
        late = log.loc[log["tokens"] >= SHOWN_FROM * budget, "loss"]
        highest.append(late.quantile(SHOWN_QUANTILE))
    if not curves:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_yticks([])
        return
    margin = 0.06 * (max(highest) - min(lowest))
    axes.set_ylim(min(lowest) - margin, max(highest) + margin)
    axes.set_xlim(left=0)
    mark_passes(axes, select(records.runs, scale=scale, seed=seed, variant=PAIR))
    for tokens, losses, colour in curves:
        _mark_spikes(axes, tokens, losses, colour)
    token_ticks(axes)
    for row in select(records.efficiency, scale=scale, seed=seed).to_dict("records"):
        _mark_crossing(axes, row)


def _mark_spikes(axes: Axes, tokens: np.ndarray, losses: np.ndarray, colour: str) -> None:
    """A triangle on the upper edge over the peak of every rise out of the panel."""
    low, high = axes.get_ylim()
    above = losses > high
    # The fall from the first loss, with its wiggles across the edge, is no spike.
    above &= np.logical_or.accumulate(losses < high - 0.1 * (high - low))
    for rise in np.split(np.arange(len(losses)), np.flatnonzero(np.diff(above)) + 1):
        if above[rise[0]]:
            axes.plot(
                tokens[rise[np.argmax(losses[rise])]],
                0.97,
                "^",
                transform=axes.get_xaxis_transform(),
                color=colour,
                markersize=5,
            )


def _mark_crossing(axes: Axes, row: dict[str, float]) -> None:
    axes.axhline(row["target"], color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)))
    reached = is_number(row["crossing_tokens"])
    if reached:
        axes.plot(
            row["crossing_tokens"],
            row["target"],
            marker="o",
            markersize=5,
            markerfacecolor="none",
            color=INK,
            zorder=4,
        )
    note = f"{MINUS}{row['reduction']:.1%} tokens" if reached else "not reached"
    axes.text(0.97, 0.64, note, transform=axes.transAxes, ha="right", fontsize=7.5, color=INK)


def _read_pairs(records: CampaignRecords) -> tuple[pd.DataFrame]:
    """The runs that have their partner."""
    runs = select(records.runs, variant=PAIR)
    return (runs[runs.groupby(["scale", "seed"])["variant"].transform("nunique") == len(PAIR)],)


def paired_nll(records: CampaignRecords) -> Figure:
    """A slope a pair, from MHA to Relation."""
    (runs,) = _read_pairs(records)
    wide = runs.pivot_table(index=["scale", "seed"], columns="variant", values="final_nll")
    paired = wide.reindex(columns=list(PAIR)).reset_index()
    demand(len(paired) > 0, "finished pair", records, ("run",))
    scales = present(paired, SCALES)
    figure, axes = grid(1, len(scales), 2.9)
    for here, scale in zip(axes[0], scales, strict=True):
        pairs = select(paired, scale=scale)
        for pair in pairs.to_dict("records"):
            here.plot([0, 1], [pair["mha"], pair["full"]], color=MUTED, linewidth=0.9, zorder=2)
        here.plot(np.zeros(len(pairs)), pairs["mha"], "o", color=MHA, zorder=3)
        here.plot(np.ones(len(pairs)), pairs["full"], "o", color=RELATION, zorder=3)
        change = float((pairs["full"] - pairs["mha"]).mean())
        here.set_title(f"{scale}: mean difference {change:+.4f}".replace("-", MINUS))
        here.set_xlim(-0.25, 1.35)
        here.set_xticks([0, 1], ["MHA", "Relation"])
        here.margins(y=0.12)
        _name_seeds(here, pairs)
    axes[0, 0].set_ylabel("final validation NLL (nat/token)")
    return figure


def _name_seeds(axes: Axes, pairs: pd.DataFrame) -> None:
    """Each Relation run's seed beside it; one label for those too near each other for two."""
    low, high = axes.get_ylim()
    groups: list[list[dict]] = []
    for pair in pairs.sort_values("full", ascending=False).to_dict("records"):
        if groups and groups[-1][0]["full"] - pair["full"] < LABEL_HEIGHT * (high - low):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    for group in groups:
        axes.annotate(
            ", ".join(f"{pair['seed']:.0f}" for pair in group),
            (1, np.mean([pair["full"] for pair in group])),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=MUTED,
        )


def _read_ablations(records: CampaignRecords) -> tuple[pd.DataFrame]:
    """The runs of the seeds that have both a Full run and an ablation."""
    runs = select(records.runs, scale=ABLATION_SCALE, variant=("full", *ABLATIONS))
    full = runs["variant"] == "full"
    both = set(runs[full]["seed"]) & set(runs[~full]["seed"])
    return (select(runs, seed=tuple(both)),)


def ablations(records: CampaignRecords) -> Figure:
    """Bars of the mean paired difference to Full Relation, its interval, the seeds, the paper."""
    runs = select(records.runs, scale=ABLATION_SCALE, variant=("full", *ABLATIONS))
    wide = runs.pivot_table(index="seed", columns="variant", values="final_nll")
    demand("full" in wide and len(wide.columns) > 1, "ablation run", records, ("run",))
    differences = wide.drop(columns="full").sub(wide["full"], axis=0).dropna(how="all")
    variants = [variant for variant in ABLATIONS if variant in differences]
    demand(len(differences) > 0, "ablation with a Full run of its seed", records, ("run",))
    figure, axes = grid(1, 1, 0.42 * len(variants) + 0.8)
    here = axes[0, 0]
    here.grid(axis="x")
    here.grid(visible=False, axis="y")
    places = np.arange(len(variants))[::-1]
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
        here.annotate(
            told.replace("-", MINUS),
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    margin = 0.04 * (max(shown) - min(shown))
    here.set_xlim(min(shown) - margin, max(shown) + margin)
    here.axvline(0, color=INK, linewidth=0.8)
    here.set_yticks(places, [ABLATION_NAMES[variant] for variant in variants])
    here.tick_params(axis="y", length=0)
    here.annotate(
        "mean [95% interval]",
        (1, 1),
        xycoords="axes fraction",
        xytext=(4, 0),
        textcoords="offset points",
    )
    here.set_xlabel(f"final validation NLL less Full Relation’s, {ABLATION_SCALE} (nat/token)")
    return figure


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


DRAWINGS = (
    Drawing(
        "loss-curves",
        _loss_title,
        "Small multiples by scale and seed: the training loss of MHA and of Relation falls with "
        "the training tokens; a dashed line marks the MHA run's final loss and a circle the "
        "Relation run's crossing.",
        loss_curves,
        reads=_read_losses,
    ),
    Drawing(
        "paired-nll",
        "Final validation NLL of every pair; a line joins the two runs of a seed, which it names. "
        "Above, the mean of Relation − MHA.",
        "Slope charts by scale: one line a seed from the MHA run's final validation NLL to the "
        "Relation run's, with the mean difference above.",
        paired_nll,
        reads=_read_pairs,
    ),
    Drawing(
        "ablations",
        "Final validation NLL of every structural ablation less that of Full Relation with the "
        "same seed: bars and numbers are means over seeds with their 95% intervals, a point is a "
        "seed, a diamond what the paper prints. An interval of fewer seeds may leave the panel.",
        "Horizontal bars: the mean difference between the final validation NLL of each structural "
        "ablation and Full Relation's with its 95% interval, the seeds as points, the paper's "
        "value as a diamond.",
        ablations,
        reads=_read_ablations,
    ),
)
