"""What the campaign's own training runs reach, apart from any benchmark (section 4.3)."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from relation.geometry import PAIRED
from report.compute.measured import (
    Measured,
    Measurements,
    absent,
    no_counterpart,
    select,
    worded,
)
from report.numbers import three_digits

if TYPE_CHECKING:
    from relation.records import CampaignRecords

# Between which shares of a run's updates its rate at the beginning and at the end are read.
SPANS = ((0.01, 0.1), (0.75, 1.0))
_KEY = ["scale", "variant", "seed"]


def run_logs(records: CampaignRecords) -> pd.DataFrame:
    """The logs' rows with `rate`, tok/s of each process, and `processes`.

    Runs that changed how many processes train them have no one rate and are left out.
    """
    steady = records.runs[records.runs["processes"].notna()]
    logs = records.logs.merge(steady[[*_KEY, "processes"]], on=_KEY)
    return logs.assign(rate=logs["tokens_per_second"] / logs["processes"])


def put_run_rates(found: Measurements, records: CampaignRecords, scale: str) -> None:
    """The pairs' rates in training, beside those of the benchmark that ``found`` holds already.

    A rate is the mean over seeds of the medians of a run's updates; a ratio that of the pairs'
    own, of those whose two runs were trained by as many processes.
    """
    logs = select(run_logs(records), scale=scale, variant=PAIRED)
    medians = logs.groupby(["variant", "seed", "processes"])["rate"].median().reset_index()
    rates: dict[str, dict[tuple[int, int], float]] = {}
    for variant in PAIRED:
        rows = select(medians, variant=variant)
        keys = zip(rows["seed"].astype(int), rows["processes"].astype(int), strict=True)
        rates[variant] = dict(zip(keys, rows["rate"], strict=True))
        none = absent(records, ("run",), scale, (variant,))
        rate = _mean(rates[variant], "tok/s", logs[logs["variant"] == variant], none)
        found[scale, f"run_rate.{variant}", "value"] = rate
        alone = found[scale, f"throughput.{variant}", "value"]
        found[scale, f"run_share.{variant}", "value"] = _share(rates[variant], rate, alone, none)
    mha, full = rates["mha"], rates["full"]
    pairs = {key: full[key] / mha[key] for key in full if key in mha}
    none = absent(records, ("run",), scale, PAIRED)
    found[scale, "run_ratio", "value"] = _mean(pairs, "x", logs, none)
    counts = sorted(set(medians["processes"].astype(int)))
    found[scale, "processes", "value"] = worded(", ".join(map(str, counts))) if counts else none


def _mean(
    values: dict[tuple[int, int], float], unit: str, logs: pd.DataFrame, none: Measured
) -> Measured:
    """A mean over seeds of values by seed and number of processes."""
    if not values:
        return none
    by_seed = {seed: value for (seed, _), value in values.items()}
    behind = logs[logs["seed"].isin(by_seed)]["source"]
    return Measured(
        fmean(values.values()),
        unit=unit,
        n=len(by_seed),
        by_seed=by_seed,
        sources=tuple(dict.fromkeys(behind)),
        rows="tokens_per_second",
    )


def _share(
    rates: dict[tuple[int, int], float], rate: Measured, alone: Measured, none: Measured
) -> Measured:
    """A process's rate in training over the benchmark's, in which one GPU works alone."""
    if not rates:
        return none
    if alone.value is None:
        return Measured(status=alone.status, reason=alone.reason)
    if "cpu" in alone.reason.lower():
        return no_counterpart("on a CPU, runs and benchmarks take different shares of its cores")
    values = {key: value / alone.value for key, value in rates.items()}
    by_seed = {seed: value for (seed, _), value in values.items()}
    return Measured(
        fmean(values.values()),
        unit="%",
        n=len(by_seed),
        by_seed=by_seed,
        sources=(*rate.sources, *alone.sources),
        rows="tokens_per_second",
    )


def hybrid_rates(records: CampaignRecords) -> Measured | None:
    """How the rate of Hybrid runs changed while they trained, a run a clause, in tok/s a process.

    The median of the updates in each of ``SPANS``; None where no such run was logged.
    """
    logs = select(run_logs(records), variant="hybrid").sort_values("update")
    told = []
    for (scale, seed, processes), log in logs.groupby(["scale", "seed", "processes"]):
        spans = (log["update"].between(first * len(log), last * len(log)) for first, last in SPANS)
        rates = " → ".join(three_digits(log["rate"][span].median()) for span in spans)
        shared = f", each of {processes:.0f} processes" if processes > 1 else ""
        told.append(f"{scale}, seed {seed}{shared}: {rates}")
    return worded("; ".join(told), sources=tuple(dict.fromkeys(logs["source"]))) if told else None
