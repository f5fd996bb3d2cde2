"""The page Study: Relation beside attention that is tuned alike, and what initial weights decide.

Everything here is computed from the shipped rows of the campaigns `fair` and `readings`, and from
the settings of the report. docs/preregistration.md fixes the comparison.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from relation import records
from relation.variants import VARIANTS
from report import paper, stats
from report.figures.style import COLOUR, INK, MUTED, forest, grid, save, signed, styled

MARGIN = 0.01  # nat/token, within which two arms count as equivalent
FRESH = 200  # seeds from here on compare arms; smaller ones chose rates
PAIR = ["mha", "full"]
FURTHER = {"nearest": 45, "gpt2": 45}  # first seed of the pairs that decide, at 10M
TUNED = "tuned"  # the variation of fair in which every arm has its own rate


@dataclass(frozen=True)
class Section:
    """A part of the page: a paragraph, a table as a frame of text, and a figure by file name."""

    title: str
    text: str
    table: pd.DataFrame | None
    figure: str
    caption: str


def sections(published: Path, folder: Path) -> list[Section]:
    """Every section whose rows are in `published`/<campaign>; figures go to `folder` as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {name: records.load(published / name) for name in ("books", "fair", "readings")}
    with styled():
        found = [
            differences(there["books"]["runs"], there["fair"]["runs"], folder),
            arms(there["fair"]["runs"], folder),
            rates(there["fair"]["runs"], folder),
            head_start(there["fair"]["probes"], folder),
        ]
        if len(there["readings"]["runs"]):
            found += readings(reading_values(there["readings"]), folder)
    return [section for section in found if section is not None]


def title(variant: str) -> str:
    """The name of an arm."""
    return VARIANTS[variant].title if variant in VARIANTS else variant


