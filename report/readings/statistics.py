"""How far readings can be told apart: one deviation between seeds a statistic, pooled over all.

Means, differences and errors are taken on a statistic's own scale (`Statistic.transform`); means
and intervals are given back in its unit. `docs/readings.md` states the rules in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from relation.errors import InputError
from report.readings.scales import back, forward, pooled_deviation
from report.readings.student import quantile_975, two_sided
from report.readings.values import BY_NAME, Statistic

LEVEL = 0.05


def pooled(values: pd.DataFrame) -> pd.DataFrame:
    """The between-seed deviation of each statistic.

    Args:
        values: (statistic, reading, seed, value), as `pair_values` gives them.

    Returns:
        A row a statistic: statistic, sd on its scale, freedom. sd is NaN and freedom 0 where no
        reading has two pairs.
    """
    rows = [
        {"statistic": statistic.name, "sd": sd, "freedom": freedom}
        for statistic, own in _by_statistic(values)
        for sd, freedom in [pooled_deviation(own["value"], own["reading"])]
    ]
    return pd.DataFrame(rows, columns=["statistic", "sd", "freedom"])


def _by_statistic(values: pd.DataFrame) -> list[tuple[Statistic, pd.DataFrame]]:
    """The rows of each statistic, its values on its scale."""
    groups = dict(iter(values.groupby("statistic")))
    unknown = sorted(set(groups) - set(BY_NAME))
    if unknown:
        raise InputError(f"readings: no statistic is called {unknown[0]!r}; see STATISTICS")
    return [
        (s, groups[name].assign(value=forward(s.transform, groups[name]["value"], s.title)))
        for name, s in BY_NAME.items()
        if name in groups
    ]


def intervals(values: pd.DataFrame) -> pd.DataFrame:
    """Every statistic of every reading: mean, 95% interval, and what they say of the paper.

    Args:
        values: (statistic, reading, seed, value).

    Returns:
        A row a statistic and reading, readings in the order of their first rows: statistic, claim,
        reading, n, mean, low, high, holds, established, paper_inside. low and high are NaN where no
        reading has two pairs that differ, or the statistic is only counted; holds is None where
        the paper has no direction, established and paper_inside where there is no interval either.
    """
    rows = []
    for statistic, own in _by_statistic(values):
        sd, freedom = pooled_deviation(own["value"], own["reading"])
        known = statistic.tested and freedom > 0 and sd > 0
        for reading, pairs in own.groupby("reading", sort=False):
            centre, n = pairs["value"].mean(), len(pairs)
            margin = quantile_975(freedom) * sd / math.sqrt(n) if known else math.nan
            low, mean, high = (
                float(back(statistic.transform, end))
                for end in (centre - margin, centre, centre + margin)
            )
            holds = _direction(statistic, mean, pairs["value"])
            told = None
            if known and holds is not None:
                told = holds == statistic.holds(low) == statistic.holds(high)
            rows.append(
                {"statistic": statistic.name, "claim": statistic.claim, "reading": reading, "n": n}
                | {"mean": mean, "low": low, "high": high, "holds": holds, "established": told}
                | {"paper_inside": _inside(statistic, low, high) if known else None}
            )
    names = ["statistic", "claim", "reading", "n", "mean", "low", "high", "holds"]
    return _frame(rows, [*names, "established", "paper_inside"])


def _direction(statistic: Statistic, mean: float, pairs: pd.Series) -> bool | None:
    """Whether the mean, and where asked more than half of the pairs, lie on the paper's side."""
    holds = statistic.holds(mean)
    if not holds or not statistic.majority:
        return holds
    return sum(statistic.holds(float(v)) for v in back(statistic.transform, pairs)) > len(pairs) / 2


def _inside(statistic: Statistic, low: float, high: float) -> bool | None:
    return None if statistic.paper is None else bool(low <= statistic.paper <= high)


