"""The fair comparison by the rules of docs/preregistration.md: rates, differences and verdicts.

In campaign `fair`, variations `rate-...` and `rate30-...` search for each arm's learning rate. All
others compare arms: `tuned-...` at other scales or on more seeds, `rate100-...` at lower rates.
No run diverged, which a test checks, so the rules for divergences are not here.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from relation.errors import InputError
from relation.variants import ARMS
from report import stats

MARGIN = 0.01  # nat/token; arms within this difference count as equivalent
FRESH, EVERY_ARM = range(200, 248), 216  # primary arms: all of FRESH; other arms: below 216
TUNED = "tuned"
# Relation − MHA; best Relation − best attention, by the lowest fitted NLL of the searches.
PRIMARY = (("full", "mha"), ("full-qknorm-gate", "mha-qknorm-gate"))


def runs_of(runs: pd.DataFrame, scale: str, variation: str = TUNED) -> pd.DataFrame:
    """Return a variation's runs at one scale, with those of variations such as tuned-further."""
    named = (runs["variation"] == variation) | runs["variation"].str.startswith(f"{variation}-")
    return runs[(runs["scale"] == scale) & named]


def best_rate(runs: pd.DataFrame) -> tuple[float, float]:
    """Return an arm's learning rate by docs/preregistration.md and its fitted NLL.

    runs: of one arm at one scale. The fit is NLL = a x² + b x + c, x = log rate, over the rate with
    the lowest mean and its two neighbours. It passes through their three means, so its minimum,
    -b / 2a, lies between the neighbours. Raises InputError while the best rate has only one.
    """
    means = runs.groupby("learning_rate")["final_nll"].mean()
    lowest = int(np.argmin(means))
    if lowest in (0, len(means) - 1):
        arm = "/".join(runs.iloc[0][["scale", "variant"]])
        raise InputError(f"{arm} is best at the highest or lowest rate tried; try the next one")
    near = runs[runs["learning_rate"].isin(means.index[lowest - 1 : lowest + 2])]
    fit = np.polyfit(np.log(near["learning_rate"]), near["final_nll"], 2)
    log_rate = -fit[1] / (2 * fit[0])
    return float(f"{math.exp(log_rate):.3g}"), float(np.polyval(fit, log_rate))


@dataclass(frozen=True)
class Comparison:
    """One arm minus another. welch: Welch's estimate, which decides. paired: over the common seeds.
    seeds: the number of seeds of each arm, as text."""

    seeds: str
    common: pd.Index
    welch: stats.Estimate
    paired: stats.Estimate


def compare_arms(
    runs: pd.DataFrame, over: str, under: str, end: float = math.inf
) -> Comparison | None:
    """Compare two arms on seeds below `end`; None if one has none."""
    wide = runs[runs["seed"] < end].pivot_table("final_nll", "seed", "variant")
    if not {over, under} <= set(wide):
        return None
    nll = [wide[name].dropna() for name in (over, under)]
    difference = (wide[over] - wide[under]).dropna()
    return Comparison(
        seeds=" and ".join(dict.fromkeys(str(len(arm)) for arm in nll)),
        common=difference.index,
        welch=stats.welch(*nll),
        paired=stats.mean(difference),
    )


def comparison_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons at 10M that get a verdict: family, over, under, comparison, p, within.

    p and within: the p values of a difference and of equivalence, after Holm's correction over the
    family. Families: the primary comparisons; every arm against MHA on the seeds of all arms.
    """
    fresh = runs_of(runs, "10M")
    pairs = [("primary", *pair, FRESH.stop) for pair in PRIMARY]
    pairs += [("minus-mha", name, "mha", EVERY_ARM) for name in ARMS if name != "mha"]
    table = pd.DataFrame(pairs, columns=["family", "over", "under", "end"])
    table["comparison"] = [compare_arms(fresh, *pair) for _, *pair in pairs]
    table["p"] = [each.welch.p for each in table["comparison"]]
    table["within"] = [each.welch.within(MARGIN) for each in table["comparison"]]
    tests = ["p", "within"]
    table[tests] = table.groupby("family")[tests].transform(stats.holm)
    return table


def verdict(row: Any) -> str:
    """Return the protocol's verdict on a row of `comparison_table`."""
    way = "better" if row.comparison.welch.value < 0 else "worse"
    if row.within < 0.05:
        return f"{way}, by less than {MARGIN}" if row.p < 0.05 else "equivalent"
    return way if row.p < 0.05 else "not established"
