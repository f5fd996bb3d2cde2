"""How far readings can be told apart: one deviation between seeds a statistic, pooled over all.

`docs/readings.md` states the rules in words.
"""

import math

import numpy as np
import pandas as pd
from scipy.special import stdtr

from relation.errors import InputError
from report.values.readings import BY_NAME, Statistic
from report.values.statistics import back, forward, pooled_deviation, t_quantile

LEVEL = 0.05
# Nullable, so that what is not known stays apart from what is not so.
_TYPES = {
    "statistic": "object", "claim": "Int64", "reading": "object", "n": "int64",
    "mean": "float64", "low": "float64", "high": "float64",
    "holds": "boolean", "established": "boolean", "paper_inside": "boolean",
    "difference": "float64", "se": "float64",
    "difference_low": "float64", "difference_high": "float64", "p": "float64",
}  # fmt: skip


def compare(values: pd.DataFrame, base: str) -> pd.DataFrame:
    """Every statistic of every reading, held to the paper and to one reading, the base.

    Means, differences and errors are taken on the statistic's scale. All pairs count as
    independent. Runs of a seed read the same windows: the error is too large where that moves both
    readings alike. Where two readings share MHA's runs M, the difference of F - M is that of F
    alone, with 2 var F / n in place of 2 (var F + var M - 2 cov) / n: too large an error unless
    the correlation of a pair exceeds sd(M) / (2 sd(F)).

    Args:
        values: (statistic, reading, seed, value), as `pair_values` gives them; base: a reading.

    Returns:
        A row a statistic and reading, readings in the order of their first rows: statistic, claim,
        reading, n; mean, low, high in the statistic's unit, with the 95% interval; holds, whether
        the mean lies on the paper's side (NA where the paper has none), established, whether the
        whole interval does or does not, paper_inside; difference, difference_low, difference_high
        and se, less the base on the statistic's scale (of log: log ratios, of logit: log odds
        ratios); p, two-sided; p_holm, over all contrasts of the claim; told_apart, whether p_holm
        is below LEVEL; turns, whether it is told apart and holds is not the base's.

        What needs an interval is missing where no two pairs of a reading differ, or the statistic
        is only counted. The base, and a statistic that it lacks or that is only counted, have no
        contrast.

    Raises:
        InputError: for a statistic that is not in STATISTICS, or a value that its scale lacks.
    """
    unknown = sorted(set(values["statistic"]) - set(BY_NAME))
    if unknown:
        raise InputError(f"readings: no statistic is called {unknown[0]!r}; see STATISTICS")
    groups = dict(iter(values.groupby("statistic")))
    rows = [
        row
        for name, statistic in BY_NAME.items()
        if name in groups
        for row in _compared(statistic, groups[name], base)
    ]
    frame = pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)
    frame["p_holm"] = frame.groupby("claim", dropna=False)["p"].transform(holm).astype(float)
    contrasted = frame["difference"].notna()
    # A comparison with NaN is false: what has no test is not told apart.
    frame["told_apart"] = frame["p_holm"].lt(LEVEL).astype("boolean").where(contrasted)
    answers = frame[frame["reading"] == base].set_index("statistic")["holds"]
    before = frame["statistic"].map(answers).astype("boolean")
    known = frame["holds"].notna() & before.notna() & contrasted
    frame["turns"] = (frame["told_apart"] & (frame["holds"] != before)).where(known)
    return frame


def _compared(statistic: Statistic, rows: pd.DataFrame, base: str) -> list[dict]:
    """The rows of one statistic, in the order of its readings."""
    on_scale = pd.Series(
        forward(statistic.transform, rows["value"], statistic.title), index=rows.index
    )
    sd, freedom = pooled_deviation(on_scale, rows["reading"])
    if not (statistic.tested and sd > 0):
        sd = math.nan
    quantile = t_quantile(freedom)
    groups = {name: own for name, own in on_scale.groupby(rows["reading"], sort=False)}
    found = []
    for reading, own in groups.items():
        centre, margin = own.mean(), quantile * sd / math.sqrt(len(own))
        low, mean, high = (
            float(back(statistic.transform, end))
            for end in (centre - margin, centre, centre + margin)
        )
        holds, told, inside = _direction(statistic, mean, own), None, None
        if not math.isnan(sd):
            if holds is not None:
                told = holds == statistic.holds(low) == statistic.holds(high)
            if statistic.paper is not None:
                inside = low <= statistic.paper <= high
        row = {
            "statistic": statistic.name, "claim": statistic.claim, "reading": reading,
            "n": len(own), "mean": mean, "low": low, "high": high,
            "holds": holds, "established": told, "paper_inside": inside,
        }  # fmt: skip
        if statistic.tested and base in groups and reading != base:
            difference = centre - groups[base].mean()
            se = sd * math.sqrt(1 / len(own) + 1 / len(groups[base]))
            row |= {
                "difference": difference, "se": se,
                "p": 2 * stdtr(freedom, -abs(difference / se)),
                "difference_low": difference - quantile * se,
                "difference_high": difference + quantile * se,
            }  # fmt: skip
        found.append(row)
    return found


def _direction(statistic: Statistic, mean: float, pairs: pd.Series) -> bool | None:
    """Whether the mean, and where asked more than half of the pairs, lie on the paper's side."""
    holds = statistic.holds(mean)
    if not holds or not statistic.majority:
        return holds
    return sum(statistic.holds(float(v)) for v in back(statistic.transform, pairs)) > len(pairs) / 2


def holm(p: pd.Series) -> pd.Series:
    """Holm's adjusted p of one family; NaN stays and counts for nothing."""
    ordered = p.dropna().sort_values()
    factors = np.arange(len(ordered), 0, -1)
    return (ordered * factors).cummax().clip(upper=1.0).reindex(p.index)
