"""The fair comparison by the rules of docs/preregistration.md: rates, differences and verdicts.

In campaign `fair`, variations `rate-...` and `rate30-...` search for each arm's learning rate.
The runs that compare arms are in `tuned`, in `tuned-...` (other scales or seeds), in `long` and in
`small-updates`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from relation.variants import ARMS, PAIRED
from report import stats
from report.data import counted

MARGIN = 0.01  # nat/token; arms within this difference count as equivalent
FRESH, EVERY_ARM = range(200, 248), 216  # primary arms: all of FRESH; other arms: below 216
DIVERGED = 0.5  # nat/token above the arm's median at its rate: diverged
TUNED = "tuned"
RUN = ["scale", "variation", "variant", "seed"]


def runs_of(runs: pd.DataFrame, scale: str, variation: str = TUNED) -> pd.DataFrame:
    """Return a variation's runs at one scale, with those of variations such as tuned-further."""
    matches = runs["variation"].str.fullmatch(f"{variation}(-.*)?")
    return runs[(runs["scale"] == scale) & matches]


def with_last_loss(runs: pd.DataFrame, probes: pd.DataFrame) -> pd.DataFrame:
    """Add `nll` for comparisons: the final NLL, or the last finite one of a run that stopped.

    Also adds `diverged`: the run stopped, or ended far above the median of its arm at its rate.
    """
    finite = probes[(probes["metric"] == "validation_nll") & np.isfinite(probes["value"])]
    last_nll = finite.sort_values("update").groupby(RUN)["value"].last()
    last_nll = last_nll.reindex(pd.MultiIndex.from_frame(runs[RUN])).to_numpy(float)
    kind = runs["variation"].str.split("-").str[0].rename("kind")
    same_rate = runs.groupby([kind, "scale", "variant", "learning_rate"])
    far_above = runs["final_nll"] > same_rate["final_nll"].transform("median") + DIVERGED
    nll = runs["final_nll"].fillna(pd.Series(last_nll, runs.index))
    return runs.assign(nll=nll, diverged=far_above | runs["final_nll"].isna())


def best_rate(runs: pd.DataFrame) -> tuple[float | None, float]:
    """Return an arm's learning rate by docs/preregistration.md and its fitted NLL.

    The rate is None while it is open. runs: as `with_last_loss` returns, of one arm at 10M or 30M.
    The fit is NLL = a x² + b x + c, x = log rate, with its minimum at -b / 2a. Without a minimum
    (a <= 0), the rate with the lowest mean is taken.
    """
    by_rate = runs.groupby("learning_rate")
    means = by_rate["final_nll"].mean().where(~by_rate["diverged"].any(), math.inf)
    near, lowest, seeds = means.index, int(np.argmin(means)), by_rate["seed"].nunique()
    if (runs["scale"] == "30M").all():
        is_open = len(near) != 3 or math.isinf(means.min())
    else:
        too_few = len(near) < 5 or seeds.min() < 2
        near = near[max(lowest - 1, 0) : lowest + 2]  # two rates at an edge
        is_open = too_few or len(near) < 3 or seeds[near].min() < 4
    if is_open:
        return None, math.nan
    fitted_runs = runs[runs["learning_rate"].isin(near)].dropna(subset="final_nll")
    x = np.log(fitted_runs["learning_rate"])
    fit = np.polyfit(x, fitted_runs["final_nll"], 2) if x.nunique() == 3 else np.zeros(3)
    if fit[0] <= 0:
        return float(means.index[lowest]), float(means.iloc[lowest])
    log_rate = np.clip(-fit[1] / (2 * fit[0]), math.log(near[0]), math.log(near[-1]))
    return float(f"{math.exp(log_rate):.3g}"), float(np.polyval(fit, log_rate))


def fitted_rates(runs: pd.DataFrame) -> dict[str, tuple[float | None, float]]:
    """Return `best_rate` of every arm with a search at 10M."""
    searched = runs[runs["variation"].str.startswith("rate") & (runs["scale"] == "10M")]
    return {name: best_rate(arm_runs) for name, arm_runs in searched.groupby("variant")}


