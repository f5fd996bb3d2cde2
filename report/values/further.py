"""Pairs beyond the paper's matrix: how far its difference stands out of the spread of runs."""

import statistics
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import scipy  # scipy.stats is loaded where it is used, as that takes a second

from relation.variants import PAIRED
from report.values.frames import CampaignRecords
from report.values.layout import SCALES, Column, Note, Number, Panel, Part, Row, value
from report.values.measured import Measured, Measurements, absent, logs_beside, select, worded
from report.values.numbers import spans

# What the gaps and records of these pairs are called.
KIND = "further run"
_SPARED = ("spared.full", "spared.mha", "spared.difference")
# Columns that rest on the pairs that are there.
_OF_PAIRS = ("mha", "full", "delta", "spread", "won", "correlation", *_SPARED)


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
    found = Measurements()
    for scale in SCALES:
        if scale in records.page["further_seeds"]:
            _put_scale(found, records, scale)
    return found


def _put(found: Measurements, scale: str, columns: dict[str, Measured]) -> None:
    found.put(further_row(scale), {f"further.{name}": cell for name, cell in columns.items()})


def _put_scale(found: Measurements, records: CampaignRecords, scale: str) -> None:
    planned = records.page["further_seeds"][scale]
    pairs = paired(records.further_runs, scale)
    seeds = tuple(int(seed) for seed in pairs.index)
    runs = select(records.further_runs, scale=scale, variant=PAIRED, seed=seeds)
    sources = tuple(runs["source"])
    none = absent(records, (KIND,), scale, PAIRED)

    lacking = [seed for seed in planned if seed not in seeds]
    reason = f"seeds without a pair: {spans(lacking)}" if lacking else ""
    if lacking and seeds:
        reason += f" ({none.reason})"
    counted = {
        "seeds": worded(spans(planned)),
        "pairs": Measured(float(len(seeds)), n=len(seeds), reason=reason, sources=sources),
        "planned": Measured(float(len(planned))),
    }
    _put(found, scale, counted)
    if not seeds:
        _put(found, scale, dict.fromkeys(_OF_PAIRS, none))
        return

    row = further_row(scale)
    of_runs = Measured(unit="nat/token", n=len(seeds), sources=sources, rows="final_nll")
    alone = _undetermined("a standard deviation takes two pairs", of_runs)
    for variant in PAIRED:
        mean = _mean(pairs[variant], of_runs)
        found[row, f"further.{variant}", "value"] = mean
        found[row, f"further.{variant}", "sd"] = mean.deviation(alone)
    delta = _mean(pairs["delta"], of_runs)
    found.put_with_interval(row, "further.delta", delta)
    won = replace(of_runs, value=float((pairs["delta"] < 0).sum()), unit="1")
    _put(found, scale, {"spread": delta.deviation(alone), "won": won})
    _put_spared(found, records, scale, replace(of_runs, sources=logs_beside(sources)), none)
    _put_correlation(found, row, pairs, replace(of_runs, unit="1"))


def _mean(values: pd.Series, behind: Measured) -> Measured:
    by_seed = {int(seed): float(number) for seed, number in values.items()}
    alone = "one pair has no interval" if len(by_seed) == 1 else ""
    reason = "; ".join(filter(None, (behind.reason, alone)))
    mean = statistics.fmean(by_seed.values())
    return replace(behind, value=mean, n=len(by_seed), by_seed=by_seed, reason=reason)


def _undetermined(reason: str, behind: Measured) -> Measured:
    return replace(behind, status="undetermined", reason=reason)


