"""What the campaign's own training runs reach, which the paper does not print."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from relation.geometry import PAIRED
from report.compute.configurations import micro_ga, worded_models
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
    behind = tuple(dict.fromkeys(logs["source"]))
    medians = logs.groupby(["variant", "seed", "processes"])["rate"].median()
    rates: dict[str, dict[tuple[int, int], float]] = {variant: {} for variant in PAIRED}
    for (variant, seed, processes), rate in medians.items():
        rates[variant][int(seed), int(processes)] = float(rate)
    timed = select(records.throughput, benchmark="matched", scale=scale)
    on_cpu = bool(timed["device"].str.contains("cpu", case=False).any()) if len(timed) else False
    for variant in PAIRED:
        none = _no_rate(records, scale, (variant,))
        of_variant = logs[logs["variant"] == variant]
        rate = _mean(rates[variant], "tok/s", of_variant, none)
        found[scale, f"run_rate.{variant}", "value"] = rate
        batches = worded_models(records, scale, (variant,), micro_ga)
        found[scale, f"run_micro_ga.{variant}", "value"] = batches
        found[scale, f"run_share.{variant}", "value"] = _share(
            rates[variant],
            rate,
            found[scale, f"throughput.{variant}", "value"],
            (batches, found[scale, f"micro_ga.{variant}", "value"]),
            on_cpu,
        )
    mha, full = rates["mha"], rates["full"]
    pairs = {key: full[key] / mha[key] for key in full if key in mha}
    none = _no_rate(records, scale, PAIRED)
    if mha and full:
        why = "no pair of one seed was trained by as many processes"
        none = Measured(status="undetermined", reason=why)
    ratio = _mean(pairs, "x", logs, none)
    found[scale, "run_ratio", "value"] = ratio
    if ratio.value is not None and ratio.margin is not None:
        for statistic, sign in (("low", -1), ("high", 1)):
            end = replace(ratio, value=ratio.value + sign * ratio.margin, by_seed={})
            found[scale, "run_ratio", statistic] = end
    counts = ", ".join(
        map(str, sorted({processes for key in rates.values() for _, processes in key}))
    )
    found[scale, "processes", "value"] = worded(counts, sources=behind) if counts else none


def _no_rate(records: CampaignRecords, scale: str, variants: tuple[str, ...]) -> Measured:
    """Why there is no rate: no run, or only such as have no one number of processes."""
    if select(records.runs, scale=scale, variant=variants).empty:
        return absent(records, ("run",), scale, variants)
    why = "how many processes trained a run changed, or is not recorded"
    return Measured(status="undetermined", reason=why)


def _mean(
    values: dict[tuple[int, int], float], unit: str, logs: pd.DataFrame, none: Measured
) -> Measured:
    """A mean over seeds of values by seed and number of processes."""
    if not values:
        return replace(none, unit=unit)
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
    rates: dict[tuple[int, int], float],
    rate: Measured,
    alone: Measured,
    batches: tuple[Measured, Measured],
    on_cpu: bool,
) -> Measured:
    """A process's rate in training over the benchmark's, which one process reached.

    batches: micro/GA of the runs and of the benchmark; of two kinds the rates say nothing.
    """
    if not rates:
        return replace(rate, unit="%")
    for term in (alone, *batches):
        if term.status != "ok":
            return Measured(status=term.status, reason=term.reason, unit="%")
    if on_cpu:
        why = "on a CPU, runs and benchmarks take different shares of its cores"
        return replace(no_counterpart(why), unit="%")
    ours, benchmarks = (batch.text for batch in batches)
    if ours != benchmarks:
        why = f"micro/GA is {ours} in the runs and {benchmarks} in the benchmark"
        return replace(no_counterpart(why), unit="%")
    by_seed = {seed: value / alone.value for (seed, _), value in rates.items()}
    return Measured(
        fmean(by_seed.values()),
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
        spans = [log["update"].between(first * len(log), last * len(log)) for first, last in SPANS]
        if not all(span.any() for span in spans):
            continue  # too short to have a beginning and an end
        rates = " → ".join(three_digits(log["rate"][span].median()) for span in spans)
        shared = f", each of {processes:.0f} processes" if processes > 1 else ""
        told.append(f"{scale}, seed {seed}{shared}: {rates}")
    return worded("; ".join(told), sources=tuple(dict.fromkeys(logs["source"]))) if told else None
