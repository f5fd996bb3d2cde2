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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from relation import records
from relation.variants import VARIANTS
from report import stats
from report.figures.style import COLOUR, INK, MUTED, beside, grid, save, sideways, styled

MARGIN = 0.01  # nat/token, within which two arms count as equivalent
FRESH = 200  # seeds from here on compare arms; smaller ones chose rates
PAIR = ["mha", "full"]
FURTHER = {"nearest": 45, "gpt2": 45}  # first seed of the pairs that decide, at 10M
PAPER = {"10M": -0.0412, "30M": -0.0151, "100M": -0.0310}  # Table 2, Relation − MHA
TUNED = "tuned"  # the variation of fair in which every arm has its own rate
ARM_COLOURS = {"mha": COLOUR["mha"], "full": COLOUR["full"]}


@dataclass(frozen=True)
class Section:
    """A part of the page: paragraphs, tables as frames of text, and figures by file name."""

    title: str
    text: str
    table: pd.DataFrame | None = None
    figure: str = ""
    caption: str = ""


def sections(published: Path, folder: Path) -> list[Section]:
    """Every section whose rows are in `published`/<campaign>; figures go to `folder` as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    if (published / "books").exists():
        found.append(differences(published, folder))
    if (published / "fair").exists():
        fair = records.load(published / "fair")
        found += [arms(fair, folder), rates(fair["runs"], folder), head_start(fair, folder)]
    if (published / "readings").exists():
        found += readings(records.load(published / "readings"), folder)
    return [section for section in found if section is not None]


def _draw(figure: Figure, folder: Path, name: str) -> str:
    save(figure, folder / f"{name}.svg")
    return f"{name}.svg"


def title(variant: str) -> str:
    """The name of an arm."""
    return VARIANTS[variant].title if variant in VARIANTS else variant


def _signed(low: float, mean: float, high: float) -> str:
    """A difference with its interval, as text."""
    interval = "" if math.isnan(low) else f" ({low:+.4f} to {high:+.4f})"
    return f"{mean:+.4f}{interval}".replace("-", "−")


# Relation beside MHA, setting by setting


def differences(published: Path, folder: Path) -> Section:
    """Relation − MHA of every setting that has pairs, with its interval and the paper's value."""
    runs = records.load(published / "books")["runs"].assign(group=lambda r: r["variation"])
    if (published / "fair").exists():
        fair = records.load(published / "fair")["runs"]
        fair = fair[(fair["variation"] == TUNED) & (fair["seed"] >= FRESH)]
        runs = pd.concat([runs, fair.assign(group="fair/tuned")])
    rows = []
    for (scale, group), own in runs.groupby(["scale", "group"], sort=False):
        wide = own.pivot_table("final_nll", "seed", "variant").reindex(columns=PAIR).dropna()
        if group in FURTHER and scale == "10M":
            wide = wide[wide.index >= FURTHER[group]]  # seeds that chose nothing and decide
        if len(wide):
            low, mean, high = stats.mean_interval(wide["full"] - wide["mha"])
            name = group if group.startswith("fair") else f"books/{group}"
            rows.append((f"{scale}, {name}, {len(wide)} pairs", low, mean, high, PAPER.get(scale)))
    with styled():
        figure, axes = grid(1, 1, 0.3 * len(rows) + 0.7)
        here = axes[0, 0]
        sideways(here, [row[0] for row in rows])
        here.axvline(0, color=INK, linewidth=0.8)
        for place, (_, low, mean, high, paper) in enumerate(rows):
            here.plot((low, high), (-place, -place), color=COLOUR["full"])
            here.plot(mean, -place, "o", color=COLOUR["full"])
            if paper is not None:
                here.plot(paper, -place, "D", color=INK, markerfacecolor="none", markersize=5)
            beside(here, (1, -place), _signed(low, mean, high), xycoords=("axes fraction", "data"))
        here.set_xlim(-0.11, 0.11)
        here.set_xlabel("final validation NLL, Relation − MHA (nat/token)")
        drawing = _draw(figure, folder, "answer")
    return Section(
        "Relation beside MHA",
        "",
        None,
        drawing,
        "Relation − MHA with its 95% interval over pairs, by scale and setting; at 10M the further "
        "pairs where there are some. Diamonds: the paper. An interval may leave the panel.",
    )


# The fair comparison


