"""Claims on the flow inside the trained models: 6 to 11, 19, 20 (Section 6.2, Appendix B.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from report import paper_seeds
from report.claims.context import Context, difference
from report.claims.evidence import Evidence, Printed, compare, printed
from report.compute import structure as compute
from report.compute.measured import Measured, Measurements
from report.layout import SCALES

LARGEST_L1_SELF = 1.5  # %, claim 8
DEEP_EXCHANGE = "l2_exchange.full"
# Claim 20: of L0's Self flow L1 keeps less than this where the shift is rapid.
RAPID = 0.5
# Claim 19, by column of Table 10: what it is called, and whether Relation's is the larger.
SPECTRUM = {
    "stable_rank": ("stable rank", True),
    "effrank": ("effective rank", True),
    "dims_90": ("90% dims", True),
    "dims_95": ("95% dims", True),
    "top_energy": ("top singular energy", False),
}


def _of_the_pair(
    label: str,
    found: Measurements,
    scale: str,
    column: str,
    quantity: str,
    direction: Callable[[float], bool],
    name: str | None = None,
) -> Evidence:
    """Relation's value less MHA's, seed by seed."""
    columns = [f"{column}.{variant}" for variant in ("full", "mha")]
    ours = difference(*(found[scale, name_, "value"] for name_ in columns))
    theirs = [printed(label, scale, name_) for name_ in columns]
    return compare(name or scale, quantity, theirs[0].minus(theirs[1]), ours, direction)


def self_flow_first(context: Context) -> Iterator[Evidence]:
    """Claim 6."""
    for scale in SCALES:
        yield _of_the_pair(
            "relation_internal",
            context.table(compute.internal_organization),
            scale,
            "l0_self",
            "L0 Self flow, Relation - MHA's diagonal",
            lambda value: value > 0,
        )


def _one(
    context: Context, column: str, quantity: str, direction: Callable[[float], bool]
) -> Iterator[Evidence]:
    for scale in SCALES:
        paper = printed("relation_internal", scale, column)
        ours = context.table(compute.internal_organization)[scale, column, "value"]
        yield compare(scale, quantity, paper, ours, direction)


def rank_first(context: Context) -> Iterator[Evidence]:
    """Claim 7."""
    found = context.table(compute.internal_organization)
    for scale in SCALES:
        ours = compute.ratio(*(found[scale, f"l0_effrank.{v}", "value"] for v in ("full", "mha")))
        paper = printed("relation_internal", scale, "l0_effrank.ratio")
        quantity = "L0 effective rank of the flow, Relation / MHA"
        yield compare(scale, quantity, paper, ours, lambda value: value > 1)


def self_flow_second(context: Context) -> Iterator[Evidence]:
    """Claim 8."""
    quantity = "L1 Self flow of Relation"
    return _one(context, "l1_self.full", quantity, lambda value: value < LARGEST_L1_SELF)


def least_exchange() -> float:
    """The paper's least Exchange flow from L2 on, in %, less half of its last digit."""
    theirs = [printed("relation_internal", scale, DEEP_EXCHANGE) for scale in SCALES]
    return min(found.value - found.rounding for found in theirs)


def exchange_deep(context: Context) -> Iterator[Evidence]:
    """Claim 9."""
    least = least_exchange()
    quantity = "Exchange flow of Relation from L2 on"
    return _one(context, DEEP_EXCHANGE, quantity, lambda value: value >= least)


def distant_mass(context: Context) -> Iterator[Evidence]:
    """Claim 10, at the distances that stand for the paper's in sequences of another length."""
    found = context.table(compute.internal_organization)
    for scale in SCALES:
        length = found[scale, "flow_length", "value"].value or compute.PAPER_FLOW_LENGTH
        for column, part in compute.PARTS.items():
            distance = compute.distance(length, column)
            stands = "" if length == compute.PAPER_FLOW_LENGTH else f" = T/{part}"
            yield _of_the_pair(
                "relation_internal",
                found,
                scale,
                column,
                f"historical mass beyond {distance}{stands}, Relation - MHA",
                lambda value: value > 0,
                f"{scale}, d > {distance}",
            )


