"""The page Study: Relation compared with attention, both tuned, and what initial weights decide.

It is computed from the shipped rows of the campaigns `books`, `fair` and `readings`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from relation import records
from relation.errors import InputError
from relation.variants import ARMS, PAIRED
from report import data, fair, overview, readings, stats
from report.figures import style
from report.figures.style import COLOUR, INK, MUTED, Bar, forest, grid, save
from report.render import number

LESS, ALIKE = "− MHA", "− MHA with the same additions"
BITS = "bits/character"
HORIZONS = (("150M", fair.TUNED), ("600M", "long"))  # training tokens, variation
LARGE = "100M, 28% of its tokens"
MARK = {"mha": "o", "full": "s"}
Summary = dict[str, dict[str, tuple[fair.Comparison | None, str]]]


@dataclass(frozen=True)
class Section:
    """A part of the page. templates/study_texts.html.j2 has its title, texts and caption.

    table: a frame of text; its column "", if any, holds the estimates that are drawn. figure:
    whether <name>.svg exists. summary: what `fair_summary` returns, for the first page.
    """

    name: str
    table: pd.DataFrame | None = None
    figure: bool = False
    summary: Summary | None = None


def sections(folder: Path, settings: Sequence[data.Records]) -> list[Section]:
    """Return every section; write figures to `folder` as SVG. settings: the report's columns."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("books", "fair", "readings")
    books, tuned, trials = (records.load(records.PUBLISHED / name) for name in names)
    for name, frames in zip(names, (books, tuned, trials), strict=True):
        if frames["runs"].empty:
            raise InputError(f"{records.PUBLISHED / name} has no runs; restore its shipped files")
    runs, probes = tuned["runs"], tuned["probes"]
    steps, fresh = pd.concat([tuned["steps"], books["steps"]]), fair.runs_of(runs, "10M")
    compared = fair.comparison_table(runs)
    pairs = readings.values(trials)
    with style.styled():
        readings.draw_anchor(pairs, folder)
        worth(fresh, folder)  # of the first page
        return [
            replace(comparisons(compared, "primary"), summary=fair_summary(compared, runs)),
            Section("arms", arm_table(fresh, probes, steps)),
            comparisons(compared, "minus-mha"),
            *elsewhere(runs),
            head_start(runs, probes, folder),
            *rates(runs, folder),
            answer_section(runs, settings, folder),
            Section("readings", readings.table(pairs)),
            Section("anchor", figure=True),
        ]


def title(variant: str) -> str:
    """Return the name of an arm on this page, where the paper's Full Relation is Relation."""
    return data.title(variant).removeprefix("Full ")


def minus(over: str, under: str) -> str:
    """Return the name of a comparison, followed by the additions that both arms share."""
    over_kind, _, over_additions = over.partition("-")
    under_kind, _, under_additions = under.partition("-")
    if over_additions and over_additions == under_additions:
        additions = title(under).removeprefix(f"{title(under_kind)} + ")
        return f"{title(over_kind)} − {title(under_kind)}, both with {additions}"
    return f"{title(over)} − {title(under)}"


def answer_section(runs: pd.DataFrame, settings: Sequence[data.Records], folder: Path) -> Section:
    """Draw Relation − MHA of every setting with pairs. runs: those of campaign `fair`."""
    bars = []
    for stored in settings:
        for row in overview.differences(stored.runs):
            label = f"{row['scale']}: {stored.setting}, {data.counted(row['final_nll'].n, 'pair')}"
            bars.append(Bar(label, row["final_nll"], printed=row["paper"]))
    for name, condition_runs in {"10M": fair.runs_of(runs, "10M"), **conditions(runs)}.items():
        if pair := fair.compare_arms(condition_runs, "full", "mha"):
            label = f"{name}: fair comparison, {data.counted(pair.seeds, 'seed')}"
            bars.append(Bar(label, pair.welch))
    bars.sort(key=lambda bar: data.scale_order(bar.name))
    save(forest(bars, "final validation NLL, Relation − MHA (nat/token)"), folder / "answer.svg")
    return Section("answer", figure=True)


