"""Throughput, memory and measured complexity (sections 4.3, G, H, Table 1)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd

from relation.systems.statistics import ratio, ratio_apart
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
from report.layout import SCALES
from report.verdicts import Likeness

if TYPE_CHECKING:
    from relation.records import CampaignRecords

PAPER_CONTEXTS = ("1024", "2048", "4096", "8192", "16384", "32768", "65536")
OPERATORS = ("mha", "full-reference", "full-flash", "linear")
# What the backend `tiled` is, where it stands for FlashRelation.
TILED = "FlashRelation’s tiling in plain PyTorch, not the kernel"
# An exponent is fitted where time is so many times that of the smallest T, to so many contexts.
GROWN, FEWEST_POINTS = 5, 3


def _absent(
    records: CampaignRecords, benchmark: str, scale: str | None, *variants: str
) -> Measured:
    """Missing pieces are listed by the benchmark that would have measured them, or by variant."""
    return absent(records, ("throughput",), scale, (benchmark, *variants))


def _failed(rows: pd.DataFrame) -> Measured:
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
        return _failed(rows)
    row = passed.iloc[0]
    if not is_number(row[field]):
        return no_counterpart(f"not counted on this device: {row['device']}")
    return Measured(
        float(row[field]),
        unit=unit,
        n=len(row["samples"]),
        reason=f"backend {row['backend']} on {row['device']}",
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


def _put_setting(found: Measurements, rows: pd.DataFrame) -> None:
    """What the rows of a table were measured on and under, in the row "setting"."""
    if rows.empty:
        return

    def put(column: str, texts: Iterable[object]) -> None:
        told = "; ".join(dict.fromkeys(str(text) for text in texts if pd.notna(text)))
        if told:
            found["setting", column, "value"] = worded(told)

    put("device", rows["device"])
    put("driver", rows["driver"])
    clocks = rows["sm_clock_least"].dropna()
    if len(clocks):
        put("clock", [f"{clocks.min():.0f} of {rows['sm_clock_limit'].max():.0f} MHz"])
    where = rows["benchmark"] + " " + rows["scale"] if "benchmark" in rows else rows["scale"]
    disturbed = rows["disturbed"].notna()
    put("disturbed", where[disturbed] + ": " + rows["disturbed"][disturbed])
    if "kernels" in rows:
        passed = rows[rows["status"] == "PASS"].to_dict("records")
        ran = {row["side"]: map(_kernel_name, row["kernels"]) for row in passed}
        names = {side: ", ".join(dict.fromkeys(kernels)) for side, kernels in ran.items()}
        put("kernels", [f"{side}: {kernels}" for side, kernels in names.items() if kernels])
        put("tokens", rows["tokens"])
        alone = rows[rows["alone"].astype(bool)]
        put("alone", alone["scale"] + " " + alone["side"])


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
    _put_setting(found, select(records.throughput, benchmark="matched"))
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
    _put_setting(found, select(records.throughput, benchmark=("fixed", "matched")))
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
        worded(others.iloc[0]["backend"]) if len(others) else found[scale, "peers.other", "value"]
    )


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
    _put_setting(found, select(records.throughput, benchmark="linear-steady"))
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
    _put_setting(found, rows)
    tokens = rows["micro"] * rows["accumulation"] * rows["context"]
    larger = rows[tokens > tokens.min()]["context"] if len(rows) else []
    if len(larger):
        contexts = ", ".join(f"{context:,.0f}" for context in sorted(set(larger)))
        found["setting", "update", "value"] = worded(f"T = {contexts}")
    return found


def grown(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one operator whose time is at least GROWN times that of its smallest T.

    Below that, what does not depend on T, such as launching kernels, is a part of the time.
    """
    passed = rows[rows["seconds"].notna()].sort_values("context")
    if passed.empty:
        return passed
    return passed[passed["seconds"] >= GROWN * passed["seconds"].iloc[0]]


def complexity(records: CampaignRecords) -> Measurements:
    """Table 1, beside exponents fitted to the measured time and decode state against T."""
    found: Measurements = {}
    sequential = no_counterpart("a property of the algorithm; nothing is measured for it")
    for operator in OPERATORS:
        rows = select(records.complexity, operator=operator).sort_values("context")
        none = absent(records, ("complexity",), variants=_names(operator))
        timed = grown(rows)
        few = none if rows.empty else _too_few(rows, timed)
        time = _fit(timed, "seconds") if timed["context"].nunique() >= FEWEST_POINTS else None
        _put_fit(found, operator, "time_exponent", time, few, noisy=True)
        _put_fit(
            found, operator, "state_exponent", _fit(rows, "decode_state_bytes"), none, noisy=False
        )
        found[operator, "contexts", "value"] = _range(
            timed["context"], few if time is None else none
        )
        for place in ("first", "last"):
            found[operator, f"decode_{place}", "value"] = _token(rows, place, none)
        decoded = rows[rows["decode_seconds"].notna()]
        found[operator, "decoded", "value"] = _range(decoded["context"], none)
    for row, candidates in (
        ("mha", ("mha",)),
        ("full", ("full-flash", "full-reference")),
        ("linear", ("linear",)),
    ):
        found[row, "sequential", "value"] = sequential
        for column, quantity in (("complexity", "time"), ("state", "state")):
            found[row, column, "value"] = _power(found, candidates, quantity)
    _put_setting(found, records.complexity)
    return found


def _too_few(rows: pd.DataFrame, timed: pd.DataFrame) -> Measured:
    """Why an operator's exponent is not fitted."""
    passed = rows[rows["seconds"].notna()]
    if passed.empty:
        return _failed(rows)
    grew = passed["seconds"].iloc[-1] / passed["seconds"].iloc[0]
    return no_counterpart(
        f"fitted to {FEWEST_POINTS} contexts at least whose time is {GROWN} times that of the "
        f"smallest; here {timed['context'].nunique()} are, up to {grew:.1f} times"
    )


def _range(contexts: pd.Series, none: Measured) -> Measured:
    if contexts.empty:
        return none
    return worded(f"{contexts.min():.0f} to {contexts.max():.0f}")


def _token(rows: pd.DataFrame, place: str, none: Measured) -> Measured:
    """The time to decode one token at the first or last T that has one."""
    decoded = rows[rows["decode_seconds"].notna()]
    if rows.empty:
        return none
    if decoded.empty:
        return Measured(status="failed", reason=str(rows.iloc[0]["decode_reason"]))
    row = decoded.iloc[0 if place == "first" else -1]
    return Measured(float(row["decode_seconds"]), unit="ms", n=1, sources=(row["source"],))


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
