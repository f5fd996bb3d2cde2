"""Figures of the losses: training and validation curves, pairs, ablations."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.variants import PAIRED
from report import paper, stats
from report.data import KEY_IN_SETTING, Records, counted, title
from report.figures import style
from report.figures.style import COLOUR, NAME, drawing, paired, panels

FIRST_SEEDS = 3  # seeds per scale with a panel each; the figure `pairs` has all pairs
LATE = 0.25  # y axes span the values after this share of the budget


def _limit(axes: Axes, values: np.ndarray) -> None:
    """Set the y limits a little beyond the values."""
    low, high = np.nanmin(values), np.nanmax(values)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def _passes(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw a dotted line at each end of a pass over the corpus."""
    for run in runs[runs["epochs"] > 0].head(1).to_dict("records"):
        for epoch in range(1, int(run["epochs"]) + 1):
            place = epoch * run["trained_tokens"] / run["epochs"]
            axes.axvline(place, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=1)


def _logged(records: Records) -> pd.DataFrame:
    """Return the pairs of each scale's first seeds that have logged losses for both runs."""
    runs = records.runs.dropna(subset="final_nll")
    runs = paired(runs.merge(records.losses[KEY_IN_SETTING].drop_duplicates()), "seed")
    return runs[runs.groupby("scale")["seed"].rank("dense") <= FIRST_SEEDS]


@drawing("loss-curves", "Training loss", _logged)
def loss_curves(runs: pd.DataFrame, records: Records) -> Figure:
    """Training loss of the first three pairs, as a trailing mean (see Table 2). The
    y axis spans the values after the first quarter. Dashed: MHA’s final smoothed loss. Circle and
    percentage: where Relation first reaches it. Dotted: the end of a pass over the corpus."""
    logs = dict(list(records.losses.groupby(["scale", "seed", "variant"])))
    rows = runs.groupby("scale")["seed"].nunique().max()
    labels = ["loss (nat/token)"] * rows
    figure, columns = panels(runs, 1.75 * rows + 0.4, labels, "training tokens", sharex="col")
    for scale, scale_runs, column in columns:
        seeds = sorted(scale_runs["seed"].unique())
        for panel, seed in zip(column, seeds, strict=False):
            _pair_losses(panel, {v: logs[scale, seed, v] for v in PAIRED}, seed, records.window)
            _passes(panel, scale_runs[scale_runs["seed"] == seed])
        for panel in column[len(seeds) :]:
            panel.set_axis_off()
        column[len(seeds) - 1].set_xlabel("training tokens")
        column[len(seeds) - 1].tick_params(labelbottom=True)
    return figure


def _pair_losses(panel: Axes, logs: dict[str, pd.DataFrame], seed: int, window: float) -> None:
    curves, late = {}, []
    for variant, log in logs.items():
        tokens = log["tokens"].max()
        curve = curves[variant] = stats.smoothed(log, window * tokens)
        panel.plot(curve.index, curve, **style.look(variant), zorder=3)
        late.append(curve[curve.index >= LATE * tokens])
    _limit(panel, np.concatenate(late))
    target = curves["mha"].iloc[-1]
    crossing = stats.crossing(curves["full"], target)
    panel.axhline(target, color=style.MUTED, linewidth=0.7, linestyle=style.DASHES)
    note = "not reached"
    if crossing is not None:
        look = {"color": style.INK, "markerfacecolor": "none", "markersize": 5, "zorder": 4}
        panel.plot(crossing, target, "o", **look)
        note = f"{crossing / curves['full'].index[-1] - 1:+.1%} tokens"
    panel.set_title(f"seed {seed}: {note}", loc="right", fontsize=7.5)
    style.counts(panel.xaxis)


def _validated(records: Records) -> pd.DataFrame:
    return paired(records.probes.query("metric == 'validation_nll' and tokens > 0"))


