"""Structural diagnostics."""

from functools import partial

import pandas as pd

from report.compute.structure import (
    PAPER_FLOW_LENGTH,
    PARTS,
    distance,
    internal_organization,
    layerwise,
    routing,
    sink_profile,
    spectrum,
)
from report.layout import (
    SCALE_ROWS,
    SCALES,
    Column,
    Note,
    Number,
    Panel,
    Part,
    Row,
    Table,
    arrow,
    value,
)

PERCENT = Number(2, "%")
FINE_PERCENT = Number(3, "%")
RANK = Number(1, significant=3)
PAPER_LENGTHS = {"flow_length": PAPER_FLOW_LENGTH, "rank_length": 512}
PAPER_DEPTH = {"10M": 6, "30M": 10, "100M": 20}


def _length_notes(cells: pd.DataFrame, **subjects: str) -> list[Note]:
    """Name the sequence lengths that differ from the paper’s, on which the figures depend.

    subjects: what of the table rests on flow_length, and what on rank_length.
    """
    notes = []
    for column, subject in subjects.items():
        found = cells[(cells["column"] == column) & (cells["status"] == "ok")]
        differing = found[found["value"] != PAPER_LENGTHS[column]]
        if len(differing):
            lengths = ", ".join(
                f"{value:.0f} ({row})"
                for row, value in zip(differing["row"], differing["value"], strict=True)
            )
            notes.append(
                Note(
                    f"{subject} rest on sequences of {lengths} tokens here, of "
                    f"{PAPER_LENGTHS[column]} in the paper."
                )
            )
    return notes


def _distance_notes(cells: pd.DataFrame, **subjects: str) -> list[Note]:
    """The same, with the distances that stand for the paper’s in sequences of other lengths."""
    found = cells[(cells["column"] == "flow_length") & (cells["status"] == "ok")]
    readings = []
    for row, length in zip(found["row"], found["value"], strict=True):
        if length != PAPER_FLOW_LENGTH:
            distances = [str(distance(length, column)) for column in PARTS]
            readings.append(f"{', '.join(distances[:-1])} and {distances[-1]} ({row})")
    notes = _length_notes(cells, **subjects)
    if readings:
        notes.append(
            Note(
                "The distances 128, 256 and 512 stand for T/8, T/4 and T/2 of these sequences, "
                f"which are {'; '.join(readings)} here."
            )
        )
    return notes


_DEPTH = partial(_length_notes, flow_length="Shares of flow", rank_length="Effective ranks")
_INTERNAL = partial(_distance_notes, flow_length="Shares of flow", rank_length="Effective ranks")
_SINKS = partial(_length_notes, flow_length="Values")
_HISTORY = partial(_distance_notes, flow_length="Values")
_SPECTRA = partial(_length_notes, rank_length="Values")


def _distances(suffix: str = "") -> tuple[Column, ...]:
    # Shorter campaigns scale the distances with T, so the header gives both readings.
    return (
        arrow("$d>128$\n($T/8$)", f"beyond_128{suffix}", PERCENT),
        arrow("$d>256$\n($T/4$)", f"beyond_256{suffix}", PERCENT),
        arrow("$d>512$\n($T/2$)", f"beyond_512{suffix}", PERCENT),
        arrow("First-token\nsink", f"sink_1{suffix}", FINE_PERCENT),
    )


def _sinks(sizes: tuple[int, ...], suffix: str = "") -> tuple[Column, ...]:
    return tuple(arrow(f"First {k}", f"sink_{k}{suffix}", FINE_PERCENT) for k in sizes)


def _spectra(suffix: str = "") -> tuple[Column, ...]:
    return (
        arrow("Stable rank", f"stable_rank{suffix}", Number(3)),
        arrow("Effective rank", f"effrank{suffix}", Number(3)),
        arrow("90% dims", f"dims_90{suffix}", Number(2)),
        arrow("95% dims", f"dims_95{suffix}", Number(2)),
        arrow("Top singular energy", f"top_energy{suffix}", Number(5)),
    )


def _spread(letter: str, columns: tuple[Column, ...]) -> Panel:
    return Panel(f"({letter}) Sample standard deviation over seeds", columns, measured=True)


