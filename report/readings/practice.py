"""What a practitioner can take from the readings: of the baseline and what is left beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from report.readings.baselines import FACTORS, comparable, paired_nll, rates
from report.readings.rule import DEFAULT
from report.readings.statistics import contrasts
from report.readings.study import Study
from report.readings.values import BY_NAME
from report.readings.words import count, interval, nats, probability

if TYPE_CHECKING:
    from relation.records.multiverse import ReadingRecords

_RATES = {0.5: "half the learning rate", 1.0: "the paper’s rate", 2.0: "twice the learning rate"}


def practice(records: ReadingRecords, found: Study) -> list[str]:
    """Sentences on the baseline, what it leaves of the advantage, and the learning rate."""
    pairs = comparable(paired_nll(records))
    pairs = pairs[~pairs["beside"]]
    means = pairs.groupby("reading", sort=False)[["mha", "full", "delta"]].mean()
    told = []
    if DEFAULT in means.index and len(means) > 1:
        told += _best_baseline(found, means)
        told += _best_of_each(pairs, means)
    return told + [text for residual in ("unscaled", "scaled") for text in _rate(records, residual)]


def _best_baseline(found: Study, means: pd.DataFrame) -> list[str]:
    """MHA's best reading, and what Relation's advantage is there."""
    best = means["mha"].idxmin()
    n = count(len(means), "reading")
    if best == DEFAULT:
        return [
            f"Of {n} on this text MHA is best under {DEFAULT} itself ({nats(means['mha'][best])})."
        ]
    gain = means["mha"][DEFAULT] - means["mha"][best]
    own = means["delta"][DEFAULT]
    size = "more" if gain > abs(own) else "no more"
    told = [
        f"Of {n} on this text {best} suits MHA best: its final NLL is {nats(means['mha'][best])}, "
        f"{nats(gain)} below that under {DEFAULT}, which is {size} than what separates Relation "
        f"from MHA there ({nats(own, signed=True)})."
    ]
    statistic = BY_NAME["final-nll"]
    row = found.of("final-nll").loc[best]
    left = f"Under {best} Relation − MHA is {nats(row['mean'], signed=True)}"
    ends = interval(row["low"], row["high"], statistic)
    left += f" {ends}" if ends else f" (n = {row['n']}, no interval)"
    if own < 0 and row["mean"] < 0:
        left += f", {row['mean'] / own:.0%} of the difference under {DEFAULT}"
    elif own < 0:
        left += f": these pairs show nothing of the advantage under {DEFAULT}"
    if ends and row["low"] <= 0 <= row["high"]:
        left += "; the interval includes 0"
    return [*told, f"{left}. {_verdict(found, best, own, row['mean'])}"]


def _verdict(found: Study, best: str, own: float, there: float) -> str:
    """Whether a better baseline leaves less, as far as the contrast tells."""
    rows = contrasts(found.values, DEFAULT)
    row = rows[(rows["statistic"] == "final-nll") & (rows["reading"] == best)]
    if row.empty or row["p"].isna().all():
        return (
            "Without a second seed of any reading nothing tells whether this is more than chance."
        )
    if not bool(row["established"].iloc[0]):
        return (
            f"The two differences are not told apart (p {probability(row['p_holm'].iloc[0])} after "
            "Holm’s correction), so these runs leave open what a better baseline does."
        )
    if abs(there) < abs(own) or there > 0 > own:
        return (
            "So a part of the difference is the baseline’s: set the initial weights so that MHA "
            "does well before another operator is compared with it."
        )
    return (
        "So the difference is no smaller where MHA does better: the baseline does not explain it."
    )


def _best_of_each(pairs: pd.DataFrame, means: pd.DataFrame) -> list[str]:
    """Each model at the reading that suits it best."""
    mha, full = means["mha"].idxmin(), means["full"].idxmin()
    apart = means["full"][full] - means["mha"][mha]
    where = f"both under {mha}" if mha == full else f"MHA under {mha}, Relation under {full}"
    seeds = pairs.groupby("reading")["seed"].nunique()
    behind = sorted({int(seeds[mha]), int(seeds[full])})
    side = "below" if apart < 0 else "above"
    return [
        f"Each at its best reading ({where}), Relation ends {nats(abs(apart))} {side} MHA "
        f"(n = {' and '.join(map(str, behind))}; the lowest of several means is partly luck)."
    ]


def _rate(records: ReadingRecords, residual: str) -> list[str]:
    """The best of the learning rates for either model, under one residual scale."""
    rows = rates(records)
    rows = rows[rows["residual"] == residual]
    if rows.empty or 1.0 not in set(rows["factor"]):
        return []
    means = rows.groupby("factor")[["mha", "full", "delta"]].mean()
    mha, full = float(means["mha"].idxmin()), float(means["full"].idxmin())
    apart = means["full"][full] - means["mha"][mha]
    best = f"{nats(means['mha'][mha])} and {nats(means['full'][full])}"
    if mha == full == 1.0:
        return [
            f"{residual.capitalize()}, both do best at the paper’s learning rate of those tried "
            f"({best}), where Relation − MHA is {nats(apart, signed=True)}."
        ]
    told = (
        f"{residual.capitalize()}, MHA is best at {_RATES[mha]} and Relation at {_RATES[full]} "
        f"({best}): best against best, Relation − MHA is {nats(apart, signed=True)}; at the "
        f"paper’s rate it is {nats(means['delta'][1.0], signed=True)}"
    )
    edges = {min(FACTORS.values()), max(FACTORS.values())}
    if edges & {mha, full}:
        told += ". The best may lie beyond the rates tried"
    return [f"{told}."]
