"""Flow by depth, by distance, by position and on the first tokens, and its spectra."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from relation.flow.pooled import by_checkpoint, by_layer
from relation.variants import PAIRED
from report.figures.drawing import (
    DASHES,
    by_scale,
    demand,
    doublings,
    figure,
    percent,
    seeds_and_mean,
    zero,
)
from report.values.frames import CampaignRecords
from report.values.measured import select
from report.values.numbers import MINUS
from report.values.structure import SINK_SIZES
from report.values.style import MUTED, OPERATOR_COLOUR, OPERATOR_NAME

POSITION_LAYERS = (("L0", 0, 0, "-"), ("L1", 1, 1, "--"), ("L2+", 2, np.inf, ":"))
# On a logarithmic axis all positions from here on would be a band of noise.
FIRST_BIN, BINS_AN_OCTAVE = 8, 4
# Panels of both operators, and below each the difference that is too small to see there.
_ABOVE_DIFFERENCE = {"sharex": "col", "height_ratios": (3, 2)}
_DIFFERENCE = "Relation − MHA\n(pp)"


def _measured(records: CampaignRecords) -> pd.DataFrame:
    return select(records.flow, variant=PAIRED)


def _curves(records: CampaignRecords) -> pd.DataFrame:
    return select(records.curves, variant=PAIRED)


def _found(rows: pd.DataFrame, records: CampaignRecords) -> pd.DataFrame:
    demand(len(rows) > 0, "diagnosed checkpoint", records, "flow", "run")
    return rows


def _by_seed(rows: pd.DataFrame, along: str) -> dict[str, pd.DataFrame]:
    """By variant, values with a row a place and a column a seed."""
    return {
        variant: select(rows, variant=variant).pivot_table("value", along, "seed")
        for variant in PAIRED
    }


def _pair(axes: Axes, seeds: dict[str, pd.DataFrame], points: bool = True) -> None:
    for variant, curves in seeds.items():
        name = OPERATOR_NAME[variant]
        seeds_and_mean(axes, curves, OPERATOR_COLOUR[variant], points, label=name)


def _difference(axes: Axes, seeds: dict[str, pd.DataFrame], points: bool = True) -> None:
    """Relation less MHA, over the seeds that have both, in percentage points."""
    zero(axes, MUTED)
    seeds_and_mean(axes, seeds["full"] - seeds["mha"], MUTED, points)
    axes.yaxis.set_major_formatter(FuncFormatter(_points))


def _points(share: float, _: int) -> str:
    return f"{100 * share:+.4g}".replace("-", MINUS) if share else "0"


def _mean_curve(curves: pd.DataFrame) -> np.ndarray:
    """The mean of several curves of one length."""
    return np.mean(np.stack(list(curves["values"])), axis=0)


@figure(
    "flow-by-layer",
    heading="Flow and effective rank by layer",
    title="Self flow of Relation and diagonal flow of MHA, the effective rank of either flow, and "
    "Relation’s rank over MHA’s, by layer: mean over seeds, a point a seed.",
    alt="Line charts by scale: the share of flow that stays on a token, the effective rank of the "
    "flow, and the ratio of the ranks, all against the layer, for MHA and Relation.",
    reads=_measured,
)
def flow_by_layer(records: CampaignRecords) -> Figure:
    metrics = ("self_flow", "effective_rank")
    layers = _found(by_layer(select(_measured(records), metric=metrics)), records)

    def draw(scale: str, layers: pd.DataFrame, panels: Sequence[Axes]) -> None:
        flow, rank, ratio = panels
        own, ranks = (_by_seed(select(layers, metric=metric), "layer") for metric in metrics)
        _pair(flow, own)
        _pair(rank, ranks)
        for here in (flow, rank):
            here.set_ylim(bottom=0, auto=True)  # the next scale may reach higher
        percent(flow)
        ratio.axhline(1, color=MUTED, linewidth=0.8)
        by_seed = ranks["full"] / ranks["mha"]
        ratio.plot(by_seed.index, by_seed, "o", color=MUTED, markersize=3, alpha=0.35)
        # The ratio of the means over seeds, as the tables have it.
        means = ranks["full"].mean(axis=1) / ranks["mha"].mean(axis=1)
        ratio.plot(means.index, means, color=MUTED)
        ratio.xaxis.set_major_locator(MaxNLocator(integer=True))

    labels = ["Self / diagonal flow", "effective rank", "rank, Relation\nover MHA"]
    shape = {"sharex": "col", "sharey": "row", "height_ratios": (3, 3, 2)}
    return by_scale(layers, draw, 5.4, labels, "layer", **shape, legend=0)


@figure(
    "flow-spectra",
    heading="Spectra of the flow",
    title="Singular values of the flow, means over sequences, heads and seeds: the first layer’s "
    "in bold, the others thin. The axes end at 1/100,000, below which FP32 has little to say.",
    alt="Line charts by scale: singular values of the flow matrix on a logarithmic axis against "
    "their index, a line a layer, for MHA and Relation.",
    reads=_curves,
)
def spectra(records: CampaignRecords) -> Figure:
    def draw(scale: str, curves: pd.DataFrame, panels: Sequence[Axes]) -> None:
        (here,) = panels
        for variant in PAIRED:
            layers = select(curves, variant=variant).groupby("layer")
            for layer, group in reversed(list(layers)):
                values = _mean_curve(group)
                look = {"linewidth": 0.6, "alpha": 0.5}
                if layer == 0:
                    look = {"linewidth": 1.8, "label": OPERATOR_NAME[variant]}
                places = np.arange(1, len(values) + 1)
                here.plot(places, values, color=OPERATOR_COLOUR[variant], **look)
        here.set_yscale("log")
        # Below it FP32 has little to say; the next scale may reach higher.
        here.set_ylim(bottom=1e-5, auto=True)

    curves = _found(select(_curves(records), curve="sigma"), records)
    return by_scale(curves, draw, 2.8, ["k-th singular value"], "k", sharey="row", legend=0)


@figure(
    "history-by-distance",
    heading="History by distance",
    title="Historical flow beyond every distance, conditioned on history, and Relation’s less "
    "MHA’s in percentage points: mean over seeds in bold, a thin line a seed. Dashed: the "
    "distances of the tables.",
    alt="Line charts by scale: the conditional historical mass beyond a distance against the "
    "distance on a logarithmic axis, for MHA and Relation, and below it their difference.",
    reads=_curves,
)
def history_by_distance(records: CampaignRecords) -> Figure:
    def draw(scale: str, curves: pd.DataFrame, panels: Sequence[Axes]) -> None:
        above, below = panels
        beyond = {variant: _beyond(select(curves, variant=variant)) for variant in PAIRED}
        _pair(above, beyond, points=False)
        _difference(below, beyond, points=False)
        length = int(curves["length"].max())
        ticks = [length // part for part in (8, 4, 2)]
        for panel in panels:
            for distance in ticks:
                panel.axvline(distance, color=MUTED, linewidth=0.7, linestyle=DASHES)
            doublings(panel, [1, *ticks, length])
        percent(above)
        above.set_ylim(0, 1)

    curves = _found(select(_curves(records), curve="distance"), records)
    labels = ["historical mass\nbeyond d", _DIFFERENCE]
    along = "distance d (tokens)"
    return by_scale(curves, draw, 3.8, labels, along, **_ABOVE_DIFFERENCE, legend=-1)


def _beyond(curves: pd.DataFrame) -> pd.DataFrame:
    """By seed, the mass beyond every distance from 1 on, of the mass at every distance."""
    found = {
        seed: np.append(_mean_curve(group)[::-1].cumsum()[::-1][1:], 0.0)
        for seed, group in curves.groupby("seed")
    }
    return pd.DataFrame(found)[1:]


@figure(
    "sink-profile",
    heading="Flow on the first tokens",
    title="Historical flow on the first k tokens, conditioned on history, and Relation’s less "
    "MHA’s in percentage points: mean over seeds, a point a seed.",
    alt="Line charts by scale: the conditional historical mass on the first 1 to 32 tokens, for "
    "MHA and Relation, and below it their difference.",
    reads=_measured,
)
def sink_profile(records: CampaignRecords) -> Figure:
    sizes = {f"sink_{size}": size for size in SINK_SIZES}
    flow = _found(select(_measured(records), metric=tuple(sizes)), records)
    sinks = by_checkpoint(by_layer(flow))
    sinks["first"] = sinks["metric"].map(sizes)

    def draw(scale: str, sinks: pd.DataFrame, panels: Sequence[Axes]) -> None:
        above, below = panels
        seeds = _by_seed(sinks, "first")
        _pair(above, seeds)
        _difference(below, seeds)
        doublings(above, SINK_SIZES)
        above.set_ylim(bottom=0)
        percent(above)

    labels = ["historical mass\non the first k", _DIFFERENCE]
    return by_scale(sinks, draw, 3.8, labels, "first k tokens", **_ABOVE_DIFFERENCE, legend=0)


@figure(
    "split-by-position",
    heading="Self and Exchange by position",
    title="Self flow of Relation and diagonal flow of MHA by position in the sequence; the rest of "
    "Relation’s flow is Exchange. Means over sequences, heads and seeds; L2+ over the layers from "
    f"L2 on as well; from position {FIRST_BIN} on, over logarithmic bins, {BINS_AN_OCTAVE} to a "
    "doubling.",
    alt="Line charts by scale: the share of flow that stays on a token against its position on a "
    "logarithmic axis, for the first layer, the second and the rest, for MHA and Relation.",
    reads=_curves,
)
def split_by_position(records: CampaignRecords) -> Figure:
    def draw(scale: str, curves: pd.DataFrame, panels: Sequence[Axes]) -> None:
        (here,) = panels
        for variant in PAIRED:
            of_variant = select(curves, variant=variant)
            for name, first, last, dashes in POSITION_LAYERS:
                layers = of_variant[of_variant["layer"].between(first, last)]
                if len(layers):
                    look = {"linewidth": 1.1, "label": f"{OPERATOR_NAME[variant]} {name}"}
                    binned = _in_bins(_mean_curve(layers))
                    here.plot(*binned, dashes, color=OPERATOR_COLOUR[variant], **look)
        here.set_xscale("log", base=2)
        percent(here)
        here.set_ylim(0, 1)

    curves = _found(select(_curves(records), curve="self"), records)
    labels, along = ["Self / diagonal flow"], "position (tokens)"
    return by_scale(curves, draw, 2.8, labels, along, sharey="row", legend=-1)


def _in_bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions 1, 2, ... and values, from FIRST_BIN on the means of BINS_AN_OCTAVE."""
    octaves = np.log2(max(len(values) / FIRST_BIN, 1))
    starts = FIRST_BIN * 2 ** np.arange(0, octaves, 1 / BINS_AN_OCTAVE)
    first = np.concatenate([np.arange(1, FIRST_BIN), starts.round().astype(int)])
    first = first[first <= len(values)]
    sizes = np.diff(first, append=len(values) + 1)
    return first + (sizes - 1) / 2, np.add.reduceat(values, first - 1) / sizes
