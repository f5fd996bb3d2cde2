"""The page Study: Relation beside attention that is tuned alike, and what initial weights decide.

Everything here is computed from the shipped rows of the campaigns `books`, `fair` and `readings`.
docs/preregistration.md fixes the comparison. In `fair`, variations `rate-...` and `rate30-...`
search for each arm's learning rate; `tuned` and `tuned-...`, which have other scales or seeds, have
the runs that compare arms; so do `long` and `small-updates`.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from relation import plan, records
from relation.errors import InputError
from relation.variants import ARMS
from report import paper, stats
from report.data import bits_per_character, paper_scale, title
from report.figures import style
from report.figures.style import COLOUR, INK, MUTED, Bar, forest, grid, save, signed

MARGIN = 0.01  # nat/token, within which two arms count as equivalent
EVERY_ARM = 216  # all arms have the fresh seeds below, the primary ones further ones
DIVERGED = 0.5  # nat/token above the median of an arm at a rate
FURTHER = {"nearest": 45, "gpt2": 45}  # first seed of the pairs that decide, at 10M
TUNED = "tuned"
BITS, UNRECORDED = "bits/character", "not recorded"
# Where the primary comparisons are made too, without a verdict: scale, variation, name.
ELSEWHERE = (
    ("30M", TUNED, "30M"),
    ("100M28pc", TUNED, "100M on 28% of its tokens"),
    ("10M", "long", "10M on 600M tokens"),
    ("10M", "small-updates", "10M, 32,768 tokens an update"),
)
RUN = ["scale", "variation", "variant", "seed"]


@dataclass(frozen=True)
class Section:
    """A part of the page: a table as a frame of text, and whether it has a figure, <name>.svg.

    templates/study_texts.html.j2 has its title, its paragraph and the figure's caption; summary: a
    sentence for the first page.
    """

    name: str
    table: pd.DataFrame | None = None
    figure: bool = False
    summary: str = ""


def sections(published: Path, folder: Path) -> list[Section]:
    """Every section whose rows are in `published`/<campaign>; figures go to `folder` as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    books, fair, tried = (records.load(published / n) for n in ("books", "fair", "readings"))
    runs, probes = ended(fair["runs"], fair["probes"]), fair["probes"]
    with style.styled():
        found = [
            differences(books["runs"], runs, folder),
            arms(runs, probes, pd.concat([fair["steps"], books["steps"]])),
            comparisons(runs, folder),
            *elsewhere(runs),
            head_start(runs, probes, folder),
            *rates(runs, folder),
        ]
        if len(tried["runs"]):
            values = reading_values(tried)
            found += [readings(values, folder), anchor(values, folder)]
    return [section for section in found if section is not None]


def minus(over: str, under: str) -> str:
    """The name of a comparison."""
    return f"{title(over)} − {title(under)}"


def recorded(rows: list[dict[str, str]]) -> pd.DataFrame:
    """A table without columns that no row has a value of, or of diverged runs where none is."""
    table = pd.DataFrame(rows).fillna("—")
    if "Welch" in table and (table["Welch"] == table["without diverged"]).all():
        table = table.drop(columns="without diverged")
    return table.loc[:, ~table.isin([UNRECORDED, ""]).all()]


def plot(height: float) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure, axes = grid(1, 1, height)
    return figure, axes[0, 0]


def of(rows: pd.DataFrame, scale: str, variation: str = TUNED) -> pd.DataFrame:
    """The rows of one scale and variation, and of those that add to it, as tuned-further."""
    named = rows["variation"].str.fullmatch(f"{variation}(-.*)?")
    return rows[(rows["scale"] == scale) & named]


def ended(runs: pd.DataFrame, probes: pd.DataFrame) -> pd.DataFrame:
    """Runs with `nll`, with which they enter a comparison: a stopped one's last finite NLL.

    Also `diverged`: it stopped, or ended far above the median of its arm at its rate.
    """
    seen = probes[(probes["metric"] == "validation_nll") & np.isfinite(probes["value"])]
    last = seen.sort_values("update").groupby(RUN)["value"].last()
    last = last.reindex(pd.MultiIndex.from_frame(runs[RUN])).to_numpy(float)
    kind = runs["variation"].str.partition("-")[0].rename("kind")
    alike = runs.groupby([kind, "scale", "variant", "learning_rate"])
    lost = runs["final_nll"] > alike["final_nll"].transform("median") + DIVERGED
    nll = runs["final_nll"].fillna(pd.Series(last, runs.index))
    return runs.assign(nll=nll, diverged=lost | runs["final_nll"].isna())


