"""Figures of the flow: by layer, by distance, spectra, maps."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from relation.flow.maps import DECADES, decode
from relation.variants import PAIRED
from report import stats
from report.data import Records
from report.figures import style
from report.figures.style import NAME, drawing, paired, panels

MAP_LAYERS = 5  # layers per row of the flow maps
PERCENT = PercentFormatter(1.0, decimals=0)


def _by_seed(rows: pd.DataFrame, metric: str, along: str = "layer") -> dict[str, pd.DataFrame]:
    """Return a metric by variant: a frame with one row per `along` and one column per seed."""
    by_variant = rows[rows["metric"] == metric].groupby("variant")
    return {variant: arm.pivot_table("value", along, "seed") for variant, arm in by_variant}


def _curves(curve: str) -> Callable[[Records], pd.DataFrame]:
    return lambda records: paired(records.curves[records.curves["curve"] == curve])


def _mean(rows: pd.DataFrame) -> np.ndarray:
    """Return the mean (K,) of curves of the same length K."""
    return np.mean(np.stack(list(rows["values"])), axis=0)


def _diagnosed(records: Records) -> pd.DataFrame:
    """Return all diagnosed variants at the scales that have both MHA and Relation."""
    return records.flow[records.flow["scale"].isin(paired(records.flow)["scale"])]


@drawing("flow-by-layer", "Flow and effective rank by layer", _diagnosed)
def flow_by_layer(rows: pd.DataFrame, records: Records) -> Figure:
    """Top: Self flow of Relation and diagonal flow of MHA. Middle: effective rank of each flow.
    Bottom: ratio of the two ranks. Lines are means over seeds, points are seeds."""
    layers = stats.pooled(rows, ["scale", "variant", "seed", "metric", "layer"])
    shape = {"sharex": "col", "sharey": "row", "height_ratios": (3, 3, 2)}
    labels = ("Self / diagonal flow", "effective rank", "rank, Relation\nover MHA")
    figure, columns = panels(layers, 5.4, labels, "layer", **shape)
    for _, scale_rows, (flow, rank, ratio) in columns:
        ranks = _by_seed(scale_rows, "effective_rank")
        for panel, seeds in ((flow, _by_seed(scale_rows, "self_flow")), (rank, ranks)):
            for variant, curves in reversed(seeds.items()):  # Relation above MHA
                style.seeds_and_mean(panel, curves, variant, points=True)
            panel.set_ylim(bottom=0, auto=True)
        ratio.axhline(1, color=style.MUTED, linewidth=0.8)
        style.seeds_and_mean(ratio, ranks["full"] / ranks["mha"], points=True)
        flow.yaxis.set_major_formatter(PERCENT)
        ratio.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _first_layer(records: Records) -> pd.DataFrame:
    chosen = "layer == 0 and metric in ('self_flow', 'effective_rank')"
    return paired(records.probes.query(chosen))


@drawing("first-layer", "The first layer while training", _first_layer)
def first_layer(rows: pd.DataFrame, records: Records) -> Figure:
    """Top: Self flow of Relation’s first layer and diagonal flow of MHA’s. Bottom: effective rank
    of each flow. Both are measured during training on validation text. Thin lines are seeds, thick
    lines their mean. Dashed: at 20% or more, the layer is an anchor."""
    labels, shape = ("Self / diagonal flow", "effective rank"), {"sharex": "col", "sharey": "row"}
    figure, columns = panels(rows, 4.2, labels, "training tokens", **shape)
    for _, scale_rows, panels_of_scale in columns:
        for panel, metric in zip(panels_of_scale, ("self_flow", "effective_rank"), strict=True):
            for variant, curves in _by_seed(scale_rows, metric, "tokens").items():
                style.seeds_and_mean(panel, curves, variant)
            panel.set_ylim(bottom=0, auto=True)
        panels_of_scale[0].axhline(0.2, color=style.MUTED, linewidth=0.7, linestyle=style.DASHES)
        panels_of_scale[0].yaxis.set_major_formatter(PERCENT)
        style.counts(panels_of_scale[1].xaxis)
    return figure


@drawing("flow-maps", "Flow maps", lambda r: paired(r.maps))
def flow_maps(rows: pd.DataFrame, records: Records) -> Figure:
    """Flow between blocks of tokens on the first diagnosed sequence, mean over heads. A row shows
    the sources of its tokens and sums to 1. Brighter is more, on a logarithmic scale from
    1/100,000 (black) to 1."""
    models = [(scale, variant) for scale in style.scales_of(rows) for variant in PAIRED]
    figure, axes = style.grid(len(models), MAP_LAYERS, 1.5 * len(models))
    for axis in axes.flat:
        axis.set_axis_off()
    for (scale, variant), row in zip(models, axes, strict=True):
        maps = rows[(rows["scale"] == scale) & (rows["variant"] == variant)]
        maps = maps[maps["seed"] == maps["seed"].min()]
        depth = maps["layer"].nunique()
        layers = range(depth) if depth <= MAP_LAYERS else (0, 1, 2, depth // 2, depth - 1)
        for panel, layer in zip(row, layers, strict=False):
            heads = maps[maps["layer"] == layer]
            side = int(heads["side"].iloc[0])
            codes = np.stack([np.frombuffer(c, np.uint8) for c in heads["codes"]])
            mean = decode(codes).mean(0).reshape(side, side)  # of (heads, side²)
            panel.set_axis_on()
            image = np.log10(np.maximum(mean, 10.0**-DECADES))
            panel.imshow(image, cmap="magma", vmin=-DECADES, vmax=0, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
            panel.set_title(f"L{layer}", fontsize=7.5)
        row[0].set_ylabel(f"{scale}\n{NAME[variant]}")
    return figure


@drawing("flow-spectra", "Spectra of the flow", _curves("sigma"))
def spectra(rows: pd.DataFrame, records: Records) -> Figure:
    """Singular values of the flow, means over sequences, heads and seeds. Bold: the first layer.
    Thin: the other layers."""
    figure, columns = panels(rows, 2.8, ["k-th singular value"], "k", sharey="row")
    for _, scale_rows, (panel,) in columns:
        for variant in PAIRED:
            layers = scale_rows[scale_rows["variant"] == variant].groupby("layer")
            for layer, group in reversed(list(layers)):
                values = _mean(group)
                line = {"linewidth": 1.8} if layer == 0 else {"linewidth": 0.6, "alpha": 0.5}
                panel.plot(np.arange(1, len(values) + 1), values, **style.look(variant), **line)
        panel.set_yscale("log")
        panel.set_ylim(bottom=1e-5, auto=True)  # smaller values are mostly FP32 rounding
    return figure


def _beyond(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return, by variant, the mass beyond each distance >= 1, with one column per seed."""
    by_run = {key: _mean(group) for key, group in rows.groupby(["variant", "seed"])}
    from_distance = pd.DataFrame(by_run)[::-1].cumsum().astype(float)  # (T, runs), from T - 1 down
    beyond = from_distance.shift(fill_value=0.0)[::-1][1:]  # distance 0 is not history
    return {variant: beyond[variant] for variant in PAIRED}


