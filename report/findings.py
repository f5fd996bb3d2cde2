"""Prints the numbers of README and docs/replication.md from the shipped records.

`python -m report.findings`; each line names the rows that it rests on.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from relation import plan, records
from report import claims, data, paper, stats, study, table, tables
from report.figures.style import signed
from report.render import number_text

PUBLISHED = Path("results/published")
# Cells of the tables that the pages quote: table, row and column.
QUOTED = re.compile(
    r"app-nll .*(mean|further) .*|efficient-relation .* (matched|peers.other)_?.?ratio"
    r"|main-results .* (token_reduction|epochs)|app-ablation .* delta|app-configs .* params.*"
    r"|relation_internal .* (l0_self|l2_exchange).full"
    r"|app-structural-layerwise .*L[01] (self|effrank)\..*"
)


def cells(settings: list[data.Records]) -> None:
    """The quoted cells of every setting, each with its interval, its values by seed, the paper's.

    Then how many claims have each verdict.
    """
    known = {each.label: each.columns for each in tables.PAPER}
    for records_of in settings:
        found = table.cells([records_of], tables.PAPER)
        for cell in found.to_dict("records"):
            key = " ".join((cell["table"], cell["row"], cell["column"]))
            if cell["status"] == "ok" and cell["statistic"] != "sd" and QUOTED.fullmatch(key):
                form, unit = known[cell["table"]][cell["column"]].format, cell["unit"]
                names = ("value", "low", "high")
                value, low, high = (number_text(cell[name], form, unit) for name in names)
                ends = "" if pd.isna(cell["low"]) else f"95% {low} to {high}, "
                seeds = ", ".join(number_text(each, form) for each in cell["by_seed"].values())
                told = cell["text"] or f"{value} ({ends}n = {cell['n']}) {seeds}"
                printed = f"; the paper: {cell['paper']}" if cell["paper"] else ""
                print(f"{cell['setting']} {key}: {told}{printed}")
        judged = claims.judge(found, records_of)
        for verdict in dict.fromkeys(one.verdict for one in judged):
            own = [one for one in judged if one.verdict == verdict]
            unsure = sum(bool(one.not_established) for one in own)
            name = records_of.setting.name
            print(f"{name} claims {verdict}: {len(own)} of {len(judged)}, not established {unsure}")


def variants(runs: pd.DataFrame) -> None:
    """Final NLL of every variant less Full Relation's, and less MHA's, of the same seed."""
    for key, own in runs.groupby(["campaign", "variation", "scale"]):
        wide = own.pivot_table("final_nll", "seed", "variant")
        for variant in wide.columns.difference(["full", "mha"]):
            for under in {"full", "mha"} & set(wide):
                less(f"{'/'.join(key)}: {variant} - {under}", wide[variant] - wide[under])
        if {"full", "mha"} < set(wide):
            less(f"{'/'.join(key)}: full - mha", wide["full"] - wide["mha"])


def less(name: str, differences: pd.Series) -> None:
    """Print the mean of differences by seed, with its interval."""
    found = differences.dropna()
    if len(found):
        values = ", ".join(number_text(each, "+.4f") for each in found) if len(found) < 4 else ""
        print(f"{name}: {signed(stats.mean(found))}, n = {len(found)}; {values}")


def settings_apart(runs: pd.DataFrame, flow: pd.DataFrame) -> None:
    """What the settings of `books` do to each variant: NLL, and Self flow of the first layer."""
    key = ["scale", "variant"]
    ends = runs.pivot_table("final_nll", [*key, "seed"], "variation")
    first = flow[(flow["metric"] == "self_flow") & (flow["layer"] == 0)]
    first = stats.pooled(first, [*key, "seed", "variation"])
    first = 100 * first.pivot_table("value", [*key, "seed"], "variation")
    for what, wide in (("NLL", ends), ("points of Self flow in layer 0", first)):
        for over, under in (("nearest", "gpt2"), ("residual", "nearest"), ("residual", "gpt2")):
            for name, own in (wide[over] - wide[under]).groupby(level=key):
                less(f"{what}, {'/'.join(name)}, {over} - {under}", own)
    for variant, own in ends.loc["10M"].query("seed >= 45").groupby(level="variant"):
        apart = own["nearest"].mean() - own["gpt2"].mean()
        print(f"NLL, 10M/{variant}, means of all further seeds, nearest - gpt2: {apart:+.4f}")
    theirs = [paper.number("app-hybrid", "mean", "nll", "mean")]
    theirs += [paper.number("main-results", "30M", "mha_nll", "mean")]
    print(f"the paper, 30M: hybrid - mha: {theirs[0] - theirs[1]:+.4f}")


def training(runs: pd.DataFrame, losses: pd.DataFrame, probes: pd.DataFrame) -> None:
    """Relation − MHA early at 30M, and the gradient of a parameter of MHA."""
    seen = probes[(probes["metric"] == "validation_nll") & (probes["scale"] == "30M")]
    for variation, own in seen.groupby("variation"):
        wide = own.pivot_table("value", "tokens", ["variant", "seed"])
        apart = wide["full"] - wide["mha"]
        for share in (0.1, 0.25):
            at = min(apart.index, key=lambda tokens: abs(tokens - share * apart.index.max()))
            less(f"30M/{variation}, validation NLL after {share:.0%}, full - mha", apart.loc[at])
    counts = runs.drop_duplicates(["scale", "variant"]).set_index(["scale", "variant"])
    norms = losses[losses["variant"] == "mha"].groupby(["scale", "variation"])["gradient_norm"]
    for (scale, variation), norm in norms.median().items():
        rms = norm / counts.loc[(scale, "mha"), "parameters"] ** 0.5
        print(f"{scale}/{variation}, MHA: median RMS of a parameter's gradient {rms:.2g}")
    more = counts.loc[("30M", "hybrid"), "parameters"] / counts.loc[("30M", "mha"), "parameters"]
    print(f"parameters, Hybrid / MHA at 30M: {more:.3f}")


def whole_budget(books: dict[str, pd.DataFrame]) -> None:
    """The 100M pair: Relation − MHA while it trains, what epochs do, and four GPUs beside one."""
    kinds = ("runs", "probes", "losses")
    runs, probes, losses = (books[kind].query("scale == '100M'") for kind in kinds)
    seen = probes[probes["metric"] == "validation_nll"]
    wide = seen.pivot_table("value", "tokens", ["variant", "seed"])
    apart = (wide["full"] - wide["mha"]).mean(axis=1)
    share = apart.index / apart.index[-1]
    told = (f"{part:.0%} {value:+.4f}" for part, value in zip(share, apart, strict=True))
    print("100M, validation NLL, Relation − MHA by share of the tokens:", ", ".join(told))
    alone = books["steps"].query("benchmark == 'matched' and variation == 'nearest'")
    alone = alone.query("scale == '100M'").set_index(["variant", "backend"])["tokens_per_second"]
    for run in runs.to_dict("records"):
        own = losses[(losses["variant"] == run["variant"]) & (losses["seed"] == run["seed"])]
        last = own["loss"].tail(len(own) // 100).mean()
        rate, one = run["median_tokens_per_second"], alone[run["variant"], run["backend"]]
        print(
            f"100M/{run['variant']}/{run['seed']}: validation less training loss of the last 1% "
            f"{run['final_nll'] - last:+.4f}; {rate:,.0f} tokens/s on {run['processes']:.0f} GPUs, "
            f"{rate / one / run['processes']:.3f} of as many times one"
        )


def search(runs: pd.DataFrame) -> None:
    """The search for rates: arms at the rate of 1.41e-3, on the seeds that all of them have."""
    own = runs[runs["variation"] == "rate-1.41"].pivot_table("final_nll", "seed", "variant")
    for variant, mean in own.dropna().mean().items():
        print(f"fair, 10M at 1.41e-3, seeds {list(own.dropna().index)}: {variant} {mean:.4f}")


def recall(rows: pd.DataFrame) -> None:
    """The share of queries answered at the chosen rate, seed by seed."""
    rows = rows[rows["chosen"].fillna(False).astype(bool)]
    sums = rows.groupby(["mixer", "width", "length", "seed"])[["right", "queries"]].sum()
    shares = (sums["right"] / sums["queries"]).unstack()
    print(shares.to_string(float_format="{:.3f}".format))


def counts() -> None:
    """Runs and pairs of every campaign, and how many come from a tree with changes."""
    for path in sorted(PUBLISHED.glob("*/runs.parquet")):
        runs = records.read(path, "runs")
        pairs = runs.pivot_table("hash", ["scale", "variation", "seed"], "variant", aggfunc="size")
        paired = len(pairs[["full", "mha"]].dropna())
        changed = runs["commit"].str.contains("changes").sum()
        told = f"{len(runs)} runs, {paired} pairs, {changed} with uncommitted changes"
        print(f"{path.parent.name}: {told}")
        read = (runs["trained_tokens"] / runs["epochs"]).groupby(runs["corpus_fingerprint"]).max()
        print(f"  training tokens of its corpora: {', '.join(f'{each:,.0f}' for each in read)}")
        names = ["scale", "variation"] if path.parent.name == "books" else ["scale"]
        for key, own in pairs[["full", "mha"]].dropna().groupby(level=names):
            print(f"  {key}: {len(own)} pairs")


def lengths(rows: pd.DataFrame) -> None:
    """What longer windows cost, by octave of the trained length."""
    run = ["variation", "scale", "variant", "seed"]
    wide = rows.pivot_table(["nll", "count"], [*run, "first"], "reading")
    more = (wide["nll", "whole"] - wide["nll", "apart"]).rename("value").reset_index()
    more["count"] = wide["count", "whole"].to_numpy()
    context = more["scale"].map({"10M": 1024, "30M": 2048, "100M28pc": 4096, "100M": 4096})
    for times in (1, 2, 4):
        own = more[(more["first"] >= times * context) & (more["first"] < 2 * times * context)]
        for key, group in stats.pooled(own, run).groupby(run[:3]):
            told = signed(stats.mean(group["value"]), "+.3f")
            name = f"long texts {'/'.join(key)}, {times} to {2 * times} T"
            print(f"{name}: {told}, n = {len(group)}")


def readings(values: pd.DataFrame) -> None:
    """Relation − MHA of the readings with several pairs, and by whether the first layer anchors.

    values: `study.reading_values`. The groups have whole books and the paper's learning rate.
    """
    for variation, own in values.groupby("variation"):
        less(variation, own["apart"])
        ranks = own[["rank_full", "rank_mha"]].mean()
        print(f"{variation}, L0 rank: {ranks.iloc[0]:.0f} / {ranks.iloc[1]:.0f}")
    own = values[~values["variation"].str.contains("short|lr-")]
    for anchored, group in own.groupby(own["self0"] >= 0.2):
        won, second = (group["apart"] < 0).sum(), group["self1"]
        first = group.groupby("variation")["self0"].mean()
        print(
            f"{'20% or more' if anchored else 'less'} Self flow in layer 0: {won} of {len(group)} "
            f"won, mean {group['apart'].mean():+.4f}; ρ {group['rho'].min():.3f} to "
            f"{group['rho'].max():.3f}; layer 0 keeps {first.min():.1%} to {first.max():.1%} "
            f"in the mean of a reading, layer 1 of a pair {second.min():.1%} to {second.max():.1%}"
        )


def main() -> None:
    """Print all of them."""
    books, tried = (records.load(PUBLISHED / name) for name in ("books", "readings"))
    campaigns = [plan.load({"campaign": name}) for name in ("books", "anchor")]
    cells([data.load(column) for campaign in campaigns for column in campaign.columns])
    counts()
    for runs in (books["runs"], tried["runs"], records.load(PUBLISHED / "anchor")["runs"]):
        variants(runs)
    settings_apart(books["runs"], books["flow"])
    training(books["runs"], books["losses"], books["probes"])
    whole_budget(books)
    search(records.load(PUBLISHED / "fair")["runs"])
    lengths(books["lengths"])
    recall(books["recall"])
    readings(study.reading_values(tried))
    with TemporaryDirectory() as figures:
        for section in study.sections(PUBLISHED, Path(figures)):
            if section.table is not None:
                print(section.name, section.table.to_string(index=False), sep="\n")
            if section.summary:
                print(section.summary)


if __name__ == "__main__":
    main()
