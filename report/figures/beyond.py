"""Beyond the paper: copying by distance, NLL past the training context, what a layer's parts do."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from relation.variants import VARIANTS
from report.figures.drawing import (
    DASHES,
    by_scale,
    demand,
    doublings,
    figure,
    name_lines,
    percent,
    seeds_and_mean,
    zero,
)
from report.values.copying import longest
from report.values.frames import CampaignRecords
from report.values.length import contexts_of
from report.values.measured import select
from report.values.self_use import PARTS, rises
from report.values.style import INK, LINEAR, MATERIALISED, MHA, MUTED, RELATION

_COLOUR = {"mha": MHA, "full": RELATION, "linear": LINEAR, "hybrid": MATERIALISED, "no-count": INK}
_PART_COLOUR = {"self": RELATION, "exchange": MHA, "count": LINEAR, "mixing": MATERIALISED}
_SYMMETRIC = 0.01  # nat/token, up to which a rise is drawn to scale and not as its logarithm


def _planned(records: CampaignRecords) -> bool:
    known = (records.provenance, records.missing)
    listed = any(len(select(frame, kind="copying")) for frame in known)
    return listed or len(records.copying) > 0


def _lines(
    axes: Axes, rows: pd.DataFrame, value: str, along: str, said: str = "", **look: object
) -> None:
    """A line a variant, thin ones by seed below its mean; `said` follows its name."""
    for variant, colour in _COLOUR.items():
        own = select(rows, variant=variant)
        if len(own):
            curves = own.pivot_table(value, along, "seed")
            seeds_and_mean(axes, curves, colour, label=VARIANTS[variant].title + said, **look)


@figure(
    "beyond-copying",
    heading="In-context copying",
    title="Random tokens that stand twice. Above: how many of the second time are predicted, "
    "against how far back the first lies. Below: the best induction score of a layer’s heads, the "
    "first lying half a context back; dotted, a uniform flow’s. Thin a seed, thick the mean.",
    alt="Line charts by scale: accuracy of the repetition against distance, and the best induction "
    "score against the layer, a line a model.",
    reads=lambda records: records.copying,
    planned=_planned,
)
def copying(records: CampaignRecords) -> Figure:
    demand(len(records.copying) > 0, "examined checkpoint", records, "copying", "run")

    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        accuracy, induction = panels
        _lines(accuracy, select(rows, metric="repeat_accuracy"), "value", "distance")
        doublings(accuracy, sorted(rows["distance"].unique()))
        accuracy.set_xlabel("distance (tokens)")
        accuracy.set_ylim(-0.03, 1.03)
        percent(accuracy)
        heads = select(rows, metric="induction", distance=longest(rows))
        best = heads.groupby(["variant", "seed", "layer"], as_index=False)["value"].max()
        _lines(induction, best, "value", "layer", marker="o")
        places = np.arange(longest(rows), 2 * longest(rows) - 1)
        induction.axhline((1 / (places + 1)).mean(), color=MUTED, linewidth=0.8, linestyle=":")
        induction.xaxis.set_major_locator(MaxNLocator(integer=True))
        induction.set_ylim(bottom=0)

    labels = ["predicted", "induction score"]
    return name_lines(by_scale(records.copying, draw, 4.6, labels, "layer"), 4, handlelength=1.6)


@figure(
    "beyond-length",
    heading="Longer than trained",
    title="Windows of several training contexts T. Above: how much the NLL differs from that of "
    "the same tokens in windows of T, by position: what the longer history gives (below 0) or "
    "costs. Below: how much it changes with the count correction kept at log T (dashed) and "
    "without it (solid). Thin a seed, thick the mean.",
    alt="Line charts by scale: differences of NLL against the position in training contexts, a "
    "line a model, with a line at zero.",
    reads=lambda records: records.lengths,
    planned=_planned,
)
def length(records: CampaignRecords) -> Figure:
    demand(len(records.lengths) > 0, "window longer than trained", records, "lengths", "run")
    contexts = contexts_of(records)
    keys = ["scale", "variant", "seed", "first"]
    rows = records.lengths.pivot_table("nll", keys, "reading").reset_index()
    models = zip(rows["scale"], rows["variant"], strict=True)
    # The middle of a quarter of a context.
    rows["position"] = rows["first"] / [contexts[model] for model in models] + 1 / 8
    for column in ("frozen", "removed"):
        if column not in rows:
            rows[column] = np.nan

    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        beyond, count = panels
        for axes in panels:
            zero(axes, MUTED)
            axes.axvline(1, color=MUTED, linewidth=0.8, linestyle=":")
        _lines(beyond, rows.assign(value=rows["whole"] - rows["apart"]), "value", "position")
        for reading, look in (("removed", "-"), ("frozen", DASHES)):
            change = rows.assign(value=rows[reading] - rows["whole"]).dropna(subset="value")
            _lines(count, change, "value", "position", linestyle=look)
        count.set_yscale("symlog", linthresh=_SYMMETRIC)

    labels = ["against windows of T\n(nat/token)", "another count\n(nat/token)"]
    drawn = by_scale(rows, draw, 4.6, labels, "position (training contexts)", sharex="col")
    return name_lines(drawn, 4, handlelength=1.6)


def _by_layer(records: CampaignRecords) -> pd.DataFrame:
    """The rise of NLL without each part, a row a checkpoint, layer and part."""
    keys = ["scale", "variant", "seed"]
    whole = [rises(rows) for _, rows in records.self_use.groupby(keys)]
    return pd.concat(whole, ignore_index=True)


@figure(
    "beyond-self",
    heading="Where Self is used",
    title="By layer. Above: Self flow of Relation and diagonal flow of MHA, of tokens that stand "
    "in their window for the first time (solid) and again (dashed). Below: how Full Relation’s NLL "
    "rises where that layer lacks Self, Exchange, the count correction or mixing. Thin a seed, "
    "thick the mean.",
    alt="Line charts by scale against the layer: Self flow of tokens that are new and that come "
    "again, and the rise of NLL without each part of a layer, with a line at zero.",
    reads=lambda records: records.self_use,
    planned=_planned,
)
def self_use(records: CampaignRecords) -> Figure:
    demand(len(records.self_use) > 0, "examined checkpoint", records, "self_use", "run")
    rise = select(_by_layer(records), variant="full")

    def draw(scale: str, rows: pd.DataFrame, panels: Sequence[Axes]) -> None:
        flow, worth = panels
        flows = select(rows, metric="self_flow", group="occurrence", variant=("mha", "full"))
        for band, (said, look) in enumerate((("first time", "-"), ("again", DASHES))):
            own = select(flows, band=band)
            _lines(flow, own, "value", "layer", f", {said}", linestyle=look)
        flow.set_ylim(bottom=0)
        percent(flow)
        zero(worth, MUTED)
        for part, colour in _PART_COLOUR.items():
            own = select(rise, scale=scale, group=part)
            curves = own.pivot_table("value", "layer", "seed")
            seeds_and_mean(worth, curves, colour, label=PARTS[part].replace("\n", " "), marker="o")
        worth.set_yscale("symlog", linthresh=_SYMMETRIC)
        worth.xaxis.set_major_locator(MaxNLocator(integer=True))
        worth.legend(handlelength=1.6, ncols=2)

    labels = ["Self / diagonal flow", "rise of NLL\n(nat/token)"]
    return by_scale(records.self_use, draw, 4.6, labels, "layer", sharex="col", legend=0)
