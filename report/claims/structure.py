"""Claims on the flow inside the trained models: 6 to 11 (Section 6.2, Appendix B.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from report import paper_seeds
from report.claims.context import Context, difference
from report.claims.evidence import Evidence, compare, printed, shown_beside
from report.compute import structure as compute
from report.compute.measured import Measurements
from report.layout import SCALES

LARGEST_L1_SELF = 1.5  # %, claim 8
DEEP_EXCHANGE = "l2_exchange.full"


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
    yield from _against_later_layers(context, "effrank", "effective rank")


def self_flow_second(context: Context) -> Iterator[Evidence]:
    """Claim 8."""
    quantity = "L1 Self flow of Relation"
    yield from _one(context, "l1_self.full", quantity, lambda value: value < LARGEST_L1_SELF)
    yield from _against_later_layers(context, "self", "Self flow")


def _against_later_layers(context: Context, column: str, quantity: str) -> Iterator[Evidence]:
    """Relation's first layer over the later one that has most, which decides nothing.

    The paper says without a number that L0 is the Self anchor and the high-rank router.
    """
    label, name = "app-structural-layerwise", f"{column}.full"
    found = context.table(compute.layerwise)
    for scale in SCALES:
        first, *rows = (
            row for row, *key in found if key == [name, "value"] and row.startswith(f"{scale}/")
        )
        later = [found[row, name, "value"] for row in rows]
        theirs = (
            printed(label, row, name) for row in rows if paper_seeds.printed(label, row, name)
        )
        ours = compute.ratio(
            found[first, name, "value"],
            max(later, key=lambda layer: -math.inf if layer.value is None else layer.value),
        )
        paper = printed(label, first, name).over(max(theirs, key=lambda layer: layer.value))
        told = f"L0 {quantity} of Relation / that of the later layer with most"
        yield shown_beside(compare(scale, told, paper, ours, None))


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
