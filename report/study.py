"""The page Study: Relation compared with attention, both tuned, and what initial weights decide.

It is computed from the shipped rows of the campaigns `books`, `fair` and `readings`.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from relation import plan, records
from relation.errors import InputError
from relation.variants import ARMS, PAIRED
from report import data, fair, overview, readings, stats
from report.data import counted, title
from report.figures import style
from report.figures.style import COLOUR, INK, MUTED, Bar, forest, grid, save
from report.render import number

LESS, ALIKE = "− MHA", "− MHA with the same additions"
BITS, UNRECORDED, UNMEASURED = "bits/character", "not recorded", "not measured"
# Scale, variation and name of the conditions that repeat the primary comparisons.
ELSEWHERE = (
    ("30M", fair.TUNED, "30M"),
    ("100M28pc", fair.TUNED, "100M on 28% of its tokens"),
    ("10M", "long", "10M on 600M tokens"),
    ("10M", "small-updates", "10M, 32,768 tokens per update"),
)
HORIZONS = (("150M", fair.TUNED), ("600M", "long"))  # training tokens, variation


@dataclass(frozen=True)
class Section:
    """A part of the page. templates/study_texts.html.j2 has its title, texts and caption.

    table: a frame of text; its column "", if any, holds the estimates that are drawn. figure:
    whether <name>.svg exists. summary: the result in a few sentences, and how many runs have
    finished; the first page shows it too.
    """

    name: str
    table: pd.DataFrame | None = None
    figure: bool = False
    summary: str = ""


def sections(folder: Path) -> list[Section]:
    """Return every section whose rows are shipped; write figures to `folder` as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("books", "fair", "readings")
    books, tuned, trials = (records.load(records.PUBLISHED / name) for name in names)
    runs, probes = fair.with_last_loss(tuned["runs"], tuned["probes"]), tuned["probes"]
    steps = pd.concat([tuned["steps"], books["steps"]])
    tuned = [*comparison_sections(runs, "primary"), *arm_sections(runs, probes, steps)]
    tuned += comparison_sections(runs, "minus-mha")
    tuned[:1] = (replace(each, summary=fair_summary(runs)) for each in tuned[:1])
    with style.styled():
        parts = [
            *tuned[:1],
            worth(runs, folder),
            *tuned[1:],
            *elsewhere(runs),
            head_start(runs, probes, folder),
            *rates(runs, folder),
            answer_section(runs, folder),
        ]
        if len(pairs := readings.values(trials)):
            table = readings.draw(pairs, folder)
            parts += [Section("readings", table, figure=True), Section("anchor", figure=True)]
    return [section for section in parts if section is not None]


def minus(over: str, under: str) -> str:
    """Return the name of a comparison, followed by the additions that both arms share."""
    (over_kind, _, added), (under_kind, _, also) = (arm.partition("-") for arm in (over, under))
    if added and added == also:
        additions = title(under).removeprefix(f"{title(under_kind)} + ")
        return f"{title(over_kind)} − {title(under_kind)}, both with {additions}"
    return f"{title(over)} − {title(under)}"


