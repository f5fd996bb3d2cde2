"""Throughput and memory of training steps (Section 6.3, Appendices F, G, H)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from relation.systems.statistics import ratio, ratio_apart
from report.compute.configurations import micro_ga
from report.compute.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    no_counterpart,
    select,
    worded,
)
from report.compute.run_rates import hybrid_rates, put_run_rates
from report.layout import SCALES
from report.verdicts import Likeness

if TYPE_CHECKING:
    from relation.records import CampaignRecords

PAPER_CONTEXTS = ("1024", "2048", "4096", "8192", "16384", "32768", "65536")
OPERATOR_NAME = {"mha": "MHA", "full": "Full Relation", "linear": "Linear Relation"}
# Of MHA backends that a reader knows by a name of their own.
ATTENTION_NAME = {"cudnn": "cuDNN’s attention"}
# What the backend `tiled` is, where it stands for FlashRelation.
TILED = "FlashRelation’s tiling in plain PyTorch, not the kernel"


def _absent(
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


def _measured(rows: pd.DataFrame, field: str, unit: str, none: Measured) -> Measured:
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
        unit=unit,
        n=len(row["samples"]),
        reason=f"{OPERATOR_NAME[row['variant']]} on backend {row['backend']}, {row['device']}",
        sources=tuple(dict.fromkeys(rows["source"])),
    )


def _put_ratio(
    found: Measurements,
    row: str,
    column: str,
    numerator: pd.DataFrame,
    denominator: pd.DataFrame,
    none: Measured,
) -> None:
    """The ratio of two sides' rates, round by round where they took turns, with its interval."""
    terms = [_measured(rows, "tokens_per_second", "x", none) for rows in (numerator, denominator)]
    for term in terms:
        if term.value is None:
            found[row, column, "value"] = term
            return
    over, under = numerator.iloc[0], denominator.iloc[0]
    taken = ratio_apart if over["alone"] or under["alone"] else ratio
    ratios = taken(list(over["samples"]), list(under["samples"]))
    for statistic, name in (("value", "ratio"), ("low", "ratio_low"), ("high", "ratio_high")):
        if ratios[name] is not None:
            found[row, column, statistic] = Measured(
                float(ratios[name]),
                unit="x",
                n=terms[0].n,
                reason=terms[0].reason,
                sources=tuple(dict.fromkeys((*terms[1].sources, *terms[0].sources))),
            )


def _kernel_name(name: str) -> str:
    """A kernel without its namespaces, template arguments and parameters."""
    return re.split(r"[<(]", name.removeprefix("void "))[0].split("::")[-1]


def _disturbed(rows: pd.DataFrame) -> Iterable[str]:
    """What disturbed each measurement, with its contexts where they were not disturbed alike."""
    names = ["benchmark", "scale"] if "benchmark" in rows else ["scale"]
    for name, measured in rows.groupby(names, sort=False):
        where = " ".join(name)
        readings = measured.groupby("disturbed", sort=False, dropna=False)["context"].unique()
        for told, contexts in readings.items():
            if pd.isna(told):
                continue
            at = ", ".join(f"{context:,.0f}" for context in sorted(contexts))
            yield f"{where}{f' at T = {at}' if len(readings) > 1 else ''}: {told}"


def put_setting(found: Measurements, rows: pd.DataFrame, page: Mapping[str, Any]) -> None:
    """What the rows of a table were measured on and under, in the row "setting".

    page: what the campaign says of itself.
    """
    if rows.empty:
        return

    def put(column: str, texts: Iterable[object]) -> None:
        told = "; ".join(dict.fromkeys(str(text) for text in texts if pd.notna(text)))
        if told:
            found["setting", column, "value"] = worded(told)

    put("device", rows["device"])
    put("precision", (precision.upper() for precision in page["systems"]["precision"]))
    sides = set(rows["variant"] if "variant" in rows else rows["operator"])
    if page["systems"]["flash"] != "flash" and sides & {"full", "full-flash"}:
        put("flash", [page["systems"]["flash"]])
    put("driver", rows["driver"])
    clocks = rows["sm_clock_least"].dropna()
    if len(clocks):
        put("clock", [f"{clocks.min():.0f} of {rows['sm_clock_limit'].max():.0f} MHz"])
    put("disturbed", _disturbed(rows))
    if "kernels" in rows:
        passed = rows[rows["status"] == "PASS"].to_dict("records")
        ran = {row["side"]: map(_kernel_name, row["kernels"]) for row in passed}
        sides_of: dict[str, list[str]] = {}
        for side, kernels in ran.items():
            sides_of.setdefault(", ".join(dict.fromkeys(kernels)), []).append(side)
        told = {kernels: ", ".join(sides) for kernels, sides in sides_of.items() if kernels}
        put("kernels", [f"{sides}: {kernels}" for kernels, sides in told.items()])
        by_operator = rows.groupby("variant", sort=False)["backend"].unique()
        put(
            "backends",
            [
                f"{OPERATOR_NAME[name]} on {' and '.join(backends)}"
                for name, backends in by_operator.items()
            ],
        )
        put("tokens", rows["tokens"])
        alone = rows[rows["alone"].astype(bool)]
        put("alone", alone["scale"] + " " + alone["side"])


