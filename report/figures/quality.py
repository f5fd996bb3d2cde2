"""Figures of the losses: training and validation curves, pairs, ablations."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report import paper, stats
from report.data import Records
from report.figures import style
from report.figures.style import COLOUR, NAME, PAIR, drawing, grid, scales_of

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


@drawing("loss-curves", "Training loss")
def loss_curves(records: Records) -> Figure | None:
    """Training loss of every pair, trailing mean over 1% of the budget, after its first quarter.
    Dashed: MHA’s final smoothed loss; the circle is where Relation first reaches it. Dotted:
    the end of a pass over the corpus."""
    runs = records.runs[records.runs["variant"].isin(PAIR)]
    paired = runs.groupby(["scale", "seed"])["variant"].nunique() == 2
    keys = set(paired[paired].index)
    logs = dict(list(records.losses.groupby(["scale", "seed", "variant"])))
    scales = [s for s in scales_of(runs) if any(key[0] == s for key in keys)]
    seeds = {s: sorted(seed for scale, seed in keys if scale == s)[:FIRST_SEEDS] for s in scales}
    if not scales or not logs:
        return None
    rows = max(map(len, seeds.values()))
    figure, axes = grid(rows, len(scales), 1.75 * rows + 0.4, sharex="col")
    for column, scale in zip(axes.T, scales, strict=True):
        column[0].set_title(scale)
        column[-1].set_xlabel("training tokens")
        for here, seed in zip(column, seeds[scale], strict=False):
            _pair_losses(here, scale, seed, logs, runs, records.window)
        for here in column[len(seeds[scale]) :]:
            here.set_axis_off()
    for here in axes[:, 0]:
        here.set_ylabel("loss (nat/token)")
    style.pair_names(axes[0, 0])
    return figure


def _pair_losses(here: Axes, scale, seed, logs: dict, runs: pd.DataFrame, window: float) -> None:
    curves, late = {}, []
    for variant in PAIR:
        log = logs[scale, seed, variant].sort_values("update")
        tokens, loss = log["tokens"].to_numpy(), log["loss"].to_numpy()
        curves[variant] = tokens, stats.smoothed(tokens, loss, window * tokens[-1])
        here.plot(*curves[variant], color=COLOUR[variant], zorder=3)
        late.append(curves[variant][1][tokens >= LATE * tokens[-1]])
    _limit(here, np.concatenate(late))
    target = curves["mha"][1][-1]
    crossing = stats.crossing(*curves["full"], target)
    here.axhline(target, color=style.MUTED, linewidth=0.7, linestyle=style.DASHES)
    if crossing is None:
        note = "not reached"
    else:
        here.plot(
            crossing, target, "o", color=style.INK, markerfacecolor="none", markersize=5, zorder=4
        )
        note = f"{crossing / curves['full'][0][-1] - 1:+.1%} tokens"
    style.beside(
        here, (0.03, target), f"seed {seed}: {note}", xycoords=here.get_yaxis_transform(),
        xytext=(0, 3), va="bottom",
    )  # fmt: skip
    _passes(here, runs[(runs["scale"] == scale) & (runs["seed"] == seed)])
    style.counts(here.xaxis)


@drawing("validation-curves", "Validation NLL while training")
def validation_curves(records: Records) -> Figure | None:
    """Above, MHA and Relation, thin by seed and thick the mean; below, the difference of each pair
    and its mean. After the first quarter of the budget."""
    probes = records.probes
    rows = probes[(probes["metric"] == "validation_nll") & probes["variant"].isin(PAIR)]
    rows = rows[rows["tokens"] > 0]
    scales = [s for s in scales_of(rows) if rows[rows["scale"] == s]["variant"].nunique() == 2]
    if not scales:
        return None
    figure, axes = grid(2, len(scales), 4.2, sharex="col")
    for (above, below), scale in zip(axes.T, scales, strict=True):
        own = rows[rows["scale"] == scale]
        looks = {v: own[own["variant"] == v].pivot_table("value", "tokens", "seed") for v in PAIR}
        late = LATE * own["tokens"].max()
        for variant, curves in looks.items():
            dash = style.DASHES if variant == "full" else "-"  # the two may lie on one another
            style.seeds_and_mean(above, curves, COLOUR[variant], linestyle=dash)
        _limit(
            above, np.concatenate([c[c.index >= late].to_numpy().ravel() for c in looks.values()])
        )
        apart = (looks["full"] - looks["mha"]).dropna(axis=1, how="all")
        style.seeds_and_mean(below, apart, style.INK)
        _limit(below, np.append(apart[apart.index >= late].to_numpy().ravel(), 0.0))
        below.axhline(0, color=style.MUTED, linewidth=0.8)
        runs = records.runs[records.runs["scale"] == scale]
        for panel in (above, below):
            _passes(panel, runs)
        above.set_title(scale)
        below.set_xlabel("training tokens")
        style.counts(below.xaxis)
    axes[0, 0].set_ylabel("validation NLL\n(nat/token)")
    axes[1, 0].set_ylabel("Relation − MHA\n(nat/token)")
    style.pair_names(axes[0, 0])
    return figure


@drawing("pairs", "Validation NLL by pair")
def pairs(records: Records) -> Figure | None:
    """Final validation NLL; a line joins the two runs of a seed. Titles give Relation − MHA with
    its 95% interval over pairs."""
    runs = records.runs[records.runs["variant"].isin(PAIR)]
    wide = runs.pivot_table("final_nll", ["scale", "seed"], "variant")
    if not set(PAIR) <= set(wide.columns):
        return None
    wide = wide[list(PAIR)].dropna().reset_index()
    scales = scales_of(wide)
    figure, axes = grid(1, len(scales), 2.9)
    for here, scale in zip(axes[0], scales, strict=True):
        own = wide[wide["scale"] == scale]
        here.plot([0, 1], own[list(PAIR)].T, color=style.MUTED, linewidth=0.7, alpha=0.6, zorder=2)
        here.plot(np.zeros(len(own)), own["mha"], "o", color=style.MHA, zorder=3)
        here.plot(np.ones(len(own)), own["full"], "o", color=style.RELATION, zorder=3)
        low, mean, high = stats.mean_interval(own["full"] - own["mha"])
        title = f"{scale}, {len(own)} pairs: {mean:+.4f}"
        here.set_title(title if np.isnan(low) else f"{title}\n95% {low:+.4f} to {high:+.4f}")
        here.set_xlim(-0.25, 1.25)
        here.set_xticks([0, 1], [NAME[v] for v in PAIR])
    axes[0, 0].set_ylabel("final validation NLL (nat/token)")
    return figure


@drawing("variants", "Variants beside Full Relation")
def variants(records: Records) -> Figure | None:
    """Final validation NLL less Full Relation’s of the same seed: bars are means, lines 95%
    intervals, points seeds, diamonds the paper’s values."""
    wide = records.runs.pivot_table("final_nll", ["scale", "seed"], "variant")
    if "full" not in wide or wide.shape[1] < 2:
        return None
    apart = wide.drop(columns="full").sub(wide["full"], axis=0).stack().dropna()
    apart = apart.rename("apart").reset_index()
    groups = [
        (scale, variant, rows["apart"].tolist())
        for scale in scales_of(apart)
        for variant, rows in apart[apart["scale"] == scale].groupby("variant", sort=False)
    ]
    if not groups:
        return None
    figure, axes = grid(1, 1, 0.36 * len(groups) + 0.8)
    here = axes[0, 0]
    style.sideways(here, [f"{scale} {variant}" for scale, variant, _ in groups])
    shown = [0.0]
    for place, (scale, variant, values) in enumerate(groups):
        low, mean, high = stats.mean_interval(values)
        here.barh(-place, mean, height=0.55, color=style.RELATION, alpha=0.35)
        here.plot(values, np.full(len(values), -place), "o", color=style.RELATION, markersize=3.5)
        note = f"{mean:+.4f}, n = {len(values)}"
        if not np.isnan(low):
            here.plot((low, high), (-place, -place), color=style.INK, linewidth=1)
            note += f" [{low:+.3f}, {high:+.3f}]"
        printed = paper.number("app-ablation", variant, "delta") if scale == "10M" else None
        if printed is not None:
            look = {"color": style.INK, "markerfacecolor": "none", "markersize": 5, "zorder": 4}
            here.plot(printed, -place, "D", **look)
            shown.append(printed)
        shown += [*values, *((low, high) if len(values) > 2 else ())]
        style.beside(here, (1, -place), note, xycoords=("axes fraction", "data"))
    margin = 0.04 * (max(shown) - min(shown))
    here.set_xlim(min(shown) - margin, max(shown) + margin)
    here.axvline(0, color=style.INK, linewidth=0.8)
    here.set_xlabel("final validation NLL less Full Relation’s of the same seed (nat/token)")
    return figure
