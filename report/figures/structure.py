"""Figures of the flow: by layer, by distance, on the first tokens, spectra, maps."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from report import stats
from report.data import Records
from report.figures import style
from report.figures.style import COLOUR, NAME, PAIR, drawing, grid, scales_of

SINKS = (1, 2, 4, 8, 16, 32)  # first tokens, as Table 9 has them
MAP_LAYERS = 5  # layers a row of the flow maps
# Maps are stored as bytes on a logarithmic scale: 63 is 1, 62 levels over five decades.
TOP, DECADES = 63, 5.0


def _paired(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of MHA and Relation, and the scales that have both."""
    rows = frame[frame["variant"].isin(PAIR)]
    scales = [s for s in scales_of(rows) if rows[rows["scale"] == s]["variant"].nunique() == 2]
    return rows, scales


def _by_seed(rows: pd.DataFrame, along: str) -> dict[str, pd.DataFrame]:
    """By variant, values with a row a place and a column a seed."""
    return {v: rows[rows["variant"] == v].pivot_table("value", along, "seed") for v in PAIR}


@drawing("flow-by-layer", "Flow and effective rank by layer")
def flow_by_layer(records: Records) -> Figure | None:
    """Self flow of Relation and diagonal flow of MHA, the effective rank of either flow, and the
    ratio of the ranks: means over seeds, points are seeds."""
    rows, scales = _paired(records.flow)
    if not scales:
        return None
    layers = stats.pooled(rows, ["scale", "variant", "seed", "metric", "layer"])
    shape = {"sharex": "col", "sharey": "row", "height_ratios": (3, 3, 2)}
    figure, axes = grid(3, len(scales), 5.4, **shape)
    for (flow, rank, ratio), scale in zip(axes.T, scales, strict=True):
        own = layers[layers["scale"] == scale]
        selfs = _by_seed(own[own["metric"] == "self_flow"], "layer")
        ranks = _by_seed(own[own["metric"] == "effective_rank"], "layer")
        for here, seeds in ((flow, selfs), (rank, ranks)):
            for variant, curves in seeds.items():
                style.seeds_and_mean(here, curves, COLOUR[variant], points=True)
            here.set_ylim(bottom=0, auto=True)
        ratio.axhline(1, color=style.MUTED, linewidth=0.8)
        style.seeds_and_mean(ratio, ranks["full"] / ranks["mha"], style.MUTED, points=True)
        flow.set_title(scale)
        style.percent(flow)
        ratio.set_xlabel("layer")
        ratio.xaxis.set_major_locator(MaxNLocator(integer=True))
    for here, label in zip(
        axes[:, 0], ("Self / diagonal flow", "effective rank", "rank, Relation\nover MHA"),
        strict=True,
    ):  # fmt: skip
        here.set_ylabel(label)
    style.pair_names(axes[0, 0])
    return figure


def _curves(records: Records, curve: str) -> tuple[pd.DataFrame, list[str]]:
    return _paired(records.curves[records.curves["curve"] == curve])


def _mean(rows: pd.DataFrame) -> np.ndarray:
    """The mean of curves of one length, (K,)."""
    return np.mean(np.stack(list(rows["values"])), axis=0)


@drawing("flow-spectra", "Spectra of the flow")
def spectra(records: Records) -> Figure | None:
    """Singular values of the flow, means over sequences, heads and seeds: the first layer’s bold,
    the others thin."""
    rows, scales = _curves(records, "sigma")
    if not scales:
        return None
    figure, axes = grid(1, len(scales), 2.8, sharey="row")
    for here, scale in zip(axes[0], scales, strict=True):
        for variant in PAIR:
            own = rows[(rows["scale"] == scale) & (rows["variant"] == variant)]
            for layer, group in reversed(list(own.groupby("layer"))):
                values = _mean(group)
                look = {"linewidth": 1.8} if layer == 0 else {"linewidth": 0.6, "alpha": 0.5}
                here.plot(np.arange(1, len(values) + 1), values, color=COLOUR[variant], **look)
        here.set_title(scale)
        here.set_yscale("log")
        here.set_ylim(bottom=1e-5, auto=True)  # below, FP32 has little to say
        here.set_xlabel("k")
    axes[0, 0].set_ylabel("k-th singular value")
    style.pair_names(axes[0, 0])
    return figure


