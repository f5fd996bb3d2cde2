"""Flow by depth, by distance, by position and on the first tokens, and its spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from relation.records.structure import by_checkpoint, by_layer
from report.compute.measured import select
from report.figures.drawing import PAIR, Drawing, demand, grid, present
from report.layout import SCALES
from report.numbers import MINUS
from report.style import MUTED, OPERATOR_COLOUR, OPERATOR_NAME

if TYPE_CHECKING:
    from relation.records import CampaignRecords

SINK_SIZES = (1, 2, 4, 8, 16, 32)


def flow_by_layer(records: CampaignRecords) -> Figure:
    """Self or diagonal flow, effective rank, and Relation's rank over MHA's; a column a scale."""
    metrics = {
        "self_flow": "Self / diagonal flow",
        "effective_rank": "effective rank",
    }
    layers = by_layer(select(_measured(records), metric=tuple(metrics)))
    demand(len(layers) > 0, "diagnosed checkpoint", records, ("flow", "run"))
    scales = present(layers, SCALES)
    figure, axes = grid(3, len(scales), 5.4, sharex="col", sharey="row", height_ratios=(3, 3, 2))
    for row, (metric, label) in enumerate(metrics.items()):
        for column, scale in enumerate(scales):
            here = axes[row, column]
            _lines(here, select(layers, scale=scale, metric=metric), "layer")
            here.xaxis.set_major_locator(MaxNLocator(integer=True))
            if row == 0:
                here.set_title(scale)
                here.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[row, 0].set_ylabel(label)
        axes[row, 0].set_ylim(bottom=0)
    for here, scale in zip(axes[2], scales, strict=True):
        _rank_ratio(here, select(layers, scale=scale, metric="effective_rank"))
        here.set_xlabel("layer")
    axes[2, 0].set_ylabel("rank, Relation\nover MHA")
    _legend(axes[0, 0])
    return figure


def _rank_ratio(axes: Axes, values: pd.DataFrame) -> None:
    """The ratio of the means over seeds, as the tables have it; paired seeds as faint points."""
    axes.axhline(1, color=MUTED, linewidth=0.8)
    wide = values.pivot_table(index=["seed", "layer"], columns="variant", values="value")
    if set(PAIR) - set(wide):
        return
    pairs = (wide["full"] / wide["mha"]).dropna().reset_index(name="ratio")
    axes.plot(pairs["layer"], pairs["ratio"], "o", color=MUTED, markersize=3, alpha=0.35)
    means = wide.groupby("layer").mean()
    axes.plot(means.index, means["full"] / means["mha"], color=MUTED)


def _mean_curves(curves: pd.DataFrame) -> np.ndarray:
    """The mean of several curves of one length."""
    return np.mean(np.stack(list(curves["values"])), axis=0)


def _beyond(masses: np.ndarray) -> np.ndarray:
    """The mass beyond every distance d, from the mass at every distance."""
    return np.append(masses[::-1].cumsum()[::-1][1:], 0.0)


def _measured(records: CampaignRecords) -> pd.DataFrame:
    return select(records.flow, variant=PAIR)


def _curves(records: CampaignRecords) -> pd.DataFrame:
    return select(records.curves, variant=PAIR)


def _of_pairs(records: CampaignRecords, curve: str) -> pd.DataFrame:
    curves = select(_curves(records), curve=curve)
    demand(len(curves) > 0, "diagnosed checkpoint", records, ("flow", "run"))
    return curves


def history_by_distance(records: CampaignRecords) -> Figure:
    """Conditional historical mass beyond every distance, a column a scale."""
    curves = _of_pairs(records, "distance")
    scales = present(curves, SCALES)
    figure, axes = _above_difference(len(scales))
    for (here, below), scale in zip(axes.T, scales, strict=True):
        beyond: dict[str, dict[int, np.ndarray]] = {}
        for variant in PAIR:
            of_variant = select(curves, scale=scale, variant=variant)
            beyond[variant] = {
                seed: _beyond(_mean_curves(group))[1:] for seed, group in of_variant.groupby("seed")
            }
            _seeds_and_mean(here, list(beyond[variant].values()), variant)
        paired = [
            mass - beyond["mha"][seed]
            for seed, mass in beyond["full"].items()
            if seed in beyond["mha"]
        ]
        _seeds_and_mean(below, paired)
        length = int(select(curves, scale=scale)["length"].max())
        ticks = [length // part for part in (8, 4, 2)]
        for panel in (here, below):
            for distance in ticks:
                panel.axvline(distance, color=MUTED, linewidth=0.4, linestyle=(0, (2, 2)))
            panel.set_xscale("log", base=2)
            panel.set_xticks([1, *ticks, length], [str(tick) for tick in (1, *ticks, length)])
            panel.minorticks_off()
        here.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        here.set_ylim(0, 1)
        here.set_title(scale)
        below.set_xlabel("distance d (tokens)")
    axes[0, 0].set_ylabel("historical mass\nbeyond d")
    _legend(axes[0, -1])
    return figure


def _above_difference(columns: int) -> tuple[Figure, np.ndarray]:
    """Panels of both operators, and below each the difference that is too small to see there."""
    figure, axes = grid(2, columns, 3.8, sharex="col", height_ratios=(3, 2))
    for below in axes[1]:
        below.axhline(0, color=MUTED, linewidth=0.8)
        below.yaxis.set_major_formatter(FuncFormatter(_points))
    axes[1, 0].set_ylabel("Relation − MHA\n(pp)")
    return figure, axes


def _points(share: float, _: int) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * share:+.4g}".replace("-", MINUS) if share else "0"


def _seeds_and_mean(axes: Axes, curves: list[np.ndarray], variant: str | None = None) -> None:
    """A thin line a seed and their mean in bold, against 1, 2, ...; muted if of no operator."""
    colour = OPERATOR_COLOUR[variant] if variant else MUTED
    for curve in curves:
        axes.plot(np.arange(1, len(curve) + 1), curve, color=colour, linewidth=0.5)
    if curves:
        mean = np.mean(curves, axis=0)
        label = OPERATOR_NAME[variant] if variant else None
        axes.plot(np.arange(1, len(mean) + 1), mean, color=colour, label=label)


def spectra(records: CampaignRecords) -> Figure:
    """Singular values of every layer's flow, the first layer's strong, a column a scale."""
    curves = _of_pairs(records, "sigma")
    scales = present(curves, SCALES)
    figure, axes = grid(1, len(scales), 2.8, sharey="row")
    for here, scale in zip(axes[0], scales, strict=True):
        for variant in PAIR:
            layers = select(curves, scale=scale, variant=variant).groupby("layer")
            for layer, group in reversed(list(layers)):
                values = _mean_curves(group)
                first = layer == 0
                here.plot(
                    np.arange(1, len(values) + 1),
                    values,
                    color=OPERATOR_COLOUR[variant],
                    linewidth=1.8 if first else 0.6,
                    alpha=1.0 if first else 0.5,
                    label=OPERATOR_NAME[variant] if first else None,
                )
        here.set_yscale("log")
        here.set_ylim(bottom=1e-5)  # below it FP32 has little to say
        here.set_title(scale)
        here.set_xlabel("k")
    axes[0, 0].set_ylabel("k-th singular value")
    _legend(axes[0, 0])
    return figure


POSITION_LAYERS = (("L0", 0, 0, "-"), ("L1", 1, 1, "--"), ("L2+", 2, np.inf, ":"))
# On a logarithmic axis all positions from here on would be a band of noise.
FIRST_BIN, BINS_AN_OCTAVE = 8, 4


def _in_bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions 1, 2, ... and values, from FIRST_BIN on the means of BINS_AN_OCTAVE."""
    octaves = np.log2(max(len(values) / FIRST_BIN, 1))
    starts = FIRST_BIN * 2 ** np.arange(0, octaves, 1 / BINS_AN_OCTAVE)
    first = np.concatenate([np.arange(1, FIRST_BIN), starts.round().astype(int)])
    first = first[first <= len(values)]
    sizes = np.diff(first, append=len(values) + 1)
    return first + (sizes - 1) / 2, np.add.reduceat(values, first - 1) / sizes