def fresh(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the fair campaign that compare arms."""
    return rows[(rows["variation"] == TUNED) & (rows["seed"] >= FRESH)]


# Relation beside MHA, setting by setting


def differences(books: pd.DataFrame, fair: pd.DataFrame, folder: Path) -> Section | None:
    """Relation − MHA of every setting that has pairs, with its interval and the paper's value.

    books, fair: the runs of the two campaigns.
    """
    runs = [
        books.assign(group="books/" + books["variation"]),
        fresh(fair).assign(group="fair/tuned"),
    ]
    rows = []
    for (scale, group), own in pd.concat(runs).groupby(["scale", "group"], sort=False):
        wide = own.pivot_table("final_nll", "seed", "variant").reindex(columns=PAIR).dropna()
        first = FURTHER.get(group.removeprefix("books/"), 0) if scale == "10M" else 0
        wide = wide[wide.index >= first]  # seeds that chose nothing and decide
        if len(wide):
            found = stats.mean_interval(wide["full"] - wide["mha"])
            rows.append((scale, f"{scale}, {group}, {len(wide)} pairs", found))
    if not rows:
        return None
    figure, axes = grid(1, 1, 0.3 * len(rows) + 0.7)
    here = axes[0, 0]
    forest(here, [(name, found, COLOUR["full"]) for _, name, found in rows])
    for place, (scale, *_) in enumerate(rows):
        printed = paper.number("app-nll", f"{scale}/mean", "delta")
        if printed is not None:
            here.plot(printed, -place, "D", color=INK, markerfacecolor="none", markersize=5)
    here.set_xlim(-0.11, 0.11)
    here.set_xlabel("final validation NLL, Relation − MHA (nat/token)")
    save(figure, folder / "answer.svg")
    caption = (
        "Relation − MHA with its 95% interval over pairs, by scale and setting; at 10M the further "
        "pairs where there are some. Diamonds: the paper. An interval may leave the panel."
    )
    return Section("Relation beside MHA", "", None, "answer.svg", caption)


# The fair comparison


def arms(runs: pd.DataFrame, folder: Path) -> Section | None:
    """Arms at their own rates: NLL, difference to MHA with Welch's and the paired interval."""
    runs = fresh(runs[runs["scale"] == "10M"])
    by_arm = {variant: rows.set_index("seed") for variant, rows in runs.groupby("variant")}
    if "mha" not in by_arm:
        return None
    base, rows, bars = by_arm["mha"]["final_nll"], [], []
    for variant, own in by_arm.items():
        nll = own["final_nll"]
        low, mean, high = stats.mean_interval(nll)
        shared = nll.index.intersection(base.index)
        welch = stats.welch(nll[shared].dropna(), base[shared].dropna())
        apart = welch.low, welch.value, welch.high
        rows.append(
            {
                "arm": title(variant),
                "rate": f"{own['learning_rate'].iloc[0]:.3g}",
                "runs": str(len(own)),
                "NLL": f"{mean:.4f} ({low:.4f} to {high:.4f})",
                "bits/character": _bits(own),
                "less MHA, Welch": signed(*apart),
                "less MHA, paired": signed(*stats.mean_interval(nll[shared] - base[shared])),
                "p": welch.p if variant != "mha" else float("nan"),
                "p within ±0.01": stats.equivalence(welch, MARGIN),
                "parameters": f"{own['parameters'].iloc[0]:,}",
                "diverged": str(int(nll.isna().sum())),
            }
        )
        colour = COLOUR["full" if variant.startswith("full") else "mha"]
        bars += [(title(variant), apart, colour)] if variant != "mha" else []
    table = pd.DataFrame(rows).sort_values("NLL")
    # Holm's correction over the arms, apart for differences and for equivalence.
    for test in ("p", "p within ±0.01"):
        corrected = stats.holm(table[test].where(table["arm"] != title("mha")))
        table[test] = ["" if math.isnan(p) else f"{p:.3f}" for p in corrected]
    figure, axes = grid(1, 1, 0.32 * len(bars) + 0.7)
    axes[0, 0].axvspan(-MARGIN, MARGIN, color=MUTED, alpha=0.15, linewidth=0)
    forest(axes[0, 0], sorted(bars, key=lambda bar: bar[1][1]))
    axes[0, 0].set_xlabel("final validation NLL less MHA’s (nat/token)")
    save(figure, folder / "forest.svg")
    return Section(
        "Is it better than attention?",
        "Every arm at 10M on the corpus library, at the learning rate that its own runs chose, on "
        "seeds that chose nothing. GPT-2’s residual scale, AdamW’s epsilon 1e-8, equal parameters.",
        table,
        "forest.svg",
        "What each ingredient is worth: NLL less MHA’s, 95% Welch intervals. Grey: ±0.01.",
    )


def _bits(runs: pd.DataFrame) -> str:
    """Mean bits per character of the validation split; empty where characters are not recorded."""
    characters = runs["validation_characters"].astype(float)
    bits = runs["final_nll"] * runs["validation_tokens"] / characters / math.log(2)
    return "" if bits.isna().all() else f"{bits.mean():.4f}"


def rates(runs: pd.DataFrame, folder: Path) -> Section | None:
    """The search for each arm's learning rate: means by rate, and the fitted minimum."""
    runs = runs[(runs["seed"] < FRESH) & (runs["scale"] == "10M")]
    if runs.empty:
        return None
    wide, rows = runs.pivot_table("final_nll", "variant", "learning_rate", sort=True), []
    figure, axes = grid(1, 1, 3.2)
    here = axes[0, 0]
    for variant, means in wide.iterrows():
        own = runs[runs["variant"] == variant]
        look = {"color": COLOUR.get(variant), "label": title(variant)}
        (line,) = here.plot(means.index, means, "o-", **look)
        look = {"color": line.get_color(), "alpha": 0.4}
        here.plot(own["learning_rate"], own["final_nll"], ".", **look)
        best, reason = best_rate(own)
        cells = {f"{rate:.3g}": f"{nll:.4f}" for rate, nll in means.items()}
        chosen = f"{best:.3g}" if best else f"open: {reason}"
        rows.append({"arm": title(variant), **cells, "runs": str(len(own)), "rate": chosen})
    here.set_xscale("log")
    here.set_xticks(list(wide.columns), [f"{rate:.3g}" for rate in wide.columns])
    here.xaxis.set_minor_locator(NullLocator())
    here.set_xlabel("learning rate")
    here.set_ylabel("final validation NLL (nat/token)")
    here.legend()
    save(figure, folder / "rates.svg")
    return Section(
        "The learning rate of each arm",
        "Mean final NLL at 10M by learning rate. The arm’s rate is the minimum of a quadratic in "
        "the logarithm of the rate, fitted to the best rate and its neighbours.",
        pd.DataFrame(rows).fillna(""),
        "rates.svg",
        "Final NLL against the learning rate; small points are single runs.",
    )


def best_rate(runs: pd.DataFrame) -> tuple[float | None, str]:
    """An arm's learning rate by docs/preregistration.md, or None and why it is still open.

    runs: of one arm, with learning_rate, seed and final_nll (null: diverged).
    """
    by_rate = runs.groupby("learning_rate")["final_nll"]
    means = by_rate.mean().where(by_rate.count() == by_rate.size(), math.inf).sort_index()
    place = int(np.argmin(means))
    if place in (0, len(means) - 1):
        return None, f"the best rate, {means.index[place]:.3g}, is at the edge"
    near = means.index[place - 1 : place + 2]
    own = runs[runs["learning_rate"].isin(near)].dropna(subset="final_nll")
    if own.groupby("learning_rate").size().min() < 4:
        return None, f"two more seeds at {', '.join(f'{rate:.3g}' for rate in near)}"
    x = np.log(own["learning_rate"])
    bend, slope, _ = np.polyfit(x, own["final_nll"], 2)
    if bend <= 0:
        return float(means.index[place]), ""
    rate = math.exp(np.clip(-slope / (2 * bend), math.log(near[0]), math.log(near[-1])))
    return float(f"{rate:.3g}"), ""


def head_start(probes: pd.DataFrame, folder: Path) -> Section | None:
    """Relation less MHA against training tokens, with intervals over the fresh seeds."""
    rows = fresh(probes[(probes["metric"] == "validation_nll") & (probes["scale"] == "10M")])
    wide = rows[rows["tokens"] > 0].pivot_table("value", ["tokens", "seed"], "variant")
    if not set(PAIR) <= set(wide.columns):
        return None
    apart = (wide["full"] - wide["mha"]).dropna()
    points = {tokens: stats.mean_interval(own) for tokens, own in apart.groupby("tokens")}
    low, mean, high = np.array(list(points.values())).T
    figure, axes = grid(1, 1, 2.8)
    here = axes[0, 0]
    here.axhline(0, color=INK, linewidth=0.8)
    here.plot(list(points), mean, color=COLOUR["full"])
    here.fill_between(list(points), low, high, color=COLOUR["full"], alpha=0.2, linewidth=0)
    here.set_xlabel("training tokens")
    here.set_ylabel("Relation − MHA (nat/token)")
    save(figure, folder / "head-start.svg")
    caption = "Validation NLL, Relation − MHA, mean and 95% interval over seeds."
    return Section("A head start or a gain?", "", None, "head-start.svg", caption)


# Readings: what the paper leaves open


def rho(specification: str) -> float:
    """What a token's embedding weighs at the start against what the first mixer would add.

    ρ = multiplier × σ_E / (d σ_I σ_O): the RMS of the embedding over that of W_O W_I x for a
    normalised x, which the mixer adds where all flow stays with the token.
    """
    model = json.loads(specification)["model"]
    width = model["d_model"]
    own = model.get("init_std", 0.02)
    matrix = (3 * width) ** -0.5 if model.get("linear_init") == "torch" else own
    divided = math.sqrt(2 * len(model["layout"])) if model.get("scale_residual_init") else 1.0
    embedding = (model.get("embedding_std") or own) * (model.get("embedding_multiplier") or 1.0)
    return embedding * divided / (width * matrix * matrix)


def reading_values(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A row a reading and seed that has a pair: losses, and the flow of its first layers."""
    runs, flow, probes = frames["runs"], frames["flow"], frames["probes"]
    key = ["variation", "seed"]
    nll = runs.pivot_table("final_nll", key, "variant")[PAIR].dropna()
    found = nll.assign(apart=nll["full"] - nll["mha"])
    layers = stats.pooled(flow, [*key, "variant", "metric", "layer"])
    layers = layers.set_index(["variant", "metric", "layer"]).groupby(level=[0, 1, 2])

    def layer(variant: str, metric: str, number: int) -> pd.Series:
        return layers.get_group((variant, metric, number)).set_index(key)["value"]

    found["self0"] = layer("full", "self_flow", 0)
    found["diagonal0"] = layer("mha", "self_flow", 0)
    found["self1"] = layer("full", "self_flow", 1)
    found["rank0"] = layer("full", "effective_rank", 0) / layer("mha", "effective_rank", 0)
    lam = probes[(probes["metric"] == "lambda") & (probes["layer"] == 0)]
    lam = lam[lam["variant"] == "full"].sort_values("update").groupby(key)["value"].last()
    found["lambda0"] = lam
    spec = runs[runs["variant"] == "full"].set_index(key)["specification"]
    found["rho"] = spec[~spec.index.duplicated()].map(rho)
    return found.reset_index()


def readings(values: pd.DataFrame, folder: Path) -> list[Section]:
    """One table of all readings, two curves over them, and the anchor against ρ."""
    groups = values.groupby("variation")
    mean = groups.mean(numeric_only=True).sort_values("apart")
    pairs = groups.size()[mean.index].to_numpy()
    table = {"reading": mean.index, "pairs": pairs.astype(str)}
    for column, name, form in (
        ("mha", "MHA", "{:.4f}"),
        ("full", "Relation", "{:.4f}"),
        ("apart", "Relation − MHA", "{:+.4f}"),
        ("self0", "L0 Self flow", "{:.1%}"),
        ("diagonal0", "L0 MHA diagonal", "{:.1%}"),
        ("rank0", "L0 rank, Relation / MHA", "{:.2f}"),
        ("self1", "L1 Self flow", "{:.1%}"),
        ("lambda0", "λ of L0", "{:.2f}"),
        ("rho", "ρ", "{:.2f}"),
    ):
        table[name] = [form.format(value).replace("-", "−") for value in mean[column]]
    save(_curves(values), folder / "readings.svg")
    save(_anchor(values), folder / "anchor.svg")
    return [
        Section(
            "What the paper leaves open",
            "Readings of what the paper does not print, at 10M on books, seeds 142 to 144. "
            "Means over pairs.",
            pd.DataFrame(table),
            "readings.svg",
            "Every reading, sorted: Relation − MHA, and Self flow of the first layer; points are "
            "pairs. Dashed: the paper.",
        ),
        Section(
            "The embedding’s weight at the start",
            "Whether the first layer becomes an anchor goes with ρ, how much a token’s embedding "
            "weighs at the start against what the first mixer would add to it.",
            None,
            "anchor.svg",
            "Self flow of the first layer after training against ρ, a point a pair.",
        ),
    ]


def _curves(values: pd.DataFrame) -> Figure:
    """Two specification curves: the loss difference and the first layer's Self flow."""
    figure, axes = grid(2, 1, 5.2)
    for here, column, label, printed in zip(
        axes[:, 0],
        ("apart", "self0"),
        ("Relation − MHA\n(nat/token)", "L0 Self flow"),
        (("app-nll", "10M/mean", "delta"), ("relation_internal", "10M", "l0_self.full")),
        strict=True,
    ):
        means = values.groupby("variation")[column].mean().sort_values()
        places = {name: place for place, name in enumerate(means.index)}
        here.plot(values["variation"].map(places), values[column], ".", color=MUTED)
        colours = np.where(means.index.str.startswith("un"), COLOUR["full"], COLOUR["mha"])
        here.scatter(range(len(means)), means, color=colours, zorder=3)
        here.axhline(paper.number(*printed), color=INK, linewidth=0.7, linestyle="--")
        here.set_xticks(range(len(means)), means.index, rotation=90, fontsize=6)
        here.set_ylabel(label)
        here.set_xlim(-1, len(means))
    return figure


def _anchor(values: pd.DataFrame) -> Figure:
    """Self flow of the first layer against ρ."""
    figure, axes = grid(1, 1, 2.8)
    here = axes[0, 0]
    scaled = values["variation"].str.startswith("scaled")
    for own, arm, name in (
        (values[~scaled], "full", "W_O and W_down as every matrix"),
        (values[scaled], "mha", "divided by sqrt(2L)"),
    ):
        here.plot(own["rho"], own["self0"], "o", color=COLOUR[arm], label=name)
    here.set_xscale("log")
    here.set_xlabel("ρ")
    here.set_ylabel("L0 Self flow")
    here.legend()
    return figure
