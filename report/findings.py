"""Print the numbers of README and docs/replication.md from the shipped records.

Run `python -m report.findings`. Each line names the rows behind its numbers.
"""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from relation import plan, records
from relation.variants import PAIRED
from report import claims, data, fair, overview, paper, readings, stats, study, table, tables
from report.render import number

# Cells of the tables that these pages quote: table, row and column.
QUOTED = (
    r"app-nll .*(mean|further) .*|efficient-relation .* ((matched.|peers.*_)ratio|fixed.speedup)"
    r"|main-results .* (token_reduction|epochs)|app-ablation .* delta|app-configs .* params.*"
    r"|app-prod-fr-fa .* allocated.*"
    r"|relation_internal .* (l0_self|l2_exchange).full"
    r"|app-structural-layerwise .*L[01] (self|effrank)\..*"
)


def print_mean(name: str, differences: pd.Series, form: str = "+.4f") -> None:
    """Print the mean of differences by seed and its interval; fewer than four also one by one."""
    present = differences.dropna()
    if len(present):
        values = ", ".join(number(each, form) for each in present) if len(present) < 4 else ""
        print(f"{name}: {stats.mean(present):{form}}, n = {len(present)}; {values}")


def cells(settings: list[data.Records]) -> None:
    """Print the quoted cells of every setting, and the number of claims with each verdict."""
    for stored in settings:
        shown, name = table.cells([stored], tables.PAPER), stored.setting.name
        keys = shown["table"] + " " + shown["row"] + " " + shown["column"]
        quoted = keys.str.fullmatch(QUOTED) & (shown["status"] == "ok")
        rows = shown.assign(cell=keys)[quoted & (shown["statistic"] != "sd")]
        few = rows["by_seed"].map(lambda values: [*values.values()] if len(values) < 4 else [])
        rows["by_seed"] = few.map(lambda values: " ".join(f"{each:.4f}" for each in values))
        rows = rows[["cell", "value", "low", "high", "n", "paper", "text", "by_seed"]]
        print(f"{name}, cells:\n{rows.to_string(index=False, float_format='{:.6f}'.format)}")
        for verdict, count, unsure in overview.tally(claims.judge(shown, stored)):
            print(f"{name}, claims {verdict}: {count}, not established {unsure}")


def fair_spread(frames: dict[str, pd.DataFrame]) -> None:
    """Print deviations, errors of fitted rates, differences by GPU, gains in equal time."""
    runs, fresh = frames["runs"], fair.runs_of(frames["runs"], "10M")
    print("deviation of final NLL:", fresh.groupby("variant")["final_nll"].std().round(4).to_dict())
    print("passes on 600M tokens:", runs.query("variation == 'long'")["epochs"].unique())
    # The error of the fitted rates, of which no interval knows.
    new = fresh.groupby("variant")["final_nll"].mean()
    search = runs[runs["variation"].str.match("rate-") & (runs["scale"] == "10M")]
    for variant, arm_runs in search.groupby("variant"):
        _, fitted = fair.best_rate(arm_runs)
        print(f"{variant}, new seeds - fitted: {new[variant] - fitted:+.4f}")
    searched = search.pivot_table("final_nll", "learning_rate", "variant")
    print("search - new seeds, by rate:", searched.sub(new).round(4).to_string(), sep="\n")
    print("search, full - mha:", (searched["full"] - searched["mha"]).round(4).to_dict())
    gain = fair.compare_arms(fresh, "full-qknorm-gate", "full").welch
    print(f"full-qknorm-gate - full, new seeds: {gain:+.4f}")
    nll = runs[runs["scale"] == "100M28pc"].pivot_table("final_nll", "variation", "variant")
    print("100M28pc, NLL - at half the rate:", (nll - nll.loc["rate100-0.5"]).round(4), sep="\n")
    for variant in ("full", "mha"):
        fitted = fair.best_rate(runs.query("scale == '100M28pc' and variant == @variant"))
        print(f"100M28pc, {variant}, fitted rate and NLL:", *fitted)
    for device, device_runs in fresh.groupby("device"):
        for over, under in fair.PRIMARY:
            pair = fair.compare_arms(device_runs, over, under)
            print(f"{device}, {over} - {under}, {pair.seeds} seeds: {pair.welch:+.4f}")
    long_runs, mha = fair.runs_of(runs, "10M", "long"), "variant == 'mha'"
    short, long = (each.query(mha)["final_nll"].mean() for each in (fresh, long_runs))
    both = "mha-qknorm-gate"
    for arm_runs, variant in ((fresh, "mha-gate"), (fresh, both), (long_runs, both)):
        speed, _ = study.throughput(frames["steps"], variant, "cudnn")
        fewer_tokens = (short - long) * math.log(1 / speed, 4)
        gain = fair.compare_arms(arm_runs, variant, "mha").welch.value + fewer_tokens
        print(
            f"{variant} - mha in equal time, {arm_runs['budget_tokens'].iloc[0]:,} tokens of MHA, "
            f"if NLL is linear in log tokens: {gain:+.4f}"
        )