@drawing("history-by-distance", "History by distance", _curves("distance"))
def history(rows: pd.DataFrame, records: Records) -> Figure:
    """Top: historical flow beyond each distance, conditioned on history. Bottom: Relation − MHA.
    Dashed: the distances of the tables, an eighth, a quarter and half of the sequence."""
    labels = ("historical mass\nbeyond d", "Relation − MHA\n(pp)")
    shape = {"sharex": "col", "height_ratios": (3, 2)}
    figure, columns = panels(rows, 3.8, labels, "distance d (tokens)", **shape)
    for _, scale_rows, (above, below) in columns:
        seeds = _beyond(scale_rows)
        for variant, curves in seeds.items():
            style.seeds_and_mean(above, curves, variant)
        below.axhline(0, color=style.MUTED, linewidth=0.8)
        style.seeds_and_mean(below, seeds["full"] - seeds["mha"])
        above.yaxis.set_major_formatter(PERCENT)
        below.yaxis.set_major_formatter(lambda share, _: f"{100 * share:+.3g}")
        length = int(scale_rows["length"].max())
        for panel in (above, below):
            for part in (8, 4, 2):
                look = {"color": style.MUTED, "linewidth": 0.7, "linestyle": style.DASHES}
                panel.axvline(length // part, **look)
            style.doublings(panel, [1, length // 8, length])
    return figure
