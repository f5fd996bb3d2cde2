"""Throughput, memory and measured complexity (sections 4.3, G, H, Table 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd

from report.compute.configurations import micro_ga
from report.compute.fit import PowerFit, power_fit
from report.compute.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    no_counterpart,
    select,
    worded,
)
from report.compute.structure import ratio
from report.layout import SCALES

if TYPE_CHECKING:
    from relation.records import CampaignRecords

PAPER_CONTEXTS = ("1024", "2048", "4096", "8192", "16384", "32768", "65536")
OPERATORS = ("mha", "full-reference", "full-flash", "linear")


def _absent(
    records: CampaignRecords, benchmark: str, scale: str | None, *variants: str
) -> Measured:
    """Missing pieces are listed by the benchmark that would have measured them, or by variant."""
    return absent(records, ("throughput",), scale, (benchmark, *variants))


def _measured(rows: pd.DataFrame, field: str, unit: str, none: Measured) -> Measured:
    """Mean of a field over the measurements that ran to their end."""
    if rows.empty:
        return none
    sources = tuple(dict.fromkeys(rows["source"]))
    devices = ", ".join(dict.fromkeys(rows["device"]))
    passed = rows[rows["status"] == "PASS"]
    if passed.empty:
        return Measured(
            status="oom", reason=f"the device ran out of memory: {devices}", sources=sources
        )
    values = [float(value) for value in passed[field] if is_number(value)]
    if not values:
        return no_counterpart(f"not counted on this device: {devices}")
    backends = ", ".join(dict.fromkeys(passed["backend"]))
    return Measured(
        sum(values) / len(values),
        unit=unit,
        n=len(values),
        reason=f"backend {backends} on {devices}",
        sources=sources,
    )


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
        for variant in ("mha", "full"):
            rows = select(matched, variant=variant)
            none = _absent(records, "matched", scale, variant)
            for column, field, unit in (
                ("throughput", "tokens_per_second", "tok/s"),
                ("allocated", "allocated_gib", "GiB"),
                ("reserved", "reserved_gib", "GiB"),
            ):
                found[scale, f"{column}.{variant}", "value"] = _measured(rows, field, unit, none)
            found[scale, f"micro_ga.{variant}", "value"] = _worded(rows, none)
        found[scale, "ratio", "value"] = ratio(
            found[scale, "throughput.full", "value"], found[scale, "throughput.mha", "value"]
        )
    return found


def efficient(records: CampaignRecords) -> Measurements:
    """Table 5: the materialised operator against the tiled one, and the matched pair."""
    found: Measurements = {}
    matched = production(records)
    for scale in SCALES:
        fixed = select(records.throughput, benchmark="fixed", scale=scale, variant="full")
        none = _absent(records, "fixed", scale, "full")
        materialised = fixed["backend"] == "reference"
        reference = _measured(fixed[materialised], "tokens_per_second", "tok/s", none)
        flash = _measured(fixed[~materialised], "tokens_per_second", "tok/s", none)
        found[scale, "fixed.reference", "value"] = reference
        found[scale, "fixed.flash", "value"] = flash
        found[scale, "fixed.speedup", "value"] = ratio(flash, reference)
        found[scale, "fixed.context", "value"] = _setting(fixed, "context", "tokens", none)
        for column, source in (
            ("context", "context"),
            ("mha", "throughput.mha"),
            ("full", "throughput.full"),
            ("ratio", "ratio"),
        ):
            found[scale, f"matched.{column}", "value"] = matched[scale, source, "value"]
    return found


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
    return found


def linear_long(records: CampaignRecords) -> Measurements:
    """Linear Relation's throughput and memory against T.

    A campaign's contexts meet the paper's by T, in a miniature campaign by position, the first with
    T = 1024 and so on; others get a row of their own, keyed ``+<T>``.
    """
    rows = select(records.throughput, benchmark="linear-long")
    none = (
        _absent(records, "linear-long", None, "linear")
        if rows.empty
        else no_counterpart(f"this campaign measures {rows['position'].nunique()} contexts")
    )
    found: Measurements = {}
    counterpart = {}
    for row in rows.sort_values("context").to_dict("records"):
        context, position = int(row["context"]), int(row["position"])
        if records.page["miniature"]:
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
    return found


def complexity(records: CampaignRecords) -> Measurements:
    """Table 1, beside exponents fitted to the measured time and decode state against T."""
    found: Measurements = {}
    sequential = no_counterpart("a property of the algorithm; nothing is measured for it")
    for operator in OPERATORS:
        rows = select(records.complexity, operator=operator)
        none = absent(records, ("complexity",), variants=_names(operator))
        fits = {
            "time": _fit(rows, "seconds"),
            "state": _fit(rows, "decode_state_bytes"),
        }
        for quantity, fit in fits.items():
            _put_fit(found, operator, f"{quantity}_exponent", fit, none, quantity == "time")
        contexts = sorted(int(context) for context in rows["context"].unique())
        found[operator, "contexts", "value"] = (
            worded(f"{contexts[0]} to {contexts[-1]}") if contexts else none
        )
    for row, candidates in (
        ("mha", ("mha",)),
        ("full", ("full-flash", "full-reference")),
        ("linear", ("linear",)),
    ):
        found[row, "sequential", "value"] = sequential
        for column, quantity in (("complexity", "time"), ("state", "state")):
            found[row, column, "value"] = _power(found, candidates, quantity)
    return found


def _names(operator: str) -> tuple[str, ...]:
    """How the list of missing pieces may name an operator: by benchmark, in full, by variant."""
    return tuple(dict.fromkeys(("complexity", operator, operator.split("-")[0])))


def _fit(rows: pd.DataFrame, field: str) -> PowerFit | None:
    points = [
        (float(context), float(value))
        for context, value in zip(rows["context"], rows[field], strict=True)
        if is_number(value) and value > 0
    ]
    return power_fit(points)


def _put_fit(
    found: Measurements, row: str, column: str, fit: PowerFit | None, none: Measured, noisy: bool
) -> None:
    """A fitted exponent, with an interval where the quantity has noise at all: bytes have none."""
    if fit is None:
        found[row, column, "value"] = none
        return
    found[row, column, "value"] = Measured(fit.exponent, n=fit.points)
    if noisy and fit.low is not None and fit.high is not None:
        found[row, column, "low"] = Measured(fit.low, n=fit.points)
        found[row, column, "high"] = Measured(fit.high, n=fit.points)


def _power(found: Measurements, operators: Iterable[str], quantity: str) -> Measured:
    """The fitted power of T, in words, of the first of ``operators`` that was measured."""
    cells = [found[operator, f"{quantity}_exponent", "value"] for operator in operators]
    for operator, cell in zip(operators, cells, strict=True):
        if cell.value is not None:
            return worded(
                f"T^{round(cell.value, 2) + 0.0:.2f}",
                reason=f"fitted to {cell.n} contexts of {operator}",
            )
    return cells[0]