# Relation beside MHA, setting by setting


def differences(books: pd.DataFrame, fair: pd.DataFrame, folder: Path) -> Section | None:
    """Relation − MHA of every setting that has pairs, with its interval and the paper's value.

    books, fair: the runs of the two campaigns.
    """
    titles = {
        (setting.variation, scale): setting.title
        for setting in plan.load({"campaign": "books"}).columns
        for scale in setting.scales or books["scale"].unique()
    }
    tuned = fair[fair["variation"].str.startswith(TUNED)].assign(variation=TUNED)
    runs = pd.concat([books.assign(nll=books["final_nll"]), tuned]).dropna(subset="nll")
    runs["bits"] = bits_per_character(runs, "nll")
    rows, bars = [], []
    for scale in style.scales_of(runs):
        at = paper_scale(scale)
        for variation in (*dict.fromkeys(name for name, _ in titles), TUNED):
            own = runs[(runs["scale"] == scale) & (runs["variation"] == variation)]
            first = FURTHER.get(variation, 0) if scale == "10M" else 0
            own = own[own["seed"] >= first].set_index("seed")  # seeds that chose nothing, decide
            full, mha = (own[own["variant"] == v][["nll", "bits"]] for v in ("full", "mha"))
            apart = (full - mha).dropna(subset="nll")
            if apart.empty:
                continue
            name, found = titles.get((variation, scale), "Tuned alike"), stats.mean(apart["nll"])
            printed = paper.number("app-nll", f"{scale}/mean", "delta")
            pairs = f"{len(apart)} pair{'s' if len(apart) > 1 else ''}"
            bars.append(Bar(f"{at}: {name}, {pairs}", found, printed=printed))
            bits = apart["bits"].dropna()
            told = signed(stats.mean(bits), "+.5f") if len(bits) else UNRECORDED
            row = {"setting": name, "scale": at, "vocabulary": f"{own['vocabulary'].iloc[0]:,}"}
            row |= {"pairs": f"{len(apart)}", "nat/token": signed(found), BITS: told}
            rows.append(row)
    if not rows:
        return None
    figure, here = plot(0.3 * len(rows) + 0.7)
    forest(here, bars)
    here.set_xlabel("final validation NLL, Relation − MHA (nat/token)")
    save(figure, folder / "answer.svg")
    return Section("answer", recorded(rows), figure=True, summary=tuned_alike(fair))


# The fair comparison


