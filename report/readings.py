"""The settings of campaign `readings`, which try what the paper leaves open (page Study)."""

import json
import math
from pathlib import Path

import pandas as pd
from matplotlib.ticker import PercentFormatter

from relation import plan
from report import stats
from report.figures import style
from report.figures.style import MUTED, NARROW, grid, save
from report.render import number

# Further columns of the table: column of `values`, title and format.
SHOWN = (
    ("mha", "MHA", ".4f"),
    ("full", "Relation", ".4f"),
    ("self0", "L0 Self flow", ".1%"),
    ("diagonal0", "L0 MHA diagonal", ".1%"),
    ("rank0", "L0 rank, Relation / MHA", ".2f"),
    ("self1", "L1 Self flow", ".1%"),
    ("lambda0", "λ of L0", ".2f"),
    ("rho", "ρ", ".2f"),
)
# How W_O and W_down start: whether they are divided, and its name; colour and marks of the figure.
RESIDUAL = {False: "as the others", True: "divided by sqrt(2L)"}
LOOKS = ((False, style.MATERIALISED, "o", "x"), (True, style.LINEAR, "^", "+"))


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
    nll = runs.pivot_table("final_nll", key, "variant")
    layers = stats.pooled(frames["flow"], [*key, "variant", "metric", "layer"])
    layers = layers.pivot_table("value", key, ["variant", "metric", "layer"])
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


def table(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of all settings; "" holds the differences to draw. pairs: `values`."""
    variations, rows = plan.load({"campaign": "readings"}).variations, []
    groups = pairs.groupby("variation")
    for name, mean in groups.mean(numeric_only=True).sort_values("apart").iterrows():
        apart = stats.mean(groups.get_group(name)["apart"])
        row = {"changed": variations.get(name, {}).get("title", name)}
        row |= {"W_O, W_down": RESIDUAL[name.startswith("scaled")], "pairs": str(apart.n)}
        row["Relation − MHA"], row[""] = f"{apart:+.4f}", apart
        row |= {title: number(mean[column], form, small=False) for column, title, form in SHOWN}
        rows.append(row)
    return pd.DataFrame(rows)


def draw_anchor(pairs: pd.DataFrame, folder: Path) -> None:
    """Draw Self flow against ρ as anchor.svg. pairs: `values`."""
    figure, ((panel,),) = grid(1, 1, 3.3, NARROW)
    divided = pairs["variation"].str.startswith("scaled")
    # At the paper's learning rate and on whole books, ρ separates settings with an anchor.
    rate, short = (pairs["variation"].str.contains(each) for each in ("lr-", "short"))
    for scaled, colour, point, cross in LOOKS:
        short_name = RESIDUAL[scaled].partition(" by")[0]
        marks = (
            (f"W_O, W_down {RESIDUAL[scaled]}", ~rate & ~short, {"marker": point}),
            (f"{short_name}, another rate", rate, {"marker": point, "markerfacecolor": "none"}),
            (f"{short_name}, books cut short", short, {"marker": cross}),
        )
        for label, chosen, mark in marks:
            shown = pairs[(divided == scaled) & chosen]
            look = {"color": colour, "linestyle": "none", "label": label}
            panel.plot(shown["rho"], shown["self0"], **look, **mark)
    panel.axhline(0.2, color=MUTED, linewidth=0.7, linestyle=style.DASHES)
    panel.set(xscale="log", xlabel="ρ at the start", ylabel="Self flow of the first layer")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    save(figure, folder / "anchor.svg")