def _frame(rows: list[dict], columns: Sequence[str]) -> pd.DataFrame:
    """Rows with nullable integers and booleans: what is not known stays apart from what is not."""
    frame = pd.DataFrame(rows, columns=list(columns))
    kinds = {"claim": "Int64"} | dict.fromkeys(
        ("holds", "base_holds", "established", "paper_inside", "turns"), "boolean"
    )
    return frame.astype({name: kind for name, kind in kinds.items() if name in columns})


def contrasts(values: pd.DataFrame, base: str) -> pd.DataFrame:
    """Every reading less the base, statistic by statistic.

    All pairs count as independent. Runs of a seed read the same windows: the error is too large
    where that moves both readings alike. Where two readings share MHA's runs M, the difference of
    F - M is that of F alone, with 2 var F / n in place of 2 (var F + var M - 2 cov) / n: too large
    an error unless the correlation of a pair exceeds sd(M) / (2 sd(F)).

    Args:
        values: (statistic, reading, seed, value); base: a reading.

    Returns:
        A row a statistic that is tested and a reading: statistic, claim, reading, difference, se,
        low, high on the statistic's scale (of log: log ratios, of logit: log odds ratios), p
        two-sided, p_holm over all contrasts of its claim, established: p_holm below LEVEL. NaN
        where no reading has two pairs that differ; such rows are in no family.
    """
    rows = []
    for statistic, own in _by_statistic(values):
        groups = own.groupby("reading", sort=False)["value"]
        means, n = groups.mean(), groups.size()
        if not statistic.tested or base not in means.index:
            continue
        sd, freedom = pooled_deviation(own["value"], own["reading"])
        for reading in means.index.drop(base):
            difference = means[reading] - means[base]
            se = sd * math.sqrt(1 / n[reading] + 1 / n[base]) if sd > 0 else math.nan
            margin = se * quantile_975(freedom) if sd > 0 else math.nan
            p = two_sided(difference / se, freedom) if sd > 0 else math.nan
            rows.append(
                {"statistic": statistic.name, "claim": statistic.claim, "reading": reading}
                | {"difference": difference, "se": se, "p": p}
                | {"low": difference - margin, "high": difference + margin}
            )
    names = ["statistic", "claim", "reading", "difference", "se", "low", "high", "p"]
    frame = _frame(rows, names)
    families = frame.groupby("claim", dropna=False)["p"]
    frame["p_holm"] = families.transform(holm).astype(float)
    # A comparison with NaN is false: what has no test is not established.
    frame["established"] = frame["p_holm"].lt(LEVEL).astype("boolean")
    return frame


def holm(p: pd.Series) -> pd.Series:
    """Holm's adjusted p of one family; NaN stays and counts for nothing."""
    ordered = p.dropna().sort_values()
    factors = np.arange(len(ordered), 0, -1)
    return (ordered * factors).cummax().clip(upper=1.0).reindex(p.index)


def turns(values: pd.DataFrame, base: str) -> pd.DataFrame:
    """Whether a claim turns on a reading: another answer than the base's, and told apart from it.

    Args:
        values: (statistic, reading, seed, value); base: a reading.

    Returns:
        A row a contrast whose statistic has a direction: claim, statistic, reading, base_holds,
        holds, p_holm, turns. Where turns is false the reading is not told apart from the base.
    """
    answers = intervals(values).set_index(["statistic", "reading"])["holds"].dropna()
    rows = [
        {"claim": row.claim, "statistic": row.statistic, "reading": row.reading}
        | {"base_holds": before, "holds": holds, "p_holm": row.p_holm}
        | {"turns": bool(holds != before and row.established)}
        for row in contrasts(values, base).itertuples()
        if (row.statistic, row.reading) in answers.index
        for before in [answers[row.statistic, base]]
        for holds in [answers[row.statistic, row.reading]]
    ]
    names = ["claim", "statistic", "reading", "base_holds", "holds", "p_holm", "turns"]
    return _frame(rows, names)