def variants(runs: pd.DataFrame) -> None:
    """Print mean final NLL on common seeds, and differences from MHA and from Full Relation."""
    for key, group in runs.groupby(["campaign", "variation", "scale"]):
        wide = group.pivot_table("final_nll", "seed", "variant")
        common = wide.dropna()
        means = ", ".join(f"{name} {mean:.4f}" for name, mean in common.mean().items())
        print(f"{'/'.join(key)}, {data.counted(len(common), 'seed')} that all have: {means}")
        for under in ("mha", "full"):
            for variant in wide if under in wide else ():
                if variant not in ("mha", under):
                    print_mean(f"{'/'.join(key)}: {variant} - {under}", wide[variant] - wide[under])


def settings_apart(runs: pd.DataFrame, flow: pd.DataFrame) -> None:
    """Print how the settings of `books` differ, by variant: NLL, Self flow of the first layer."""
    key = ["scale", "variant"]
    ends = runs.pivot_table("final_nll", [*key, "seed"], "variation")
    first = flow.query("metric == 'self_flow' and layer == 0")
    first = stats.pooled(first, [*key, "seed", "variation"])
    first = 100 * first.pivot_table("value", [*key, "seed"], "variation")
    for what, wide in (("NLL", ends), ("points of Self flow in layer 0", first)):
        for over, under in (("nearest", "gpt2"), ("residual", "nearest"), ("residual", "gpt2")):
            for name, pairs in (wide[over] - wide[under]).groupby(level=key):
                print_mean(f"{what}, {'/'.join(name)}, {over} - {under}", pairs)
    theirs = paper.number("app-hybrid", "mean", "nll", "mean")
    theirs -= paper.number("main-results", "30M", "mha_nll", "mean")
    print(f"the paper, 30M: hybrid - mha: {theirs:+.4f}")
    for scale in paper.SCALES:
        pairs = [paper.number("app-nll", f"{scale}/{seed}", "delta") for seed in paper.SEEDS]
        print(f"the paper, {scale}: full - mha: {stats.mean(pairs):+.4f}")


def first_layer(probes: pd.DataFrame) -> None:
    """Print Self flow and effective rank of the first layer by tokens, as means over seeds."""
    rows = probes.query("layer == 0 and metric in ('self_flow', 'effective_rank')")
    rates = rows["variation"].str.removesuffix("-further")
    for name, group in rows.groupby(["metric", "scale", rates, "variant"]):
        means = group.groupby("tokens")["value"].mean().map("{:.3f}".format).to_dict()
        print(f"layer 0 after so many tokens, {'/'.join(name)}: {means}")


def curves(probes: pd.DataFrame) -> None:
    """Print Relation − MHA in validation NLL after every 5% of the tokens."""
    validated = probes[probes["metric"] == "validation_nll"]
    for name, group in validated.groupby(["scale", "variation"]):
        wide = group.pivot_table("value", "tokens", ["variant", "seed"])
        difference = wide["full"] - wide["mha"]
        for tokens, pairs in difference.iterrows():
            share = f"{tokens / difference.index[-1]:.0%}"
            print_mean(f"{'/'.join(name)}, validation NLL after {share}, full - mha", pairs)