def primary(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """The primary comparisons: Relation − MHA, and best Relation − best attention ("": open)."""
    search = runs[runs["variation"].str.startswith("rate") & (runs["scale"] == "10M")]
    best = []
    for first in ("full", "mha"):
        kind = search["variant"].str.startswith(first) & (search["variant"] != "mha-self")
        fits = {name: best_rate(own) for name, own in search[kind].groupby("variant")}
        is_open = not fits or any(rate is None for rate, _, _ in fits.values())
        best.append("" if is_open else min(fits, key=lambda name: fits[name][2]))
    return list(dict.fromkeys([("full", "mha"), (best[0], best[1])]))


def tuned_alike(runs: pd.DataFrame) -> str:
    """What the fair comparison says in a sentence: its verdicts or, before them, its search."""
    there = [one for one in compared(runs).itertuples() if one.family == "primary"]
    if there:
        told = [
            f"{minus(one.over, one.under)}: {signed(one.found.welch)} over {len(one.found.seeds)} "
            f"seeds, {verdict(one.found.welch.value, one.p, one.within)}"
            for one in there
        ]
        return f"Each variant at its own learning rate, on a larger corpus: {'; '.join(told)}."
    search = runs[runs["variation"].str.startswith("rate") & (runs["scale"] == "10M")]
    # On the seeds that all have: further ones are those of some variants alone.
    has = search.groupby("seed")["variant"].transform("nunique")
    search = search[has == search["variant"].nunique()]
    ends = search[~search["diverged"]].groupby(["variant", "learning_rate"])["nll"]
    means = ends.agg(["mean", "size"]).reset_index().sort_values("mean")
    best = means.drop_duplicates("variant").set_index("variant")
    if not {"mha", "full"} <= set(best.index):
        return ""
    told = {}
    for name, row in best.iterrows():
        runs_of = "1 run" if row["size"] == 1 else f"{row['size']:.0f} runs"
        told[name] = f"{title(name)} {row['mean']:.4f} ({runs_of})"
    lowest = best.index[0]
    more = "" if lowest in ("mha", "full") else f"; the lowest, {told[lowest]}"
    return (
        f"At the best of the learning rates tried, 10M on a larger corpus: {told['mha']}, "
        f"{told['full']}{more}. Fresh seeds have not run at these rates."
    )


@dataclass(frozen=True)
class Apart:
    """One arm less another: Welch's estimate, which decides; paired; and without diverged runs."""

    seeds: pd.Index
    welch: stats.Estimate
    paired: stats.Estimate
    kept: stats.Estimate


def apart(runs: pd.DataFrame, over: str, under: str, end: float = math.inf) -> Apart | None:
    """Two arms on their common seeds below `end`; None without any. runs: as `ended`."""
    both = [runs[runs["variant"] == name].set_index("seed") for name in (over, under)]
    seeds = both[0].index.intersection(both[1].index)
    seeds = seeds[seeds < end]
    if seeds.empty:
        return None
    nll, lost = ([arm.loc[seeds, name] for arm in both] for name in ("nll", "diverged"))
    kept = [values[~gone] for values, gone in zip(nll, lost, strict=True)]
    paired = stats.mean((nll[0] - nll[1]).dropna())
    return Apart(seeds, stats.welch(*(v.dropna() for v in nll)), paired, stats.welch(*kept))


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """The comparisons with verdicts at 10M: family, over, under, found (Apart), p and within.

    p, within: of a difference and of equivalence, after Holm's correction over the whole family,
    of which runs may not be there yet: the primary comparisons; and all arms other than MHA beside
    it on the seeds that every arm has.
    """
    asked = [("primary", *pair, math.inf) for pair in primary(runs)]
    asked += [("arms", name, "mha", EVERY_ARM) for name in ARMS if name != "mha"]
    rows = []
    for family, over, under, end in asked:
        found = apart(of(runs, "10M"), over, under, end)
        p = (found.welch.p, found.welch.within(MARGIN)) if found else [math.nan] * 2
        rows.append((family, over, under, found, *p))
    tests = ["p", "within"]
    table = pd.DataFrame(rows, columns=["family", "over", "under", "found", *tests])
    table[tests] = table.groupby("family")[tests].transform(stats.holm)
    return table.dropna(subset="found")


def verdict(difference: float, p: float, within: float) -> str:
    """The protocol's word. p, within: corrected p of a difference and of equivalence."""
    way = "better" if difference < 0 else "worse"
    if within < 0.05:
        return f"both: {way}, by less than ±{MARGIN}" if p < 0.05 else "equivalent"
    return way if p < 0.05 else "not established"


def arms(runs: pd.DataFrame, probes: pd.DataFrame, steps: pd.DataFrame) -> Section | None:
    """Arms at 10M and their own rates. Raises InputError where the runs of one have several."""
    own = of(runs, "10M")
    if own.empty:
        return None
    table = compared(runs).query("under == 'mha'").drop_duplicates("over").set_index("over")
    curves, rows = validation(probes), []
    for variant, arm in own.groupby("variant"):
        if arm["learning_rate"].nunique() > 1:
            raise InputError(f"the fresh runs of {variant} have several learning rates")
        speed, rate = throughput(steps, variant, arm["backend"].iloc[0])
        reached, minutes = tokens_to_mha(curves, variant), "not measured"
        if rate is not None:
            minutes = f"{reached / rate / 60:.1f}" if reached else "not reached"
        delta = signed(table.loc[variant, "found"].welch) if variant in table.index else ""
        row = {"less MHA": delta, "tokens/s, MHA’s = 1": speed, "GPU minutes": minutes}
        rows.append(summary(arm) | row)
    return Section("arms", recorded(rows).sort_values("NLL"))


def summary(arm: pd.DataFrame) -> dict[str, str]:
    """What a table says of the runs of one arm."""
    nll, bits = stats.mean(arm["nll"].dropna()), bits_per_character(arm, "nll").mean()
    return {
        "variant": title(arm["variant"].iloc[0]), "rate": f"{arm['learning_rate'].iloc[0]:.3g}",
        "runs": str(len(arm)), "diverged": str(arm["diverged"].sum()),
        "NLL": signed(nll, ".4f"),
        BITS: UNRECORDED if math.isnan(bits) else f"{bits:.4f}",
        "parameters": f"{arm['parameters'].iloc[0]:,}",
    }  # fmt: skip


def throughput(steps: pd.DataFrame, variant: str, backend: str) -> tuple[str, float | None]:
    """Tokens/s of an arm over MHA's on cuDNN, as text, and its own; of exclusive benchmarks."""
    rows = steps[(steps["benchmark"] == "matched") & (steps["scale"] == "10M")]
    for _, job in rows[rows["status"] == "PASS"].groupby("hash", sort=False):
        sides = job.set_index(["variant", "backend"])
        if {(variant, backend), ("mha", "cudnn")} <= set(sides.index):
            arm, mha = sides.loc[(variant, backend)], sides.loc[("mha", "cudnn")]
            samples = (list(side["samples"]) for side in (arm, mha))
            found = stats.median_ratio(*samples, not (arm["alone"] or mha["alone"]))
            told = f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
            return told, arm["tokens_per_second"]
    return "not measured", None


def validation(probes: pd.DataFrame) -> pd.DataFrame:
    """Validation NLL at 10M by tokens, a column an arm and seed; a run that stopped stays where
    it was."""
    rows = of(probes, "10M")
    rows = rows[(rows["metric"] == "validation_nll") & np.isfinite(rows["value"])]
    return rows.pivot_table("value", "tokens", ["variant", "seed"]).ffill()


def tokens_to_mha(curves: pd.DataFrame, arm: str) -> float | None:
    """Tokens at which an arm's mean validation NLL is MHA's last, over common seeds, if ever."""
    if not {arm, "mha"} <= set(curves.columns.unique("variant")):
        return None
    seeds = curves[arm].columns.intersection(curves["mha"].columns)
    target = curves["mha"].iloc[-1][seeds].mean()
    return stats.crossing(curves.index, curves[arm][seeds].mean(axis=1).to_numpy(), target)


def p_text(p: float) -> str:
    """A p value to three digits; a dash where there is none."""
    return "—" if math.isnan(p) else "< 0.001" if p < 0.0005 else f"{p:.3f}"


FAMILIES = {"primary": "primary", "arms": "each variant"}


def comparisons(runs: pd.DataFrame, folder: Path) -> Section | None:
    """The comparisons with verdicts, as a table and a forest plot."""
    rows, bars = [], []
    for one in compared(runs).itertuples():
        name, found = minus(one.over, one.under), one.found
        rows.append(
            {
                "comparison": name,
                "family": FAMILIES[one.family],
                "seeds": str(len(found.seeds)),
                "Welch": signed(found.welch),
                "paired": signed(found.paired),
                "p": p_text(one.p),
                f"p within ±{MARGIN}": p_text(one.within),
                "verdict": verdict(found.welch.value, one.p, one.within),
                "without diverged": signed(found.kept),
            }
        )
        colour = COLOUR["full" if one.over.startswith("full") else "mha"]
        bars.append(Bar(f"{name}, {len(found.seeds)} seeds", found.welch, colour))
    if not rows:
        return None
    figure, here = plot(0.32 * len(bars) + 0.7)
    here.axvspan(-MARGIN, MARGIN, color=MUTED, alpha=0.15, linewidth=0)
    forest(here, sorted(bars, key=lambda bar: bar.found.value))
    here.set_xlabel("difference of final validation NLL (nat/token)")
    save(figure, folder / "comparisons.svg")
    return Section("comparisons", recorded(rows), figure=True)


def elsewhere(runs: pd.DataFrame) -> list[Section]:
    """The primary arms in larger models, on more tokens and in smaller updates."""
    pairs, there, rows = primary(runs), [], []
    pairs += [(under, "mha") for _, under in pairs if under not in ("", "mha")]
    for scale, variation, setting in ELSEWHERE:
        own = of(runs, scale, variation)
        for _, arm in own.groupby("variant"):
            there.append({"variant": "", "setting": setting} | summary(arm))
        for over, under in pairs:
            if (found := apart(own, over, under)) is None:
                continue
            row = {"comparison": minus(over, under), "setting": setting}
            row |= {"seeds": str(len(found.seeds)), "Welch": signed(found.welch)}
            row |= {"paired": signed(found.paired), "without diverged": signed(found.kept)}
            row["150M tokens, same seeds"] = ""
            beside = apart(of(runs[runs["seed"].isin(found.seeds)], "10M"), over, under)
            if scale == "10M" and beside is not None:
                row["150M tokens, same seeds"] = signed(beside.welch)
            rows.append(row)
    made = zip(("elsewhere", "elsewhere-apart"), (there, rows), strict=True)
    return [Section(name, recorded(table)) for name, table in made if table]


def head_start(runs: pd.DataFrame, probes: pd.DataFrame, folder: Path) -> Section | None:
    """The primary comparisons against training tokens: how much of the end is there early."""
    curves, rows = validation(probes), []
    figure, here = plot(2.8)
    for (over, under), colour in zip(primary(runs), ("full", "linear"), strict=False):
        if not {over, under} <= set(curves.columns.unique(0)):
            continue
        both, name = (curves[over], curves[under]), minus(over, under)
        seeds = both[0].columns.intersection(both[1].columns)
        points = {
            tokens: stats.welch(*(arm.loc[tokens, seeds] for arm in both))
            for tokens in curves.index[curves.index > 0]
        }
        ends = np.array([(one.value, one.low, one.high) for one in points.values()]).T
        here.plot(list(points), ends[0], color=COLOUR[colour], label=name)
        here.fill_between(list(points), *ends[1:], color=COLOUR[colour], alpha=0.2, linewidth=0)
        row, last = {"comparison": name, "seeds": str(len(seeds))}, max(points)
        for part in (0.2, 0.5):
            there = points[min(points, key=lambda tokens: abs(tokens - part * last))]
            row[f"after {part:.0%}"] = signed(there)
            share = f"{there.value / points[last].value:.0%}".replace("-", "−")
            decided = not points[last].low <= 0 <= points[last].high
            row[f"share at {part:.0%}"] = share if decided else "no sure end"
        rows.append(row | {"at the end": signed(points[last])})
    if not rows:
        return None
    here.axhline(0, color=INK, linewidth=0.8)
    here.set(xlabel="training tokens", ylabel="difference (nat/token)")
    style.counts(here.xaxis)
    here.legend()
    save(figure, folder / "head-start.svg")
    return Section("head-start", pd.DataFrame(rows), figure=True)


def rates(runs: pd.DataFrame, folder: Path) -> list[Section]:
    """The search for each arm's learning rate, a section a scale: rates, and rates-30M."""
    runs = runs[runs["variation"].str.startswith("rate")]
    names = {scale: "rates" if scale == "10M" else f"rates-{scale}" for scale in runs["scale"]}
    return [_rates(runs[runs["scale"] == at], name, folder) for at, name in names.items()]


def _rates(runs: pd.DataFrame, name: str, folder: Path) -> Section:
    """Means by rate and the fitted minimum; a panel of the figure for what is added to an arm."""
    tried = sorted(runs["learning_rate"].unique())
    means, rows, lost = {}, [], runs[runs["diverged"]]
    for variant in (variant for variant in ARMS if variant in set(runs["variant"])):
        own = runs[runs["variant"] == variant]
        by_rate = own.groupby("learning_rate")
        stopped = by_rate["diverged"].sum()
        # No mean of those that survived; a rate that was not tried breaks the line.
        means[variant] = by_rate["final_nll"].mean().where(stopped == 0).reindex(tried)
        best, reason, _ = best_rate(own)
        row = {"variant": title(variant), "runs": str(len(own))}
        row["best rate"] = f"{best:.3g}" if best else f"open: {reason}"
        for rate, mean in means[variant].items():
            gone = stopped.get(rate, 0)
            row[f"{rate:.3g}"] = (
                f"{gone} diverged" if gone else "—" if mean != mean else f"{mean:.4f}"
            )
        rows.append(row)
    added = list(dict.fromkeys(variant.partition("-")[2] for variant in means))
    columns = min(3, len(added))
    high, shared = math.ceil(len(added) / columns), {"sharex": True, "sharey": True}
    figure, axes = grid(high, columns, 2.1 * high + 0.5, **shared)
    for here in axes.flat[len(added) :]:
        here.set_visible(False)
    for what, here in zip(added, axes.flat, strict=False):
        here.set_title(title(f"mha-{what}").removeprefix("MHA, ") if what else "plain")
        here.set_xscale("log")
        if what and "mha" in means:
            here.plot(tried, means["mha"], color=MUTED, linewidth=0.8, linestyle=style.DASHES)
        for family in ("mha", "full"):
            variant, look = f"{family}-{what}".rstrip("-"), {"color": COLOUR[family]}
            ends = runs[(runs["variant"] == variant) & ~runs["diverged"]]
            here.plot(ends["learning_rate"], ends["final_nll"], ".", alpha=0.4, **look)
            here.plot(tried, means.get(variant, [math.nan] * len(tried)), "o-", **look)
            for rate in lost.loc[lost["variant"] == variant, "learning_rate"]:
                here.plot(rate, 0.97, "x", transform=here.get_xaxis_transform(), **look)
        here.set_xticks(tried, [f"{1e3 * rate:.3g}" for rate in tried])
        here.xaxis.set_minor_locator(NullLocator())
    figure.supxlabel("learning rate (10⁻³)", fontsize=8)
    figure.supylabel("final validation NLL (nat/token)", fontsize=8)
    save(figure, folder / f"{name}.svg")
    return Section(name, pd.DataFrame(rows), figure=True)


def best_rate(runs: pd.DataFrame) -> tuple[float | None, str, float]:
    """An arm's learning rate by docs/preregistration.md, or None; why it is open; its fitted NLL.

    runs: as `ended`, of one arm at 10M or 30M.
    """
    by_rate = runs.groupby("learning_rate")
    means = by_rate["final_nll"].mean().where(~by_rate["diverged"].any(), math.inf)
    near, place = means.index, int(np.argmin(means))
    if (runs["scale"] == "30M").all():
        if len(near) != 3 or math.isinf(means.min()):
            return None, f"{np.isfinite(means).sum()} of 3 rates", math.nan
    elif len(near) < 5 or by_rate["seed"].nunique().min() < 2:
        return None, f"{len(runs)} of 10 runs", math.nan
    elif place in (0, len(means) - 1):
        return None, f"the best rate, {near[place]:.3g}, is at the edge", math.nan
    else:
        near = near[place - 1 : place + 2]
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


# The settings of `readings` in words: the residual matrices, and what else is changed.
RESIDUAL = {"unscaled": "as the others", "scaled": "divided by sqrt(2L)"}
CHANGES = {
    "sd-0.02": "nothing",
    "sd-torch": "projections start as PyTorch’s",
    "sd-rsqrt-d": "sd of 1/sqrt(d)",
    "sd-small": "sd of sqrt(2/(5d))",
    "sd-rsqrt-d-times-2.5": "sd of 1/sqrt(d), embedding × 2.5",
    "short-books": "books cut to 200 tokens",
    "short-books-mask": "books cut, documents masked",
    "document-mask": "documents masked",
    "lr-half": "half the learning rate",
    "lr-twice": "twice the learning rate",
    "decay-all": "weight decay on all",
    "decay-no-embedding": "no weight decay on the embedding",
    "embedding-sd": "embedding with an sd of 1/sqrt(d)",
    "embedding-times-sqrt-d": "embedding × sqrt(d)",
    "embedding-times-0.289": "embedding × 0.289",
    "embedding-times-2": "embedding × 2",
    "adam-eps": "epsilon 1e-5",
    "separate-weights": "weights drawn apart",
}


def reading_values(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A row a reading and seed that has a pair: losses, and the flow of its first layers."""
    runs, flow, probes = frames["runs"], frames["flow"], frames["probes"]
    key = ["variation", "seed"]
    nll = runs.pivot_table("final_nll", key, "variant")[["mha", "full"]].dropna()
    found = nll.assign(apart=nll["full"] - nll["mha"])
    layers = stats.pooled(flow, [*key, "variant", "metric", "layer"])
    layers = layers.pivot_table("value", key, ["variant", "metric", "layer"])
    found["self0"] = layers["full", "self_flow", 0]
    found["diagonal0"] = layers["mha", "self_flow", 0]
    found["self1"] = layers["full", "self_flow", 1]
    for variant in ("full", "mha"):
        found[f"rank_{variant}"] = layers[variant, "effective_rank", 0]
    found["rank0"] = found["rank_full"] / found["rank_mha"]
    lam = probes[(probes["metric"] == "lambda") & (probes["layer"] == 0)]
    lam = lam[lam["variant"] == "full"].sort_values("update").groupby(key)["value"].last()
    found["lambda0"] = lam
    spec = runs[runs["variant"] == "full"].set_index(key)["specification"]
    found["rho"] = spec[~spec.index.duplicated()].map(rho)
    return found.reset_index()


READ = {
    "mha": ("MHA", "{:.4f}"),
    "full": ("Relation", "{:.4f}"),
    "apart": ("Relation − MHA", "{:+.4f}"),
    "self0": ("L0 Self flow", "{:.1%}"),
    "diagonal0": ("L0 MHA diagonal", "{:.1%}"),
    "rank0": ("L0 rank, Relation / MHA", "{:.2f}"),
    "self1": ("L1 Self flow", "{:.1%}"),
    "lambda0": ("λ of L0", "{:.2f}"),
    "rho": ("ρ", "{:.2f}"),
}


def changed(variation: str) -> tuple[str, str]:
    """What a variation of `readings` starts as: its residual matrices, and what else is changed."""
    residual, _, change = variation.partition("-")
    return RESIDUAL.get(residual, residual), CHANGES.get(change, change)


def readings(values: pd.DataFrame, folder: Path) -> Section:
    """One table of all settings of `readings`, and their differences and Self flow as a figure."""
    groups = values.groupby("variation")
    mean = groups.mean(numeric_only=True).sort_values("apart")
    table = pd.DataFrame([changed(name) for name in mean.index], columns=["W_O, W_down", "changed"])
    table = table.iloc[:, ::-1]
    table["pairs"] = groups.size()[mean.index].astype(str).to_numpy()
    for column, (name, form) in READ.items():
        table[name] = [form.format(value).replace("-", "−") for value in mean[column]]
    figure, axes = grid(1, 2, 0.17 * len(mean) + 0.6, sharey=True)
    places = {name: -place for place, name in enumerate(mean.index)}
    colours = [COLOUR["full" if name.startswith("un") else "mha"] for name in mean.index]
    for here, column, label, printed in zip(
        axes[0],
        ("apart", "self0"),
        ("Relation − MHA (nat/token)", "Self flow of the first layer"),
        (("app-nll", "10M/mean", "delta"), ("relation_internal", "10M", "l0_self.full")),
        strict=True,
    ):
        style.sideways(here, [changed(name)[1] for name in mean.index])
        here.plot(values[column], values["variation"].map(places), ".", color=MUTED, alpha=0.6)
        here.scatter(mean[column], places.values(), color=colours, zorder=3)
        here.axvline(paper.number(*printed), color=INK, linewidth=0.7, linestyle=style.DASHES)
        here.set(xlabel=label, ylim=(0.7 - len(mean), 0.7))
    axes[0, 0].axvline(0, color=INK, linewidth=0.7)
    axes[0, 1].xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    save(figure, folder / "readings.svg")
    return Section("readings", table, figure=True)


def anchor(values: pd.DataFrame, folder: Path) -> Section:
    """Self flow of the first layer against ρ."""
    figure, here = plot(2.8)
    scaled = values["variation"].str.startswith("scaled")
    for own, arm, name in (
        (values[~scaled], "full", "W_O and W_down as every matrix"),
        (values[scaled], "mha", "divided by sqrt(2L)"),
    ):
        here.plot(own["rho"], own["self0"], "o", color=COLOUR[arm], label=name)
    here.set(xscale="log", xlabel="ρ", ylabel="L0 Self flow")
    here.legend()
    save(figure, folder / "anchor.svg")
    return Section("anchor", figure=True)
