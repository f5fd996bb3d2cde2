"""Prints the numbers of README and docs/replication.md from the shipped records.

`python -m report.findings`; each line names the rows that it rests on.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from relation import plan, records
from relation.variants import PAIRED
from report import claims, data, overview, paper, readings, stats, study, table, tables
from report.figures.style import signed
from report.render import number

PUBLISHED = Path("results/published")
# Cells of the tables that the pages quote: table, row and column.
QUOTED = (
    r"app-nll .*(mean|further) .*|efficient-relation .* (matched|peers.other)_?.?ratio"
    r"|main-results .* (token_reduction|epochs)|app-ablation .* delta|app-configs .* params.*"
    r"|relation_internal .* (l0_self|l2_exchange).full"
    r"|app-structural-layerwise .*L[01] (self|effrank)\..*"
)
SHOWN = ["table", "row", "column", "value", "low", "high", "n", "paper", "text", "by_seed"]


def less(name: str, differences: pd.Series, form: str = "+.4f") -> None:
    """Print the mean of differences by seed, with its interval, and few of them one by one."""
    found = differences.dropna()
    if len(found):
        values = ", ".join(number(each, form) for each in found) if len(found) < 4 else ""
        print(f"{name}: {signed(stats.mean(found), form)}, n = {len(found)}; {values}")


def cells(settings: list[data.Records]) -> None:
    """The quoted cells of every setting, and how many claims have each verdict."""
    for of in settings:
        found = table.cells([of], tables.PAPER)
        named = found["table"] + " " + found["row"] + " " + found["column"]
        kept = named.str.fullmatch(QUOTED) & (found["status"] == "ok")
        rows = found[kept & (found["statistic"] != "sd")]
        seeds = rows["by_seed"].map(lambda own: " ".join(f"{each:.4f}" for each in own.values()))
        print(of.setting.name, "claims and cells:")
        print(
            rows.assign(by_seed=seeds)[SHOWN].to_string(index=False, float_format="{:.6f}".format)
        )
        for verdict, count, unsure in overview.tally(claims.judge(found, of)):
            print(f"{of.setting.name} claims {verdict}: {count}, not established {unsure}")
        for row in overview.differences(of.runs):
            told = signed(row["final_nll"]), signed(row["bits"], "+.5f")
            print(f"{of.setting.name} {row['own_scale']}, full - mha, nat/token, bits:", *told)


def variants(runs: pd.DataFrame) -> None:
    """Final NLL on the seeds that all variants have, and less MHA's and less Full Relation's."""
    searches = runs["campaign"].ne("fair") | runs["variation"].str.startswith("rate")
    # The study prints the others: Welch's, over all fresh seeds, a divergence counted.
    for key, own in runs[searches].groupby(["campaign", "variation", "scale"]):
        wide = own.pivot_table("final_nll", "seed", "variant")
        common = wide.dropna()
        told = ", ".join(f"{name} {mean:.4f}" for name, mean in common.mean().items())
        print(f"{'/'.join(key)}, {data.counted(len(common), 'seed')} that all have: {told}")
        for under in ("mha", "full"):
            for variant in wide if under in wide else ():
                if variant != "mha" and variant != under:
                    less(f"{'/'.join(key)}: {variant} - {under}", wide[variant] - wide[under])


def settings_apart(runs: pd.DataFrame, flow: pd.DataFrame) -> None:
    """What the settings of `books` do to each variant: NLL, and Self flow of the first layer."""
    key = ["scale", "variant"]
    ends = runs.pivot_table("final_nll", [*key, "seed"], "variation")
    first = flow.query("metric == 'self_flow' and layer == 0")
    first = stats.pooled(first, [*key, "seed", "variation"])
    first = 100 * first.pivot_table("value", [*key, "seed"], "variation")
    for what, wide in (("NLL", ends), ("points of Self flow in layer 0", first)):
        for over, under in (("nearest", "gpt2"), ("residual", "nearest"), ("residual", "gpt2")):
            for name, own in (wide[over] - wide[under]).groupby(level=key):
                less(f"{what}, {'/'.join(name)}, {over} - {under}", own)
    for variant, own in ends.loc["10M"].query("seed >= 45").groupby(level="variant"):
        apart = own["nearest"].mean() - own["gpt2"].mean()
        print(f"NLL, 10M/{variant}, means of all further seeds, nearest - gpt2: {apart:+.4f}")
    theirs = paper.number("app-hybrid", "mean", "nll", "mean")
    theirs -= paper.number("main-results", "30M", "mha_nll", "mean")
    print(f"the paper, 30M: hybrid - mha: {theirs:+.4f}")


def training(books: dict[str, pd.DataFrame]) -> None:
    """Relation − MHA while it trains, gradients, what epochs do, and four GPUs beside one."""
    runs, losses, key = books["runs"], books["losses"], ["scale", "variation"]
    seen = books["probes"].query("metric == 'validation_nll'")
    for name, own in seen[seen["scale"].isin(["30M", "100M"])].groupby(key):
        wide = own.pivot_table("value", "tokens", ["variant", "seed"])
        apart = wide["full"] - wide["mha"]
        for tokens in apart.index:
            share = f"{tokens / apart.index[-1]:.0%}"
            less(f"{'/'.join(name)}, validation NLL after {share}, full - mha", apart.loc[tokens])
    sizes = runs.drop_duplicates(["scale", "variant"]).set_index(["scale", "variant"])["parameters"]
    norms = losses[losses["variant"] == "mha"].groupby(key)["gradient_norm"].median()
    for (scale, variation), norm in norms.items():
        rms = norm / sizes[scale, "mha"] ** 0.5
        print(f"{scale}/{variation}, MHA: median RMS of a parameter's gradient {rms:.2g}")
    print(f"parameters, Hybrid / MHA at 30M: {sizes['30M', 'hybrid'] / sizes['30M', 'mha']:.3f}")
    alone = books["steps"].query("benchmark == 'matched' and variation == 'nearest'")
    alone = alone.query("scale == '100M'").set_index(["variant", "backend"])["tokens_per_second"]
    for run in runs.query("scale == '100M'").to_dict("records"):
        own = losses.query(
            f"scale == '100M' and variant == @run['variant'] and seed == {run['seed']}"
        )
        last = own["loss"].tail(len(own) // 100).mean()
        rate, one = run["median_tokens_per_second"], alone[run["variant"], run["backend"]]
        print(
            f"100M/{run['variant']}/{run['seed']}: validation less training loss of the last 1% "
            f"{run['final_nll'] - last:+.4f}; {rate:,.0f} tokens/s on {run['processes']:.0f} GPUs, "
            f"{rate / one / run['processes']:.3f} of as many times one"
        )


def counts() -> None:
    """Runs and pairs of every campaign, and how many come from a tree with changes."""
    for path in sorted(PUBLISHED.glob("*/runs.parquet")):
        runs = records.read(path, "runs")
        changed = runs["commit"].str.contains("changes").sum()
        print(f"{path.parent.name}: {len(runs)} runs, {changed} with uncommitted changes; pairs:")
        own = runs[runs["variant"].isin(PAIRED)].groupby(["scale", "variation", "seed"])
        pairs = (own["variant"].nunique() == 2).groupby(level=["scale", "variation"]).sum()
        print(pairs.to_string(header=False), pairs.sum(), sep="\nall ")
        read = (runs["trained_tokens"] / runs["epochs"]).groupby(runs["corpus_fingerprint"]).max()
        print(f"training tokens of its corpora: {', '.join(f'{each:,.0f}' for each in read)}")


def lengths(rows: pd.DataFrame) -> None:
    """What longer windows cost, by octave of the trained length."""
    run, more = ["variation", "scale", "variant", "seed"], data.longer(rows)
    context = more["scale"].map({"10M": 1024, "30M": 2048, "100M28pc": 4096, "100M": 4096})
    for times in (1, 2, 4):
        own = more[(more["first"] >= times * context) & (more["first"] < 2 * times * context)]
        for key, group in stats.pooled(own, run).groupby(run[:3]):
            less(f"long texts {'/'.join(key)}, {times} to {2 * times} T", group["value"], "+.3f")


def by_anchor(values: pd.DataFrame) -> None:
    """Relation − MHA of the readings with several pairs, and by whether the first layer anchors.

    values: `readings.values`. The groups have whole books and the paper's learning rate.
    """
    for variation, own in values.groupby("variation"):
        less(variation, own["apart"])
    print(values.groupby("variation")[["rank_full", "rank_mha"]].mean().round().to_string())
    own = values[~values["variation"].str.contains("short|lr-")]
    for anchored, group in own.groupby(own["self0"] >= 0.2):
        print("20% or more" if anchored else "less than 20%", "Self flow in layer 0:", end=" ")
        print(f"{(group['apart'] < 0).sum()} pairs won; layer 0 in the mean of a reading:", end=" ")
        print(group.groupby("variation")["self0"].mean().agg(["min", "max"]).to_list())
        print(group[["apart", "rho", "self1"]].agg(["mean", "min", "max"]).to_string())


def main() -> None:
    """Print all of them."""
    books, tried = (records.load(PUBLISHED / name) for name in ("books", "readings"))
    campaigns = [plan.load({"campaign": name}) for name in ("books", "anchor")]
    cells([data.load(column) for campaign in campaigns for column in campaign.columns])
    counts()
    for name in ("books", "readings", "anchor", "fair"):
        variants(records.load(PUBLISHED / name)["runs"])
    settings_apart(books["runs"], books["flow"])
    training(books)
    lengths(books["lengths"])
    shares = data.recalled(books["recall"]).unstack()
    print(shares.to_string(float_format="{:.3f}".format))
    by_anchor(readings.values(tried))
    with TemporaryDirectory() as figures:
        for section in study.sections(PUBLISHED, Path(figures)):
            print(section.name, section.summary)
            if section.table is not None:
                print(section.table.drop(columns="", errors="ignore").to_string(index=False))


if __name__ == "__main__":
    main()