def _put_spared(
    found: Measurements, records: CampaignRecords, scale: str, behind: Measured, none: Measured
) -> None:
    """Mean share of the budget spared to MHA's final smoothed loss, by Relation and by MHA itself.

    A pair that never reaches it counts as 0: a mean without such pairs would favour Relation.
    """
    rows = select(records.further_efficiency, scale=scale)
    if rows.empty:
        _put(found, scale, dict.fromkeys(_SPARED, none))
        return
    behind = replace(behind, unit="%", rows="loss against tokens, smoothed")
    spared = rows.set_index("seed")[["reduction", "own_reduction"]].astype(float)
    never = [int(seed) for seed in spared.index[spared["reduction"].isna()]]
    told = f"never reached, and counted as none: seeds {spans(never)}" if never else ""
    with_none = replace(behind, reason=told)
    spared = spared.fillna(0.0)
    relation, itself = spared["reduction"], spared["own_reduction"]
    columns = {
        "reached": replace(behind, value=float(len(spared) - len(never)), unit="1"),
        "spared.full": _mean(relation, with_none),
        "spared.mha": _mean(itself, behind),
    }
    _put(found, scale, columns)
    difference = _mean(relation - itself, with_none)
    found.put_with_interval(further_row(scale), "further.spared.difference", difference)


def _put_correlation(found: Measurements, row: str, pairs: pd.DataFrame, behind: Measured) -> None:
    """Pearson's, of the two runs of a seed; its 95% interval by Fisher's transform."""
    key = (row, "further.correlation")
    why = ""
    if len(pairs) < 3:
        why = "a correlation takes three pairs"
    elif pairs["mha"].nunique() == 1 or pairs["full"].nunique() == 1:
        why = "all runs of a variant end at the same NLL"
    if why:
        found[*key, "value"] = _undetermined(why, behind)
        return
    correlation = scipy.stats.pearsonr(pairs["mha"], pairs["full"])
    found[*key, "value"] = replace(behind, value=float(correlation.statistic))
    if len(pairs) > 3 and abs(correlation.statistic) < 1:
        for statistic, end in correlation.confidence_interval()._asdict().items():
            found[*key, statistic] = replace(behind, value=float(end))


def further_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """Which pairs stand apart from the table's own, and how their values are taken."""
    seeds = cells[cells["column"] == "further.seeds"].set_index("row")["text"]
    told = [f"{row.split('/')[0]}: {text}" for row, text in seeds.items()]
    if not told:
        return
    yield Note(
        f"(b) has pairs beyond the paper’s, of seeds apart from those of (a) ({'; '.join(told)}), "
        "to tell a difference from the spread of runs. No verdict counts them."
    )
    yield Note(
        "(b) is over the pairs whose two runs are there: means ± sample standard deviation; "
        "differences with the 95% t interval of their mean; the mean share of tokens spared to "
        "MHA’s final smoothed training loss, none where a pair never reaches it; Pearson’s "
        "correlation of the two runs of a seed with Fisher’s 95% interval. A first crossing of "
        "noisy curves comes early by itself: beside Relation’s stands how early an MHA run "
        "reaches its own final loss, and the paired difference of both.",
        below=True,
    )


_NLL = Number(4)
_SHARE = Number(1, "%")
FURTHER_PANEL = Panel(
    "(b) Further pairs",
    (
        Column(
            "Pairs",
            (Part("further.pairs", Number()), Part("further.planned", Number())),
            "{} of {}",
        ),
        value("MHA NLL", "further.mha", _NLL, "mha"),
        value("Relation NLL", "further.full", _NLL, "full"),
        value("Full−MHA", "further.delta", Number(4, signed=True, own=True)),
        value("its SD", "further.spread", _NLL),
        value("Pairs\nwon", "further.won", Number()),
        value("Tokens\nspared:\nRelation", "further.spared.full", _SHARE, "full"),
        value("MHA,\nitself", "further.spared.mha", _SHARE, "mha"),
        value("less\nthat", "further.spared.difference", Number(1, "%", signed=True)),
        value("Correlation", "further.correlation", Number(2, signed=True)),
    ),
    rows=tuple(Row(further_row(scale), (scale, "further"), group=scale) for scale in SCALES),
    measured=True,
)