def conditions(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the runs under each condition that repeats primary comparisons, by its name."""
    run = ["variant", "seed"]
    tried = runs[runs["scale"] == "100M28pc"].sort_values("final_nll").groupby(run)
    return {
        "30M on 450M tokens": fair.runs_of(runs, "30M"),
        # The best run of each variant that tried several rates
        f"{LARGE}, best rates": tried.filter(lambda x: len(x) > 1).drop_duplicates(run),
        f"{LARGE}, rates from 30M": fair.runs_of(runs, "100M28pc"),
        "10M on 600M tokens": fair.runs_of(runs, "10M", "long"),
        "10M, 32,768 tokens per update": fair.runs_of(runs, "10M", "small-updates"),
    }


def fair_summary(compared: pd.DataFrame, runs: pd.DataFrame) -> Summary:
    """Return the primary comparisons by condition and name; None if not run.

    The first condition was planned as a test, so its comparisons have a verdict; others have "".
    """
    primary = compared.query("family == 'primary'").itertuples()
    planned = {minus(row.over, row.under): row for row in primary}
    tested = {name: (row.comparison, fair.verdict(row)) for name, row in planned.items()}
    summary = {"10M on 150M tokens": tested}
    for condition, of in conditions(runs).items():
        pairs = {n: (fair.compare_arms(of, r.over, r.under), "") for n, r in planned.items()}
        if any(pair for pair, _ in pairs.values()):
            summary[condition] = pairs
    return summary


def worth(fresh: pd.DataFrame, folder: Path) -> None:
    """Draw the difference of each arm from MHA, on fresh seeds at 10M."""
    seeds, bars = fresh["variant"].value_counts(), []
    for name in ARMS[1:]:
        kind, label = name.partition("-")[0], f"{title(name)}, {seeds[name]} seeds"
        pair = fair.compare_arms(fresh, name, "mha")
        bars.append(Bar(label, pair.welch, colour=COLOUR[kind], kind=style.NAME[kind]))
    bars.sort(key=lambda bar: bar.estimate.value)
    label = f"final validation NLL − MHA’s (nat/token; MHA: {seeds['mha']} seeds)"
    save(forest(bars, label, margin=fair.MARGIN), folder / "worth.svg")


def arm_table(runs: pd.DataFrame, probes: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, sorted by NLL, with its difference from MHA."""
    curves, rows = validation(probes, runs), []
    for variant in runs.groupby("variant")["final_nll"].mean().sort_values().index:
        arm_runs = runs[runs["variant"] == variant]
        columns = {LESS: "—", "": None, ALIKE: ""}
        if variant != "mha":
            to_mha = fair.compare_arms(runs, variant, "mha").welch
            columns |= {LESS: f"{to_mha:+.4f}", "": to_mha}
        if variant.startswith("full-"):  # MHA with the same additions is also an arm
            to_alike = fair.compare_arms(runs, variant, variant.replace("full", "mha", 1))
            columns[ALIKE] = f"{to_alike.welch:+.4f}"
        speed, rate = throughput(steps, variant, arm_runs["backend"].iloc[0])
        seeds = curves[variant].columns.intersection(curves["mha"].columns)
        target = curves["mha"].iloc[-1][seeds].mean()
        reached = stats.crossing(curves[variant][seeds].mean(axis=1), target)  # in tokens
        minutes = f"{reached / rate / 60:.2f}" if reached else "not reached"
        speeds = {"tokens/s, MHA’s = 1": f"{speed:.3f}", "GPU minutes": minutes}
        rows.append(arm_row(arm_runs, columns) | speeds)
    return pd.DataFrame(rows).drop(columns=BITS)  # of one corpus and one vocabulary


def arm_row(runs: pd.DataFrame, differences: dict[str, object] | None = None) -> dict[str, object]:
    """Return a table's row for the runs of one arm. differences: columns before the NLL."""
    nll, bits = stats.mean(runs["final_nll"].dropna()), stats.bits_per_character(runs).mean()
    diverged = runs["final_nll"].isna().sum()
    return {
        "variant": title(runs["variant"].iloc[0]), "rate": f"{runs['learning_rate'].iloc[0]:.3g}",
        **(differences or {}), "NLL": f"{nll:.4f}",
        "runs": f"{len(runs)}, {diverged} diverged" if diverged else str(len(runs)),
        BITS: f"{bits:.4f}", "parameters": f"{runs['parameters'].iloc[0]:,}",
    }  # fmt: skip


def throughput(steps: pd.DataFrame, variant: str, backend: str) -> tuple[float, float]:
    """Return an arm's benchmarked tokens/s: relative to MHA's on cuDNN, and absolute."""
    rows = steps[(steps["benchmark"] == "matched") & (steps["scale"] == "10M")]
    for _, job_rows in rows[rows["status"] == "PASS"].groupby("hash", sort=False):
        sides = job_rows.set_index(["variant", "backend"])
        if {(variant, backend), ("mha", "cudnn")} <= set(sides.index):
            arm, mha = sides.loc[(variant, backend)], sides.loc[("mha", "cudnn")]
            return stats.median_ratio(arm, mha).value, arm["tokens_per_second"]
    raise InputError(f"no benchmark of steps has {variant} on {backend} and MHA on cudnn at 10M")


def validation(probes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return validation NLL by tokens, one column per arm and seed."""
    rows = probes.merge(runs[records.RUN_KEY[1:]]).query("metric == 'validation_nll'")
    return rows.pivot_table("value", "tokens", ["variant", "seed"])


def p_text(p: float) -> str:
    """Format a p value to three digits; a dash if there is none."""
    return "< 0.001" if p < 0.0005 else number(p, ".3f")


def comparison_columns(comparison: fair.Comparison) -> dict[str, object]:
    """Return a table's columns for one comparison; "" holds the estimate that is drawn."""
    return {
        "Welch": f"{comparison.welch:+.4f}", "": comparison.welch, "seeds": comparison.seeds,
        "paired": f"{comparison.paired:+.4f}",
    }  # fmt: skip


def comparisons(compared: pd.DataFrame, family: str) -> Section:
    """Return a family's comparisons with their verdicts. compared: `fair.comparison_table`."""
    rows = []
    for row in compared.query("family == @family").itertuples():
        columns = {"comparison": minus(row.over, row.under), "verdict": fair.verdict(row)}
        columns |= comparison_columns(row.comparison)
        rows.append(columns | {"p": p_text(row.p), f"p within ±{fair.MARGIN}": p_text(row.within)})
    return Section(family, pd.DataFrame(rows))


def elsewhere(runs: pd.DataFrame) -> list[Section]:
    """Return two tables of runs under other `conditions`: the arms, the differences."""
    pairs, arm_rows, pair_rows = [*fair.PRIMARY, (fair.PRIMARY[1][1], "mha")], [], []
    parts = {
        f"{LARGE}, half the rates from 30M": fair.runs_of(runs, "100M28pc", "rate100-0.5"),
        f"{LARGE}, a quarter of these": fair.runs_of(runs, "100M28pc", "rate100-0.25"),
    }
    for name, of in {**conditions(runs), **parts}.items():
        by_arm = dict(list(of.groupby("variant")))
        arm_rows += [{"condition": name} | arm_row(by_arm[x]) for x in ARMS if x in by_arm]
        bits = stats.bits_per_character(of).groupby(of["variant"]).mean()
        for over, under in pairs:
            if not (comparison := fair.compare_arms(of, over, under)):
                continue
            row = {"comparison": minus(over, under), "condition": name}
            row |= comparison_columns(comparison) | {BITS: number(bits[over] - bits[under], "+.4f")}
            same_seeds = runs[runs["seed"].isin(comparison.common)]
            tuned = fair.compare_arms(fair.runs_of(same_seeds, "10M"), over, under)
            text = f"{tuned.welch:+.4f}" if tuned and set(of["scale"]) == {"10M"} else ""
            pair_rows.append(row | {"150M tokens, same seeds": text})
    arms, differences = pd.DataFrame(arm_rows), pd.DataFrame(pair_rows)
    return [Section("elsewhere", arms), Section("elsewhere-apart", differences)]


def head_start(runs: pd.DataFrame, probes: pd.DataFrame, folder: Path) -> Section:
    """Compare the primary differences during training with those at the end, on both horizons."""
    rows = []
    figure, panels = grid(2, 1, 4.9, style.NARROW, sharey=True)
    for (horizon, variation), axes in zip(HORIZONS, panels[:, 0], strict=True):
        curves = validation(probes, fair.runs_of(runs, "10M", variation))
        for (over, under), colour in zip(fair.PRIMARY, (style.RELATION, MUTED), strict=True):
            estimates = pd.Series({
                tokens: stats.welch(nll[over].dropna(), nll[under].dropna())
                for tokens, nll in curves.iterrows() if tokens > 0
            })  # fmt: skip
            mean, low, high = zip(*((e.value, e.low, e.high) for e in estimates), strict=True)
            name, look = minus(over, under), {"color": colour}
            axes.plot(estimates.index, mean, label=name, **look)
            axes.fill_between(estimates.index, low, high, alpha=0.2, linewidth=0, **look)
            seeds = dict.fromkeys(str(curves[arm].shape[1]) for arm in (over, under))
            row = {"comparison": name, "tokens": horizon, "seeds": " and ".join(seeds)}
            rows.append(row | shares_of_the_end(estimates))
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_title(f"{horizon} training tokens")
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
        if part < 0.2:  # as planned, 5% has no share
            continue
        times, share = early.value / final.value, "—"
        if final.low > 0 or final.high < 0:
            share = f"{times:.0%}" if abs(times) < 2 else f"{times:.1f} times"
        columns[f"share at {part:.0%}"] = share.replace("-", "−")
    return columns | {"at the end": f"{final:+.4f}"}


def rates(runs: pd.DataFrame, folder: Path) -> Iterator[Section]:
    """Yield the search for each arm's learning rate, one section per scale: rates, rates-30M."""
    search = runs[runs["variation"].str.match("rate(30)?-")]  # rate100-... is no search
    for scale, scale_runs in search.groupby("scale"):
        if scale == "10M":
            name, sign, times, unit = "rates", "", 1e3, " (10⁻³)"
            scale_runs = scale_runs.assign(rate=scale_runs["learning_rate"])
        else:  # each arm has its own first rate; all arms try the same multiples of it
            name, sign, times, unit = f"rates-{scale}", "×", 1, ", times the variant’s first"
            factor = scale_runs["variation"].str.partition("-")[2]
            scale_runs = scale_runs.assign(rate=factor.astype(float))
        fresh = fair.runs_of(runs, scale).groupby("variant")["final_nll"].mean()
        # The line breaks at a rate that was not tried.
        means = scale_runs.pivot_table("final_nll", "variant", "rate").reindex(ARMS)
        means, rows = means.dropna(how="all"), []
        for variant in means.index:
            arm_runs = scale_runs[scale_runs["variant"] == variant]
            best, fitted = fair.best_rate(arm_runs)
            row = {"variant": title(variant), "runs": str(len(arm_runs))}
            row |= {f"{sign}{x:.3g}": number(mean, ".4f") for x, mean in means.loc[variant].items()}
            row |= {"rate": f"{best:.3g}", "fitted": f"{fitted:.4f}"}
            rows.append(row | {"new seeds": number(fresh.get(variant), ".4f")})
        panels = _rate_panels(scale_runs, means, times, f"learning rate{unit}")
        save(panels, folder / f"{name}.svg")
        yield Section(name, pd.DataFrame(rows), figure=True)


def _rate_panels(runs: pd.DataFrame, means: pd.DataFrame, times: float, label: str) -> Figure:
    """Draw means by `rate`, one panel per addition. times, label: factor and label of the axis."""
    rates, arms = means.columns, means.index
    additions = list(dict.fromkeys(variant.partition("-")[2] for variant in arms))
    rows, sharing = math.ceil(len(additions) / 2), {"sharex": True, "sharey": True}
    figure, axes = grid(rows, min(2, len(additions)), 1.6 * rows + 0.8, style.NARROW, **sharing)
    for addition, panel in zip(additions, axes.flat, strict=True):
        panel.set_title(title(f"mha-{addition}").removeprefix("MHA + ") if addition else "plain")
        panel.set_xscale("log")
        if addition and "mha" in arms:
            look = {"color": MUTED, "linewidth": 0.8, "linestyle": style.DASHES}
            panel.plot(rates, means.loc["mha"], label="MHA, plain", **look)
        for family in PAIRED:
            variant, look = f"{family}-{addition}".rstrip("-"), {"color": COLOUR[family]}
            if variant not in arms:
                continue
            arm_runs = runs[runs["variant"] == variant]
            arm_runs = arm_runs[arm_runs.duplicated("rate", keep=False)]  # one run equals the mean
            panel.plot(arm_runs["rate"], arm_runs["final_nll"], ".", alpha=0.4, **look)
            panel.plot(rates, means.loc[variant], f"{MARK[family]}-", label=title(family), **look)
        panel.set_xticks(rates, [f"{times * rate:.3g}" for rate in rates])
        panel.xaxis.set_minor_locator(NullLocator())
    figure.supxlabel(label, fontsize=8)
    figure.supylabel("final validation NLL (nat/token)", fontsize=8)
    return figure
