"""The page Study: Relation beside attention that is tuned alike, and what initial weights decide.

Everything here is computed from the shipped rows of the campaigns `books`, `fair` and `readings`.
docs/preregistration.md fixes the comparison. In `fair`, variations `rate-...` and `rate30-...`
search for each arm's learning rate; `tuned` and `tuned-...`, which have other scales or seeds, have
the runs that compare arms; so do `long` and `small-updates`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from relation import plan, records
from relation.errors import InputError
from relation.variants import ARMS, PAIRED
from report import data, overview, readings, stats
from report.data import bits_per_character, counted, title
from report.figures import style
from report.figures.style import COLOUR, INK, MUTED, Bar, forest, grid, plot, save, signed
from report.render import number

MARGIN = 0.01  # nat/token, within which two arms count as equivalent
FRESH, EVERY_ARM = range(200, 248), 216  # seeds of primary arms; all arms have those below
DIVERGED = 0.5  # nat/token above the median of an arm at a rate
TUNED = "tuned"
LESS, ALIKE = "− MHA", "− MHA with the same additions"
SPEEDS = ("tokens/s, MHA’s = 1", "GPU minutes")
BITS, UNRECORDED, UNMEASURED = "bits/character", "not recorded", "not measured"
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

    templates/study_texts.html.j2 has its title, its paragraph, the note below its table and the
    figure's caption; a column "" of the table holds the differences that are drawn there; summary:
    what is found, for this page and the first; progress: how much of it has run.
    """

    name: str
    table: pd.DataFrame | None = None
    figure: bool = False
    summary: str = ""
    progress: str = ""


def sections(published: Path, folder: Path) -> list[Section]:
    """Every section whose rows are in `published`/<campaign>; figures go to `folder` as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    books, fair, tried = (records.load(published / n) for n in ("books", "fair", "readings"))
    runs, probes = ended(fair["runs"], fair["probes"]), fair["probes"]
    with style.styled():
        found = [
            *introduced(
                [
                    *comparisons(runs, "primary"),
                    *arms(runs, probes, pd.concat([fair["steps"], books["steps"]])),
                    *comparisons(runs, "beside-mha"),
                ],
                runs,
            ),
            *elsewhere(runs),
            head_start(runs, probes, folder),
            *rates(runs, folder),
            answer(published.parent, runs, folder),
        ]
        if len(tried["runs"]):
            table = readings.draw(readings.values(tried), folder)
            found += [Section("readings", table, figure=True), Section("anchor", figure=True)]
    return [section for section in found if section is not None]


def introduced(sections: list[Section], runs: pd.DataFrame) -> list[Section]:
    """The first of some sections also says what is found, and how many of `fair`'s runs are in."""
    planned = {run.hash for run in plan.load({"campaign": "fair"}).planned}
    there = len(planned.intersection(runs["hash"]))
    told = f"Of the {len(planned)} runs that campaign `fair` plans, {there} are here."
    first = [replace(one, summary=tuned_alike(runs), progress=told) for one in sections[:1]]
    return first + sections[1:]


def minus(over: str, under: str) -> str:
    """The name of a comparison."""
    return f"{title(over)} − {title(under)}"


