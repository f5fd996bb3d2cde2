"""What the campaign's own training runs reach, which the paper does not print."""

from dataclasses import replace

import pandas as pd

from relation.variants import PAIRED
from report.values.architecture import micro_ga, worded_models
from report.values.frames import CampaignRecords
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    no_counterpart,
    over_seeds,
    select,
    worded,
)
from report.values.numbers import three_digits

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
    runs = logs.groupby(["seed", "variant"]).agg({"rate": "median", "processes": "first"})

    def mean(values: pd.Series, unit: str, variants: tuple[str, ...], none: Measured) -> Measured:
        seeds = tuple(values.index)
        behind = select(logs, variant=variants, seed=seeds)["source"]
        return over_seeds(
            values.to_dict(),
            records.page["seeds"],
            tuple(dict.fromkeys(behind)),
            lambda: replace(none, unit=unit),
            unit,
            "tokens_per_second",
        )

    timed = select(records.throughput, benchmark="matched", scale=scale)
    on_cpu = bool(timed["device"].astype(str).str.contains("cpu", case=False).any())
    for variant in PAIRED:
        of_variant = select(runs.reset_index(), variant=variant).set_index("seed")["rate"]
        rate = mean(of_variant, "tok/s", (variant,), _no_rate(records, scale, (variant,)))
        batches = worded_models(records, scale, (variant,), micro_ga)
        alone = found[scale, f"throughput.{variant}", "value"]
        share = _share(rate, alone, (batches, found[scale, f"micro_ga.{variant}", "value"]), on_cpu)
        columns = {
            f"run_rate.{variant}": rate,
            f"run_micro_ga.{variant}": batches,
            f"run_share.{variant}": share,
        }
        found.put(scale, columns)
    none = _no_rate(records, scale, PAIRED)
    ratios = pd.Series(dtype=float)
    if set(PAIRED) <= set(runs.index.unique("variant")):
        pairs = runs.unstack("variant").dropna()
        alike = pairs[pairs["processes", "mha"] == pairs["processes", "full"]]
        ratios = alike["rate", "full"] / alike["rate", "mha"]
        if ratios.empty:
            why = "no pair of one seed was trained by as many processes"
            none = Measured(status="undetermined", reason=why)
    ratio = mean(ratios, "x", PAIRED, none)
    found.put_statistics(scale, "run_ratio", {"value": ratio, **ratio.interval})
    counts = ", ".join(f"{count:.0f}" for count in sorted(runs["processes"].unique()))
    behind = tuple(dict.fromkeys(logs["source"]))
    found[scale, "processes", "value"] = worded(counts, sources=behind) if counts else none


def _no_rate(records: CampaignRecords, scale: str, variants: tuple[str, ...]) -> Measured:
    """Why there is no rate: no run, or only such as have no one number of processes."""
    if select(records.runs, scale=scale, variant=variants).empty:
        return absent(records, ("run",), scale, variants)
    why = "how many processes trained a run changed, or is not recorded"
    return Measured(status="undetermined", reason=why)


def _share(
    rate: Measured, alone: Measured, batches: tuple[Measured, Measured], on_cpu: bool
) -> Measured:
    """A process's rate in training over the benchmark's, which one process reached.

    batches: micro/GA of the runs and of the benchmark; of two kinds the rates say nothing.
    """
    for term in (rate, alone, *batches):
        if term.status != "ok":
            return Measured(status=term.status, reason=term.reason, unit="%")
    if on_cpu:
        why = "on a CPU, runs and benchmarks take different shares of its cores"
        return replace(no_counterpart(why), unit="%")
    ours, benchmarks = (batch.text for batch in batches)
    if ours != benchmarks:
        why = f"micro/GA is {ours} in the runs and {benchmarks} in the benchmark"
        return replace(no_counterpart(why), unit="%")
    return replace(
        rate,
        value=rate.value / alone.value,
        unit="%",
        by_seed={seed: value / alone.value for seed, value in rate.by_seed.items()},
        sources=(*rate.sources, *alone.sources),
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
