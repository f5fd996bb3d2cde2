"""Claims on the flow inside the trained models: 6 to 11, 19, 20 (Section 6.2, Appendix B.5)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from report.judge.claims.context import Context
from report.judge.claims.evidence import Evidence, Term, compare, falls, printed, rises
from report.values.layout import SCALES, Table
from report.values.paper import load
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

PAIRS = ("full", "mha")
# Claim 20: the shift is rapid where L1 keeps less than this share of L0's Self flow.
RAPID = 0.5
_FIRST_AND_MOST = (("self", "anchor", "Self flow"), ("effrank", "router", "effective rank"))
# Claim 19, by column of Table 10: what it is called, and the sign of Relation's less MHA's.
SPECTRA = {
    "stable_rank": ("stable rank", rises),
    "effrank": ("effective rank", rises),
    "dims_90": ("90% dims", rises),
    "dims_95": ("95% dims", rises),
    "top_energy": ("top singular energy", falls),
}


def _above_one(value: float) -> bool:
    return value > 1


@dataclass(frozen=True)
class _Row:
    """A column of a table that a claim compares at every scale.

    terms: Relation's value less MHA's (-) or over it (/), seed by seed; "" for a column that holds
    the value itself. holds: the paper's sign or bound. label: stands beside the scale.
    """

    table: Table
    column: str
    quantity: str
    holds: Callable[[float], bool]
    terms: Literal["-", "/", ""] = "-"
    label: str = ""
    scales: tuple[str, ...] = SCALES

    def compared(self, context: Context, scale: str) -> Evidence:
        """The evidence of a scale."""
        columns = (f"{self.column}.{v}" for v in PAIRS) if self.terms else (self.column,)
        term, *mha = (context.term(self.table, scale, column) for column in columns)
        if self.terms == "-":
            term -= mha[0]
        elif self.terms == "/":
            paper = printed(self.table.label, scale, f"{self.column}.ratio")
            term = Term(paper, term.ours / mha[0].ours)
        return compare(f"{scale}{self.label}", self.quantity, *term, self.holds)


def _each(*rows: _Row) -> Callable[[Context], Iterator[Evidence]]:
    """The evidence of these rows, scale by scale."""
    return lambda context: (
        row.compared(context, scale) for scale in SCALES for row in rows if scale in row.scales
    )


def _below_largest(value: float) -> bool:
    return value < LARGEST_L1_SELF


def _at_least_least(value: float) -> bool:
    return value >= least_exchange()


# Claims 6 to 9, 11 and 19.
self_flow_first = _each(_Row(INTERNAL, "l0_self", "L0 Self flow, Relation − MHA's diagonal", rises))
_RANK = "L0 effective rank of the flow, Relation / MHA"
rank_first = _each(_Row(INTERNAL, "l0_effrank", _RANK, _above_one, "/"))
_SECOND = "L1 Self flow of Relation"
self_flow_second = _each(_Row(INTERNAL, "l1_self.full", _SECOND, _below_largest, ""))
_DEEP = "Exchange flow of Relation from L2 on"
exchange_deep = _each(_Row(INTERNAL, DEEP_EXCHANGE, _DEEP, _at_least_least, ""))
_ON_THE_FIRST = "historical mass on the first {}, Relation − MHA"
sink = _each(
    _Row(SINK_PROFILE, "sink_1", _ON_THE_FIRST.format(1), falls, label=", first 1"),
    _Row(
        SINK_PROFILE, "sink_32", _ON_THE_FIRST.format(32), rises, "-", ", first 32", ("10M", "30M")
    ),
)
spectrum = _each(
    *(
        _Row(SPECTRUM, column, f"{words}, Relation − MHA", holds, label=f", {words}")
        for column, (words, holds) in SPECTRA.items()
    )
)


def distant_mass(context: Context) -> Iterator[Evidence]:
    """Claim 10, at the distances that stand for the paper's in sequences of another length."""
    for scale in SCALES:
        length = context.cell(INTERNAL, scale, "flow_length").value or PAPER_FLOW_LENGTH
        for column, part in PARTS.items():
            away = distance(length, column)
            stands = "" if length == PAPER_FLOW_LENGTH else f" = T/{part}"
            quantity = f"historical mass beyond {away}{stands}, Relation − MHA"
            row = _Row(INTERNAL, column, quantity, rises, label=f", d > {away}")
            yield row.compared(context, scale)


def anchor(context: Context) -> Iterator[Evidence]:
    """Claim 20: the paper says it without numbers; the ratios are those of Table 7."""
    table = context.table(LAYERWISE.measure)
    for scale in SCALES:
        rows = [
            r for r, *key in table if key == ["self.full", "value"] and r.startswith(f"{scale}/")
        ]
        first, second = rows[:2]
        for column, role, name in _FIRST_AND_MOST:
            top = context.term(LAYERWISE, first, f"{column}.full")
            most = _with_most(context, rows[1:], f"{column}.full")
            quantity = f"{name} of Relation, L0 / the later layer with most"
            yield _unsized(f"{scale}, {role}", quantity, top / most, _above_one)
        kept, of_mha = (
            context.term(LAYERWISE, second, f"self.{variant}")
            / context.term(LAYERWISE, first, f"self.{variant}")
            for variant in PAIRS
        )
        quantity = "Self flow of Relation, L1 / L0"
        yield _unsized(f"{scale}, shift", quantity, kept, lambda value: value < RAPID)
        yield _unsized(
            f"{scale}, shift beside MHA's",
            "L1 / L0 of Relation's Self flow / that of MHA's diagonal",
            kept / of_mha,
            lambda value: value < 1,
        )


def _with_most(context: Context, rows: list[str], column: str) -> Term:
    """The largest of these layers, in the paper and in the campaign, which may be deeper."""
    ours = (context.cell(LAYERWISE, row, column) for row in rows)
    label = LAYERWISE.label
    theirs = [printed(label, r, column) for r in rows if (r, column, "value") in load(label)]
    return Term(
        max(theirs, key=lambda layer: layer.value),
        max(ours, key=lambda layer: -math.inf if layer.value is None else layer.value),
    )


def _unsized(
    label: str, quantity: str, found: Term, direction: Callable[[float], bool]
) -> Evidence:
    """A comparison whose size the paper does not assert: its sign or bound alone decides."""
    return replace(compare(label, quantity, *found, direction), size=None, asks_size=False)