def arms(fair: dict[str, pd.DataFrame], folder: Path) -> Section | None:
    """Arms at their own rates: NLL, difference to MHA with Welch's and the paired interval."""
    runs = fair["runs"]
    runs = runs[(runs["variation"] == TUNED) & (runs["seed"] >= FRESH) & (runs["scale"] == "10M")]
    by_arm = {variant: rows.set_index("seed") for variant, rows in runs.groupby("variant")}
    if "mha" not in by_arm:
        return None
    base, rows, bars = by_arm["mha"]["final_nll"], [], []
    for variant, own in by_arm.items():
        nll = own["final_nll"]
        low, mean, high = stats.mean_interval(nll)
        shared = nll.index.intersection(base.index)
        welch = stats.welch(nll[shared].dropna(), base[shared].dropna())
        paired = stats.mean_interval(nll[shared] - base[shared])
        rows.append(
            {
                "arm": title(variant),
                "rate": f"{own['learning_rate'].iloc[0]:.3g}",
                "runs": str(len(own)),
                "NLL": f"{mean:.4f} ({low:.4f} to {high:.4f})",
                "bits/character": _bits(own),
                "less MHA, Welch": _signed(welch.low, welch.value, welch.high),
                "less MHA, paired": _signed(*paired),
                "within ±0.01": f"p = {stats.equivalence(welch, MARGIN):.3f}",
                "parameters": f"{own['parameters'].iloc[0]:,}",
                "diverged": str(int(nll.isna().sum())),
            }
        )
        bars.append((variant, welch.low, welch.value, welch.high))
    with styled():
        drawing = _draw(_forest([bar for bar in bars if bar[0] != "mha"]), folder, "forest")
    return Section(
        "Is it better than attention?",
        "Every arm at 10M on the corpus library, at the learning rate that its own runs chose, on "
        "seeds that chose nothing. GPT-2’s residual scale, AdamW’s epsilon 1e-8, equal parameters.",
        pd.DataFrame(rows).sort_values("NLL"),
        drawing,
        "What each ingredient is worth: NLL less MHA’s, 95% Welch intervals. Grey: ±0.01.",
    )


def _bits(runs: pd.DataFrame) -> str:
    """Mean bits per character of the validation split; empty where characters are not recorded."""
    characters = runs["validation_characters"].astype(float)
    bits = runs["final_nll"] * runs["validation_tokens"] / characters / math.log(2)
    return "" if bits.isna().all() else f"{bits.mean():.4f}"


def _forest(bars: list[tuple[str, float, float, float]]) -> Figure:
    bars = sorted(bars, key=lambda bar: bar[2])
    figure, axes = grid(1, 1, 0.32 * len(bars) + 0.7)
    here = axes[0, 0]
    here.axvspan(-MARGIN, MARGIN, color=MUTED, alpha=0.15, linewidth=0)
    here.axvline(0, color=INK, linewidth=0.8)
    sideways(here, [title(variant) for variant, *_ in bars])
    for place, (variant, low, mean, high) in enumerate(bars):
        colour = COLOUR["full"] if variant.startswith("full") else COLOUR["mha"]
        here.plot((low, high), (-place, -place), color=colour)
        here.plot(mean, -place, "o", color=colour)
        beside(here, (1, -place), _signed(low, mean, high), xycoords=("axes fraction", "data"))
    here.set_xlabel("final validation NLL less MHA’s (nat/token)")
    return figure


