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
from relation.errors import InputError
from relation.variants import VARIANTS
from report import paper, stats
from report.figures.style import COLOUR, INK, MUTED, forest, grid, save, signed, styled

MARGIN = 0.01  # nat/token, within which two arms count as equivalent
FRESH = 200  # seeds from here on compare arms; smaller ones chose rates
PAIR = ["mha", "full"]
FEWEST = 16  # fresh seeds of every arm, from the first
DIVERGED = 0.5  # nat/token above the median of an arm at a rate
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
    fair = ended(there["fair"]["runs"], there["fair"]["probes"])
    with styled():
        found = [
            differences(there["books"]["runs"], fair, folder),
            arms(fair),
            comparisons(fair, folder),
            rates(fair, folder),
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


def diverged(runs: pd.DataFrame) -> pd.Series:
    """Which runs of one arm have no final NLL, or one far above the median at their rate."""
    usual = runs.groupby("learning_rate")["final_nll"].transform("median")
    return runs["final_nll"].isna() | (runs["final_nll"] > usual + DIVERGED)


def ended(runs: pd.DataFrame, probes: pd.DataFrame) -> pd.DataFrame:
    """Runs with `nll`, with which they enter a comparison: a stopped one's last finite NLL."""
    key = ["scale", "variation", "variant", "seed"]
    seen = probes[(probes["metric"] == "validation_nll") & np.isfinite(probes["value"])]
    last = seen.sort_values("update").groupby(key)["value"].last()
    last = last.reindex(pd.MultiIndex.from_frame(runs[key])).to_numpy(float)
    return runs.assign(nll=runs["final_nll"].fillna(pd.Series(last, runs.index)))


# Relation beside MHA, setting by setting


def differences(books: pd.DataFrame, fair: pd.DataFrame, folder: Path) -> Section | None:
    """Relation − MHA of every setting that has pairs, with its interval and the paper's value.

    books, fair: the runs of the two campaigns.
    """
    runs = [
        books.assign(nll=books["final_nll"], group="books/" + books["variation"]),
        fresh(fair).assign(group="fair/tuned"),
    ]
    rows = []
    for (scale, group), own in pd.concat(runs).groupby(["scale", "group"], sort=False):
        wide = own.pivot_table("nll", "seed", "variant").reindex(columns=PAIR).dropna()
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


def arms(runs: pd.DataFrame) -> Section | None:
    """Arms at their own rates. Raises InputError where the runs of one have several."""
    rows = []
    for variant, own in fresh(runs[runs["scale"] == "10M"]).groupby("variant"):
        if own["learning_rate"].nunique() > 1:
            raise InputError(f"the fresh runs of {variant} have several learning rates")
        low, mean, high = stats.mean_interval(own["nll"].dropna())
        rows.append(
            {
                "arm": title(variant),
                "rate": f"{own['learning_rate'].iloc[0]:.3g}",
                "runs": str(len(own)),
                "diverged": str(diverged(own).sum()),
                "NLL": f"{mean:.4f} ({low:.4f} to {high:.4f})",
                "bits/character": _bits(own),
                "parameters": f"{own['parameters'].iloc[0]:,}",
            }
        )
    if not rows:
        return None
    text = (
        "Every arm at 10M on the corpus library, at the learning rate that its own runs chose, on "
        "seeds that chose nothing. GPT-2’s residual scale, AdamW’s epsilon 1e-8, equal parameters. "
        "A run that stopped counts with its last finite validation NLL."
    )
    table = pd.DataFrame(rows).sort_values("NLL")
    return Section("Every arm at its own rate", text, table, "", "")


def comparisons(runs: pd.DataFrame, folder: Path) -> Section | None:
    """The primary comparisons and every arm beside MHA, each family with Holm's correction."""
    runs = runs[runs["scale"] == "10M"]
    by_arm = {name: own.set_index("seed") for name, own in fresh(runs).groupby("variant")}
    best = {first: _best(runs[runs["seed"] < FRESH], first) for first in PAIR}
    primary = dict.fromkeys([("full", "mha"), (best["full"], best["mha"])])
    asked = [("primary", pair, None) for pair in primary]
    asked += [("arms", (name, "mha"), FRESH + FEWEST) for name in by_arm if name != "mha"]
    rows, bars = [], []
    for family, names, end in asked:
        if not by_arm.keys() >= set(names):
            continue
        over, under = (by_arm[name].assign(diverged=diverged(by_arm[name])) for name in names)
        seeds = over.index.intersection(under.index)
        over, under = (own.loc[seeds[seeds < (end or math.inf)]] for own in (over, under))
        apart = stats.welch(over["nll"].dropna(), under["nll"].dropna())
        kept = stats.welch(*(own["nll"][~own["diverged"]] for own in (over, under)))
        rows.append(
            {
                "comparison": " − ".join(map(title, names)),
                "family": family,
                "seeds": str(len(over)),
                "Welch": signed(apart.low, apart.value, apart.high),
                "paired": signed(*stats.mean_interval((over["nll"] - under["nll"]).dropna())),
                "p": apart.p,
                "p within ±0.01": stats.equivalence(apart, MARGIN),
                "verdict": "better" if apart.value < 0 else "worse",
                "without diverged": signed(kept.low, kept.value, kept.high),
            }
        )
        ends = apart.low, apart.value, apart.high
        bars.append((f"{rows[-1]['comparison']}, {len(over)} seeds", ends, _colour(names[0])))
    if not rows:
        return None
    table, tests = pd.DataFrame(rows), ["p", "p within ±0.01"]
    table[tests] = table.groupby("family")[tests].transform(stats.holm)
    table["verdict"] = [_verdict(*row) for row in table[["verdict", *tests]].to_numpy()]
    table[tests] = table[tests].map(lambda p: "" if math.isnan(p) else f"{p:.3f}")
    figure, axes = grid(1, 1, 0.32 * len(bars) + 0.7)
    axes[0, 0].axvspan(-MARGIN, MARGIN, color=MUTED, alpha=0.15, linewidth=0)
    forest(axes[0, 0], sorted(bars, key=lambda bar: bar[1][1]))
    axes[0, 0].set_xlabel("difference of final validation NLL (nat/token)")
    save(figure, folder / "forest.svg")
    return Section(
        "Is it better than attention?",
        "Welch’s test decides, at 5% after Holm’s correction within a family: the primary "
        "comparisons, and every arm beside MHA on the first 16 fresh seeds.",
        table,
        "forest.svg",
        "Differences of NLL with 95% Welch intervals. Grey: ±0.01.",
    )


def _colour(variant: str) -> str:
    return COLOUR["full" if variant.startswith("full") else "mha"]


def _best(search: pd.DataFrame, first: str) -> str:
    """The arm with the lowest fitted minimum of those that extend `first`; "" while one is open."""
    arms = search[search["variant"].str.startswith(first) & (search["variant"] != "mha-self")]
    found = {name: best_rate(own) for name, own in arms.groupby("variant")}
    if not found or any(rate is None for rate, _, _ in found.values()):
        return ""
    return min(found, key=lambda name: found[name][2])


def _verdict(way: str, p: float, within: float) -> str:
    """The protocol's word. way: better or worse; p, within: of a difference, of equivalence."""
    if within < 0.05:
        return f"both: {way}, by less than ±{MARGIN}" if p < 0.05 else "equivalent"
    return way if p < 0.05 else "not established"


def _bits(runs: pd.DataFrame) -> str:
    """Mean bits per character of the validation split; empty where characters are not recorded."""
    characters = runs["validation_characters"].astype(float)
    bits = runs["nll"] * runs["validation_tokens"] / characters / math.log(2)
    return "" if bits.isna().all() else f"{bits.mean():.4f}"


def rates(runs: pd.DataFrame, folder: Path) -> Section | None:
    """The search for each arm's learning rate: means by rate, and the fitted minimum."""
    runs = runs[(runs["seed"] < FRESH) & (runs["scale"] == "10M")]
    if runs.empty:
        return None
    steps, rows = sorted(runs["learning_rate"].unique()), []
    figure, axes = grid(1, 1, 3.2)
    here = axes[0, 0]
    for variant, own in runs.groupby("variant"):
        by_rate = own.assign(lost=diverged(own)).groupby("learning_rate")
        means, lost = by_rate["final_nll"].mean(), by_rate["lost"].sum()
        means = means.where(lost == 0)  # no mean of those that survived
        look = {"color": COLOUR.get(variant), "label": title(variant)}
        (line,) = here.plot(means.index, means, "o-", **look)
        look = {"color": line.get_color(), "alpha": 0.4}
        here.plot(own["learning_rate"], own["final_nll"], ".", **look)
        best, reason, _ = best_rate(own)
        cells = {f"{rate:.3g}": "" for rate in steps}
        for rate, nll in means.items():
            cells[f"{rate:.3g}"] = f"{lost[rate]} diverged" if lost[rate] else f"{nll:.4f}"
        chosen = f"{best:.3g}" if best else f"open: {reason}"
        rows.append({"arm": title(variant), **cells, "runs": str(len(own)), "rate": chosen})
    here.set_xscale("log")
    here.set_xticks(steps, [f"{rate:.3g}" for rate in steps])
    here.xaxis.set_minor_locator(NullLocator())
    here.set_xlabel("learning rate")
    here.set_ylabel("final validation NLL (nat/token)")
    here.legend()
    save(figure, folder / "rates.svg")
    return Section(
        "The learning rate of each arm",
        "Mean final NLL at 10M by learning rate. The arm’s rate is the minimum of a quadratic in "
        "the logarithm of the rate, fitted to the best rate and its neighbours.",
        pd.DataFrame(rows),
        "rates.svg",
        "Final NLL against the learning rate; small points are single runs.",
    )


def best_rate(runs: pd.DataFrame) -> tuple[float | None, str, float]:
    """An arm's learning rate by docs/preregistration.md, or None; why it is open; its fitted NLL.

    runs: of one arm, with learning_rate, seed and final_nll (null: stopped).
    """
    by_rate = runs.assign(diverged=diverged(runs)).groupby("learning_rate")
    means = by_rate["final_nll"].mean().where(~by_rate["diverged"].any(), math.inf)
    place = int(np.argmin(means))
    if place in (0, len(means) - 1):
        return None, f"the best rate, {means.index[place]:.3g}, is at the edge", math.nan
    near = means.index[place - 1 : place + 2]
    if by_rate["seed"].nunique()[near].min() < 4:
        told = f"two more seeds at {', '.join(f'{rate:.3g}' for rate in near)}"
        return None, told, math.nan
    own = runs[runs["learning_rate"].isin(near)].dropna(subset="final_nll")
    x = np.log(own["learning_rate"])
    fit = np.polyfit(x, own["final_nll"], 2) if x.nunique() == 3 else np.zeros(3)
    if fit[0] <= 0:
        return float(means.index[place]), "", float(means.iloc[place])
    lowest = np.clip(-fit[1] / (2 * fit[0]), math.log(near[0]), math.log(near[-1]))
    return float(f"{math.exp(lowest):.3g}"), "", float(np.polyval(fit, lowest))


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