def sink(context: Context) -> Iterator[Evidence]:
    """Claim 11: less on the first token everywhere, more on the first 32 at 10M and 30M."""
    for scale in SCALES:
        for k in (1, 32):
            if (scale, k) == ("100M", 32):
                continue
            yield _of_the_pair(
                "app-structural-sink-profile",
                context.table(compute.sink_profile),
                scale,
                f"sink_{k}",
                f"historical mass on the first {k}, Relation - MHA",
                (lambda value: value < 0) if k == 1 else (lambda value: value > 0),
                f"{scale}, first {k}",
            )


def spectrum(context: Context) -> Iterator[Evidence]:
    """Claim 19."""
    for scale in SCALES:
        for column, (words, larger) in SPECTRUM.items():
            yield _of_the_pair(
                "app-structural-spectrum",
                context.table(compute.spectrum),
                scale,
                column,
                f"{words}, Relation - MHA",
                _rises if larger else _falls,
                f"{scale}, {words}",
            )


def _rises(value: float) -> bool:
    return value > 0


def _falls(value: float) -> bool:
    return value < 0


def anchor(context: Context) -> Iterator[Evidence]:
    """Claim 20: the paper says it without numbers; the ratios are those of Table 7."""
    found = context.table(compute.layerwise)
    for scale in SCALES:
        rows = [
            r for r, *key in found if key == ["self.full", "value"] and r.startswith(f"{scale}/")
        ]
        first, second = rows[:2]
        for column, name in (("self", "Self flow"), ("effrank", "effective rank")):
            later = _with_most(found, rows[1:], f"{column}.full")
            theirs = _with_most_printed(rows[1:], f"{column}.full")
            yield _unsized(
                f"{scale}, {'anchor' if column == 'self' else 'router'}",
                f"{name} of Relation, L0 / the later layer with most",
                _printed(first, f"{column}.full").over(theirs),
                compute.ratio(found[first, f"{column}.full", "value"], later),
                lambda value: value > 1,
            )
        kept, theirs = {}, {}
        for variant in ("full", "mha"):
            one, two = (found[row, f"self.{variant}", "value"] for row in (second, first))
            kept[variant] = compute.ratio(one, two)
            theirs[variant] = _printed(second, f"self.{variant}").over(
                _printed(first, f"self.{variant}")
            )
        yield _unsized(
            f"{scale}, shift",
            "Self flow of Relation, L1 / L0",
            theirs["full"],
            kept["full"],
            lambda value: value < RAPID,
        )
        yield _unsized(
            f"{scale}, shift beside MHA's",
            "L1 / L0 of Relation's Self flow / that of MHA's diagonal",
            theirs["full"].over(theirs["mha"]),
            compute.ratio(kept["full"], kept["mha"]),
            lambda value: value < 1,
        )


def _printed(row: str, column: str) -> Printed:
    return printed("app-structural-layerwise", row, column)


def _with_most(found: Measurements, rows: list[str], column: str) -> Measured:
    layers = (found[row, column, "value"] for row in rows)
    return max(layers, key=lambda layer: -math.inf if layer.value is None else layer.value)


def _with_most_printed(rows: list[str], column: str) -> Printed:
    label = "app-structural-layerwise"
    theirs = (_printed(r, column) for r in rows if paper_seeds.printed(label, r, column))
    return max(theirs, key=lambda layer: layer.value)


def _unsized(
    label: str,
    quantity: str,
    paper: Printed,
    measured: Measured,
    direction: Callable[[float], bool],
) -> Evidence:
    """A comparison whose size the paper does not assert: its sign or bound alone decides."""
    return replace(compare(label, quantity, paper, measured, direction), size=None, asks_size=False)