def split_by_position(records: CampaignRecords) -> Figure:
    """Self or diagonal flow against the position in the sequence, a column a scale."""
    curves = _of_pairs(records, "self")
    scales = present(curves, SCALES)
    figure, axes = grid(1, len(scales), 2.8, sharey="row")
    for here, scale in zip(axes[0], scales, strict=True):
        for variant in PAIR:
            of_scale = select(curves, scale=scale, variant=variant)
            for name, first, last, dashes in POSITION_LAYERS:
                layers = of_scale[
                    of_scale["layer"].between(first, np.inf if last is None else last)
                ]
                if layers.empty:
                    continue
                here.plot(
                    *_in_bins(_mean_curves(layers)),
                    dashes,
                    color=OPERATOR_COLOUR[variant],
                    linewidth=1.1,
                    label=f"{OPERATOR_NAME[variant]} {name}",
                )
        here.set_xscale("log", base=2)
        here.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        here.set_ylim(0, 1)
        here.set_title(scale)
        here.set_xlabel("position (tokens)")
    axes[0, 0].set_ylabel("Self / diagonal flow")
    _legend(axes[0, -1])
    return figure


def sink_profile(records: CampaignRecords) -> Figure:
    """Conditional historical mass on the first k tokens, a column a scale."""
    sizes = {f"sink_{size}": size for size in SINK_SIZES}
    layers = by_layer(select(_measured(records), metric=tuple(sizes)))
    demand(len(layers) > 0, "diagnosed checkpoint", records, ("flow", "run"))
    layers = layers.assign(first=layers["metric"].map(sizes))
    scales = present(layers, SCALES)
    figure, axes = _above_difference(len(scales))
    for (here, below), scale in zip(axes.T, scales, strict=True):
        of_scale = select(layers, scale=scale)
        _lines(here, of_scale, "first")
        _pair_differences(below, of_scale, "first")
        here.set_xscale("log", base=2)
        here.set_xticks(SINK_SIZES, [str(size) for size in SINK_SIZES])
        here.set_ylim(bottom=0)
        here.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        here.set_title(scale)
        below.set_xlabel("first k tokens")
    axes[0, 0].set_ylabel("historical mass\non the first k")
    _legend(axes[0, 0])
    return figure


