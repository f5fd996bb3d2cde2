"""The settings of campaign `readings`, which try what the paper leaves open (page Study)."""

import json
import math
from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.ticker import PercentFormatter

from relation import plan
from relation.variants import PAIRED
from report import paper, stats
from report.figures import style
from report.figures.style import COLOUR, INK, MUTED, grid, plot, save
from report.render import number

# Further columns of the table: title and format.
SHOWN = {
    "mha": ("MHA", ".4f"),
    "full": ("Relation", ".4f"),
    "apart": ("Relation − MHA", "+.4f"),
    "self0": ("L0 Self flow", ".1%"),
    "diagonal0": ("L0 MHA diagonal", ".1%"),
    "rank0": ("L0 rank, Relation / MHA", ".2f"),
    "self1": ("L1 Self flow", ".1%"),
    "lambda0": ("λ of L0", ".2f"),
    "rho": ("ρ", ".2f"),
}
# Panels of the figure: column, label, the paper's value.
CURVES = (
    ("apart", "Relation − MHA (nat/token)", ("app-nll", "10M/mean", "delta")),
    ("self0", "Self flow of the first layer", ("relation_internal", "10M", "l0_self.full")),
)


def rho(specification: str) -> float:
    """Return ρ of a run's specification: a token's embedding over what the first mixer would add.

    ρ = multiplier × σ_E / (d σ_I σ_O) at the start: the RMS of the embedding, divided by the RMS
    of W_O W_I x for a normalised x. The mixer adds W_O W_I x if all flow stays with the token.
    """
    model = json.loads(specification)["model"]
    width, init_std = model["d_model"], model.get("init_std", 0.02)
    # torch's uniform initial weights have a variance of 1 / (3 x inputs).
    matrix = (3 * width) ** -0.5 if model.get("linear_init") == "torch" else init_std
    divided = math.sqrt(2 * len(model["layout"])) if model.get("scale_residual_init") else 1.0
    embedding = model.get("embedding_std") or init_std
    embedding *= model.get("embedding_multiplier") or 1.0
    return embedding * divided / (width * matrix * matrix)


def values(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per setting and seed with a pair: losses, and the flow of layers 0 and 1.

    frames: of campaign `readings`, as relation.records.load returns them.
    """
    runs, probes, key = frames["runs"], frames["probes"], ["variation", "seed"]
    nll = runs.pivot_table("final_nll", key, "variant").reindex(columns=list(PAIRED))
    layers = stats.pooled(frames["flow"], [*key, "variant", "metric", "layer"])
    layers = layers.pivot_table("value", key, ["variant", "metric", "layer"])
    shown = product(PAIRED, ("self_flow", "effective_rank"), (0, 1))
    layers = layers.reindex(columns=pd.MultiIndex.from_tuples(shown))
    full = runs[runs["variant"] == "full"].drop_duplicates(key).set_index(key)
    lam = probes.query("metric == 'lambda' and layer == 0 and variant == 'full'")
    table = nll.assign(
        apart=nll["full"] - nll["mha"],
        self0=layers["full", "self_flow", 0],
        self1=layers["full", "self_flow", 1],
        diagonal0=layers["mha", "self_flow", 0],
        rank_full=layers["full", "effective_rank", 0],
        rank_mha=layers["mha", "effective_rank", 0],
        lambda0=lam.sort_values("update").groupby(key)["value"].last(),
        rank0=lambda rows: rows["rank_full"] / rows["rank_mha"],
        rho=full["specification"].map(rho),
    )
    return table.dropna(subset="apart").reset_index()


def draw(pairs: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the table of all settings; write readings.svg and anchor.svg. pairs: `values`."""
    variations = plan.load({"campaign": "readings"}).variations
    groups = pairs.groupby("variation")
    mean = groups.mean(numeric_only=True).sort_values("apart")
    changed = [variations.get(name, {}).get("title", name) for name in mean.index]
    scaled = mean.index.str.startswith("scaled")
    arms = ["divided by sqrt(2L)" if each else "as the others" for each in scaled]
    counts = groups.size()[mean.index].astype(str).to_list()
    table = pd.DataFrame({"changed": changed, "W_O, W_down": arms, "pairs": counts})
    for column, (name, form) in SHOWN.items():
        table[name] = [number(value, form, small=False) for value in mean[column]]

    figure, axes = grid(1, 2, 0.17 * len(mean) + 0.6, sharey=True)
    places = {name: -place for place, name in enumerate(mean.index)}
    colours = [COLOUR["mha" if each else "full"] for each in scaled]
    for panel, (column, label, printed) in zip(axes[0], CURVES, strict=True):
        style.sideways(panel, changed)
        panel.plot(pairs[column], pairs["variation"].map(places), ".", color=MUTED, alpha=0.6)
        panel.scatter(mean[column], places.values(), color=colours, zorder=3)
        panel.axvline(paper.number(*printed), color=INK, linewidth=0.7, linestyle=style.DASHES)
        panel.set(xlabel=label, ylim=(0.7 - len(mean), 0.7))
    axes[0, 0].axvline(0, color=INK, linewidth=0.7)
    axes[0, 1].xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    save(figure, folder / "readings.svg")

    figure, panel = plot(3.2)
    divided = pairs["variation"].str.startswith("scaled")
    # At the paper's learning rate and on whole books, ρ separates settings with an anchor.
    rate, short = (pairs["variation"].str.contains(each) for each in ("lr-", "short"))
    marks = (
        ("the paper’s learning rate", ~rate & ~short, {"marker": "o"}),
        ("another learning rate", rate, {"marker": "o", "markerfacecolor": "none"}),
        ("books cut short", short, {"marker": "x"}),
    )
    arms = (("W_O, W_down as the others", False, "full"), ("divided by sqrt(2L)", True, "mha"))
    for label, chosen, mark in marks:
        panel.plot([], [], color=MUTED, linestyle="none", label=label, **mark)
        for _, scaled, arm in arms:
            shown = pairs[(divided == scaled) & chosen]
            panel.plot(shown["rho"], shown["self0"], color=COLOUR[arm], linestyle="none", **mark)
    for label, _, arm in arms:
        panel.plot([], [], "s", color=COLOUR[arm], label=label)
    panel.axhline(0.2, color=MUTED, linewidth=0.7, linestyle=style.DASHES)
    panel.set(xscale="log", xlabel="ρ", ylabel="Self flow of the first layer")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    save(figure, folder / "anchor.svg")
    return table