def filled_columns(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    """Return a table without empty columns, and without "without diverged" if no run diverged."""
    table = pd.DataFrame(rows)
    table = table.fillna({name: "—" for name in table if name})
    if "Welch" in table and (table["Welch"] == table["without diverged"]).all():
        table = table.drop(columns="without diverged")
    return table.loc[:, ~table.isin([UNRECORDED, UNMEASURED, "", None]).all()]


def answer_section(runs: pd.DataFrame, folder: Path) -> Section | None:
    """Draw Relation − MHA of every setting that has pairs: the rows of the first page, and the
    fair comparison. runs: those of campaign `fair`, as returned by `fair.with_last_loss`."""
    bars = []
    for setting in plan.load({"campaign": "books"}).columns:
        for row in overview.differences(data.load(setting).runs):
            label = f"{row['scale']}: {setting}, {counted(row['final_nll'].n, 'pair')}"
            bars.append(Bar(label, row["final_nll"], printed=row["paper"]))
    for variation, words in ((fair.TUNED, "Tuned"), ("long", "Tuned, 600M tokens")):
        for scale, rows in runs[runs["variation"].str.startswith(variation)].groupby("scale"):
            if pair := fair.compare_arms(rows, "full", "mha"):
                due = len(fair.FRESH) if (scale, variation) == ("10M", fair.TUNED) else 0
                so_far = " so far" if len(pair.common) < due else ""
                label = f"{data.paper_scale(scale)}: {words}, {pair.seeds} seeds{so_far}"
                bars.append(Bar(label, pair.welch))
    if not bars:
        return None
    bars.sort(key=lambda bar: data.scale_order(bar.name))
    label = "final validation NLL, Relation − MHA (nat/token)"
    save(forest(bars, label), folder / "answer.svg")
    return Section("answer", figure=True)


def fair_summary(runs: pd.DataFrame) -> str:
    """State the primary comparisons with their verdicts, and how many runs have finished."""
    chosen = "family == 'primary' and over != '' and under != ''"
    primary, parts = fair.comparison_table(runs).query(chosen), []
    for row in primary.itertuples():
        ruling, value = fair.verdict(row), ""
        if row.comparison:
            value = f"{row.comparison.welch:+.4f} nat/token"
            if f"{row.comparison.seeds} of" not in ruling:
                value += f" on {row.comparison.seeds} seeds"
        parts.append(f"{minus(row.over, row.under)}: {', '.join(filter(None, (value, ruling)))}")
    corpus = "the corpus library, so far" if primary["lacking"].any() else "the corpus library"
    planned = {run.hash for run in plan.load({"campaign": "fair"}).planned}
    parts.append(f"Of {len(planned)} planned runs, {runs['hash'].isin(planned).sum()} are here.")
    return f"Each variant has its own learning rate, at 10M on {corpus}. {'. '.join(parts)}"


def arm_sections(runs: pd.DataFrame, probes: pd.DataFrame, steps: pd.DataFrame) -> list[Section]:
    """Return the section on all arms at 10M, on fresh seeds; an empty list before any has run.

    Raises InputError if the runs of an arm do not have the rate that its search gave.
    """
    fresh = fair.runs_of(runs, "10M")
    for variant, (fitted, _) in fair.fitted_rates(runs).items():
        rates = fresh.loc[fresh["variant"] == variant, "learning_rate"].unique()
        if fitted and not np.isclose(rates, fitted).all():
            listed = ", ".join(f"{rate:.3g}" for rate in rates)
            raise InputError(
                f"fresh runs of {variant} have rates {listed}; its search gives {fitted:.3g}"
            )
    return [Section("arms", arm_table(fresh, probes, steps))] if len(fresh) else []


def worth(runs: pd.DataFrame, folder: Path) -> Section | None:
    """Draw the difference of each arm from MHA, on fresh seeds at 10M."""
    fresh, bars = fair.runs_of(runs, "10M"), []
    seeds = fresh["variant"].value_counts()
    for name in (name for name in ARMS if name != "mha"):
        if pair := fair.compare_arms(fresh, name, "mha"):
            kind, label = name.partition("-")[0], f"{title(name)}, {seeds[name]} seeds"
            bars.append(Bar(label, pair.welch, colour=COLOUR[kind], kind=style.NAME[kind]))
    if not bars:
        return None
    bars.sort(key=lambda bar: bar.estimate.value)
    label = f"final validation NLL − MHA’s, {seeds['mha']} seeds (nat/token)"
    save(forest(bars, label, margin=fair.MARGIN), folder / "worth.svg")
    return Section("worth", figure=True)


def arm_table(runs: pd.DataFrame, probes: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, sorted by NLL, with its difference from MHA."""
    curves, rows, means = validation(probes, runs), [], runs.groupby("variant")["nll"].mean()
    means = means.reindex([name for name in ARMS if name in means])  # MHA wins a tie
    for variant in means.sort_values(kind="stable").index:
        arm_runs = runs[runs["variant"] == variant]
        to_mha = None if variant == "mha" else fair.compare_arms(runs, variant, "mha")
        columns = {LESS: to_mha and f"{to_mha.welch:+.4f}", "": to_mha and to_mha.welch, ALIKE: ""}
        if variant.startswith("full-"):  # MHA with the same additions is also an arm
            to_alike = fair.compare_arms(runs, variant, variant.replace("full", "mha", 1))
            columns[ALIKE] = f"{to_alike.welch:+.4f}" if to_alike else ""
        speed, rate = throughput(steps, variant, arm_runs["backend"].iloc[0])
        reached, minutes = tokens_to_mha(curves, variant), UNMEASURED
        if rate is not None:
            minutes = f"{reached / rate / 60:.2f}" if reached else "not reached"
        speeds = {"tokens/s, MHA’s = 1": speed, "GPU minutes": minutes}
        rows.append(arm_row(arm_runs, columns) | speeds)
    # With one corpus and one vocabulary, bits/character add no information.
    return filled_columns(rows).drop(columns=BITS, errors="ignore")


def arm_row(runs: pd.DataFrame, differences: dict[str, object] | None = None) -> dict[str, object]:
    """Return a table's row for the runs of one arm. differences: columns before the NLL."""
    nll, bits = stats.mean(runs["nll"].dropna()), stats.bits_per_character(runs, "nll").mean()
    return {
        "variant": title(runs["variant"].iloc[0]), "rate": f"{runs['learning_rate'].iloc[0]:.3g}",
        **(differences or {}), "NLL": f"{nll:.4f}",
        "runs": str(len(runs)), "diverged": str(runs["diverged"].sum()),
        BITS: UNRECORDED if math.isnan(bits) else f"{bits:.4f}",
        "parameters": f"{runs['parameters'].iloc[0]:,}",
    }  # fmt: skip


def throughput(steps: pd.DataFrame, variant: str, backend: str) -> tuple[str, float | None]:
    """Return an arm's benchmarked tokens/s: relative to MHA's on cuDNN as text, and absolute."""
    rows = steps[(steps["benchmark"] == "matched") & (steps["scale"] == "10M")]
    for _, job_rows in rows[rows["status"] == "PASS"].groupby("hash", sort=False):
        sides = job_rows.set_index(["variant", "backend"])
        if {(variant, backend), ("mha", "cudnn")} <= set(sides.index):
            arm, mha = sides.loc[(variant, backend)], sides.loc[("mha", "cudnn")]
            samples = (list(side["samples"]) for side in (arm, mha))
            ratio = stats.median_ratio(*samples, not (arm["alone"] or mha["alone"]))
            return f"{ratio.value:.3f}", arm["tokens_per_second"]
    return UNMEASURED, None


def validation(probes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return validation NLL by tokens, one column per arm and seed. A run that stopped keeps its
    last value."""
    rows = probes.merge(runs[fair.RUN])
    rows = rows[(rows["metric"] == "validation_nll") & np.isfinite(rows["value"])]
    return rows.pivot_table("value", "tokens", ["variant", "seed"]).ffill()


def tokens_to_mha(curves: pd.DataFrame, arm: str) -> float | None:
    """Return when an arm's mean NLL over common seeds reaches MHA's last, in tokens, or None."""
    if not {arm, "mha"} <= set(curves.columns.unique("variant")):
        return None
    seeds = curves[arm].columns.intersection(curves["mha"].columns)
    target = curves["mha"].iloc[-1][seeds].mean()
    return stats.crossing(curves.index, curves[arm][seeds].mean(axis=1).to_numpy(), target)


def p_text(p: float) -> str:
    """Format a p value to three digits; a dash if there is none."""
    return "< 0.001" if p < 0.0005 else number(p, ".3f")


def comparison_columns(comparison: fair.Comparison) -> dict[str, object]:
    """Return a table's columns for one comparison; "" holds the estimate that is drawn."""
    return {
        "Welch": f"{comparison.welch:+.4f}", "": comparison.welch, "seeds": comparison.seeds,
        "paired": f"{comparison.paired:+.4f}",
        "without diverged": f"{comparison.undiverged:+.4f}",
    }  # fmt: skip


def comparison_sections(runs: pd.DataFrame, family: str) -> list[Section]:
    """Return the comparisons of a family with verdicts; empty before any of its seeds has run."""
    rows, table = [], fair.comparison_table(runs).query("family == @family")
    for row in table.query("over != '' and under != ''").itertuples():
        columns = {"comparison": minus(row.over, row.under), "verdict": fair.verdict(row)}
        columns |= {"": None, "Welch": None}
        columns |= comparison_columns(row.comparison) if row.comparison else {}
        rows.append(columns | {"p": p_text(row.p), f"p within ±{fair.MARGIN}": p_text(row.within)})
    return [Section(family, filled_columns(rows))] if table["comparison"].any() else []


def elsewhere(runs: pd.DataFrame) -> list[Section]:
    """Return two tables of runs under the conditions of ELSEWHERE: the arms, the differences."""
    pairs, arm_rows, pair_rows = fair.primary_pairs(runs), [], []
    pairs += [(under, "mha") for _, under in pairs if under not in ("", "mha")]
    for scale, variation, setting in ELSEWHERE:
        setting_runs = fair.runs_of(runs, scale, variation)
        for _, arm_runs in setting_runs.groupby("variant"):
            arm_rows.append({"variant": "", "setting": setting} | arm_row(arm_runs))
        for over, under in pairs:
            if (comparison := fair.compare_arms(setting_runs, over, under)) is None:
                continue
            row = {"comparison": minus(over, under), "setting": setting}
            same_seeds = runs[runs["seed"].isin(comparison.common)]
            tuned = fair.compare_arms(fair.runs_of(same_seeds, "10M"), over, under)
            text = f"{tuned.welch:+.4f}" if tuned and scale == "10M" else ""
            row |= comparison_columns(comparison)
            pair_rows.append(row | {"150M tokens, same seeds": text})
    tables = {"elsewhere": arm_rows, "elsewhere-apart": pair_rows}
    return [Section(name, filled_columns(rows)) for name, rows in tables.items() if rows]


def head_start(runs: pd.DataFrame, probes: pd.DataFrame, folder: Path) -> Section | None:
    """Compare the primary differences during training with those at the end, on both horizons."""
    colours = dict(zip(fair.primary_pairs(runs), (style.RELATION, MUTED), strict=False))
    horizons, rows = [], []
    for horizon, variation in HORIZONS:
        curves = validation(probes, fair.runs_of(runs, "10M", variation))
        pairs = [pair for pair in colours if set(pair) <= set(curves.columns.unique(0))]
        horizons += [(horizon, curves, pairs)] if pairs else []
    if not horizons:
        return None
    figure, panels = grid(len(horizons), 1, 0.8 + 2 * len(horizons), style.NARROW, sharey=True)
    for (horizon, curves, pairs), axes in zip(horizons, panels[:, 0], strict=True):
        for over, under in pairs:
            arms, name = (curves[over], curves[under]), minus(over, under)
            estimates = pd.Series({
                tokens: stats.welch(*(arm.loc[tokens].dropna() for arm in arms))
                for tokens in curves.index[curves.index > 0]
            })  # fmt: skip
            mean, low, high = zip(*((e.value, e.low, e.high) for e in estimates), strict=True)
            look = {"color": colours[over, under]}
            axes.plot(estimates.index, mean, label=name.replace(" − ", "\n− "), **look)
            axes.fill_between(estimates.index, low, high, alpha=0.2, linewidth=0, **look)
            seeds = " and ".join(dict.fromkeys(str(arm.shape[1]) for arm in arms))
            row = {"comparison": name, "tokens": horizon, "seeds": seeds}
            rows.append(row | shares_of_the_end(estimates))
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_ylabel("difference (nat/token)")
        style.counts(axes.xaxis)
    axes.set_xlabel("training tokens")
    save(figure, folder / "head-start.svg")
    return Section("head-start", pd.DataFrame(rows), figure=True)


def shares_of_the_end(estimates: pd.Series) -> dict[str, str]:
    """Return columns for a difference after 5%, 20% and 50% of its tokens, and at the end."""
    columns, final, tokens = {}, estimates.iloc[-1], estimates.index.to_numpy()
    for part in (0.05, 0.2, 0.5):
        early = estimates.iloc[np.abs(tokens - part * tokens[-1]).argmin()]
        columns[f"after {part:.0%}"] = f"{early:+.4f}"
        times = early.value / final.value
        share = f"{times:.0%}" if abs(times) < 2 else f"{times:.1f} times"
        excludes_zero = final.low > 0 or final.high < 0
        if part >= 0.2:  # as planned
            columns[f"share at {part:.0%}"] = share.replace("-", "−") if excludes_zero else "—"
    return columns | {"at the end": f"{final:+.4f}"}


def rates(runs: pd.DataFrame, folder: Path) -> Iterator[Section]:
    """Yield the search for each arm's learning rate, one section per scale: rates, rates-30M."""
    runs = runs[runs["variation"].str.startswith("rate")]
    for scale, scale_runs in runs.groupby("scale"):
        name = "rates" if scale == "10M" else f"rates-{scale}"
        # At 30M each arm has its own first rate; all arms try the same multiples of it.
        factor, sign = scale_runs["variation"].str.partition("-")[2], "" if scale == "10M" else "×"
        rate = factor.astype(float) if sign else scale_runs["learning_rate"]
        scale_runs = scale_runs.assign(rate=rate)
        by_rate = scale_runs.groupby(["variant", "rate"])
        diverged, counts = by_rate["diverged"].sum().unstack(), by_rate.size().unstack()
        # No mean for a rate with a diverged run. The line breaks at a rate that was not tried.
        means = by_rate["final_nll"].mean().unstack().where(diverged == 0)
        rows = []
        for variant in (variant for variant in ARMS if variant in means.index):
            best, _ = fair.best_rate(scale_runs[scale_runs["variant"] == variant])
            row = {"variant": title(variant), "runs": f"{counts.loc[variant].sum():.0f}"}
            for rate, mean in means.loc[variant].items():
                n = diverged.at[variant, rate]
                row[f"{sign}{rate:.3g}"] = f"{n:.0f} diverged" if n > 0 else number(mean, ".4f")
            rows.append(row | {"best rate": f"{best:.3g}" if best else "open"})
        times, unit = (1, ", times the variant’s first") if sign else (1e3, " (10⁻³)")
        panels = _rate_panels(scale_runs, means, times, f"learning rate{unit}")
        save(panels, folder / f"{name}.svg")
        yield Section(name, pd.DataFrame(rows), figure=True)


def _rate_panels(runs: pd.DataFrame, means: pd.DataFrame, times: float, label: str) -> Figure:
    """Draw means by `rate`, one panel per addition. times, label: factor and label of the axis."""
    rates, arms = means.columns, [variant for variant in ARMS if variant in means.index]
    additions = list(dict.fromkeys(variant.partition("-")[2] for variant in arms))
    rows, sharing = math.ceil(len(additions) / 2), {"sharex": True, "sharey": True}
    figure, axes = grid(rows, min(2, len(additions)), 1.6 * rows + 0.5, style.NARROW, **sharing)
    for panel in axes.flat[len(additions) :]:
        panel.set_visible(False)
    for addition, panel in zip(additions, axes.flat, strict=False):
        panel.set_title(title(f"mha-{addition}").removeprefix("MHA + ") if addition else "plain")
        panel.set_xscale("log")
        if addition and "mha" in arms:
            look = {"color": MUTED, "linewidth": 0.8, "linestyle": style.DASHES}
            panel.plot(rates, means.loc["mha"], **look)
        for family in PAIRED:
            variant, look = f"{family}-{addition}".rstrip("-"), {"color": COLOUR[family]}
            if variant not in arms:
                continue
            arm_runs = runs[runs["variant"] == variant]
            ended = arm_runs[~arm_runs["diverged"]]
            ended = ended[ended.duplicated("rate", keep=False)]  # a single run equals the mean
            panel.plot(ended["rate"], ended["final_nll"], ".", alpha=0.4, **look)
            panel.plot(rates, means.loc[variant], "o-", **look)
            for rate in arm_runs.loc[arm_runs["diverged"], "rate"]:
                panel.plot(rate, 0.97, "x", transform=panel.get_xaxis_transform(), **look)
        panel.set_xticks(rates, [f"{times * rate:.3g}" for rate in rates])
        panel.xaxis.set_minor_locator(NullLocator())
    figure.supxlabel(label, fontsize=8)
    figure.supylabel("final validation NLL (nat/token)", fontsize=8)
    return figure