def put_retention(found: Measurements, records: CampaignRecords, rows: pd.DataFrame) -> None:
    """That Linear Relation was timed untrained, and what training did to the rate of Hybrid runs.

    The kernels leave work out where retention keeps much of the past; training changes how much.
    """
    if rows.empty or rows["device"].str.contains("cpu", case=False).any():
        return
    found["setting", "retention", "value"] = worded("untrained")
    trained = hybrid_rates(records)
    if trained is not None:
        found["setting", "trained", "value"] = trained


def _worded(rows: pd.DataFrame, none: Measured) -> Measured:
    if rows.empty:
        return none
    readings = dict.fromkeys(micro_ga(row) for row in rows.to_dict("records"))
    return worded(", ".join(readings), sources=tuple(dict.fromkeys(rows["source"])))


def _setting(rows: pd.DataFrame, field: str, unit: str, none: Measured) -> Measured:
    """A setting of a measurement; it holds even where the measurement ran out of memory."""
    if rows.empty:
        return none
    return Measured(float(rows[field].iloc[0]), unit=unit, n=1)


def production(records: CampaignRecords) -> Measurements:
    """FlashAttention and FlashRelation at each scale's own context, with memory."""
    found: Measurements = {}
    for scale in SCALES:
        matched = select(records.throughput, benchmark="matched", scale=scale)
        none = _absent(records, "matched", scale, "mha", "full")
        found[scale, "context", "value"] = _setting(matched, "context", "tokens", none)
        sides = {side: select(matched, side=side) for side in ("mha", "full")}
        for side, rows in sides.items():
            none = _absent(records, "matched", scale, side)
            for column, field, unit in (
                ("throughput", "tokens_per_second", "tok/s"),
                ("allocated", "allocated_gib", "GiB"),
                ("reserved", "reserved_gib", "GiB"),
            ):
                found[scale, f"{column}.{side}", "value"] = _measured(rows, field, unit, none)
            found[scale, f"micro_ga.{side}", "value"] = _worded(rows, none)
        _put_ratio(found, scale, "ratio", sides["full"], sides["mha"], none)
        put_run_rates(found, records, scale)
    put_setting(found, select(records.throughput, benchmark="matched"), records.page)
    return found


def efficient(records: CampaignRecords) -> Measurements:
    """Table 5: the materialised operator against FlashRelation, the matched pair, and peers."""
    found: Measurements = {}
    matched = production(records)
    for scale in SCALES:
        fixed = select(records.throughput, benchmark="fixed", scale=scale)
        none = _absent(records, "fixed", scale, "full")
        reference, flash = select(fixed, side="reference"), select(fixed, side="full")
        for column, rows in (("reference", reference), ("flash", flash)):
            rate = _measured(rows, "tokens_per_second", "tok/s", none)
            found[scale, f"fixed.{column}", "value"] = rate
        _put_ratio(found, scale, "fixed.speedup", flash, reference, none)
        found[scale, "fixed.context", "value"] = _setting(fixed, "context", "tokens", none)
        for column, source in (
            ("context", "context"),
            ("mha", "throughput.mha"),
            ("full", "throughput.full"),
            ("ratio", "ratio"),
        ):
            for statistic in ("value", "low", "high"):
                if (scale, source, statistic) in matched:
                    cell = matched[scale, source, statistic]
                    found[scale, f"matched.{column}", statistic] = cell
        _put_peers(found, records, scale, fixed, flash)
    put_setting(found, select(records.throughput, benchmark=("fixed", "matched")), records.page)
    return found