@drawing("validation-curves", "Validation NLL while training", _validated)
def validation_curves(rows: pd.DataFrame, records: Records) -> Figure:
    """Top: MHA and Relation. Bottom: Relation − MHA. Thin lines are seeds, thick lines the mean
    over seeds. The NLL is read on the first tokens of the split (page Assumptions says how many),
    so the last value differs from the final NLL. The y axes omit the first quarter of the budget.
    """
    labels = ("validation NLL\n(nat/token)", "Relation − MHA\n(nat/token)")
    figure, columns = panels(rows, 4.2, labels, "training tokens", sharex="col")
    for scale, scale_rows, (above, below) in columns:
        arms = {variant: scale_rows[scale_rows["variant"] == variant] for variant in PAIRED}
        arms = {v: arm.pivot_table("value", "tokens", "seed") for v, arm in arms.items()}
        late = LATE * scale_rows["tokens"].max()
        for variant, by_seed in arms.items():
            dash = style.DASHES if variant == "full" else "-"  # the two lines may coincide
            style.seeds_and_mean(above, by_seed, variant, linestyle=dash)
        ends = [by_seed[by_seed.index >= late].to_numpy().ravel() for by_seed in arms.values()]
        _limit(above, np.concatenate(ends))
        differences = (arms["full"] - arms["mha"]).dropna(axis=1, how="all")
        style.seeds_and_mean(below, differences)
        _limit(below, np.append(differences[differences.index >= late].to_numpy().ravel(), 0.0))
        below.axhline(0, color=style.MUTED, linewidth=0.8)
        for panel in (above, below):
            _passes(panel, records.runs[records.runs["scale"] == scale])
        style.counts(below.xaxis)
    return figure


@drawing(
    "pairs", "Validation NLL by pair", lambda r: paired(r.runs.dropna(subset="final_nll"), "seed")
)
def pairs(runs: pd.DataFrame, records: Records) -> Figure:
    """Final validation NLL. A line joins the two runs of a seed. Titles give the mean of Relation
    − MHA with its 95% interval over pairs."""
    figure, columns = panels(runs, 2.9, ["final validation NLL (nat/token)"], "")
    for scale, scale_runs, (panel,) in columns:
        wide = scale_runs.pivot_table("final_nll", "seed", "variant")
        line = {"color": style.MUTED, "linewidth": 0.7, "alpha": 0.6, "zorder": 2}
        panel.plot([0, 1], wide[list(PAIRED)].T, **line)
        for place, variant in enumerate(PAIRED):
            panel.plot([place] * len(wide), wide[variant], "o", color=COLOUR[variant], zorder=3)
        mean = stats.mean(wide["full"] - wide["mha"])
        ends = "" if np.isnan(mean.low) else f"\n95% {mean.low:+.4f} to {mean.high:+.4f}"
        panel.set_title(f"{scale}, {counted(len(wide), 'pair')}: {mean.value:+.4f}{ends}")
        panel.set_xlim(-0.25, 1.25)
        panel.set_xticks([0, 1], [NAME[v] for v in PAIRED])
    return figure


def _less_full(records: Records) -> pd.DataFrame:
    """Return each run's final NLL minus Full Relation's of its seed, in column `difference`."""
    runs = records.runs
    full = runs[runs["variant"] == "full"].drop_duplicates(["scale", "seed"])
    others = runs[runs["variant"] != "full"]
    others = others.merge(full, on=["scale", "seed"], suffixes=("", "_full"))
    difference = others["final_nll"] - others["final_nll_full"]
    return others.assign(difference=difference).dropna(subset="difference")


@drawing("variants", "Variants compared with Full Relation", _less_full)
def variants(rows: pd.DataFrame, records: Records) -> Figure:
    """Final validation NLL minus Full Relation’s of the same seed: means with 95% intervals. Small
    points: seeds. Diamonds, if any: the paper’s values."""
    bars = []
    for scale in style.scales_of(rows):
        for variant, group in rows[rows["scale"] == scale].groupby("variant"):
            printed = paper.number("app-ablation", variant, "delta") if scale == "10M" else None
            name, points = f"{scale}, {title(variant)}, n = {len(group)}", group["difference"]
            look = {"points": points, "colour": COLOUR.get(variant, style.RELATION)}
            bars.append(style.Bar(name, stats.mean(points), printed, **look))
    label = "final validation NLL − Full Relation’s of the same seed (nat/token)"
    return style.forest(bars, label, style.WIDTH)