def _lines(axes: Axes, layers: pd.DataFrame, x: str) -> None:
    """Mean over seeds as a line, seeds as faint points; layers of a checkpoint averaged first."""
    for variant in PAIR:
        _line(axes, _seeds_at(layers, variant, x), OPERATOR_COLOUR[variant], OPERATOR_NAME[variant])


def _pair_differences(axes: Axes, layers: pd.DataFrame, x: str) -> None:
    """Relation less MHA, over the seeds that have both."""
    mha, full = (_seeds_at(layers, variant, x) for variant in PAIR)
    pairs = {place: (full[place] - mha[place]).dropna() for place in full if place in mha}
    _line(axes, {place: seeds for place, seeds in pairs.items() if len(seeds)}, MUTED)


def _seeds_at(layers: pd.DataFrame, variant: str, x: str) -> dict[float, pd.Series]:
    """Values by seed, at every place along ``x``."""
    return {
        place: by_checkpoint(group).set_index("seed")["value"]
        for place, group in select(layers, variant=variant).groupby(x)
    }


def _line(axes: Axes, at: dict[float, pd.Series], colour: str, label: str | None = None) -> None:
    for place, seeds in at.items():
        axes.plot([place] * len(seeds), seeds, "o", color=colour, markersize=3, alpha=0.35)
    if at:
        axes.plot(list(at), [seeds.mean() for seeds in at.values()], color=colour, label=label)


def _legend(axes: Axes) -> None:
    axes.legend(handlelength=1.6)


DRAWINGS = (
    Drawing(
        "flow-by-layer",
        "Self flow of Relation and diagonal flow of MHA, the effective rank of either flow, and "
        "Relation’s rank over MHA’s, by layer: mean over seeds, a point a seed.",
        "Line charts by scale: the share of flow that stays on a token, the effective rank of the "
        "flow, and the ratio of the ranks, all against the layer, for MHA and Relation.",
        flow_by_layer,
        reads=lambda records: (_measured(records),),
    ),
    Drawing(
        "flow-spectra",
        "Singular values of the flow, means over sequences, heads and seeds: the first layer’s in "
        "bold, the others thin. The axes end at 1/100,000, below which FP32 has little to say.",
        "Line charts by scale: singular values of the flow matrix on a logarithmic axis against "
        "their index, a line a layer, for MHA and Relation.",
        spectra,
        reads=lambda records: (_curves(records),),
    ),
    Drawing(
        "history-by-distance",
        "Historical flow beyond every distance, conditioned on history, and Relation’s less MHA’s "
        "in percentage points: mean over seeds in bold, a thin line a seed. Dashed: the distances "
        "of the tables.",
        "Line charts by scale: the conditional historical mass beyond a distance against the "
        "distance on a logarithmic axis, for MHA and Relation, and below it their difference.",
        history_by_distance,
        reads=lambda records: (_curves(records),),
    ),
    Drawing(
        "sink-profile",
        "Historical flow on the first k tokens, conditioned on history, and Relation’s less MHA’s "
        "in percentage points: mean over seeds, a point a seed.",
        "Line charts by scale: the conditional historical mass on the first 1 to 32 tokens, for "
        "MHA and Relation, and below it their difference.",
        sink_profile,
        reads=lambda records: (_measured(records),),
    ),
    Drawing(
        "split-by-position",
        "Self flow of Relation and diagonal flow of MHA by position in the sequence; the rest of "
        "Relation’s flow is Exchange. Means over sequences, heads and seeds; L2+ over the layers "
        f"from L2 on as well; from position {FIRST_BIN} on, over logarithmic bins, "
        f"{BINS_AN_OCTAVE} to a doubling.",
        "Line charts by scale: the share of flow that stays on a token against its position on a "
        "logarithmic axis, for the first layer, the second and the rest, for MHA and Relation.",
        split_by_position,
        reads=lambda records: (_curves(records),),
    ),
)