def recorded(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """A table without columns that no row has a value of, or of diverged runs where none is."""
    table = pd.DataFrame(rows)
    table = table.fillna({name: "—" for name in table if name})
    if "Welch" in table and (table["Welch"] == table["without diverged"]).all():
        table = table.drop(columns="without diverged")
    return table.loc[:, ~table.isin([UNRECORDED, UNMEASURED, "", None]).all()]


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


def answer(root: Path, fair: pd.DataFrame, folder: Path) -> Section | None:
    """Relation − MHA of every setting that has pairs: the rows of the first page, and the fair
    comparison, as a figure. root: of all results; fair: its runs, as `ended`."""
    own = fair[fair["variation"].str.startswith(TUNED)]
    settings = plan.load({"campaign": "books"}).columns
    runs = {str(setting): data.load(setting, root=root).runs for setting in settings}
    bars = []
    for name, of_setting in runs.items():
        for row in overview.differences(of_setting):
            label = f"{row['scale']}: {name}, {counted(row['final_nll'].n, 'pair')}"
            bars.append(Bar(label, row["final_nll"], printed=row["paper"]))
    for scale, of_scale in own.groupby("scale"):
        if found := apart(of_scale, "full", "mha"):
            so_far = " so far" if scale == "10M" and len(found.common) < len(FRESH) else ""
            label = f"{data.paper_scale(scale)}: Tuned alike, {found.seeds} seeds{so_far}"
            bars.append(Bar(label, found.welch))
    if not bars:
        return None
    bars.sort(key=lambda bar: data.size(bar.name))
    label = "final validation NLL, Relation − MHA (nat/token)"
    save(forest(bars, label), folder / "answer.svg")
    return Section("answer", figure=True)


# The fair comparison


def searched(runs: pd.DataFrame, scale: str = "10M") -> pd.DataFrame:
    """The runs that search for a learning rate."""
    return runs[runs["variation"].str.startswith("rate") & (runs["scale"] == scale)]


def at_best(runs: pd.DataFrame) -> pd.DataFrame:
    """The searching runs of each arm at the rate with its lowest mean, none of which diverged."""
    search = searched(runs)
    by_rate = search.groupby(["variant", "learning_rate"])
    lost = by_rate["diverged"].transform("any")
    means = by_rate["nll"].transform("mean").where(~lost, math.inf)
    lowest = means.groupby(search["variant"]).transform("min")
    return search[(means == lowest) & np.isfinite(lowest)]


def of_kind(variant: str, kind: str) -> bool:
    """Whether an arm is one of attention (mha) or of Relation (full); the control is neither."""
    return variant.startswith(kind) and variant != "mha-self"


def primary(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """The primary comparisons: Relation − MHA, and best Relation − best attention ("": open)."""
    found = {name: best_rate(own) for name, own in searched(runs).groupby("variant")}
    best = []
    for kind in PAIRED[::-1]:
        fits = {name: fit for name, fit in found.items() if of_kind(name, kind)}
        is_open = not fits or any(rate is None for rate, _ in fits.values())
        best.append("" if is_open else min(fits, key=lambda name: fits[name][1]))
    return list(dict.fromkeys([PAIRED[::-1], tuple(best)]))


def tuned_alike(runs: pd.DataFrame) -> str:
    """What the fair comparison says: its verdicts and, while one is open, its search."""
    pairs = [pair for pair in primary(runs) if "" not in pair]

    def told(found: Iterable[tuple[str, str, Apart | None, str]]) -> str:
        return "; ".join(
            f"{minus(over, under)}: {signed(one.welch)} on {one.seeds} seeds{word}"
            for over, under, one, word in found
            if one
        )

    fresh = [
        (one.over, one.under, one.found, f", {verdict(one)}")
        for one in compared(runs).query("family == 'primary'").itertuples()
    ]
    if fresh and all(word[:6] != ", open" for *_, word in fresh):
        return f"Each variant at its own learning rate, 10M on a larger corpus: {told(fresh)}."
    best = at_best(runs)
    if not (search := told((*pair, apart(best, *pair), "") for pair in pairs)):
        return ""
    so_far = f" So far, {told(fresh)}." if fresh else ""
    return (
        f"Each variant at the best of its rates, 10M on a larger corpus: {search}. The same runs "
        f"chose the rates; fresh seeds decide.{so_far}"
    )


@dataclass(frozen=True)
class Apart:
    """One arm less another: Welch's estimate, which decides; paired over the seeds that both have;
    and without diverged runs. seeds: how many each has."""

    seeds: str
    common: pd.Index
    welch: stats.Estimate
    paired: stats.Estimate
    kept: stats.Estimate


def apart(runs: pd.DataFrame, over: str, under: str, end: float = math.inf) -> Apart | None:
    """Two arms on their seeds below `end`; None where one has none. runs: as `ended`."""
    runs = runs[runs["seed"] < end].set_index("seed")
    both = [runs[runs["variant"] == name] for name in (over, under)]
    if any(arm.empty for arm in both):
        return None
    nll, kept = [arm["nll"].dropna() for arm in both], [arm[~arm["diverged"]] for arm in both]
    return Apart(
        " and ".join(dict.fromkeys(str(len(arm)) for arm in both)),
        both[0].index.intersection(both[1].index),
        stats.welch(*nll),
        stats.mean((nll[0] - nll[1]).dropna()),
        stats.welch(*(arm["nll"] for arm in kept)),
    )


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """The comparisons with verdicts at 10M: family, over, under, seeds, found, p and within.

    seeds: how many the protocol gives them; found: an Apart of those that have run; lacking: how
    many comparisons of its family lack seeds.

    p, within: of a difference and of equivalence, after Holm's correction over the whole family;
    NaN before all seeds have run. The families: the primary comparisons; and all arms other than
    MHA beside it on the seeds that every arm has.
    """
    fresh = of(runs, "10M").query("seed in @FRESH")
    asked = [("primary", *pair, FRESH.stop) for pair in primary(runs)]
    asked += [("beside-mha", name, "mha", EVERY_ARM) for name in ARMS if name != "mha"]
    rows = []
    for family, over, under, end in asked:
        found, seeds = apart(fresh, over, under, end), end - FRESH.start
        ran = found is not None and len(found.common) == seeds
        p = (found.welch.p, found.welch.within(MARGIN)) if ran else [math.nan] * 2
        rows.append((family, over, under, seeds, found, not ran, *p))
    tests = ["p", "within"]
    names = ["family", "over", "under", "seeds", "found", "lacking", *tests]
    table = pd.DataFrame(rows, columns=names)
    table["lacking"] = table.groupby("family")["lacking"].transform("sum")
    table[tests] = table.groupby("family")[tests].transform(stats.holm)
    return table.dropna(subset="found")


def verdict(one: Any) -> str:
    """The protocol's word of a row of `compared`; none before all seeds of its family have run, as
    Holm's correction takes the p of all."""
    if len(one.found.common) < one.seeds:
        return f"open: {one.found.seeds} of {one.seeds} seeds"
    if one.lacking:
        return f"open: {one.lacking} of its family lack seeds"
    way = "better" if one.found.welch.value < 0 else "worse"
    if one.within < 0.05:
        return f"both: {way}, by less than ±{MARGIN}" if one.p < 0.05 else "equivalent"
    return way if one.p < 0.05 else "not established"


def arms(runs: pd.DataFrame, probes: pd.DataFrame, steps: pd.DataFrame) -> list[Section]:
    """Arms at 10M and their own rates: on fresh seeds and, until all have these, on those that
    chose. Raises InputError where the fresh runs of one have several rates."""
    fresh, chose = of(runs, "10M"), at_best(runs)
    tables = {}
    if len(fresh):
        several = fresh.groupby("variant")["learning_rate"].nunique().gt(1)
        if several.any():
            raise InputError(f"the fresh runs of {several.idxmax()} have several learning rates")
        for variant, own in searched(runs).groupby("variant"):
            best, _ = best_rate(own)
            ran = fresh.loc[fresh["variant"] == variant, "learning_rate"]
            if best and not np.isclose(ran, best).all():
                told = f"{ran.iloc[0]:.3g}, and its search gives {best:.3g}"
                raise InputError(f"the fresh runs of {variant} have a rate of {told}")
        tables["arms"] = beside_mha(fresh, probes, steps)
    if len(chose) and not set(ARMS) <= set(fresh["variant"]):
        table = beside_mha(chose, probes, steps)
        fits = {title(name): best_rate(own)[0] for name, own in searched(runs).groupby("variant")}
        fitted = [f"{fits[name]:.3g}" if fits[name] else "open" for name in table["variant"]]
        table.insert(2, "fitted rate", fitted)
        # Speeds that most lack compare nothing.
        gone = [name for name in SPEEDS if name in table and (table[name] == UNMEASURED).any()]
        tables["search"] = table.drop(columns=["diverged", *gone])  # no best rate has a divergence
    return [Section(name, table) for name, table in tables.items()]


def beside_mha(own: pd.DataFrame, probes: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row an arm, the lowest NLL first, with its difference to MHA."""
    curves, rows = validation(probes, own), []
    for variant, arm in own.groupby("variant"):
        found = None if variant == "mha" else apart(own, variant, "mha")
        known = {LESS: found and signed(found.welch), "": found and found.welch, ALIKE: ""}
        if variant.startswith("full-"):  # each has its like among MHA's arms
            alike = apart(own, variant, variant.replace("full", "mha", 1))
            known[ALIKE] = signed(alike.welch) if alike else ""
        speed, rate = throughput(steps, variant, arm["backend"].iloc[0])
        reached, minutes = tokens_to_mha(curves, variant), UNMEASURED
        if rate is not None:
            minutes = f"{reached / rate / 60:.1f}" if reached else "not reached"
        rows.append(summary(arm, known) | dict(zip(SPEEDS, (speed, minutes), strict=True)))
    return recorded(rows).sort_values("NLL")


def summary(arm: pd.DataFrame, known: dict[str, object] | None = None) -> dict[str, object]:
    """What a table says of the runs of one arm. known: what stands before their NLL."""
    nll, bits = stats.mean(arm["nll"].dropna()), bits_per_character(arm, "nll").mean()
    return {
        "variant": title(arm["variant"].iloc[0]), "rate": f"{arm['learning_rate'].iloc[0]:.3g}",
        **(known or {}), "NLL": signed(nll, ".4f"),
        "runs": str(len(arm)), "diverged": str(arm["diverged"].sum()),
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
    return UNMEASURED, None


def validation(probes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Validation NLL of some runs by tokens, a column an arm and seed; a run that stopped stays
    where it was."""
    rows = probes.merge(runs[RUN])
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
    return "< 0.001" if p < 0.0005 else number(p, ".3f")


def differing(found: Apart) -> dict[str, object]:
    """What a table says of a comparison; "" is what it draws."""
    return {
        "Welch": signed(found.welch), "": found.welch, "seeds": found.seeds,
        "paired": signed(found.paired), "without diverged": signed(found.kept),
    }  # fmt: skip


def comparisons(runs: pd.DataFrame, family: str) -> list[Section]:
    """The comparisons of a family, with verdicts; none before a seed of it has run."""
    rows = []
    for one in compared(runs).query("family == @family").itertuples():
        row = {"comparison": minus(one.over, one.under), "verdict": verdict(one)}
        tests = {"p": one.p, f"p within ±{MARGIN}": one.within}
        rows.append(row | differing(one.found) | {name: p_text(p) for name, p in tests.items()})
    return [Section(family, recorded(rows))] if rows else []


def elsewhere(runs: pd.DataFrame) -> list[Section]:
    """The primary arms in larger models, on more tokens and in smaller updates."""
    pairs, alone, rows = primary(runs), [], []
    pairs += [(under, "mha") for _, under in pairs if under not in ("", "mha")]
    for scale, variation, setting in ELSEWHERE:
        own = of(runs, scale, variation)
        for _, arm in own.groupby("variant"):
            alone.append({"variant": "", "setting": setting} | summary(arm))
        for over, under in pairs:
            if (found := apart(own, over, under)) is None:
                continue
            row = {"comparison": minus(over, under), "setting": setting} | differing(found)
            beside = apart(of(runs[runs["seed"].isin(found.common)], "10M"), over, under)
            there = scale == "10M" and beside is not None
            rows.append(row | {"150M tokens, same seeds": signed(beside.welch) if there else ""})
    made = zip(("elsewhere", "elsewhere-apart"), (alone, rows), strict=True)
    return [Section(name, recorded(table)) for name, table in made if table]


def head_start(runs: pd.DataFrame, probes: pd.DataFrame, folder: Path) -> Section | None:
    """The primary comparisons against training tokens: how much of the end is there early."""
    curves, rows = validation(probes, of(runs, "10M")), []
    figure, here = plot(2.8)
    for (over, under), colour in zip(primary(runs), ("full", "linear"), strict=False):
        if not {over, under} <= set(curves.columns.unique(0)):
            continue
        both, name = (curves[over], curves[under]), minus(over, under)
        points = {
            tokens: stats.welch(*(arm.loc[tokens].dropna() for arm in both))
            for tokens in curves.index[curves.index > 0]
        }
        ends = np.array([(one.value, one.low, one.high) for one in points.values()]).T
        here.plot(list(points), ends[0], color=COLOUR[colour], label=name.replace(" − ", "\n− "))
        here.fill_between(list(points), *ends[1:], color=COLOUR[colour], alpha=0.2, linewidth=0)
        seeds = " and ".join(dict.fromkeys(str(arm.shape[1]) for arm in both))
        row, last = {"comparison": name, "seeds": seeds}, max(points)
        for part in (0.2, 0.5):
            there = points[min(points, key=lambda tokens: abs(tokens - part * last))]
            row[f"after {part:.0%}"] = signed(there)
            share = f"{there.value / points[last].value:.0%}".replace("-", "−")
            decided = points[last].low > 0 or points[last].high < 0
            row[f"share at {part:.0%}"] = share if decided else "no sure end"
        rows.append(row | {"at the end": signed(points[last])})
    if not rows:
        return None
    here.axhline(0, color=INK, linewidth=0.8)
    here.set(xlabel="training tokens", ylabel="difference (nat/token)")
    style.counts(here.xaxis)
    here.legend(loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, folder / "head-start.svg")
    return Section("head-start", pd.DataFrame(rows), figure=True)


def rates(runs: pd.DataFrame, folder: Path) -> list[Section]:
    """The search for each arm's learning rate, a section a scale: rates, and rates-30M."""
    runs, found = runs[runs["variation"].str.startswith("rate")], []
    for scale, own in runs.groupby("scale"):
        name = "rates" if scale == "10M" else f"rates-{scale}"
        by_rate = own.groupby(["variant", "learning_rate"])
        lost, count = by_rate["diverged"].sum().unstack(), by_rate.size().unstack()
        # No mean of those that survived; a rate that was not tried breaks the line.
        means = by_rate["final_nll"].mean().unstack().where(lost == 0)
        rows = []
        for variant in (variant for variant in ARMS if variant in means.index):
            best, _ = best_rate(own[own["variant"] == variant])
            row = {"variant": title(variant), "runs": f"{count.loc[variant].sum():.0f}"}
            for rate, mean in means.loc[variant].items():
                gone = lost.at[variant, rate]
                row[f"{rate:.3g}"] = f"{gone:.0f} diverged" if gone > 0 else number(mean, ".4f")
            rows.append(row | {"best rate": f"{best:.3g}" if best else "open"})
        save(_rate_panels(own, means), folder / f"{name}.svg")
        found.append(Section(name, pd.DataFrame(rows), figure=True))
    return found


def _rate_panels(runs: pd.DataFrame, means: pd.DataFrame) -> Figure:
    """Means by learning rate, a panel for what is added to an arm."""
    tried, arms = means.columns, [variant for variant in ARMS if variant in means.index]
    added = list(dict.fromkeys(variant.partition("-")[2] for variant in arms))
    high, shared = math.ceil(len(added) / 2), {"sharex": True, "sharey": True}
    figure, axes = grid(high, min(2, len(added)), 1.6 * high + 0.5, style.NARROW, **shared)
    for here in axes.flat[len(added) :]:
        here.set_visible(False)
    for what, here in zip(added, axes.flat, strict=False):
        here.set_title(title(f"mha-{what}").removeprefix("MHA + ") if what else "plain")
        here.set_xscale("log")
        if what and "mha" in arms:
            look = {"color": MUTED, "linewidth": 0.8, "linestyle": style.DASHES}
            here.plot(tried, means.loc["mha"], **look)
        for family in PAIRED:
            variant, look = f"{family}-{what}".rstrip("-"), {"color": COLOUR[family]}
            if variant not in arms:
                continue
            own = runs[runs["variant"] == variant]
            ends = own[~own["diverged"]]
            ends = ends[ends.duplicated("learning_rate", keep=False)]  # one run is its own mean
            here.plot(ends["learning_rate"], ends["final_nll"], ".", alpha=0.4, **look)
            here.plot(tried, means.loc[variant], "o-", **look)
            for rate in own.loc[own["diverged"], "learning_rate"]:
                here.plot(rate, 0.97, "x", transform=here.get_xaxis_transform(), **look)
        here.set_xticks(tried, [f"{1e3 * rate:.3g}" for rate in tried])
        here.xaxis.set_minor_locator(NullLocator())
    figure.supxlabel("learning rate (10⁻³)", fontsize=8)
    figure.supylabel("final validation NLL (nat/token)", fontsize=8)
    return figure


def best_rate(runs: pd.DataFrame) -> tuple[float | None, float]:
    """An arm's learning rate by docs/preregistration.md and its fitted NLL; None while it is open.

    runs: as `ended`, of one arm at 10M or 30M.
    """
    by_rate = runs.groupby("learning_rate")
    means = by_rate["final_nll"].mean().where(~by_rate["diverged"].any(), math.inf)
    near, place, seeds = means.index, int(np.argmin(means)), by_rate["seed"].nunique()
    if (runs["scale"] == "30M").all():
        is_open = len(near) != 3 or math.isinf(means.min())
    else:
        few = len(near) < 5 or seeds.min() < 2
        near = near[max(place - 1, 0) : place + 2]  # two at an edge
        is_open = few or len(near) < 3 or seeds[near].min() < 4
    if is_open:
        return None, math.nan
    own = runs[runs["learning_rate"].isin(near)].dropna(subset="final_nll")
    x = np.log(own["learning_rate"])
    fit = np.polyfit(x, own["final_nll"], 2) if x.nunique() == 3 else np.zeros(3)
    if fit[0] <= 0:
        return float(means.index[place]), float(means.iloc[place])
    lowest = np.clip(-fit[1] / (2 * fit[0]), math.log(near[0]), math.log(near[-1]))
    return float(f"{math.exp(lowest):.3g}"), float(np.polyval(fit, lowest))