def training(books: dict[str, pd.DataFrame]) -> None:
    """Print facts on training: the first layer, Relation − MHA, overfitting, several GPUs."""
    runs, losses = books["runs"], books["losses"]
    first_layer(books["probes"].query("variant in @PAIRED"))
    curves(books["probes"].query("scale in ('30M', '100M')"))
    sizes = runs.drop_duplicates(["scale", "variant"]).set_index(["scale", "variant"])["parameters"]
    print(f"parameters, Hybrid / MHA at 30M: {sizes['30M', 'hybrid'] / sizes['30M', 'mha']:.3f}")
    bench = books["steps"].query("benchmark == 'matched' and variation == 'nearest'")
    bench = bench.query("scale == '100M'").set_index(["variant", "backend"])["tokens_per_second"]
    logs = losses.query("scale == '100M'").groupby(["variant", "seed"])
    for run in runs.query("scale == '100M'").to_dict("records"):
        log = logs.get_group((run["variant"], run["seed"]))
        last = log["loss"].tail(len(log) // 100).mean()  # of the last 1% of the updates
        rate, bench_rate = run["median_tokens_per_second"], bench[run["variant"], run["backend"]]
        print(
            f"100M/{run['variant']}/{run['seed']}: validation − training loss of the last 1% "
            f"{run['final_nll'] - last:+.4f}; {rate:,.0f} tokens/s on {run['processes']:.0f} GPUs, "
            f"{rate / bench_rate / run['processes']:.3f} of that many single GPUs"
        )
    shorter = runs.query("scale == '100M28pc'").groupby(["variant", "processes"])
    rates = shorter["median_tokens_per_second"].mean().unstack()
    shares = rates.assign(two_of_two_single=rates[2] / rates[1] / 2)
    print("100M28pc, tokens/s by GPUs:", shares.to_string(), sep="\n")


def counts() -> None:
    """Print runs, uncommitted changes, pairs and training tokens of every campaign."""
    for path in sorted(records.PUBLISHED.glob("*/runs.parquet")):
        runs = records.read(path, "runs")
        changed = runs["commit"].str.contains("changes").sum()
        print(f"{path.parent.name}: {len(runs)} runs, {changed} with uncommitted changes; pairs:")
        pair_runs = runs[runs["variant"].isin(PAIRED)].groupby(["scale", "variation", "seed"])
        pairs = (pair_runs["variant"].nunique() == 2).groupby(level=["scale", "variation"]).sum()
        print(pairs.to_string(header=False), pairs.sum(), sep="\nall ")
        tokens = (runs["trained_tokens"] / runs["epochs"]).groupby(runs["corpus_fingerprint"]).max()
        print(f"training tokens of its corpora: {', '.join(f'{each:,.0f}' for each in tokens)}")


def lengths(rows: pd.DataFrame) -> None:
    """Print the cost of long windows, by octave of the trained length."""
    run, costs = ["variation", "scale", "variant", "seed"], stats.length_cost(rows)
    context = costs["scale"].map({"10M": 1024, "30M": 2048, "100M28pc": 4096, "100M": 4096})
    for times in (1, 2, 4):
        octave = costs[(costs["first"] >= times * context) & (costs["first"] < 2 * times * context)]
        for key, group in stats.pooled(octave, run).groupby(run[:3]):
            name = f"long texts {'/'.join(key)}, {times} to {2 * times} T"
            print_mean(name, group["value"], "+.3f")


def without_self(rows: pd.DataFrame) -> None:
    """Print how much NLL rises if the first layer of a trained model loses its Self term."""
    nll = rows[(rows["metric"] == "nll") & ~(rows["layer"] > 0)].fillna({"group": "whole"})
    wide = nll.pivot_table("value", ["variation", "scale", "variant", "seed"], "group")
    for name, rise in (wide["self"] - wide["whole"]).groupby(level=[0, 1, 2]):
        print_mean(f"{'/'.join(name)}: NLL without Self in layer 0, minus NLL", rise)


def by_anchor(values: pd.DataFrame) -> None:
    """Print Relation − MHA of each reading, and for first layers with and without an anchor.

    values: `readings.values`. The two groups have whole books and the paper's learning rate.
    """
    for variation, group in values.groupby("variation"):
        print_mean(variation, group["apart"])
    print(values.groupby("variation")[["rank_full", "rank_mha"]].mean().round().to_string())
    unchanged = values[~values["variation"].str.contains("short|lr-")]
    for anchored, group in unchanged.groupby(unchanged["self0"] >= 0.2):
        print("20% or more" if anchored else "less than 20%", "Self flow in layer 0:", end=" ")
        print(f"{(group['apart'] < 0).sum()} of {len(group)} pairs won, by seed:", end=" ")
        means = group.groupby("variation")["self0"].mean().agg(["min", "max"]).to_list()
        print(group.groupby("seed").size().to_dict(), "means of readings in layer 0:", means)
        print(group[["apart", "rho", "self1"]].agg(["mean", "min", "max"]).to_string())


def main() -> None:
    """Print all findings."""
    campaigns = [plan.load({"campaign": name}) for name in ("books", "anchor")]
    settings = [data.load(column, campaign=each) for each in campaigns for column in each.columns]
    with TemporaryDirectory() as figures:
        sections = study.sections(Path(figures), settings)  # the fair comparison first
    for section in (each for each in sections if each.table is not None):
        print(f"Study, {section.name}.")
        print(section.table.drop(columns="", errors="ignore").to_string(index=False))
    names = ("fair", "books", "readings")
    tuned, books, trials = (records.load(records.PUBLISHED / name) for name in names)
    fair_spread(tuned)
    first_layer(tuned["probes"].query("variation.str.match('tuned|rate-2|rate100')"))
    curves(tuned["probes"].query("variation in ('long', 'tuned-100M28pc')"))
    cells(settings)
    counts()
    for name in ("books", "readings", "anchor", "conversion"):
        variants(records.load(records.PUBLISHED / name)["runs"])
    settings_apart(books["runs"], books["flow"])
    training(books)
    lengths(books["lengths"])
    shares = stats.recall_shares(books["recall"]).unstack()
    print(shares.to_string(float_format="{:.3f}".format))
    by_anchor(readings.values(trials))
    without_self(books["self_use"])
    repeated = books["copying"].query("metric == 'repeat_accuracy'")["value"].max()
    print(f"repeated random tokens: a run predicts at most {repeated:.4f} of them")


if __name__ == "__main__":
    main()
