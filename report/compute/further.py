"""Pairs beyond the paper's matrix: how far its difference stands out of the spread of runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
from scipy import stats

from relation.geometry import PAIRED
from report.compute.measured import Measured, Measurements, absent, select, worded
from report.compute.quality import logs_beside, put_with_interval
from report.layout import SCALES
from report.numbers import spans

if TYPE_CHECKING:
    from relation.records import CampaignRecords

# What the gaps and records of these pairs are called.
KIND = "further run"
# Columns that rest on the pairs that are there.
COLUMNS = (
    *("mha", "full", "delta", "spread", "won", "correlation"),
    *("spared.full", "spared.mha", "spared.difference"),
)


def further_row(scale: str) -> str:
    """The key of the row that holds a scale's further pairs."""
    return f"{scale}/further"


def paired(runs: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Final NLL of the pairs of a scale that are whole, in nat/token: a row a seed.

    Columns mha, full and delta, the latter Relation - MHA.
    """
    of_pair = select(runs, scale=scale, variant=PAIRED)
    wide = of_pair.pivot_table(index="seed", columns="variant", values="final_nll", aggfunc="first")
    pairs = wide.reindex(columns=list(PAIRED)).astype(float).dropna()
    return pairs.assign(delta=pairs["full"] - pairs["mha"])


def further_pairs(records: CampaignRecords) -> Measurements:
    """A row a scale that has further seeds, each value over its pairs that are whole."""
    found: Measurements = {}
    for scale in SCALES:
        if scale in records.page["further_seeds"]:
            _put_scale(found, records, scale)
    return found


def _put_scale(found: Measurements, records: CampaignRecords, scale: str) -> None:
    row, planned = further_row(scale), records.page["further_seeds"][scale]
    pairs = paired(records.further_runs, scale)
    seeds = tuple(int(seed) for seed in pairs.index)
    runs = select(records.further_runs, scale=scale, variant=PAIRED, seed=seeds)
    sources = tuple(runs["source"])
    none = absent(records, (KIND,), scale, PAIRED)

    lacking = [seed for seed in planned if seed not in seeds]
    reason = f"seeds without a pair: {spans(lacking)}" if lacking else ""
    if lacking and seeds:
        reason += f" ({none.reason})"
    found[row, "further.seeds", "value"] = worded(spans(planned))
    there = Measured(float(len(seeds)), n=len(seeds), reason=reason, sources=sources)
    found[row, "further.pairs", "value"] = there
    found[row, "further.planned", "value"] = Measured(float(len(planned)))
    if not seeds:
        found.update({(row, f"further.{column}", "value"): none for column in COLUMNS})
        return

    of_runs = Measured(unit="nat/token", n=len(seeds), sources=sources, rows="final_nll")
    for variant in PAIRED:
        by_seed = _by_seed(pairs[variant])
        found[row, f"further.{variant}", "value"] = _mean(by_seed, of_runs)
        found[row, f"further.{variant}", "sd"] = _deviation(by_seed, of_runs)
    deltas = _by_seed(pairs["delta"])
    put_with_interval(found, row, "further.delta", _mean(deltas, of_runs))
    found[row, "further.spread", "value"] = _deviation(deltas, of_runs)
    won = replace(of_runs, value=float((pairs["delta"] < 0).sum()), unit="1")
    found[row, "further.won", "value"] = won
    _put_spared(found, records, scale, replace(of_runs, sources=logs_beside(sources)), none)
    _put_correlation(found, row, pairs, replace(of_runs, unit="1"))


def _by_seed(values: pd.Series) -> dict[int, float]:
    return {int(seed): float(value) for seed, value in values.items()}


def _mean(by_seed: Mapping[int, float], behind: Measured) -> Measured:
    alone = "one pair has no interval" if len(by_seed) == 1 else ""
    reason = "; ".join(filter(None, (behind.reason, alone)))
    mean = statistics.fmean(by_seed.values())
    return replace(behind, value=mean, n=len(by_seed), by_seed=by_seed, reason=reason)


def _deviation(by_seed: Mapping[int, float], behind: Measured) -> Measured:
    """Sample standard deviation of the pairs, ddof = 1."""
    if len(by_seed) < 2:
        return _undetermined("a standard deviation takes two pairs", behind)
    return replace(behind, value=statistics.stdev(by_seed.values()))


def _undetermined(reason: str, behind: Measured) -> Measured:
    return replace(behind, status="undetermined", reason=reason)


def _put_spared(
    found: Measurements, records: CampaignRecords, scale: str, behind: Measured, none: Measured
) -> None:
    """Mean share of the budget spared to MHA's final smoothed loss, by Relation and by MHA itself.

    A pair that never reaches it spares nothing: without such the mean would be of those that speak
    for Relation.
    """
    row = further_row(scale)
    rows = select(records.further_efficiency, scale=scale)
    if rows.empty:
        found.update(
            {(row, f"further.{column}", "value"): none for column in COLUMNS if "spared" in column}
        )
        return
    behind = replace(behind, unit="%", rows="loss against tokens, smoothed")
    spared = rows.set_index("seed")[["reduction", "own_reduction"]].astype(float)
    never = [int(seed) for seed in spared.index[spared["reduction"].isna()]]
    told = f"never reached, and counted as none: seeds {spans(never)}" if never else ""
    spared = spared.fillna(0.0)
    reached = replace(behind, value=float(len(spared) - len(never)), unit="1")
    found[row, "further.reached", "value"] = reached
    relation, itself = spared["reduction"], spared["own_reduction"]
    with_none = replace(behind, reason=told)
    found[row, "further.spared.full", "value"] = _mean(_by_seed(relation), with_none)
    found[row, "further.spared.mha", "value"] = _mean(_by_seed(itself), behind)
    difference = _mean(_by_seed(relation - itself), with_none)
    put_with_interval(found, row, "further.spared.difference", difference)


def _put_correlation(found: Measurements, row: str, pairs: pd.DataFrame, behind: Measured) -> None:
    """Pearson's, of the two runs of a seed; its 95% interval by Fisher's transform."""
    key = (row, "further.correlation")
    if len(pairs) < 3:
        found[*key, "value"] = _undetermined("a correlation takes three pairs", behind)
        return
    if pairs["mha"].nunique() == 1 or pairs["full"].nunique() == 1:
        why = "all runs of a variant end at the same NLL"
        found[*key, "value"] = _undetermined(why, behind)
        return
    correlation = stats.pearsonr(pairs["mha"], pairs["full"])
    value = float(correlation.statistic)
    found[*key, "value"] = replace(behind, value=value)
    if len(pairs) > 3 and abs(value) < 1:
        interval = correlation.confidence_interval()
        found[*key, "low"] = replace(behind, value=float(interval.low))
        found[*key, "high"] = replace(behind, value=float(interval.high))
