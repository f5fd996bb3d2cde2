"""Flow maps: MHA beside Relation, a few layers as a picture, every layer and head as a page."""

import base64
import io
import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import colormaps, image
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from relation.flow.codes import TOP, decode, encode
from relation.variants import PAIRED
from report.figures.drawing import demand, figure, grid, scales_of
from report.figures.stepper import page
from report.values.frames import CampaignRecords
from report.values.measured import select
from report.values.style import OPERATOR_NAME

MOST = 5  # layers a row of the picture
COLOURS = colormaps["magma"]
READINGS = {"self_flow": "self", "effective_rank": "rank", "sink_1": "sink"}


@dataclass(frozen=True)
class Maps:
    """The maps of the two checkpoints of a pair: codes (layers, heads, side, side) by variant."""

    scale: str
    seed: int
    length: int
    codes: dict[str, np.ndarray]


def _codes(rows: pd.DataFrame) -> np.ndarray:
    ordered = rows.sort_values(["layer", "head"])
    side, layers = int(ordered["side"].iloc[0]), ordered["layer"].nunique()
    codes = np.frombuffer(b"".join(ordered["codes"]), np.uint8)
    return codes.reshape(layers, -1, side, side)


def _pairs(records: CampaignRecords) -> list[Maps]:
    """The first pair of every scale whose two checkpoints were diagnosed."""
    found = []
    for scale in scales_of(records.maps):
        of_scale = select(records.maps, scale=scale, variant=PAIRED)
        for seed, rows in of_scale.groupby("seed"):
            measured = select(records.flow, scale=scale, seed=seed, variant=PAIRED)
            if set(rows["variant"]) == set(measured["variant"]) == set(PAIRED):
                codes = {variant: _codes(select(rows, variant=variant)) for variant in PAIRED}
                found.append(Maps(scale, int(seed), int(rows["length"].iloc[0]), codes))
                break
    demand(len(found) > 0, "pair of diagnosed checkpoints", records, "flow", "run")
    return found


def _read(records: CampaignRecords) -> list[pd.DataFrame]:
    """The maps of the pairs shown, and their metrics, which stand beside them on the page."""
    return [
        select(rows, scale=maps.scale, seed=maps.seed, variant=PAIRED)
        for maps in _pairs(records)
        for rows in (records.maps, records.flow)
    ]


def shown_layers(depth: int) -> list[int]:
    """The layers that the picture has room for."""
    return list(range(depth)) if depth <= MOST else [0, 1, 2, depth // 2, depth - 1]


def _png(pixels: np.ndarray) -> str:
    """An image (rows, columns, 4) of bytes as the address of a PNG in itself."""
    buffer = io.BytesIO()
    image.imsave(buffer, pixels, format="png", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _sheet(codes: np.ndarray) -> str:
    """All maps of a checkpoint in one picture: a row a layer, a column a head."""
    layers, heads, side, _ = codes.shape
    sheet = codes.transpose(0, 2, 1, 3).reshape(layers * side, heads * side)
    return _png(COLOURS(sheet / TOP, bytes=True))


def _values(flow: pd.DataFrame, maps: Maps, variant: str) -> list[list[dict[str, float]]]:
    """Self flow, effective rank and first-token sink of every layer and head."""
    rows = select(
        flow, scale=maps.scale, seed=maps.seed, variant=variant, metric=tuple(READINGS)
    ).astype({"value": float})
    means = rows.groupby(["layer", "head", "metric"])["value"].mean()
    layers, heads = maps.codes[variant].shape[:2]
    return [
        [
            {key: round(means[layer, head, metric], 5) for metric, key in READINGS.items()}
            for head in range(heads)
        ]
        for layer in range(layers)
    ]


def stepper(records: CampaignRecords) -> str:
    """The page on which a reader steps through layers and heads; it needs nothing but itself."""
    pairs = _pairs(records)
    scales = [
        {
            "name": maps.scale,
            "seed": maps.seed,
            "length": maps.length,
            "layers": len(maps.codes["full"]),
            "heads": maps.codes["full"].shape[1],
            "values": {variant: _values(records.flow, maps, variant) for variant in PAIRED},
        }
        for maps in pairs
    ]
    sheets = {maps.scale: {v: _sheet(maps.codes[v]) for v in PAIRED} for maps in pairs}
    bar = _png(COLOURS(np.arange(TOP + 1)[None] / TOP, bytes=True))
    names = {variant: OPERATOR_NAME[variant] for variant in PAIRED}
    return page(json.dumps({"scales": scales, "names": names}), sheets, names, bar)


@figure(
    "flow-maps",
    heading="Flow maps",
    title="Flow between blocks of tokens on the first diagnosed sequence, mean over heads, of the "
    "first pair of each scale; of more than five layers the first three, the middle one and the "
    "last. A row shows where its tokens draw from, and sums to 1; colours are logarithmic from "
    "1/100,000 or less (black) to 1. The page steps through every layer and head.",
    alt="Heat maps by scale and layer: lower triangles that show from which tokens up to itself "
    "each token’s flow comes, MHA above Relation.",
    page=stepper,
    reads=_read,
)
def flow_maps(records: CampaignRecords) -> Figure:
    pairs = _pairs(records)
    drawn, axes = grid(2 * len(pairs), MOST, 3.0 * len(pairs))
    for axis in axes.flat:
        axis.set_axis_off()
    for number, maps in enumerate(pairs):
        shown = shown_layers(len(maps.codes["full"]))
        for row, variant in enumerate(PAIRED, start=2 * number):
            for column, layer in enumerate(shown):
                here = axes[row, column]
                here.set_axis_on()
                mean = encode(decode(maps.codes[variant][layer]).mean(0))
                here.imshow(mean, cmap=COLOURS, norm=Normalize(0, TOP), interpolation="nearest")
                here.set_xticks([])
                here.set_yticks([])
                here.grid(visible=False)
                here.set_title(f"L{layer}", fontsize=7.5)
                if column == 0:
                    here.set_ylabel(f"{maps.scale}\n{OPERATOR_NAME[variant]}")
    return drawn
