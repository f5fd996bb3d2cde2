"""Prints the numbers of README and docs/replication.md from the shipped records.

`python -m report.findings`; each line names the rows that it rests on.
"""

from pathlib import Path

import pandas as pd

from relation import records
from report import stats, study

PUBLISHED = Path("results/published")
FURTHER = 45  # seeds from here on are further pairs
SETTINGS = (
    ("books/nearest", "nearest", ("10M", "30M", "100M28pc")),
    ("books/gpt2", "gpt2", ("10M", "30M")),
    ("books/residual", "residual", ("30M",)),
)


def interval(values: pd.Series, form: str = "+.4f") -> str:
    """A mean with its 95% t interval and the number of values."""
    low, mean, high = stats.mean_interval(values)
    return f"{mean:{form}} (95% {low:{form}} to {high:{form}}, n = {len(values)})"


def losses(runs: pd.DataFrame, name: str, scales: tuple[str, ...]) -> None:
    """Final NLL of the pairs of a setting, of its matrix and further seeds, and of all variants."""
    for scale in scales:
        wide = runs[runs["scale"] == scale].pivot_table("final_nll", "seed", "variant")
        for label, own in (
            ("seeds 42 to 44", wide[wide.index < FURTHER]),
            ("further seeds", wide[wide.index >= FURTHER]),
        ):
            pairs = own[["mha", "full"]].dropna()
            apart = pairs["full"] - pairs["mha"]
            if len(apart):
                print(f"{name} {scale}, {label}: MHA {pairs['mha'].mean():.4f}, Relation "
                      f"{pairs['full'].mean():.4f}, Relation - MHA {interval(apart)}, "
                      f"{int((apart < 0).sum())} won")  # fmt: skip
        for variant in wide.columns.difference(["mha", "full"]):
            apart = (wide[variant] - wide["full"]).dropna()
            print(f"{name} {scale}: {variant} - Relation {interval(apart)}")


def spared(frames: dict[str, pd.DataFrame]) -> None:
    """Tokens that Relation spares to MHA's final training loss, further pairs at 10M (B.4)."""
    rows = frames["losses"]
    rows = rows[(rows["variation"] == "nearest") & (rows["scale"] == "10M")]
    shares, own = [], []
    for _, pair in rows[rows["seed"] >= FURTHER].groupby("seed"):
        curves = {}
        for variant, log in pair.groupby("variant"):
            tokens = log["tokens"].to_numpy()
            curves[variant] = tokens, stats.smoothed(tokens, log["loss"], 0.01 * tokens[-1])
        target, end = curves["mha"][1][-1], curves["mha"][0][-1]
        reached = stats.crossing(*curves["full"], target)
        shares.append(0.0 if reached is None else 1 - reached / end)
        own.append(1 - stats.crossing(*curves["mha"], target) / end)
    print(f"books/nearest 10M, further seeds: tokens spared {interval(pd.Series(shares), '.1%')}, "
          f"MHA against itself {sum(own) / len(own):.1%}")  # fmt: skip


def layers(frames: dict[str, pd.DataFrame], name: str, variation: str, scales) -> None:
    """Self flow and effective rank of the first two layers, Exchange of the later ones."""
    flow = frames["flow"]
    for scale in scales:
        own = flow[(flow["variation"] == variation) & (flow["scale"] == scale)]
        rows = stats.pooled(own, ["variant", "metric", "layer", "seed"])
        rows = rows.set_index(["variant", "metric", "layer"])["value"].sort_index()
        for layer in (0, 1):
            for variant, metric in (
                ("full", "self_flow"), ("mha", "self_flow"),
                ("full", "effective_rank"), ("mha", "effective_rank"),
            ):  # fmt: skip
                values = rows.loc[[(variant, metric, layer)]]
                form = ".2%" if metric == "self_flow" else ".0f"
                seeds = ", ".join(format(value, form) for value in values)
                print(
                    f"{name} {scale} L{layer} {variant} {metric}: {interval(values, form)}: {seeds}"
                )
        later = own[
            (own["variant"] == "full") & (own["metric"] == "self_flow") & (own["layer"] >= 2)
        ]
        exchange = 1 - stats.pooled(later, ["seed"]).set_index("seed")["value"]
        print(f"{name} {scale} Exchange from L2 on: {interval(exchange, '.2%')}")


def lengths(rows: pd.DataFrame) -> None:
    """What longer windows cost, by octave of the trained length."""
    wide = rows.pivot_table(
        ["nll", "count"], ["variation", "scale", "variant", "seed", "first"], "reading"
    )
    more = (wide["nll", "whole"] - wide["nll", "apart"]).rename("more").reset_index()
    more["count"] = wide["count", "whole"].to_numpy()
    context = more["scale"].map({"10M": 1024, "30M": 2048, "100M28pc": 4096, "100M": 4096})
    for times in (1, 2, 4):
        own = more[(more["first"] >= times * context) & (more["first"] < 2 * times * context)]
        own = own.assign(weighted=own["more"] * own["count"])
        sums = own.groupby(["variation", "scale", "variant", "seed"])[["weighted", "count"]].sum()
        apart = (sums["weighted"] / sums["count"]).groupby(level=[0, 1, 2])
        for key, values in apart:
            print(
                f"long texts {'/'.join(key)}, {times} to {2 * times} T: {interval(values, '+.3f')}"
            )


def speeds(steps: pd.DataFrame) -> None:
    """Rates of whole training steps, FlashRelation's over attention's."""
    rows = steps[(steps["variation"] == "nearest") & (steps["benchmark"] == "matched")]
    for scale, own in rows.groupby("scale"):
        samples = own.set_index("side")["samples"]
        for side in ("mha", "mha-cudnn"):
            ratio = stats.median_ratio(samples["full"], samples[side])
            print(f"matched {scale}: Relation / {side} {ratio.value:.3f} "
                  f"({ratio.low:.3f} to {ratio.high:.3f})")  # fmt: skip


def rates(runs: pd.DataFrame) -> None:
    """The search for learning rates of the fair comparison."""
    for (variant, rate), nll in runs.groupby(["variant", "learning_rate"])["final_nll"]:
        print(f"fair {variant} at {rate:.3g}: {nll.mean():.4f} of {len(nll)}")
    for variant, own in runs.groupby("variant"):
        print(f"fair {variant}: rate {study.best_rate(own)}")


def main() -> None:
    """Print all of them."""
    books = records.load(PUBLISHED / "books")
    for name, variation, scales in SETTINGS:
        losses(books["runs"][books["runs"]["variation"] == variation], name, scales)
        layers(books, name, variation, scales)
    spared(books)
    lengths(books["lengths"])
    speeds(books["steps"])
    rates(records.load(PUBLISHED / "fair")["runs"])
    values = study.reading_values(records.load(PUBLISHED / "readings"))
    for name, own in values.groupby("variation"):
        means = own.drop(columns=["variation", "seed"]).mean()
        print(
            f"reading {name}, {len(own)} pairs:",
            ", ".join(f"{k} {v:.4f}" for k, v in means.items()),
        )


if __name__ == "__main__":
    main()
