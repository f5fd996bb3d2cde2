"""Flow inside the paired checkpoints: Tables 4 and 7 to 10 (Section 6.2, Appendices B.4, B.5)."""

from collections.abc import Callable, Iterator
from functools import cache

import pandas as pd

from relation.flow.pooled import by_layer, by_seed
from relation.variants import PAIRED
from report.values.frames import CampaignRecords
from report.values.layout import (
    SCALES,
    Column,
    Needs,
    Note,
    Number,
    Panel,
    Part,
    Row,
    Table,
    arrow,
    block,
    shown,
    value,
)
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    no_counterpart,
    over_seeds,
    select,
)
from report.values.paper import printed

DISTANCES = {
    "beyond_128": "beyond_eighth",
    "beyond_256": "beyond_quarter",
    "beyond_512": "beyond_half",
}
# The paper's distances are these parts of its sequences. They stay these parts in shorter ones.
PARTS = {"beyond_128": 8, "beyond_256": 4, "beyond_512": 2}
PAPER_FLOW_LENGTH = 1024
PAPER_LENGTHS = {"flow_length": PAPER_FLOW_LENGTH, "rank_length": 512}
PAPER_DEPTH = {"10M": 6, "30M": 10, "100M": 20}
ROUTING_COLUMNS = DISTANCES | {"sink_1": "sink_1"}
SINK_SIZES = (1, 2, 4, 8, 16, 32)
SPECTRUM_COLUMNS = {
    "stable_rank": "stable_rank",
    "effrank": "effective_rank",
    "dims_90": "dims_90",
    "dims_95": "dims_95",
    "top_energy": "top_singular_energy",
}
LARGEST_L1_SELF = 1.5  # %, claim 8
DEEP_EXCHANGE = "l2_exchange.full"  # claim 9
_ONE_SEED = no_counterpart("one seed has no standard deviation")