def _put_peers(
    found: Measurements,
    records: CampaignRecords,
    scale: str,
    fixed: pd.DataFrame,
    flash: pd.DataFrame,
) -> None:
    """What the paper does not compare with: the compiled reference, and other attention."""
    matched = select(records.throughput, benchmark="matched", scale=scale)
    others = matched[matched["side"].str.startswith("mha-")].head(1)
    for column, rows, base, benchmark in (
        ("compiled", select(fixed, side="reference-compiled"), flash, "fixed"),
        ("other", others, select(matched, side="full"), "matched"),
    ):
        none = no_counterpart("this campaign measures no such side")
        if base.empty:
            none = _absent(records, benchmark, scale, "full")
        rate = _measured(rows, "tokens_per_second", "tok/s", none)
        found[scale, f"peers.{column}", "value"] = rate
        _put_ratio(found, scale, f"peers.{column}_ratio", base, rows, none)
    found[scale, "peers.name", "value"] = (
        worded(_attention_name(others.iloc[0]["backend"]))
        if len(others)
        else found[scale, "peers.other", "value"]
    )


def _attention_name(backend: str) -> str:
    return ATTENTION_NAME.get(backend, f"MHA, {backend}")


def linear_steady(records: CampaignRecords) -> Measurements:
    """Linear Relation's throughput once warm, and over the whole run."""
    found: Measurements = {}
    for scale in SCALES:
        rows = select(records.throughput, benchmark="linear-steady", scale=scale)
        none = _absent(records, "linear-steady", scale, "linear")
        found[scale, "context", "value"] = _setting(rows, "context", "tokens", none)
        found[scale, "micro_ga", "value"] = _worded(rows, none)
        found[scale, "steady", "value"] = _measured(rows, "tokens_per_second", "tok/s", none)
        found[scale, "raw", "value"] = _measured(rows, "raw_tokens_per_second", "tok/s", none)
    measured = select(records.throughput, benchmark="linear-steady")
    put_setting(found, measured, records.page)
    put_retention(found, records, measured)
    updates = measured["measured_updates"].dropna()
    if len(updates):
        counts = dict.fromkeys(f"{count:.0f}" for count in (updates.min(), updates.max()))
        found["setting", "raw", "value"] = worded(" to ".join(counts))
    return found


def linear_long(records: CampaignRecords) -> Measurements:
    """Linear Relation's throughput and memory against T.

    A campaign's contexts meet the paper's by T; those of other models by position, the first with
    T = 1024 and so on. The rest get a row of their own, keyed ``+<T>``.
    """
    rows = select(records.throughput, benchmark="linear-long")
    none = (
        _absent(records, "linear-long", None, "linear")
        if rows.empty
        else no_counterpart(f"this campaign measures {rows['position'].nunique()} contexts")
    )
    likeness = Likeness(records.page)
    others = bool(likeness.other_models(set(rows["scale"]), budget=False))
    found: Measurements = {}
    counterpart = {}
    for row in rows.sort_values("context").to_dict("records"):
        context, position = int(row["context"]), int(row["position"])
        if others:
            meets = PAPER_CONTEXTS[position] if position < len(PAPER_CONTEXTS) else None
        else:
            meets = str(context) if str(context) in PAPER_CONTEXTS else None
        counterpart[meets or f"+{context}"] = context
    for key in dict.fromkeys((*PAPER_CONTEXTS, *counterpart)):
        here = select(rows, context=counterpart.get(key, -1))
        found[key, "context", "value"] = _setting(here, "context", "tokens", none)
        found[key, "micro", "value"] = _setting(here, "micro", "1", none)
        found[key, "accumulation", "value"] = _setting(here, "accumulation", "1", none)
        found[key, "status", "value"] = (
            none if here.empty else worded(", ".join(dict.fromkeys(here["status"])))
        )
        found[key, "throughput", "value"] = _measured(here, "tokens_per_second", "tok/s", none)
        found[key, "allocated", "value"] = _measured(here, "allocated_gib", "GiB", none)
    put_setting(found, rows, records.page)
    put_retention(found, records, rows)
    tokens = rows["micro"] * rows["accumulation"] * rows["context"]
    larger = rows[tokens > tokens.min()]["context"] if len(rows) else []
    if len(larger):
        contexts = ", ".join(f"{context:,.0f}" for context in sorted(set(larger)))
        found["setting", "update", "value"] = worded(f"T = {contexts}")
    return found