def rates(runs: pd.DataFrame, folder: Path) -> Section | None:
    """The search for each arm's learning rate: means by rate, and the fitted minimum."""
    runs = runs[(runs["seed"] < FRESH) & (runs["scale"] == "10M")]
    if runs.empty:
        return None
    wide, rows = runs.pivot_table("final_nll", "variant", "learning_rate", sort=True), []
    with styled():
        figure, axes = grid(1, 1, 3.2)
        here = axes[0, 0]
        for variant, means in wide.iterrows():
            own = runs[runs["variant"] == variant]
            colour = ARM_COLOURS.get(variant)
            (line,) = here.plot(means.index, means, "o-", color=colour, label=title(variant))
            here.plot(
                own["learning_rate"], own["final_nll"], ".", color=line.get_color(), alpha=0.4
            )
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
        drawing = _draw(figure, folder, "rates")
    return Section(
        "The learning rate of each arm",
        "Mean final NLL at 10M by learning rate. The arm’s rate is the minimum of a quadratic in "
        "the logarithm of the rate, fitted to the best rate and its neighbours.",
        pd.DataFrame(rows).fillna(""),
        drawing,
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


def head_start(fair: dict[str, pd.DataFrame], folder: Path) -> Section | None:
    """Relation less MHA against training tokens, with intervals over the fresh seeds."""
    rows = fair["probes"]
    rows = rows[(rows["metric"] == "validation_nll") & (rows["variation"] == TUNED)]
    rows = rows[(rows["seed"] >= FRESH) & (rows["tokens"] > 0) & (rows["scale"] == "10M")]
    wide = rows.pivot_table("value", ["tokens", "seed"], "variant")
    if not set(PAIR) <= set(wide.columns):
        return None
    apart = (wide["full"] - wide["mha"]).dropna()
    points = {tokens: stats.mean_interval(own) for tokens, own in apart.groupby("tokens")}
    low, mean, high = np.array(list(points.values())).T
    with styled():
        figure, axes = grid(1, 1, 2.8)
        here = axes[0, 0]
        here.axhline(0, color=INK, linewidth=0.8)
        here.plot(list(points), mean, color=COLOUR["full"])
        here.fill_between(list(points), low, high, color=COLOUR["full"], alpha=0.2, linewidth=0)
        here.set_xlabel("training tokens")
        here.set_ylabel("Relation − MHA (nat/token)")
        drawing = _draw(figure, folder, "head-start")
    caption = "Validation NLL, Relation − MHA, mean and 95% interval over seeds."
    return Section("A head start or a gain?", "", None, drawing, caption)


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


def readings(frames: dict[str, pd.DataFrame], folder: Path) -> list[Section]:
    """One table of all readings, two curves over them, and the anchor against ρ."""
    values = reading_values(frames)
    mean = values.groupby("variation").mean(numeric_only=True).sort_values("apart")
    pairs = values.groupby("variation").size()
    table = pd.DataFrame(
        {
            "reading": mean.index,
            "pairs": pairs[mean.index].to_numpy().astype(str),
            "MHA": mean["mha"].map("{:.4f}".format).to_numpy(),
            "Relation": mean["full"].map("{:.4f}".format).to_numpy(),
            "Relation − MHA": mean["apart"].map("{:+.4f}".format).to_numpy(),
            "L0 Self flow": mean["self0"].map("{:.1%}".format).to_numpy(),
            "L0 MHA diagonal": mean["diagonal0"].map("{:.1%}".format).to_numpy(),
            "L0 rank, Relation / MHA": mean["rank0"].map("{:.2f}".format).to_numpy(),
            "L1 Self flow": mean["self1"].map("{:.1%}".format).to_numpy(),
            "λ of L0": mean["lambda0"].map("{:.2f}".format).to_numpy(),
            "ρ": mean["rho"].map("{:.2f}".format).to_numpy(),
        }
    )
    with styled():
        curves = _draw(_curves(values), folder, "readings")
        anchor = _draw(_anchor(values), folder, "anchor")
    return [
        Section(
            "What the paper leaves open",
            "Readings of what the paper does not print, at 10M on books, seeds 142 to 144. "
            "Means over pairs.",
            table,
            curves,
            "Every reading, sorted: Relation − MHA, and Self flow of the first layer; points are "
            "pairs. Dashed: the paper.",
        ),
        Section(
            "The embedding’s weight at the start",
            "Whether the first layer becomes an anchor goes with ρ, how much a token’s embedding "
            "weighs at the start against what the first mixer would add to it.",
            None,
            anchor,
            "Self flow of the first layer after training against ρ, a point a pair.",
        ),
    ]


def _curves(values: pd.DataFrame) -> Figure:
    """Two specification curves: the loss difference and the first layer's Self flow."""
    figure, axes = grid(2, 1, 5.2)
    for here, (column, label, paper) in zip(
        axes[:, 0],
        (("apart", "Relation − MHA\n(nat/token)", -0.0412), ("self0", "L0 Self flow", 0.2857)),
        strict=True,
    ):
        order = values.groupby("variation")[column].mean().sort_values().index
        places = {name: place for place, name in enumerate(order)}
        here.plot(values["variation"].map(places), values[column], ".", color=MUTED)
        means = values.groupby("variation")[column].mean()[order]
        colours = np.where(order.str.startswith("un"), COLOUR["full"], COLOUR["mha"])
        here.scatter(range(len(order)), means, color=colours, zorder=3)
        here.axhline(paper, color=INK, linewidth=0.7, linestyle="--")
        here.set_xticks(range(len(order)), order, rotation=90, fontsize=6)
        here.set_ylabel(label)
        here.set_xlim(-1, len(order))
    return figure


def _anchor(values: pd.DataFrame) -> Figure:
    figure, axes = grid(1, 1, 2.8)
    here: Axes = axes[0, 0]
    scaled = values["variation"].str.startswith("scaled")
    for own, colour, name in (
        (values[~scaled], COLOUR["full"], "W_O and W_down as every matrix"),
        (values[scaled], COLOUR["mha"], "divided by sqrt(2L)"),
    ):
        here.plot(own["rho"], own["self0"], "o", color=colour, label=name)
    here.set_xscale("log")
    here.set_xlabel("ρ")
    here.set_ylabel("L0 Self flow")
    here.legend()
    return figure
