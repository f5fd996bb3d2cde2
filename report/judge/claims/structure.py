"""Claims on the flow inside the trained models: 6 to 11, 19, 20 (Section 6.2, Appendix B.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from report.judge.claims.context import Context
from report.judge.claims.evidence import Evidence, Term, compare, falls, printed, rises
from report.values import paper_seeds
from report.values.layout import SCALES, Table
from report.values.structure import (
    DEEP_EXCHANGE,
    INTERNAL,
    LARGEST_L1_SELF,
    LAYERWISE,
    PAPER_FLOW_LENGTH,
    PARTS,
    SINK_PROFILE,
    SPECTRUM,
    distance,
    least_exchange,
)

# Claim 20: the shift is rapid where L1 keeps less than this share of L0's Self flow.
RAPID = 0.5
# Claim 19, by column of Table 10: what it is called, and the sign of Relation's less MHA's.
SPECTRA = {
    "stable_rank": ("stable rank", rises),
    "effrank": ("effective rank", rises),
    "dims_90": ("90% dims", rises),
    "dims_95": ("95% dims", rises),
    "top_energy": ("top singular energy", falls),
}


def _pair(context: Context, table: Table, row: str, column: str) -> tuple[Term, Term]:
    """Relation's value and MHA's."""
    full, mha = (context.term(table, row, f"{column}.{v}") for v in ("full", "mha"))
    return full, mha


def _difference(context: Context, table: Table, row: str, column: str) -> Term:
    """Relation's value less MHA's, seed by seed."""
    full, mha = _pair(context, table, row, column)
    return full - mha


def self_flow_first(context: Context) -> Iterator[Evidence]:
    """Claim 6."""
    for scale in SCALES:
        found = _difference(context, INTERNAL, scale, "l0_self")
        yield compare(scale, "L0 Self flow, Relation - MHA's diagonal", *found, rises)


def rank_first(context: Context) -> Iterator[Evidence]:
    """Claim 7."""
    for scale in SCALES:
        full, mha = _pair(context, INTERNAL, scale, "l0_effrank")
        paper = printed(INTERNAL.label, scale, "l0_effrank.ratio")
        quantity = "L0 effective rank of the flow, Relation / MHA"
        yield compare(scale, quantity, paper, full.ours / mha.ours, lambda value: value > 1)


def self_flow_second(context: Context) -> Iterator[Evidence]:
    """Claim 8."""
    for scale in SCALES:
        found = context.term(INTERNAL, scale, "l1_self.full")
        yield compare(
            scale, "L1 Self flow of Relation", *found, lambda value: value < LARGEST_L1_SELF
        )


def exchange_deep(context: Context) -> Iterator[Evidence]:
    """Claim 9."""
    least = least_exchange()
    for scale in SCALES:
        found = context.term(INTERNAL, scale, DEEP_EXCHANGE)
        quantity = "Exchange flow of Relation from L2 on"
        yield compare(scale, quantity, *found, lambda value: value >= least)


def distant_mass(context: Context) -> Iterator[Evidence]:
    """Claim 10, at the distances that stand for the paper's in sequences of another length."""
    for scale in SCALES:
        length = context.cell(INTERNAL, scale, "flow_length").value or PAPER_FLOW_LENGTH
        for column, part in PARTS.items():
            away = distance(length, column)
            stands = "" if length == PAPER_FLOW_LENGTH else f" = T/{part}"
            yield compare(
                f"{scale}, d > {away}",
                f"historical mass beyond {away}{stands}, Relation - MHA",
                *_difference(context, INTERNAL, scale, column),
                rises,
            )


def sink(context: Context) -> Iterator[Evidence]:
    """Claim 11: less on the first token everywhere, more on the first 32 at 10M and 30M."""
    for scale in SCALES:
        for k, direction in ((1, falls), (32, rises)):
            if (scale, k) == ("100M", 32):
                continue
            yield compare(
                f"{scale}, first {k}",
                f"historical mass on the first {k}, Relation - MHA",
                *_difference(context, SINK_PROFILE, scale, f"sink_{k}"),
                direction,
            )


def spectrum(context: Context) -> Iterator[Evidence]:
    """Claim 19."""
    for scale in SCALES:
        for column, (words, direction) in SPECTRA.items():
            found = _difference(context, SPECTRUM, scale, column)
            yield compare(f"{scale}, {words}", f"{words}, Relation - MHA", *found, direction)


def anchor(context: Context) -> Iterator[Evidence]:
    """Claim 20: the paper says it without numbers; the ratios are those of Table 7."""
    table = context.table(LAYERWISE.measure)
    for scale in SCALES:
        rows = [
            r for r, *key in table if key == ["self.full", "value"] and r.startswith(f"{scale}/")
        ]
        first, second = rows[:2]
        for column, role, name in (
            ("self", "anchor", "Self flow"),
            ("effrank", "router", "effective rank"),
        ):
            top = context.term(LAYERWISE, first, f"{column}.full")
            yield _unsized(
                f"{scale}, {role}",
                f"{name} of Relation, L0 / the later layer with most",
                top / _with_most(context, rows[1:], f"{column}.full"),
                lambda value: value > 1,
            )
        kept = {
            variant: context.term(LAYERWISE, second, f"self.{variant}")
            / context.term(LAYERWISE, first, f"self.{variant}")
            for variant in ("full", "mha")
        }
        yield _unsized(
            f"{scale}, shift",
            "Self flow of Relation, L1 / L0",
            kept["full"],
            lambda value: value < RAPID,
        )
        yield _unsized(
            f"{scale}, shift beside MHA's",
            "L1 / L0 of Relation's Self flow / that of MHA's diagonal",
            kept["full"] / kept["mha"],
            lambda value: value < 1,
        )


def _with_most(context: Context, rows: list[str], column: str) -> Term:
    """The largest of these layers, in the paper and in the campaign, which may be deeper."""
    ours = (context.cell(LAYERWISE, row, column) for row in rows)
    label = LAYERWISE.label
    theirs = [printed(label, r, column) for r in rows if paper_seeds.printed(label, r, column)]
    return Term(
        max(theirs, key=lambda layer: layer.value),
        max(ours, key=lambda layer: -math.inf if layer.value is None else layer.value),
    )


def _unsized(
    label: str, quantity: str, found: Term, direction: Callable[[float], bool]
) -> Evidence:
    """A comparison whose size the paper does not assert: its sign or bound alone decides."""
    return replace(compare(label, quantity, *found, direction), size=None, asks_size=False)