def _with_difference(figure_axes, scales, seeds_of, label: str, along: str) -> None:
    """Two rows of panels: both operators, and below them Relation less MHA."""
    for (above, below), scale in zip(figure_axes.T, scales, strict=True):
        seeds = seeds_of(scale)
        for variant, curves in seeds.items():
            style.seeds_and_mean(above, curves, COLOUR[variant])
        below.axhline(0, color=style.MUTED, linewidth=0.8)
        style.seeds_and_mean(below, seeds["full"] - seeds["mha"], style.MUTED)
        above.set_title(scale)
        style.percent(above)
        style.points(below)
        below.set_xlabel(along)
    figure_axes[0, 0].set_ylabel(label)
    figure_axes[1, 0].set_ylabel("Relation − MHA\n(pp)")
    style.pair_names(figure_axes[0, -1])


@drawing("history-by-distance", "History by distance")
def history(records: Records) -> Figure | None:
    """Historical flow beyond every distance, conditioned on history, and Relation’s less MHA’s.
    Dashed: the distances of the tables."""
    rows, scales = _curves(records, "distance")
    if not scales:
        return None

    def beyond(scale: str) -> dict[str, pd.DataFrame]:
        found = {}
        for variant in PAIR:
            own = rows[(rows["scale"] == scale) & (rows["variant"] == variant)]
            # Mass at each distance, (T,), to the mass beyond it; distance 0 is no history.
            tails = {
                s: np.append(_mean(g)[::-1].cumsum()[::-1][1:], 0.0) for s, g in own.groupby("seed")
            }
            found[variant] = pd.DataFrame(tails)[1:]
        return found

    figure, axes = grid(2, len(scales), 3.8, sharex="col", height_ratios=(3, 2))
    _with_difference(axes, scales, beyond, "historical mass\nbeyond d", "distance d (tokens)")
    for column, scale in zip(axes.T, scales, strict=True):
        length = int(rows[rows["scale"] == scale]["length"].max())
        ticks = [length // part for part in (8, 4, 2)]
        for panel in column:
            for distance in ticks:
                panel.axvline(distance, color=style.MUTED, linewidth=0.7, linestyle=style.DASHES)
            style.doublings(panel, [1, *ticks, length])
    return figure


@drawing("sink-profile", "Flow on the first tokens")
def sink(records: Records) -> Figure | None:
    """Historical flow on the first k tokens, conditioned on history, and Relation’s less MHA’s."""
    rows, scales = _paired(records.flow[records.flow["metric"].str.startswith("sink_")])
    if not scales:
        return None
    rows = stats.pooled(rows, ["scale", "variant", "seed", "metric"])
    rows["first"] = rows["metric"].str.removeprefix("sink_").astype(int)
    figure, axes = grid(2, len(scales), 3.8, sharex="col", height_ratios=(3, 2))
    _with_difference(
        axes, scales, lambda scale: _by_seed(rows[rows["scale"] == scale], "first"),
        "historical mass\non the first k", "first k tokens",
    )  # fmt: skip
    for here in axes.ravel():
        style.doublings(here, list(SINKS))
    return figure


@drawing("flow-maps", "Flow maps")
def flow_maps(records: Records) -> Figure | None:
    """Flow between blocks of tokens on the first diagnosed sequence, mean over heads. A row shows
    where its tokens draw from and sums to 1; colours are logarithmic from 1/100,000 to 1."""
    rows, scales = _paired(records.maps)
    if not scales:
        return None
    figure, axes = grid(2 * len(scales), MAP_LAYERS, 3.0 * len(scales))
    for axis in axes.flat:
        axis.set_axis_off()
    for place, scale in enumerate(scales):
        for row, variant in enumerate(PAIR, start=2 * place):
            own = rows[(rows["scale"] == scale) & (rows["variant"] == variant)]
            own = own[own["seed"] == own["seed"].min()]
            depth = own["layer"].nunique()
            shown = range(depth) if depth <= MAP_LAYERS else (0, 1, 2, depth // 2, depth - 1)
            for here, layer in zip(axes[row], shown, strict=False):
                heads = own[own["layer"] == layer]
                side = int(heads["side"].iloc[0])
                codes = np.stack([np.frombuffer(c, np.uint8) for c in heads["codes"]])
                logs = (codes.astype(float) - TOP) * DECADES / (TOP - 1)  # log10, (heads, side²)
                mean = np.where(codes > 0, 10.0**logs, 0.0).mean(0).reshape(side, side)
                here.set_axis_on()
                image = np.log10(np.maximum(mean, 10.0**-DECADES))
                here.imshow(image, cmap="magma", vmin=-DECADES, vmax=0, interpolation="nearest")
                here.set_xticks([])
                here.set_yticks([])
                here.grid(visible=False)
                here.set_title(f"L{layer}", fontsize=7.5)
            axes[row, 0].set_ylabel(f"{scale}\n{NAME[variant]}")
    return figure