class Flow:
    """Flow metrics of the paired checkpoints, pooled as the paper pools them.

    Heads and sequences count-weighted at a layer, layers count-weighted at a checkpoint, then the
    mean over seeds.
    """

    def __init__(self, records: CampaignRecords) -> None:
        self._records = records
        layers = by_layer(records.flow)
        self._layers = dict(iter(layers.groupby(["scale", "variant", "metric"], observed=True)))
        self._sources = records.flow[["scale", "variant", "source"]].drop_duplicates()
        # The layerwise table asks for both once a cell.
        self.depth = cache(self.depth)
        self._sources_of = cache(self._sources_of)

    def depth(self, scale: str) -> int | None:
        """Layers of this campaign's model at a scale; None if it plans no such pair."""
        models = select(self._records.models, scale=scale, variant=PAIRED)
        return int(models["layers"].max()) if len(models) else None

    def _sources_of(self, scale: str, variants: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(select(self._sources, scale=scale, variant=variants)["source"])

    def mean(
        self, scale: str, variant: str, metric: str, first: int = 0, last: int | None = None
    ) -> Measured:
        """A metric over the layers ``first`` to ``last``, or from it on: mean over seeds."""
        depth = self.depth(scale)
        if depth is not None and first >= depth:
            return no_counterpart(f"this campaign's {scale} has {depth} layers")
        rows, values = self._layers.get((scale, variant, metric)), {}
        if rows is not None:
            end = rows["layer"].max() if last is None else last
            checkpoints = by_seed(rows[rows["layer"].between(first, end)])
            values = dict(zip(checkpoints["seed"], checkpoints["value"], strict=True))
        layers = f"layer >= {first}" if first else "all layers"
        return over_seeds(
            values,
            self._records.page["seeds"],
            self._sources_of(scale, variant),
            lambda: absent(self._records, ("flow", "run"), scale, (variant,)),
            unit=_unit(metric),
            rows=f"metric = {metric}, {f'layer = {first}' if first == last else layers}",
        )

    def length(self, scale: str, metric: str) -> Measured:
        """Tokens of the sequences on which a metric was taken."""
        lengths = select(self._records.flow, scale=scale, metric=metric)["length"].unique()
        if len(lengths) == 0:
            return absent(self._records, ("flow", "run"), scale, PAIRED)
        sources = self._sources_of(scale, PAIRED)
        rows = f"length, metric = {metric}"
        return Measured(
            float(max(lengths)), unit="tokens", n=len(lengths), sources=sources, rows=rows
        )


def distance(length: float, column: str) -> int:
    """The distance, in tokens, beyond which a column counts in sequences of ``length`` tokens."""
    return int(length) // PARTS[column]


def _unit(metric: str) -> str:
    """The paper's unit of a metric: shares of flow in percent, dimensions as such."""
    if metric.endswith("_flow") or metric.startswith(("beyond_", "sink_")):
        return "%"
    return "dims" if metric.startswith("dims_") else "1"


def _put_pair(
    found: Measurements,
    flow: Flow,
    row: str,
    columns: dict[str, str],
    first: int = 0,
    last: int | None = None,
) -> None:
    """MHA's and Relation's means over seeds; under COLUMN_sd their standard deviations.

    columns: the metric of each column.
    """
    scale = row.partition("/")[0]
    for column, metric in columns.items():
        for variant in PAIRED:
            mean = flow.mean(scale, variant, metric, first, last)
            found[row, f"{column}.{variant}", "value"] = mean
            found[row, f"{column}_sd.{variant}", "value"] = mean.deviation(_ONE_SEED)


def _put_ratio(found: Measurements, row: str, column: str) -> None:
    """Relation's value over MHA's."""
    full, mha = (found[row, f"{column}.{variant}", "value"] for variant in ("full", "mha"))
    found[row, f"{column}.ratio", "value"] = full / mha


def _of_scales(columns: dict[str, str]) -> Callable[[CampaignRecords], Measurements]:
    """A measure of metrics over all layers: a row a scale."""

    def measure(records: CampaignRecords) -> Measurements:
        flow = records.made(Flow)
        found = Measurements()
        for scale in SCALES:
            _put_pair(found, flow, scale, columns)
            _put_lengths(found, flow, scale)
        return found

    return measure


def _put_lengths(found: Measurements, flow: Flow, scale: str) -> None:
    found[scale, "flow_length", "value"] = flow.length(scale, "self_flow")
    found[scale, "rank_length", "value"] = flow.length(scale, "effective_rank")


def internal_organization(records: CampaignRecords) -> Measurements:
    """Table 4: depth organization and historical routing."""
    flow = records.made(Flow)
    found = routing(records)
    for scale in SCALES:
        for variant in PAIRED:
            for column, metric, layer in (
                ("l0_self", "self_flow", 0),
                ("l1_self", "self_flow", 1),
                ("l0_effrank", "effective_rank", 0),
            ):
                mean = flow.mean(scale, variant, metric, layer, layer)
                found[scale, f"{column}.{variant}", "value"] = mean
        _put_ratio(found, scale, "l0_effrank")
        for column, metric in (("l2_self", "self_flow"), ("l2_exchange", "exchange_flow")):
            found[scale, f"{column}.full", "value"] = flow.mean(scale, "full", metric, 2)
    return found


def layerwise(records: CampaignRecords) -> Measurements:
    """Table 7: diagonal or Self flow and effective rank of the paper's layers and any deeper."""
    flow = records.made(Flow)
    found = Measurements()
    for scale, paper_depth in PAPER_DEPTH.items():
        for layer in range(max(paper_depth, flow.depth(scale) or 0)):
            row = f"{scale}/L{layer}"
            columns = {"self": "self_flow", "effrank": "effective_rank"}
            _put_pair(found, flow, row, columns, layer, layer)
            _put_ratio(found, row, "effrank")
        _put_lengths(found, flow, scale)
    return found


routing = _of_scales(ROUTING_COLUMNS)
sink_profile = _of_scales({f"sink_{k}": f"sink_{k}" for k in SINK_SIZES})
spectrum = _of_scales(SPECTRUM_COLUMNS)


PERCENT = Number(2, "%")
FINE_PERCENT = Number(3, "%")
RANK = Number(1, significant=3)
_DIAGNOSED_PAIRS = Needs(lambda run: run.variant in PAIRED, flow=True)


def _lengths(**subjects: str) -> Callable[[pd.DataFrame], Iterator[Note]]:
    """Notes on the sequence lengths that differ from the paper’s, on which the figures depend.

    subjects: what of the table rests on flow_length, and what on rank_length.
    """

    def notes(cells: pd.DataFrame) -> Iterator[Note]:
        for column, subject in subjects.items():
            theirs = PAPER_LENGTHS[column]
            others = [f"{own:.0f} ({row})" for row, own in shown(cells, column) if own != theirs]
            if others:
                said = f"{subject} rest on sequences of {', '.join(others)} tokens here"
                yield Note(f"{said}, of {theirs} in the paper.")

    return notes


def _distance_notes(cells: pd.DataFrame) -> Iterator[Note]:
    """The distances that stand for the paper’s in sequences of other lengths."""
    readings = []
    for row, length in shown(cells, "flow_length"):
        if length != PAPER_FLOW_LENGTH:
            *others, last = (str(distance(length, column)) for column in PARTS)
            readings.append(f"{', '.join(others)} and {last} ({row})")
    if readings:
        yield Note(
            "The distances 128, 256 and 512 stand for T/8, T/4 and T/2 of these sequences, "
            f"which are {'; '.join(readings)} here."
        )


_DEPTH_LENGTHS = _lengths(flow_length="Shares of flow", rank_length="Effective ranks")


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
    needs=_DIAGNOSED_PAIRS,
    notes=(_DEPTH_LENGTHS, _distance_notes),
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
    panels=block(
        value("MHA diag.", "self.mha", PERCENT, "mha"),
        value("Rel. Self", "self.full", PERCENT, "full"),
        value("MHA EffRank", "effrank.mha", RANK, "mha"),
        value("Rel. EffRank", "effrank.full", RANK, "full"),
        value("Rel./MHA", "effrank.ratio", Number(2)),
    ),
    measure=layerwise,
    needs=_DIAGNOSED_PAIRS,
    extra_row=_layer_row,
    notes=(_DEPTH_LENGTHS,),
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
    panels=(Panel("(a) Mean over seeds", _distances()), _spread("b", _distances("_sd"))),
    measure=routing,
    needs=_DIAGNOSED_PAIRS,
    notes=(_lengths(flow_length="Values"), _distance_notes),
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
    panels=(
        Panel("(a) First 1 / 2 / 4", _sinks((1, 2, 4))),
        Panel("(b) First 8 / 16 / 32", _sinks((8, 16, 32))),
        _spread("c", _sinks((1, 2, 4, 8, 16, 32), "_sd")),
    ),
    measure=sink_profile,
    needs=_DIAGNOSED_PAIRS,
    notes=(_lengths(flow_length="Values"),),
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
    panels=(Panel("(a) Mean over seeds", _spectra()), _spread("b", _spectra("_sd"))),
    measure=spectrum,
    needs=_DIAGNOSED_PAIRS,
    notes=(_lengths(rank_length="Values"),),
)


def least_exchange() -> float:
    """The paper's least Exchange flow from L2 on, in %, less half of its last digit."""
    theirs = [printed(INTERNAL.label, scale, DEEP_EXCHANGE) for scale in SCALES]
    return min(found.number - found.rounding for found in theirs)