def primary_pairs(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the primary comparisons: Relation − MHA, best Relation − best attention ("": open)."""
    best, fits = [], fitted_rates(runs)
    fits.pop("mha-self", None)  # the control is neither attention nor Relation
    for kind in PAIRED[::-1]:
        kind_fits = {name: fit for name, fit in fits.items() if name.startswith(kind)}
        is_open = not kind_fits or any(rate is None for rate, _ in kind_fits.values())
        best.append("" if is_open else min(kind_fits, key=lambda name: kind_fits[name][1]))
    return list(dict.fromkeys([PAIRED[::-1], tuple(best)]))


@dataclass(frozen=True)
class Comparison:
    """One arm minus another. welch: Welch's estimate, which decides. paired: over the common seeds.
    undiverged: Welch's without diverged runs. seeds: the number of seeds of each arm, as text."""

    seeds: str
    common: pd.Index
    welch: stats.Estimate
    paired: stats.Estimate
    undiverged: stats.Estimate


def compare_arms(
    runs: pd.DataFrame, over: str, under: str, end: float = math.inf
) -> Comparison | None:
    """Compare two arms on seeds below `end`; None if one has none. runs: `with_last_loss`."""
    runs = runs[runs["seed"] < end].set_index("seed")
    arms = [runs[runs["variant"] == name] for name in (over, under)]
    if any(arm.empty for arm in arms):
        return None
    nll = [arm["nll"].dropna() for arm in arms]
    return Comparison(
        seeds=" and ".join(dict.fromkeys(str(len(arm)) for arm in arms)),
        common=arms[0].index.intersection(arms[1].index),
        welch=stats.welch(*nll),
        paired=stats.mean((nll[0] - nll[1]).dropna()),
        undiverged=stats.welch(*(arm.loc[~arm["diverged"], "nll"] for arm in arms)),
    )


def comparison_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons at 10M that get a verdict, one row each.

    Columns: family; over and under, two arms ("": not chosen yet); seeds, the number that the
    protocol gives each arm; comparison, a Comparison of the runs so far, or None; lacking, the
    number of comparisons of the family that lack seeds; p and within, the p values of a difference
    and of equivalence after Holm's correction over the family, NaN before all its seeds have run.
    Families: the primary comparisons; every other arm against MHA on the seeds of all arms.
    """
    fresh = runs_of(runs, "10M").query("seed in @FRESH")
    pairs = [("primary", *pair, FRESH.stop) for pair in primary_pairs(runs)]
    pairs += [("minus-mha", name, "mha", EVERY_ARM) for name in ARMS if name != "mha"]
    rows = []
    for family, over, under, end in pairs:
        comparison, seeds = compare_arms(fresh, over, under, end), end - FRESH.start
        complete = comparison is not None and len(comparison.common) == seeds
        p = (comparison.welch.p, comparison.welch.within(MARGIN)) if complete else [math.nan] * 2
        rows.append((family, over, under, seeds, comparison, not complete, *p))
    tests = ["p", "within"]
    names = ["family", "over", "under", "seeds", "comparison", "lacking", *tests]
    table = pd.DataFrame(rows, columns=names)
    table["lacking"] = table.groupby("family")["lacking"].transform("sum")
    table[tests] = table.groupby("family")[tests].transform(stats.holm)
    table.loc[table["lacking"] > 0, tests] = math.nan
    return table


def verdict(row: Any) -> str:
    """Return the protocol's verdict on a row of `comparison_table`. It is open until all seeds of
    its family have run, because Holm's correction needs all p values."""
    if row.comparison is None or len(row.comparison.common) < row.seeds:
        return f"open: {row.comparison.seeds if row.comparison else 0} of {row.seeds} seeds"
    if row.lacking:
        return f"open: waits for {counted(row.lacking, 'comparison')} of its family"
    way = "better" if row.comparison.welch.value < 0 else "worse"
    if row.within < 0.05:
        return f"{way}, by less than {MARGIN}" if row.p < 0.05 else "equivalent"
    return way if row.p < 0.05 else "not established"