INTERNAL = Table(
    label="relation_internal",
    number="4",
    title="Internal organization",
    summary="Where flow goes by depth and by distance, MHA against Relation.",
    caption=(
        "Internal organization of the paired checkpoints: (a) diagonal or Self flow and routing "
        "rank by depth, (b) where historical flow goes. Arrows read MHA → Relation; values are "
        "means over seeds."
    ),
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(
        Panel(
            "(a) Depth organization",
            (
                arrow("L0 diag. /\nSelf flow", "l0_self", PERCENT),
                Column(
                    "L0 Flow\nEffRank",
                    (
                        Part("l0_effrank.mha", RANK),
                        Part("l0_effrank.full", RANK),
                        Part("l0_effrank.ratio", Number(2, "×")),
                    ),
                    "{} → {} ({})",
                    operator="both",
                ),
                arrow("L1 diag. /\nSelf flow", "l1_self", PERCENT),
                Column(
                    "Rel. L2+\nSelf / Ex.",
                    (Part("l2_self.full", PERCENT), Part("l2_exchange.full", PERCENT)),
                    "{}/{}",
                    operator="full",
                ),
            ),
        ),
        Panel("(b) Historical routing", _distances()),
    ),
    measure=internal_organization,
    notes=_INTERNAL,
)


def _layer_row(key: str) -> Row:
    scale, layer = key.split("/")
    return Row(key, (scale, layer), group=scale)


LAYERWISE = Table(
    label="app-structural-layerwise",
    number="7",
    title="Flow organization by layer",
    summary="Self flow and effective rank at every layer.",
    caption=(
        "Normalized flow by layer: MHA’s diagonal entry, Relation’s Self flow, and the effective "
        "rank of either flow. Values are means over seeds."
    ),
    stubs=("Scale", "Layer"),
    rows=tuple(
        _layer_row(f"{scale}/L{layer}") for scale in SCALES for layer in range(PAPER_DEPTH[scale])
    ),
    panels=(
        Panel(
            "",
            (
                value("MHA diag.", "self.mha", PERCENT, "mha"),
                value("Rel. Self", "self.full", PERCENT, "full"),
                value("MHA EffRank", "effrank.mha", RANK, "mha"),
                value("Rel. EffRank", "effrank.full", RANK, "full"),
                value("Rel./MHA", "effrank.ratio", Number(2)),
            ),
        ),
    ),
    measure=layerwise,
    extra_row=_layer_row,
    notes=_DEPTH,
)

ROUTING = Table(
    label="app-structural-routing",
    number="8",
    title="Historical routing",
    summary="Historical mass beyond three distances, and the first-token sink.",
    caption=(
        "Historical flow beyond three distances and on the first token, conditioned on history. "
        "Entries read MHA → Relation; values are means over seeds."
    ),
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(Panel("(a) Mean over seeds", _distances()), _spread("b", _distances("_sd"))),
    measure=routing,
    notes=_HISTORY,
)

SINK_PROFILE = Table(
    label="app-structural-sink-profile",
    number="9",
    title="Early-token sink profile",
    summary="Historical mass on the first 1 to 32 tokens.",
    caption=(
        "Historical flow on the first $k$ tokens, conditioned on history. Entries read "
        "MHA → Relation; values are means over seeds."
    ),
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(
        Panel(
            "(a) First 1 / 2 / 4",
            _sinks((1, 2, 4)),
        ),
        Panel(
            "(b) First 8 / 16 / 32",
            _sinks((8, 16, 32)),
        ),
        _spread("c", _sinks((1, 2, 4, 8, 16, 32), "_sd")),
    ),
    measure=sink_profile,
    notes=_SINKS,
)

SPECTRUM = Table(
    label="app-structural-spectrum",
    number="10",
    title="Flow spectrum",
    summary="Singular-value statistics of the flow matrices.",
    caption=(
        "Singular values of the normalized flow, over all layers. Entries read MHA → Relation; "
        "values are means over seeds."
    ),
    stubs=("Scale",),
    rows=SCALE_ROWS,
    panels=(
        Panel("(a) Mean over seeds", _spectra()),
        _spread("b", _spectra("_sd")),
    ),
    measure=spectrum,
    notes=_SPECTRA,
)
