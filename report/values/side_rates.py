"""What one side of a benchmark measured: its rate, memory and settings, and two sides' ratio."""

from dataclasses import replace

import pandas as pd

from relation.bench.statistics import ratio, ratio_apart
from relation.variants import VARIANTS
from report.values.architecture import micro_ga
from report.values.frames import CampaignRecords
from report.values.layout import Number
from report.values.measured import Measured, absent, is_number, no_counterpart, worded

UNITS = {
    "tokens_per_second": "tok/s",
    "raw_tokens_per_second": "tok/s",
    "allocated_gib": "GiB",
    "reserved_gib": "GiB",
    "context": "tokens",
    "micro": "1",
    "accumulation": "1",
}
RATE = Number(grouped=True, significant=4, own=True)
CONTEXT = Number()


def absent_rate(
    records: CampaignRecords, benchmark: str, scale: str | None, *variants: str
) -> Measured:
    """Missing pieces are listed by the benchmark that would have measured them, or by variant."""
    return absent(records, ("throughput",), scale, (benchmark, *variants))


def failed(rows: pd.DataFrame) -> Measured:
    """Why a side that was measured has no value."""
    row, devices = rows.iloc[0], ", ".join(dict.fromkeys(rows["device"]))
    told = f"{row['reason']}, on {devices}, T = {row['context']:.0f}"
    sources = tuple(dict.fromkeys(rows["source"])) if "source" in rows else ()
    if row["status"] == "OOM":
        return Measured(status="oom", reason=told, sources=sources)
    return Measured(status="failed", reason=f"{row['status']}: {told}", sources=sources)


def rate_of(rows: pd.DataFrame, field: str, none: Measured) -> Measured:
    """A field of one side's measurement, with how many rounds stand behind it."""
    if rows.empty:
        return none
    passed = rows[rows["status"] == "PASS"]
    if passed.empty:
        return failed(rows)
    row = passed.iloc[0]
    if not is_number(row[field]):
        return no_counterpart(f"not counted on this device: {row['device']}")
    return Measured(
        float(row[field]),
        unit=UNITS[field],
        n=len(row["samples"]),
        reason=f"{VARIANTS[row['variant']].title} on backend {row['backend']}, {row['device']}",
        sources=tuple(dict.fromkeys(rows["source"])),
    )


def setting_of(rows: pd.DataFrame, field: str, none: Measured) -> Measured:
    """A setting of a measurement; it holds even where the measurement ran out of memory."""
    return none if rows.empty else Measured(float(rows[field].iloc[0]), unit=UNITS[field], n=1)


def batches_of(rows: pd.DataFrame, none: Measured) -> Measured:
    """Micro-batch and accumulation of a side, as "8/4"."""
    if rows.empty:
        return none
    readings = dict.fromkeys(micro_ga(row) for row in rows.to_dict("records"))
    return worded(", ".join(readings), sources=tuple(dict.fromkeys(rows["source"])))


def ratio_of(over: pd.DataFrame, under: pd.DataFrame, none: Measured) -> dict[str, Measured]:
    """The ratio of two sides' rates, round by round where they took turns, with its interval."""
    terms = [rate_of(rows, "tokens_per_second", none) for rows in (over, under)]
    for term in terms:
        if term.value is None:
            return {"value": term}
    sides = [rows.iloc[0] for rows in (over, under)]
    taken = ratio_apart if any(side["alone"] for side in sides) else ratio
    ratios = taken(*(list(side["samples"]) for side in sides))
    sources = tuple(dict.fromkeys((*terms[1].sources, *terms[0].sources)))
    return {
        statistic: replace(terms[0], value=float(ratios[name]), unit="x", sources=sources)
        for statistic, name in (("value", "ratio"), ("low", "ratio_low"), ("high", "ratio_high"))
        if ratios[name] is not None
    }
