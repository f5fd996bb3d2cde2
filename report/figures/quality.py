"""Figures of the losses: training and validation curves, pairs, ablations."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relation.variants import PAIRED
from report import paper, stats
from report.data import Records, counted, title
from report.figures import style
from report.figures.style import COLOUR, NAME, drawing, paired, panels

FIRST_SEEDS = 3  # of a scale that are drawn one by one; further pairs stand in the figure of pairs
LATE = 0.25  # a panel shows what comes after this share of the budget


def _limit(axes: Axes, values: np.ndarray) -> None:
    """End a panel a little beyond the values."""
    low, high = np.nanmin(values), np.nanmax(values)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def _passes(axes: Axes, runs: pd.DataFrame) -> None:
    """A dotted line where the runs begin to read their corpus again."""
    runs = runs[runs["epochs"] > 0]
    if len(runs):
        run = runs.iloc[0]
        for epoch in range(1, int(run["epochs"]) + 1):
            place = epoch * run["trained_tokens"] / run["epochs"]
            axes.axvline(place, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=1)


def _logged(records: Records) -> pd.DataFrame:
    """The pairs of the first seeds of every scale, where losses are there."""
    runs = paired(records.runs, "seed")
    place = runs.groupby("scale")["seed"].rank("dense")
    return runs[(place <= FIRST_SEEDS) & bool(len(records.losses))]


@drawing("loss-curves", "Training loss", _logged)
def loss_curves(runs: pd.DataFrame, records: Records) -> Figure:
    """Training loss of every pair, trailing mean over 1% of the budget, after its first quarter.
    Dashed: MHA’s final smoothed loss; the circle is where Relation first reaches it. Dotted:
    the end of a pass over the corpus."""
    logs = dict(list(records.losses.groupby(["scale", "seed", "variant"])))
    rows = runs.groupby("scale")["seed"].nunique().max()
    labels = ["loss (nat/token)"] * rows
    figure, axes, columns = panels(runs, 1.75 * rows + 0.4, labels, "training tokens", sharex="col")
    for scale, own, column in columns:
        seeds = sorted(own["seed"].unique())
        for here, seed in zip(column, seeds, strict=False):
            _pair_losses(here, {v: logs[scale, seed, v] for v in PAIRED}, seed, records.window)
            _passes(here, own[own["seed"] == seed])
        for here in column[len(seeds) :]:
            here.set_axis_off()
    style.pair_names(axes[0, 0])
    return figure


def _pair_losses(here: Axes, logs: dict[str, pd.DataFrame], seed: int, window: float) -> None:
    curves, late = {}, []
    for variant, log in logs.items():
        log = log.sort_values("update")
        tokens, loss = log["tokens"].to_numpy(), log["loss"].to_numpy()
        curves[variant] = tokens, stats.smoothed(tokens, loss, window * tokens[-1])
        here.plot(*curves[variant], color=COLOUR[variant], zorder=3)
        late.append(curves[variant][1][tokens >= LATE * tokens[-1]])
    _limit(here, np.concatenate(late))
    target = curves["mha"][1][-1]
    crossing = stats.crossing(*curves["full"], target)
    here.axhline(target, color=style.MUTED, linewidth=0.7, linestyle=style.DASHES)
    note = "not reached"
    if crossing is not None:
        look = {"color": style.INK, "markerfacecolor": "none", "markersize": 5, "zorder": 4}
        here.plot(crossing, target, "o", **look)
        note = f"{crossing / curves['full'][0][-1] - 1:+.1%} tokens"
    style.beside(
        here, (1, 1), f"seed {seed}: {note}", xycoords="axes fraction", xytext=(-3, -3), va="top",
        ha="right",
    )  # fmt: skip
    style.counts(here.xaxis)


def _validated(records: Records) -> pd.DataFrame:
    rows = records.probes[records.probes["metric"] == "validation_nll"]
    return paired(rows[rows["tokens"] > 0])


@drawing("validation-curves", "Validation NLL while training", _validated)
def validation_curves(rows: pd.DataFrame, records: Records) -> Figure:
    """Above, MHA and Relation, thin by seed and thick the mean; below, the difference of each pair
    and its mean. After the first quarter of the budget."""
    labels = ("validation NLL\n(nat/token)", "Relation − MHA\n(nat/token)")
    figure, axes, columns = panels(rows, 4.2, labels, "training tokens", sharex="col")
    for scale, own, (above, below) in columns:
        looks = {v: own[own["variant"] == v].pivot_table("value", "tokens", "seed") for v in PAIRED}
        late = LATE * own["tokens"].max()
        for variant, curves in looks.items():
            dash = style.DASHES if variant == "full" else "-"  # the two may lie on one another
            style.seeds_and_mean(above, curves, COLOUR[variant], linestyle=dash)
        ends = [curves[curves.index >= late].to_numpy().ravel() for curves in looks.values()]
        _limit(above, np.concatenate(ends))
        apart = (looks["full"] - looks["mha"]).dropna(axis=1, how="all")
        style.seeds_and_mean(below, apart, style.INK)
        _limit(below, np.append(apart[apart.index >= late].to_numpy().ravel(), 0.0))
        below.axhline(0, color=style.MUTED, linewidth=0.8)
        for panel in (above, below):
            _passes(panel, records.runs[records.runs["scale"] == scale])
        style.counts(below.xaxis)
    style.pair_names(axes[0, 0])
    return figure


@drawing(
    "pairs", "Validation NLL by pair", lambda r: paired(r.runs.dropna(subset="final_nll"), "seed")
)
def pairs(runs: pd.DataFrame, records: Records) -> Figure:
    """Final validation NLL; a line joins the two runs of a seed. Titles give Relation − MHA with
    its 95% interval over pairs."""
    figure, _, columns = panels(runs, 2.9, ["final validation NLL (nat/token)"], "")
    for scale, own, (here,) in columns:
        wide = own.pivot_table("final_nll", "seed", "variant")
        here.plot(
            [0, 1], wide[list(PAIRED)].T, color=style.MUTED, linewidth=0.7, alpha=0.6, zorder=2
        )
        for place, variant in enumerate(PAIRED):
            here.plot([place] * len(wide), wide[variant], "o", color=COLOUR[variant], zorder=3)
        found = stats.mean(wide["full"] - wide["mha"])
        ends = "" if np.isnan(found.low) else f"\n95% {found.low:+.4f} to {found.high:+.4f}"
        here.set_title(f"{scale}, {counted(len(wide), 'pair')}: {found.value:+.4f}{ends}")
        here.set_xlim(-0.25, 1.25)
        here.set_xticks([0, 1], [NAME[v] for v in PAIRED])
    return figure


def _less_full(records: Records) -> pd.DataFrame:
    """Final NLL less Full Relation's of the same seed: scale, variant and apart, a row a run."""
    runs = records.runs
    full = runs[runs["variant"] == "full"].drop_duplicates(["scale", "seed"])
    both = runs[runs["variant"] != "full"].merge(full, on=["scale", "seed"], suffixes=("", "_full"))
    return both.assign(apart=both["final_nll"] - both["final_nll_full"]).dropna(subset="apart")


@drawing("variants", "Variants beside Full Relation", _less_full)
def variants(rows: pd.DataFrame, records: Records) -> Figure:
    """Final validation NLL less Full Relation’s of the same seed: means with 95% intervals, small
    points seeds, diamonds the paper’s values."""
    bars = []
    for scale in style.scales_of(rows):
        for variant, own in rows[rows["scale"] == scale].groupby("variant"):
            printed = paper.number("app-ablation", variant, "delta") if scale == "10M" else None
            name = f"{scale}, {title(variant)}, n = {len(own)}"
            found, points = stats.mean(own["apart"]), own["apart"]
            bars.append(style.Bar(name, found, printed=printed, points=points))
    label = "final validation NLL less Full Relation’s of the same seed (nat/token)"
    return style.forest(bars, label)
